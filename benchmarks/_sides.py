"""The process that measures one side.

`python _sides.py LIST SIDE FILE` measures one side of a list of operations, `core` or `envelope`, and appends a JSON
line to FILE for each operation.
"""

import argparse
import contextlib
import importlib
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from _harness import is_asked
from _operations import MANY, OPERATIONS, Body, Build, Measured, NotAvailableError, measure
from _remote import small_value

NUM_CPUS = 2

Builders = dict[str, Callable[[int], Measured]]
"""By row: builds the operation, of the divisor by which the large counts are made smaller."""


@contextlib.contextmanager
def open_session(name: str) -> Iterator[Builders]:
    """A session of Ray or of ours, alike in all that both can be told."""
    ray_like = importlib.import_module(name)
    quiet = {
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": "ERROR",
    }  # Ray's: on one machine without meaning
    ray_like.init("local", num_cpus=NUM_CPUS, resources={"custom": 100}, **quiet)

    def bind(build: Build) -> Callable[[int], Measured]:
        return lambda divisor: build(ray_like, divisor)

    try:
        yield {one.row.name: bind(one.build) for one in OPERATIONS}
    finally:
        ray_like.shutdown()


def name_task_rows(sync: Callable[[], object], many: Callable[[], object]) -> Builders:
    """One task, and a thousand: under the rows of plain tasks, and of Pool, which is another way to write them."""
    many()  # its processes are there before anything is timed
    one, thousand = Body(run=sync), Body(run=many, amount=MANY)
    return {
        "single client tasks sync": lambda _: one,
        "single client tasks async": lambda _: thousand,
        "Pool.apply": lambda _: one,
        "Pool.map chunksize=1": lambda _: thousand,
    }


def list_executor_rows(executor: Executor) -> Builders:
    return name_task_rows(
        lambda: executor.submit(small_value).result(),
        lambda: list(executor.map(small_value, range(MANY), chunksize=1)),
    )


@contextlib.contextmanager
def open_futures() -> Iterator[Builders]:
    with ProcessPoolExecutor(NUM_CPUS) as executor:
        yield list_executor_rows(executor)


@contextlib.contextmanager
def open_loky() -> Iterator[Builders]:
    executor: Any = importlib.import_module("loky").get_reusable_executor(max_workers=NUM_CPUS, timeout=None)
    try:
        yield list_executor_rows(executor)
    finally:
        executor.shutdown(wait=True, kill_workers=True)


@contextlib.contextmanager
def open_pool() -> Iterator[Builders]:
    with multiprocessing.Pool(NUM_CPUS) as pool:
        yield name_task_rows(lambda: pool.apply(small_value), lambda: pool.map(small_value, range(MANY), chunksize=1))


@contextlib.contextmanager
def open_dask() -> Iterator[Builders]:
    """Dask's scheduler with two processes; `pure=False` because it would else answer equal calls from memory."""
    distributed: Any = importlib.import_module("distributed")
    with (
        distributed.LocalCluster(
            n_workers=NUM_CPUS, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=40
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield name_task_rows(
            lambda: client.submit(small_value, pure=False).result(),
            lambda: client.gather(client.map(small_value, range(MANY), pure=False)),
        )


@contextlib.contextmanager
def open_memcpy() -> Iterator[Builders]:
    """A copy between two warm arrays of one process: what no `put` can be faster than."""

    def build(divisor: int) -> Body:
        source = np.zeros(100 * 2**20 // divisor, dtype=np.int64)
        target = np.ones_like(source)
        return Body(run=lambda: np.copyto(target, source), amount=source.nbytes / 1e9)

    yield {"single client put gigabytes": build}


OPENERS: dict[str, Callable[[], AbstractContextManager[Builders]]] = {
    "futures": open_futures,
    "pool": open_pool,
    "loky": open_loky,
    "dask": open_dask,
    "memcpy": open_memcpy,
}


def open_side(side: str) -> AbstractContextManager[Builders]:
    """The side's operations by row; peers other than Ray have only those that they can do."""
    return OPENERS[side]() if side in OPENERS else open_session(side)


def measure_operation(build: Callable[[int], Measured], *, quick: bool) -> dict[str, object]:
    warm_seconds, seconds, divisor = (0.05, 0.1, 20) if quick else (0.5, 2.0, 1)
    start = time.perf_counter()
    try:
        value = measure(build(divisor), warm_seconds=warm_seconds, seconds=seconds)
    except NotAvailableError as error:
        return {"absence": str(error)}
    except Exception as error:  # noqa: BLE001 - the others are still measured, and the table says what failed
        return {"failure": f"{type(error).__name__}: {error}".splitlines()[0]}
    return {"value": value, "spent": time.perf_counter() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one side of a list of operations.")
    parser.add_argument("list", choices=["core", "envelope"])
    parser.add_argument("side")
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    importlib.import_module(f"_{arguments.list}_operations")
    with open_side(arguments.side) as builders, arguments.file.open("a") as file:
        for name, build in builders.items():
            if not is_asked(name, arguments.only):
                continue
            record = {"row": name, **measure_operation(build, quick=arguments.quick)}
            print(json.dumps(record), file=file, flush=True)


if __name__ == "__main__":
    main()
