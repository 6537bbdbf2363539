"""Values that few programs have: they come out as they were, or are refused by an error that names their column."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped,unused-ignore]  # it may lack its stubs
import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv

import hocket
from hocket import data
from hocket.data import aggregate


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    with hocket.init(num_cpus=1, engine="inprocess"):
        yield


# --- views of lists ---------------------------------------------------------------------------------------------------

INNER: tuple[Any, ...] = (
    pa.int8(),
    pa.string(),
    pa.string_view(),
    pa.list_view(pa.int16()),
    pa.large_list_view(pa.string()),
    pa.list_(pa.list_view(pa.int8())),
    pa.large_list(pa.list_view(pa.int8())),
    pa.list_(pa.list_view(pa.string()), 2),
    pa.struct([("a", pa.list_view(pa.int8())), ("b", pa.string())]),
    pa.map_(pa.string(), pa.list_view(pa.int8())),
)
VIEWS = [*map(pa.list_view, INNER), *map(pa.large_list_view, INNER), *INNER[5:]]


def draw(kind: Any, rng: random.Random) -> Any:
    if rng.random() < 0.2:
        return None
    if pa.types.is_struct(kind):
        return {field.name: draw(field.type, rng) for field in kind}
    if pa.types.is_map(kind):
        return [(f"k{at}", draw(kind.item_type, rng)) for at in range(rng.randint(0, 2))]
    if pa.types.is_nested(kind):
        count = kind.list_size if pa.types.is_fixed_size_list(kind) else rng.randint(0, 3)
        return [draw(kind.value_type, rng) for _ in range(count)]
    return rng.choice(["", "a", "bc"]) if "string" in str(kind) else rng.randint(-9, 9)


CUTS: dict[str, Callable[[Any], list[Any]]] = {
    "whole": lambda table: [table],
    "cut": lambda table: [table.slice(3)],
    "from the middle": lambda table: [table.slice(2, 4)],
    "chunks": lambda table: [pa.concat_tables([table.slice(0, 3), table.slice(5), table.slice(1, 1)])],
    "blocks": lambda table: [table.slice(0, 3), table.slice(3)],
    "none": lambda table: [table.slice(9)],
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kind", VIEWS, ids=str)
def test_views_of_lists_become_lists(kind: Any, cut: str) -> None:
    rng = random.Random(str(kind))
    tables = CUTS[cut](pa.table({"id": range(9), "x": pa.array([draw(kind, rng) for _ in range(9)], kind)}))
    found = data.from_arrow(tables).to_arrow()
    found.validate(full=True)
    assert found["x"].to_pylist() == [value for table in tables for value in table["x"].to_pylist()]
    assert "view" not in str(found["x"].type)
    if cut == "blocks":
        assert (
            data.from_arrow(tables).sort("id", descending=True).to_arrow()["x"].to_pylist()
            == (found["x"].to_pylist()[::-1])
        )


def test_views_may_share_values_and_stand_in_any_order() -> None:
    for lists, width, plain in (
        (pa.ListViewArray, pa.int32(), pa.list_(pa.string())),
        (pa.LargeListViewArray, pa.int64(), pa.large_list(pa.string())),
    ):
        views = lists.from_arrays(pa.array([3, 0, 1, 4], width), pa.array([1, 3, 2, 0], width), pa.array(list("abcd")))
        found = data.from_arrow(pa.table({"x": views})).to_arrow()
        assert found["x"].type == plain
        assert found["x"].to_pylist() == [["d"], ["a", "b", "c"], ["b", "c"], []]


# --- categories -------------------------------------------------------------------------------------------------------

SIZES = ["small", "medium", "large", "huge"]
"""In an order that is not the alphabet's; no row is huge."""


def build_sizes(*, ordered: bool, categories: list[str] = SIZES) -> pd.DataFrame:
    values = pd.Categorical(["large", None, "small", "medium", "small"], categories=categories, ordered=ordered)
    return pd.DataFrame({"id": range(5), "size": values, "y": range(5)})


USES: dict[str, Callable[[data.Dataset], data.Dataset]] = {
    "nothing": lambda rows: rows,
    "sort": lambda rows: rows.sort("id", descending=True),
    "sort by it": lambda rows: rows.sort("size"),
    "groupby": lambda rows: rows.groupby("size").sum("y"),
    "min": lambda rows: rows.groupby("id").min("size").rename_columns({"min(size)": "size"}),
    "aggregates of functions": lambda rows: rows.groupby("size").aggregate(build_total()),
    "map_groups": lambda rows: rows.groupby("id").map_groups(lambda group: group),
    "groups by it": lambda rows: rows.groupby("size").map_groups(lambda group: group, batch_format="pandas"),
    "join": lambda rows: rows.join(data.range(4), on="id"),
    "outer join": lambda rows: data.range(9).join(rows, on="id", join_type="left_outer"),
    "join by it": lambda rows: rows.join(rows, on="size", right_suffix="2"),
    "right semi join": lambda rows: data.range(4).join(rows, on="id", join_type="right_semi"),
    "shuffle": lambda rows: rows.random_shuffle(seed=0),
    "repartition": lambda rows: rows.repartition(3),
    "filter": lambda rows: rows.filter(lambda row: row["id"] < 3),
    "rows": lambda rows: rows.map(lambda row: {**row, "size": row["size"]}),
    "some rows": lambda rows: rows.flat_map(lambda row: [row, row] if row["id"] else []),
    "new rows": lambda rows: rows.map(lambda row: {"size": "large"}),
    **{
        f"part of a batch, {form}": functools.partial(
            lambda form, rows: rows.map_batches(CUTTERS[form], batch_format=form), form
        )
        for form in ("numpy", "pandas", "pyarrow")
    },
    "union": lambda rows: rows.union(rows.sort("id")),
    "zip": lambda rows: rows.select_columns(["id"]).zip(rows.select_columns(["size"])),
}
CUTTERS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda batch: {name: values[1:2] for name, values in batch.items()},
    "pandas": lambda batch: batch[batch["y"] > 2],
    "pyarrow": lambda batch: batch.slice(1, 1),
}


def build_total() -> aggregate.AggregateFn:
    return aggregate.AggregateFn(
        init=lambda key: 0,
        accumulate_row=lambda total, row: total + row["y"],
        merge=lambda one, other: one + other,
        name="total",
    )


@pytest.mark.parametrize("num_blocks", [1, 3])
@pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
@pytest.mark.parametrize("use", USES)
def test_categories_stay(use: str, ordered: bool, num_blocks: int) -> None:
    frame = build_sizes(ordered=ordered)
    rows = data.from_pandas([frame.iloc[:1], frame.iloc[1:2], frame.iloc[2:]] if num_blocks > 1 else frame)
    for shown in (USES[use](rows).to_pandas(), USES[use](rows).materialize().take_batch(99, batch_format="pandas")):
        assert list(shown["size"].cat.categories) == SIZES
        assert shown["size"].cat.ordered is ordered


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("num_blocks", [1, 5])
def test_an_ordered_category_sorts_as_pandas_has_it(num_blocks: int, descending: bool) -> None:
    frame = build_sizes(ordered=True)
    rows = data.from_pandas([frame.iloc[[at]] for at in range(5)] if num_blocks > 1 else frame)
    wanted = frame.sort_values(["size", "y"], ascending=[not descending, True])
    found = rows.sort(["size", "y"], descending=[descending, False]).to_pandas()
    assert found["id"].tolist() == wanted["id"].tolist()
    summed = rows.groupby("size").sum("y").to_pandas()
    assert summed["size"].tolist()[:3] == SIZES[:3]
    assert summed["sum(y)"].tolist()[:3] == [6, 3, 0]


@pytest.mark.parametrize("num_blocks", [1, 5])
@pytest.mark.parametrize("with_list", [False, True])  # which is not made of blocks' parts
def test_the_least_ordered_category_is_that_of_pandas(num_blocks: int, with_list: bool) -> None:
    frame = build_sizes(ordered=True)
    rows = data.from_pandas([frame.iloc[[at]] for at in range(5)] if num_blocks > 1 else frame)
    more = [aggregate.AsList("id")] if with_list else []
    found = rows.aggregate(aggregate.Min("size"), aggregate.Max("size"), aggregate.Count(), *more)
    assert (found["min(size)"], found["max(size)"]) == (frame["size"].min(), frame["size"].max())
    groups = rows.groupby("id").aggregate(aggregate.Max("size"), *more).to_pandas()
    wanted = frame.groupby("id")["size"].max()
    assert groups["max(size)"].astype(object).where(groups["max(size)"].notna(), None).tolist() == [
        None if pd.isna(one) else one for one in wanted
    ]
    assert rows.aggregate(aggregate.Min("size", ignore_nulls=False)) == {"min(size)": None}


def test_one_without_an_order_sorts_by_its_values() -> None:
    rows = data.from_pandas(build_sizes(ordered=False)).sort("size")
    assert [row["size"] for row in rows.take_all()] == ["large", "medium", "small", "small", None]


@pytest.mark.parametrize(
    ("orders", "wanted"),
    [
        (["ab", "bc"], "abc"),
        (["bc", "ab"], "abc"),
        (["ac", "ab", "bc"], "abc"),
        (["abc", "b", "ca"], None),
        (["ab", "bc", "ca"], None),
        (["ab", "ba"], None),
    ],
)
@pytest.mark.parametrize("use", ["to_pandas", "sort", "sort by it", "groupby"])
def test_orders_of_blocks_become_one_or_are_refused(orders: list[str], wanted: str | None, use: str) -> None:
    def place(batch: dict[str, Any]) -> Any:
        order = orders[int(batch["id"][0])]
        return pd.DataFrame({"id": batch["id"], "x": pd.Categorical([order[-1]], list(order), ordered=True)})

    rows = data.range(len(orders), override_num_blocks=len(orders)).map_batches(place)
    made = {
        "to_pandas": rows,
        "sort": rows.sort("id"),
        "sort by it": rows.sort("x"),
        "groupby": rows.groupby("x").count(),
    }[use]
    if wanted is None:
        with pytest.raises(TypeError, match=r"Column 'x' has ordered categories, but .* in some blocks and after it"):
            made.to_pandas()
    else:
        found = made.to_pandas()["x"]
        assert "".join(found.cat.categories) == wanted
        assert found.cat.ordered


MANY: dict[str, Callable[[data.Dataset], Any]] = {
    "to_pandas": lambda rows: rows.to_pandas()["x"].tolist(),
    "to_arrow": lambda rows: rows.to_arrow()["x"].to_pylist(),
    "batches": lambda rows: [one for batch in rows.iter_batches(batch_size=250) for one in batch["x"]],
    "sort": lambda rows: [row["x"] for row in rows.sort("id").take_all()],
    "repartition": lambda rows: [row["x"] for row in rows.repartition(1).take_all()],
    "groupby": lambda rows: [row["x"] for row in rows.groupby("x").mean("id").sort("mean(id)").take_all()],
    "unique": lambda rows: sorted(rows.unique("x"), key=lambda name: int(name[1:])),
}


@pytest.mark.parametrize("index", [pa.int8(), pa.uint8(), pa.int16(), None], ids=str)
@pytest.mark.parametrize("use", MANY)
def test_many_categories(use: str, index: Any) -> None:
    """Each block has few, all blocks have more than the numbers of one of them can say."""

    def name(batch: dict[str, Any]) -> Any:
        texts = pa.array([f"c{at}" for at in batch["id"]])
        if index is None:
            return pd.DataFrame({"id": batch["id"], "x": texts.to_pandas().astype("category")})
        return pa.table({"id": batch["id"], "x": texts.dictionary_encode().cast(pa.dictionary(index, pa.string()))})

    rows = data.range(300, override_num_blocks=3).map_batches(name)
    assert MANY[use](rows) == [f"c{at}" for at in range(300)]


def test_categories_inside_of_lists_that_become_too_many_name_their_column() -> None:
    kind = pa.list_(pa.dictionary(pa.int8(), pa.string()))
    tables = [pa.table({"x": pa.array([[f"{letter}{at}"] for at in range(100)], kind)}) for letter in "ab"]
    with pytest.raises(TypeError, match="column 'x', from several blocks or chunks, cannot be joined as list"):
        data.from_arrow(tables).repartition(1).to_pandas()


def test_what_a_function_makes_of_categories() -> None:
    rows = data.from_pandas(build_sizes(ordered=True))
    other = rows.map_batches(lambda batch: {"size": np.array(["tiny", "large"], object)}).to_pandas()["size"]
    assert other.tolist() == ["tiny", "large"]
    assert not hasattr(other, "cat"), "tiny has no place in the order"
    texts = data.from_items([{"x": "a"}, {"x": "b"}])
    for cut in (0, 1):
        named = texts.map_batches(
            lambda batch, at: batch.astype("category").iloc[at:], batch_format="pandas", fn_args=[cut]
        )
        assert list(named.to_pandas()["x"].cat.categories) == ["a", "b"]
    loose = rows.map_batches(lambda batch: batch.assign(size=batch["size"].cat.as_unordered()), batch_format="pandas")
    assert not loose.to_pandas()["size"].cat.ordered
    fewer = rows.map_batches(
        lambda batch: batch.assign(size=batch["size"].cat.remove_unused_categories()), batch_format="pandas"
    )
    assert list(fewer.to_pandas()["size"].cat.categories) == SIZES[:3]


@pytest.mark.parametrize("form", ["numpy", "pandas", "pyarrow"])
@pytest.mark.parametrize(
    "values",
    [
        pa.array([3, 1, 2]),
        pa.array(["b", "a"]),
        pa.array(["b", "a"], pa.large_string()),
        pa.array([0.5, -1.0, 2.0]),
        pa.array([True, False]),
        pa.array([b"b", b"a"]),
        pa.array([5, 1], pa.timestamp("ns")),
        pa.array([5, 1], pa.timestamp("us", "Asia/Tokyo")),
        pa.array([5, 1], pa.duration("s")),
        pa.array([5, 1], pa.date32()),
        pa.array([decimal.Decimal("1.5"), decimal.Decimal("0.5")]),
    ],
    ids=lambda values: str(values.type),
)
def test_categories_of_all_types(values: Any, form: str) -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([1, 0, 1], pa.int8()), values, ordered=True)
    rows = data.from_arrow(pa.table({"id": [2, 1, 0], "x": column}))
    part = rows.map_batches(CUT_ROWS[form], batch_format=form)
    for found, at in ((rows.sort("id"), [1, 0, 1]), (rows.sort("x"), [0, 1, 1]), (part, [0])):
        shown = found.to_arrow()["x"].combine_chunks()
        shown = shown.chunk(0) if isinstance(shown, pa.ChunkedArray) else shown
        assert shown.type == column.type
        assert shown.dictionary.equals(values)
        assert shown.indices.to_pylist() == at


CUT_ROWS: dict[str, Callable[[Any], Any]] = {**CUTTERS, "pandas": lambda batch: batch.iloc[1:2]}


def test_a_category_that_is_missing_is_a_missing_value() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, None]), pa.array(["b", None, "a"]))
    rows = data.from_arrow(pa.table({"x": column}))
    assert rows.to_arrow()["x"].to_pylist() == ["b", None, "a", None]
    found = rows.map_batches(lambda batch: batch, batch_format="pandas").to_pandas()["x"]
    assert list(found.cat.categories) == ["b", "a"]
    assert found.isna().tolist() == [False, True, False, True]


# --- times of numpy's -------------------------------------------------------------------------------------------------

UNITS: dict[str, tuple[list[int], list[int]]] = {
    "as": ([10**9, -(10**9)], [1]),
    "fs": ([10**6, -(10**6), 0], [1_500_000]),
    "ps": ([1000, 2000], [1_500_000_000_001]),
    "10ns": ([3, -3], [2**60]),
    "ns": ([3, 2**62], []),
    "7us": ([3, 5], [2**61]),
    "s": ([2**62], []),
    "25s": ([3, 4], [2**60]),
    "m": ([5, -5], [2**62]),
    "h": ([1, 2**40], [2**60]),
    "D": ([1, 2**31 - 1, -(2**31) + 1], [2**40]),
    "3D": ([1, -4], [2**31]),
    "W": ([1, 2**28], [2**50]),
    "M": ([1, -1], [2**40]),
    "Y": ([1, 2000], [2**45, 2**62]),
}
SPANS = {
    **UNITS,
    "D": ([2**40], [2**60]),
    "3D": ([2**31], [2**58]),
    "W": ([2**40], [2**61]),
    "M": ([], [1]),
    "Y": ([], [1]),
}
"""A month, or a year, is no length of time."""
ENTRIES: dict[str, Callable[[Any], data.Dataset]] = {
    "from_numpy": lambda times: data.from_numpy({"x": times, "i": np.arange(2)}),
    "rows": lambda times: data.from_items([{"x": value, "i": at} for at, value in enumerate(times)]),
    "map_batches": lambda times: data.range(1).map_batches(lambda batch: {"x": times, "i": np.arange(2)}),
    "map": lambda times: data.range(2).map(lambda row: {"x": times[row["id"]], "i": row["id"]}),
    "arrays": lambda times: data.from_numpy({"x": np.stack([times, times], 1), "i": np.arange(2)}),
    "arrays of several lengths": lambda times: data.from_items([{"x": times, "i": 0}, {"x": times[:1], "i": 1}]),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("kind", ["M8", "m8"])
def test_times_keep_what_they_are_or_are_refused(kind: str, unit: str, entry: str) -> None:
    good, bad = (UNITS if kind == "M8" else SPANS)[unit]
    for value in good:
        times = np.array([value, "NaT"], f"{kind}[{unit}]")
        rows = ENTRIES[entry](times)
        ways = [rows, rows.map_batches(lambda batch: batch, batch_format="pyarrow")]
        ways += [rows.sort("i")] if entry == "map_batches" else []
        for found in ways:
            shown = np.ravel(found.take_batch(2)["x"][0])
            assert shown.dtype.kind == kind[0]
            assert shown.astype(times.dtype).view(np.int64)[0] == value
            assert not np.isnat(shown[0])
        if "arrays" not in entry and abs(value) < 1 << 16:
            assert rows.to_pandas()["x"].isna().tolist() == [False, True]
            assert rows.map_batches(lambda batch: batch, batch_format="pandas").to_arrow()["x"].null_count == 1
    for value in bad:
        with pytest.raises(TypeError, match=r"column 'x' has .*Arrow cannot hold"):
            ENTRIES[entry](np.array([value, "NaT"], f"{kind}[{unit}]")).materialize()


def test_times_that_no_unit_holds_are_refused() -> None:
    times = [np.datetime64(2500, "Y"), np.datetime64(1, "ns")]
    with pytest.raises(TypeError, match="column 'x' has times for which numpy has no common unit"):
        data.from_items([{"x": value} for value in times])


# --- what the engine for tables does not know -------------------------------------------------------------------------


@pytest.mark.parametrize("cut", ["cut", "qcut", "periods"])
@pytest.mark.parametrize("num_blocks", [1, 3])
def test_categories_of_spans_are_objects(cut: str, num_blocks: int) -> None:
    frame = pd.DataFrame({"id": range(6), "y": range(6)})
    if cut == "periods":
        frame["x"] = pd.Series(pd.period_range("2024-01", periods=2, freq="M").repeat(3)).astype("category")
    else:
        frame["x"] = getattr(pd, cut)(frame["id"], 2)
    rows = data.from_pandas([frame.iloc[at::num_blocks] for at in range(num_blocks)])
    wanted = {row.id: row.x for row in frame.itertuples()}
    for found in (
        rows,
        rows.map_batches(lambda batch: batch, batch_format="pandas"),
        data.range(6, override_num_blocks=num_blocks).map_batches(
            lambda batch: frame.iloc[batch["id"]], batch_format="pandas"
        ),
        rows.random_shuffle(seed=1),
    ):
        assert {row["id"]: row["x"] for row in found.take_all()} == wanted
        assert dict(zip(*(found.to_pandas()[name] for name in ("id", "x")), strict=True)) == wanted
    with pytest.raises(TypeError, match=r"Column 'x' holds Python objects, .* or convert it to numbers or texts with"):
        rows.groupby("x").count().materialize()


EMPTY = pa.list_(pa.int8(), 0)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (EMPTY, []),
        (pa.list_(EMPTY), [[], None]),
        (pa.list_(EMPTY, 2), [[], None]),
        (pa.list_(pa.list_(pa.string(), 0)), [[]]),
        (pa.struct([("a", EMPTY)]), {"a": []}),
        (pa.map_(pa.string(), EMPTY), [("a", [])]),
        (pa.list_(EMPTY, 0), []),
    ],
    ids=str,
)
@pytest.mark.parametrize("use", ["sort", "join", "map_groups"])
def test_lists_of_no_length_pass_through_the_engine_for_tables(kind: Any, value: object, use: str) -> None:
    table = pa.table({"id": [2, 0, 1], "x": pa.array([value, None, value], kind)})
    rows = data.from_arrow([table.slice(0, 1), table.slice(1)])
    found = {
        "sort": lambda: rows.sort("id"),
        "join": lambda: rows.join(data.range(3), on="id").sort("id"),
        "map_groups": lambda: rows.groupby("id").map_groups(lambda group: group, batch_format="pyarrow"),
    }[use]().to_arrow()
    assert found["x"].type == kind
    assert found["x"].to_pylist() == [None, value, value]


class Metres(pa.ExtensionType):  # type: ignore[misc]  # Arrow has no types to check against
    """A program's own type, without a hash, as Arrow's pages show how to make one."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "tests.metres")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: object, serialized: bytes) -> Metres:
        return cls()


@pytest.fixture
def metres() -> Iterator[Any]:
    pa.register_extension_type(Metres())
    yield pa.ExtensionArray.from_storage(Metres(), pa.array([3, None, 5]))
    pa.unregister_extension_type("tests.metres")


@pytest.mark.parametrize("num_blocks", [1, 2])
@pytest.mark.parametrize("use", ["sort", "sort by it", "join", "map_groups", "count", "none there"])
def test_types_of_programs_pass_through_the_engine_for_tables(metres: Any, use: str, num_blocks: int) -> None:
    table = pa.table({"id": [2, 0, 1], "x": metres})
    gone = table.slice(1, 1)
    rows = data.from_arrow({1: [table], 2: [table.slice(0, 1), gone, table.slice(2)]}[num_blocks])
    found = {
        "sort": lambda: rows.sort("id"),
        "sort by it": lambda: rows.sort("x").sort("id"),
        "join": lambda: rows.join(data.range(3), on="id").sort("id"),
        "map_groups": lambda: rows.groupby("id").map_groups(lambda group: group),
        "count": lambda: rows.groupby(["id", "x"]).count(),
        "none there": lambda: data.from_arrow([gone, gone.slice(1)]).union(rows).sort("id").filter(expr="id > 0"),
    }[use]().to_arrow()
    assert found["x"].type == Metres()
    assert found["x"].to_pylist()[-2:] == [5, 3]


# --- files ------------------------------------------------------------------------------------------------------------

ALONE: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "texts": (pa.string(), ["a", None, "", "b\n\nc", None], ["a", "", "", "b\n\nc", ""]),
    "large texts": (pa.large_string(), [None, "a"], ["", "a"]),
    "bytes": (pa.binary(), [b"a", None], ["a", ""]),
    "categories": (pa.dictionary(pa.int8(), pa.string()), ["a", None, "a"], ["a", "", "a"]),
    "whole numbers": (pa.int64(), [None, 1, None, None, 3], [None, 1, None, None, 3]),
    "fractions": (pa.float32(), [1.5, None], [1.5, None]),
    "booleans": (pa.bool_(), [None, True, False], [None, True, False]),
    "numbers of categories": (pa.dictionary(pa.int8(), pa.int64()), [5, None], [5, None]),
    "nothing": (pa.null(), [None, None], [None, None]),
}


@pytest.mark.parametrize("kind", ALONE)
def test_a_missing_value_alone_in_a_line_of_csv_is_a_row(kind: str, tmp_path: Path) -> None:
    arrow_type, values, wanted = ALONE[kind]
    data.from_arrow(pa.table({"x": pa.array(values, arrow_type)})).write_csv(str(tmp_path / "rows"))
    parse = arrow_csv.ParseOptions(newlines_in_values=True)
    found = data.read_csv(str(tmp_path / "rows"), parse_options=parse)
    assert [row["x"] for row in found.take_all()] == wanted
    (file,) = (tmp_path / "rows").glob("*.csv")
    assert len(pd.read_csv(file)) == len(values)


# --- values that Arrow would change -----------------------------------------------------------------------------------

TOKYO = dt.timezone(dt.timedelta(hours=9))
KEPT: dict[str, list[Any]] = {
    "times with a zone": [dt.time(1, 2, tzinfo=dt.UTC), None],
    "times, one with a zone": [dt.time(1), dt.time(1, tzinfo=TOKYO)],
    "lists of times with a zone": [[dt.time(1, 2, tzinfo=dt.UTC)], []],
    "dicts of times with a zone": [{"a": [dt.time(1, 2, tzinfo=dt.UTC)]}, None],
    "infinite decimals": [decimal.Decimal("Infinity"), decimal.Decimal(1)],
    "lists of infinite decimals": [[decimal.Decimal("-Infinity")], None],
}


@pytest.mark.parametrize("kind", KEPT)
def test_values_that_arrow_would_change_stay_objects(kind: str) -> None:
    values = KEPT[kind]
    for rows in (
        data.from_items([{"x": value} for value in values]),
        data.range(2, override_num_blocks=1).map(lambda row: {"x": values[row["id"]]}),
        data.from_pandas(pd.DataFrame({"x": pd.Series(values, dtype=object)})),
        data.range(1).map_batches(lambda batch: {"x": values}),
    ):
        assert [row["x"] for row in rows.take_all()] == values
        with pytest.raises(ValueError, match="Column 'x' cannot be an Arrow column"):
            rows.to_arrow()


def test_a_time_with_a_zone_does_not_become_one_of_a_column_without() -> None:
    rows = data.from_items([{"x": dt.time(1)}]).map(lambda row: {"x": row["x"].replace(tzinfo=dt.UTC)})
    assert rows.take_all() == [{"x": dt.time(1, tzinfo=dt.UTC)}]


@pytest.mark.parametrize("form", ["numpy", "pandas", "pyarrow"])
def test_some_dates_of_a_column_of_milliseconds(form: str) -> None:
    rows = data.from_arrow(pa.table({"x": pa.array([0, 86_400_000, None], pa.date64())}))
    cut = rows.map_batches(
        lambda batch: (
            batch.iloc[1:] if form == "pandas" else batch.slice(1) if form == "pyarrow" else {"x": batch["x"][1:]}
        ),
        batch_format=form,
    )
    assert cut.to_arrow()["x"].type == pa.date64()
    assert cut.to_arrow()["x"].to_pylist() == [dt.date(1970, 1, 2), None]
    if form == "numpy":
        hours = rows.map_batches(lambda batch: {"x": batch["x"] + np.timedelta64(1, "h")})
        assert hours.to_arrow()["x"].type == pa.timestamp("ms")


def test_tuples_and_sets_become_lists() -> None:
    assert data.from_items([{"x": {1}, "y": (1, 2)}]).take_all() == [{"x": [1], "y": [1, 2]}]
