"""Calls and loops whose work takes longer than a test waits: each place is one that a program may leave early.

A *place* is a context manager. What it gives is called: a loop (`LOOPS`) returns an iterable at once, a call (`CALLS`)
waits for its work. What the place holds meanwhile, such as a pool, is there when that has ended early, and works on.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hocket
from hocket import data, ps, train, tune
from hocket.util import ActorPool, map_unordered
from hocket.util.multiprocessing import Pool
from hocket.util.queue import Queue

SECONDS = 8.0
"""How long each nap takes; a test waits for less."""

HASHES = 12_000_000
"""As long in one call of C, which no signal breaks off: some seconds at least, on any machine."""


@dataclass(frozen=True)
class Nap:
    """Work that takes long, and leaves files: when it begins, when it is left, and when it was slept through."""

    folder: Path
    kind: str = "sleep"

    def __call__(self, number: object = 1) -> int:
        """Return at once for 0, so that a loop has something to begin with."""
        if number == 0:
            return 0
        name = f"{os.getpid()}-{time.monotonic_ns()}"
        try:
            (self.folder / f"{name}.begun").touch()
            if self.kind == "C":
                hashlib.pbkdf2_hmac("sha256", b"", b"", HASHES)
            else:
                time.sleep(SECONDS)
        except BaseException:
            if self.kind != "stubborn":
                raise
            time.sleep(SECONDS)
        finally:
            (self.folder / f"{name}.left").touch()
        (self.folder / f"{name}.ended").touch()
        return 1

    def batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        self(int(batch["id"][0]))
        return batch

    def row(self, row: dict[str, Any]) -> dict[str, Any]:
        self(int(row["id"]))
        return row

    def frame(self, group: Any) -> Any:
        self(int(group["id"].iloc[0]))
        return group

    async def doze(self, number: int) -> int:
        """As a call, in a coroutine."""
        if number:
            name = f"{os.getpid()}-{time.monotonic_ns()}"
            try:
                (self.folder / f"{name}.begun").touch()
                await asyncio.sleep(SECONDS)
                (self.folder / f"{name}.ended").touch()
            finally:
                (self.folder / f"{name}.left").touch()
        return number


class Model:
    """What a pool of actors makes once."""

    def __init__(self, nap: Nap) -> None:
        self.nap = nap

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return self.nap.batch(batch)


class Dozer:
    """An asynchronous actor."""

    async def doze(self, nap: Nap, number: int) -> int:
        return await nap.doze(number)


class Naps(data.Datasource):
    """Rows that take long to be read."""

    def __init__(self, nap: Nap) -> None:
        self.nap = nap

    def get_read_tasks(self, parallelism: int, *_: object) -> list[Any]:
        def read(number: int) -> Any:
            self.nap(number)
            return [{"id": np.array([number])}]

        return [data.ReadTask(lambda number=number: read(number)) for number in range(4)]  # type: ignore[misc]


Begin = Callable[[], Any]
Place = Callable[[Nap], contextlib.AbstractContextManager[Begin]]

LOOPS: dict[str, Place] = {}
CALLS: dict[str, Place] = {}


def _of_rows(made: Callable[[data.Dataset, Nap], Any], kind: str = "sleep") -> Place:
    """Return a place that does something with rows, in four blocks, that take long to be made."""

    @contextlib.contextmanager
    def place(nap: Nap) -> Iterator[Begin]:
        nap = Nap(nap.folder, kind)
        yield lambda: made(data.range(4, override_num_blocks=4).map_batches(nap.batch), nap)

    return place


def _pooled(nap: Nap) -> data.Dataset:
    rows = data.range(4, override_num_blocks=4)
    return rows.map_batches(Model, fn_constructor_args=[nap], concurrency=2)


CALLS |= {
    "materialize": _of_rows(lambda rows, nap: rows.materialize()),
    "take": _of_rows(lambda rows, nap: rows.take(3)),
    "count": _of_rows(lambda rows, nap: rows.map(nap.row).count()),
    "schema": _of_rows(lambda rows, nap: rows.filter(lambda row: nap(1) > 1).schema()),
    "to_pandas": _of_rows(lambda rows, nap: rows.to_pandas()),
    "sort": _of_rows(lambda rows, nap: rows.sort("id").take_all()),
    "random_shuffle": _of_rows(lambda rows, nap: rows.random_shuffle().take_all()),
    "repartition": _of_rows(lambda rows, nap: rows.repartition(2).materialize()),
    "groupby": _of_rows(lambda rows, nap: rows.groupby("id").count().take_all()),
    "map_groups": _of_rows(
        lambda rows, nap: data.range(4).groupby("id").map_groups(nap.frame, batch_format="pandas").take_all()
    ),
    "sum": _of_rows(lambda rows, nap: rows.sum("id")),
    "unique": _of_rows(lambda rows, nap: rows.unique("id")),
    "join": _of_rows(lambda rows, nap: data.range(4).join(rows, "inner", 2, on=("id",)).take_all()),
    "zip": _of_rows(lambda rows, nap: data.range(4).zip(rows).take_all()),
    "union": _of_rows(lambda rows, nap: data.range(4).union(rows).materialize()),
    "write_parquet": _of_rows(lambda rows, nap: rows.write_parquet(nap.folder / "out")),
    "read_datasource": _of_rows(lambda rows, nap: data.read_datasource(Naps(nap)).materialize()),
    "pool of actors": _of_rows(lambda rows, nap: _pooled(nap).materialize()),
    "split": _of_rows(lambda rows, nap: rows.split(2)),
    "streaming_split": _of_rows(lambda rows, nap: next(iter(rows.streaming_split(1)[0].iter_batches(batch_size=4)))),
    "scaler": _of_rows(lambda rows, nap: data.preprocessors.StandardScaler(columns=["id"]).fit(rows)),
    "in C": _of_rows(lambda rows, nap: rows.materialize(), "C"),
    "stubborn": _of_rows(lambda rows, nap: rows.materialize(), "stubborn"),
}

LOOPS |= {
    "iter_batches": _of_rows(lambda rows, nap: rows.iter_batches(batch_size=1)),
    "iter_batches of mixed rows": _of_rows(
        lambda rows, nap: rows.iter_batches(batch_size=1, local_shuffle_buffer_size=1)
    ),
    "iter_batches without a thread": _of_rows(lambda rows, nap: rows.iter_batches(batch_size=1, prefetch_batches=0)),
    "iter_batches far ahead": _of_rows(lambda rows, nap: rows.iter_batches(batch_size=1, prefetch_batches=8)),
    "iter_rows": _of_rows(lambda rows, nap: rows.iter_rows()),
    "iter_torch_batches": _of_rows(lambda rows, nap: rows.iter_torch_batches(batch_size=1)),
    "iter_batches of a pool": _of_rows(lambda rows, nap: _pooled(nap).iter_batches(batch_size=1)),
    "iter_rows of a union": _of_rows(lambda rows, nap: rows.union(rows).iter_rows()),
    "iter_batches that reads": _of_rows(lambda rows, nap: data.read_datasource(Naps(nap)).iter_batches(batch_size=1)),
    "iter_batches in C": _of_rows(lambda rows, nap: rows.iter_batches(batch_size=1), "C"),
}


def _loop(place: Callable[[Nap], Iterator[Begin]]) -> None:
    LOOPS[place.__name__.replace("_", " ")] = contextlib.contextmanager(place)


def _call(place: Callable[[Nap], Iterator[Begin]]) -> None:
    CALLS[place.__name__.replace("_", " ")] = contextlib.contextmanager(place)


# --- core and util ----------------------------------------------------------------------------------------------------


def _generate(nap: Nap) -> Iterator[Begin]:
    @hocket.remote
    def make() -> Iterator[int]:
        for number in range(4):
            yield nap(number)

    yield lambda: map(hocket.get, make.remote())


@_loop
def remote_generator(nap: Nap) -> Iterator[Begin]:
    yield from _generate(nap)


@_loop
def remote_generator_in_C(nap: Nap) -> Iterator[Begin]:  # noqa: N802 (the language's name)
    yield from _generate(Nap(nap.folder, "C"))


@_loop
def map_unordered_of_tasks(nap: Nap) -> Iterator[Begin]:
    yield lambda: map_unordered(hocket.remote(nap.__call__), range(4), backpressure_size=3)


@_loop
def actor_pool(nap: Nap) -> Iterator[Begin]:
    pool = ActorPool([hocket.remote(num_cpus=0)(Dozer).remote() for _ in range(2)])
    yield lambda: pool.map(lambda dozer, number: dozer.doze.remote(nap, number), range(4))
    assert not pool.has_next()
    assert list(pool.map_unordered(lambda dozer, number: dozer.doze.remote(nap, number), [0, 0])) == [0, 0]


def _map_in_pool(nap: Nap, begin: Callable[[Pool], Any]) -> Iterator[Begin]:
    pool = Pool(2)
    try:
        yield lambda: begin(pool)
        assert pool.map(abs, [-1, 2]) == [1, 2]
    finally:
        pool.terminate()
        pool.join()


@_loop
def pool_imap(nap: Nap) -> Iterator[Begin]:
    yield from _map_in_pool(nap, lambda pool: pool.imap(nap, range(8)))


@_loop
def pool_imap_unordered(nap: Nap) -> Iterator[Begin]:
    yield from _map_in_pool(nap, lambda pool: pool.imap_unordered(nap, range(8)))


@_call
def pool_map(nap: Nap) -> Iterator[Begin]:
    yield from _map_in_pool(nap, lambda pool: pool.map(nap, range(8)))


@_call
def pool_starmap(nap: Nap) -> Iterator[Begin]:
    yield from _map_in_pool(nap, lambda pool: pool.starmap(nap, [(number,) for number in range(8)]))


@_call
def pool_apply(nap: Nap) -> Iterator[Begin]:
    yield from _map_in_pool(nap, lambda pool: pool.apply(nap, (1,)))


@_call
def joblib_parallel(nap: Nap) -> Iterator[Begin]:
    import joblib

    from hocket.util.joblib import register_hocket

    register_hocket()

    def run() -> None:
        with joblib.parallel_backend("hocket", n_jobs=2):
            joblib.Parallel()(joblib.delayed(nap)(number) for number in range(8))

    yield run


@_call
def get(nap: Nap) -> Iterator[Begin]:
    refs: list[Any] = []

    def run() -> None:
        refs.extend(hocket.remote(nap.__call__).remote(1) for _ in range(2))
        hocket.get(refs)

    yield run
    for ref in refs:  # they are the program's own, which may want them still
        hocket.cancel(ref)


@_call
def queue_get(nap: Nap) -> Iterator[Begin]:
    queue = Queue()

    def wait() -> object:
        name = nap.folder / f"{os.getpid()}-0"
        name.with_suffix(".begun").touch()
        name.with_suffix(".left").touch()
        return queue.get()

    yield wait
    queue.put("for the next")
    assert queue.get(timeout=30) == "for the next"
    queue.shutdown()


# --- libraries --------------------------------------------------------------------------------------------------------


@_call
def trainer_fit(nap: Nap) -> Iterator[Begin]:
    def rank() -> None:
        nap(1)

    trainer = train.DataParallelTrainer(
        rank,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=str(nap.folder / "runs")),
    )
    yield trainer.fit


@_call
def tuner_fit(nap: Nap) -> Iterator[Begin]:
    tuner = tune.Tuner(
        lambda config: nap(config["x"]),
        param_space={"x": tune.grid_search([1, 2, 3])},
        run_config=tune.RunConfig(storage_path=str(nap.folder / "runs")),
    )
    yield tuner.fit


def _coordinate(nap: Nap, begin: Callable[[ps.Coordinator, list[Any]], Any]) -> Iterator[Begin]:
    strategy = ps.ParameterServerStrategy(ps.Cluster(workers=2, servers=1))
    try:
        coordinator = ps.Coordinator(strategy)
        yield lambda: begin(coordinator, [coordinator.schedule(nap, args=(1,)) for _ in range(4)])
        coordinator.close()  # closures are the program's own until then
    finally:
        strategy.close()


@_call
def coordinator_join(nap: Nap) -> Iterator[Begin]:
    yield from _coordinate(nap, lambda coordinator, results: coordinator.join())


@_call
def coordinator_fetch(nap: Nap) -> Iterator[Begin]:
    yield from _coordinate(nap, lambda coordinator, results: coordinator.fetch(results))
