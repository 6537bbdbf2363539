"""Who is calling: which worker, and in the middle of which closure or step. Each thread has its own answer; the coordinator's is none."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, final

from hocket.ps import records


@final
@dataclass(slots=True)
class Place:
    """A worker in the middle of a closure."""

    worker: int
    sequence: int = 0
    """Which of this worker's closures it is; rises. A closure that is run again after its worker died has the same number."""
    turn: int = 0
    """How many pushes the closure has made."""
    gate: Any = None
    """The gate that it has gone into by pulling, and not left by pushing; an `access.GateAccess`."""
    values: dict[int, Any] = field(default_factory=dict)
    """What this worker has of per-worker values, by number."""
    failures: dict[int, BaseException] = field(default_factory=dict)
    """What making them raised, by number."""

    def take_ticket(self) -> records.Ticket:
        """Return the id of the closure's next push."""
        ticket = records.Ticket(self.worker, self.sequence, self.turn)
        self.turn += 1
        return ticket

    def leave(self) -> None:
        """Leave the gate without having pushed: the others need not wait."""
        gate, self.gate = self.gate, None
        if gate is not None:
            gate.forget(self.worker)

    def begin(self, sequence: int) -> None:
        """Begin a closure."""
        self.sequence, self.turn = sequence, 0


_local = threading.local()


def get_optional_place() -> Place | None:
    """Return where the calling thread is; None in the coordinator."""
    return getattr(_local, "place", None)


def get_place(caller: str) -> Place:
    """Return where the calling thread is.

    Raises:
        RuntimeError: It runs no closure.
    """
    place = get_optional_place()
    if place is None:
        raise RuntimeError(
            f"{caller} was called outside a closure. Call it in a function that you give to Coordinator.schedule, or in the function of a per-worker dataset."
        )
    return place


@contextlib.contextmanager
def entered(place: Place) -> Iterator[None]:
    """Be at a place, in this thread."""
    before = get_optional_place()
    _local.place = place
    try:
        yield
    finally:
        _local.place = before


def get_current_worker_index() -> int:
    """Return the index of the worker that runs the calling closure. TensorFlow calls it ``experimental_get_current_worker_index``.

    Raises:
        RuntimeError: It is called outside a closure.

    Example:
        >>> from hocket import ps
        >>> ps.get_current_worker_index()
        Traceback (most recent call last):
        RuntimeError: get_current_worker_index() was called outside a closure. ...
    """
    return get_place("get_current_worker_index()").worker
