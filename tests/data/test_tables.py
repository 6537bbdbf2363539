"""Sorting, grouping, joining and aggregating, beside pandas: odd values, many blocks, each engine."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped,unused-ignore]  # it may lack its stubs
import pyarrow as pa
import pytest

import hocket
from hocket import data
from hocket.data import aggregate as aggregates

pytestmark = pytest.mark.timeout(120)

DECIMAL = decimal.Decimal
untyped: Any = aggregates
DAY = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def draw(values: list[Any], count: int, seed: int) -> list[Any]:
    return [values[at] for at in np.random.default_rng(seed).integers(0, len(values), count)]


def build_columns(count: int) -> dict[str, pa.Array]:
    """Columns of all kinds, each with a few values that come again and again."""
    nested = pa.list_(pa.struct([("a", pa.int8())]))
    kinds: dict[str, tuple[list[Any], Any]] = {
        "int64": ([1, 2, -3], pa.int64()),
        "gaps": ([1, 2, None], pa.int32()),
        "uint64": ([2**63, 1, 0], pa.uint64()),
        "float": ([0.5, math.nan, None, -0.0, 0.0, math.inf], pa.float64()),
        "half": (list(np.array([0.5, 2, -1], np.float16)), pa.float16()),
        "bool": ([True, False, None], pa.bool_()),
        "text": (["", "é", "Z", "a", "\U0001f600", None, "a\0b"], pa.string()),
        "bytes": ([b"", b"\xff", None], pa.binary()),
        "decimal": ([DECIMAL("1.50"), DECIMAL("-2.25"), None], pa.decimal128(9, 2)),
        "stamp": ([DAY, DAY + dt.timedelta(hours=3), None], pa.timestamp("ns", "Europe/Paris")),
        "day": ([dt.date(2026, 1, 1), dt.date(1969, 1, 1), None], pa.date32()),
        "span": ([dt.timedelta(seconds=3), None], pa.duration("us")),
        "time": ([dt.time(3, 4, 5), None], pa.time64("us")),
        "word": (["x", "y", None], pa.dictionary(pa.int8(), pa.string())),
        "nested": ([[{"a": 1}], [], None, [{"a": None}]], nested),
        "none": ([None], pa.null()),
    }
    return {name: pa.array(draw(values, count, at), kind) for at, (name, (values, kind)) in enumerate(kinds.items())}


def build_rows(count: int = 200, num_blocks: int = 1) -> tuple[data.Dataset, pa.Table]:
    table = pa.table({**build_columns(count), "row": np.arange(count)})
    return data.from_arrow(table, override_num_blocks=num_blocks), table


def is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def is_same(found: Any, wanted: Any) -> bool:
    if is_missing(wanted) or is_missing(found):
        return is_missing(found) and is_missing(wanted)
    if isinstance(wanted, float):
        return math.isclose(float(found), wanted, rel_tol=1e-12, abs_tol=1e-12)
    return bool(found == wanted)


def assert_rows(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        different = {name: (one[name], other[name]) for name in one if not is_same(one[name], other[name])}
        assert not different


@pytest.fixture(scope="module", autouse=True)
def here() -> Any:
    with hocket.init(num_cpus=2, engine="inprocess") as context:
        yield context


COLUMNS = list(build_columns(1))
ORDERED = [name for name in COLUMNS if name not in ("nested", "none")]


@pytest.mark.parametrize("num_blocks", [1, 7])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("column", ORDERED)
def test_sorting(column: str, descending: bool, num_blocks: int) -> None:
    rows, table = build_rows(num_blocks=num_blocks)
    found = rows.sort(column, descending).take_all()
    wanted = table.to_pylist()
    there = [row for row in wanted if not is_missing(row[column])]
    there.sort(key=lambda row: row[column], reverse=descending)  # sorts of Python keep the order of equals
    assert_rows(found, there + [row for row in wanted if is_missing(row[column])])


def test_sorting_by_several_columns() -> None:
    rows, table = build_rows(num_blocks=3)
    found = rows.sort(["text", "int64"], [False, True]).to_pandas()["row"].tolist()
    frame = table.select(["text", "int64", "row"]).to_pandas()
    frame["text"] = frame["text"].map(lambda text: text.encode() if isinstance(text, str) else None)
    wanted = frame.sort_values(["text", "int64"], ascending=[True, False], kind="stable")["row"].tolist()
    assert found == wanted


def test_types_come_back_as_they_went_in() -> None:
    rows, _table = build_rows(num_blocks=2)
    assert rows.sort("row").schema() == rows.schema()
    tensors = data.from_numpy({"x": np.arange(24, dtype=np.float32).reshape(4, 3, 2), "y": np.arange(4)[::-1]})
    found = tensors.sort("y").take_batch(4)
    assert found["x"].dtype == np.float32
    assert found["x"].tolist() == np.arange(24).reshape(4, 3, 2)[::-1].tolist()


@pytest.mark.parametrize("num_blocks", [1, 7])
@pytest.mark.parametrize("key", [name for name in ORDERED if name != "half"])
def test_groups(key: str, num_blocks: int) -> None:
    rows, table = build_rows(num_blocks=num_blocks)
    aggs = (
        aggregates.Count(),
        aggregates.Count("gaps", ignore_nulls=True),
        aggregates.Sum("row"),
        aggregates.Mean("float"),
        aggregates.Std("row"),
        aggregates.Min("text"),
        aggregates.Max("stamp"),
        aggregates.AbsMax("int64"),
        aggregates.MissingValuePercentage("bool"),
        aggregates.ZeroPercentage("uint64"),
        aggregates.Sum("float", ignore_nulls=False, alias_name="strict"),
    )
    found = rows.groupby(key).aggregate(*aggs).take_all()
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        groups.setdefault(None if is_missing(row[key]) else row[key], []).append(row)
    assert len(found) == len(groups)
    for row in found:
        members = groups[None if is_missing(row[key]) else row[key]]

        def present(column: str, members: list[dict[str, Any]] = members) -> list[Any]:
            return [one[column] for one in members if not is_missing(one[column])]

        floats, numbers = present("float"), present("row")
        assert row["count()"] == len(members)
        assert row["count(gaps)"] == len(present("gaps"))
        assert row["sum(row)"] == sum(numbers)
        assert is_same(row["mean(float)"], float(np.mean(floats)) if floats else None)
        assert is_same(row["std(row)"], float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None)
        assert is_same(row["min(text)"], min(present("text"), key=str.encode, default=None))
        assert is_same(row["max(stamp)"], max(present("stamp"), default=None))
        assert row["abs_max(int64)"] == max(map(abs, present("int64")))
        assert is_same(row["missing_pct(bool)"], 100.0 - 100.0 * len(present("bool")) / len(members))
        assert is_same(row["zero_pct(uint64)"], 100.0 * present("uint64").count(0) / len(present("uint64")))
        assert is_same(row["strict"], sum(floats) if len(floats) == len(members) else None)


def test_aggregates_that_need_all_values() -> None:
    rows, table = build_rows(num_blocks=5)
    frame = table.select(["int64", "row", "text"]).to_pandas()
    found = (
        rows.groupby("int64")
        .aggregate(
            aggregates.Quantile("row", q=0.25),
            aggregates.Unique("text"),
            aggregates.AsList("row"),
            aggregates.CountDistinct("text"),
        )
        .take_all()
    )
    for row in found:
        group = frame[frame["int64"] == row["int64"]]
        assert math.isclose(row["quantile(row)"], group["row"].quantile(0.25))
        assert row["unique(text)"] == [*sorted(group["text"].dropna().unique(), key=str.encode), None]
        assert row["count_distinct(text)"] == group["text"].nunique()
        assert row["list(row)"] == group["row"].tolist()


def test_numbers_of_all_rows() -> None:
    rows, table = build_rows(num_blocks=4)
    frame = table.select(["row", "float", "int64"]).to_pandas().replace([np.inf], np.nan)
    plain = rows.map_batches(
        lambda batch: {**batch, "float": np.where(np.isinf(batch["float"]), np.nan, batch["float"])}
    )
    assert plain.sum("row") == frame["row"].sum()
    assert math.isclose(plain.mean("float"), frame["float"].mean())
    assert math.isclose(plain.std("float"), frame["float"].std())
    assert math.isclose(plain.std("row", ddof=0), frame["row"].std(ddof=0))
    assert plain.min(["row", "int64"]) == {"min(row)": 0, "min(int64)": -3}
    assert plain.max("row") == 199
    assert rows.unique("word") == ["x", "y", None]
    assert rows.sum("none") is None
    wide = data.from_items([{"x": 1e9 + value} for value in (4.0, 7.0, 13.0, 16.0)], override_num_blocks=4)
    assert wide.std("x", ddof=0) == math.sqrt(22.5)  # a large mean costs no digits


def test_all_columns_of_numbers() -> None:
    rows = data.from_items([{"k": 1, "x": 2, "y": 0.5, "s": "a"}, {"k": 1, "x": 4, "y": None, "s": "b"}])
    assert rows.groupby("k").sum().take_all() == [{"k": 1, "sum(x)": 6, "sum(y)": 0.5}]
    assert rows.groupby("k").min().take_all() == [{"k": 1, "min(x)": 2, "min(y)": 0.5}]
    assert rows.groupby("k").max().take_all() == [{"k": 1, "max(x)": 4, "max(y)": 0.5}]
    assert rows.groupby("k").mean().take_all() == [{"k": 1, "mean(x)": 3.0, "mean(y)": 0.5}]
    assert rows.groupby("k").std(ddof=0).take_all() == [{"k": 1, "std(x)": 1.0, "std(y)": 0.0}]
    assert data.from_items([]).groupby("k").sum().take_all() == []
    with pytest.raises(
        ValueError, match=r"sum\(\) without a name takes all columns of numbers except the keys, .* include none"
    ):
        rows.select_columns(["k", "s"]).groupby("k").sum()


def test_numbers_of_missing_values() -> None:
    for rows in (data.from_items([{"k": 1, "x": None}] * 2), data.from_arrow(pa.table({"k": [1], "x": pa.nulls(1)}))):
        assert rows.std("x") is None
        assert rows.groupby("k").std("x").take_all() == [{"k": 1, "std(x)": None}]


def test_frequent_values() -> None:
    rows = data.from_items([{"x": None}, {"x": None}, {"x": 2.0}, {"x": math.nan}])
    assert rows.aggregate(aggregates.ApproximateTopK("x", 3)) == {"approx_topk(x)": [{"x": 2.0, "count": 1}]}
    lists = data.from_items([{"x": [2, 3]}, {"x": [1]}, {"x": None}, {"x": [1]}], override_num_blocks=2)
    found = lists.aggregate(aggregates.ApproximateTopK("x", 3), aggregates.ValueCounter("x"))
    assert found["approx_topk(x)"] == [{"x": [1], "count": 2}, {"x": [2, 3], "count": 1}]
    assert found["value_counter(x)"] == {"counts": [1, 2, 1], "values": [[2, 3], [1], None]}
    dicts = data.from_items([{"x": {"a": [1]}}, {"x": {"a": [1]}}])
    assert dicts.aggregate(aggregates.ApproximateTopK("x", 1, alias_name="top")) == {
        "top": [{"x": {"a": [1]}, "count": 2}]
    }


def test_nan_is_one_value() -> None:
    for num_blocks in (1, 2):
        rows = data.from_items([{"x": x} for x in (math.nan, 1.0, math.nan, 1.0)], override_num_blocks=num_blocks)
        found = rows.aggregate(aggregates.ValueCounter("x"))["value_counter(x)"]
        assert found["counts"] == [2, 2]
        assert math.isnan(found["values"][0])
        assert found["values"][1] == 1.0


def test_parts_may_be_numbers_of_numpy() -> None:
    rows = data.from_items([{"x": float(value)} for value in range(5)])
    parts = np.linspace(0, 1, 5)
    found = rows.aggregate(aggregates.Quantile("x", parts[1]), untyped.ApproximateQuantile("x", parts))
    assert found == {"quantile(x)": 1.0, "approx_quantile(x)": [0.0, 1.0, 2.0, 3.0, 4.0]}


def test_no_rows() -> None:
    empty = build_rows(10, 2)[0].filter(expr="row > 99")
    assert empty.sort("row").take_all() == []
    assert empty.sort("row").columns() == empty.columns()
    assert empty.groupby("text").count().take_all() == []
    assert empty.aggregate(aggregates.Count(), aggregates.Sum("row")) == {"count()": 0, "sum(row)": None}
    assert empty.unique("text") == []
    assert empty.join(build_rows(10)[0], on="row", right_suffix="_right").take_all() == []
    assert build_rows(10)[0].join(empty, "left_anti", on="row").count() == 10
    nothing = data.from_items([])
    assert nothing.sort("x").take_all() == []
    assert nothing.aggregate(aggregates.Count(), aggregates.Max("x")) == {"count()": 0, "max(x)": None}


def test_a_table_of_which_nothing_is_known() -> None:
    """It has no rows, so nobody knows its columns."""
    rows, gone = data.range(3), data.from_items([])
    for how, count in {"inner": 0, "left_outer": 3, "full_outer": 3, "left_anti": 3, "right_outer": 0}.items():
        assert rows.join(gone, how).count() == count
    assert gone.join(rows, "right_outer").take_all() == rows.take_all()
    assert gone.join(rows, "right_semi").take_all() == []


def test_numbers_are_not_changed_by_what_they_stand_beside() -> None:
    big = data.from_items([{"x": 2**63 + 1}])
    assert data.from_items([{"x": 2**63 + 1}, {"x": -1}]).take_all() == [{"x": 2**63 + 1}, {"x": -1}]
    assert big.union(data.from_items([{"x": -1}])).to_arrow()["x"].to_pylist() == [2**63 + 1, -1]
    with pytest.raises(TypeError, match="cannot be compared without loss"):
        data.from_items([{"x": 2**53 + 1}]).join(data.from_items([{"x": 1.0}]), on="x").take_all()
    small = data.from_arrow(pa.table({"x": pa.array([1, 2], pa.int8())}))
    assert small.join(data.from_items([{"x": 300}]), "full_outer", on="x").sum("x") == 303
    assert data.from_arrow(pa.table({"x": pa.array([-128], pa.int8())})).aggregate(aggregates.AbsMax("x")) == {
        "abs_max(x)": 128
    }
    masked = data.range(4).map_batches(lambda batch: {"x": np.ma.masked_array(batch["id"], batch["id"] % 2 == 0)})
    assert [row["x"] for row in masked.take_all()] == [None, 1, None, 3]
    grid = np.ma.masked_array([[1.0, 2.0], [3.0, 4.0]], [[False, True], [False, False]])
    np.testing.assert_array_equal(
        data.from_numpy(grid).to_arrow()["data"].combine_chunks().to_numpy_ndarray()[0], [1.0, np.nan]
    )
    with pytest.raises(TypeError, match="only floats can be missing within a row"):
        data.from_numpy(np.ma.masked_array([[1, 2]], [[False, True]]))
    assert data.from_numpy(np.ma.masked_array([[1, 2]])).take(1)[0]["data"].tolist() == [1, 2]


def test_columns_may_have_any_name() -> None:
    odd = data.from_arrow(pa.table({"0:part0": [1, 1, 2], "select": [1, 2, 3], "SELECT": [4, 5, 6]}))
    found = odd.groupby("0:part0").aggregate(aggregates.Sum("select"), aggregates.Sum("SELECT")).take_all()
    assert [list(row.values()) for row in found] == [[1, 3, 9], [2, 3, 6]]


HOW = {"inner": "inner", "left_outer": "left", "right_outer": "right", "full_outer": "outer"}


@pytest.mark.parametrize("num_blocks", [1, 5])
@pytest.mark.parametrize("how", list(HOW))
def test_joins(how: str, num_blocks: int) -> None:
    generator = np.random.default_rng(3)
    left = pd.DataFrame({"k": generator.integers(0, 30, 60), "s": draw(["a", "b"], 60, 1), "x": np.arange(60)})
    right = pd.DataFrame({"key": generator.integers(10, 40, 40), "s": draw(["a", "b"], 40, 2), "x": np.arange(40)})
    found = data.from_pandas(left, override_num_blocks=num_blocks).join(
        data.from_pandas(right, override_num_blocks=num_blocks),
        how,
        on=["k", "s"],
        right_on=["key", "s"],
        right_suffix="_right",
    )
    wanted = left.merge(right.rename(columns={"key": "k"}), HOW[how], on=["k", "s"], suffixes=("", "_right"))
    order = ["x", "x_right"]
    wanted = wanted.sort_values(order).reset_index(drop=True)
    pd.testing.assert_frame_equal(found.to_pandas(), wanted, check_dtype=False)
    assert found.to_pandas().equals(found.to_pandas()), "the same order each time"


@pytest.mark.parametrize("how", ["right_outer", "full_outer"])
def test_arrays_with_missing_ones(how: str) -> None:
    left = data.from_items([{"id": 1, "t": np.ones(2)}])
    rows = left.join(
        data.range(3), how, on="id", partition_size_hint=2, aggregator_ray_remote_args={}, validate_schemas=True
    )
    found = {row["id"]: row["t"] for row in rows.take_all()}
    assert isinstance(found[1], np.ndarray)
    assert found[1].tolist() == [1.0, 1.0]
    assert (found[0], found[2]) == (None, None)
    batch = rows.sort("id").take_batch()["t"]
    assert [value is None for value in batch] == [True, False, True]
    assert batch[1].tolist() == [1.0, 1.0]
    assert rows.filter(lambda row: row["t"] is None).take_batch()["t"].tolist() == [None, None]


def test_joins_that_choose_rows() -> None:
    left, right = data.range(10), data.from_items([{"id": value} for value in (3, 3, 4, 99)])
    for how, wanted in {
        "left_semi": [3, 4],
        "left_anti": [0, 1, 2, 5, 6, 7, 8, 9],
        "right_semi": [3, 3, 4],
        "right_anti": [99],
    }.items():
        assert [row["id"] for row in left.join(right, how).take_all()] == wanted


def test_missing_keys_are_equal_to_none() -> None:
    left = data.from_items([{"k": 1.0}, {"k": None}, {"k": math.nan}])
    assert left.join(left, on="k").count() == 1
    assert left.join(left, "left_outer", on="k").count() == 3


def test_groups_are_whole_whatever_the_blocks() -> None:
    rows = data.from_items([{"k": k % 7, "x": k} for k in range(1000)], override_num_blocks=10)
    context = data.DataContext.get_current()
    before, context.target_max_block_size = context.target_max_block_size, 2_000
    try:
        seen = rows.groupby("k").map_groups(
            lambda group: {"k": group["k"][:1], "count": [len(group["x"])], "sum": [group["x"].sum()]}
        )
        found = seen.take_all()
        assert rows.groupby("k").map_groups(lambda group: group, batch_format="pandas").num_blocks() > 1
    finally:
        context.target_max_block_size = before
    assert [row["k"] for row in found] == list(range(7))
    assert [row["sum"] for row in found] == [sum(range(k, 1000, 7)) for k in range(7)]
    assert rows.groupby(None).map_groups(lambda group: {"n": [len(group["k"])]}).take_all() == [{"n": 1000}]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda rows: rows.sort([]), ValueError, r"sort\(\) takes the name of a column or a list of them"),
        (lambda rows: rows.sort("row", "up"), ValueError, "descending must be True or False"),
        (lambda rows: rows.sort(["row", "text"], [True]), ValueError, "descending must be True or False"),
        (lambda rows: rows.groupby(["row", "row"]), ValueError, "each once"),
        (lambda rows: rows.sort("row", None), ValueError, "descending must be True or False"),
        (lambda rows: rows.sum(5), ValueError, r"sum\(\) takes the name of a column or a list of them, .* received 5"),
        (
            lambda rows: rows.select_columns(None),
            ValueError,
            "takes the names of columns, each once, but received None",
        ),
        (lambda rows: rows.rename_columns(5), TypeError, "takes a dict, but received 5"),
        (lambda rows: rows.rename_columns({"row": 5}), TypeError, "needs texts as new names"),
        (lambda rows: rows.split_at_indices(None), ValueError, "rising row numbers"),
        (lambda rows: rows.join(rows, []), ValueError, "join_type must be one of"),
        (lambda rows: untyped.Sum("row", alias_name=5), TypeError, "alias_name must be a text, but received 5"),
        (lambda rows: untyped.Std("row", ddof="x"), TypeError, "ddof must be a whole number, but received 'x'"),
        (lambda rows: untyped.Count(ignore_nulls="no"), TypeError, "ignore_nulls must be True or False"),
        (lambda rows: rows.write_parquet("/nowhere", partition_cols=5), ValueError, "partition_cols must be the names"),
        (lambda rows: rows.groupby("row").aggregate(), ValueError, "needs at least one aggregate"),
        (lambda rows: rows.groupby("row").aggregate(sum), TypeError, "takes aggregates, but received <built-in"),
        (lambda rows: rows.groupby("gone").count().take_all(), KeyError, "no column 'gone'"),
        (lambda rows: rows.sum("text"), TypeError, r"Sum\('text'\) needs numbers, but the column holds string"),
        (lambda rows: rows.mean("gone"), KeyError, "no column 'gone'"),
        (lambda rows: rows.join(rows, "left"), ValueError, r"received 'left'\. Did you mean 'left_outer'\?$"),
        (lambda rows: rows.join(rows, "cross"), ValueError, "join_type must be one of inner, .* received 'cross'"),
        (lambda rows: rows.join(3), TypeError, "takes a data set, but received 3"),
        (lambda rows: rows.join(rows, on="gone").take(1), KeyError, "left data set: There is no column 'gone'"),
        (lambda rows: rows.join(rows, on="row").take(1), ValueError, "both data sets have the column 'bool', 'bytes'"),
        (
            lambda rows: rows.join(data.range(3), on="text", right_on="id").take(1),
            TypeError,
            "the key 'text' of the left data set is string, but 'id' of the right one is int64",
        ),
        (lambda rows: rows.union(3), TypeError, r"union\(\) takes data sets, but received 3"),
        (lambda rows: rows.zip(), ValueError, "the number of data sets of zip"),
        (lambda rows: rows.zip(data.range(3)).take(1), ValueError, r"need equally many rows, but received \[200, 3\]"),
        (lambda rows: rows.random_sample(2), ValueError, "fraction must be from 0 to 1, but received 2"),
        (lambda rows: rows.limit(-1), ValueError, "limit must be a whole number from 0"),
        (lambda rows: rows.split_at_indices([3, 1]), ValueError, r"rising row numbers, but received \[3, 1\]"),
        (lambda rows: rows.split_proportionately([0.5, 0.5]), ValueError, "their sum below 1"),
        (lambda rows: rows.train_test_split(1.5), ValueError, "test_size must be a share .* received 1.5"),
        (lambda rows: rows.train_test_split(200), ValueError, "leaves none of 200 rows for training"),
        (lambda rows: rows.filter(), ValueError, "needs either a function or expr=, but received neither"),
        (lambda rows: rows.filter(expr="row >"), ValueError, "is not an expression: invalid syntax"),
        (
            lambda rows: rows.filter(expr="f(row)"),
            ValueError,
            r"contains 'f\(row\)', which a condition on columns cannot contain",
        ),
        (lambda rows: rows.filter(expr="gone > 3").take(1), KeyError, "no column 'gone': the columns are 'int64'"),
        (lambda rows: rows.filter(expr="text > 3").take(1), ValueError, r"filter\(expr=.*cannot be computed"),
        (
            lambda rows: rows.repartition(),
            ValueError,
            "needs either num_blocks or target_num_rows_per_block, but received neither",
        ),
        (lambda rows: untyped.Sum(3), TypeError, r"Sum\(\) takes the name of a column, but received 3"),
        (lambda rows: aggregates.Quantile("x", q=2), ValueError, "q must be from 0 to 1, but received 2"),
        (
            lambda rows: rows.groupby("text").aggregate(aggregates.Count(), aggregates.Count()).take_all(),
            ValueError,
            r"Two columns of the result would be called 'count\(\)'",
        ),
        (
            lambda rows: data.from_items([{"x": 2**62}] * 4).sum("x"),
            OverflowError,
            "too large for its column",
        ),
        (
            lambda rows: data.from_items([{"x": 1, "y": object()}]).sort("x").take(1),
            TypeError,
            "Column 'y' holds Python objects",
        ),
    ],
)
def test_a_mistake_is_told(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(build_rows()[0])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("row > 5 and row <= 8", [6, 7, 8]),
        ("3 < row < 6", [4, 5]),
        ("row in [1, 3] or row == 5", [1, 3, 5]),
        ("not row >= 2", [0, 1]),
        ("row * 2 == 8", [4]),
        ("row / 2 == 1.5", [3]),
        ("row - 1 == -1", [0]),
    ],
)
def test_conditions(text: str, wanted: list[int]) -> None:
    rows, _ = build_rows(num_blocks=3)
    assert [row["row"] for row in rows.filter(expr=text).take_all()] == wanted


def test_conditions_on_missing_values() -> None:
    rows, table = build_rows(num_blocks=3)
    gone = sum(value is None for value in table.column("text").to_pylist())
    assert rows.filter(expr="text is None").count() == gone
    assert rows.filter(expr="text is not None").count() == 200 - gone
    assert rows.filter(expr=pa.compute.field("text") == "Z").count() == table.column("text").to_pylist().count("Z")
