"""The operations of `ray microbenchmark`, with its names and sizes, and a few that it lacks.

Rows that need a remote client are not here.
"""

import importlib
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _operations import MANY, Body, NotAvailableError, operation
from _remote import AsyncServer, Server, small_value

NUM_ACTORS = max(1, (os.cpu_count() or 1) // 2)
"""The n of 1:n and n:n."""
CLIENTS = 4


# -- what the operations call ------------------------------------------------------------------------------------------


def build_task(ray_like: Any) -> Any:
    return ray_like.remote(small_value)


def build_servers(ray_like: Any, count: int, **options: Any) -> list[Any]:
    actor = ray_like.remote(num_cpus=0, **options)(Server)
    servers = [actor.remote() for _ in range(count)]
    ray_like.get([server.small_value.remote() for server in servers])
    return servers


def build_async_servers(ray_like: Any, count: int) -> list[Any]:
    try:
        servers = [ray_like.remote(num_cpus=0)(AsyncServer).remote() for _ in range(count)]
        ray_like.get([server.small_value.remote() for server in servers])
    except TypeError as error:  # a coroutine function is refused, or the coroutine that it returned cannot be sent
        raise NotAvailableError(f"no async actors: {error}") from error
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


def run_callers(ray_like: Any, servers: list[Any], count: int) -> Body:
    """Tasks that call the servers, `count` calls each."""

    @ray_like.remote
    def call(servers: list[Any]) -> None:
        ray_like.get([servers[number % len(servers)].small_value.remote() for number in range(count)])

    return Body(run=lambda: ray_like.get([call.remote(servers) for _ in range(CLIENTS)]), amount=CLIENTS * count)


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


@operation("single client get of 800 MB", "ms", more_is_better=False)
def get_gigabytes(ray_like: Any, divisor: int) -> float:
    reference = ray_like.put(np.ones(100 * 2**20 // divisor, dtype=np.int64))
    seconds = []
    for _ in range(501):
        start = time.perf_counter()
        value = ray_like.get(reference)
        seconds.append(time.perf_counter() - start)
        assert value[-1] == 1
        del value
    return 1000 * statistics.median(seconds)


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
    return run_callers(ray_like, servers, count)


@operation("n:n actor calls with arg async")
def many_to_many_actors_with_argument(ray_like: Any, _: int) -> Body:
    clients = [build_client(ray_like, [server]) for server in build_servers(ray_like, NUM_ACTORS)]
    return Body(
        run=lambda: ray_like.get([client.call_with_argument.remote(MANY) for client in clients]),
        amount=MANY * len(clients),
    )


@operation("1:1 async-actor calls sync")
def async_actor_sync(ray_like: Any, _: int) -> Body:
    (server,) = build_async_servers(ray_like, 1)
    return Body(run=lambda: ray_like.get(server.small_value.remote()))


@operation("1:1 async-actor calls async")
def async_actor_async(ray_like: Any, _: int) -> Body:
    (server,) = build_async_servers(ray_like, 1)
    return Body(run=lambda: ray_like.get([server.small_value.remote() for _ in range(MANY)]), amount=MANY)


@operation("1:1 async-actor calls with args async")
def async_actor_with_argument(ray_like: Any, _: int) -> Body:
    (server,) = build_async_servers(ray_like, 1)
    return Body(
        run=lambda: ray_like.get([server.small_value_arg.remote(number) for number in range(MANY)]), amount=MANY
    )


@operation("1:n async-actor calls async")
def one_to_many_async_actors(ray_like: Any, divisor: int) -> Body:
    servers, count = build_async_servers(ray_like, NUM_ACTORS), 5000 // divisor
    client = build_client(ray_like, servers)
    return Body(run=lambda: ray_like.get(client.call.remote(count)), amount=count * len(servers))


@operation("n:n async-actor calls async")
def many_to_many_async_actors(ray_like: Any, divisor: int) -> Body:
    servers, count = build_async_servers(ray_like, NUM_ACTORS), 5000 // divisor
    return run_callers(ray_like, servers, count)


@operation("actor creation", "actors/s")
def actor_creation(ray_like: Any, divisor: int) -> float:
    """From `.remote()` to the first answer of the last of 100 actors; their end is not timed."""
    build_servers(ray_like, 2)
    start = time.perf_counter()
    servers = build_servers(ray_like, max(5, 100 // divisor))
    return len(servers) / (time.perf_counter() - start)


@operation("worker-to-worker actor calls, driver idle")
def calls_beside_idle_driver(ray_like: Any, divisor: int) -> float:
    return measure_calls_between_workers(ray_like, 20_000 // divisor, driver_computes=False)


@operation("worker-to-worker actor calls, driver busy in Python")
def calls_beside_busy_driver(ray_like: Any, divisor: int) -> float:
    return measure_calls_between_workers(ray_like, 20_000 // divisor, driver_computes=True)


def measure_calls_between_workers(ray_like: Any, count: int, *, driver_computes: bool) -> float:
    """Calls a second of one actor on another, as the caller measures it, 100 in flight."""
    (server,) = build_servers(ray_like, 1)

    class Caller:
        def call(self, count: int, done: Path | None) -> float:
            start = time.perf_counter()
            for _ in range(count // 100):
                ray_like.get([server.small_value.remote() for _ in range(100)])
            seconds = time.perf_counter() - start
            if done is not None:
                done.touch()
            return seconds

    caller = ray_like.remote(num_cpus=0)(Caller).remote()
    ray_like.get(caller.call.remote(100, None))
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        done = Path(folder, "done")
        seconds = caller.call.remote(count, done if driver_computes else None)
        while driver_computes and not done.exists():
            sum(number * number for number in range(20_000))  # holds the interpreter for a millisecond at a time
        return float(count // 100 * 100 / ray_like.get(seconds))


# -- pools -------------------------------------------------------------------------------------------------------------


def build_pool(ray_like: Any) -> Any:
    """Their own Pool over their tasks, under multiprocessing's names."""
    try:
        pools = importlib.import_module(f"{ray_like.__name__}.util.multiprocessing")
    except ModuleNotFoundError as error:
        raise NotAvailableError(str(error)) from error
    return pools.Pool(2)


@operation("Pool.apply", "tasks/s")
def pool_apply(ray_like: Any, _: int) -> Body:
    pool = build_pool(ray_like)
    return Body(run=lambda: pool.apply(small_value))


@operation("Pool.map chunksize=1", "tasks/s")
def pool_map(ray_like: Any, _: int) -> Body:
    pool = build_pool(ray_like)
    return Body(run=lambda: pool.map(small_value, range(MANY), chunksize=1), amount=MANY)


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
