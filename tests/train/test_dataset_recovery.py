"""A run on a data set that is killed in the middle of an epoch goes on with the rows that are left.

This file imports no framework, because each rank imports it.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket import data, train
from hocket.data import Ledger

ROWS, EPOCHS, SEED = 43, 3, 5


def fit(
    function: Any, path: Path, num_workers: int = 0, config: Any = None, run: Any = None, **given: Any
) -> train.Result:
    return train.DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=num_workers),  # two hold all CPUs of the session
        run_config=train.RunConfig(storage_path=path, **(run or {})),
        **given,
    ).fit()


def read_rows(config: dict[str, Any]) -> list[int]:
    """Write down the rows of each step, and commit some; the last rank dies, if it is told to."""
    context = train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    shard, whole = train.get_dataset_shard("train"), train.get_dataset_shard("whole")
    assert train.get_dataset_shard("train") is shard
    start = train.get_checkpoint()
    step = json.loads(Path(start.path, "step").read_text()) if start else 0
    loop = shard.iter_batches(batch_size=2)
    assert data.range(10).map_batches(lambda batch: batch).count() == 10  # though the ranks hold all CPUs
    with Path(config["log"], f"{size}-{step}-{rank}").open("w") as log:
        for _ in range(shard.epoch, EPOCHS):
            for batch in loop:
                step += 1
                assert batch["text"].tolist() == [f"row {row}" for row in batch["row"]]
                print(json.dumps([step, batch["row"][shard.weights == 1].tolist()]), file=log, flush=True)
                if step % config["every"] == 0:
                    with tempfile.TemporaryDirectory() as folder:
                        Path(folder, "step").write_text(json.dumps(step))
                        train.report({"step": step}, train.Checkpoint(folder))
                if (
                    step == config["die_at"].get(size)
                    and rank == size - 1
                    and not Path(config["log"], f"died-{size}").exists()
                ):
                    Path(config["log"], f"died-{size}").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
    return [row for batch in whole.iter_batches(batch_size=3) for row in batch["whole"].tolist()]


def collect(log: Path, size: int, first: int, last: int | None) -> list[int]:
    """Return the rows of the steps after `first`, in the order of steps and ranks, that ranks of a group have
    written which began there."""
    written = [
        [json.loads(line) for line in (log / f"{size}-{first}-{rank}").read_text().splitlines()] for rank in range(size)
    ]
    steps = zip(*written, strict=False)  # who was killed wrote less
    return [row for parts in steps for step, rows in parts if last is None or step <= last for row in rows]


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_a_run_that_is_killed_goes_on_with_the_rows_that_are_left(tmp_path: Path) -> None:
    """Twice: with as many ranks, started again by the trainer, and with another number, by another trainer."""
    rows = data.range(ROWS, override_num_blocks=5).map_batches(
        lambda batch: {"row": batch["id"], "text": [f"row {number}" for number in batch["id"]]}
    )
    config = {"log": str(tmp_path), "every": 5, "die_at": {2: 12}}
    datasets = {"train": rows.random_shuffle(seed=SEED), "whole": data.from_numpy({"whole": np.arange(7)})}
    given: dict[str, Any] = {"datasets": datasets, "dataset_config": train.DataConfig(datasets_to_split=["train"])}
    run = {"name": "run"}
    with pytest.raises(train.WorkerGroupError, match=r"SIGKILL|Ray reports"):
        fit(read_rows, tmp_path, 2, config, run, **given)
    again = {**run, "failure_config": train.FailureConfig(max_failures=1)}
    result = fit(read_rows, tmp_path, 1, {**config, "die_at": {1: 18}}, again, **given)
    assert result.return_value == list(range(7))  # each rank has all rows of what is not split

    found = collect(tmp_path, 2, 0, 10) + collect(tmp_path, 1, 10, 15) + collect(tmp_path, 1, 15, None)
    ledger = Ledger(ROWS, 1, seed=SEED)
    assert found == [row for _ in range(EPOCHS) for row in read_epoch(ledger)]


def read_epoch(ledger: Ledger) -> list[int]:
    rows = [row for part in ledger.slices(0, 1) for row in part.indices.tolist()]
    ledger.advance(len(rows))
    return rows
