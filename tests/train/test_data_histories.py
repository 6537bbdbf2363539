"""Runs on pipelines drawn at random, which are killed, resized and resumed at random: each row comes once an epoch.

`HOCKET_TEST_DATA_HISTORIES` says how many; 50 before a release. This file imports no framework, because each rank
imports it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import data, train

HISTORIES = int(os.environ.get("HOCKET_TEST_DATA_HISTORIES", "4"))
EPOCHS = 2

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def spread(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "y": (batch["id"] * 7919) % 101}


class Add:
    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "y": batch["y"] + self.amount}


def build_steps(draw: random.Random, names: data.Dataset) -> list[Callable[[data.Dataset], data.Dataset]]:
    """The transformations that keep ``id`` and ``y``."""
    seed = draw.randrange(1000)
    return [
        lambda rows: rows.map_batches(Add, fn_constructor_args=[3], concurrency=1),
        lambda rows: rows.map(lambda row: {**row, "y": row["y"] + 1}),
        lambda rows: rows.filter(expr="y > 10"),
        lambda rows: rows.filter(lambda row: row["id"] % 5 != 2),
        lambda rows: rows.flat_map(lambda row: [row, {**row, "id": row["id"] + 10_000}]),
        lambda rows: rows.sort(["y", "id"], [True, False]),
        lambda rows: rows.random_shuffle(seed=seed),
        lambda rows: rows.repartition(1 + seed % 7),
        lambda rows: rows.randomize_block_order(seed=seed),
        lambda rows: rows.random_sample(0.8, seed=seed),
        lambda rows: rows.limit(40 + seed % 50),
        lambda rows: rows.union(rows.limit(7)),
        lambda rows: rows.join(names, "left_outer", on="y").select_columns(["id", "y"]),
        lambda rows: rows.groupby("y").map_groups(lambda group: {**group, "id": group["id"][::-1]}),
    ]


def read_rows(config: dict[str, Any]) -> None:
    """Write down the rows of each step, and commit some; the last rank dies where it is told to."""
    context = train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    shard = train.get_dataset_shard("train")
    start = train.get_checkpoint()
    step = 0
    if start is not None:
        with start.as_directory() as folder:
            step = json.loads(Path(folder, "step").read_text())
    log = Path(config["log"])
    if rank == size - 1:  # the other may not have come so far when this one dies
        (log / f"{config['part']}-start").write_text(str(step))
    with (log / f"{config['part']}-{rank}").open("w") as file:
        for _ in range(shard.epoch, EPOCHS):
            for batch in shard.iter_batches(batch_size=config["batch_size"]):
                step += 1
                real = shard.weights == 1
                rows = list(zip(batch["id"][real].tolist(), batch["y"][real].tolist(), strict=True))
                print(json.dumps([step, rows]), file=file, flush=True)
                if step % config["every"] == 0:
                    with tempfile.TemporaryDirectory() as folder:
                        Path(folder, "step").write_text(json.dumps(step))
                        train.report({"step": step}, train.Checkpoint(folder))
                if step == config["die_at"] and rank == size - 1:
                    (log / f"{config['part']}-died").touch()
                    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("number", range(HISTORIES))
def test_each_row_comes_once_an_epoch(number: int, session: hocket.SessionContext, tmp_path: Path) -> None:
    draw = random.Random(number)
    count = draw.randint(60, 150)
    data.range(count, override_num_blocks=draw.randint(1, 5)).map_batches(spread).write_parquet(tmp_path / "rows")
    names = data.from_items([{"y": at, "name": f"n{at}"} for at in range(0, 101, 3)])
    rows = data.read_parquet(tmp_path / "rows").sort("id")  # files have names by chance
    chosen = [draw.choice(build_steps(draw, names)) for _ in range(draw.randint(2, 5))]
    for step in chosen:
        rows = step(rows)
    check_history(draw, rows, {"storage_path": tmp_path}, tmp_path)


def test_each_row_comes_once_an_epoch_from_a_store(s3_store: tuple[Any, str], tmp_path: Path) -> None:
    """The files are in S3, and so is the run with its checkpoints."""
    store, bucket = s3_store
    with hocket.init(num_cpus=2):
        check_history(random.Random(7), *build_stored(store, bucket), tmp_path)


def build_stored(store: Any, bucket: str) -> tuple[data.Dataset, dict[str, Any]]:
    data.range(120, override_num_blocks=4).map_batches(spread).write_parquet(f"{bucket}/rows", filesystem=store)
    rows = data.read_parquet(f"{bucket}/rows", filesystem=store).sort("id").random_shuffle(seed=5)
    rows = rows.filter(expr="y > 10").map(lambda row: {**row, "y": row["y"] + 1}).random_shuffle(seed=6)
    return rows, {"storage_path": f"{bucket}/runs", "storage_filesystem": store}


def check_history(draw: random.Random, rows: data.Dataset, kept: dict[str, Any], tmp_path: Path) -> None:
    wanted = [(row["id"], row["y"]) for row in rows.take_all()]
    log = tmp_path / "log"
    log.mkdir()

    sizes = [draw.randint(1, 2) for _ in range(3)]
    batch_sizes = [draw.randint(1, 6) for _ in range(3)]
    steps = EPOCHS * -(-len(wanted) // (batch_sizes[0] * sizes[0]))
    kills = [draw.randint(1, max(1, steps)), draw.randint(1, max(1, steps)), None]
    for part, (size, die_at) in enumerate(zip(sizes, kills, strict=True)):
        config = {
            "log": str(log),
            "part": part,
            "batch_size": batch_sizes[part],
            "every": draw.randint(2, 4),
            "die_at": die_at,
        }
        trainer = train.DataParallelTrainer(
            read_rows,
            train_loop_config=config,
            datasets={"train": rows},
            scaling_config=train.ScalingConfig(num_workers=size),
            run_config=train.RunConfig(name="run", **kept),
        )
        try:
            trainer.fit()
        except train.WorkerGroupError:
            assert (log / f"{part}-died").exists()
    assert (log / "0-died").exists() or not wanted, "the fault fired"

    starts = [int((log / f"{part}-start").read_text()) for part in range(3)]
    found: list[tuple[int, ...]] = []
    for part, size in enumerate(sizes):
        last = starts[part + 1] if part < 2 else None
        for rank in range(size):
            written = log / f"{part}-{rank}"
            for line in written.read_text().splitlines() if written.exists() else []:
                step, read = json.loads(line)
                if last is None or step <= last:
                    found += map(tuple, read)
    assert Counter(found) == Counter(wanted * EPOCHS)
