"""The exchange of a prepared model's step with the other ranks: gradients, and the counts behind mean losses."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, final

import keras

from hocket.collective import errors
from hocket.collective.world import World
from hocket.train.frameworks.keras import bridges, steps
from hocket.train.strategies import strategy

_NEEDS_LEAD: Final = ("begin", "begin_epoch", "after_steps", "synchronize")
"""The methods of a strategy that are called between steps, which only a method of the model can do."""

_EQUAL_STEPS: Final = (
    "If the ranks have unequal numbers of batches, so that one takes a step while another ends its epoch, share the "
    "rows out with prepare_arrays(x, y, batch_size=...), which gives all ranks equally many batches."
)


@final
class Exchange:
    """The exchange of one model's gradients and losses, in one rank, as its strategy says (`steps.Owner`)."""

    def __init__(self, model: object, runtime: strategy.StrategyRuntime, joined: World) -> None:
        self._model: Any = weakref.ref(model)
        self._runtime = runtime
        self._world = joined
        self._crossing = bridges.Crossing(self._on_host, None if runtime.takes_steps else self._gather)
        self._counting = bridges.Crossing(self._add_counts)
        #: The number of rows in the batch of the step that is computed or traced; None if unknown.
        self._rows: object = None
        #: Whether ``fit`` or ``train_on_batch`` takes the steps, and reports them to the strategy.
        self._is_led = False
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        #: The number of variables with gradients in a step that the strategy takes.
        self._num_stepped = 0
        self._is_filler = False
        self.last_rows = 1.0
        """The number of rows in the last step; 0 if it did not count."""
        self.is_equal = joined.size == 1
        """Whether the ranks have begun with the same weights."""
        self.was_led = True
        """Whether no optimizer has stepped the model outside the model's methods."""

    def note_equal(self) -> None:
        """Note that the ranks have the same weights."""
        self.is_equal = True

    def begin_filler(self) -> None:
        """Make the next step not count. Earlier steps are over."""
        self._is_filler = True

    def end_filler(self) -> None:
        """Make steps count again. The step that did not count is over."""
        self._is_filler = False

    def begin_evaluation(self) -> None:
        """Forget the number of rows in the last step."""
        self.last_rows = 1.0

    @contextlib.contextmanager
    def lead(self) -> Iterator[None]:
        """Report the steps in this block to the strategy. If a collective fails, raise its own error and not the
        backend's, which only quotes it."""
        before, self._is_led = self._is_led, True
        for crossing in (self._crossing, self._counting):
            crossing.begin()
        try:
            yield
        except Exception as error:
            own = self._crossing.error or self._counting.error or error
            if isinstance(own, errors.CollectiveMismatchError):
                own.add_note(_EQUAL_STEPS)
            if own is error:
                raise
            raise own from error
        finally:
            self._is_led = before

    @contextlib.contextmanager
    def step_on(self, batch: object) -> Iterator[None]:
        """Compute, or trace, a step on a batch in this block."""
        leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
        self._rows = keras.ops.shape(leaves[0])[0] if leaves and len(leaves[0].shape) else None
        shares = self._world.size > 1 and self._runtime.averages_rows
        try:
            with steps.share_losses(self._share if shares else None):
                yield
        finally:
            self._rows = None

    @property
    def is_led(self) -> bool:
        """Whether a method of the model takes the steps now. If a model and its parts are prepared, the one that knows
        the batch is led."""
        return self._is_led

    def list_optimizers(self) -> list[Any]:
        """Return the optimizers that step the model and have variables."""
        given = (getattr(self._model(), "optimizer", None), *sorted(self._optimizers, key=lambda one: one.name))
        return list(dict.fromkeys(one for one in given if one is not None and one.built))

    # --- calls from optimizers and losses (`steps`) -------------------------------------------------------------------

    @property
    def takes_steps(self) -> bool:
        return self._runtime.takes_steps

    def has_any(self, numbers: AbstractSet[int]) -> bool:
        """Return whether the model trains one of some variables, given by the ``id`` of their objects."""
        model = self._model()
        return model is not None and any(id(one) in numbers for one in model.trainable_variables)

    def average(self, optimizer: object, gradients: Sequence[object]) -> Sequence[object]:
        """Return the gradients with which all ranks step."""
        if not self._is_led:
            self._check_loop(optimizer)
        self._optimizers.add(optimizer)
        if not self._runtime.averages_gradients:
            return gradients
        return self._crossing.average(list(gradients), 1.0 if self._rows is None else self._rows)

    def take_step(self, optimizer: Any, gradients: Sequence[object], given: Sequence[object] | None) -> None:
        """Set the variables to the values that the host makes of the gradients."""
        model = self._model()
        if optimizer is not model.optimizer:
            raise ValueError(
                f"The strategy takes the steps of the optimizer that {model.name!r} was compiled with, but another "
                f"one, {type(optimizer).__name__} {optimizer.name!r}, was about to step the model's variables. Compile "
                "the model with that optimizer, or use AllReduce()."
            )
        if not self._is_led:
            self._check_loop(optimizer)
        rate = keras.ops.convert_to_tensor(optimizer.learning_rate)
        stepped = _pair(model, optimizer, gradients, given)
        self._runtime.choose([number for number, _, _ in stepped])
        self._num_stepped = len(stepped)
        if stepped:
            squares = keras.ops.stack([_sum_squares(variable) for _, variable, _ in stepped])
            _, *values = self._crossing.average([squares, *(gradient for _, _, gradient in stepped)], rate)
            for (_, variable, _), value in zip(stepped, values, strict=True):
                variable.assign(value)
        optimizer.iterations.assign_add(1)

    def _check_loop(self, optimizer: Any) -> None:
        """Check that the ranks stay equal although no method of the model leads the steps."""
        model, kind = self._model(), type(self._runtime)
        if any(getattr(kind, name) is not getattr(strategy.StrategyRuntime, name) for name in _NEEDS_LEAD):
            raise ValueError(
                f"{type(optimizer).__name__} steps the model {model.name!r} in a loop of the program's own, which the "
                "strategy does not see. Use fit() or train_on_batch(), or use AllReduce()."
            )
        if not self.is_equal:
            raise ValueError(
                f"{type(optimizer).__name__} steps the model {model.name!r}, whose variables were made after "
                "prepare_model(), so the ranks began with different values. Build the model first, with "
                "keras.Input(...) or model.build(...), or use fit()."
            )
        self.was_led = False

    def _share(self, loss: Any, count: object) -> object:
        """Turn a mean over this rank's entries (None: a sum) into its part of the mean over all ranks' entries."""
        rows = 1 if self._rows is None else self._rows
        mine = keras.ops.stack([keras.ops.cast(one, "float32") for one in (1 if count is None else count, rows)])
        mine = keras.ops.stop_gradient(mine)
        all_of_them = self._counting.average([mine], 0.0)[0]
        part = all_of_them[1] / mine[1]
        if count is not None:
            part = keras.ops.divide_no_nan(mine[0] * part, all_of_them[0])
        return loss * keras.ops.cast(keras.ops.stop_gradient(part), loss.dtype)

    # --- on the host, in the middle of a step -------------------------------------------------------------------------

    def _on_host(self, flat: Any, rows: float) -> None:
        """Do the strategy's part. If the strategy takes the step, `rows` is the learning rate."""
        is_filler = self._is_filler
        self.last_rows = 0.0 if is_filler else 1.0 if self._runtime.takes_steps else rows
        if self._runtime.takes_steps:
            self._runtime.see_weights(flat[: self._num_stepped])
            strategy.take_step(self._runtime, flat[self._num_stepped :], rows, counts=not is_filler)
        else:
            strategy.average(self._runtime, flat, 0.0 if is_filler else rows)

    def _add_counts(self, flat: Any, _: float) -> None:
        if self._is_filler:
            flat[:] = 0
        self._world.all_reduce(flat)

    def _gather(self, slices: Sequence[strategy.Slices], rows: float) -> Sequence[strategy.Slices]:
        return self._runtime.gather(slices, 0.0 if self._is_filler else rows)


def _pair(
    model: Any, optimizer: Any, gradients: Sequence[object], given: Sequence[object] | None
) -> list[tuple[int, Any, object]]:
    """Return number, variable and gradient of each of a model's variables with a gradient, in the model's order."""
    trained = model.trainable_variables
    numbers = {id(variable): number for number, variable in enumerate(trained)}
    stepped = trained if given is None else given
    if len(stepped) != len(gradients):
        raise ValueError(
            f"{type(optimizer).__name__} {optimizer.name!r} received {len(gradients)} gradients for {len(stepped)} "
            f"variables of the model {model.name!r}. Write optimizer.apply(gradients, variables), with equally many of "
            "both."
        )
    strange = [getattr(one, "path", one) for one in stepped if id(one) not in numbers]
    if strange:
        raise ValueError(
            f"The strategy steps the trainable_variables of the model {model.name!r}, but {type(optimizer).__name__} "
            f"{optimizer.name!r} was about to step {strange[0]} too, which is not one of them. Make it a part of the "
            "model, or use AllReduce()."
        )
    found = [
        (numbers[id(one)], one, gradient)
        for one, gradient in zip(stepped, gradients, strict=True)
        if gradient is not None
    ]
    return sorted(found, key=lambda each: each[0])


def _sum_squares(variable: Any) -> Any:
    """Return the sum of the squares of a variable's elements; NaN for halves, which are rounded."""
    kind = keras.backend.standardize_dtype(variable.dtype)
    if kind not in ("float32", "float64"):
        return keras.ops.convert_to_tensor(float("nan"), "float32")
    return keras.ops.cast(keras.ops.sum(keras.ops.square(variable)), "float32")
