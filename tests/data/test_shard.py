"""A rank's part of a data set: equal steps, each row once, for whatever numbers; and going on."""

from __future__ import annotations

import itertools
import json
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from hocket import data
from hocket.data import block_reads, blocks, execution, shard

SETTINGS = hypothesis.settings(max_examples=80, deadline=None)


def build_source(sizes: list[int], seed: int | None = None) -> execution.Source:
    """Rows that are numbered, in blocks of these sizes."""
    ends = np.cumsum([0, *sizes])
    held = [
        block_reads.Held(
            blocks.build({"row": np.arange(start, stop), "text": [str(row) for row in range(start, stop)]}, "it")
        )
        for start, stop in itertools.pairwise(ends)
    ]
    return execution.Source(held, seed)


def open_shards(source: execution.Source, world_size: int, state: Any = None) -> list[shard.DataIterator]:
    return [shard.DataIterator(source, "train", rank, world_size, state) for rank in range(world_size)]


def read(shards: list[shard.DataIterator], given: dict[str, Any]) -> list[list[int]]:
    """Run a loop in all ranks in step; return the rows of each global batch that count."""
    loops = [one.iter_batches(**given) for one in shards]
    steps = []
    for batches in zip(*loops, strict=True):  # strict: the steps are equal
        found = []
        for one, batch in zip(shards, batches, strict=True):
            assert batch["text"].tolist() == [str(row) for row in batch["row"]]  # the columns stay together
            found += batch["row"][one.weights == 1].tolist()
        steps.append(found)
    return steps


plans = st.fixed_dictionaries(
    {
        "sizes": st.lists(st.integers(1, 40), min_size=1, max_size=6),
        "seed": st.none() | st.integers(0, 3),
        "world_size": st.integers(1, 6),
        "batch_size": st.integers(1, 12),
        "buffer": st.none() | st.integers(1, 60),
        "buffer_seed": st.integers(0, 3),
        "prefetch": st.integers(0, 2),
    }
)


def list_arguments(given: dict[str, Any]) -> dict[str, Any]:
    return {
        "batch_size": given["batch_size"],
        "local_shuffle_buffer_size": given["buffer"],
        "local_shuffle_seed": given["buffer_seed"],
        "prefetch_batches": given["prefetch"],
    }


@hypothesis.given(given=plans)
@SETTINGS
def test_ranks_take_equal_steps_and_each_row_once(given: dict[str, Any]) -> None:
    source = build_source(given["sizes"], given["seed"])
    shards = open_shards(source, given["world_size"])
    alone = open_shards(source, 1)
    arguments = list_arguments(given)
    together = {**arguments, "batch_size": given["batch_size"] * given["world_size"]}
    for epoch in range(2):
        assert {one.epoch for one in shards} == {epoch}
        steps = read(shards, arguments)
        rows = [row for step in steps for row in step]
        assert sorted(rows) == list(range(source.num_rows))
        assert steps == read(alone, together)  # the world size cannot be seen
        if given["seed"] is None:
            if given["buffer"] is None:
                assert rows == sorted(rows)
            else:  # no row leaves its window
                window = min(given["buffer"], source.num_rows)
                assert [row // window for row in rows] == [at // window for at in range(source.num_rows)]


@hypothesis.given(given=plans)
@SETTINGS
def test_rows_that_fill_no_batch_are_dropped_by_all(given: dict[str, Any]) -> None:
    source = build_source(given["sizes"], given["seed"])
    shards = open_shards(source, given["world_size"])
    together = given["batch_size"] * given["world_size"]
    arguments = {**list_arguments(given), "drop_last": True}
    if source.num_rows < together:
        with pytest.raises(
            ValueError, match=rf"'train' has {source.num_rows} rows, but a step of .* so an epoch would have no step"
        ):
            read(shards, arguments)
        return
    steps = read(shards, arguments)
    assert {len(step) for step in steps} == {together}
    rows = [row for step in steps for row in step]
    assert len(rows) == len(set(rows)) == source.num_rows // together * together


@hypothesis.given(given=plans, kills=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 12)), max_size=4))
@SETTINGS
def test_ranks_that_are_killed_read_what_undisturbed_ones_do(
    given: dict[str, Any], kills: list[tuple[int, int]]
) -> None:
    source = build_source(given["sizes"], given["seed"])
    arguments = list_arguments(given)
    (alone,) = open_shards(source, 1)
    undisturbed = [row for _ in range(3) for step in read([alone], arguments) for row in step]
    found: list[int] = []
    saved = "{}"
    for world_size, stop in [*kills, (2, None)]:
        shards = open_shards(source, world_size, json.loads(saved))
        steps, loops = 0, []
        for _ in range(shards[0].epoch, 3):
            loops = [iter(one.iter_batches(**arguments)) for one in shards]  # held, so that nothing is broken off
            for batches in zip(*loops, strict=True):
                found += [
                    row
                    for one, batch in zip(shards, batches, strict=True)
                    for row in batch["row"][one.weights == 1].tolist()
                ]
                steps += 1
                if steps == stop:
                    break
            if steps == stop:
                break
        states = [one.state_dict() for one in shards]
        assert all(state == states[0] for state in states)
        saved = json.dumps(states[0])
    assert found == undisturbed


def test_fewer_rows_than_ranks_make_one_step_with_fillers_that_do_not_count() -> None:
    shards = open_shards(build_source([2]), 4)
    found = []
    for one in shards:
        found += [
            (batch["row"].tolist(), one.weights.tolist(), one.loss_scale) for batch in one.iter_batches(batch_size=3)
        ]
    assert found == [([0], [1.0], 2.0), ([1], [1.0], 2.0), ([0], [0.0], 0.0), ([0], [0.0], 0.0)]


def test_a_loop_that_does_not_ask_for_the_weight_of_a_filler_is_warned() -> None:
    with pytest.warns(
        UserWarning,
        match="The last batch of the data set 'train' has 1 rows for 2 ranks, so rank 1 got a row of another rank",
    ) as caught:
        assert len(list(open_shards(build_source([1]), 2)[1].iter_batches())) == 1
    assert caught[0].filename == __file__


def test_each_rank_reads_only_the_blocks_that_it_needs() -> None:
    source = build_source([10, 10, 10, 10])
    asked: list[int] = []

    class Counting(shard.DataIterator):  # type: ignore[misc]  # it is final for users
        def _fetch(self, number: int) -> blocks.Block:
            asked.append(number)
            return super()._fetch(number)

    list(Counting(source, "train", 1, 2).iter_batches(batch_size=10))
    assert sorted(set(asked)) == [1, 3]


def test_batches_are_the_callers_own() -> None:
    (one,) = open_shards(build_source([4]), 1)
    for _ in range(2):
        (batch,) = one.iter_batches(batch_size=4)
        assert batch["row"].tolist() == [0, 1, 2, 3]
        batch["row"] += 7


def test_rows_come_one_by_one_too() -> None:
    shards = open_shards(build_source([3, 2]), 2)
    with pytest.warns(UserWarning, match="rank 1 got a row of another rank"):
        found = [[row["row"] for row in one.iter_rows()] for one in shards]
    assert found == [[0, 2, 4], [1, 3, 4]]
    assert [[row["row"] for row in one.materialize().iter_rows()] for one in shards] == [[0, 1, 2], [3, 4]]


def test_another_batch_size_begins_the_next_epoch() -> None:
    (one,) = open_shards(build_source([6], seed=0), 1)
    assert read([one], {"batch_size": 4}) != read([one], {"batch_size": 6})
    assert one.epoch == 2
    for _ in one.iter_batches(batch_size=2):
        break
    assert one.epoch == 3
    (state,) = [one.state_dict() for _ in one.iter_batches(batch_size=6)]
    assert (state["epoch"], state["ending"]) == (4, True)


@pytest.mark.parametrize("by", ["a loop", "a loop of other batches", "a state"])
def test_a_loop_that_was_overtaken_raises(by: str) -> None:
    (one,) = open_shards(build_source([6], seed=0), 1)
    batches = iter(one.iter_batches(batch_size=2))
    next(batches)
    if by == "a state":
        one.load_state_dict({})
    else:
        assert read([one], {"batch_size": 2 if by == "a loop" else 3})
    with pytest.raises(RuntimeError, match=r"cannot go on: .* pass the data set to the trainer under a second name"):
        next(batches)
    assert sorted(itertools.chain(*read([one], {"batch_size": 2}))) == list(range(6))


def test_a_position_of_another_shuffle_is_refused() -> None:
    (one,) = open_shards(build_source([6]), 1)
    loop = iter(one.iter_batches(batch_size=2, local_shuffle_buffer_size=4))
    next(loop)
    state = one.state_dict()
    (other,) = open_shards(build_source([6]), 1, state)
    with pytest.raises(
        ValueError,
        match="'train' was saved with local_shuffle_buffer_size=4 and local_shuffle_seed=0, but the loop has None "
        "and 0",
    ):
        read([other], {"batch_size": 2})
    (third,) = open_shards(build_source([7]), 1, state)
    with pytest.raises(ValueError, match=r"position in the data set 'train' does not fit that data set: .*num_rows=6"):
        read([third], {"batch_size": 2, "local_shuffle_buffer_size": 4})
    third.load_state_dict({})
    assert len(read([third], {"batch_size": 2})) == 4


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be 1 or more rows, but received 0"),
        ({"batch_size": None}, TypeError, "batch_size must be a whole number of rows, but received None"),
        ({"batch_size": 2.5}, TypeError, "batch_size must be a whole number of rows, but received 2.5"),
        (
            {"local_shuffle_buffer_size": 0},
            ValueError,
            "local_shuffle_buffer_size must be a whole number from 1, but received 0",
        ),
        ({"prefetch_batches": -1}, ValueError, "prefetch_batches must be a whole number from 0, but received -1"),
        ({"batch_format": "torch"}, ValueError, "batch_format must be one of 'default', .* but received 'torch'"),
    ],
)
def test_a_mistake_is_told_where_the_loop_is_made(given: dict[str, Any], error: type[Exception], message: str) -> None:
    (one,) = open_shards(build_source([6]), 1)
    with pytest.raises(error, match=message):
        one.iter_batches(**given)


def test_what_is_no_loop_says_what_is() -> None:
    (one,) = open_shards(build_source([6]), 1)
    with pytest.raises(TypeError, match=r"Write iter_batches\(\), iter_torch_batches\(\) or iter_rows\(\)"):
        iter(one)
    with pytest.raises(RuntimeError, match="loss_scale belongs to the latest batch, but no batch was handed out yet"):
        _ = one.loss_scale
    with pytest.raises(ValueError, match="'train' has 0 rows"):
        read(open_shards(execution.Source([], None), 1), {})
    assert repr(one) == "DataIterator('train', rank 0 of 1, 6 rows in all)"
    assert one.count() == 6
    assert one.schema() == data.Schema(names=["row", "text"], types=["int64", "string"])
