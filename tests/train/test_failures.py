"""A rank that fails fails `fit` at once, by name; the policy starts the group again."""

from __future__ import annotations

import itertools
import json
import math
import os
import pickle
import signal
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import train
from hocket.train import data_parallel_trainer
from hocket.train.run import failures, worker_group
from tests.conftest import wait_until_cpus_are_free

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("session")]

FAR_SECONDS = 600
"""What a rank waits for that nobody waits for: a test that does end it runs into its time-out."""


def fit(function: Any, path: Path, config: Any = None, **run: Any) -> train.Result:
    return train.DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=path, **run),
    ).fit()


def raise_in_rank_1(config: dict[str, Any]) -> None:
    if train.get_context().get_world_rank() == 1:
        raise KeyError("the answer is missing")
    threading.Event().wait(FAR_SECONDS)


def test_an_exception_names_its_rank(tmp_path: Path) -> None:
    with pytest.raises(
        train.WorkerGroupError, match=r"^Rank 1 of 2 raised KeyError: 'the answer is missing'"
    ) as caught:
        fit(raise_in_rank_1, tmp_path)
    assert list(caught.value.worker_failures) == [1]
    assert isinstance(caught.value.worker_failures[1], KeyError)
    assert "in raise_in_rank_1" in str(caught.value)
    wait_until_cpus_are_free()


class MissingPartError(Exception):
    """Makes its text of its argument, and so another one when it is unpickled."""

    def __init__(self, part: str) -> None:
        super().__init__(f"there is no {part}")


def miss_a_part(config: dict[str, Any]) -> None:
    raise MissingPartError("wheel")


def test_the_text_of_an_exception_is_the_ranks(tmp_path: Path) -> None:
    with pytest.raises(train.WorkerGroupError, match=r"^Rank \d of 2 raised MissingPartError: there is no wheel\n"):
        fit(miss_a_part, tmp_path)


def raise_in_rank_1_and_report_in_rank_0(config: dict[str, Any]) -> None:
    if train.get_context().get_world_rank() == 1:
        raise KeyError("the answer is missing")
    train.report({"step": 0})


def test_an_exception_goes_before_the_reports_that_are_missing_because_of_it(tmp_path: Path) -> None:
    for _ in range(15):  # which of the two is seen first is a race
        with pytest.raises(train.WorkerGroupError, match=r"^Rank 1 of 2 raised KeyError"):
            fit(raise_in_rank_1_and_report_in_rank_0, tmp_path)


def kill_rank_1(config: dict[str, Any]) -> None:
    if train.get_context().get_world_rank() == 1:
        os.kill(os.getpid(), config["signal"])
    threading.Event().wait(FAR_SECONDS)


@pytest.mark.needs("death_evidence")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_death_names_rank_and_signal(tmp_path: Path, number: signal.Signals) -> None:
    match = rf"^Rank 1 of 2 died: its process \(pid \d+\) was killed by signal {number.value} \({number.name}\)"
    with pytest.raises(train.WorkerGroupError, match=match) as caught:
        fit(kill_rank_1, tmp_path, {"signal": number})
    assert isinstance(caught.value.worker_failures[1], hocket.exceptions.ActorDiedError)


def exit_in_rank_0(config: dict[str, Any]) -> None:
    if train.get_context().get_world_rank() == 0:
        os._exit(3)
    threading.Event().wait(FAR_SECONDS)


@pytest.mark.needs("death_evidence")
def test_an_exit_names_rank_and_code(tmp_path: Path) -> None:
    with pytest.raises(train.WorkerGroupError, match=r"^Rank 0 of 2 died: .* exited with code 3"):
        fit(exit_in_rank_0, tmp_path)


def step_and_fail(config: dict[str, Any]) -> list[int]:
    """Save each step; rank 1 dies at the faults' steps, each of which fires once and leaves a file that says so."""
    rank = train.get_context().get_world_rank()
    start = train.get_checkpoint()
    first = int(Path(start.path, "step").read_text()) + 1 if start else 0
    for step in range(first, 6):
        fired = Path(config["faults"], f"fired-at-{step}")
        if rank == 1 and step in config["fail_at"] and not fired.exists():
            fired.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        checkpoint = None
        with tempfile.TemporaryDirectory() as folder:
            if step % 2 == 0:  # in both ranks, so that neither goes on before the commit
                Path(folder, "step").write_text(str(step))
                checkpoint = train.Checkpoint(folder)
            train.report({"step": step, "first": first}, checkpoint)
    return [first]


class CountExceptions(train.UserCallback):
    def __init__(self) -> None:
        self.ranks: list[list[int]] = []

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        self.ranks.append(list(worker_exceptions))


def test_the_group_restarts_from_the_last_commit(tmp_path: Path) -> None:
    counter = CountExceptions()
    result = fit(
        step_and_fail,
        tmp_path,
        {"faults": str(tmp_path), "fail_at": [3]},
        name="run",
        failure_config=train.FailureConfig(max_failures=1),
        callbacks=[counter],
    )
    assert [path.name for path in tmp_path.glob("fired-*")] == ["fired-at-3"]
    assert counter.ranks == [[1]]
    assert [metrics["step"] for metrics in result.metrics_history] == list(range(6))
    assert [metrics["first"] for metrics in result.metrics_history] == [0, 0, 0, 3, 3, 3]
    assert result.return_value == [3]


def test_failures_are_counted(tmp_path: Path) -> None:
    with pytest.raises(train.WorkerGroupError, match=r"Rank 1 of 2 died: its process"):
        fit(
            step_and_fail,
            tmp_path,
            {"faults": str(tmp_path), "fail_at": [1, 3, 5]},
            name="run",
            failure_config=train.FailureConfig(max_failures=1),
        )
    assert sorted(path.name for path in tmp_path.glob("fired-*")) == ["fired-at-1", "fired-at-3"]


def save_and_raise(config: dict[str, Any]) -> None:
    if train.get_context().get_world_rank() == 0 and config["saves"]:
        train.report({"step": 0}, train.Checkpoint(tempfile.mkdtemp()))
    elif config["saves"]:
        train.report({"step": 0})
    raise ValueError("no more")


def test_what_fails_says_where_it_is_and_how_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(train.WorkerGroupError, match="no more") as caught:
        fit(save_and_raise, tmp_path, {"saves": False})
    assert not getattr(caught.value, "__notes__", [])
    assert Path(caught.value.path).parent == tmp_path
    with pytest.raises(train.WorkerGroupError, match="no more") as caught:
        fit(save_and_raise, tmp_path, {"saves": True})
    (folder,) = tmp_path.iterdir()
    assert caught.value.path == str(folder)
    note = f"The run is in {folder}; fit() with name={folder.name!r} goes on from checkpoint_000000."
    assert caught.value.__notes__ == [note]
    assert traceback.format_exception(caught.value)[-1].count(note) == 1
    assert pickle.loads(pickle.dumps(caught.value)).path == str(folder)
    with pytest.raises(train.WorkerGroupError, match="no more") as caught:
        fit(save_and_raise, tmp_path, {"saves": True}, name=folder.name)
    assert caught.value.__notes__ == [note.replace("000000", "000001")]


class Refuse(train.UserCallback):
    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        raise LookupError("enough")


def report_and_stay() -> None:
    train.report({})
    threading.Event().wait(FAR_SECONDS)


def test_a_callback_that_raises_ends_the_training(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="enough"):
        fit(report_and_stay, tmp_path, callbacks=[Refuse()])
    wait_until_cpus_are_free()


class Interrupt(train.UserCallback):
    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()


def save_and_stay() -> None:
    checkpoint = train.Checkpoint(tempfile.mkdtemp()) if train.get_context().get_world_rank() == 0 else None
    train.report({}, checkpoint)
    threading.Event().wait(FAR_SECONDS)


def test_ctrl_c_ends_the_training(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt) as caught:
        fit(save_and_stay, tmp_path, name="run", callbacks=[Interrupt()])
    assert caught.value.__notes__ == [
        f"The run is in {tmp_path}/run; fit() with name='run' goes on from checkpoint_000000."
    ]
    assert time.monotonic() - started < 30  # far from FAR_SECONDS
    wait_until_cpus_are_free()


def learn(config: dict[str, Any]) -> None:
    """Ten steps towards a target, each saved, that depend on all before. Who is in `kills` dies at that step, once."""
    rank = train.get_context().get_world_rank()
    start = train.get_checkpoint()
    first, weight = json.loads(Path(start.path, "state").read_text()) if start else (0, 0.0)
    for step in range(first, 10):
        flag = Path(config["flags"], f"{step}")
        if config["kills"].get(step) == rank and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        weight += 0.3 * (math.pi - weight)
        checkpoint = None
        with tempfile.TemporaryDirectory() as folder:
            if rank == 0 and step % 2:
                Path(folder, "state").write_text(json.dumps((step + 1, weight)))
                checkpoint = train.Checkpoint(folder)
            train.report({"step": step, "weight": weight}, checkpoint)


def test_three_kills_change_nothing(tmp_path: Path) -> None:
    def train_with(name: str, kills: dict[int, int], **failure: Any) -> train.Result:
        (tmp_path / name).mkdir()
        config = {"flags": str(tmp_path / name), "kills": kills}
        return fit(learn, tmp_path, config, name=f"run-{name}", failure_config=train.FailureConfig(**failure))

    undisturbed = train_with("undisturbed", {})
    killed = train_with("killed", {2: 1, 5: 0, 9: 1}, max_failures=3)
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == ["2", "5", "9"]
    assert killed.metrics == undisturbed.metrics
    assert killed.metrics_history == undisturbed.metrics_history
    assert len(killed.metrics_history) == 10


class DamageLatest(train.UserCallback):
    """Cuts the newest checkpoint when a rank has failed."""

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        newest = max(run_context.path.glob("checkpoint_*"))
        (newest / "step").write_text("")


def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"checkpoint_000001' is damaged .*'step' has changed .* The one before it is"):
        result = fit(
            step_and_fail,
            tmp_path,
            {"faults": str(tmp_path), "fail_at": [3]},
            name="run",
            failure_config=train.FailureConfig(max_failures=1),
            callbacks=[DamageLatest()],
        )
    assert [metrics["step"] for metrics in result.metrics_history] == list(range(6))
    assert [metrics["first"] for metrics in result.metrics_history] == [0] + [1] * 5


def test_what_cannot_be_started_is_tried_again_as_often_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_group, "START_SECONDS", 0.05)
    reservation = hocket.util.placement_group([{"CPU": 1}])
    with pytest.raises(train.TrainingFailedError, match="but that was not free for") as at_once:
        fit(report_and_stay, tmp_path)
    assert not isinstance(at_once.value, train.ControllerError), "it was not tried again"
    limit = train.FailureConfig(controller_failure_limit=2)
    with pytest.raises(
        train.ControllerError, match=r"could not be started, even after another try: .* was not free for"
    ) as caught:
        fit(report_and_stay, tmp_path, failure_config=limit)
    assert isinstance(caught.value.controller_failure, train.TrainingFailedError)
    told = [record.getMessage() for record in caplog.records if record.name == "hocket.train"]
    assert [line.count("of 2, which controller_failure_limit allows") for line in told] == [1, 1]
    quiet = train.LoggingConfig(log_level="error")
    with pytest.raises(train.ControllerError):
        fit(report_and_stay, tmp_path, failure_config=limit, logging_config=quiet)
    assert len([record for record in caplog.records if record.name == "hocket.train"]) == 2, "no line more"
    hocket.util.remove_placement_group(reservation)


def test_what_cannot_be_pickled_is_named(tmp_path: Path) -> None:
    config = {"lr": 0.1, "data": {"lock": threading.Lock()}}
    with pytest.raises(
        hocket.exceptions.SerializationError, match=r"train_loop_config\['data'\]\['lock'\] is a _thread.lock"
    ):
        fit(learn, tmp_path, config)


class UndescribedError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class UnreachableError(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


def raise_strangely_in_rank_1(config: dict[str, Any]) -> None:
    if train.get_context().get_world_rank() == 1:
        raise config["kind"]
    threading.Event().wait(FAR_SECONDS)


@pytest.mark.parametrize("kind", [UndescribedError, UnreachableError])
def test_an_exception_that_cannot_be_described_names_its_rank_too(tmp_path: Path, kind: type[Exception]) -> None:
    with pytest.raises(train.WorkerGroupError, match=rf"^Rank 1 of 2 raised .*{kind.__name__}") as caught:
        fit(raise_strangely_in_rank_1, tmp_path, {"kind": kind})
    assert "in raise_strangely_in_rank_1" in str(caught.value)
    wait_until_cpus_are_free()


class Mortal:
    def get(self) -> int:
        return 1


def call_a_dead_actor(config: dict[str, Any]) -> None:
    if train.get_context().get_world_rank() == 1:
        mortal = hocket.remote(num_cpus=0)(Mortal).remote()
        hocket.get(mortal.get.remote())
        hocket.kill(mortal)
        hocket.get(mortal.get.remote())
    threading.Event().wait(FAR_SECONDS)


def test_a_rank_that_calls_a_dead_actor_has_raised_and_is_not_dead(tmp_path: Path) -> None:
    with pytest.raises(
        train.WorkerGroupError, match=r"^Rank 1 of 2 raised ActorDiedError: Actor `Mortal` is dead"
    ) as caught:
        fit(call_a_dead_actor, tmp_path)
    assert "in call_a_dead_actor" in str(caught.value)
    assert isinstance(caught.value.worker_failures[1], hocket.exceptions.ActorDiedError)


class Enough(train.UserCallback):
    """Has seen enough after some reports."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.errors: list[BaseException | None] = []

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        self.left -= 1
        if not self.left:
            raise StopIteration

    def after_run(self, run_context: Any, error: BaseException | None) -> None:
        self.errors.append(error)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_callback_ends_a_run_in_good_order(tmp_path: Path, num_workers: int) -> None:
    def report_for_ever() -> None:
        for step in itertools.count():
            folder = tempfile.mkdtemp(dir=tmp_path)
            train.report({"step": step}, checkpoint=train.Checkpoint(folder))

    callback = Enough(3)
    result = data_parallel_trainer.DataParallelTrainer(
        report_for_ever,
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(storage_path=str(tmp_path), callbacks=[callback]),
    ).fit()
    assert [metrics["step"] for metrics in result.metrics_history][:3] == [0, 1, 2]
    assert result.checkpoint is not None
    assert result.return_value is None
    assert callback.errors == [None]


def kill_guardian(config: dict[str, Any]) -> None:
    if train.get_context().get_world_rank() == 1:
        os.kill(os.getppid(), signal.SIGKILL)
    threading.Event().wait(FAR_SECONDS)


@pytest.mark.about_local("its guardian")
def test_the_end_of_the_session_ends_the_run(tmp_path: Path) -> None:
    policy = train.FailureConfig(max_failures=-1, controller_failure_limit=-1)
    for _ in range(2):  # while ranks run, and when they are started
        with pytest.raises(
            hocket.exceptions.LocalEngineDiedError, match=r"guardian .* is gone, so the session is over"
        ):
            fit(kill_guardian, tmp_path, failure_config=policy)


def test_a_rank_that_cannot_be_reached_is_told_as_dead() -> None:
    """Ray says so at first of a death; a rank is not built again."""
    failed: dict[int, Exception] = {1: hocket.exceptions.ActorUnavailableError("its node is silent")}
    assert (
        failures.build_message(failed, 2, {1: " (node a)"})
        == "Rank 1 of 2 (node a) died, or cannot be reached: its node is silent"
    )
