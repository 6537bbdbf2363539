"""What a run leaves, and what ranks learn of it while it runs: results read again, lists of checkpoints, refusals."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from hocket import train
from hocket.train import CheckpointConsistencyMode, ReportedCheckpointStatus

anything: Any = train  # what the type checker refuses is given on purpose


def fit(function: Any, path: Path, num_workers: int = 2, config: Any = None, **run: Any) -> train.Result:
    return train.DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(name="run", storage_path=path, **run),
    ).fit()


def save(metrics: dict[str, Any], **options: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"rank-{train.get_context().get_world_rank()}").write_text(str(metrics))
        train.report(metrics, train.Checkpoint(folder), **options)


def save_losses(config: dict[str, Any]) -> str:
    for loss in config["losses"]:
        save({"loss": loss})
    train.report({"loss": None, "done": True})
    return "returned"


def test_a_result_is_read_again(tmp_path: Path) -> None:
    first = fit(save_losses, tmp_path, 0, {"losses": [3.0, 1.0, 2.0]})
    again = train.Result.from_path(first.path)
    assert again.path == first.path
    assert again.checkpoint == first.checkpoint
    assert again.metrics == {"loss": 2.0}, "what was reported without a checkpoint is not kept"
    assert first.metrics == {"loss": None, "done": True}
    assert again.metrics_history == [{"loss": 3.0}, {"loss": 1.0}, {"loss": 2.0}]
    assert again.get_best_checkpoint("loss", "min") == first.get_best_checkpoint("loss", "min")
    assert [metrics for _, metrics in again.best_checkpoints] == [{"loss": 3.0}, {"loss": 1.0}, {"loss": 2.0}]
    assert again.return_value is None
    assert train.Result.from_path(first.path + "/").path == first.path


def test_a_result_as_a_data_frame(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = fit(save_losses, tmp_path, 0, {"losses": [3.0, 1.0]}).metrics_dataframe
    assert list(frame.columns) == ["loss", "done"]
    assert frame["loss"].tolist()[:2] == [3.0, 1.0]
    assert len(frame) == 3
    assert pd.isna(frame["loss"][2])


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"gone' does not exist\. Pass the path of a run, Result\.path"):
        train.Result.from_path(tmp_path / "gone")
    with pytest.raises(RuntimeError, match=r"holds no complete checkpoint, .* Pass the path of a run"):
        train.Result.from_path(tmp_path)
    with pytest.raises(TypeError, match="filesystem must be one of pyarrow's or fsspec's, but received 's3'"):
        anything.Result.from_path(tmp_path, storage_filesystem="s3")


def test_a_damaged_checkpoint_of_a_result_is_told_and_left_out(tmp_path: Path) -> None:
    result = fit(save_losses, tmp_path, 0, {"losses": [3.0, 1.0]})
    assert result.checkpoint is not None
    Path(result.checkpoint.path, "rank-0").write_text("x")
    with pytest.warns(UserWarning, match="checkpoint_000001' is damaged and not used"):
        assert train.Result.from_path(result.path).metrics == {"loss": 3.0}


def test_what_a_result_does_not_have(tmp_path: Path) -> None:
    result = fit(lambda: None, tmp_path, 0)
    with pytest.raises(DeprecationWarning, match=r"Result\.config does not exist .* train_loop_config"):
        _ = result.config


def save_and_list(config: dict[str, Any]) -> list[Any]:
    assert train.get_all_reported_checkpoints(timeout_s=0) is not None
    for step in range(3):
        save({"step": step, "rank": train.get_context().get_world_rank()})
    found = train.get_all_reported_checkpoints(CheckpointConsistencyMode.COMMITTED)
    for one in found:
        with one.checkpoint.as_directory() as folder:
            assert Path(folder, "rank-0").is_file()
    return [(one.metrics, one.status, Path(one.checkpoint.origin).name) for one in found]


@pytest.mark.slow
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_ranks_list_what_is_kept(tmp_path: Path, num_workers: int) -> None:
    keep = train.CheckpointConfig(num_to_keep=2)
    for first in (0, 3):  # those of an earlier run of the name are there too, and are removed as the others
        result = fit(save_and_list, tmp_path, num_workers, {}, checkpoint_config=keep)
        assert result.return_value == [
            ({"step": step, "rank": 0}, ReportedCheckpointStatus.COMMITTED, f"checkpoint_{first + step:06d}")
            for step in (1, 2)
        ]


def list_before_the_other_has_saved(config: dict[str, Any]) -> list[int]:
    """Rank 0 asks with a time-out while its report is not complete; then rank 1 reports."""
    rank = train.get_context().get_world_rank()
    counts = []
    if rank == 0:
        train.report({})
        counts.append(len(train.get_all_reported_checkpoints(timeout_s=0.01)))
        Path(config["flag"]).touch()
    else:
        while not Path(config["flag"]).exists():
            train.get_all_reported_checkpoints()  # goes to the driver and back
        save({})
    counts.append(len(train.get_all_reported_checkpoints()))
    return counts


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_a_list_waits_for_what_this_rank_has_reported(tmp_path: Path) -> None:
    result = fit(list_before_the_other_has_saved, tmp_path, config={"flag": str(tmp_path / "flag")})
    assert result.return_value == [0, 1]


def test_what_the_list_refuses(tmp_path: Path) -> None:
    with pytest.raises(
        TypeError, match="consistency_mode must be a CheckpointConsistencyMode, but received 'COMMITTED'"
    ):
        fit(lambda: anything.get_all_reported_checkpoints("COMMITTED"), tmp_path, 0)
    with pytest.raises(ValueError, match="timeout_s must be 0 or more seconds, or None, but received -1"):
        fit(lambda: train.get_all_reported_checkpoints(timeout_s=-1), tmp_path, 0)
    with pytest.raises(RuntimeError, match=r"get_all_reported_checkpoints\(\) was called outside a training function"):
        train.get_all_reported_checkpoints()


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"datasets": {"train": []}}, TypeError, r"datasets\['train'\] must be a hocket.data.Dataset"),
        ({"dataset_config": 1}, TypeError, "dataset_config must be a DataConfig, but received 1"),
        ({"metadata": {}}, DeprecationWarning, r"metadata is not supported, as in Ray Train.*set_metadata"),
        (
            {"resume_from_checkpoint": 1},
            DeprecationWarning,
            r"resume_from_checkpoint is not supported.* RunConfig\(name",
        ),
        ({"validation_config": 1}, TypeError, "validation_config must be a ValidationConfig, but received 1"),
    ],
)
def test_what_trainers_refuse(given: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        train.DataParallelTrainer(lambda: None, **given)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda: anything.DataParallelTrainer.restore("run"),
            r"DataParallelTrainer\.restore\(\) is .*, and call fit\(\)",
        ),
        (lambda: anything.DataParallelTrainer.can_restore("run"), r"can_restore\(\) is not .* Leave it out: fit\(\)"),
        (lambda: anything.get_context().get_metadata(), r"get_metadata\(\) is not supported.* into train_loop_config"),
        (lambda: anything.get_context().get_trial_name(), r"get_trial_name\(\) is .* Use get_experiment_name"),
        (lambda: anything.get_context().get_trial_id(), r"get_trial_id\(\) is .* Use get_experiment_name"),
        (lambda: anything.get_context().get_trial_resources(), r"get_trial_resources\(\) is .*resources_per_worker"),
        (lambda: anything.get_context().get_trial_dir(), r"get_trial_dir\(\) is .* Use get_storage\(\)\.path"),
    ],
)
def test_what_ray_has_given_up_says_what_to_do(tmp_path: Path, call: Any, match: str) -> None:
    with pytest.raises(DeprecationWarning, match=match):
        fit(call, tmp_path, 0)
