"""Relations that begin at Parquet files: the engine for tables reads them itself, and nothing is other than through
blocks."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hocket import data
from hocket.data import aggregate as aggregates
from hocket.data.expressions import col
from hocket.data.sources import parquet

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("shared_session")]

VALUES: dict[str, tuple[list[Any], Any]] = {
    "tiny": ([1, -128, 127, None], pa.int8()),
    "int": ([1, 2, -3], pa.int64()),
    "gaps": ([1, 2, None, -(2**31)], pa.int32()),
    "large": ([2**63, 1, 0, None], pa.uint64()),
    "small": ([65535, 0, 7], pa.uint16()),
    "x": ([0.5, math.nan, None, -0.0, 0.0, math.inf, -math.inf, 1e300, 0.1], pa.float64()),
    "single": ([0.5, math.nan, None, 3.25], pa.float32()),
    "flag": ([True, False, None], pa.bool_()),
    'it\'s "odd"': (["", "é", "Z", "a", "\U0001f600", None, "a\0b", "it's"], pa.string()),
    "long": (["x", "yy", None], pa.large_string()),
}
ODD = 'it\'s "odd"'


def build(count: int, seed: int) -> pa.Table:
    generator = np.random.default_rng(seed)
    columns = {
        name: pa.array([values[at] for at in generator.integers(0, len(values), count)], kind)
        for name, (values, kind) in VALUES.items()
    }
    return pa.table({**columns, "row": np.arange(count), "y": generator.normal(size=count)})


def write(folder: Path, *, count: int = 500, num_files: int = 3, rows_per_group: int = 60) -> list[pa.Table]:
    folder.mkdir(exist_ok=True)
    tables = [build(count, seed) for seed in range(num_files)]
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"it's {number}.parquet", row_group_size=rows_per_group)
    return tables


def is_scan(rows: data.Dataset) -> bool:
    return rows._plan.find_scan() is not None


@pytest.fixture(scope="module")
def folder(shared_session: object, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("scans") / "it's here"
    write(made)
    return made


@pytest.fixture(scope="module")
def tables(folder: Path) -> tuple[data.Dataset, data.Dataset]:
    """The same rows: of files that are scanned, and of blocks, one for each file."""
    scanned = data.read_parquet(str(folder))
    assert is_scan(scanned)
    held = data.from_arrow(pa.concat_tables(map(pq.read_table, sorted(folder.iterdir()))), override_num_blocks=3)
    return scanned, held


def collect(rows: data.Dataset) -> list[tuple[str, str, list[Any]]]:
    """Names, types and values, in which NaN is equal to itself and -0.0 is not 0.0."""
    parts = [one for one in rows.iter_batches(batch_size=None, batch_format="pyarrow") if one.num_rows]
    if not parts:
        return []
    table = pa.concat_tables(parts)
    return [
        (name, str(table.schema.field(name).type), [repr(value) for value in table.column(name).to_pylist()])
        for name in table.column_names
    ]


def check(tables: tuple[data.Dataset, data.Dataset], change: Callable[[data.Dataset], data.Dataset]) -> None:
    scanned, held = tables
    assert collect(change(scanned)) == collect(change(held))


@pytest.mark.parametrize("column", list(VALUES))
@pytest.mark.parametrize("descending", [False, True])
def test_sorting(tables: Any, column: str, descending: bool) -> None:
    check(tables, lambda rows: rows.sort(column, descending=descending))


AGGREGATES = [
    aggregates.Count(),
    aggregates.Sum("y"),
    aggregates.Sum("int"),
    aggregates.Mean("x", alias_name="m"),
    aggregates.Std("y"),
    aggregates.Min(ODD),
    aggregates.Max("large"),
    aggregates.AbsMax("tiny"),
    aggregates.Mean("y", ignore_nulls=False, alias_name="n"),
    aggregates.MissingValuePercentage("x"),
    aggregates.ZeroPercentage("gaps"),
]
WHOLE = [
    aggregates.Quantile("y"),
    aggregates.Unique("gaps"),
    aggregates.AsList("row"),
    aggregates.CountDistinct("long"),
]


@pytest.mark.parametrize("aggs", [AGGREGATES, WHOLE], ids=["parts", "whole"])
@pytest.mark.parametrize("key", [*VALUES, None])
def test_groups(tables: Any, key: str | None, aggs: list[Any]) -> None:
    check(tables, lambda rows: rows.groupby(key).aggregate(*aggs))


@pytest.mark.parametrize("how", ["inner", "left_outer", "right_outer", "full_outer", "left_semi", "left_anti"])
@pytest.mark.parametrize("is_left", [True, False])
def test_joins(tables: Any, how: str, is_left: bool) -> None:
    other = data.from_arrow(pa.table({"gaps": pa.array([1, None, 9, 1], pa.int32()), "name": ["a", "b", "c", "d"]}))

    def join(rows: data.Dataset) -> data.Dataset:
        return rows.join(other, how, on="gaps") if is_left else other.join(rows, how, on="gaps")

    check(tables, join)


def test_joining_files_with_files(tables: Any) -> None:
    scanned, held = tables
    few = "row < 40"
    assert collect(scanned.filter(expr=few).join(scanned.filter(expr=few), "inner", on="row", right_suffix="_")) == (
        collect(held.filter(expr=few).join(held.filter(expr=few), "inner", on="row", right_suffix="_"))
    )


CONDITIONS: list[tuple[str, Any]] = [
    *((name, value) for name in ("x", "single") for value in (0, 0.0, -0.0, 0.5, 3, 1e300)),
    *(("gaps", value) for value in (1, -(2**31), 5)),
    ("tiny", 300),
    ("int", -(2**63)),
    *((ODD, value) for value in ("", "é", "it's", "Z")),
    ("long", "x"),
]


@pytest.mark.parametrize("compare", [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge])
@pytest.mark.parametrize(("column", "value"), CONDITIONS, ids=str)
def test_conditions(tables: Any, compare: Any, column: str, value: Any) -> None:
    condition = compare(col(column), value)
    scanned, held = tables[0].filter(expr=condition), tables[1].filter(expr=condition)
    assert is_scan(scanned) == (isinstance(value, str | int) or abs(value) <= 2**53)
    assert scanned.groupby("flag").count().take_all() == held.groupby("flag").count().take_all()
    both = (condition & (col("row") > 30)) | (col("gaps") == 2)
    assert is_scan(tables[0].filter(expr=both)) == is_scan(scanned)
    check(tables, lambda rows: rows.filter(expr=both).select_columns([column, "row"]).sort(column))


@pytest.mark.parametrize(
    "condition",
    [
        col("x") > math.inf - math.inf,
        col("x") < math.inf,
        col("x") > 2**60,
        col("large") > -1,
        col("flag") == True,  # noqa: E712
        col("x") > col("y"),
        ~(col("int") > 1),
        col(ODD).str.len() > 1,
        col("gaps").is_null(),
    ],
    ids=str,
)
def test_conditions_that_the_engine_might_see_otherwise(tables: Any, condition: Any) -> None:
    assert not is_scan(tables[0].filter(expr=condition))
    if "large" not in repr(condition):  # of which Arrow knows no less than 0 either
        check(tables, lambda rows: rows.filter(expr=condition).sort("row"))


def test_a_filter_before_the_groups(tables: Any) -> None:
    check(tables, lambda rows: rows.filter(expr="y > 0.5").groupby("int").aggregate(*AGGREGATES))
    check(tables, lambda rows: rows.filter(expr="y > 1e9").sort("int").limit(3).union(data.range(1)))


class Unread(parquet.ParquetRead):  # type: ignore[misc]  # final, but for tests
    """A read that makes no block."""

    def __call__(self) -> Any:
        raise AssertionError("a block is read")


def test_no_block_is_read(folder: Path) -> None:
    """The proof that the tests above compare scans."""
    plain = data.read_parquet(str(folder))
    reads: list[Any] = list(plain._plan.reads)
    rows = data.Dataset([Unread(**{one.name: getattr(read, one.name) for one in fields(read)}) for read in reads])
    assert len(rows.sort("row").take_all()) == 1500
    assert sum(row["count()"] for row in rows.filter(expr="y > 0").groupby("int").count().take_all()) > 0
    with pytest.raises(Exception, match="a block is read"):
        rows.map_batches(lambda batch: batch).sort("row").take_all()


@pytest.mark.parametrize("what", ["rows", "columns", "types", "gone", "damaged"])
def test_files_that_have_changed(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "rows"
    write(folder, num_files=2)
    rows = data.read_parquet(str(folder))
    path = sorted(folder.iterdir())[1]
    table = pq.read_table(path)
    if what == "rows":
        pq.write_table(table.slice(0, 100), path)
    elif what == "columns":
        pq.write_table(table.rename_columns([f"{name}2" for name in table.column_names]), path)
    elif what == "types":
        at = table.column_names.index("row")
        pq.write_table(table.set_column(at, "row", table.column("row").cast("float64")), path)
    elif what == "gone":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[200:3000] = os.urandom(2800)
        path.write_bytes(content)
    for make in (lambda: rows.sort("row"), lambda: rows.groupby("int").sum("y")):
        with pytest.raises(Exception, match=r"it's 1\.parquet"):
            make().take_all()


def test_what_is_no_scan(tmp_path: Path) -> None:
    def put(name: str, table: pa.Table) -> data.Dataset:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
        return data.read_parquet(str(path))

    plain = pa.table({"x": [3, 1, 2]})
    assert is_scan(put("plain.parquet", plain))
    odd = [
        put("a*b.parquet", plain),
        put("[1]/x.parquet", plain),
        put("both.parquet", pa.table({"x": [1, 3, 2], "X": [4, 5, 6]})),
        put("number.parquet", pa.table({"x": [1, 3, 2], "File_Row_Number": [4, 5, 6]})),
        put("stamp.parquet", pa.table({"x": pa.array([3, 2, 1], pa.timestamp("ns", "UTC"))})),
        put("word.parquet", pa.table({"x": pa.array(["b", "a"]).dictionary_encode()})),
        data.read_parquet(str(tmp_path / "plain.parquet"), include_paths=True),
    ]
    for rows in odd:
        assert not is_scan(rows)
        assert len(rows.sort("x").take_all()) == rows.count()
    (tmp_path / "parts" / "key=1").mkdir(parents=True)
    pq.write_table(plain, tmp_path / "parts" / "key=1" / "0.parquet")
    parts = data.read_parquet(str(tmp_path / "parts"))
    assert not is_scan(parts)
    assert parts.sort("x").take(1) == [{"x": 1, "key": "1"}]
