"""Horovod's functions for Keras 3 on any backend, in a `KerasTrainer`'s training function.

Write ``import hocket.train.horovod.keras as hvd``. `DistributedOptimizer` works inside the compiled step. On
TensorFlow compile the model with ``jit_compile=False``, because TensorFlow's XLA cannot leave a step to average its
gradients.
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

from hocket.compat.horovod import place, verbs
from hocket.train.frameworks.keras import bridges, framework, steps, variables

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
    """Return the mean of all ranks' values, or another reduction by `op`, as a numpy array. Not inside a compiled step.

    Args:
        value: A number, an array or a tensor.
        name: Ignored, because calls are matched by their order.
        average: Older programs' form of `op`.
        op: The reduction. Default: `Average`.

    Raises:
        ValueError: `init` was not called, or `op` is not an operation.
        TypeError: A mean of whole numbers is requested.

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
    """Return all ranks' arrays, concatenated along the first dimension, which may differ in length between ranks."""
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
    """Overwrite all ranks' weights with the root's.

    Args:
        params: A model, or a list of variables such as ``model.weights``; changed in place.
        root_rank: The rank with the weights to keep.
    """
    verbs.check_root(root_rank)
    given = list(params.weights if isinstance(params, keras.Model) else params)
    if size() > 1:
        variables.broadcast(given, _verbs.get_collectives(), root_rank)


broadcast_variables = broadcast_parameters


def broadcast_optimizer_state(optimizer: Any, root_rank: int = 0) -> None:
    """Overwrite all ranks' optimizer state with the root's, including the number of steps.

    Args:
        optimizer: An optimizer that is built in all ranks, or in none.
        root_rank: The rank with the state to keep.
    """
    broadcast_parameters(optimizer.variables, root_rank)


def DistributedOptimizer(optimizer: object, op: place.Op = Average, **options: object) -> Any:
    """Make a Keras optimizer average the gradients of all ranks before each step.

    All ranks have the same weight, whatever their numbers of rows.

    Args:
        optimizer: A Keras optimizer.
        op: Must be `Average`.
        options: Other arguments of Horovod. Arguments that would need an effect here are refused.

    Returns:
        The same optimizer.
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
    """The exchange of an optimizer's gradients."""

    crossing: bridges.Crossing
    takes_steps: bool = False

    def average(self, optimizer: object, gradients: Sequence[object]) -> Sequence[object]:
        return self.crossing.average(gradients, 1.0)

    def take_step(self, optimizer: object, gradients: Sequence[object], given: Sequence[object] | None) -> None:
        raise NotImplementedError("The optimizer steps.")


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not type-checked
    """A callback that overwrites all ranks' weights and optimizer state with the root's when ``fit`` begins.

    Args:
        root_rank: The rank with the weights to keep.
    """

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        self._root_rank = root_rank

    def on_train_begin(self, logs: Mapping[str, object] | None = None) -> None:
        """Broadcast the root's weights and optimizer state."""
        broadcast_parameters(self.model, self._root_rank)
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is None:
            return
        if any(allgather_object(optimizer.built)) and not optimizer.built:
            optimizer.build(self.model.trainable_variables)  # one rank alone has restored its own
        broadcast_optimizer_state(optimizer, self._root_rank)


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]  # the same
    """A callback that averages the metrics of an epoch over the ranks, for later callbacks in the list."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Average the metrics in place."""
        names = sorted(logs or {})
        if names:
            logs.update(zip(names, allreduce([float(logs[name]) for name in names]).tolist(), strict=True))


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]  # the same
    """A callback that sets the learning rate to `initial_lr` times a multiplier, in some epochs.

    Args:
        initial_lr: The learning rate to multiply.
        multiplier: A number, or a function of the epoch. The function gets the epoch's number; without `staircase` it
            gets a fraction such as 1.25, which includes the finished part of the epoch.
        start_epoch: The first epoch with the multiplier.
        end_epoch: The first epoch after those with the multiplier; None: no end.
        staircase: Whether the rate changes only between epochs, and not with each batch. Always so for a number.
        momentum_correction: Ignored, because Keras keeps momentum apart from the learning rate.
        steps_per_epoch: The number of batches in an epoch. Default: the number that ``fit`` knows.

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
        """Find the number of batches in an epoch."""
        self._steps_per_epoch = self._steps_per_epoch or (self.params or {}).get("steps")
        if not self.staircase and not self._steps_per_epoch:
            raise ValueError(
                "The learning rate changes with each batch, but the number of batches in an epoch is unknown. Pass "
                "steps_per_epoch=..."
            )

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, object] | None = None) -> None:
        """Set the learning rate for the epoch."""
        self._epoch = epoch
        if self.staircase:
            self._set(epoch)

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, object] | None = None) -> None:
        """Set the learning rate for the batch."""
        if not self.staircase:
            assert self._steps_per_epoch, "checked when training began"
            self._set(self._epoch + batch / self._steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add the learning rate to the epoch's metrics."""
        if logs is not None:
            logs["lr"] = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _set(self, epoch: float) -> None:
        if self.start_epoch <= epoch and (self.end_epoch is None or epoch < self.end_epoch):
            self.model.optimizer.learning_rate = self.initial_lr * self._multiply(epoch)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """A callback that raises the learning rate evenly in the first epochs, up to `initial_lr`.

    The first rate is `initial_lr` divided by the number of ranks. This is the gradual warmup of P. Goyal and others,
    "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour" (2017), 2.2.

    Args:
        initial_lr: The learning rate after the warmup: that of one rank, times the number of ranks.
        warmup_epochs: The number of epochs of the warmup.
        momentum_correction: See `LearningRateScheduleCallback`.
        steps_per_epoch: See `LearningRateScheduleCallback`.
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
            done = (epoch + 1.0 / self._steps_per_epoch) / warmup_epochs  # the present batch counts
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
        """Print a line when the warmup is over, if `verbose`."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self._verbose and rank() == 0:
            sys.stdout.write(f"Epoch {epoch + 1}: finished gradual learning rate warmup to {self.initial_lr:g}.\n")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]  # the same
    """A callback that saves the model when it is the best so far, only in rank 0.

    It takes the arguments of ``keras.callbacks.ModelCheckpoint``, with ``save_best_only=True``.
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
"""The callbacks under the names of Horovod's programs: ``hvd.callbacks.MetricAverageCallback()``."""


def _read(value: object) -> variables.Array:
    return np.asarray(keras.ops.convert_to_numpy(value) if keras.ops.is_tensor(value) else value)
