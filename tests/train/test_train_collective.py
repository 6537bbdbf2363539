"""Ranks meet, through the controller; who does not come is an error and never a hang."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from hocket import train
from hocket.train import collective


def fit(function: Any, path: Path, num_workers: int = 2, config: Any = None) -> train.Result:
    return train.DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(name="run", storage_path=path),
    ).fit()


def meet(config: dict[str, Any]) -> list[Any]:
    rank = train.get_context().get_world_rank()
    notes = Path(config["notes"])
    seen = []
    for step in range(3):
        (notes / f"{step}-{rank}").touch()
        collective.barrier()
        seen.append(len(list(notes.glob(f"{step}-*"))))
        seen.append(collective.broadcast_from_rank_zero({"from": rank, "step": step}))
    train.report({"seen": seen})
    return seen


class Collect(train.UserCallback):
    def __init__(self) -> None:
        self.rows: list[list[dict[str, Any]]] = []

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        self.rows.append(metrics)


@pytest.mark.slow
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_all_are_there_and_have_what_rank_0_gave(tmp_path: Path, num_workers: int) -> None:
    collect = Collect()
    (tmp_path / "notes").mkdir()
    train.DataParallelTrainer(
        meet,
        train_loop_config={"notes": str(tmp_path / "notes")},
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(storage_path=tmp_path, callbacks=[collect]),
    ).fit()
    size = max(1, num_workers)
    expected: list[Any] = []
    for step in range(3):
        expected += [size, {"from": 0, "step": step}]
    assert collect.rows == [[{"seen": expected}] * size]


def come_alone(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    collective.barrier()
    if rank == config["alone"]:
        collective.barrier()


def call_another(config: dict[str, Any]) -> None:
    if train.get_context().get_world_rank() == config["alone"]:
        collective.barrier()
    else:
        collective.broadcast_from_rank_zero(1)


def save_instead(config: dict[str, Any]) -> None:
    if train.get_context().get_world_rank() == config["alone"]:
        train.report({})
        collective.barrier()
    else:
        train.report({})
        with tempfile.TemporaryDirectory() as folder:
            train.report({}, train.Checkpoint(folder))


def list_instead(config: dict[str, Any]) -> None:
    if train.get_context().get_world_rank() == config["alone"]:
        collective.barrier()
    else:
        train.report({})
        train.get_all_reported_checkpoints()


def fail_instead(config: dict[str, Any]) -> None:
    if train.get_context().get_world_rank() == config["alone"]:
        collective.barrier()
    else:
        raise KeyError("before the barrier")


@pytest.mark.slow
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(
    ("function", "match"),
    [
        (
            come_alone,
            r"rank {other} ended after 1 calls of .* while rank {alone} waits in call 2\. Call it in all ranks",
        ),
        (
            call_another,
            r"call 1 is (barrier|broadcast_from_rank_zero)\(\) in rank 0 and (barrier|broadcast_from_rank_zero)",
        ),
        (save_instead, r"Rank {alone} waits in barrier\(\) for rank {other}, which waits in report\(\) for"),
        (
            list_instead,
            r"Rank {alone} waits in barrier\(\) for rank {other}, which waits in get_all_reported_checkpoints",
        ),
        pytest.param(
            fail_instead,
            "^Rank {other} of 2 raised KeyError: 'before the barrier'",
            marks=pytest.mark.needs("processes"),
        ),
    ],
)
def test_unequal_calls_are_an_error_and_not_a_hang(tmp_path: Path, function: Any, match: str) -> None:
    for alone in (0, 1):
        with pytest.raises(train.TrainingFailedError, match=match.format(alone=alone, other=1 - alone)):
            fit(function, tmp_path, config={"alone": alone})


def report_often() -> None:
    for step in range(50):
        train.report({"step": step})


def call_in_a_thread(config: dict[str, Any]) -> list[int]:
    """A report of another thread does not disturb those who wait."""
    thread = threading.Thread(target=report_often)
    thread.start()
    got = [collective.broadcast_from_rank_zero(step) for step in range(50)]
    thread.join()
    return got


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_reports_of_another_thread(tmp_path: Path) -> None:
    result = fit(call_in_a_thread, tmp_path, config={})
    assert result.return_value == list(range(50))
    assert len(result.metrics_history) == 50


STARTED: list[threading.Thread] = []
GO = threading.Event()


def report_in_the_turn_of_another() -> None:
    """Rank 0 has started a thread, which reports while rank 1 runs, if both are in one process."""
    if train.get_context().get_world_rank() == 0:
        thread = threading.Thread(
            target=lambda: GO.wait() and train.report({"rank": train.get_context().get_world_rank()})
        )
        thread.start()
        STARTED.append(thread)
    collective.barrier()
    GO.set()
    for thread in STARTED:
        thread.join()
    if train.get_context().get_world_rank() == 1:
        train.report({"rank": 1})
    collective.barrier()
    STARTED.clear()
    GO.clear()


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_a_thread_reports_for_the_rank_that_started_it(tmp_path: Path) -> None:
    result = fit(report_in_the_turn_of_another, tmp_path)
    assert [row["rank"] for row in result.metrics_history] == [0]


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (threading.Lock(), r"broadcast_from_rank_zero\(\) takes values that can be pickled, .* Pass plain values"),
        (bytes(2 << 20), r"takes up to 1048576 bytes, .* received 2097\d+\. Use hocket\.collective for arrays"),
    ],
)
def test_what_cannot_travel(tmp_path: Path, data: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        fit(lambda: collective.broadcast_from_rank_zero(data), tmp_path, 0)


def test_outside_a_training_function() -> None:
    with pytest.raises(RuntimeError, match=r"collective\.barrier\(\) was called outside a training function"):
        collective.barrier()
