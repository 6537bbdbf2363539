"""Checkpoints are validated beside the training, one after the other."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import train
from hocket.train import (
    CheckpointConsistencyMode,
    CheckpointUploadMode,
    ReportedCheckpointStatus,
    ValidationConfig,
    ValidationTaskConfig,
)
from hocket.train.checkpoints import storage
from tests.conftest import wait_until_cpus_are_free

anything: Any = train  # what the type checker refuses is given on purpose


def fit(
    function: Any, path: Path, validation: ValidationConfig | None, num_workers: int = 2, config: Any = None, **run: Any
) -> train.Result:
    return train.DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(name="run", storage_path=path, **run),
        validation_config=validation,
    ).fit()


def save(step: int, validation: Any = True, mode: CheckpointUploadMode = CheckpointUploadMode.SYNC) -> None:
    folder = tempfile.mkdtemp(dir=train.get_context().get_storage().storage_path)
    Path(folder, "step").write_text(str(step))
    train.report(
        {"step": step},
        train.Checkpoint(folder),
        checkpoint_upload_mode=mode,
        delete_local_checkpoint_after_upload=True,
        validation=validation,
    )


def square(checkpoint: train.Checkpoint, plus: int = 0) -> dict[str, Any]:
    return {"square": int(Path(checkpoint.path, "step").read_text()) ** 2 + plus}


def save_in_rank_0(config: dict[str, Any]) -> list[Any]:
    """Three checkpoints: one as the trainer says, one in its own way, one not validated."""
    asked = [True, ValidationTaskConfig({"plus": 5}), False]
    for step, how in enumerate(asked, start=1):
        if train.get_context().get_world_rank() == 0:
            save(step, how, config["mode"])
        else:
            train.report({"step": step})
    return [(one.metrics, one.status.value) for one in train.get_all_reported_checkpoints()]


@pytest.mark.slow
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(
    ("num_workers", "mode"),
    [(0, CheckpointUploadMode.SYNC), (2, CheckpointUploadMode.SYNC), (2, CheckpointUploadMode.ASYNC)],
)
def test_metrics_of_validations_join_those_of_the_report(
    tmp_path: Path, num_workers: int, mode: CheckpointUploadMode
) -> None:
    config = ValidationConfig(square, ValidationTaskConfig({"plus": 1}))
    result = fit(save_in_rank_0, tmp_path, config, num_workers, {"mode": mode})
    expected = [{"step": 1, "square": 2}, {"step": 2, "square": 9}, {"step": 3}]
    assert result.return_value == list(zip(expected, ["VALIDATED", "VALIDATED", "COMMITTED"], strict=True))
    assert result.metrics_history == expected
    assert result.get_best_checkpoint("square", "max") == result.best_checkpoints[1][0]
    assert train.Result.from_path(result.path).metrics_history == expected
    wait_until_cpus_are_free()


def test_inprocess_engine(tmp_path: Path) -> None:
    with hocket.init(num_cpus=1, engine="inprocess"):
        result = fit(save_in_rank_0, tmp_path, ValidationConfig(square), 1, {"mode": CheckpointUploadMode.SYNC})
    assert result.metrics_history[1] == {"step": 2, "square": 9}


def save_steps(config: dict[str, Any]) -> None:
    for step in range(config["steps"]):
        save(step)


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_a_validation_that_needs_what_the_ranks_hold_runs_after_them(tmp_path: Path) -> None:
    config = ValidationConfig(square, ray_remote_kwargs={"num_cpus": 2})
    result = fit(save_steps, tmp_path, config, 2, {"steps": 2})
    assert [metrics["square"] for metrics in result.metrics_history] == [0, 1]


@pytest.mark.slow
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_run_that_a_callback_ends_is_validated(tmp_path: Path, num_workers: int) -> None:
    enough = [train.EarlyStopping("step", mode="max", threshold=3)]
    result = fit(save_steps, tmp_path, ValidationConfig(square), num_workers, {"steps": 9}, callbacks=enough)
    assert [metrics["square"] for _, metrics in result.best_checkpoints] == [0, 1, 4, 9]


def list_validated(config: dict[str, Any]) -> None:
    save(1)
    assert len(train.get_all_reported_checkpoints(CheckpointConsistencyMode.COMMITTED)) == 1
    train.get_all_reported_checkpoints()


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_who_waits_for_it_meanwhile_is_told_that_it_cannot_come(tmp_path: Path) -> None:
    config = ValidationConfig(square, ray_remote_kwargs={"num_cpus": 2})
    with pytest.raises(train.TrainingFailedError, match=r"needs {'CPU': 2\.0}.*\.COMMITTED"):
        fit(list_validated, tmp_path, config, 2, {})


def raise_at_1(checkpoint: train.Checkpoint) -> dict[str, Any]:
    found = square(checkpoint)
    if found["square"] == 1:
        raise LookupError("no such table")
    return found


def return_a_number(checkpoint: train.Checkpoint) -> Any:
    return 3


def list_statuses(config: dict[str, Any]) -> list[ReportedCheckpointStatus]:
    save_steps(config)
    return [one.status for one in train.get_all_reported_checkpoints()]


@pytest.mark.slow
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_validation_that_fails_is_told_and_training_goes_on(tmp_path: Path, num_workers: int) -> None:
    with pytest.warns(UserWarning, match=r"(?s)validation of Checkpoint\(.*checkpoint_000001'\) failed.*no such table"):
        result = fit(list_statuses, tmp_path, ValidationConfig(raise_at_1), num_workers, {"steps": 3})
    assert [status.value for status in result.return_value] == ["VALIDATED", "VALIDATION_FAILED", "VALIDATED"]
    assert result.metrics_history == [{"step": 0, "square": 0}, {"step": 1}, {"step": 2, "square": 4}]


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_a_validation_must_return_a_dict(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"must return a dict of metrics, but `return_a_number` returned 3"):
        fit(save_steps, tmp_path, ValidationConfig(return_a_number), 1, {"steps": 1})


def stay(checkpoint: train.Checkpoint) -> dict[str, Any]:
    if square(checkpoint)["square"] == 0:
        threading.Event().wait(600)  # longer than the test may take
    return {"stayed": False}


def list_statuses_with_a_limit(config: dict[str, Any]) -> list[ReportedCheckpointStatus]:
    save(0, ValidationTaskConfig(timeout_s=0.5))
    save(1)
    return [one.status for one in train.get_all_reported_checkpoints()]


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_a_validation_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    config = ValidationConfig(stay)
    with pytest.warns(UserWarning, match=r"checkpoint_000000'\) took longer than timeout_s=0\.5"):
        result = fit(list_statuses_with_a_limit, tmp_path, config, 1, {})
    assert [status.value for status in result.return_value] == ["VALIDATION_TIMEOUT", "VALIDATED"]


def report_for_ever(config: dict[str, Any]) -> None:
    save(1)
    while True:
        train.report({"step": 2})


class UntilSettled(train.UserCallback):
    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        manifest = storage.get_optional_manifest(run_context.path / "checkpoint_000000")
        if manifest is not None and manifest["validation"]["status"] != "PENDING_VALIDATION":
            raise StopIteration(manifest["validation"]["status"])


@pytest.mark.slow
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("is_quick", [True, False])
@pytest.mark.filterwarnings("ignore:The validation of")
def test_reports_keep_no_validation_from_its_end(tmp_path: Path, is_quick: bool) -> None:
    task = ValidationTaskConfig(timeout_s=None if is_quick else 0.2)
    config = ValidationConfig(square if is_quick else stay, task)
    result = fit(report_for_ever, tmp_path, config, 1, {}, callbacks=[UntilSettled()])
    assert result.checkpoint is not None


def save_and_fail(config: dict[str, Any]) -> None:
    if train.get_checkpoint() is None or not config["recovers"]:
        save(7)
        raise KeyError("after the commit")


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_a_validation_outlives_the_attempt(tmp_path: Path) -> None:
    result = fit(
        save_and_fail,
        tmp_path,
        ValidationConfig(square, ray_remote_kwargs={"num_cpus": 2}),
        1,
        {"recovers": True},
        failure_config=train.FailureConfig(max_failures=1),
    )
    assert result.best_checkpoints[-1][1] == {"step": 7, "square": 49}


def list_found(config: dict[str, Any]) -> list[ReportedCheckpointStatus]:
    return [one.status for one in train.get_all_reported_checkpoints()]


@pytest.mark.slow
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_next_run_does_what_an_earlier_one_could_not(tmp_path: Path, num_workers: int) -> None:
    config = ValidationConfig(square, ValidationTaskConfig({"plus": 3}), {"num_cpus": 2})
    with pytest.raises(train.WorkerGroupError, match="after the commit"):
        fit(save_and_fail, tmp_path, config, 1, {"recovers": False})
    manifest = storage.get_optional_manifest(tmp_path / "run" / "checkpoint_000000")
    assert manifest is not None
    assert manifest["validation"]["status"] == "PENDING_VALIDATION"
    found = fit(list_found, tmp_path, None, num_workers)  # a run that does not validate waits for no validation
    assert found.return_value == [ReportedCheckpointStatus.PENDING_VALIDATION]
    result = fit(save_and_fail, tmp_path, config, num_workers, {"recovers": True})
    assert result.best_checkpoints[-1][1] == {"step": 7, "square": 52}


def save_twice(config: dict[str, Any]) -> None:
    save(1, validation=False)
    save(2, validation=False)


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_a_run_that_does_not_validate_keeps_nothing_for_it(tmp_path: Path) -> None:
    config = ValidationConfig(square, ray_remote_kwargs={"num_cpus": 2})
    with pytest.raises(train.WorkerGroupError, match="after the commit"):
        fit(save_and_fail, tmp_path, config, 1, {"recovers": False})
    result = fit(save_twice, tmp_path, None, 0, {}, checkpoint_config=train.CheckpointConfig(num_to_keep=1))
    assert [metrics for _, metrics in result.best_checkpoints] == [{"step": 2}]


def find_score(checkpoint: train.Checkpoint) -> dict[str, Any]:
    return {"score": -square(checkpoint)["square"]}


@pytest.mark.slow
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_score_may_come_from_the_validation(tmp_path: Path, num_workers: int) -> None:
    keep = train.CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="score")
    result = fit(save_steps, tmp_path, ValidationConfig(find_score), num_workers, {"steps": 3}, checkpoint_config=keep)
    names = sorted(Path(checkpoint.path).name for checkpoint, _ in result.best_checkpoints)
    assert names == ["checkpoint_000000", "checkpoint_000002"], "the best and the latest"
    assert sorted(path.name for path in Path(result.path).glob("checkpoint_*")) == names


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda: train.report({}, validation=True),
            ValueError,
            "validation=... without a checkpoint. Pass a checkpoint",
        ),
        (lambda: save(0), ValueError, r"the trainer has no validation function\. Pass validation_config"),
        (lambda: save(0, validation="yes"), TypeError, "must be True, False or a ValidationTaskConfig, .* 'yes'"),
    ],
)
def test_what_report_refuses(tmp_path: Path, call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        fit(call, tmp_path, None, 0)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: anything.ValidationConfig("f"), TypeError, "fn must be a function that takes a checkpoint, .* 'f'"),
        (lambda: anything.ValidationConfig(square, {}), TypeError, "task_config must be a ValidationTaskConfig"),
        (lambda: ValidationConfig(square, ray_remote_kwargs={"cpus": 1}), ValueError, "cpus"),
        (lambda: anything.ValidationTaskConfig([1]), TypeError, r"fn_kwargs must be a dict from names .* \[1\]"),
        (lambda: ValidationTaskConfig({"lock": os}), TypeError, "fn_kwargs must hold values that JSON can represent"),
        (lambda: ValidationTaskConfig(timeout_s=0), ValueError, "timeout_s must be more than 0 seconds.* received 0"),
    ],
)
def test_what_breaks_a_rule_is_refused(make: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()


def test_none_stands_for_the_default() -> None:
    config = anything.ValidationConfig(square, task_config=None, ray_remote_kwargs=None)
    assert config == ValidationConfig(square)
    assert anything.ValidationTaskConfig(fn_kwargs=None).fn_kwargs == {}
