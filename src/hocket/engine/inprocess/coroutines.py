"""Coroutines of asynchronous actors, which run in the thread that calls `.remote()`, `get` or `wait`.

Each such actor has an event loop. The engine turns it until every coroutine has come to a stop, and further if a caller
waits for a value that depends on a timer or a socket.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from hocket.engine import methods

if TYPE_CHECKING:
    import asyncio

TURNS = 1000
"""How many turns a loop gets before the next loop. A guess: more than any chain of awaits."""


class Loop:
    """The event loop of one actor."""

    def __init__(self, size: int) -> None:
        import asyncio

        self._loop = asyncio.new_event_loop()
        self._in_executor = self._loop.run_in_executor
        self._loop.run_in_executor = self._run_in_executor  # type: ignore[method-assign, assignment]
        self._outside = 0
        self._size = size
        self._running: dict[int, asyncio.Task[None]] = {}
        self._waiting: deque[tuple[int, Coroutine[object, object, None]]] = deque()

    def build(self, construct: Callable[[], object]) -> Any:
        """Run the actor's constructor on the loop; return the actor."""
        import asyncio

        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            return methods.construct_on(self._loop, construct)
        except BaseException:
            asyncio._set_running_loop(outer)
            self.close()
            raise
        finally:
            asyncio._set_running_loop(outer)

    def start(self, task_id: int, coroutine: Coroutine[object, object, None]) -> None:
        """Start a call, or let it wait if the actor runs as many calls as it may."""
        if len(self._running) >= self._size:
            self._waiting.append((task_id, coroutine))
            return
        task = self._running[task_id] = self._loop.create_task(coroutine)
        task.add_done_callback(lambda _: self._end(task_id))

    def _end(self, task_id: int) -> None:
        self._running.pop(task_id, None)
        if self._waiting:
            self.start(*self._waiting.popleft())

    def cancel(self, task_id: int) -> None:
        """Cancel a running call."""
        task = self._running.get(task_id)
        if task is not None:
            task.cancel()

    def can_go_on(self) -> bool:
        """Return whether a timer, a socket or a thread may let a call go on."""
        loop: Any = self._loop
        if not self._running or loop.is_running() or loop.is_closed():
            return False
        has_timer = any(not timer.cancelled() for timer in loop._scheduled)
        has_socket = len(loop._selector.get_map()) > 1  # one socket is the loop's own
        return bool(loop._ready) or has_timer or has_socket or self._outside > 0

    def _run_in_executor(self, executor: Any, function: Any, *args: object) -> asyncio.Future[object]:
        """Run a function in a thread, as the loop does, and count it until it is done."""
        future = self._in_executor(executor, function, *args)
        self._outside += 1
        future.add_done_callback(self._leave_executor)
        return future

    def _leave_executor(self, _: object) -> None:
        self._outside -= 1

    def is_loop(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether a loop is this actor's."""
        return self._loop is loop

    def spin(self, wait_s: float = 0.0) -> None:
        """Turn the loop until every coroutine has come to a stop; first run it for `wait_s`, for timers and sockets."""
        import asyncio

        if self._loop.is_running() or self._loop.is_closed():
            return
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            if wait_s:
                self._loop.call_later(wait_s, self._loop.stop)
                self._loop.run_forever()
            for _ in range(TURNS):
                self._loop.call_soon(self._loop.stop)
                self._loop.run_forever()
                if not self._loop._ready:  # type: ignore[attr-defined]
                    break
        finally:
            asyncio._set_running_loop(outer)

    def complete(self, awaitable: object) -> None:
        """Run an awaitable to its end."""
        methods.complete_on(self._loop, awaitable)

    def close(self) -> None:
        """Cancel all tasks of the loop, and close it."""
        import asyncio

        if self._loop.is_closed():
            return
        for task in asyncio.all_tasks(self._loop):  # also tasks that the user's code has started
            task.cancel()
        self.spin()
        if not self._loop.is_running():
            self._loop.close()


def get_running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, or None, without an import of asyncio."""
    asyncio_ = sys.modules.get("asyncio")
    return None if asyncio_ is None else asyncio_._get_running_loop()


async def iterate_async(items: Any) -> AsyncIterator[object]:
    """Yield the items of a generator, asynchronous or not."""
    if hasattr(items, "__aiter__"):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
