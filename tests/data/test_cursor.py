"""The cursor: a loop that is killed at any point, or broken off, and what the next one gets."""

from __future__ import annotations

import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from hocket.data import Ledger, cursor

SETTINGS = hypothesis.settings(max_examples=150, deadline=None)


def build(world_size: int = 1, rank: int = 0, rows: int = 10, batch_size: int = 4, **given: Any) -> cursor.Cursor:
    return cursor.Cursor(Ledger(rows, batch_size, **given), rank, world_size)


def take_loop(group: list[cursor.Cursor], stop: int | None = None) -> list[int]:
    """Run a loop in all ranks in step; return the rows in the order of the ranks.

    Stopped early it is as good as killed.
    """
    loops = [member.begin() for member in group]
    found: list[int] = []
    for step, parts in enumerate(zip(*(parts for _, parts in loops), strict=True)):
        if step == stop:
            return found
        for member, (loop, _), part in zip(group, loops, parts, strict=True):
            member.take(loop)
            found += part.indices.tolist()
    for member, (loop, _) in zip(group, loops, strict=True):
        member.leave(loop)
    return found


@hypothesis.given(
    rows=st.integers(1, 60),
    batch_size=st.integers(1, 9),
    shuffle=st.booleans(),
    kills=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 12)), max_size=4),
)
@SETTINGS
def test_loops_that_are_killed_read_what_an_undisturbed_one_reads(
    rows: int, batch_size: int, shuffle: bool, kills: list[tuple[int, int]]
) -> None:
    """The batch size is a rank's, so each group cuts the epoch at other places. The epochs are counted by the loop."""
    epochs = 3
    alone = [build(rows=rows, batch_size=batch_size, shuffle=shuffle, seed=5)]
    undisturbed = [row for _ in range(epochs) for row in take_loop(alone)]
    found: list[int] = []
    saved = ""
    for world_size, stop in [*kills, (2, None)]:
        group = [
            build(world_size, rank, rows=rows, batch_size=batch_size * world_size, shuffle=shuffle, seed=5)
            for rank in range(world_size)
        ]
        for member in group if saved else []:
            member.load_state_dict(json.loads(saved))
        steps = 0
        for _ in range(group[0].epoch, epochs):
            before = group[0].steps_left
            found += take_loop(group, None if stop is None or stop > steps + before else stop - steps)
            steps += before
            if stop is not None and steps >= stop:
                break
        states = [member.state_dict() for member in group]
        assert all(state == states[0] for state in states)
        saved = json.dumps(states[0])
    assert found == undisturbed


def test_an_epoch_that_was_handed_out_but_not_left_has_no_more_batches() -> None:
    killed = build(shuffle=False)
    take_loop([killed])
    loop, parts = killed.begin()
    for _ in parts:
        killed.take(loop)
    assert (killed.epoch, killed.steps_left) == (1, 0)
    resumed = build(shuffle=False)
    resumed.load_state_dict(killed.state_dict())
    assert (resumed.epoch, resumed.steps_left) == (1, 0)
    assert take_loop([resumed]) == []
    assert resumed.epoch == 2
    assert take_loop([resumed]) == list(range(10))


def test_a_loop_that_is_broken_off_leaves_its_epoch() -> None:
    broken = build(shuffle=False)
    loop, _ = broken.begin()
    broken.take(loop)
    assert (broken.epoch, broken.steps_left) == (0, 2)
    broken.leave(loop)
    assert (broken.epoch, broken.steps_left) == (1, 3)
    loop, _ = broken.begin()
    broken.take(loop)
    broken.begin()  # as good as broken off
    assert (broken.epoch, broken.steps_left) == (2, 3)


def test_a_loop_without_a_batch_moves_nothing() -> None:
    resumed = build(shuffle=False)
    saved = build(shuffle=False)
    saved.take(saved.begin()[0])
    resumed.load_state_dict(saved.state_dict())
    resumed.begin()
    resumed.begin()
    assert take_loop([resumed]) == [4, 5, 6, 7, 8, 9]


def test_a_loop_that_was_overtaken_raises() -> None:
    taken = build()
    first, _ = taken.begin()
    second, _ = taken.begin()
    taken.take(second)
    taken.leave(first)
    assert taken.epoch == 0
    with pytest.raises(RuntimeError, match=r"cannot go on: another loop, .* Prepare a separate loader for each loop"):
        taken.take(first)
    taken.set_epoch(4)
    with pytest.raises(RuntimeError, match="This loop over the loader cannot go on"):
        taken.take(second)


def test_set_epoch() -> None:
    moved = build(shuffle=False)
    moved.set_epoch(2)
    assert moved.epoch == 2
    moved.take(moved.begin()[0])
    moved.set_epoch(2)  # again
    assert take_loop([moved]) == list(range(10))
    moved.set_epoch(1)
    assert (moved.epoch, moved.steps_left) == (1, 3)
    with pytest.raises(ValueError, match=r"epoch must be 0 or more, but received -1\."):
        moved.set_epoch(-1)
    assert moved.epoch == 1


@pytest.mark.parametrize("epoch", [0, 1])
def test_set_epoch_after_a_restart_goes_on_in_the_epoch_of_the_state(epoch: int) -> None:
    saved = build(shuffle=False)
    saved.take(saved.begin()[0])
    resumed = build(shuffle=False)
    resumed.load_state_dict(saved.state_dict())
    resumed.set_epoch(epoch)
    assert take_loop([resumed]) == ([*range(4, 10)] if epoch == 0 else [*range(10)])


def test_what_fills_no_batch_of_a_larger_group_ends_the_epoch() -> None:
    """9 of 10 rows are done.

    The group is larger, and the epoch's last row fills no batch of it: the loop gets none, then begins the next.
    """
    saved = build(rows=10, batch_size=3, shuffle=False, drop_last=True)
    loop, _ = saved.begin()
    saved.take(loop)
    saved.take(loop)
    resumed = build(rows=10, batch_size=6, shuffle=False, drop_last=True)
    resumed.load_state_dict(saved.state_dict())
    assert (resumed.epoch, resumed.steps_left) == (0, 0)
    assert take_loop([resumed]) == []
    assert (resumed.epoch, resumed.steps_left) == (1, 1)


def test_other_states_are_refused_and_move_nothing() -> None:
    refusing = build()
    with pytest.raises(ValueError, match="num_rows=11, but this ledger has num_rows=10"):
        refusing.load_state_dict(build(rows=11).state_dict())
    with pytest.raises(ValueError, match=r"lacks epoch, position\. Pass the result of state_dict"):
        refusing.load_state_dict(dict.fromkeys(("version", "num_rows", "batch_size", "shuffle", "seed"), 1))
    assert refusing.state_dict() == build().state_dict()
    with pytest.raises(ValueError, match=r"rank must be below world_size, but received rank 2 of 2\."):
        build(world_size=2, rank=2)
