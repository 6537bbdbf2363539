"""Ranks that have returned while others still wait for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hocket import train
from hocket.train import torch as hocket_torch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60), pytest.mark.usefixtures("session")]


def fit(function: Any, path: Path) -> train.Result:
    return hocket_torch.TorchTrainer(
        function,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=path),
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
