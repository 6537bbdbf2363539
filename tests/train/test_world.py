"""The ranks' collectives on numpy arrays: on one machine, and as if each of two machines had some of the ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import train
from hocket.collective import ReduceOp
from hocket.collective.world import World
from hocket.train import world
from hocket.train.run import joining

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


def call_everything() -> dict[str, Any]:
    mine = world.get_world("test")
    rank, size = mine.rank, mine.size
    found: dict[str, Any] = {"size": size}
    for op in ReduceOp:
        values = np.arange(6.0).reshape(2, 3) + rank
        if op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
            values = values.astype(np.int64)
        mine.all_reduce(values, op)
        found[op.name] = values.tolist()
    whole = np.full(300_000, rank, np.int64)  # more than fits into one turn
    mine.all_reduce(whole)
    found["whole"] = sorted({int(value) for value in whole})
    for root in range(size):
        sent = np.full((2, 2), rank, np.float32)
        mine.broadcast(sent, root)
        assert sent.tolist() == [[root] * 2] * 2
    found["objects"] = mine.all_gather_object({"rank": rank, "text": "x" * rank})
    mine.barrier()
    checks = {}
    mean, bits = ReduceOp.MEAN, ReduceOp.BAND
    for name, bad, op in (
        ("strided", np.zeros(4)[::2], mean),
        ("list", [1.0], mean),
        ("whole mean", np.zeros(2, int), mean),
        ("bits", np.zeros(2), bits),
    ):
        try:
            mine.all_reduce(bad, op)  # type: ignore[arg-type]
        except (ValueError, TypeError) as error:
            checks[name] = str(error)
    return found | {"checks": checks}


def check_all(found: dict[str, Any], size: int) -> None:
    rows = np.stack([np.arange(6.0).reshape(2, 3) + rank for rank in range(size)])
    expected = {
        "SUM": rows.sum(0),
        "MEAN": rows.mean(0),
        "MIN": rows.min(0),
        "MAX": rows.max(0),
        "PRODUCT": rows.prod(0),
        "BAND": np.bitwise_and.reduce(rows.astype(np.int64)),
        "BOR": np.bitwise_or.reduce(rows.astype(np.int64)),
        "BXOR": np.bitwise_xor.reduce(rows.astype(np.int64)),
    }
    assert {name: found[name] for name in expected} == {name: value.tolist() for name, value in expected.items()}
    assert found["size"] == size
    assert found["whole"] == [sum(range(size))]
    assert found["objects"] == [{"rank": rank, "text": "x" * rank} for rank in range(size)]
    assert "is not contiguous. Pass a copy" in found["checks"]["strided"]
    assert "received list. Write numpy.asarray" in found["checks"]["list"]
    assert "op=MEAN needs floats, but received int64" in found["checks"]["whole mean"]
    assert "op=BAND is about the bits of whole numbers, but received float64" in found["checks"]["bits"]


@pytest.mark.parametrize("size", [1, 3])
def test_all_operations(tmp_path: Path, size: int) -> None:
    check_all(fit(call_everything, tmp_path, size).return_value, size)


@pytest.mark.parametrize("hosts", [["a", "b", "a"], ["", "", ""]], ids=["two machines", "no shared memory"])
def test_all_operations_between_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: list[str]) -> None:
    listed: list[Any] = []

    def list_hosts(found: list[str], list_them: Any = joining._list_hosts) -> list[list[int]]:
        listed.append(list_them(hosts))
        return list(listed[-1])

    monkeypatch.setattr(joining, "_list_hosts", list_hosts)
    check_all(fit(call_everything, tmp_path, 3).return_value, 3)
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
    with pytest.raises(ValueError, match="root must be one of the 1 ranks from 0, but received 1"):
        World(0, [[0]]).broadcast(np.zeros(1), 1)
    trainer = train.DataParallelTrainer(
        lambda: world.get_world("jax.average_gradients"),
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=str(tmp_path)),
    )
    with pytest.raises(train.WorkerGroupError, match="needs ranks that are joined"):
        trainer.fit()
