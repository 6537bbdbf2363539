"""Datasets on Ray: the plan runs in its tasks, the blocks lie in its store, and ranks read their parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import data, train
from hocket.data.order import Order
from tests.conftest import SharedRay
from tests.engine.ray.conftest import UNTIDY

pytestmark = [pytest.mark.timeout(120), UNTIDY]


def test_datasets_run_and_train_on_ray(shared_ray: SharedRay, tmp_path: Path) -> None:
    def add_text(batch: Any) -> Any:
        return {**batch, "text": [f"row {number}" for number in batch["id"]]}

    def read_rows() -> Any:
        shard = train.get_dataset_shard("train")
        rows = [row for batch in shard.iter_batches(batch_size=7) for row in batch["id"][shard.weights == 1].tolist()]
        with (tmp_path / f"rank-{train.get_context().get_world_rank()}").open("w") as file:
            file.write(" ".join(map(str, rows)))
        return next(iter(shard.iter_batches()))["text"][0]

    with shared_ray.lend(), hocket.init(num_cpus=2, engine="ray"):
        rows = data.range(100, override_num_blocks=3).filter(lambda row: row["id"] % 2 == 0).map_batches(add_text)
        assert rows.take(2) == [{"id": 0, "text": "row 0"}, {"id": 2, "text": "row 2"}]
        assert sorted(row["id"] for row in rows.random_shuffle(seed=1).take_all()) == list(range(0, 100, 2))
        context = data.DataContext.get_current()
        before, context.execution_options = context.execution_options, data.ExecutionOptions(max_bytes_in_flight=100)
        two_passes = [row["id"] for row in data.range(100, override_num_blocks=10).random_shuffle(seed=1).iter_rows()]
        context.execution_options = before
        assert two_passes == Order(100, seed=1, epoch=0).rows(np.arange(100)).tolist()
        with pytest.raises(ZeroDivisionError):
            rows.map(lambda row: row["id"] / 0).take()
        trainer = train.DataParallelTrainer(
            read_rows,
            datasets={"train": rows.repartition(4)},
            scaling_config=train.ScalingConfig(num_workers=2),
            run_config=train.RunConfig(storage_path=tmp_path / "runs"),
        )
        assert trainer.fit().return_value == "row 0"
    found = [[int(row) for row in (tmp_path / f"rank-{rank}").read_text().split()] for rank in range(2)]
    assert [len(part) for part in found] == [25, 25]
    assert sorted(found[0] + found[1]) == list(range(0, 100, 2))
