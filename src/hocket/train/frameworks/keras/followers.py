"""The callbacks that ``fit`` of a prepared model adds to the user's, and its changes to theirs.

Of Keras's callbacks that write, rank 0's write. Other ranks leave them out (`CSVLogger`, `TensorBoard`,
`BackupAndRestore`, ...), or make them look without writing (`ModelCheckpoint`, which remembers the best value). Each
epoch ends in all ranks after rank 0's callbacks have ended it, so the others find its files then. When a training
begins, they get the state that rank 0's callbacks have restored. If one rank's callback ends the training after a
batch, all end it there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, final

import keras

from hocket._base.internals import keras as keras_internals
from hocket.collective.world import World
from hocket.train.frameworks.keras import evaluation, exchanges, loaders, variables

_WRITERS: Final = tuple(
    getattr(keras.callbacks, name)
    for name in ("BackupAndRestore", "CSVLogger", "OrbaxCheckpoint", "RemoteMonitor", "TensorBoard")
    if hasattr(keras.callbacks, name)
)
"""Callbacks that only write, or read their own files."""


_STOPPERS: Final = (keras.callbacks.TerminateOnNaN, keras.callbacks.LambdaCallback)
"""Keras's callbacks that may end a training after a batch."""


class Prepared(Protocol):
    """A prepared model, as callbacks use it."""

    exchange: exchanges.Exchange
    """The exchange of its steps."""

    def share_weights(self) -> None:
        """Give all ranks rank 0's weights."""

    def begin_fit(self) -> None:
        """Begin the strategy. The weights are equal."""

    def begin_epoch(self) -> None:
        """Note that an epoch begins."""

    def after_steps(self, count: int) -> None:
        """Note that steps were taken."""

    def list_stepped(self) -> list[Any]:
        """Return the variables of model and optimizer that the next step changes, if the rank takes it alone."""

    def end_epoch(self, number: int) -> None:
        """Note that callbacks have ended an epoch."""


def surround(callbacks: Any, first: Follower, last: Closer, model: Any, *, writes: bool) -> Any:
    """Return callbacks for ``fit`` (None, one, several or Keras's list, which is changed) with two more around them.
    Callbacks that write are left out if the rank does not write."""
    is_list = isinstance(callbacks, keras.callbacks.CallbackList)
    given = callbacks.callbacks if is_list else keras.tree.flatten(callbacks or [])
    last.look_at(given)
    found = [first, *select(given, writes=writes), last]
    if not is_list:
        return found
    callbacks.callbacks[:] = found
    keras_internals.call_in_order(callbacks)
    callbacks.set_model(model)
    return callbacks


def select(callbacks: Sequence[Any], *, writes: bool) -> list[Any]:
    """Return the callbacks that a rank runs."""
    if writes:
        return list(callbacks)
    chosen = [one for one in callbacks if not isinstance(one, _WRITERS)]
    for one in chosen:
        if isinstance(one, keras.callbacks.ModelCheckpoint):
            one.verbose = 0
            keras_internals.have_saved_by(one, _look(one))
    return chosen


def _look(callback: Any) -> Callable[..., None]:
    """Return a function with which a `ModelCheckpoint` remembers the best value, and writes nothing."""

    def look(epoch: int, batch: int | None, logs: object) -> None:
        keras_internals.look_whether_to_save(callback, epoch, batch, logs)

    return look


@final
class Follower(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not type-checked
    """The callback that follows ``fit`` before the user's callbacks."""

    def __init__(self, prepared: Prepared, data: loaders.PreparedArrays | None) -> None:
        super().__init__()
        self._prepared = prepared
        self._data = data
        self._taken = 0
        self._filler: int | None = None
        self._states: list[object] = []
        #: Further variables that the filler's step must not change: weights, if the rank steps alone.
        self._filler_states: list[Any] = []

    def on_train_begin(self, logs: dict[str, object] | None = None) -> None:
        self._prepared.share_weights()

    def on_epoch_begin(self, epoch: int, logs: dict[str, object] | None = None) -> None:
        self._taken = 0
        self._filler = None if self._data is None else self._data.begin_epoch()
        self._prepared.begin_epoch()

    def on_train_batch_begin(self, batch: int, logs: dict[str, object] | None = None) -> None:
        if batch == self._filler:
            variables.attach(self.model)
            self._filler_states = self._prepared.list_stepped()
            self._states = [variables.read(one) for one in self._list_states()]
            variables.read(self.model.weights[0])  # waits, on JAX, until the step before is over
            self._prepared.exchange.begin_filler()

    def on_train_batch_end(self, batch: int, logs: dict[str, object] | None = None) -> None:
        count = batch + 1 - self._taken
        self._taken = batch + 1
        if batch == self._filler:
            variables.attach(self.model)
            for state, before in zip(self._list_states(), self._states, strict=True):
                state.assign(before)
            variables.read(self.model.weights[0])
            self._prepared.exchange.end_filler()
        if self._data is not None:
            self._data.take(count)
        self._prepared.after_steps(count)

    def on_epoch_end(self, epoch: int, logs: dict[str, object] | None = None) -> None:
        if self._data is not None:
            self._data.end_epoch()

    def _list_states(self) -> list[Any]:
        """Return the variables that a filler row's step must not change. If ranks step together, the step is one of all
        ranks, so counts of steps in layers advance; if they step alone, this rank takes none."""
        metrics = [variable for metric in self.model.metrics for variable in metric.variables]
        if not self._filler_states:
            return [*metrics, *evaluation.list_counts(self.model)]
        return [*metrics, *evaluation.list_row_states(self.model), *self._filler_states]


@final
class Closer(keras.callbacks.Callback):  # type: ignore[misc]  # the same
    """The callback that follows ``fit`` after the user's; `is_joint` says whether ranks take their steps together."""

    def __init__(self, prepared: Prepared, joined: World, *, is_joint: bool) -> None:
        super().__init__()
        self._prepared = prepared
        self._world = joined
        self._is_joint = is_joint
        #: Whether a callback of this rank, and later of any rank, may end the training after a batch.
        self._may_stop = False

    def look_at(self, callbacks: Sequence[Any]) -> None:
        """Find out whether one of the user's callbacks may end the training after a batch, for reasons that only its
        rank knows."""
        for one in callbacks:
            own = type(one).__module__.partition(".")[0] not in ("keras", "hocket") or isinstance(one, _STOPPERS)
            hooks = (getattr(one, name) for name in ("on_train_batch_end", "on_batch_end"))
            self._may_stop |= own and any(not hasattr(hook, keras_internals.DEFAULT_HOOK) for hook in hooks)

    def on_train_begin(self, logs: dict[str, object] | None = None) -> None:
        ranks = self._world.all_gather_object((keras_internals.get_first_epoch(self.model), self._may_stop))
        self._may_stop = self._is_joint and self._world.size > 1 and any(may_stop for _, may_stop in ranks)
        if self._world.size > 1:
            keras_internals.set_first_epoch(self.model, ranks[0][0])
        self._prepared.begin_fit()

    def on_train_batch_end(self, batch: int, logs: dict[str, object] | None = None) -> None:
        if self._may_stop:
            variables.attach(self.model)
            variables.read(self.model.weights[0])  # waits, on JAX, for the step, which another thread runs
            self.model.stop_training = any(self._world.all_gather_object(bool(self.model.stop_training)))

    def on_epoch_end(self, epoch: int, logs: dict[str, object] | None = None) -> None:
        self._prepared.end_epoch(epoch)
        self._world.barrier()

    def on_train_end(self, logs: dict[str, object] | None = None) -> None:
        self._world.barrier()


@final
class OneCall(keras.callbacks.CallbackList):  # type: ignore[misc]  # the same
    """The callbacks of two calls of ``fit``, which see one call."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        keras_internals.call_in_order(self)
        self.is_last = False
        self.last_logs: Any = None

    def on_train_begin(self, logs: dict[str, object] | None = None) -> None:
        if not self.is_last:
            super().on_train_begin(logs)

    def on_train_end(self, logs: dict[str, object] | None = None) -> None:
        self.last_logs = logs
        if self.is_last:
            super().on_train_end(logs)


@contextlib.contextmanager
def without_final_values(optimizer: object) -> Iterator[None]:
    """Keep an optimizer from finalizing its weights (averaged, if it keeps averages) while a training goes on."""
    object.__setattr__(optimizer, "finalize_variable_values", lambda var_list: None)
    try:
        yield
    finally:
        object.__delattr__(optimizer, "finalize_variable_values")
