"""The threads of an actor that runs several calls at once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar, final

T = TypeVar("T")


@final
class CallThreads(Generic[T]):
    """Threads that take calls from one queue, in the order in which they came.

    As many are started as have something to do, up to `size`.

    What `ThreadPoolExecutor` does, with two differences. It makes no future of each call, which nobody here asks for:
    that is a quarter of what a short call costs. And it starts a thread whenever a call has none, without fail: calls
    of one actor may wait for each other.

    Args:
        size: How many calls may run at once.
        name: Of the threads, less their number.
        run: Runs a call, and raises nothing.
    """

    def __init__(self, size: int, name: str, run: Callable[[T], None]) -> None:
        self._size = size
        self._name = name
        self._run = run
        self._calls: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        #: How many calls wait or run.
        self._unfinished = 0
        self._lock = threading.Lock()

    def submit(self, call: T) -> None:
        """Have it run by the next thread that is free."""
        with self._lock:
            self._unfinished += 1
            number = len(self._threads)
            if number < self._unfinished and number < self._size:
                self._start_thread(f"{self._name}_{number}")
        self._calls.put(call)

    def shutdown(self) -> None:
        """Wait until all calls have run, and end the threads."""
        self._calls.put(None)
        for thread in self._threads:
            thread.join()

    def _start_thread(self, name: str) -> None:
        thread = threading.Thread(target=self._serve, name=name)
        try:
            thread.start()
        except RuntimeError:  # the system has no more
            if not self._threads:
                raise
        else:
            self._threads.append(thread)

    def _serve(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                self._calls.put(None)  # for the next thread
                return
            self._run(call)
            del call  # it holds handles
            with self._lock:
                self._unfinished -= 1
