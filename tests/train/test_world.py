"""The ranks' collectives on numpy arrays: on one machine, and as if each of two machines had some of the ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import train
from hocket.collective import meeting
from hocket.collective.world import World
from hocket.train import world

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _session(session: hocket.SessionContext) -> None:
    """All tests here have one."""


def fit(function: Any, tmp_path: Path, num_workers: int, **options: Any) -> Any:
    return train.DataParallelTrainer(
        function,
        backend_config=world.WorldConfig(**options),
        scaling_config=train.ScalingConfig(num_workers=num_workers, resources_per_worker={"CPU": 0.5}),
        run_config=train.RunConfig(storage_path=str(tmp_path)),
    ).fit()


def call_all() -> dict[str, Any]:
    """Use each collective once, to see that the ranks were joined; `CollectiveContract` says what they must do."""
    mine = world.get_world("test")
    values, sent = np.full(3, mine.rank + 1.0), np.full(2, mine.rank)
    mine.all_reduce(values)
    mine.broadcast(sent, mine.size - 1)
    mine.barrier()
    counts = range(mine.size)  # rank 0 gives nothing
    gathered = mine.all_gather_bytes(np.full(mine.rank, mine.rank, np.uint8), counts)
    exchanged = mine.all_to_all_bytes([np.full(other, mine.rank, np.uint8) for other in counts])
    return {
        "rank": mine.rank,
        "sum": values.tolist(),
        "sent": sent.tolist(),
        "ranks": mine.all_gather_object(mine.rank),
        "gathered": [part.tolist() for part in gathered],
        "exchanged": mine.all_gather_object([part.tolist() for part in exchanged]),
    }


def check_all(found: dict[str, Any], size: int) -> None:
    assert found == {
        "rank": 0,
        "sum": [sum(range(size + 1))] * 3,
        "sent": [size - 1] * 2,
        "ranks": [*range(size)],
        "gathered": [[rank] * rank for rank in range(size)],
        "exchanged": [[[giver] * taker for giver in range(size)] for taker in range(size)],
    }


@pytest.mark.parametrize("size", [1, 3])
def test_ranks_are_joined(tmp_path: Path, size: int) -> None:
    check_all(fit(call_all, tmp_path, size).return_value, size)


@pytest.mark.parametrize("hosts", [["a", "b", "a"], ["", "", ""]], ids=["two machines", "no shared memory"])
def test_ranks_are_joined_between_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: list[str]) -> None:
    listed: list[Any] = []

    def list_hosts(found: list[str], list_them: Any = meeting.group_by_host) -> list[list[int]]:
        listed.append(list_them(hosts))
        return list(listed[-1])

    monkeypatch.setattr(meeting, "group_by_host", list_hosts)
    check_all(fit(call_all, tmp_path, 3).return_value, 3)
    assert listed == [[[0, 2], [1]] if "a" in hosts else [[0], [1], [2]]]


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    def leave_one_out() -> None:
        if train.get_context().get_world_rank() == 0:
            world.get_world("test").barrier()

    with pytest.raises(
        train.WorkerGroupError, match=r"^Rank 0 of 2 raised RankDiedError: Rank 1 .* has ended: its function returned"
    ):
        fit(leave_one_out, tmp_path, 2, timeout_s=1)


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="timeout_s must be more than 0 seconds, but received 0"):
        world.WorldConfig(timeout_s=0)
    with pytest.raises(RuntimeError, match="was called outside a training function"):
        world.get_world("jax.average_gradients")
    with pytest.raises(ValueError, match="root must be one of the ranks 0 to 0, but received 1"):
        World(0, [[0]]).broadcast(np.zeros(1), 1)
    trainer = train.DataParallelTrainer(
        lambda: world.get_world("jax.average_gradients"),
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=str(tmp_path)),
    )
    with pytest.raises(train.WorkerGroupError, match="needs ranks that are joined"):
        trainer.fit()
