"""What ranks report reaches the result, the callbacks and the checkpoints."""

from __future__ import annotations

import os
import select
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import train
from hocket.train.checkpoints import storage
from hocket.train.frameworks import report_callback
from hocket.train.rank import questions, rank_info, worker_session
from tests.conftest import wait_until_cpus_are_free


def fit(function: Any, path: Path, num_workers: int = 2, config: Any = None, **run: Any) -> train.Result:
    return train.DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(storage_path=path, **run),
    ).fit()


def report_thrice(config: dict[str, Any]) -> str:
    context = train.get_context()
    for step in range(3):
        train.report({"step": step, "rank": context.get_world_rank(), "size": context.get_world_size()})
    return f"returned by {context.get_world_rank()}"


class Recorder(train.UserCallback):
    def __init__(self) -> None:
        self.seen: list[tuple[str, list[Any], bool]] = []

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        self.seen.append((run_context.experiment_name, [one["rank"] for one in metrics], checkpoint is not None))


@pytest.mark.slow
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_every_report_reaches_the_result(tmp_path: Path, num_workers: int) -> None:
    recorder = Recorder()
    result = fit(report_thrice, tmp_path, num_workers, name="run", callbacks=[recorder])
    size = max(1, num_workers)
    assert result.metrics_history == [{"step": step, "rank": 0, "size": size} for step in range(3)]
    assert result.metrics == result.metrics_history[-1]
    assert result.checkpoint is None
    assert result.path == str(tmp_path / "run")
    assert result.return_value == "returned by 0"
    assert recorder.seen == [("run", list(range(size)), False)] * 3
    wait_until_cpus_are_free()


def save_and_look(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    assert train.get_checkpoint() is None
    for step in range(2):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, f"rank-{rank}").write_text(str(step))
            train.report({"step": step, "rank": rank}, train.Checkpoint.from_directory(folder))
        committed = train.get_checkpoint()
        assert committed is not None
        assert Path(committed.path, "rank-0").read_text() == str(step)
        assert Path(committed.path, "rank-1").read_text() == str(step)
    train.report({"step": 2, "rank": rank})


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_a_checkpoint_is_committed_when_report_returns(tmp_path: Path) -> None:
    recorder = Recorder()
    result = fit(save_and_look, tmp_path, config={}, callbacks=[recorder])
    assert result.checkpoint is not None
    assert Path(result.checkpoint.path).name == "checkpoint_000001"
    assert [had for _, _, had in recorder.seen] == [True, True, False]
    assert result.get_best_checkpoint("step", "min") == result.best_checkpoints[0][0]
    assert not Path(result.path, ".staging").exists()
    with pytest.raises(
        ValueError,
        match=r"No checkpoint was reported with the metric 'los'\. Name one of the last checkpoint's metrics",
    ):
        result.get_best_checkpoint("los", "min")


def save_in_rank_0(config: dict[str, Any]) -> None:
    start = train.get_checkpoint()
    step = int(Path(start.path, "step").read_text()) + 1 if start else 0
    if train.get_context().get_world_rank() > 0:
        train.report({"step": step})
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "step").write_text(str(step))
        train.report({"step": step}, train.Checkpoint(folder), checkpoint_dir_name=f"after-{step}")


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_a_run_of_the_same_name_continues(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        result = fit(save_in_rank_0, tmp_path, name="again", config={})
        assert result.checkpoint is not None
        names.append(Path(result.checkpoint.path).name)
    assert names == ["after-0", "after-1", "after-2"]


def report_twice_in_rank_0() -> None:
    if train.get_context().get_world_rank() == 0:
        train.report({"step": 0})
        train.report({"step": 1}, train.Checkpoint(tempfile.gettempdir() + "/nothing-here-to-copy"))


def report_unevenly() -> None:
    for _ in range(3 if train.get_context().get_world_rank() == 0 else 1):
        train.report({})


def save_unevenly() -> None:
    if train.get_context().get_world_rank() == 0:
        with tempfile.TemporaryDirectory() as folder:
            train.report({}, train.Checkpoint(folder))


@pytest.mark.slow
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(
    ("function", "match"),
    [
        (report_unevenly, "rank 1 ended after 1 reports and rank 0 made 3. Call report"),
        (save_unevenly, "rank 1 ended after 0 reports and rank 0 made 1. Call report"),
        (report_twice_in_rank_0, "(rank 1 ended after 0 reports|nothing-here-to-copy' does not exist)"),
    ],
)
def test_uneven_reports_are_an_error_and_not_a_hang(tmp_path: Path, function: Any, match: str) -> None:
    with pytest.raises(train.TrainingFailedError, match=match):
        fit(function, tmp_path)


def report_without_end(config: dict[str, Any]) -> None:
    for step in range(config["count"]):
        train.report({"step": step})


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_many_reports_are_all_there(tmp_path: Path) -> None:
    result = fit(report_without_end, tmp_path, config={"count": 5000})
    assert [metrics["step"] for metrics in result.metrics_history] == list(range(5000))


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((3,), TypeError, r"report\(\) takes a dict of metrics, but received int: 3\. Write report"),
        (({"f": lambda: 0},), TypeError, r"metrics\['f'\] is <function .* but metrics take numbers, strings"),
        (({}, "path"), TypeError, "report.. takes a Checkpoint, but received 'path'. Write Checkpoint.from_directory"),
        (({}, None, "a/b"), ValueError, "checkpoint_dir_name must be the name of one folder .* received 'a/b'"),
        (({}, None, "a.damaged"), ValueError, r"start with '\.' or end with '\.damaged', but received 'a\.damaged'"),
    ],
)
def test_what_report_refuses(tmp_path: Path, arguments: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        fit(lambda: train.report(*arguments), tmp_path, num_workers=0)


def test_metrics_are_taken_as_they_are_now(tmp_path: Path) -> None:
    def reuse() -> None:
        metrics = {"step": 0}
        for step in range(2):
            metrics["step"] = step
            train.report(metrics)

    assert fit(reuse, tmp_path, num_workers=0).metrics_history == [{"step": 0}, {"step": 1}]


def test_a_missing_pandas_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    result = fit(lambda: None, tmp_path, num_workers=0)
    assert result.metrics is None
    with pytest.raises(ImportError, match=r"needs pandas.* pip install pandas"):
        _ = result.metrics_dataframe


def test_inprocess_engine(tmp_path: Path) -> None:
    with hocket.init(num_cpus=2, engine="inprocess"):
        result = fit(report_thrice, tmp_path, num_workers=1)
        assert len(result.metrics_history) == 3
        assert len(fit(report_thrice, tmp_path / "more", num_workers=2).metrics_history) == 3


@pytest.mark.usefixtures("session")
def test_more_workers_than_cpus(tmp_path: Path) -> None:
    with pytest.raises(
        hocket.exceptions.InfeasibleResourcesError, match=r"num_workers=8 with .*CPU: 8.* has .*CPU: 2\b"
    ):
        fit(report_thrice, tmp_path, num_workers=8)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("session")
def test_a_lock_cannot_travel(tmp_path: Path) -> None:
    lock = threading.Lock()

    def loop() -> None:
        lock.acquire()

    with pytest.raises(hocket.exceptions.SerializationError, match="lock"):
        fit(loop, tmp_path)


@pytest.mark.usefixtures("session")
def test_a_lock_cannot_be_returned(tmp_path: Path) -> None:
    def make_lock() -> threading.Lock:
        return threading.Lock()

    with pytest.raises(hocket.exceptions.HocketError, match=r"make_lock.*lock"):
        fit(make_lock, tmp_path)


def test_acknowledgements_may_overtake_each_other(tmp_path: Path) -> None:
    info = rank_info.RankInfo(
        rank=0,
        world_size=1,
        attempt=0,
        run_storage=storage.Storage(str(tmp_path), "run"),
        use_gpu=False,
        start_checkpoint=None,
    )
    delivered: list[Any] = []
    session = worker_session.WorkerSession(
        info, delivered.append, questions.Inquiry(delivered.append), delivered.append
    )
    older, newer = train.Checkpoint(tmp_path), train.Checkpoint(tmp_path)
    session.acknowledge(2, newer)
    session.acknowledge(1, older)
    assert session.checkpoint is newer
    session._wait_acknowledged(2)


def call_in_forks(config: dict[str, Any]) -> list[str]:
    """Return what a fork of rank 0 hears of each call that goes to the driver."""
    from hocket.train import collective

    def report_files() -> None:
        with tempfile.TemporaryDirectory() as folder:
            train.report({}, train.Checkpoint(folder))

    heard = []
    calls = (
        lambda: train.report({}),
        report_files,
        collective.barrier,
        train.get_all_reported_checkpoints,
        train.get_preemption_info,
    )
    for call in calls if train.get_context().get_world_rank() == 0 else ():
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            try:
                call()
                text = "returned"
            except BaseException as error:  # noqa: BLE001 (a child must not go on)
                text = f"{type(error).__name__}: {error}"
            os.write(writer, text.encode())
            os._exit(train.get_context().get_world_rank())  # who it is, it knows
        os.close(writer)
        heard.append(os.read(reader, 10_000).decode() if select.select([reader], [], [], 20)[0] else "hangs")
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    train.report({"step": 0})
    return heard


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_a_fork_of_a_rank_is_refused_and_does_not_wait_for_ever(tmp_path: Path) -> None:
    result = fit(call_in_forks, tmp_path, config={})
    assert result.metrics_history == [{"step": 0}]
    assert result.return_value is not None
    assert len(result.return_value) == 5
    for text in result.return_value:
        assert text.startswith("SessionClosedError: hocket.train.")
        assert "in a fork of rank 0" in text


def return_from_a_fork(config: dict[str, Any]) -> int:
    """The child returns, too, while the rank's files are still on their way."""
    folder = Path(config["folder"], f"of rank {train.get_context().get_world_rank()}")
    folder.mkdir()
    if train.get_context().get_world_rank() == 0:
        Path(folder, "large").write_bytes(bytes(50_000_000))
    train.report(
        {},
        train.Checkpoint(folder),
        checkpoint_upload_mode=train.CheckpointUploadMode.ASYNC,
        delete_local_checkpoint_after_upload=False,
    )
    if (child := os.fork()) == 0:
        return 0
    for _ in range(2000):
        if os.waitpid(child, os.WNOHANG)[0]:
            train.get_all_reported_checkpoints()
            return 1
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    return 2


@pytest.mark.slow
@pytest.mark.needs("forks")
@pytest.mark.usefixtures("session")
def test_a_fork_that_returns_does_not_wait_for_what_the_rank_reported(tmp_path: Path) -> None:
    assert fit(return_from_a_fork, tmp_path, config={"folder": str(tmp_path)}).return_value == 1


class Saver(report_callback.ReportMixin):
    """A callback of ours."""

    def __init__(self, ends: str) -> None:
        super().__init__()
        self.ends = ends

    def write_checkpoint(self, folder: str) -> bool:
        Path(folder, "weights").write_text("some")
        if self.ends == "killed" and train.get_context().get_world_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return True


def save_by_callback(config: dict[str, Any]) -> None:
    tempfile.tempdir = config["temporary"]
    told = Path(config["told"])
    ends = config["ends"] if train.get_context().get_world_rank() == 1 and not told.exists() else ""
    if ends:
        told.touch()
    if ends == "ended by SIGTERM":  # the group starts again after the next commit, while the ranks are in report()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)
    callback: Any = Saver(ends)
    callback.on_epoch_end(0, {"loss": 0.5})


@pytest.mark.slow
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("ends", ["killed", "ended by SIGTERM"])
def test_callbacks_of_ranks_that_are_ended_leave_no_folder(ends: str, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    result = fit(
        save_by_callback,
        tmp_path,
        config={"temporary": str(temporary), "told": str(tmp_path / "told"), "ends": ends},
        name="run",
        failure_config=train.FailureConfig(max_failures=1),
    )
    assert result.metrics == {"loss": 0.5}
    assert (tmp_path / "told").exists()
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "run" / ".staging").exists()


def save_then_fail_elsewhere(config: dict[str, Any]) -> int:
    """As many programs for Ray, where all ranks wait for each other in `report`: rank 0 saves, rank 1 fails behind."""
    saved = train.get_checkpoint()
    begin = 0 if saved is None else int(Path(saved.path, "step").read_text()) + 1
    for step in range(begin, 3):
        if train.get_context().get_world_rank() == 0:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "large").write_bytes(bytes(20_000_000))
                Path(folder, "step").write_text(str(step))
                train.report({"step": step}, train.Checkpoint(folder))
        else:
            train.report({"step": step})
            if step == 1:
                raise ValueError("once")
    return begin


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_a_rank_may_fail_right_after_a_report_with_which_another_saves(tmp_path: Path) -> None:
    again = train.FailureConfig(max_failures=1)
    assert fit(save_then_fail_elsewhere, tmp_path, failure_config=again).return_value == 2
