"""Datasets in training: what the trainer takes, and what the training function gets."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import data, train
from hocket.train import torch as hocket_torch
from hocket.train.world import WorldConfig, get_world
from tests.train import ranks


def fit(
    function: Any, path: Path, num_workers: int = 0, config: Any = None, run: Any = None, **given: Any
) -> train.Result:
    return train.DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=num_workers, resources_per_worker={"CPU": 0.4}),
        run_config=train.RunConfig(storage_path=path, **(run or {})),
        **given,
    ).fit()


def test_the_only_rank_needs_no_session(tmp_path: Path) -> None:
    def loop() -> None:
        shard = train.get_dataset_shard()
        tensors = [batch["x"].tolist() for batch in shard.iter_torch_batches(batch_size=2)]
        train.report({"x": tensors, "rows": list(shard.iter_rows())})

    rows = data.from_items([{"x": number} for number in range(3)])
    result = hocket_torch.TorchTrainer(
        loop,
        datasets={"train": rows},
        scaling_config=train.ScalingConfig(num_workers=0),
        run_config=train.RunConfig(storage_path=tmp_path),
    ).fit()
    assert result.metrics == {"x": [[0, 1], [2]], "rows": [{"x": 0}, {"x": 1}, {"x": 2}]}
    assert not hocket.is_initialized()


def test_positions_of_datasets_and_of_loaders_do_not_meet(tmp_path: Path) -> None:
    def loop() -> None:
        loader = hocket_torch.prepare_data_loader(hocket_torch_loader(), name="train")
        shard = train.get_dataset_shard("train")
        for _, batch in zip(loader, shard.iter_batches(batch_size=2), strict=False):
            assert len(batch["id"]) == 2
            with tempfile.TemporaryDirectory() as folder:
                train.report({}, train.Checkpoint(folder))
            break

    result = fit(loop, tmp_path, datasets={"train": data.range(6)})
    assert result.checkpoint is not None
    (manifest,) = Path(result.checkpoint.path).parent.rglob("*manifest*")
    positions = json.loads(manifest.read_text())["positions"]
    assert {name: state["position"] for name, state in positions.items()} == {"train": 2, "dataset train": 2}


def hocket_torch_loader() -> Any:
    from torch.utils import data as torch_data

    return torch_data.DataLoader(range(6), batch_size=2)  # type: ignore[arg-type]  # any sequence will do


def test_a_shard_that_nobody_reads_has_no_position(tmp_path: Path) -> None:
    """So that rank 0 may evaluate alone, and no other rank is said to be elsewhere."""

    def loop() -> None:
        assert train.get_dataset_shard("train").epoch == 0
        with tempfile.TemporaryDirectory() as folder:
            train.report({}, train.Checkpoint(folder))

    result = fit(loop, tmp_path, datasets={"train": data.range(6)})
    assert result.checkpoint is not None
    (manifest,) = Path(result.checkpoint.path).parent.rglob("*manifest*")
    assert json.loads(manifest.read_text())["positions"] == {}


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            {"datasets": data.range(3)},
            TypeError,
            r"datasets must be a dict of datasets by name, but received Dataset\(1 blocks, 3 rows\)",
        ),
        (
            {"datasets": {"train": [1, 2]}},
            TypeError,
            r"datasets\['train'\] must be a hocket.data.Dataset, but is a list: \[1, 2\]",
        ),
        ({"datasets": {1: data.range(3)}}, TypeError, "but one has the name 1"),
        ({"dataset_config": {"train": 1}}, TypeError, "dataset_config must be a DataConfig, but received {'train': 1}"),
        (
            {"datasets": {"train": data.range(3)}, "dataset_config": train.DataConfig(datasets_to_split=["val"])},
            ValueError,
            "datasets_to_split names 'val', but the datasets are 'train'",
        ),
    ],
)
def test_what_is_no_dataset_is_refused(given: dict[str, Any], error: type[Exception], message: str) -> None:
    for trainer in (train.DataParallelTrainer, hocket_torch.TorchTrainer):
        with pytest.raises(error, match=message):
            trainer(lambda: None, **given)


def ask_without_a_name() -> None:
    train.get_dataset_shard()


def test_settings_of_datasets_are_checked() -> None:
    with pytest.raises(TypeError, match="datasets_to_split must be 'all' or a list of names, but received 'train'"):
        train.DataConfig(datasets_to_split="train")
    with pytest.raises(TypeError, match="execution_options must be an ExecutionOptions, but received 3"):
        train.DataConfig(execution_options=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ask", "datasets", "error", "message"),
    [
        (
            lambda: train.get_dataset_shard("val"),
            {"train": data.range(3)},
            KeyError,
            "There is no data set 'val': the trainer was given 'train'",
        ),
        (
            ask_without_a_name,
            {"a": data.range(3), "b": data.range(3)},
            ValueError,
            "without a name, but there are the datasets 'a', 'b'",
        ),
        (ask_without_a_name, None, RuntimeError, "the trainer was given no datasets. Pass datasets="),
        (
            lambda: None,
            {"train": data.from_items([])},
            ValueError,
            "The data set 'train' has no rows, so there is nothing to train on",
        ),
    ],
)
def test_a_dataset_that_is_not_there_is_told(
    tmp_path: Path, ask: Any, datasets: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        fit(ask, tmp_path, datasets=datasets)


def test_a_shard_belongs_to_a_training_function() -> None:
    with pytest.raises(
        RuntimeError, match=r"hocket.train.get_dataset_shard\(\) was called outside a training function"
    ):
        train.get_dataset_shard("train")
    with ranks.be_rank(), pytest.raises(RuntimeError, match="the trainer was given no datasets"):
        train.get_dataset_shard("train")


def test_a_step_that_fails_fails_the_fit(tmp_path: Path) -> None:
    def break_down(batch: Any) -> Any:
        raise ArithmeticError("no such number")

    with hocket.init(num_cpus=1, engine="inprocess"), pytest.raises(ArithmeticError, match="no such number"):
        fit(lambda: None, tmp_path, datasets={"train": data.range(3).map_batches(break_down)})
    assert list(tmp_path.iterdir()) == []  # nothing is kept of a run that has not begun


def test_ranks_in_one_process_read_their_parts(tmp_path: Path) -> None:
    def loop() -> list[Any]:
        shard = train.get_dataset_shard("train")
        batches = shard.iter_batches(batch_size=2, local_shuffle_buffer_size=4)
        mine = [batch["id"][shard.weights == 1].tolist() for _ in range(2) for batch in batches]
        return get_world("a test").all_gather_object(mine)

    with hocket.init(num_cpus=2, engine="inprocess"):
        rows = data.range(7).filter(lambda row: row["id"] != 3)
        first, second = fit(loop, tmp_path, 2, datasets={"train": rows}, backend_config=WorldConfig()).return_value
    assert [len(rows) for rows in first] == [len(rows) for rows in second] == [2, 1, 2, 1]
    for epoch in (slice(0, 2), slice(2, 4)):
        assert sorted(row for rows in first[epoch] + second[epoch] for row in rows) == [0, 1, 2, 4, 5, 6]
