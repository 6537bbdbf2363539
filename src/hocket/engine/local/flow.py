"""How far a generator may run ahead of its reader.

With ``_generator_backpressure_num_objects=n`` no more than *n* items lie unread. Without this option a generator
without a reader would fill the driver's memory, so all other generators have a bound of `MOST_BYTES` unread. A
generator at its bound asks how far its reader is (`PAUSED`), and waits for the answer (`CONSUMED`). The answer comes
when the reader has taken one more item, or, with a bound in bytes, half of them. A generator that has not started, or
has ended, does not ask, and misses no answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import final

MOST_BYTES = 256 << 20
"""How many bytes of a generator's items may lie unread, unless the user sets a number of items, or -1 for no bound. A
guess: more than lies ahead of a busy reader, and less than a machine would miss."""

ITEM_BYTES = 1024
"""The bytes of an item besides its value: records and ids. Measured with small numbers: 0.8 KB in the driver."""


@final
class Flow:
    """The items that one attempt of a generator has yielded and no reader has taken.

    Args:
        limit: The number of items that may lie unread; 0 for the bound in bytes, -1 for no bound.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._produced = 0
        self._bytes = 0
        #: The sizes of items that are not known to be taken; kept only for a bound in bytes.
        self._sizes: deque[int] = deque()
        #: The number of items that are known to be taken.
        self.consumed = 0
        #: Called, with the lock held, when the reader has taken more.
        self.wake: Callable[[], object] = lambda: None

    def add(self, size: int) -> bool:
        """Count an item of so many bytes; return whether the generator has to wait for its reader now."""
        self._produced += 1
        if not self._limit and self._produced > self.consumed:
            self._sizes.append(size + ITEM_BYTES)
            self._bytes += size + ITEM_BYTES
        return self.is_full()

    def is_full(self) -> bool:
        """Tell whether the generator has to wait."""
        if self._limit:
            return 0 < self._limit <= self._produced - self.consumed
        return self._bytes > MOST_BYTES

    def take(self, consumed: int) -> None:
        """Note that the reader has taken so many items. A late answer to an earlier attempt is also true."""
        self.consumed = max(self.consumed, consumed)
        while self._sizes and self._produced - len(self._sizes) < consumed:
            self._bytes -= self._sizes.popleft()
        self.wake()

    def find_wanted(self) -> int:
        """Return how many items the reader has to take before the generator goes on."""
        if self._limit:
            return self._produced - self._limit + 1
        left, wanted = self._bytes, self._produced - len(self._sizes)
        for size in self._sizes:
            if left <= MOST_BYTES // 2:
                break
            left -= size
            wanted += 1
        return wanted
