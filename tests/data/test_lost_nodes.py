"""What a pipeline does when a node is lost under it: it ends, with the right rows or with an error that names what is
lost."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import hocket
from hocket import data

cluster: Any = pytest.importorskip("hocket.testing.cluster", reason="needs Ray: pip install 'hocket[ray]'")

conftest: Any = pytest.importorskip("tests.engine.ray.conftest")

pytestmark = [pytest.mark.long, pytest.mark.timeout(420), conftest.UNTIDY]

COUNT: Final = 400
NUM_BLOCKS: Final = 20
WIDTH: Final = 20_000
"""Numbers in a row: its blocks are then too large for Ray's messages, lie in the nodes' stores, and are lost with
them."""

MOMENT: Final = "a block is made"
"""Where the node loses its power."""


FIRST: Final = 2 * COUNT // NUM_BLOCKS
"""Rows of the two blocks from which a pipeline learns how large blocks are. It starts no others before, so they cannot
wait for a node that joins meanwhile."""


def make_a_block(batch: dict[str, Any]) -> None:
    cluster.reach(MOMENT, wait_seconds=60 if min(batch["id"]) >= FIRST else 0)


def widen(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Make a block large, and say so."""
    make_a_block(batch)
    return {"id": batch["id"], "wide": np.zeros((len(batch["id"]), WIDTH), np.uint8)}


def narrow(batch: dict[str, Any]) -> dict[str, Any]:
    make_a_block(batch)
    return {"id": batch["id"]}


class Widen:
    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return widen(batch)


class Narrow:
    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return narrow(batch)


def open_rows() -> data.Dataset:
    return data.range(COUNT, override_num_blocks=NUM_BLOCKS)


def take_ids(rows: data.Dataset) -> list[int]:
    return sorted(int(row["id"]) for row in rows.iter_rows())


def split(rows: data.Dataset) -> list[int]:
    """Read a data set in two tasks, as ranks do."""

    @hocket.remote(num_cpus=0)
    def read(part: Any) -> list[int]:
        return [int(number) for batch in part.iter_batches(batch_size=None) for number in batch["id"]]

    return sorted(itertools.chain(*hocket.get([read.remote(part) for part in rows.streaming_split(2)])))


def write_and_read(folder: Path) -> list[int]:
    open_rows().map_batches(widen).write_parquet(folder)
    return take_ids(data.read_parquet(folder))


def read_written(folder: Path) -> list[int]:
    data.range(COUNT).repartition(NUM_BLOCKS).write_parquet(folder)
    return take_ids(data.read_parquet(folder).map_batches(widen).map_batches(narrow))


PIPELINES: Final[dict[str, Callable[[Path], list[int]]]] = {
    "tasks": lambda _: take_ids(open_rows().map_batches(widen)),
    "a pool that holds CPUs": lambda _: take_ids(open_rows().map_batches(Narrow, concurrency=3, num_cpus=1)),
    "a pool of large blocks": lambda _: take_ids(open_rows().map_batches(Widen, concurrency=3, num_cpus=1)),
    "pools that hold nothing": lambda _: take_ids(open_rows().map_batches(Widen).map_batches(Narrow, concurrency=2)),
    "a pool between tasks": lambda _: take_ids(
        open_rows().map_batches(widen).map_batches(Narrow, concurrency=(1, 3), num_cpus=1).map_batches(narrow)
    ),
    "materialize": lambda _: take_ids(open_rows().map_batches(widen).materialize().map_batches(narrow)),
    "shuffle": lambda _: take_ids(open_rows().map_batches(widen).random_shuffle(seed=1).map_batches(narrow)),
    "repartition": lambda _: take_ids(open_rows().map_batches(widen).repartition(7).map_batches(narrow)),
    "sort": lambda _: take_ids(open_rows().map_batches(narrow).sort("id", descending=True).map_batches(narrow)),
    "groupby": lambda _: take_ids(open_rows().map_batches(narrow).groupby("id").count()),
    "join": lambda _: take_ids(
        open_rows().map_batches(narrow).join(open_rows(), join_type="inner", num_partitions=4, on=("id",))
    ),
    "map_groups": lambda _: take_ids(open_rows().map_batches(narrow).groupby("id").map_groups(narrow)),
    "zip": lambda _: take_ids(open_rows().map_batches(widen).zip(data.range(COUNT).map(lambda row: {"b": row["id"]}))),
    "write": write_and_read,
    "read": read_written,
    "streaming_split": lambda _: split(open_rows().map_batches(widen)),
}


@pytest.fixture(scope="module")
def opened() -> Iterator[Any]:
    """A cluster whose head has two CPUs; each test adds a node, and loses it."""
    with (
        conftest.sent_by_value(__name__),
        cluster.Cluster(nodes=[{"num_cpus": 2}]) as found,
        hocket.init(address=found.address),
    ):
        yield found


MAY_FAIL: Final = ("a pool of large blocks", "pools that hold nothing")
"""Where blocks that a pool has made may lie on the node: nobody makes them again."""

NAMED: Final = (
    hocket.exceptions.ObjectLostError,
    hocket.exceptions.NodeDiedError,
    hocket.exceptions.WorkerCrashedError,
    hocket.exceptions.ActorDiedError,
    hocket.exceptions.InfeasibleResourcesError,
)


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_ends_though_a_node_is_lost(opened: Any, tmp_path: Path, name: str) -> None:
    node = opened.add_node(num_cpus=2)
    try:
        with opened.fail_at(MOMENT, node=node, hit=2) as fault:
            ending = contextlib.suppress(*(NAMED if name in MAY_FAIL else ()))
            with ending:
                assert PIPELINES[name](tmp_path / "rows") == list(range(COUNT))
            assert fault.fired == 1, "the node was lost"
    finally:
        opened.remove_node(node)
        opened.wait_for_nodes(1)
