"""Partitioners: TensorFlow's rules, and what a rule of one's own must keep to."""

from __future__ import annotations

import pickle
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from hocket import ps
from hocket.ps.rules import partitioners


@pytest.mark.parametrize(
    ("partitioner", "expected"),
    [
        (ps.MinSize(min_shard_bytes=4, max_shards=2), [2, 1]),
        (ps.MinSize(min_shard_bytes=4, max_shards=10), [6, 1]),
        (ps.MinSize(), [1, 1]),
        (ps.MaxSize(max_shard_bytes=4), [6, 1]),
        (ps.MaxSize(max_shard_bytes=4, max_shards=2), [2, 1]),
        (ps.MaxSize(max_shard_bytes=1024), [1, 1]),
        (ps.FixedShards(2), [2, 1]),
        (ps.FixedShards(7), [6, 1]),
    ],
)
def test_examples_of_tensorflows_documentation(partitioner, expected):
    assert partitioner(shape=[6, 1], dtype=np.float32) == expected
    assert partitioners.count_shards(partitioner, [6, 1], "float32") == expected[0]


@pytest.mark.slow
def test_rules_are_those_of_tensorflow():
    tf: Any = pytest.importorskip("tensorflow")
    theirs = tf.distribute.experimental.partitioners
    numbers = st.one_of(st.integers(1, 50), st.sampled_from([4, 64, 256 << 10, 1 << 30]))

    @hypothesis.given(
        shape=st.lists(st.integers(1, 2000), min_size=1, max_size=3),
        dtype=st.sampled_from(["float32", "float64", "int8", "str"]),
        data=st.data(),
    )
    @hypothesis.settings(max_examples=200, deadline=None)
    def check(shape: list[int], dtype: str, data: Any) -> None:
        axis = data.draw(st.integers(0, len(shape) - 1))
        name, options = data.draw(
            st.one_of(
                st.tuples(st.just("FixedShards"), st.fixed_dictionaries({"num_shards": numbers})),
                st.tuples(
                    st.just("MinSize"),
                    st.fixed_dictionaries(
                        {"min_shard_bytes": numbers, "max_shards": numbers, "bytes_per_string": numbers}
                    ),
                ),
                st.tuples(
                    st.just("MaxSize"),
                    st.fixed_dictionaries(
                        {"max_shard_bytes": numbers, "max_shards": st.none() | numbers, "bytes_per_string": numbers}
                    ),
                ),
            )
        )
        kind = tf.string if dtype == "str" else tf.as_dtype(dtype)
        expected = getattr(theirs, f"{name}Partitioner")(**options)(tf.TensorShape(shape), kind, axis)
        assert getattr(ps, name)(**options)(shape, dtype, axis) == list(expected), (name, options, shape, dtype, axis)

    check()


@hypothesis.given(rows=st.integers(0, 10_000), row_bytes=st.integers(1, 5000), limit=st.integers(1, 1 << 20))
@hypothesis.settings(max_examples=100, deadline=None)
def test_sizes_keep_to_their_limits(rows, row_bytes, limit):
    (many,) = {partitioners.count_shards(ps.MaxSize(limit), (rows, row_bytes), "int8")}
    largest = partitioners.split_rows(rows, many)[0] * row_bytes
    assert largest <= limit or many == max(1, rows)
    few = partitioners.count_shards(ps.MinSize(limit, max_shards=1 << 20), (rows, row_bytes), "int8")
    assert few == 1 or rows * row_bytes > (few - 1) * limit


@hypothesis.given(rows=st.integers(0, 1000), shards=st.integers(1, 1200))
def test_rows_are_split_evenly_longer_ones_first(rows, shards):
    split = partitioners.split_rows(rows, shards)
    assert sum(split) == rows
    assert len(split) == max(1, min(rows, shards))
    assert max(split) - min(split) <= 1
    assert split == sorted(split, reverse=True)


def test_rows_are_split_as_in_tensorflow():
    assert partitioners.split_rows(13, 5) == [3, 3, 3, 2, 2]
    assert partitioners.split_rows(10, 4) == [3, 3, 2, 2]
    assert partitioners.split_rows(2, 5) == [1, 1]
    assert partitioners.split_rows(0, 5) == [0]


def test_what_has_no_rows_is_one_shard():
    for partitioner in (ps.FixedShards(3), ps.MinSize(1, 3), ps.MaxSize(1)):
        assert partitioners.count_shards(partitioner, (0, 4), "float32") == 1
        assert partitioners.count_shards(partitioner, (), "float32") == 1
    assert partitioners.count_shards(ps.MaxSize(1), (5, 0), "float32") == 1
    assert partitioners.count_shards(None, (5, 2), "float32") == 1


def test_a_rule_of_ones_own_is_asked_by_name_and_held_to_the_rows():
    asked: list[Any] = []

    def rule(dtype: Any, shape: Any) -> tuple[int, int]:
        asked.append((shape, dtype))
        return (np.int64(4), 1)  # type: ignore[return-value]

    assert partitioners.count_shards(rule, [3, 5], float) == 3
    assert asked == [((3, 5), np.dtype("float64"))]


@pytest.mark.parametrize("answer", [[2], [1, 2], [0, 1], [-1, 1], [2, 1, 1], [], None, [1.5, 1], 2, "ab"])
def test_a_rule_that_would_cut_elsewhere_is_refused(answer):
    message = r"must return one whole number from 1 for each of the 2 axes, and 1 for all but the first, .* returned .* for shape=\(4, 3\)\. Return \[2, 1\]"
    with pytest.raises(ValueError, match=message):
        partitioners.count_shards(lambda shape, dtype: answer, (4, 3), "float32")


BAD: list[tuple[Any, dict[str, Any], str]] = [
    (
        ps.FixedShards,
        {"num_shards": 0},
        r"num_shards must be a whole number from 1, but received 0\. Give the number of servers",
    ),
    (ps.FixedShards, {"num_shards": 2.0}, r"num_shards must be a whole number from 1, but received 2\.0"),
    (
        ps.MinSize,
        {"min_shard_bytes": 0},
        r"min_shard_bytes must be a whole number from 1, but received 0\. Give 262144",
    ),
    (ps.MinSize, {"max_shards": -1}, "max_shards must be a whole number from 1, but received -1"),
    (ps.MinSize, {"bytes_per_string": None}, "bytes_per_string must be a whole number from 1, but received None"),
    (ps.MaxSize, {"max_shard_bytes": True}, "max_shard_bytes must be a whole number from 1, but received True"),
    (ps.MaxSize, {"max_shard_bytes": 1, "max_shards": 0}, "max_shards must be a whole number from 1, but received 0"),
    (
        ps.MaxSize,
        {"max_shard_bytes": 1, "bytes_per_string": 0},
        "bytes_per_string must be a whole number from 1, but received 0",
    ),
]


@pytest.mark.parametrize(("kind", "options", "message"), BAD)
def test_bad_numbers_are_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**options)


def test_bad_shapes_are_refused():
    with pytest.raises(
        ValueError,
        match=r"axis must be one of the shape's 2 axes, but received axis=2 with shape=\[6, 1\]\. Leave it out",
    ):
        ps.FixedShards(2)([6, 1], "float32", axis=2)
    with pytest.raises(ValueError, match="each length in shape must be a whole number from 0, but received None"):
        ps.FixedShards(2)([None, 1], "float32")  # type: ignore[list-item]
    with pytest.raises(ValueError, match="num_rows must be a whole number from 0, but received -1"):
        partitioners.split_rows(-1, 2)
    with pytest.raises(ValueError, match="num_shards must be a whole number from 1, but received 0"):
        partitioners.split_rows(4, 0)


def test_a_partitioner_travels_and_is_a_value():
    for one in (ps.FixedShards(2), ps.MinSize(), ps.MaxSize(5)):
        assert pickle.loads(pickle.dumps(one)) == one
