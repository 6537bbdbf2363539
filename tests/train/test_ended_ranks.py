"""Ranks that others wait for in vain: they have returned, are stopped, or are stuck."""

from __future__ import annotations

import logging
import os
import re
import signal
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hocket import train
from hocket.train import collective
from hocket.train import torch as hocket_torch
from hocket.train.run import attempt_monitor, patience
from tests.conftest import wait_until_cpus_are_free

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60), pytest.mark.usefixtures("session")]


def fit(function: Any, path: Path, **settings: Any) -> train.Result:
    return hocket_torch.TorchTrainer(
        function,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=path, **settings),
    ).fit()


def return_early() -> None:
    dist.all_reduce(torch.ones(3))
    if train.get_context().get_world_rank() == 1:
        dist.all_reduce(torch.ones(3))


def test_a_rank_that_returned_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(
        train.WorkerGroupError, match=r"^Rank 1 of 2 raised RankDiedError: Rank 0 \(pid \d+\) has ended"
    ) as caught:
        fit(return_early, tmp_path)
    text = str(caught.value)
    assert "Rank 1 has waited for it in all_reduce(12 bytes of f32, sum) for " in text
    assert "in return_early" in text


def work_on_alone() -> int:
    dist.all_reduce(torch.ones(3))
    if train.get_context().get_world_rank() == 1:
        for _ in range(1000):
            torch.ones(10, 10) @ torch.ones(10, 10)
    return 1


def test_ranks_that_need_nobody_may_end_when_they_like(tmp_path: Path) -> None:
    assert fit(work_on_alone, tmp_path).return_value == 1


def wait_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=600)


def stop_here() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    threading.Event().wait(600)  # until the stop has reached this thread, too


def begin_together(folder: Path) -> None:
    """Wait until both ranks run: one whose process still starts would be named in another way."""
    (folder / f"rank {train.get_context().get_world_rank()}").touch()
    while len(list(folder.glob("rank ?"))) < 2:
        os.sched_yield()


def report_after(obstacle: Any, folder: Path) -> None:
    begin_together(folder)
    train.report({"step": 0})
    if train.get_context().get_world_rank() == 1:
        obstacle()
    with tempfile.TemporaryDirectory() as saved:
        train.report({"step": 1}, checkpoint=train.Checkpoint(saved))


def meet_after(obstacle: Any, folder: Path) -> None:
    begin_together(folder)
    if train.get_context().get_world_rank() == 1:
        obstacle()
    collective.barrier()


@pytest.mark.parametrize(
    ("function", "wait"),
    [
        (report_after, r"in report\(\) for rank 1, which has made \d reports?\."),
        (meet_after, r"in barrier\(\) for rank 1, which has not called it\."),
    ],
)
@pytest.mark.parametrize(
    ("obstacle", "where"),
    [
        (wait_for_a_lock, r"Rank 1 is here:\n(.|\n)* in wait_for_a_lock\n    lock.acquire\(timeout=600\)"),
        (stop_here, r"Rank 1 \(pid \d+\) cannot say where it is: its process is stopped"),
    ],
)
def test_a_rank_that_does_not_come_is_named_and_given_up(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    function: Any,
    wait: str,
    obstacle: Any,
    where: str,
) -> None:
    monkeypatch.setattr(patience, "NOTICE_SECONDS", 0.2)
    monkeypatch.setattr(patience, "LIMIT_SECONDS", 1.0)
    monkeypatch.setattr(patience, "ANSWER_SECONDS", 0.5 if obstacle is stop_here else 20.0)
    with (
        caplog.at_level(logging.WARNING, "hocket.train"),
        pytest.raises(train.WorkerGroupError, match=rf"^Rank 0 has waited for \d s {wait} The limit is ") as caught,
    ):
        fit(lambda: function(obstacle, tmp_path), tmp_path)
    assert re.search(where, str(caught.value))
    assert list(caught.value.worker_failures) == [1]
    notices = [record.getMessage() for record in caplog.records if "has waited for" in record.getMessage()]
    assert re.search(rf"^Rank 0 has waited for \d s {wait}\n", notices[0])
    assert re.search(where, notices[0])
    wait_until_cpus_are_free()


def report_before(end: Any) -> None:
    for step in range(20):
        train.report({"step": step})
    if train.get_context().get_world_rank() == 1:
        end()


def fail_here() -> None:
    raise ValueError("after its reports")


def test_reports_before_a_rank_fails_are_kept(tmp_path: Path) -> None:
    seen: list[int] = []

    class Listener(train.UserCallback):
        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            seen.append(metrics[0]["step"])

    with pytest.raises(train.WorkerGroupError, match=r"^Rank 1 of 2 raised ValueError: after its reports"):
        fit(lambda: report_before(fail_here), tmp_path, callbacks=[Listener()])
    assert seen == list(range(20))


def test_a_stopped_rank_that_nobody_waits_for_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "LIMIT_SECONDS", 1.0)
    monkeypatch.setattr(attempt_monitor, "LOOK_SECONDS", 0.5)
    with pytest.raises(
        train.WorkerGroupError, match=r"^The run has waited for \d s for rank 1, which is stop"
    ) as caught:
        fit(lambda: report_before(stop_here), tmp_path)
    assert list(caught.value.worker_failures) == [1]
    wait_until_cpus_are_free()


def report_late() -> None:
    if train.get_context().get_world_rank() == 1:
        threading.Event().wait(0.5)
    with tempfile.TemporaryDirectory() as folder:
        train.report({"step": 1}, checkpoint=train.Checkpoint(folder))


def test_a_limit_of_0_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "NOTICE_SECONDS", 0.1)
    monkeypatch.setattr(patience, "LIMIT_SECONDS", 0.0)
    assert fit(report_late, tmp_path).checkpoint is not None
