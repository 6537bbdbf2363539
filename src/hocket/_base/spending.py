"""How this process spends its time between two reports: loaders and collectives add to sums, a training session reads
them.

There is one set of sums per process, which is exact if one thread trains. If ranks are threads of one process, nothing
reads the sums.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeVar, final

T = TypeVar("T")


class Spent(NamedTuple):
    """Seconds of each kind, and counts."""

    total: float
    """All of the time."""
    data: float
    """Seconds in which the loop waited for its next batch."""
    wait: float
    """Seconds in which a collective waited for other ranks."""
    exchange: float
    """Seconds in which a collective did the rest of its work: it copied and added."""
    report: float
    """Seconds inside `report`: it copied a checkpoint, and the ranks waited for each other."""
    batches: int
    """How many batches the loop received."""
    operations: int
    """How many collectives ran."""

    @property
    def compute(self) -> float:
        """The remaining time: the loop's own work."""
        return max(0.0, self.total - self.data - self.wait - self.exchange - self.report)


@final
class Spending:
    """Sums of seconds and counts since the process began."""

    def __init__(self) -> None:
        self.data = 0.0
        self.wait = 0.0
        self.collective = 0.0
        """Seconds in collectives, their waits included."""
        self.report = 0.0
        self.batches = 0
        self.operations = 0

    def read(self, now: float) -> Spent:
        """Return the sums; the difference of two results is the time spent in between.

        Args:
            now: The time by `time.perf_counter`.
        """
        exchange = max(0.0, self.collective - self.wait)
        return Spent(now, self.data, self.wait, exchange, self.report, self.batches, self.operations)

    def add_wait(self, seconds: float) -> None:
        """Count a collective that only waited for other ranks."""
        self.wait += seconds
        self.collective += seconds
        self.operations += 1

    def time_batches(self, batches: Iterator[T]) -> Iterator[T]:
        """Yield the batches of an iterator, and count them and the time that the iterator takes."""
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
    """The time that this process has spent since the last call of `end`."""

    def __init__(self) -> None:
        self._before = OWN.read(time.perf_counter())

    def end(self) -> Spent:
        """Return the time spent, and begin the next stretch."""
        before, self._before = self._before, OWN.read(time.perf_counter())
        return subtract(self._before, before)


def subtract(after: Spent, before: Spent) -> Spent:
    """Return the time spent between two moments."""
    return Spent._make(one - other for one, other in zip(after, before, strict=True))


OWN: Final = Spending()
"""The sums of this process."""
