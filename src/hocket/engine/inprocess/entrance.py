"""The engine's lock, which knows whether its owner runs the user's code.

Tasks run inside the engine's calls, with the lock held. Ctrl-C must stop them at once and must not stop the engine
half-way through its own work, so the lock is "owned", as `engine.interrupts` asks, only while the engine works.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class Entrance:
    """A reentrant lock around the engine, with openings for the user's code."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        #: Called when the user's code goes on; may raise the interrupt that had to wait.
        self.check: Callable[[], None] = _do_nothing
        #: By depth: whether what runs there is the user's code.
        self._depths: list[bool] = []

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depths.append(False)

    def __exit__(self, *_: object) -> None:
        self._depths.pop()
        self._lock.release()
        if not self._is_owned():
            self.check()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Run the user's code in here."""
        self._depths.append(True)
        try:
            self.check()
            yield
        finally:
            self._depths.pop()

    def _is_owned(self) -> bool:
        return self._lock._is_owned() and bool(self._depths) and not self._depths[-1]  # type: ignore[attr-defined]


def _do_nothing() -> None:
    pass
