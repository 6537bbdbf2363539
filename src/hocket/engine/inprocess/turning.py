"""Turns of the event loops of asynchronous actors while no caller waits inside the engine.

`get` and `wait` turn these loops themselves. A caller that awaits a reference has its own event loop, which turns them
now and then. A caller with a `concurrent.futures` future may wait for it in any way, so a thread turns them while a
future is open.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

PAUSE_S = 0.005
"""Seconds between two turns. A guess: short against the waits of coroutines, long against a turn with nothing to do."""


class Turner:
    """Turns loops from outside the engine while a caller waits there."""

    def __init__(self, lock: AbstractContextManager[object], turn: Callable[[], bool]) -> None:
        """Take the function that turns all loops once and returns whether a caller still waits. It needs the lock."""
        self._lock = lock
        self._turn = turn
        self._polling: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def turn_from_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Turn the actors' loops from a loop that runs in this thread."""
        if loop not in self._polling:
            self._polling.add(loop)
            loop.call_soon(self._poll, loop)

    def _poll(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            goes_on = self._turn()
            if not goes_on:
                self._polling.discard(loop)
        if goes_on:
            loop.call_later(PAUSE_S, self._poll, loop)

    def turn_from_thread(self) -> None:
        """Turn the actors' loops from a new thread. The lock is held."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hocket-turner", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._turn():
                    self._thread = None
                    return
            time.sleep(PAUSE_S)

    def join(self) -> None:
        """Wait until the thread has ended, for a second at most: user code in it may never end."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)
