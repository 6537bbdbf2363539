"""What the order of an epoch costs: the ledger beside a shuffled list, as numpy makes one.

Processor time of one thread.

python benchmarks/ledger.py
"""

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
from _harness import describe_machine, format_number

from hocket.data import Ledger, order

Measurement = Callable[[int], object]

BATCH_ROWS = 64


def compute_order(num_rows: int) -> None:
    """All positions, a block at a time, as an epoch is read."""
    epoch_order = order.Order(num_rows, seed=0, epoch=0)
    for start in range(0, num_rows, 1 << 16):
        epoch_order.rows(np.arange(start, min(start + (1 << 16), num_rows)))


def shuffle_list(num_rows: int) -> None:
    np.random.default_rng(0).permutation(num_rows)


def read_slices(num_rows: int) -> None:
    """An epoch of slices for one rank of two."""
    ledger = Ledger(num_rows, 2 * BATCH_ROWS)
    for _ in ledger.slices(0, 2):
        ledger.advance()


def read_list(num_rows: int) -> None:
    """The same from a list: every rank shuffles all of it."""
    rows = np.random.default_rng(0).permutation(num_rows)
    for start in range(0, num_rows, 2 * BATCH_ROWS):
        rows[start : start + BATCH_ROWS].copy()


def resume_ledger(num_rows: int) -> None:
    ledger = Ledger(num_rows, 2 * BATCH_ROWS)
    ledger.load_state_dict({**ledger.state_dict(), "position": num_rows // (4 * BATCH_ROWS) * 2 * BATCH_ROWS})
    ledger.slice_for(0, 2)


def resume_list(num_rows: int) -> None:
    rows = np.random.default_rng(0).permutation(num_rows)
    rows[num_rows // 2 : num_rows // 2 + BATCH_ROWS].copy()


ROWS: list[tuple[str, Measurement, Measurement, Callable[[int], float], str]] = [
    ("whole order", compute_order, shuffle_list, lambda num_rows: 1e9 / num_rows, "ns a row"),
    ("an epoch's slices", read_slices, read_list, lambda num_rows: 1e6 / (num_rows / 2 / BATCH_ROWS), "us a step"),
    ("to the middle of an epoch", resume_ledger, resume_list, lambda _: 1e3, "ms"),
]


def time_call(measure: Measurement, num_rows: int) -> float:
    start = time.thread_time()
    measure(num_rows)
    return time.thread_time() - start


def measure_peak(measure: Measurement, num_rows: int) -> float:
    """The most MiB that a call holds at once."""
    tracemalloc.start()
    measure(num_rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 1_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{describe_machine()}. Median of {arguments.rounds} rounds; the sides take turns.\n")
    print(
        "| what | rows | unit | ledger | shuffled list | peak MiB, ledger | peak MiB, list "
        "|\n|---|--:|---|--:|--:|--:|--:|"
    )
    for name, ours, theirs, scale, unit in ROWS:
        for num_rows in arguments.rows:
            rounds = [(time_call(ours, num_rows), time_call(theirs, num_rows)) for _ in range(arguments.rounds)]
            times = [statistics.median(times) * scale(num_rows) for times in zip(*rounds, strict=True)]
            peaks = [measure_peak(measure, num_rows) for measure in (ours, theirs)]
            cells = " | ".join(map(format_number, (*times, *peaks)))
            print(f"| {name} | {num_rows:,} | {unit} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
