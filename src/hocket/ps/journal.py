"""Changes of numbers in shared memory that are done all or none, whenever their process is killed.

A change is first written down, then counted, then done. Its places and values are absolute, so it can be done again:
the next process that gets the lock of a dead one finishes what that had counted. The caller holds the lock.
"""

from __future__ import annotations

from typing import final

Change = tuple[int, int]
"""Which of the numbers, and what it becomes."""


@final
class Journal:
    """A journal, as one process sees it.

    Args:
        numbers: All that can be changed, and the journal itself: whole numbers of 64 bits.
        begin: Where among them the journal begins; it takes two for each change.
        pending: Which of them counts the changes that are to be done.
    """

    def __init__(self, numbers: memoryview[int], begin: int, pending: int) -> None:
        self._numbers = numbers
        self._begin = begin
        self._pending = pending

    def change(self, *changes: Change) -> None:
        """Set numbers, all or none of them."""
        numbers, at = self._numbers, self._begin
        for place, value in changes:
            numbers[at], numbers[at + 1] = place, value
            at += 2
        numbers[self._pending] = len(changes)
        self.finish()

    def finish(self) -> None:
        """Do what was counted. Done again it changes nothing."""
        numbers, begin, pending = self._numbers, self._begin, self._pending
        for at in range(begin, begin + 2 * numbers[pending], 2):
            numbers[numbers[at]] = numbers[at + 1]
        numbers[pending] = 0
