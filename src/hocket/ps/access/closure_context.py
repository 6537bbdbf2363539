"""The context of a closure or step: the worker that pulls and pushes, and its progress.

Code inside the package passes a context explicitly, from a variable's methods to the gate and the servers
(`hocket.ps.access.links`). The user's function cannot pass it, so each thread keeps the context of the closure that it
runs. The coordinator's threads have none.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final, final

from hocket.ps.stores import gate, records


@final
class ClosureContext:
    """A worker in the middle of a closure, or a rank in the middle of a step. One thread at a time uses it.

    Args:
        worker: The worker's index.
        sequence: The number of the closure among this worker's closures; it rises. A closure that runs again after its
            worker died keeps its number.
    """

    __slots__ = ("_gate", "failures", "sequence", "turn", "values", "worker")

    def __init__(self, worker: int, sequence: int = 0) -> None:
        self.worker: Final = worker
        self.sequence = sequence
        self.turn = 0
        """Number of pushes that the closure has made."""
        self.values: Final[dict[int, object]] = {}
        """This worker's parts of per-worker values, by number."""
        self.failures: Final[dict[int, BaseException]] = {}
        """The exceptions raised while those parts were made, by number."""
        self._gate: gate.Gate | None = None

    def begin(self, sequence: int) -> None:
        """Begin a closure."""
        self.sequence, self.turn = sequence, 0

    def take_ticket(self) -> records.Ticket:
        """Return the ticket of the closure's next push."""
        ticket = records.Ticket(self.worker, self.sequence, self.turn)
        self.turn += 1
        return ticket

    @property
    def is_inside(self) -> bool:
        """Whether the worker has entered a gate by pulling, and has not left it by pushing."""
        return self._gate is not None

    def note_entered(self, entered_gate: gate.Gate) -> None:
        """Note that the worker has entered a gate."""
        self._gate = entered_gate

    def note_pushed(self) -> None:
        """Note that the worker is leaving the gate with a push."""
        self._gate = None

    def leave(self) -> None:
        """Leave the gate without a push, so that other workers need not wait."""
        left, self._gate = self._gate, None
        if left is not None:
            left.forget(self.worker)


_local = threading.local()


def get_optional_context() -> ClosureContext | None:
    """Return the context of the closure that the calling thread runs; None outside closures."""
    return getattr(_local, "context", None)


def get_context(caller: str) -> ClosureContext:
    """Return the context of the closure that the calling thread runs.

    Raises:
        RuntimeError: The thread runs no closure.
    """
    context = get_optional_context()
    if context is None:
        raise RuntimeError(
            f"{caller} was called outside a closure. Call it in a function that you give to Coordinator.schedule, or "
            "in the function of a per-worker dataset."
        )
    return context


@contextlib.contextmanager
def entered(context: ClosureContext) -> Iterator[None]:
    """Run a closure in this thread."""
    before = get_optional_context()
    _local.context = context
    try:
        yield
    finally:
        _local.context = before


def get_current_worker_index() -> int:
    """Return the index of the worker that runs the calling closure.

    TensorFlow calls it ``experimental_get_current_worker_index``.

    Raises:
        RuntimeError: The caller is outside a closure.

    Example:
        >>> from hocket import ps
        >>> ps.get_current_worker_index()
        Traceback (most recent call last):
        RuntimeError: get_current_worker_index() was called outside a closure. ...
    """
    return get_context("get_current_worker_index()").worker
