"""Ranks that die, stop or go elsewhere while the others wait for them in a collective."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hocket import train
from hocket.collective import peer_monitor
from hocket.train import torch as hocket_torch
from tests.conftest import wait_until_cpus_are_free

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.usefixtures("session")]

FAR_SECONDS = 600


def fit(function: Any, path: Path, config: dict[str, Any], **torch_config: Any) -> train.Result:
    return hocket_torch.TorchTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=path),
        torch_config=hocket_torch.TorchConfig(**torch_config),
    ).fit()


def reduce_until(config: dict[str, Any]) -> None:
    """Reduce again and again; at the fifth time rank 1 does something else."""
    values = torch.ones(100_000)
    for step in range(1000):
        if step == 5 and train.get_context().get_world_rank() == 1:
            Path(config["folder"], "fired").touch()
            config["instead"]()
        dist.all_reduce(values)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def go_elsewhere() -> None:
    threading.Event().wait(FAR_SECONDS)


@pytest.mark.needs("death_evidence")
@pytest.mark.parametrize("backend", ["hocket", "gloo"])
def test_a_rank_that_is_killed_is_named(tmp_path: Path, backend: str) -> None:
    with pytest.raises(
        train.WorkerGroupError, match=r"^Rank 1 of 2 died: its process \(pid \d+\) was killed by signal 9 "
    ):
        fit(reduce_until, tmp_path, {"instead": die, "folder": str(tmp_path)}, backend=backend)
    assert (tmp_path / "fired").exists()
    wait_until_cpus_are_free()


@pytest.mark.parametrize(
    ("instead", "says", "shows"),
    [
        (stop, r"Rank 1 \(pid \d+\) is stopped, for example by SIGSTOP or Ctrl-Z\.", "in all_reduce"),
        (go_elsewhere, r"Rank 1 \(pid \d+\) has not arrived; its last operation is all_reduce\(", "in go_elsewhere"),
    ],
    ids=["stopped", "elsewhere"],
)
def test_a_rank_that_does_not_come_is_told_with_stacks(tmp_path: Path, instead: Any, says: str, shows: str) -> None:
    with pytest.raises(train.WorkerGroupError, match=says) as caught:
        fit(reduce_until, tmp_path, {"instead": instead, "folder": str(tmp_path)}, timeout_s=2)
    assert (tmp_path / "fired").exists()
    assert (
        "CollectiveTimeoutError: Rank 0 has waited for 2 s in all_reduce(400,000 bytes of f32, sum) for rank 1"
        in str(caught.value)
    )
    assert shows in str(caught.value)
    wait_until_cpus_are_free()


class Tell(logging.Filter):
    """Makes a file when something is logged."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def filter(self, record: logging.LogRecord) -> bool:
        self._file.touch()
        return True


def come_when_it_was_told(config: dict[str, Any]) -> None:
    told = Path(config["folder"], "told")
    peer_monitor.STALL_SECONDS = 0.6
    logging.getLogger("hocket.collective").addFilter(Tell(told))
    while train.get_context().get_world_rank() == 1 and not told.exists():
        os.sched_yield()
    dist.all_reduce(torch.ones(3))


@pytest.mark.needs("plain_output")
def test_a_stall_is_told_while_it_lasts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fit(come_when_it_was_told, tmp_path, {"folder": str(tmp_path)})
    shown = capfd.readouterr().err
    assert "Rank 0 has waited for 1 s in all_reduce(12 bytes of f32, sum) for rank 1. The state of each rank:" in shown
    assert "in come_when_it_was_told" in shown
