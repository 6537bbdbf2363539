"""Where ranks of PyTorch meet: in a file, if all of them see it, and else at rank 0."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch.distributed as dist

from hocket import train
from hocket.train import torch as hocket_torch
from hocket.train.frameworks.torch import rendezvous
from tests.conftest import ENGINE


def look_like_a_machine(path: str) -> tuple[str, int, int]:
    """Every process takes itself for a machine of its own."""
    return f"machine {os.getpid()}", 0, 0


def look_at_store(config: dict[str, Any]) -> None:
    store: Any = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    ranks: list[Any] = [None, None]
    dist.all_gather_object(ranks, dist.get_rank())
    mine = [found for found in psutil.Process().net_connections("inet") if found.status == psutil.CONN_LISTEN]
    train.report(
        {"store": type(store).__name__, "ranks": ranks, "listens_on": sorted({found.laddr.ip for found in mine})}
    )


@pytest.mark.slow
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("is_apart", [False, True])
def test_ranks_that_are_not_with_the_driver_meet_at_rank_0(
    tmp_path: Path, is_apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_apart:
        monkeypatch.setattr(rendezvous, "identify", look_like_a_machine)
    metrics = (
        hocket_torch.TorchTrainer(
            look_at_store,
            train_loop_config={},
            scaling_config=train.ScalingConfig(num_workers=2),
            run_config=train.RunConfig(storage_path=tmp_path),
        )
        .fit()
        .metrics
    )
    assert metrics is not None
    assert metrics["store"] == ("TCPStore" if is_apart else "FileStore")
    assert metrics["ranks"] == [0, 1]
    assert set(metrics["listens_on"]) <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert is_apart or ENGINE != "local" or not metrics["listens_on"], "nothing listens on one machine, but for Ray"


def test_the_interface_is_that_of_the_address() -> None:
    known = psutil.net_if_addrs()
    for address in ("127.0.0.1", "192.0.2.1", *(entry.address for entries in known.values() for entry in entries)):
        name = rendezvous.choose_interface(address)
        if address == "192.0.2.1":  # reserved for documentation
            assert name is None
        else:
            assert name is not None
            assert address in [entry.address for entry in known[name]]


def test_a_file_is_told_from_all_others(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.touch()
    second.touch()
    assert rendezvous.identify(str(first)) == rendezvous.identify(str(first))
    assert rendezvous.identify(str(first)) != rendezvous.identify(str(second))
    assert rendezvous.identify(str(tmp_path / "none")) is None
