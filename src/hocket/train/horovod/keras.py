"""Horovod's verbs for Keras 3 on any of its backends: ``import hocket.train.horovod.keras as hvd``, in a
`KerasTrainer`'s training function.

Each verb is Horovod's; `DistributedOptimizer` works inside the compiled step. On TensorFlow compile the model with
``jit_compile=False``: TensorFlow's XLA cannot leave a step to average its gradients.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from hocket import extras

with extras.explain("hocket.train.horovod.keras", "Keras 3", "Run pip install 'hocket[keras]'."):
    import keras

from hocket.train.frameworks.keras import bridges, framework, steps, variables
from hocket.train.horovod import place, verbs

is_initialized = place.is_initialized
rank = place.rank
size = place.size
local_rank = place.local_rank
local_size = place.local_size
cross_rank = place.cross_rank
cross_size = place.cross_size
is_homogeneous = place.is_homogeneous

Average: Final = place.Op.AVERAGE
Sum: Final = place.Op.SUM
Min: Final = place.Op.MIN
Max: Final = place.Op.MAX
Product: Final = place.Op.PRODUCT
Adasum: Final = place.Op.ADASUM

nccl_built = mpi_built = gloo_built = cuda_built = rocm_built = ddl_built = ccl_built = place.is_built
mpi_enabled = gloo_enabled = mpi_threads_supported = place.is_built

_verbs: Final = verbs.Verbs(framework.FRAMEWORK, "hocket.train.keras.KerasTrainer")

init = _verbs.init
shutdown = verbs.shutdown
broadcast_object = _verbs.broadcast_object
allgather_object = _verbs.allgather_object
barrier = _verbs.barrier
join = _verbs.join


def allreduce(
    value: object, name: str | None = None, average: bool | None = None, op: place.Op | None = None
) -> variables.Array:
    """Return the mean of all ranks' values, or what `op` makes of them, as a numpy array. Not inside a compiled step.

    Args:
        value: A number, an array or a tensor.
        name: Not needed: calls are matched by their order.
        average: Older programs' way to say `op`.
        op: What to make of them. Default: `Average`.

    Raises:
        ValueError: `init` was not called, or `op` is no operation.
        TypeError: A mean of whole numbers.

    Example:
        >>> import hocket.train.horovod.keras as hvd
        >>> hvd.init()
        >>> hvd.allreduce([1.0, 2.0], op=hvd.Sum).tolist()
        [1.0, 2.0]
        >>> hvd.shutdown()
    """
    chosen = place.choose_op(op, average)
    array = np.array(_read(value))
    if size() > 1:
        _verbs.get_collectives().all_reduce(array, verbs.OPS[chosen])
    return array


def allgather(value: object, name: str | None = None) -> variables.Array:
    """Return all ranks' arrays one after another, along the first dimension, which may be of another length in each
    rank."""
    array = _read(value)
    if not array.ndim:
        raise ValueError(
            "allgather() puts arrays one after another along their first dimension, but received a scalar. Write "
            "[value]."
        )
    return np.concatenate(allgather_object(array))


def broadcast(value: object, root_rank: int, name: str | None = None) -> variables.Array:
    """Return the root's value in all ranks, as a numpy array."""
    array = np.array(_read(value))
    verbs.check_root(root_rank)
    if size() > 1:
        _verbs.get_collectives().broadcast(array, root_rank)
    return array


def broadcast_parameters(params: Any, root_rank: int = 0) -> None:
    """Give all ranks the root's weights.

    Args:
        params: A model, or a list of variables such as ``model.weights``; changed in place.
        root_rank: Whose all shall have.
    """
    verbs.check_root(root_rank)
    given = list(params.weights if isinstance(params, keras.Model) else params)
    if size() > 1:
        variables.broadcast(given, _verbs.get_collectives(), root_rank)


broadcast_variables = broadcast_parameters


def broadcast_optimizer_state(optimizer: Any, root_rank: int = 0) -> None:
    """Give all ranks the root's optimizer state, with the number of its steps.

    Args:
        optimizer: Built in all ranks, or in none.
        root_rank: Whose all shall have.
    """
    broadcast_parameters(optimizer.variables, root_rank)


def DistributedOptimizer(optimizer: object, op: place.Op = Average, **options: object) -> Any:
    """Have a Keras optimizer average the gradients of all ranks before it steps.

    Each rank's count alike, however many rows they have.

    Args:
        optimizer: A Keras optimizer.
        op: `Average`.
        options: Other arguments of Horovod's. What would have an effect here is refused.

    Returns:
        The same object.
    """
    place.refuse("DistributedOptimizer", op=(op, Average))
    place.refuse_options(options)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "DistributedOptimizer() takes an optimizer of Keras 3, but received "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}. Write "
            "hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))."
        )
    if hasattr(optimizer, "hocket_crossing"):
        raise ValueError(f"This {type(optimizer).__name__} is distributed already. Call DistributedOptimizer() once.")
    if not place.get_place().in_trainer or size() == 1:
        return optimizer
    runtime = framework.FRAMEWORK.get_state("horovod.DistributedOptimizer").runtime
    owner = _Average(bridges.Crossing(runtime.average))
    object.__setattr__(optimizer, "hocket_crossing", owner)
    steps.install()
    steps.own(optimizer, owner)
    return optimizer


@dataclass
class _Average:
    """Exchanges an optimizer's gradients."""

    crossing: bridges.Crossing
    takes_steps: bool = False

    def average(self, optimizer: object, gradients: Sequence[object]) -> Sequence[object]:
        return self.crossing.average(gradients, 1.0)

    def take_step(self, optimizer: object, gradients: Sequence[object], given: Sequence[object] | None) -> None:
        raise NotImplementedError("The optimizer steps.")


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not type-checked
    """Gives all ranks the root's weights and optimizer state when ``fit`` begins.

    Args:
        root_rank: Whose all shall have.
    """

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        self._root_rank = root_rank

    def on_train_begin(self, logs: Mapping[str, object] | None = None) -> None:
        """Do it."""
        broadcast_parameters(self.model, self._root_rank)
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is None:
            return
        if any(allgather_object(optimizer.built)) and not optimizer.built:
            optimizer.build(self.model.trainable_variables)  # one rank alone has restored its own
        broadcast_optimizer_state(optimizer, self._root_rank)


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]  # the same
    """Averages the metrics of an epoch over the ranks, for callbacks behind it."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Do it."""
        names = sorted(logs or {})
        if names:
            logs.update(zip(names, allreduce([float(logs[name]) for name in names]).tolist(), strict=True))


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]  # the same
    """Sets the learning rate to `initial_lr` times a multiplier, in some epochs.

    Args:
        initial_lr: The learning rate that is multiplied.
        multiplier: A number, or a function of the epoch: of its number, or, without `staircase`, of the epoch and its
            part that is over, such as 1.25.
        start_epoch: The first epoch that it is for.
        end_epoch: The first that it is not for any more; None is never.
        staircase: Whether the rate changes at epochs only, and not with each batch. A number is set once.
        momentum_correction: Accepted, and not needed: Keras keeps momentum apart from the learning rate.
        steps_per_epoch: How many batches an epoch has. Default: what ``fit`` knows.

    Raises:
        ValueError: The rate changes with each batch, and the number of batches is unknown.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase or not callable(multiplier)
        self._multiply = multiplier if callable(multiplier) else lambda _: multiplier
        self._steps_per_epoch = steps_per_epoch
        self._epoch = 0

    def on_train_begin(self, logs: Mapping[str, object] | None = None) -> None:
        """Find out how many batches an epoch has."""
        self._steps_per_epoch = self._steps_per_epoch or (self.params or {}).get("steps")
        if not self.staircase and not self._steps_per_epoch:
            raise ValueError(
                "The learning rate changes with each batch, but how many an epoch has is unknown. Pass "
                "steps_per_epoch=..."
            )

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, object] | None = None) -> None:
        """Set it for the epoch."""
        self._epoch = epoch
        if self.staircase:
            self._set(epoch)

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, object] | None = None) -> None:
        """Set it for the batch."""
        if not self.staircase:
            assert self._steps_per_epoch, "checked when training began"
            self._set(self._epoch + batch / self._steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Put it among the epoch's metrics."""
        if logs is not None:
            logs["lr"] = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _set(self, epoch: float) -> None:
        if self.start_epoch <= epoch and (self.end_epoch is None or epoch < self.end_epoch):
            self.model.optimizer.learning_rate = self.initial_lr * self._multiply(epoch)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr` divided by the number of ranks to `initial_lr`, evenly, in the first
    epochs.

    P. Goyal and others, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour" (2017), 2.2: gradual warmup.

    Args:
        initial_lr: The learning rate after it: one rank's, times the ranks.
        warmup_epochs: How long it takes.
        momentum_correction: See `LearningRateScheduleCallback`.
        steps_per_epoch: See there.
        verbose: Whether rank 0 prints a line at the end.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiply(epoch: float) -> float:
            assert self._steps_per_epoch, "checked when training began"
            done = (epoch + 1.0 / self._steps_per_epoch) / warmup_epochs  # the batch that begins counts
            return 1.0 / size() * (min(1.0, done) * (size() - 1) + 1)

        super().__init__(
            initial_lr,
            multiply,
            start_epoch=0,
            end_epoch=math.ceil(warmup_epochs),
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self._verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Say that it is over."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self._verbose and rank() == 0:
            sys.stdout.write(f"Epoch {epoch + 1}: finished gradual learning rate warmup to {self.initial_lr:g}.\n")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]  # the same
    """Saves the model when it is the best so far, in rank 0 alone.

    Takes what ``keras.callbacks.ModelCheckpoint`` takes, and `save_best_only` is True.
    """

    def __init__(self, filepath: str, **settings: object) -> None:
        super().__init__(filepath, **{**settings, "save_best_only": True})

    def _save_model(self, *args: object, **kwargs: object) -> None:
        if rank() == 0:
            super()._save_model(*args, **kwargs)


callbacks = types.SimpleNamespace(
    BroadcastGlobalVariablesCallback=BroadcastGlobalVariablesCallback,
    MetricAverageCallback=MetricAverageCallback,
    LearningRateScheduleCallback=LearningRateScheduleCallback,
    LearningRateWarmupCallback=LearningRateWarmupCallback,
    BestModelCheckpoint=BestModelCheckpoint,
)
"""Where Horovod's programs look for them: ``hvd.callbacks.MetricAverageCallback()``."""


def _read(value: object) -> variables.Array:
    return np.asarray(keras.ops.convert_to_numpy(value) if keras.ops.is_tensor(value) else value)
