"""A rank that fails fails `fit` at once, by name; the policy starts the group again."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import train
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


def test_ctrl_c_ends_the_training(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fit(report_and_stay, tmp_path, callbacks=[Interrupt()])
    assert time.monotonic() - started < 30  # far from FAR_SECONDS
    wait_until_cpus_are_free()
