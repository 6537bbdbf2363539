"""When an attempt ends, grows or gives up, on a clock that the test moves: no engine, no process."""

from __future__ import annotations

import logging
import time
import types
from typing import Any

import pytest

from hocket.train import configs, errors
from hocket.train.rank import preemption_signals
from hocket.train.run import elasticity, patience, preemption_policy


class Book:
    """Knows of as many commits as a test says."""

    commit_count = 0
    has_saved = True


def make_elastic(book: Book, room: list[int]) -> elasticity.ElasticityPolicy:
    scaling = configs.ScalingConfig(num_workers=(1, 4), elastic_resize_monitor_interval_s=60.0)
    return elasticity.ElasticityPolicy(scaling, 2, book, 0.0, lambda scaling: room[0])


def test_a_group_grows_at_the_commit_after_there_was_room() -> None:
    book, room = Book(), [0]
    policy = make_elastic(book, room)
    assert policy.due == 60.0
    policy.look(59.9)
    policy.look(60.0)
    assert policy.due == 120.0
    room[0] = 5
    policy.look(120.0)
    book.commit_count = 1
    with pytest.raises(elasticity.ResizeWanted) as caught:
        policy.look(121.0)
    assert caught.value.size == 4, "and no more than it may have"


def test_a_group_grows_without_a_commit_at_the_second_look() -> None:
    policy = make_elastic(Book(), [1])
    policy.look(60.0)
    with pytest.raises(elasticity.ResizeWanted) as caught:
        policy.look(120.0)
    assert caught.value.size == 3


def test_room_that_went_again_is_not_taken() -> None:
    book, room = Book(), [1]
    policy = make_elastic(book, room)
    policy.look(60.0)
    room[0], book.commit_count = 0, 1
    policy.look(61.0)
    room[0] = 1
    policy.look(62.0)
    policy.look(121.0)


def test_room_in_pieces_is_not_taken_and_more_than_that_is() -> None:
    room = [2]
    scaling = configs.ScalingConfig(num_workers=(1, 4), elastic_resize_monitor_interval_s=60.0)
    policy = elasticity.ElasticityPolicy(scaling, 2, Book(), 0.0, lambda scaling: room[0], unusable=2)
    policy.look(60.0)
    policy.look(120.0)
    room[0] = 3
    policy.look(180.0)
    with pytest.raises(elasticity.ResizeWanted) as caught:
        policy.look(240.0)
    assert caught.value.size == 3


def test_a_whole_group_never_looks() -> None:
    scaling = configs.ScalingConfig(num_workers=2)
    policy = elasticity.ElasticityPolicy(scaling, 2, Book(), 0.0, lambda scaling: pytest.fail("nobody asks"))
    assert policy.due is None
    policy.look(1e9)


def make_preemption(book: Book, monkeypatch: pytest.MonkeyPatch) -> preemption_policy.PreemptionPolicy:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    places: Any = [types.SimpleNamespace(node_id="a"), types.SimpleNamespace(node_id="b")]
    given: Any = book
    return preemption_policy.PreemptionPolicy(given, tuple(places), 10.0)


def test_a_rank_that_was_told_to_end_has_until_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_preemption(Book(), monkeypatch)
    policy.look(1e9)
    policy.take(1, preemption_signals.PreemptionSignal(is_drivers=False))
    due = policy.due
    assert due == 1000.0 + policy.most_seconds
    policy.look(due - 0.1)
    with pytest.raises(errors.PreemptionError):
        policy.look(due)


def test_a_commit_after_the_signal_ends_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book()
    policy = make_preemption(book, monkeypatch)
    policy.take(0, preemption_signals.PreemptionSignal(is_drivers=False))
    policy.look(1001.0)
    book.commit_count += 1
    with pytest.raises(errors.PreemptionError):
        policy.look(1002.0)


def test_the_drivers_own_signal_counts_though_no_rank_passes_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_preemption(Book(), monkeypatch)
    policy.note_driver()
    policy.look(1000.0 + preemption_policy.ECHO_SECONDS - 0.1)
    assert not policy.is_drivers
    policy.look(1000.0 + preemption_policy.ECHO_SECONDS)
    assert policy.is_drivers


@pytest.mark.parametrize("has_saved", [False, True])
def test_the_drivers_end_after_a_ranks_waits_only_for_who_saves(
    monkeypatch: pytest.MonkeyPatch, has_saved: bool
) -> None:
    """Slurm and systemd tell all processes, in no order."""
    book = Book()
    book.has_saved = has_saved
    policy = make_preemption(book, monkeypatch)
    policy.take(1, preemption_signals.PreemptionSignal(is_drivers=False))
    policy.take(0, preemption_signals.PreemptionSignal(is_drivers=True))
    assert policy.due == (1000.0 + policy.most_seconds if has_saved else 0.0)


class Waits(patience.Patience):
    """Says of each rank that it does not say where it is."""

    def __init__(self, waits: list[patience.Wait | None]) -> None:
        super().__init__(types.SimpleNamespace(places=()), lambda: waits[0], lambda rank: False)  # type: ignore[arg-type]

    def _describe(self, rank: int) -> str:
        return f"Rank {rank} is somewhere."


def test_waits_are_told_at_doubling_times_and_given_up_in_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patience, "NOTICE_SECONDS", 20.0)
    monkeypatch.setattr(patience, "LIMIT_SECONDS", 100.0)
    monkeypatch.setattr(patience.StoppedRanks, "__init__", lambda self, group: None)
    monkeypatch.setattr(patience.StoppedRanks, "find", lambda self: ())
    waits: list[patience.Wait | None] = [None]
    policy = Waits(waits)
    policy.look(0.0)
    told = [policy.due]
    waits[0] = patience.Wait(("row", 3), "report()", (0,), (1,), "has made 3 reports")
    with caplog.at_level(logging.WARNING, "hocket.train"):
        policy.look(10.0)
        for _ in range(2):
            due = policy.due
            assert due is not None
            policy.look(due)
            told.append(due)
    assert told == [None, 30.0, 50.0]
    assert len(caplog.records) == 2
    waits[0] = patience.Wait(("row", 4), "report()", (0,), (1,), "has made 4 reports")
    policy.look(60.0)
    assert policy.due == 80.0, "somebody has come"
    policy.look(159.0)
    with pytest.raises(errors.WorkerGroupError, match=r"waited for 100 s in report\(\) for rank 1"):
        policy.look(160.0)
