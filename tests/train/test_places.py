"""Ranks on several nodes: their numbers, and what is said of one whose node died."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import exceptions, train
from hocket.train import errors
from hocket.train.rank import rank_placement
from hocket.train.run import failures


def introduce(node_id: str, *gpu_ids: str, pid: int = 1) -> rank_placement.Introduction:
    return rank_placement.Introduction(node_id, pid, gpu_ids, "/tmp")


def test_ranks_of_a_node_are_neighbours() -> None:
    found = [introduce(node) for node in ("b", "a", "c", "b", "a", "b")]
    order = rank_placement.sort_by_node(found)
    assert order == [0, 3, 5, 1, 4, 2]
    placed = rank_placement.assign([found[index] for index in order])
    assert [place.node_id for place in placed] == ["b", "b", "b", "a", "a", "c"]
    assert [place.local_rank for place in placed] == [0, 1, 2, 0, 1, 0]
    assert [place.local_world_size for place in placed] == [3, 3, 3, 2, 2, 1]
    assert [place.node_rank for place in placed] == [0, 0, 0, 1, 1, 2]


def test_ranks_of_a_node_are_in_the_order_of_their_gpus() -> None:
    found = [introduce("a", "10"), introduce("b", "0"), introduce("a", "2"), introduce("a", "1", "0")]
    assert rank_placement.sort_by_node(found) == [3, 2, 0, 1]


def test_a_crowd_is_told_of() -> None:
    def assign(counts: dict[str, int], num_cores: int) -> str:
        found = [
            rank_placement.Introduction(node, 1, (), "/tmp", num_cores) for node, n in counts.items() for _ in range(n)
        ]
        return rank_placement.describe_crowd(rank_placement.assign(found))

    assert assign({"a": 2, "b": 2}, 2) == ""
    assert assign({"a": 9}, 0) == ""  # not known
    assert assign({"a": 1, "b": 6}, 4).startswith("6 ranks share 4 processors of one machine.")
    assert "slower than num_workers=4, which has the same results if each rank gets 1.5 times" in assign({"b": 6}, 4)


def test_a_launcher_is_told_of_by_the_first_process() -> None:
    launched = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "RANK": "0"}
    assert "`hocket run` or torchrun has started 2 processes" in rank_placement.describe_launcher(launched)
    assert rank_placement.describe_launcher({**launched, "RANK": "1"}) == ""
    assert rank_placement.describe_launcher({**launched, "WORLD_SIZE": "1"}) == ""
    assert rank_placement.describe_launcher({"WORLD_SIZE": "2", "RANK": "0"}) == ""  # a rank of a trainer


def test_fit_below_a_launcher_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    train.DataParallelTrainer(
        lambda: train.report({"x": 1}),
        scaling_config=train.ScalingConfig(num_workers=0),
        run_config=train.RunConfig(storage_path=tmp_path),
    ).fit()
    assert caplog.text.count("each of them calls fit(), which starts ranks of its own") == 1


def tell_place() -> None:
    context = train.get_context()
    train.report(
        {
            "local": (context.get_local_rank(), context.get_local_world_size(), context.get_node_rank()),
            "rank": context.get_world_rank(),
        }
    )


class Collect(train.UserCallback):
    def __init__(self) -> None:
        self.rows: list[list[dict[str, Any]]] = []

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        self.rows.append(metrics)


@pytest.mark.slow
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("strategy", ["PACK", "SPREAD", "STRICT_PACK"])
def test_ranks_of_one_node_know_it(tmp_path: Path, strategy: str) -> None:
    collect = Collect()
    train.DataParallelTrainer(
        tell_place,
        scaling_config=train.ScalingConfig(num_workers=2, placement_strategy=strategy),
        run_config=train.RunConfig(storage_path=tmp_path, callbacks=[collect]),
    ).fit()
    assert [row["local"] for row in collect.rows[0]] == [[0, 2, 0], [1, 2, 0]]
    assert [row["rank"] for row in collect.rows[0]] == [0, 1]


@pytest.mark.usefixtures("session")
def test_more_nodes_than_there_are(tmp_path: Path) -> None:
    trainer = train.DataParallelTrainer(
        tell_place,
        scaling_config=train.ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
        run_config=train.RunConfig(storage_path=tmp_path),
    )
    with pytest.raises(exceptions.InfeasibleResourcesError, match="STRICT_SPREAD on 2 nodes, but the session has 1"):
        trainer.fit()


# --- a node that died -------------------------------------------------------------------------------------------------


def test_the_node_that_died_is_named() -> None:
    with hocket.init(num_cpus=1, engine="inprocess"):
        here = hocket.nodes()[0]["NodeID"]
        placed = rank_placement.assign([introduce(here), introduce("gone")])
        actors: Any = [None, None]  # nobody is asked: who died is known
        error = failures.explain(1, exceptions.NodeDiedError("no heartbeat for 10 s"), actors, placed)
        assert str(error) == "Rank 1 of 2 (node gone, which is gone) died with its node: no heartbeat for 10 s"
        assert list(error.worker_failures) == [1]
        error = failures.explain(0, exceptions.ActorDiedError("its process ended"), actors, placed)
        assert str(error) == f"Rank 0 of 2 (node {here} at 127.0.0.1) died: its process ended"


class Lose(train.UserCallback):
    """Ends training in the first attempt; there is room for no second one."""

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        self.held = hocket.remote(num_cpus=2)(Holder).remote()
        assert hocket.get(self.held.ping.remote()) == "here"


class Holder:
    def ping(self) -> str:
        return "here"


def fail(config: dict[str, Any]) -> None:
    raise ValueError("the first cause")


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_session")
def test_no_room_for_another_attempt_keeps_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.train.run.worker_group.START_SECONDS", 0.2)
    trainer = train.DataParallelTrainer(
        fail,
        train_loop_config={},
        run_config=train.RunConfig(
            storage_path=tmp_path, failure_config=train.FailureConfig(max_failures=1), callbacks=[Lose()]
        ),
    )
    with pytest.raises(train.TrainingFailedError, match="was not free for 0 s") as caught:
        trainer.fit()
    assert isinstance(caught.value.__cause__, errors.WorkerGroupError)
    assert "the first cause" in str(caught.value.__cause__)
