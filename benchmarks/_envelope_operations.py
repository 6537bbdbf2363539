"""Single-node shapes of Ray's scalability envelope, one shot each, and what a long row of tasks costs.

Each operation returns its figure itself. Counts are Ray's; `--quick` divides them by 20.
"""

import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from _harness import OURS
from _operations import operation

NUMBERS = list(range(10_000))
"""What each object holds: Ray's choice."""

QUEUED = {OURS: 1_000_000}
"""Tasks in the long row.

What is reported is a cost for each task, so a peer that would need hours has a shorter one.
"""
QUEUED_BY_OTHERS = 50_000

_queue_figures: dict[str, float] = {}
"""All that one run of the long row tells, so that three rows need one run."""


def take_seconds(run: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


@operation("10,000 references as arguments of one task", "s", more_is_better=False)
def many_arguments(ray_like: Any, divisor: int) -> float:
    count = 10_000 // divisor

    @ray_like.remote
    def add_lengths(*lists: list[int]) -> int:
        return sum(map(len, lists))

    def run() -> None:
        references = [ray_like.put(NUMBERS) for _ in range(count)]
        assert ray_like.get(add_lengths.remote(*references)) == count * len(NUMBERS)

    return take_seconds(run)


@operation("3,000 returns of one task", "s", more_is_better=False)
def many_returns(ray_like: Any, divisor: int) -> float:
    count = 3_000 // divisor

    @ray_like.remote(num_returns=count)
    def make_lists() -> tuple[list[int], ...]:
        return tuple([NUMBERS for _ in range(count)])

    def run() -> None:
        assert sum(map(len, ray_like.get(make_lists.remote()))) == count * len(NUMBERS)

    return take_seconds(run)


@operation("10,000 objects in one get", "s", more_is_better=False)
def many_objects(ray_like: Any, divisor: int) -> float:
    count = 10_000 // divisor

    def run() -> None:
        references = [ray_like.put(NUMBERS) for _ in range(count)]
        assert sum(map(len, ray_like.get(references))) == count * len(NUMBERS)

    return take_seconds(run)


@operation("queued no-op tasks, submitted", "tasks/s")
def queued_submission(ray_like: Any, divisor: int) -> float:
    return get_queue_figure(ray_like, divisor, "submitted")


@operation("queued no-op tasks, drained", "tasks/s")
def queued_drain(ray_like: Any, divisor: int) -> float:
    return get_queue_figure(ray_like, divisor, "drained")


@operation("queued no-op tasks, last tenth against first", "times the cost", more_is_better=False)
def queued_growth(ray_like: Any, divisor: int) -> float:
    return get_queue_figure(ray_like, divisor, "growth")


@operation("queued no-op tasks, driver memory", "bytes/task", more_is_better=False)
def queued_memory(ray_like: Any, divisor: int) -> float:
    return get_queue_figure(ray_like, divisor, "memory")


def get_queue_figure(ray_like: Any, divisor: int, name: str) -> float:
    if not _queue_figures:
        _queue_figures.update(measure_queue(ray_like, QUEUED.get(ray_like.__name__, QUEUED_BY_OTHERS) // divisor))
    return _queue_figures[name]


def measure_queue(ray_like: Any, count: int) -> dict[str, float]:
    """Submit a long row behind tasks that hold every CPU, let it go, and read the results in the order of
    submission."""
    process = psutil.Process()

    @ray_like.remote
    def do_nothing() -> None:
        return None

    ray_like.get([do_nothing.remote() for _ in range(100)])
    with hold_cpus(ray_like) as let_go:
        gc.collect()
        memory = process.memory_info().rss
        start = time.perf_counter()
        references = [do_nothing.remote() for _ in range(count)]
        submitted = time.perf_counter() - start
        memory = process.memory_info().rss - memory
        start = time.perf_counter()
        let_go()
        tenths = []
        for part in range(10):
            tenth = references[part * count // 10 : (part + 1) * count // 10]
            tenths.append(take_seconds(lambda tenth=tenth: ray_like.get(tenth)))  # type: ignore[misc]
        drained = time.perf_counter() - start
    return {
        "submitted": count / submitted,
        "drained": count / drained,
        "growth": tenths[-1] / tenths[0],
        "memory": memory / count,
    }


@contextmanager
def hold_cpus(ray_like: Any) -> Iterator[Callable[[], object]]:
    """Keep both CPUs taken until what is yielded is called."""
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        signal = Path(folder, "go")

        @ray_like.remote
        def hold(signal: Path, ready: Path) -> None:
            ready.touch()
            while not signal.exists():
                time.sleep(0.01)

        ready = [Path(folder, f"ready{number}") for number in range(2)]
        held = [hold.remote(signal, one) for one in ready]
        while not all(one.exists() for one in ready):
            time.sleep(0.01)
        yield signal.touch
        ray_like.get(held)
