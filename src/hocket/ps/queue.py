"""The queue of closures that wait for a worker, in the order of scheduling.

A worker without data for some of them passes these over.
"""

from __future__ import annotations

import collections
from collections.abc import Set as AbstractSet
from typing import final

from hocket.ps import closures


@final
class Queue:
    """Closures that wait: a queue for each set of streams that closures draw from.

    The closures of one queue can be run by the same workers.

    Example:
        >>> queue = Queue()
        >>> len(queue), queue.pop(frozenset())
        (0, None)
    """

    def __init__(self) -> None:
        self._queues: dict[frozenset[int], collections.deque[closures.Closure]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, closure: closures.Closure) -> None:
        """Put a closure behind the others."""
        self._queues.setdefault(closure.streams, collections.deque()).append(closure)
        self._count += 1

    def put_back(self, closure: closures.Closure) -> None:
        """Put a closure before the others."""
        self._queues.setdefault(closure.streams, collections.deque()).appendleft(closure)
        self._count += 1

    def has(self, empty: AbstractSet[int]) -> bool:
        """Tell whether there is one for a worker whose streams in `empty` have no more."""
        return any(streams.isdisjoint(empty) for streams in self._queues)

    def pop(self, empty: AbstractSet[int]) -> closures.Closure | None:
        """Take the first one for a worker."""
        fitting = [streams for streams in self._queues if streams.isdisjoint(empty)]
        if not fitting:
            return None
        first = min(fitting, key=lambda streams: self._queues[streams][0].number)
        queue = self._queues[first]
        closure = queue.popleft()
        if not queue:
            del self._queues[first]
        self._count -= 1
        return closure

    def remove(self, stream: int) -> list[closures.Closure]:
        """Take all that draw from a stream."""
        return self._take([streams for streams in self._queues if stream in streams])

    def clear(self) -> list[closures.Closure]:
        """Take all."""
        return self._take(list(self._queues))

    def _take(self, sets: list[frozenset[int]]) -> list[closures.Closure]:
        taken = [closure for streams in sets for closure in self._queues.pop(streams)]
        self._count -= len(taken)
        return sorted(taken, key=lambda closure: closure.number)
