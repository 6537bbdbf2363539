"""What an operation is, the list of them, and how one is timed.

An operation is written once, against a module with Ray's names: Ray's own or ours.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from _harness import Row

MANY = 1000
"""How many are in flight where many are."""


class NotAvailableError(Exception):
    """The side cannot do this (yet). The table says so, and the benchmark has not failed."""


@dataclass(frozen=True, kw_only=True)
class Body:
    """What is timed: `run` does `amount` of the row's unit."""

    run: Callable[[], object]
    amount: float = 1


Measured = Body | float
"""A body to be timed here, or a figure that the operation has taken itself."""

Build = Callable[[Any, int], Measured]
"""Of the module under test, and the divisor by which the large counts are made smaller."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A row of the table and what is done for it."""

    row: Row
    build: Build


OPERATIONS: list[Operation] = []


def operation(name: str, unit: str = "calls/s", *, more_is_better: bool = True) -> Callable[[Build], Build]:
    """Add the decorated function to the list."""

    def register(build: Build) -> Build:
        OPERATIONS.append(Operation(row=Row(name=name, unit=unit, more_is_better=more_is_better), build=build))
        return build

    return register


def measure(measured: Measured, *, warm_seconds: float, seconds: float) -> float:
    """Amount a second, over at least `seconds`, after at least one run that does not count."""
    if not isinstance(measured, Body):
        return measured
    runs, start = 0, time.perf_counter()
    while not runs or time.perf_counter() - start < warm_seconds:
        measured.run()
        runs += 1
    # The clock is read a few times in all, not once a run: a get of a small object takes a few microseconds.
    step = max(1, int(runs * seconds / (10 * max(warm_seconds, time.perf_counter() - start))))
    runs, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        for _ in range(step):
            measured.run()
        runs += step
    return runs * measured.amount / spent
