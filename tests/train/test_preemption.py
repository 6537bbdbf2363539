"""SIGTERM is a notice: the training function saves first, then the group is started again, and that is no failure."""

from __future__ import annotations

import os
import signal
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from hocket import train
from hocket.train import drain, notices
from tests.conftest import RunScript, wait_until_cpus_are_free

pytestmark = pytest.mark.about_local("on Ray, SIGTERM is Ray's, and the end of a rank")


def fit(function: Any, path: Path, config: Any = None, **failure: Any) -> train.Result:
    return train.DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(
            name="run", storage_path=path, failure_config=train.FailureConfig(**failure)
        ),
    ).fit()


def save_when_told(config: dict[str, Any]) -> dict[str, Any]:
    """Ten steps, none of them saved but where a rank is told to end: rank 1 is at steps 2 and 6, once each."""
    rank = train.get_context().get_world_rank()
    start = train.get_checkpoint()
    first = int(Path(start.path, "step").read_text()) + 1 if start else 0
    told = None
    for step in range(first, 10):
        flag = Path(config["flags"], f"told-{step}")
        if rank == 1 and step in (2, 6) and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGTERM)
        while (info := train.get_preemption_info()) is None and rank_1_is_told(config, step, first):
            pass  # the handler runs in another thread; it is a matter of microseconds
        checkpoint = None
        with tempfile.TemporaryDirectory() as folder:
            if info is not None:
                told = (info.preempted_ranks, len(info.preempted_node_ids), info.deadline_ms is not None)
                Path(folder, "step").write_text(str(step))
                checkpoint = train.Checkpoint(folder)
            train.report({"step": step, "first": first, "told": told}, checkpoint)
    return {"first": first}


def rank_1_is_told(config: dict[str, Any], step: int, first: int) -> bool:
    return step in (2, 6) and step > first and Path(config["flags"], f"told-{step}").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_nothing_is_lost_and_no_failure_is_counted(tmp_path: Path) -> None:
    result = fit(save_when_told, tmp_path, {"flags": str(tmp_path)})
    history = result.metrics_history
    assert [metrics["step"] for metrics in history] == list(range(10))
    assert [metrics["first"] for metrics in history] == [0] * 3 + [3] * 4 + [7] * 3, "it goes on where it was told"
    told = [metrics["told"] for metrics in history if metrics["told"]]
    assert told == [([1], 1, True)] * 2
    assert result.return_value == {"first": 7}
    with pytest.raises(train.PreemptionError, match=r"^Rank 1 was told to end \(SIGTERM\)\. The run's folder has") as caught:
        fit(save_when_told, tmp_path / "again", {"flags": str(clear(tmp_path))}, max_preemption_failures=1)
    assert caught.value.preemption_info.preempted_ranks == [1]
    assert not caught.value.drain_timed_out
    wait_until_cpus_are_free()


def clear(path: Path) -> Path:
    for flag in path.glob("told-*"):
        flag.unlink()
    return path


def go_on_for_ever(config: dict[str, Any]) -> str:
    if Path(config["flag"]).exists():
        return "started again"
    if train.get_context().get_world_rank() == 0:
        Path(config["flag"]).touch()
        for _ in range(config["signals"]):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(config["pause"])
    while True:
        signal.pause() if False else time.sleep(60)


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_who_never_saves_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "NOTICE_SECONDS", 0.1)
    config = {"flag": str(tmp_path / "flag"), "signals": 1, "pause": 0}
    with pytest.raises(train.PreemptionError, match="nothing was committed before the time was over") as caught:
        fit(go_on_for_ever, tmp_path, config, max_preemption_failures=0)
    assert caught.value.drain_timed_out
