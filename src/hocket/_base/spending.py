"""On what this process spends its time between two reports: the parts add to it, and a training session reads it.

One for a process, and exact where one thread trains there. Where ranks are threads of one process, nobody reads it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeVar, final

T = TypeVar("T")


class Spent(NamedTuple):
    """Seconds, and counts."""

    total: float
    """All of the time."""
    data: float
    """The loop waited for its next batch."""
    wait: float
    """A collective waited for other ranks."""
    exchange: float
    """A collective did the rest of its work: it copied and added."""
    report: float
    """`report` did not return: a checkpoint was copied, and the ranks waited for each other."""
    batches: int
    """How many batches the loop was given."""
    operations: int
    """How many collectives there were."""

    @property
    def compute(self) -> float:
        """The remaining time: the loop's own work."""
        return max(0.0, self.total - self.data - self.wait - self.exchange - self.report)


@final
class Spending:
    """Sums since the process began."""

    def __init__(self) -> None:
        self.data = 0.0
        self.wait = 0.0
        self.collective = 0.0
        """Of collectives, with their waits."""
        self.report = 0.0
        self.batches = 0
        self.operations = 0

    def read(self, now: float) -> Spent:
        """Return the sums; a difference of two is what was spent in between.

        Args:
            now: By `time.perf_counter`.
        """
        exchange = max(0.0, self.collective - self.wait)
        return Spent(now, self.data, self.wait, exchange, self.report, self.batches, self.operations)

    def add_wait(self, seconds: float) -> None:
        """Count a collective that did nothing but wait for other ranks."""
        self.wait += seconds
        self.collective += seconds
        self.operations += 1

    def time_batches(self, batches: Iterator[T]) -> Iterator[T]:
        """Give what an iterator gives, and count the time that it takes."""
        while True:
            begun = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self.data += time.perf_counter() - begun
            self.batches += 1
            yield batch


@final
class Stretch:
    """The seconds that this process has spent since the last question."""

    def __init__(self) -> None:
        self._before = OWN.read(time.perf_counter())

    def end(self) -> Spent:
        """Return it, and begin the next stretch."""
        before, self._before = self._before, OWN.read(time.perf_counter())
        return subtract(self._before, before)


def subtract(after: Spent, before: Spent) -> Spent:
    """Return what was spent between two moments."""
    return Spent._make(one - other for one, other in zip(after, before, strict=True))


OWN: Final = Spending()
"""This process's."""
