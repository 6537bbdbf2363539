"""`hocket bench`: the speed of the core operations on this machine, in under a minute.

The repository's ``benchmarks/core.py`` compares Hocket with other packages, in fresh processes that take turns.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich import box, console, table

import hocket
from hocket.cli import workload

MANY = 1000
"""How many calls are in flight at once, in operations with many."""

LARGE_BYTES = 100 * 2**20
"""The size of the large value."""

ROUNDS = 5
"""How many samples to take of each operation; the table shows the median."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation to measure."""

    name: str
    unit: str
    run: Callable[[], object]
    amount: float = 1
    """How many units one run does."""


def list_operations(large_bytes: int = LARGE_BYTES) -> Iterator[Operation]:
    """Yield the operations, for the open session. The values that an operation needs are built just before it."""
    task = hocket.remote(workload.multiply)
    yield Operation(name="tasks, one at a time", unit="tasks/s", run=lambda: hocket.get(task.remote(6, 7)))
    yield Operation(
        name=f"tasks, {MANY:,} in flight",
        unit="tasks/s",
        run=lambda: hocket.get([task.remote(6, 7) for _ in range(MANY)]),
        amount=MANY,
    )
    server = hocket.remote(workload.Counter).options(num_cpus=0).remote()
    yield Operation(name="actor calls, one at a time", unit="calls/s", run=lambda: hocket.get(server.add.remote(1)))
    yield Operation(
        name=f"actor calls, {MANY:,} in flight",
        unit="calls/s",
        run=lambda: hocket.get([server.add.remote(1) for _ in range(MANY)]),
        amount=MANY,
    )
    yield Operation(name="actors made and called once", unit="actors/s", run=_make_actor)
    yield Operation(name="put of a small value", unit="puts/s", run=lambda: hocket.put(0))
    small = hocket.put(0)
    yield Operation(name="get of a small value", unit="gets/s", run=lambda: hocket.get(small))
    array = np.ones(large_bytes // 8)
    name = f"{large_bytes / 2**20:.0f} MiB"
    yield Operation(name=f"put of {name}", unit="GB/s", run=lambda: hocket.put(array), amount=array.nbytes / 1e9)
    large = hocket.put(array)
    yield Operation(name=f"get of {name}", unit="gets/s", run=lambda: hocket.get(large))
    yield Operation(name=f"wait for {MANY:,} tasks", unit="waits/s", run=lambda: _wait_for_many(task))


def _make_actor() -> None:
    hocket.get(hocket.remote(workload.Counter).options(num_cpus=0).remote().add.remote(1))


def _wait_for_many(task: Any) -> None:
    refs = [task.remote(6, 7) for _ in range(MANY)]
    hocket.wait(refs, num_returns=MANY)


def measure(operation: Operation, seconds: float) -> list[float]:
    """Return the rate per second in each of `ROUNDS` rounds, after one run that does not count."""
    operation.run()
    rates = []
    for _ in range(ROUNDS):
        runs, started = 0, time.perf_counter()
        while not runs or time.perf_counter() - started < seconds / ROUNDS:
            operation.run()
            runs += 1
        rates.append(runs * operation.amount / (time.perf_counter() - started))
    return rates


def run(*, as_json: bool, is_quick: bool) -> int:
    """Measure, print the table, and return the exit code."""
    seconds = 0.05 if is_quick else 2.0
    results: list[dict[str, Any]] = []
    with hocket.init():
        cpus = hocket.cluster_resources().get("CPU", 0.0)
        for operation in list_operations(LARGE_BYTES // 10 if is_quick else LARGE_BYTES):
            rates = measure(operation, seconds)
            results.append(
                {
                    "name": operation.name,
                    "unit": operation.unit,
                    "median": statistics.median(rates),
                    "lowest": min(rates),
                    "highest": max(rates),
                }
            )
    if as_json:
        print(json.dumps({"version": hocket.__version__, "cpus": cpus, "results": results}, indent=2))
        return 0
    built = table.Table(
        title=f"Hocket {hocket.__version__} on {cpus:g} CPUs", box=box.SIMPLE_HEAD, title_justify="left"
    )
    built.add_column("operation")
    built.add_column("unit")
    for name in ("median", "lowest", "highest"):
        built.add_column(name, justify="right")
    for row in results:
        built.add_row(row["name"], row["unit"], *(format_rate(row[name]) for name in ("median", "lowest", "highest")))
    console.Console(highlight=False).print(built)
    return 0


def format_rate(value: Any) -> str:
    """Format a rate for people."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
