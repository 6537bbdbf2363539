"""A queue that tasks, actors and the driver share.

An asynchronous actor holds the items, so a call that waits in it for an item or for room takes no thread. All methods
of the actor run on one event loop, so no other call comes between a check and the step after it.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

from hocket.core import actor as core_actor
from hocket.core import api, scopes

MAX_WAITING = 100_000
"""How many calls may wait in the actor; no further call could end their wait. A guess, far above any number of
workers."""

Outcome = tuple[bool, Any]
"""Whether a call succeeded, and the item if it takes one."""


class Empty(queue.Empty):
    """There is no item. Also a `queue.Empty`."""


class Full(queue.Full):
    """There is no room. Also a `queue.Full`."""


@final
class QueueActor:
    """The actor that holds the items.

    Its methods return whether they succeeded, instead of raising. The caller raises an error of its own.
    """

    def __init__(self, maxsize: int) -> None:
        self._items: asyncio.Queue[Any] = asyncio.Queue(maxsize)

    async def put(self, item: object, timeout: float | None) -> bool:
        """Add an item when there is room."""
        if not self._items.full():  # needed for a timeout of 0, for which wait_for would not try
            self._items.put_nowait(item)
            return True
        try:
            await asyncio.wait_for(self._items.put(item), timeout)
        except TimeoutError:
            return False
        return True

    async def get(self, timeout: float | None) -> Outcome:
        """Take an item when there is one."""
        if not self._items.empty():
            return True, self._items.get_nowait()
        try:
            return True, await asyncio.wait_for(self._items.get(), timeout)
        except TimeoutError:
            return False, None

    async def put_nowait(self, items: Sequence[object]) -> tuple[bool, int]:
        """Add all items or none; return whether they were added, and how many items there were before."""
        size = self._items.qsize()
        if self._items.maxsize > 0 and size + len(items) > self._items.maxsize:
            return False, size
        for item in items:
            self._items.put_nowait(item)
        return True, size

    async def get_nowait(self, count: int) -> tuple[bool, list[Any] | int]:
        """Take `count` items or none; return whether they were taken, and the items or the queue's size."""
        size = self._items.qsize()
        if size < count:
            return False, size
        return True, [self._items.get_nowait() for _ in range(count)]

    async def qsize(self) -> int:
        """Return how many items there are."""
        return self._items.qsize()


@final
class Queue:
    """A first-in, first-out queue. It can be passed to tasks and actors, which then share it.

    Args:
        maxsize: How many items the queue holds at most; 0 or less for no limit.
        actor_options: Options of the actor that holds the items, such as ``{"name": "results"}``.

    Raises:
        TypeError: `maxsize` is no int.

    Example:
        >>> import hocket
        >>> from hocket.util.queue import Empty, Queue
        >>> context = hocket.init(num_cpus=1)
        >>> queue = Queue(maxsize=2)
        >>> @hocket.remote
        ... def produce(queue):
        ...     for item in range(4):
        ...         queue.put(item)
        >>> producer = produce.remote(queue)
        >>> [queue.get() for _ in range(4)]
        [0, 1, 2, 3]
        >>> queue.get(timeout=0.01)
        Traceback (most recent call last):
            ...
        hocket.util.queue.Empty: The queue was empty for 0.01 s. Wait longer, or put items in.
    """

    def __init__(self, maxsize: int = 0, actor_options: Mapping[str, object] | None = None) -> None:
        if isinstance(maxsize, bool) or not isinstance(maxsize, int):
            raise TypeError(f"maxsize must be an int, but received {maxsize!r}. Leave it out for no limit.")
        self.maxsize = maxsize
        options = {"max_concurrency": MAX_WAITING, **(actor_options or {})}
        self.actor: core_actor.ActorHandle | None = core_actor.ActorClass(QueueActor, options).remote(maxsize)

    # --- inspection ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.size()

    def size(self) -> int:
        """Return the current number of items."""
        return api.get(self._get_actor().qsize.remote())  # type: ignore[no-any-return]

    def qsize(self) -> int:
        """Return the current number of items."""
        return self.size()

    def empty(self) -> bool:
        """Return whether there is no item now."""
        return self.size() == 0

    def full(self) -> bool:
        """Return whether there is no room now."""
        return 0 < self.maxsize <= self.size()

    # --- putting ------------------------------------------------------------------------------------------------------

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        """Add an item.

        Args:
            item: The item. As in any call, a reference becomes its value.
            block: Whether to wait for room.
            timeout: How many seconds to wait at most; None waits without end.

        Raises:
            Full: There was no room in time.
            ValueError: `timeout` is negative, or the queue was shut down.
        """
        if not block:
            self.put_nowait(item)
        elif not _call(self._get_actor().put, item, _check_timeout(timeout)):
            raise _build_full(timeout)

    async def put_async(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        """Like `put`, for coroutines."""
        if not block:
            _check_put(await self._get_actor().put_nowait.remote([item]), 1, self.maxsize)
        elif not await _call_async(self._get_actor().put, item, _check_timeout(timeout)):
            raise _build_full(timeout)

    def put_nowait(self, item: object) -> None:
        """Add an item if there is room.

        Raises:
            Full: There is no room.
        """
        self.put_nowait_batch([item])

    def put_nowait_batch(self, items: Iterable[object]) -> None:
        """Add items, all or none.

        Raises:
            Full: There is no room for all items.
            TypeError: `items` is no iterable.
        """
        if not isinstance(items, Iterable):
            raise TypeError(
                f"Argument 'items' must be an Iterable, but received {items!r}. Use put_nowait for one item."
            )
        given = list(items)
        _check_put(api.get(self._get_actor().put_nowait.remote(given)), len(given), self.maxsize)

    # --- getting ------------------------------------------------------------------------------------------------------

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the oldest item.

        Args:
            block: Whether to wait for an item.
            timeout: How many seconds to wait at most; None waits without end.

        Raises:
            Empty: There was no item in time.
            ValueError: `timeout` is negative, or the queue was shut down.
        """
        if not block:
            return self.get_nowait()
        ok, item = _call(self._get_actor().get, _check_timeout(timeout))
        if not ok:
            raise _build_empty(timeout)
        return item

    async def get_async(self, block: bool = True, timeout: float | None = None) -> Any:
        """Like `get`, for coroutines."""
        if not block:
            return _check_get(await self._get_actor().get_nowait.remote(1), 1)[0]
        ok, item = await _call_async(self._get_actor().get, _check_timeout(timeout))
        if not ok:
            raise _build_empty(timeout)
        return item

    def get_nowait(self) -> Any:
        """Take the oldest item if there is one.

        Raises:
            Empty: There is no item.
        """
        return self.get_nowait_batch(1)[0]

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """Take the `num_items` oldest items, or none.

        Raises:
            Empty: There are fewer items.
            TypeError: `num_items` is no int.
            ValueError: `num_items` is negative.
        """
        if isinstance(num_items, bool) or not isinstance(num_items, int):
            raise TypeError(f"Argument 'num_items' must be an int, but received {num_items!r}.")
        if num_items < 0:
            raise ValueError(f"'num_items' must be nonnegative, but received {num_items!r}.")
        return _check_get(api.get(self._get_actor().get_nowait.remote(num_items)), num_items)

    # --- the end ------------------------------------------------------------------------------------------------------

    def shutdown(self, force: bool = False, grace_period_s: float = 5) -> None:
        """End the actor, and its items. Calls that wait in the queue raise an `ActorDiedError`.

        Args:
            force: Whether to end it at once, and not after the calls that were made before.
            grace_period_s: How many seconds to wait for these calls at most.
        """
        if self.actor is None:
            return
        if not force:
            api.wait([self.actor.qsize.remote()], timeout=grace_period_s)
        api.kill(self.actor)
        self.actor = None

    def _get_actor(self) -> core_actor.ActorHandle:
        if self.actor is None:
            raise ValueError("The queue was shut down. Make a new one.")
        return self.actor


def _call(method: scopes.Remote, *args: object) -> Any:
    """Make a call and wait for it. Cancel it if a signal interrupts: it would take an item that no caller receives."""
    with scopes.Scope() as scope:
        ref = scope.start(method, *args)
        found = api.get(ref)
        scope.release(ref)
        return found


async def _call_async(method: scopes.Remote, *args: object) -> Any:
    """Do the same in a coroutine, which may be cancelled."""
    with scopes.Scope() as scope:
        ref = scope.start(method, *args)
        found = await ref
        scope.release(ref)
        return found


def _check_timeout(timeout: float | None) -> float | None:
    if timeout is not None and timeout < 0:
        raise ValueError(
            f"'timeout' must be a non-negative number, but received {timeout!r}. Use None to wait without end."
        )
    return timeout


def _check_put(answer: tuple[bool, int], count: int, maxsize: int) -> None:
    ok, size = answer
    if not ok:
        raise Full(f"Cannot add {count} items to a queue of {size} items whose maxsize is {maxsize}.")


def _check_get(answer: Outcome, count: int) -> list[object]:
    ok, found = answer
    if not ok:
        raise Empty(f"Cannot take {count} items from a queue of {found} items.")
    return list(found)


def _build_full(timeout: float | None) -> Full:
    return Full(f"The queue was full for {timeout} s. Wait longer, or take items out.")


def _build_empty(timeout: float | None) -> Empty:
    return Empty(f"The queue was empty for {timeout} s. Wait longer, or put items in.")
