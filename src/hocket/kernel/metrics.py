"""Metrics of programs, as numbers that can be added up: plain data, no IO and no locks.

A process collects changes in a `Batch`, and sends it; the driver merges the batches of all processes. Counters and
histograms add up. For a gauge, the value that came last counts, whichever process set it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

COUNTER = "counter"
GAUGE = "gauge"
HISTOGRAM = "histogram"

Tags = tuple[tuple[str, str], ...]
"""``(key, value)`` pairs, sorted by key."""

Record = tuple[str, str, str, tuple[float, ...], Tags, tuple[float, ...]]
"""``(kind, name, description, boundaries, tags, numbers)``. The numbers are a counter's increment, a gauge's value, or
the counts of a histogram's buckets and then the sum. A record has only tuples, strings and numbers, and can be sent."""

Batch = tuple[Record, ...]


class Family:
    """All series of one metric, one for each set of tags."""

    __slots__ = ("boundaries", "description", "kind", "name", "series")

    def __init__(self, kind: str, name: str, description: str, boundaries: tuple[float, ...]) -> None:
        self.kind = kind
        self.name = name
        self.description = description
        self.boundaries = boundaries
        #: A series' numbers, by its tags.
        self.series: dict[Tags, tuple[float, ...]] = {}


class MetricStore:
    """The metrics of one process, or of a session."""

    __slots__ = ("families",)

    def __init__(self) -> None:
        #: By name, kind and boundaries: metrics that differ in one of these are not added up.
        self.families: dict[tuple[str, str, tuple[float, ...]], Family] = {}

    def merge(self, batch: Iterable[Record]) -> None:
        """Add the records of a batch."""
        for kind, name, description, boundaries, tags, numbers in batch:
            key = (name, kind, boundaries)
            family = self.families.get(key)
            if family is None:
                family = self.families[key] = Family(kind, name, description, boundaries)
            known = family.series.get(tags)
            if known is None or kind == GAUGE:
                family.series[tags] = numbers
            else:
                family.series[tags] = tuple([old + new for old, new in zip(known, numbers, strict=True)])

    def list_records(self) -> Batch:
        """Return all records as one batch."""
        return tuple(
            [
                (family.kind, family.name, family.description, family.boundaries, tags, numbers)
                for family in self.families.values()
                for tags, numbers in family.series.items()
            ]
        )

    def take(self) -> Batch:
        """Return all records as one batch, and empty the store."""
        batch = self.list_records()
        self.families = {}
        return batch


def build_histogram_numbers(boundaries: tuple[float, ...], value: float) -> tuple[float, ...]:
    """Return the numbers of one observation; a value that equals a boundary belongs to the bucket below it."""
    numbers = [0.0] * (len(boundaries) + 2)
    numbers[bisect.bisect_left(boundaries, value)] = 1.0
    numbers[-1] = float(value)
    return tuple(numbers)
