"""A dense variable's shard in memory: two copies; one of them is current.

An update reads the current copy and writes the other one; then a change of one word makes the other copy current. So

- a reader never waits, and never sees half an update: it copies the current copy, then checks that no writer has
  reached that copy meanwhile;
- a writer that is killed leaves the current copy unchanged, and the next writer overwrites the other copy.

The scheme doubles the memory of the value and of the optimizer's slots. It needs no more passes over memory than a
change in place. Tables, which are large, use another scheme (`rows`).

All operations except reading happen under the server's mutex (`store`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

import numpy as np

from hocket.collective import futex
from hocket.ps import errors
from hocket.ps.stores import memory, records
from hocket.ps.stores.memory import Array

BEGUN, DONE = 0, 1
"""Words of the header: the number of updates begun, and of updates done. The copy ``DONE & 1`` is the current one."""

_TRIES: Final = 8
"""Number of copies that a reader tries before it takes the mutex. A guess: two whole updates in one copy fail a try."""

SCATTERS: Final[dict[str, Callable[[Array, Array, Array], None]]] = {
    "add": np.add.at,
    "sub": np.subtract.at,
    "mul": np.multiply.at,
    "div": np.divide.at,
    "min": np.minimum.at,
    "max": np.maximum.at,
    "update": lambda target, ids, values: target.__setitem__(ids, values),
}
"""The functions of ``scatter_*``. If a row is named more than once, all its values count; for ``update`` the last."""


def plan(shape: tuple[int, ...], dtype: str, num_slots: int) -> memory.SegmentPlan:
    """Return the layout of a shard's memory."""
    count = int(np.prod(shape, dtype=np.int64))
    layout = memory.SegmentPlan()
    layout.add("header", (8,), np.int64)
    layout.add("steps", (2,), np.int64)
    for copy in (0, 1):
        layout.add(f"value{copy}", (count,), dtype)
        for number in range(num_slots):
            layout.add(f"slot{number}-{copy}", (count,), dtype)
    return layout


@final
class DenseShard:
    """A dense shard, as this process sees it."""

    def __init__(self, spec: records.DenseSpec, kept: memory.Memory) -> None:
        self.spec: Final = spec
        count = len(spec.slots)
        arrays = plan(spec.shape, spec.dtype, count).view(kept)
        self._header = arrays["header"]
        self._steps = arrays["steps"]
        self._values = [arrays[f"value{copy}"] for copy in (0, 1)]
        self._slots = [[arrays[f"slot{number}-{copy}"] for number in range(count)] for copy in (0, 1)]

    # -- reading, without the mutex --

    def read(self, out: Array | None = None) -> Array | None:
        """Return a consistent copy of the value; None if writers spoiled every try: then try again under the mutex.

        Args:
            out: Receives the copy; contiguous, of the shard's shape and dtype. Default: a new array.
        """
        result = np.empty(self.spec.shape, self.spec.dtype) if out is None else out
        flat = result.reshape(-1)
        header = self._header
        for _ in range(_TRIES):
            done = int(header[DONE])
            # The fences keep the copying between the two reads of the header.
            futex.fence()
            np.copyto(flat, self._values[done & 1])
            futex.fence()
            # Only the second update after `done` overwrites the copy that was read.
            if header[BEGUN] - done <= 1:
                return result
        return None

    def read_rows(self, ids: Array, out: Array | None = None) -> Array | None:
        """Return copies of rows, all of one moment; None under the same condition as `read`."""
        header = self._header
        for _ in range(_TRIES):
            done = int(header[DONE])
            futex.fence()
            result = np.take(self._values[done & 1].reshape(self.spec.shape), ids, axis=0, out=out, mode="clip")
            futex.fence()
            if header[BEGUN] - done <= 1:
                return result
        return None

    def export(self) -> dict[str, Any]:
        """Return copies of the value and the optimizer's slots, and the optimizer's step. Called under the mutex."""
        done = int(self._header[DONE])
        return {
            "value": self._values[done & 1].reshape(self.spec.shape).copy(),
            "slots": [slot.reshape(self.spec.shape).copy() for slot in self._slots[done & 1]],
            "step": int(self._steps[done & 1]),
        }

    # -- updating, under the mutex --

    def prepare(self, operation: records.Operation) -> None:
        """Write the new value into the copy that is not current."""
        done = int(self._header[DONE])
        self._header[BEGUN] = done + 1
        futex.fence()
        here, there = done & 1, (done + 1) & 1
        value, spare = self._values[here], self._values[there]
        self._steps[there] = self._steps[here]
        if operation.kind == "gradient":
            optimizer = self.spec.optimizer
            assert optimizer is not None, "checked by who sends it"
            gradient = np.ascontiguousarray(operation.value, self.spec.dtype).reshape(-1)
            step = int(self._steps[here]) + 1
            optimizer.apply(value, self._slots[here], gradient, step, spare, self._slots[there], operation.scale)
            self._steps[there] = step
            return
        for old, new in zip(self._slots[here], self._slots[there], strict=True):
            np.copyto(new, old)
        if operation.kind == "assign":
            np.copyto(spare.reshape(self.spec.shape), operation.value)
        elif operation.kind == "add":
            np.add(
                value.reshape(self.spec.shape), operation.value, out=spare.reshape(self.spec.shape), casting="same_kind"
            )
        elif operation.kind == "restore":
            state: dict[str, Any] = operation.value
            np.copyto(spare.reshape(self.spec.shape), state["value"])
            for new, given in zip(self._slots[there], state["slots"], strict=True):
                np.copyto(new.reshape(self.spec.shape), given)
            self._steps[there] = state["step"]
        else:
            np.copyto(spare, value)
            scatter = SCATTERS[operation.kind.removeprefix("scatter_")]
            scatter(spare.reshape(self.spec.shape), operation.ids, operation.value)

    def commit(self) -> None:
        """Make the prepared copy current. A second call does no harm."""
        futex.fence()
        self._header[DONE] = self._header[BEGUN]

    def undo(self) -> None:
        """Discard the prepared copy. A second call does no harm."""
        self._header[BEGUN] = self._header[DONE]

    def mend(self) -> None:
        """Repair nothing: a dead writer leaves nothing broken here beyond what `undo` discards."""

    def build(self, value: Any) -> None:
        """Set the initial value. The process that made the memory calls this once."""
        np.copyto(self._values[0].reshape(self.spec.shape), value)
        if self.spec.optimizer is not None:
            for name, slot in zip(self.spec.slots, self._slots[0], strict=True):
                initial = self.spec.optimizer.slot_initial(name)
                if initial:
                    slot.fill(initial)


def is_finite(gradient: Array) -> bool:
    """Tell whether a gradient has neither NaN nor infinity, in one pass that only reads. Also False if the sum of its
    squares overflows."""
    flat = gradient.reshape(-1)
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.dot(flat, flat)))


def check_finite(name: str, gradient: Array) -> None:
    """Raise `NonFiniteGradientError` if a gradient holds NaN or infinity."""
    if is_finite(gradient):
        return
    bad = ~np.isfinite(gradient)
    if not bad.any():
        return  # finite, but the sum of squares overflowed
    place = tuple(int(index) for index in np.argwhere(bad)[0])
    raise errors.NonFiniteGradientError(
        f"The gradient of `{name}` is NaN or infinite in {int(bad.sum())} of {gradient.size} values; the first is "
        f"{gradient[place]} at {place}. Nothing was applied. Use a smaller learning rate, or "
        "ParameterServerStrategy(bad_gradients='skip') or 'clip'."
    )
