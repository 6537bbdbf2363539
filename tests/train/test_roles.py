"""Groups whose ranks are not alike: who runs the function, who reports, who is waited for, and who may die."""

from __future__ import annotations

import json
import logging
import os
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import pytest

import hocket
from hocket import data, train
from hocket.train import configs
from hocket.train.run import backend, roles, worker_group

SMALL = {"CPU": 0.25}
LISTED = (
    roles.Role(name="chief", bundle=SMALL),
    roles.Role(name="idler", bundle=SMALL, runs=False, reports=False, is_awaited=False, max_restarts=1),
    roles.Role(name="server", bundle=SMALL, reports=False, is_awaited=False, max_restarts=roles.ALWAYS),
    roles.Role(name="evaluator", bundle=SMALL, reports=False),
)


@final
@dataclass(frozen=True, kw_only=True)
class Cast(backend.BackendConfig):
    """One rank that trains, and three beside it."""

    folder: Path
    """Where processes write who they are."""

    def list_roles(self, scaling: configs.ScalingConfig) -> Sequence[roles.Role]:
        return LISTED

    def on_start(self, group: worker_group.WorkerGroup) -> None:
        group.call(1, note, self.folder, "idler")

    def on_replace(self, group: worker_group.WorkerGroup, rank: int) -> None:
        if rank == 1:
            group.call(rank, note, self.folder, "idler")

    def on_shutdown(self, group: worker_group.WorkerGroup) -> None: ...


def set_variable(name: str, *, value: str) -> None:
    os.environ[name] = value


class Calling(backend.Backend):
    """As a program for Ray writes it."""

    def on_start(self, worker_group: backend.Workers, backend_config: backend.BackendConfig) -> None:
        assert isinstance(backend_config, CallingConfig)
        assert (len(worker_group), worker_group.num_workers) == (2, 2)
        pids = worker_group.execute(os.getpid)
        assert hocket.get(worker_group.execute_async(os.getpid)) == pids
        assert worker_group.execute_single(1, os.getpid) == pids[1]
        self.heard = [hocket.get(worker_group.execute_single_async(0, int, "12", base=8)), *backend_config.heard]

    def on_training_start(self, worker_group: backend.Workers, backend_config: backend.BackendConfig) -> None:
        worker_group.execute(set_variable, "HOCKET_TEST_CALLING", value="set")

    def on_shutdown(self, worker_group: backend.Workers, backend_config: backend.BackendConfig) -> None:
        assert isinstance(backend_config, CallingConfig)
        backend_config.heard += self.heard


@dataclass
class CallingConfig(backend.BackendConfig):
    heard: list[int]

    @property
    def backend_cls(self) -> type[backend.Backend]:
        return Calling


def test_a_backend_as_rays_is_called_with_the_ranks(any_session: Any, tmp_path: Path) -> None:
    config = CallingConfig([5])
    result = train.DataParallelTrainer(
        lambda: os.environ["HOCKET_TEST_CALLING"],
        backend_config=config,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=tmp_path),
    ).fit()
    assert result.return_value == "set"
    assert config.heard == [5, 10, 5]


def note(folder: Path, name: str) -> None:
    """Have others find this process by a name and a number."""
    passing = folder / f".{name}"
    passing.write_text(str(os.getpid()))
    passing.rename(folder / f"{name} {len(list(folder.glob(f'{name} *')))}")


def find(folder: Path, name: str) -> int:
    """Wait for a process, and return its id."""
    while not (folder / name).exists():
        time.sleep(0.01)  # a file is all that these processes have in common
    return int((folder / name).read_text())


def play(config: dict[str, Any]) -> Any:
    """In the chief, the server and the evaluator."""
    folder, context = Path(config["folder"]), train.get_context()
    rank = context.get_world_rank()
    if rank == 2:
        note(folder, "server")
        threading.Event().wait()
    if rank == 3:
        refused = []
        for call in (
            lambda: train.report({"loss": 1}),
            train.get_dataset_shard,
            train.collective.barrier,
        ):
            with pytest.raises(
                RuntimeError, match=r"called in rank 3, which is evaluator: .* in the chief only"
            ) as caught:
                call()
            refused.append(str(caught.value).partition("(")[0])
        find(folder, "chief 0")
        metrics = [one.metrics for one in train.get_all_reported_checkpoints()]
        (folder / "evaluated").write_text(json.dumps([refused, metrics]))
        return None
    rows = [row["id"] for row in train.get_dataset_shard().iter_rows()]
    for name in ("server", "idler"):
        os.kill(find(folder, f"{name} 0"), signal.SIGKILL)
        find(folder, f"{name} 1")
    train.collective.barrier()
    with tempfile.TemporaryDirectory() as checkpoint:
        train.report({"rows": rows}, train.Checkpoint(checkpoint))
    note(folder, "chief")
    if config["idler_dies_again"]:
        os.kill(find(folder, "idler 1"), signal.SIGKILL)
        threading.Event().wait()
    return context.get_world_size()


def fit(folder: Path, *, idler_dies_again: bool = False) -> train.Result:
    folder.mkdir()
    return train.DataParallelTrainer(
        play,
        train_loop_config={"folder": str(folder), "idler_dies_again": idler_dies_again},
        backend_config=Cast(folder=folder),
        run_config=train.RunConfig(storage_path=folder / "results"),
        datasets={"train": data.range(4)},
    ).fit()


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_ranks_beside_the_one_that_trains(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hocket.train"):
        result = fit(tmp_path / "quiet")
    assert result.return_value == 1
    assert result.metrics == {"rows": [0, 1, 2, 3]}
    told = [record.getMessage() for record in caplog.records if "is started again" in record.getMessage()]
    assert len(told) == 2
    for name in ("1 of 4 (idler)", "2 of 4 (server)"):
        assert sum(f"Rank {name} died: its process" in text for text in told) == 1
    refused, metrics = json.loads((tmp_path / "quiet" / "evaluated").read_text())
    assert refused == ["report", "get_dataset_shard", "barrier"]
    assert metrics == [{"rows": [0, 1, 2, 3]}]

    with pytest.raises(train.WorkerGroupError, match=r"Rank 1 of 4 \(idler\) died: its process"):
        fit(tmp_path / "again", idler_dies_again=True)


def test_roles_need_processes_and_resources(tmp_path: Path) -> None:
    with (
        hocket.init(engine="inprocess"),
        pytest.raises(ValueError, match=r"chief, idler, server, evaluator need a process each.*engine='local'"),
    ):
        fit(tmp_path / "here")
    with (
        hocket.init(engine="local", num_cpus=0.5),
        pytest.raises(
            hocket.exceptions.InfeasibleResourcesError,
            match=r"chief, idler, server, evaluator together need \{CPU: 1\}, but the session has",
        ),
    ):
        fit(tmp_path / "small")
