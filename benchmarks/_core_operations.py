"""The core operations, and the process that measures one side of them.

An operation is written once, against a module with Ray's names: Ray's own or ours. Names and sizes are those of
`ray microbenchmark`, so that rows compare with what it prints. Rows that need async actors are not here yet.

`python _core_operations.py SIDE FILE` measures one side and appends a JSON line to FILE for each operation.
"""

import argparse
import contextlib
import importlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _harness import OURS, Row

NUM_CPUS = 2
NUM_ACTORS = max(1, (os.cpu_count() or 1) // 2)
"""The n of 1:n and n:n."""
MANY = 1000
CLIENTS = 4


@dataclass(frozen=True, kw_only=True)
class Body:
    """What is timed: `run` does `amount` of the row's unit."""

    run: Callable[[], object]
    amount: float = 1


@dataclass(frozen=True, kw_only=True)
class Operation:
    row: Row
    build: Callable[[Any, int], Body]
    """Of the module under test and the divisor by which the large counts are made smaller."""


OPERATIONS: list[Operation] = []


def operation(name: str, unit: str = "calls/s") -> Callable[[Callable[[Any, int], Body]], Callable[[Any, int], Body]]:
    def register(build: Callable[[Any, int], Body]) -> Callable[[Any, int], Body]:
        OPERATIONS.append(Operation(row=Row(name=name, unit=unit), build=build))
        return build

    return register


# -- what the operations call ------------------------------------------------------------------------------------------


def small_value(*_: object) -> bytes:
    return b"ok"


class Server:
    """Answers calls."""

    def small_value(self) -> bytes:
        return b"ok"

    def small_value_arg(self, value: object) -> bytes:
        return b"ok"


def build_task(ray_like: Any) -> Any:
    return ray_like.remote(small_value)


def build_servers(ray_like: Any, count: int, **options: Any) -> list[Any]:
    actor = ray_like.remote(num_cpus=0, **options)(Server)
    servers = [actor.remote() for _ in range(count)]
    ray_like.get([server.small_value.remote() for server in servers])
    return servers


def build_client(ray_like: Any, servers: list[Any]) -> Any:
    """An actor that calls other actors, `count` times each."""

    class Client:
        def call(self, count: int) -> None:
            ray_like.get([server.small_value.remote() for server in servers for _ in range(count)])

        def call_with_argument(self, count: int) -> None:
            value = ray_like.put(0)
            ray_like.get([server.small_value_arg.remote(value) for server in servers for _ in range(count)])

    return ray_like.remote(num_cpus=0)(Client).remote()


# -- objects -----------------------------------------------------------------------------------------------------------


@operation("single client get calls (Plasma)")
def get_calls(ray_like: Any, _: int) -> Body:
    reference = ray_like.put(0)
    return Body(run=lambda: ray_like.get(reference))


@operation("single client put calls (Plasma)")
def put_calls(ray_like: Any, _: int) -> Body:
    return Body(run=lambda: ray_like.put(0))


@operation("multi client put calls (Plasma)")
def multi_put_calls(ray_like: Any, _: int) -> Body:
    tasks, puts = 10, 100

    @ray_like.remote
    def put_many() -> None:
        for _ in range(puts):
            ray_like.put(0)

    return Body(run=lambda: ray_like.get([put_many.remote() for _ in range(tasks)]), amount=tasks * puts)


@operation("single client put gigabytes", "GB/s")
def put_gigabytes(ray_like: Any, divisor: int) -> Body:
    array = np.zeros(100 * 2**20 // divisor, dtype=np.int64)
    return Body(run=lambda: ray_like.put(array), amount=array.nbytes / 1e9)


@operation("multi client put gigabytes", "GB/s")
def multi_put_gigabytes(ray_like: Any, divisor: int) -> Body:
    tasks, puts, length = 10, 10, 10 * 2**20 // divisor

    @ray_like.remote
    def put_many() -> None:
        for _ in range(puts):
            ray_like.put(np.zeros(length, dtype=np.int64))

    return Body(
        run=lambda: ray_like.get([put_many.remote() for _ in range(tasks)]), amount=tasks * puts * length * 8 / 1e9
    )


@operation("single client get object containing 10k refs", "gets/s")
def get_nested_references(ray_like: Any, _: int) -> Body:
    @ray_like.remote
    def make_references() -> list[Any]:
        return [ray_like.put(1) for _ in range(10_000)]

    reference = make_references.remote()
    return Body(run=lambda: ray_like.get(reference))


@operation("single client wait 1k refs", "times 1,000 waits/s")
def wait_references(ray_like: Any, _: int) -> Body:
    task = build_task(ray_like)

    def run() -> None:
        rest = [task.remote() for _ in range(MANY)]
        while rest:
            # Ray fetches an object once it was asked to, so only the first wait has to ask.
            _, rest = ray_like.wait(rest, num_returns=1, fetch_local=len(rest) == MANY)

    return Body(run=run)


# -- tasks -------------------------------------------------------------------------------------------------------------


@operation("single client tasks and get batch", "times 1,000 tasks/s")
def tasks_batch(ray_like: Any, _: int) -> Body:
    task = build_task(ray_like)
    return Body(run=lambda: ray_like.get([task.remote() for _ in range(MANY)]))


@operation("single client tasks sync", "tasks/s")
def tasks_sync(ray_like: Any, _: int) -> Body:
    task = build_task(ray_like)
    return Body(run=lambda: ray_like.get(task.remote()))


@operation("single client tasks async", "tasks/s")
def tasks_async(ray_like: Any, _: int) -> Body:
    task = build_task(ray_like)
    return Body(run=lambda: ray_like.get([task.remote() for _ in range(MANY)]), amount=MANY)


@operation("multi client tasks async", "tasks/s")
def multi_tasks_async(ray_like: Any, divisor: int) -> Body:
    task, count = build_task(ray_like), 10_000 // divisor

    class Client:
        def call(self) -> None:
            ray_like.get([task.remote() for _ in range(count)])

    actor = ray_like.remote(num_cpus=0)(Client)
    clients = [actor.remote() for _ in range(CLIENTS)]
    return Body(run=lambda: ray_like.get([client.call.remote() for client in clients]), amount=CLIENTS * count)


# -- actors ------------------------------------------------------------------------------------------------------------


@operation("1:1 actor calls sync")
def actor_sync(ray_like: Any, _: int) -> Body:
    (server,) = build_servers(ray_like, 1)
    return Body(run=lambda: ray_like.get(server.small_value.remote()))


@operation("1:1 actor calls async")
def actor_async(ray_like: Any, _: int) -> Body:
    (server,) = build_servers(ray_like, 1)
    return Body(run=lambda: ray_like.get([server.small_value.remote() for _ in range(MANY)]), amount=MANY)


@operation("1:1 actor calls concurrent")
def actor_concurrent(ray_like: Any, _: int) -> Body:
    (server,) = build_servers(ray_like, 1, max_concurrency=16)
    return Body(run=lambda: ray_like.get([server.small_value.remote() for _ in range(MANY)]), amount=MANY)


@operation("1:n actor calls async")
def one_to_many_actors(ray_like: Any, divisor: int) -> Body:
    servers, count = build_servers(ray_like, NUM_ACTORS), 5000 // divisor
    client = build_client(ray_like, servers)
    return Body(run=lambda: ray_like.get(client.call.remote(count)), amount=count * len(servers))


@operation("n:n actor calls async")
def many_to_many_actors(ray_like: Any, divisor: int) -> Body:
    servers, count = build_servers(ray_like, NUM_ACTORS), 5000 // divisor

    @ray_like.remote
    def call(servers: list[Any]) -> None:
        ray_like.get([servers[number % len(servers)].small_value.remote() for number in range(count)])

    return Body(run=lambda: ray_like.get([call.remote(servers) for _ in range(CLIENTS)]), amount=CLIENTS * count)


@operation("n:n actor calls with arg async")
def many_to_many_actors_with_argument(ray_like: Any, _: int) -> Body:
    clients = [build_client(ray_like, [server]) for server in build_servers(ray_like, NUM_ACTORS)]
    return Body(
        run=lambda: ray_like.get([client.call_with_argument.remote(MANY) for client in clients]),
        amount=MANY * len(clients),
    )


# -- placement ---------------------------------------------------------------------------------------------------------


@operation("placement group create/removal", "groups/s")
def placement_groups(ray_like: Any, _: int) -> Body:
    util, count = importlib.import_module(f"{ray_like.__name__}.util"), 100

    def run() -> None:
        groups = [util.placement_group([{"custom": 0.001}]) for _ in range(count)]
        for group in groups:
            assert group.wait(timeout_seconds=30)
        for group in groups:
            util.remove_placement_group(group)

    return Body(run=run, amount=count)


# -- sides -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_session(name: str) -> Iterator[dict[str, Callable[[int], Body]]]:
    """A session of Ray or of ours, alike in all that both can be told."""
    ray_like = importlib.import_module(name)
    quiet = {} if name == OURS else {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray_like.init(num_cpus=NUM_CPUS, resources={"custom": 100}, **quiet)

    def bind(build: Callable[[Any, int], Body]) -> Callable[[int], Body]:
        return lambda divisor: build(ray_like, divisor)

    try:
        yield {one.row.name: bind(one.build) for one in OPERATIONS}
    finally:
        ray_like.shutdown()


@contextlib.contextmanager
def open_futures() -> Iterator[dict[str, Callable[[int], Body]]]:
    with ProcessPoolExecutor(NUM_CPUS) as executor:
        yield {
            "single client tasks sync": lambda _: Body(run=lambda: executor.submit(small_value).result()),
            "single client tasks async": lambda _: Body(
                run=lambda: list(executor.map(small_value, range(MANY), chunksize=1)), amount=MANY
            ),
        }


@contextlib.contextmanager
def open_pool() -> Iterator[dict[str, Callable[[int], Body]]]:
    with multiprocessing.Pool(NUM_CPUS) as pool:
        yield {
            "single client tasks sync": lambda _: Body(run=lambda: pool.apply(small_value)),
            "single client tasks async": lambda _: Body(
                run=lambda: pool.map(small_value, range(MANY), chunksize=1), amount=MANY
            ),
        }


def open_side(side: str) -> AbstractContextManager[dict[str, Callable[[int], Body]]]:
    """The side's operations by name; the standard library's pools have only the two that they can do."""
    if side == "futures":
        return open_futures()
    if side == "pool":
        return open_pool()
    return open_session(side)


def measure(body: Body, *, warm_seconds: float, seconds: float) -> float:
    """Amount a second, over at least `seconds`, after at least one run that does not count."""
    runs, start = 0, time.perf_counter()
    while not runs or time.perf_counter() - start < warm_seconds:
        body.run()
        runs += 1
    # The clock is read a few times in all, not once a run: a get of a small object takes a few microseconds.
    step = max(1, int(runs * seconds / (10 * max(warm_seconds, time.perf_counter() - start))))
    runs, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        for _ in range(step):
            body.run()
        runs += step
    return runs * body.amount / spent


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one side of the core operations.")
    parser.add_argument("side")
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    warm_seconds, seconds, divisor = (0.05, 0.1, 20) if arguments.quick else (0.5, 2.0, 1)
    with open_side(arguments.side) as builders, arguments.file.open("a") as file:
        for name, build in builders.items():
            if arguments.only not in name:
                continue
            record: dict[str, object] = {"row": name}
            try:
                record["value"] = measure(build(divisor), warm_seconds=warm_seconds, seconds=seconds)
            except Exception as error:  # noqa: BLE001 - the others are still measured, and the table says what failed
                record["failure"] = f"{type(error).__name__}: {error}".splitlines()[0]
            print(json.dumps(record), file=file, flush=True)


if __name__ == "__main__":
    main()
