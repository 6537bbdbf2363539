"""The sample ledger: equal steps, each row once, and resuming with any number of ranks."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from hocket.data import Ledger, Slice, ledger, order

SETTINGS = hypothesis.settings(max_examples=200, deadline=None)

plans = st.fixed_dictionaries(
    {
        "num_rows": st.integers(1, 300),
        "batch_size": st.integers(1, 70),
        "seed": st.integers(0, order.MAX_SEED),
        "shuffle": st.booleans(),
        "drop_last": st.booleans(),
    }
).filter(lambda plan: not (plan["drop_last"] and plan["num_rows"] < plan["batch_size"]))
worlds = st.integers(1, 9)


def take_step(ledgers: list[Ledger]) -> list[Slice]:
    """Do one global step, each rank with a ledger of its own."""
    parts = [own.slice_for(rank, len(ledgers)) for rank, own in enumerate(ledgers)]
    for own in ledgers:
        own.advance()
    return parts


def join(parts: list[Slice]) -> list[int]:
    return [row for part in parts for row in part.indices.tolist()]


def read_undisturbed(plan, steps: int) -> list[list[int]]:
    """The rows of each global batch, as one process reads them from the order itself."""
    size, epoch = plan["batch_size"], 0
    batches: list[list[int]] = []
    while len(batches) < steps:
        epoch_order = order.Order(plan["num_rows"], seed=plan["seed"], epoch=epoch, shuffle=plan["shuffle"])
        rows = epoch_order.rows(np.arange(plan["num_rows"])).tolist()
        cuts = [rows[start : start + size] for start in range(0, len(rows), size)]
        batches += [batch for batch in cuts if len(batch) == size or not plan["drop_last"]]
        epoch += 1
    return batches[:steps]


# -- equal steps, each row once ---------------------------------------------------------------------------------------


@hypothesis.given(plan=plans, world_size=worlds, epoch=st.integers(0, 5))
@SETTINGS
def test_ranks_take_equal_steps_and_each_row_once(plan, world_size, epoch):
    own = Ledger(**plan)
    own.set_epoch(epoch)
    by_rank = [list(own.slices(rank, world_size)) for rank in range(world_size)]
    assert {len(parts) for parts in by_rank} == {own.steps_per_epoch}

    seen = [row for parts in by_rank for part in parts for row in part.indices.tolist()]
    assert len(seen) == len(set(seen))
    assert set(seen) <= set(range(plan["num_rows"]))
    lost = plan["num_rows"] - len(seen)
    assert lost == (plan["num_rows"] % plan["batch_size"] if plan["drop_last"] else 0)

    for parts in zip(*by_rank, strict=True):
        sizes = [len(part.indices) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        assert {part.batch_rows for part in parts} == {sum(sizes)}
        assert {(part.epoch, part.position) for part in parts} == {(epoch, parts[0].position)}


@hypothesis.given(plan=plans, world_size=worlds)
@SETTINGS
def test_padding_has_one_shape_and_weighs_nothing(plan, world_size):
    own = Ledger(**plan)
    width = -(-plan["batch_size"] // world_size)
    for rank in range(world_size):
        for part in own.slices(rank, world_size):
            assert len(part.padded_indices) == len(part.weights) == part.width == width
            assert part.padded_indices[part.weights == 1].tolist() == part.indices.tolist()
            assert set(part.weights.tolist()) <= {0.0, 1.0}
            assert part.padded_indices.max() < plan["num_rows"]


@hypothesis.given(plan=plans, world_size=worlds)
@SETTINGS
def test_all_world_sizes_read_the_same_global_batches(plan, world_size):
    steps = min(60, 2 * Ledger(**plan).steps_per_epoch + 1)
    ledgers = [Ledger(**plan) for _ in range(world_size)]
    assert [join(take_step(ledgers)) for _ in range(steps)] == read_undisturbed(plan, steps)


@hypothesis.given(plan=plans, world_size=worlds)
@SETTINGS
def test_reading_ahead_is_reading_step_by_step(plan, world_size):
    own, ahead = Ledger(**plan), Ledger(**plan)
    for rank in range(world_size):
        own.load_state_dict(ahead.state_dict())
        for part in ahead.slices(rank, world_size):
            now = own.slice_for(rank, world_size)
            assert (part.position, part.batch_rows) == (now.position, now.batch_rows)
            assert part.indices.tolist() == now.indices.tolist()
            assert part.padded_indices.tolist() == now.padded_indices.tolist()
            own.advance()
    assert (ahead.epoch, ahead.position) == (0, 0)


@pytest.mark.parametrize(
    ("num_rows", "batch_size", "world_size"), [(20_001, 3000, 2), (30_000, 10_000, 1), (9000, 7, 4)]
)
def test_blocks_that_are_read_at_once_are_not_seen(num_rows, batch_size, world_size):
    own = Ledger(num_rows, batch_size, seed=1)
    by_rank = [list(own.slices(rank, world_size)) for rank in range(world_size)]
    batches = [[row for part in parts for row in part.indices.tolist()] for parts in zip(*by_rank, strict=True)]
    plan = {"num_rows": num_rows, "batch_size": batch_size, "seed": 1, "shuffle": True, "drop_last": False}
    assert batches == read_undisturbed(plan, own.steps_per_epoch)


def test_slices_can_be_written_to():
    first, second = list(Ledger(8, batch_size=4, shuffle=False).slices(0, 1))
    first.indices[:] = -1
    assert second.indices.tolist() == [4, 5, 6, 7]


@hypothesis.given(num_rows=st.integers(0, 1000), world_size=worlds)
def test_a_cut_is_a_partition(num_rows, world_size):
    cuts = [ledger.cut(num_rows, rank, world_size) for rank in range(world_size)]
    assert [cuts[0][0], *(end for _, end in cuts)] == [*(first for first, _ in cuts), num_rows]


def test_scaled_losses_average_to_the_mean_of_the_batch():
    losses = np.arange(1.0, 12.0) ** 2
    own = Ledger(11, batch_size=8, seed=2)
    while own.epoch == 0:
        parts = [own.slice_for(rank, 3) for rank in range(3)]
        batch = join(parts)
        average = sum(losses[part.indices].sum() * part.loss_scale for part in parts) / 3
        assert average == pytest.approx(losses[batch].mean(), rel=1e-14)
        own.advance()


# -- resuming ---------------------------------------------------------------------------------------------------------


@hypothesis.given(data=st.data(), plan=plans, world_sizes=st.lists(worlds, min_size=2, max_size=5))
@SETTINGS
def test_killed_runs_with_other_world_sizes_read_what_an_undisturbed_run_reads(data, plan, world_sizes):
    steps = min(60, 3 * Ledger(**plan).steps_per_epoch)
    kills = sorted(
        data.draw(st.lists(st.integers(0, steps), min_size=len(world_sizes) - 1, max_size=len(world_sizes) - 1))
    )
    saved = json.dumps(Ledger(**plan).state_dict())
    read: list[list[int]] = []
    for world_size, kill in zip(world_sizes, [*kills, steps], strict=True):
        ledgers = [Ledger(**plan) for _ in range(world_size)]
        for own in ledgers:
            own.load_state_dict(json.loads(saved))
        while len(read) < kill:
            read.append(join(take_step(ledgers)))
            saved = json.dumps(ledgers[-1].state_dict())
        take_step(ledgers)  # a step that was not saved, and is done again by the next group
    assert read == read_undisturbed(plan, steps)


@pytest.mark.slow
def test_fifty_kills():
    plan: dict[str, Any] = {"num_rows": 1003, "batch_size": 24, "seed": 5, "shuffle": True, "drop_last": False}
    random = np.random.default_rng(0)
    state = Ledger(**plan).state_dict()
    read: list[list[int]] = []
    for _ in range(50):
        ledgers = [Ledger(**plan) for _ in range(int(random.integers(1, 9)))]
        for own in ledgers:
            own.load_state_dict(state)
        for _ in range(int(random.integers(0, 12))):
            read.append(join(take_step(ledgers)))
            state = ledgers[0].state_dict()
    assert len(read) > 5 * Ledger(**plan).steps_per_epoch
    assert read == read_undisturbed(plan, len(read))


@hypothesis.given(plan=plans, steps=st.integers(0, 400), more=st.integers(0, 400))
@SETTINGS
def test_many_steps_at_once_are_many_steps(plan, steps, more):
    at_once, one_by_one = Ledger(**plan), Ledger(**plan)
    at_once.advance(steps)
    at_once.advance(more)
    for _ in range(steps + more):
        one_by_one.advance()
    assert at_once.state_dict() == one_by_one.state_dict()
    assert (at_once.epoch, at_once.position) == (
        (steps + more) // at_once.steps_per_epoch,
        (steps + more) % at_once.steps_per_epoch * plan["batch_size"],
    )
    assert 0 < at_once.steps_left <= at_once.steps_per_epoch


@hypothesis.given(data=st.data(), plan=plans, sizes=st.lists(st.integers(1, 70), min_size=1, max_size=4))
@SETTINGS
def test_rows_that_are_left_are_cut_anew_for_another_batch_size(data, plan, sizes):
    plan = {**plan, "drop_last": False}
    own = Ledger(**plan)
    read: list[int] = []
    for size in [*sizes, plan["batch_size"]]:
        state = own.state_dict()
        own = Ledger(**{**plan, "batch_size": size})
        own.load_state_dict(state, rebatch=True)
        for _ in range(data.draw(st.integers(0, 3))):
            if own.epoch:
                break
            read += own.slice_for(0, 1).indices.tolist()
            own.advance()
    if not own.epoch:
        read += [row for part in own.slices(0, 1) for row in part.indices.tolist()]
    assert read == [row for batch in read_undisturbed(plan, Ledger(**plan).steps_per_epoch) for row in batch]


def test_what_was_cut_anew_is_saved_and_loaded_like_any_other_state():
    saved = Ledger(100, batch_size=10, seed=1)
    saved.advance(3)
    larger = Ledger(100, batch_size=16, seed=1)
    larger.load_state_dict(saved.state_dict(), rebatch=True)
    larger.advance()
    again = Ledger(100, batch_size=16, seed=1)
    again.load_state_dict(larger.state_dict())
    assert (again.position, again.steps_left) == (46, 4)
    assert again.slice_for(1, 3).indices.tolist() == larger.slice_for(1, 3).indices.tolist()


def test_what_is_left_and_fills_no_batch_is_dropped_if_that_is_asked_for():
    whole = Ledger(10, batch_size=4, drop_last=False)
    whole.advance(2)
    dropping = Ledger(10, batch_size=4, drop_last=True)
    dropping.load_state_dict(whole.state_dict())
    assert (dropping.epoch, dropping.position, dropping.steps_left) == (1, 0, 2)


def test_an_epoch_of_trillions_of_rows_is_resumed_in_the_memory_of_a_few():
    own = Ledger(1 << 42, batch_size=1024, seed=3)
    tracemalloc.start()
    own.advance(1 << 31)
    rows = [part.indices for part in own.slices(5, 8, stop=3)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert own.position == 1 << 41
    assert len({int(row) for part in rows for row in part}) == 3 * 128
    assert peak < 1 << 20


def test_epochs_have_other_orders_and_another_ledger_has_the_same():
    ledgers = [Ledger(100, batch_size=100, seed=8) for _ in range(2)]
    epochs = []
    for _ in range(5):
        one, other = (own.slice_for(0, 1).indices.tolist() for own in ledgers)
        assert one == other
        epochs.append(tuple(one))
        for own in ledgers:
            own.advance()
    assert len(set(epochs)) == 5


def test_a_ledger_travels():
    own = Ledger(100, batch_size=10, seed=8)
    own.advance(3)
    copy = pickle.loads(pickle.dumps(own))
    assert copy.state_dict() == own.state_dict()
    assert copy.slice_for(0, 2).indices.tolist() == own.slice_for(0, 2).indices.tolist()


def test_numbers_of_numpy_are_numbers():
    plan: dict[str, Any] = {"num_rows": np.int64(9), "batch_size": np.int32(4), "shuffle": np.bool_(False)}
    plan["seed"] = np.uint64(order.MAX_SEED)
    own = Ledger(**plan)
    own.advance()
    assert json.loads(json.dumps(own.state_dict()))["seed"] == order.MAX_SEED
    place: dict[str, Any] = {"rank": np.int64(1), "world_size": np.int64(2)}
    assert own.slice_for(**place).indices.tolist() == [6, 7]


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_rows": 0}, ValueError, r"num_rows must be from 1 to 281474976710656, but received 0\."),
        (
            {"num_rows": order.MAX_ROWS + 1},
            ValueError,
            r"num_rows must be from 1 to .*, but received 281474976710657\.",
        ),
        ({"num_rows": 2.5}, TypeError, r"num_rows must be a whole number, but received 2\.5 of type float\."),
        ({"num_rows": True}, TypeError, r"num_rows must be a whole number, but received True\."),
        ({"batch_size": -1}, ValueError, r"batch_size must be from 1 to .*, but received -1\."),
        ({"batch_size": None}, TypeError, r"batch_size must be a whole number, but received None of type NoneType\."),
        ({"seed": -1}, ValueError, r"seed must be from 0 to 18446744073709551615, but received -1\."),
        (
            {"seed": 1 << 64},
            ValueError,
            r"seed must be from 0 to 18446744073709551615, but received 18446744073709551616\.",
        ),
        ({"shuffle": "yes"}, TypeError, r"shuffle must be True or False, but received 'yes' of type str\."),
        ({"drop_last": 1}, TypeError, r"drop_last must be True or False, but received 1 of type int\."),
        (
            {"num_rows": 7, "batch_size": 8, "drop_last": True},
            ValueError,
            (
                r"With drop_last=True, 7 rows do not fill a batch of 8, so an epoch would have no step\. Pass drop_last=False, or a batch_size of 7 or "
                r"less; batch_size counts the rows of all ranks together\."
            ),
        ),
    ],
)
def test_a_ledger_that_cannot_be(arguments, error, message):
    with pytest.raises(error, match=message):
        Ledger(**{"num_rows": 10, "batch_size": 2, **arguments})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda own: own.slice_for(3, 3),
            r"rank must be below world_size, but received rank 3 of 3\. Ranks count from 0\.",
        ),
        (lambda own: own.slice_for(-1, 3), r"rank must be 0 or more, but received -1\."),
        (lambda own: own.slices(0, 0), r"world_size must be 1 or more, but received 0\."),
        (lambda own: own.slices(0, 1, stop=-1), r"stop must be 0 or more, but received -1\."),
        (lambda own: own.advance(-1), r"steps must be 0 or more, but received -1\."),
        (lambda own: own.set_epoch(-1), r"epoch must be 0 or more, but received -1\."),
    ],
)
def test_a_call_that_cannot_be(call, message):
    with pytest.raises(ValueError, match=message):
        call(Ledger(10, batch_size=2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"num_rows": 99},
            (
                r"saved with num_rows=99, but this ledger has num_rows=100, so rows would be repeated or lost\. Use the same data set, or start "
                r"the epoch anew with set_epoch\(\)\."
            ),
        ),
        (
            {"seed": 6},
            r"saved with seed=6, but this ledger has seed=7, .* Make the ledger with seed=6, or start the epoch anew",
        ),
        (
            {"shuffle": False},
            r"saved with shuffle=False, but this ledger has shuffle=True, .* Make the ledger with shuffle=False, or start the epoch anew",
        ),
        (
            {"batch_size": 5},
            (
                r"saved with batch_size=5, but this ledger has batch_size=10, .* Make the ledger with batch_size=5, or pass rebatch=True to cut "
                r"the rows that are left into batches of 10\."
            ),
        ),
        (
            {"version": 2},
            r"has version 2, but this release of Hocket shuffles by version 1, .* start the epoch anew with set_epoch\(\)\.",
        ),
        (
            {"position": 100},
            r"has position 100, which must be below num_rows=100\. .* start the epoch anew with set_epoch\(\)\.",
        ),
        ({"position": -10}, r"The ledger's state: position must be 0 or more, but received -10\."),
        ({"epoch": -1}, r"The ledger's state: epoch must be 0 or more, but received -1\."),
    ],
)
def test_a_state_of_something_else_is_refused(change, message):
    own = Ledger(100, batch_size=10, seed=7)
    own.advance(3)
    before = own.state_dict()
    with pytest.raises(ValueError, match=message):
        own.load_state_dict({**before, **change})
    assert own.state_dict() == before


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            {},
            r"A ledger's state must have the keys version, num_rows, .* but \{\} lacks version, .* position\. Pass the result of state_dict\(\)",
        ),
        ({"epoch": 1}, r"but \{'epoch': 1\} lacks version, num_rows, batch_size, shuffle, seed, position\."),
        (None, r"but None lacks version, "),
    ],
)
def test_what_is_no_state_is_refused(state, message):
    with pytest.raises(ValueError, match=message):
        Ledger(100, batch_size=10).load_state_dict(state)


def test_a_position_that_is_no_number_is_refused():
    own = Ledger(100, batch_size=10)
    with pytest.raises(
        TypeError, match=r"The ledger's state: position must be a whole number, but received '20' of type str\."
    ):
        own.load_state_dict({**own.state_dict(), "position": "20"})
