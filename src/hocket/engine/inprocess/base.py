"""The lock, the stack of running tasks and the actors: the parts of the engine in the caller's process share them."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator
from typing import final

from hocket.engine.inprocess import coroutines
from hocket.kernel.records import TaskRecord, WorkerRecord


@final
class Entrance:
    """The engine's reentrant lock, which knows whether its owner runs the user's code.

    Tasks run inside the engine's calls, with the lock held. Ctrl-C must stop them at once and must not stop the engine
    half-way through its own work, so the lock is "owned", as `engine.interrupts` asks, only while the engine works.

    Args:
        check: Called when the user's code goes on; may raise the interrupt that had to wait.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self._lock = threading.RLock()
        self._check = check
        #: By depth: whether what runs there is the user's code.
        self._depths: list[bool] = []

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depths.append(False)

    def __exit__(self, *_: object) -> None:
        self._depths.pop()
        self._lock.release()
        if not self._is_owned():
            self._check()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Run the user's code in here."""
        self._depths.append(True)
        try:
            self._check()
            yield
        finally:
            self._depths.pop()

    def _is_owned(self) -> bool:
        return self._lock._is_owned() and bool(self._depths) and not self._depths[-1]  # type: ignore[attr-defined]


Work = tuple[WorkerRecord, TaskRecord]
"""A task or call that runs, and the worker that the kernel takes it to run on."""

_current: contextvars.ContextVar[Work] = contextvars.ContextVar("current")
"""What the coroutine belongs to; not set in ordinary code."""


@final
class Running:
    """The tasks and calls that run."""

    def __init__(self) -> None:
        self._stack: list[Work] = []
        #: When each task was started, by `time.perf_counter`.
        self.starts: dict[int, float] = {}

    def find_current(self) -> Work | None:
        """Return what the calling code belongs to; None for the main program."""
        return _current.get(None) or (self._stack[-1] if self._stack else None)

    @contextlib.contextmanager
    def entered(self, work: Work) -> Iterator[None]:
        """Have code in the block belong to a task."""
        self._stack.append(work)
        token = _current.set(work)
        try:
            yield
        finally:
            self._stack.pop()
            _current.reset(token)
            self.starts.pop(work[1].id, None)

    def enter_coroutine(self, work: Work) -> None:
        """Have the rest of the coroutine belong to a call."""
        _current.set(work)


@final
class Actors:
    """The actors, and their event loops, by worker."""

    def __init__(self) -> None:
        self.instances: dict[int, object] = {}
        self.loops: dict[int, coroutines.Loop] = {}
