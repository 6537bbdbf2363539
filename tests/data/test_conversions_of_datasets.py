"""References on blocks, sums of columns, users' own aggregates, and what Ray's keywords do."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped,unused-ignore]  # it may lack its stubs
import pyarrow as pa
import pytest

import hocket
from hocket import data
from hocket.data import aggregate

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", autouse=True)
def here() -> Iterator[hocket.SessionContext]:
    with hocket.init(num_cpus=2) as context:
        yield context


def as_any(value: object) -> Any:
    return value


# --- references -------------------------------------------------------------------------------------------------------


def test_blocks_are_references() -> None:
    rows = data.range(5, override_num_blocks=2).map_batches(
        lambda batch: {"x": batch["id"], "s": batch["id"].astype(str)}
    )
    tables = hocket.get(rows.to_arrow_refs())
    assert [table.num_rows for table in tables] == [2, 3]
    assert pa.concat_tables(tables).to_pylist() == rows.take_all()
    assert pd.concat(hocket.get(rows.to_pandas_refs()))["x"].tolist() == list(range(5))
    assert [found["x"].tolist() for found in hocket.get(rows.to_numpy_refs())] == [[0, 1], [2, 3, 4]]
    assert [found.tolist() for found in hocket.get(rows.to_numpy_refs(column="x"))] == [[0, 1], [2, 3, 4]]
    with pytest.raises(KeyError, match="no column 'gone'"):
        hocket.get(rows.to_numpy_refs(column="gone"))


def test_references_are_blocks() -> None:
    table = pa.table({"x": [1, 2]})
    refs = [hocket.put(table), hocket.put(table.slice(1))]
    assert data.from_arrow_refs(refs).sum("x") == 5
    assert data.from_arrow_refs(refs).map(lambda row: {"x": row["x"] * 10}).take_all() == [
        {"x": 10},
        {"x": 20},
        {"x": 20},
    ]
    assert data.from_pandas_refs(hocket.put(pd.DataFrame({"y": [7]}))).take_all() == [{"y": 7}]
    assert data.from_numpy_refs([hocket.put(np.arange(3))]).take_all() == [{"data": 0}, {"data": 1}, {"data": 2}]
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    assert data.from_arrow_refs(hocket.put(stream.getvalue().to_pybytes())).sum("x") == 3

    @hocket.remote
    def make(start: int) -> pa.Table:
        return pa.table({"x": [start, start + 1]})

    assert data.from_arrow_refs([make.remote(0), make.remote(5)]).sum("x") == 12
    with pytest.raises(TypeError, match=r"from_arrow_refs\(\) takes references, but received 3"):
        data.from_arrow_refs([3])
    with pytest.raises(TypeError, match=r"The value of a reference in from_pandas_refs\(\) must be a dict of arrays"):
        data.from_pandas_refs(hocket.put(3)).take_all()


def test_blocks_of_several_kinds() -> None:
    rows = data.from_blocks([pa.table({"x": [1]}), pd.DataFrame({"x": [2]}), {"x": np.array([3])}])
    assert (rows.num_blocks(), rows.take_all()) == (3, [{"x": 1}, {"x": 2}, {"x": 3}])
    assert data.from_blocks([]).count() == 0
    with pytest.raises(TypeError, match=r"A block of from_blocks\(\) must be a dict of arrays"):
        data.from_blocks([3])


def test_datasets_are_copied_and_sent() -> None:
    rows = data.range(3).map(lambda row: {"x": row["id"]})
    assert copy.copy(rows).take_all() == copy.deepcopy(rows).take_all() == rows.take_all()
    kept = data.range(3).materialize()
    assert pickle.loads(pickle.dumps(data.range(3))).take_all() == kept.take_all()

    @hocket.remote
    def count(given: data.Dataset) -> int:
        return given.count()

    assert hocket.get(count.remote(kept)) == 3


# --- sums of columns --------------------------------------------------------------------------------------------------


def test_summary() -> None:
    rows = data.from_items(
        [
            {"x": 1, "f": 0.5, "s": "b", "l": [1]},
            {"x": None, "f": 1.5, "s": "a", "l": [2, 3]},
            {"x": 3, "f": 0.0, "s": "a", "l": []},
            {"x": 0, "f": 2.0, "s": None, "l": [4]},
        ]
    )
    found = rows.summary()
    assert found.columns == ["x", "f", "s"]
    assert found.statistics["f"] == {
        "count": 4,
        "missing_pct": 0.0,
        "mean": 1.0,
        "min": 0.0,
        "max": 2.0,
        "std": pytest.approx(0.912870929),
        "zero_pct": 25.0,
        "approx_quantile[0]": 1.0,
    }
    assert found.statistics["x"]["missing_pct"] == 25.0
    assert found.statistics["s"] == {
        "count": 4,
        "missing_pct": 25.0,
        "approx_topk[0]": {"s": "a", "count": 2},
        "approx_topk[1]": {"s": "b", "count": 1},
    }
    frame = found.to_pandas().set_index("statistic")
    assert frame.loc["mean", "x"] == 4 / 3
    assert frame.loc["mean", "s"] is None
    assert found.get_column_stats("x").set_index("statistic").loc["max", "value"] == 3
    assert rows.summary(["s"]).columns == ["s"]
    with pytest.raises(KeyError, match="no column 'gone'"):
        rows.summary(["gone"])
    assert data.from_items([]).summary().columns == []


# --- aggregates of users ----------------------------------------------------------------------------------------------


def build_total(name: str = "total") -> aggregate.AggregateFn:
    return aggregate.AggregateFn(
        init=lambda key: 0,
        accumulate_row=lambda made, row: made + (row["x"] or 0),
        merge=lambda one, other: one + other,
        name=name,
    )


class Range(aggregate.AggregateFnV2):
    """The distance between the least and the greatest value."""

    def __init__(self, on: str) -> None:
        super().__init__(f"range({on})", zero_factory=list, on=on, ignore_nulls=True)

    def aggregate_block(self, block: pa.Table) -> list[int]:
        values = block.column(self.get_target_column()).drop_null().to_pylist()
        return [min(values), max(values)] if values else []

    def combine(self, current_accumulator: list[int], new: list[int]) -> list[int]:
        both = [*current_accumulator, *new]
        return [min(both), max(both)] if both else []

    def finalize(self, accumulator: list[int]) -> int | None:
        return accumulator[1] - accumulator[0] if accumulator else None


@pytest.mark.parametrize("num_blocks", [1, 4])
def test_aggregates_of_a_users(num_blocks: int) -> None:
    values = [None if at % 7 == 0 else at for at in range(40)]
    keys = [None if at % 5 == 4 else f"k{at % 5}" for at in range(40)]
    rows = data.from_items(
        [{"x": x, "k": k, "j": at % 2} for at, (x, k) in enumerate(zip(values, keys, strict=True))],
        override_num_blocks=num_blocks,
    )
    assert rows.aggregate(build_total(), Range("x")) == {"total": sum(x or 0 for x in values), "range(x)": 38}
    grouped = rows.groupby("k").aggregate(Range("x"), aggregate.Sum("x"), build_total()).take_all()
    assert [row["k"] for row in grouped] == ["k0", "k1", "k2", "k3", None]
    assert list(grouped[0]) == ["k", "range(x)", "sum(x)", "total"]
    for row in grouped:
        own = [x for x, k in zip(values, keys, strict=True) if k == row["k"] and x is not None]
        assert row == {"k": row["k"], "range(x)": max(own) - min(own), "sum(x)": sum(own), "total": sum(own)}
    both = rows.groupby(["j", "k"]).aggregate(build_total()).take_all()
    assert len(both) == 10
    assert sum(row["total"] for row in both) == sum(x or 0 for x in values)
    counted = rows.aggregate(aggregate.ValueCounter("k"), aggregate.ApproximateTopK("k", 2))
    assert counted["value_counter(k)"] == {"counts": [8] * 5, "values": ["k0", "k1", "k2", "k3", None]}
    assert counted["approx_topk(k)"] == [{"k": "k0", "count": 8}, {"k": "k1", "count": 8}]


def test_aggregates_of_users_take_blocks_and_keys() -> None:
    rows = data.range(10, override_num_blocks=3).map_batches(
        lambda batch: {**batch, "x": batch["id"], "k": batch["id"] % 2}
    )
    longest = aggregate.AggregateFn(
        init=lambda key: [key, 0],
        accumulate_block=lambda made, table: [made[0], made[1] + table.num_rows],
        merge=lambda one, other: [one[0], one[1] + other[1]],
        name="seen",
        finalize=lambda made: f"{made[0]}: {made[1]}",
    )
    assert rows.groupby("k").aggregate(longest).take_all() == [{"k": 0, "seen": "0: 5"}, {"k": 1, "seen": "1: 5"}]
    assert rows.aggregate(longest) == {"seen": "None: 10"}
    twice = rows.groupby("k").aggregate(build_total(), aggregate.Sum("x"), build_total()).take_all()
    assert all(row["total"] == row["total_2"] for row in twice)
    assert list(rows.aggregate(build_total(), build_total("total_2"), build_total())) == ["total", "total_2", "total_3"]
    assert rows.filter(lambda row: False).aggregate(build_total(), aggregate.Count()) == {"total": 0, "count()": 0}
    quantiles = data.range(101).aggregate(aggregate.ApproximateQuantile("id", [0.1, 0.5]))
    assert quantiles == {"approx_quantile(id)": [10.0, 50.0]}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: aggregate.AggregateFn(len, max, "x"), TypeError, "accumulate_block, but received neither"),
        (
            lambda: aggregate.AggregateFn(as_any(3), max, "x", accumulate_row=max),
            TypeError,
            r"init of AggregateFn\(\) must be a function, but received 3",
        ),
        (
            lambda: build_total(as_any(None)),
            TypeError,
            r"name of AggregateFn\(\) must be a text that is not empty, but received None",
        ),
        (
            lambda: data.range(1).groupby("id").aggregate(build_total("id")),
            ValueError,
            r"Two columns of the result would have the same name: \['id', 'id'\]",
        ),
        (lambda: data.range(1).aggregate(Range("gone")), KeyError, "no column 'gone'"),
        (lambda: aggregate.ApproximateTopK("x", 0), ValueError, "k must be a whole number from 1, but received 0"),
        (lambda: aggregate.ApproximateQuantile("x", [2]), ValueError, "quantiles must be numbers from 0 to 1"),
        (lambda: data.range(9).streaming_train_test_split(2), ValueError, "test_size must be a share between 0 and 1"),
        (
            lambda: data.range(9).streaming_train_test_split(0.5, split_type="hash"),
            ValueError,
            "split_type must be 'random', or 'hash' with a hash_column",
        ),
        (
            lambda: data.range(9).streaming_train_test_split(0.5, split_type="hash", hash_column="id", seed=1),
            ValueError,
            "is for split_type='random' only",
        ),
    ],
)
def test_a_mistake_is_told(make: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


# --- keywords ---------------------------------------------------------------------------------------------------------


def test_parts_that_are_not_executed() -> None:
    rows = data.range(1000, override_num_blocks=4)
    train, test = rows.streaming_train_test_split(0.2, seed=3)
    taken = [row["id"] for row in test.take_all()]
    assert 150 < len(taken) < 250
    assert sorted([*taken, *(row["id"] for row in train.take_all())]) == list(range(1000))
    assert taken == [row["id"] for row in rows.streaming_train_test_split(0.2, seed=3)[1].take_all()]
    named = rows.map(lambda row: {"user": f"u{row['id'] % 50}"})
    train, test = named.streaming_train_test_split(0.3, split_type="hash", hash_column="user")
    assert not set(train.unique("user")) & set(test.unique("user"))
    assert train.count() + test.count() == 1000
    whole, floats = (data.from_items([{"user": kind(at)} for at in range(100)]) for kind in (int, float))
    train, test = whole.union(floats).streaming_train_test_split(0.3, split_type="hash", hash_column="user")
    assert not set(train.unique("user")) & set(test.unique("user"))


def test_keywords_of_ray() -> None:
    rows = data.range(10)
    assert type(next(iter(rows.iter_batches(batch_format=None)))) is pa.Table
    doubled = rows.map_batches(lambda batch: {"x": batch["id"] * 2}, batch_size="auto", udf_modifying_row_count=False)
    assert doubled.sum("x") == 90
    config = data.RandomSeedConfig(seed=5)
    assert rows.random_shuffle(seed=config).take_all() == rows.random_shuffle(seed=5).take_all()
    assert len(list(rows.random_shuffle(seed=5, num_blocks=3).iter_batches(batch_size=None))) == 3
    assert rows.sort("id", descending=True, boundaries=[5]).take(1) == [{"id": 9}]
    assert doubled.schema(fetch_if_missing=False) is None
    assert doubled.columns(fetch_if_missing=False) is None
    assert rows.columns(fetch_if_missing=False) == ["id"]
    assert data.from_items([{"x": 1}, {"x": None}]).unique("x", ignore_nulls=True) == [1]


def test_a_frame_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(hocket.exceptions.MissingExtraError, match=r"pip install pandas, or use to_arrow\(\)"):
        data.range(2).to_pandas()
