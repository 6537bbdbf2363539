"""Datasets: what they are made of, what is done to them, and what is said of mistakes."""

from __future__ import annotations

import datetime as dt
import inspect
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped,unused-ignore]  # it may lack its stubs
import pyarrow as pa
import pytest
from pyarrow import parquet

import hocket
from hocket import data
from hocket.data import block_reads, blocks, execution, expressions, preprocessors

# --- on each engine ---------------------------------------------------------------------------------------------------


def add_text(batch: dict[str, np.ndarray]) -> dict[str, Any]:
    return {**batch, "text": [f"row {number}" for number in batch["id"]]}


def fail_on_five(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] == 5:
        raise ArithmeticError("five")
    return row


def check_datasets() -> None:
    """What a data set does in tasks: the same on each engine."""
    rows = data.range(1000, override_num_blocks=4)
    squares = rows.map_batches(
        lambda batch, by: {"id": batch["id"], "square": batch["id"] ** 2 * by}, fn_kwargs={"by": 3}
    )
    even = squares.filter(lambda row: row["square"] % 2 == 0).map_batches(add_text, batch_size=7)
    assert even.take(2) == [{"id": 0, "square": 0, "text": "row 0"}, {"id": 2, "square": 12, "text": "row 2"}]
    assert even.count() == 500
    assert even.schema() == data.Schema(names=["id", "square", "text"], types=["int64", "int64", "string"])
    batches = list(even.iter_batches(batch_size=128))  # across blocks
    assert [len(batch["id"]) for batch in batches] == [128, 128, 128, 116]
    assert np.concatenate([batch["id"] for batch in batches]).tolist() == list(range(0, 1000, 2))

    shuffled = rows.random_shuffle(seed=1)
    order = [row["id"] for row in shuffled.take_all()]
    assert sorted(order) == list(range(1000))
    assert order != sorted(order)
    assert order == [row["id"] for row in shuffled.take_all()]
    assert order != [row["id"] for row in rows.random_shuffle(seed=2).take_all()]

    options = data.DataContext.get_current().execution_options
    data.DataContext.get_current().execution_options = data.ExecutionOptions(max_bytes_in_flight=8_000)
    try:  # more than a task may look at: each block is cut into parts first
        assert order == [row["id"] for row in shuffled.take_all()]
        texts = even.random_shuffle(seed=4).take_all()
    finally:
        data.DataContext.get_current().execution_options = options
    assert texts == even.random_shuffle(seed=4).take_all()

    kept = even.repartition(3).materialize()
    assert (kept.num_blocks(), kept.count()) == (3, 500)
    parts = kept.split(3)
    assert [part.count() for part in parts] == [166, 167, 167]
    assert [row["id"] for part in parts for row in part.iter_rows()] == list(range(0, 1000, 2))
    assert [part.count() for part in kept.split(3, equal=True)] == [166, 166, 166]

    with pytest.raises(ArithmeticError, match="five"):
        rows.map(fail_on_five).take_all()


def test_datasets_do_the_same_on_each_engine(any_session: hocket.SessionContext) -> None:
    check_datasets()


# --- streaming --------------------------------------------------------------------------------------------------------


class Counted:
    """Reads that count how many were started."""

    started = 0


def stream_counted(options: data.ExecutionOptions, count: int, num_rows: int) -> Iterator[int]:
    """Read blocks one by one; give how many tasks were started by then."""
    Counted.started = 0

    def read(batch: Any) -> Any:
        Counted.started += 1  # in this process, on this engine
        return batch

    step = data.range(num_rows * count, override_num_blocks=count).map_batches(read)
    for _ in execution.stream(step._plan, options):
        yield Counted.started


def test_no_more_blocks_are_in_flight_than_is_allowed() -> None:
    with hocket.init(num_cpus=2, engine="inprocess"):
        options = data.ExecutionOptions(max_blocks_in_flight=3)
        assert list(stream_counted(options, 8, 10)) == [2, 4, 5, 6, 7, 8, 8, 8]
        # A block has 80 bytes, so that one is in flight beside none.
        options = data.ExecutionOptions(max_blocks_in_flight=3, max_bytes_in_flight=100)
        assert list(stream_counted(options, 5, 10)) == [2, 2, 3, 4, 5]
        # As many as the session's CPUs allow.
        assert list(stream_counted(data.ExecutionOptions(), 8, 10)) == [2, 5, 6, 7, 8, 8, 8, 8]


def test_a_loop_that_is_broken_off_leaves_no_thread() -> None:
    before = threading.active_count()
    loop = iter(data.range(100).iter_batches(batch_size=1, prefetch_batches=3))
    assert next(loop)["id"].tolist() == [0]
    loop.close()  # type: ignore[attr-defined]  # it is a generator
    assert threading.active_count() == before


@pytest.mark.parametrize(
    "given", [{"max_blocks_in_flight": 0}, {"max_bytes_in_flight": -1}, {"max_bytes_in_flight": 1.5}]
)
def test_limits_are_checked(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(ValueError, match=f"{name} must be a whole number from 1, but received {given[name]}"):
        data.ExecutionOptions(**given)


# --- values in, values out --------------------------------------------------------------------------------------------

ROWS: list[dict[str, Any]] = [
    {"number": 1, "float": 0.5, "text": "a", "list": [1, 2], "array": np.zeros((2, 2), np.float32), "gap": None},
    {"number": 2, "float": 1.5, "text": "bb", "list": [3, 4], "array": np.ones((2, 2), np.float32), "gap": 7},
]


def test_rows_come_back_as_they_went_in() -> None:
    rows = data.from_items(ROWS)
    found = rows.take_all()
    for row, given in zip(found, ROWS, strict=True):
        assert row.pop("array").tolist() == given["array"].tolist()
        assert row == {name: value for name, value in given.items() if name != "array"}
    assert rows.schema() == data.Schema(
        names=["number", "float", "text", "list", "array", "gap"],
        types=["int64", "float64", "string", "list<item: int64>", "float32[2, 2]", "int64"],
    )
    assert data.from_items([3, "x"][:1]).take_all() == [{"item": 3}]
    when = dt.datetime(2026, 1, 2)  # noqa: DTZ001 (without a zone, as files have them)
    assert data.from_items([{"when": when, "what": {"a": 1}}]).take_all() == [{"when": when, "what": {"a": 1}}]
    thing = data.from_items([{"thing": Path("x")}, {"thing": Path("y")}])  # of no type that Arrow has
    assert thing.take_all() == [{"thing": Path("x")}, {"thing": Path("y")}]
    assert data.from_items([]).take_all() == []
    assert data.from_items([]).schema() is None


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([np.datetime64("2020-01-02")], [dt.date(2020, 1, 2)]),
        ([np.datetime64("2020-01"), None], [dt.date(2020, 1, 1), None]),
        ([np.datetime64("2020-01-02T03"), np.datetime64("NaT")], [dt.datetime(2020, 1, 2, 3), None]),  # noqa: DTZ001
        ([np.timedelta64(3, "D"), np.timedelta64(1, "ms")], [dt.timedelta(days=3), dt.timedelta(milliseconds=1)]),
        ([np.float32(1.5)], [1.5]),
        ([np.int8(3)], [3]),
    ],
)
def test_scalars_of_numpy(given: list[Any], wanted: list[Any]) -> None:
    assert [row["x"] for row in data.from_items([{"x": value} for value in given]).take_all()] == wanted


def test_no_rows_have_columns() -> None:
    with hocket.init(num_cpus=2, engine="inprocess"):
        for rows in (data.range(3), data.range(3).materialize(), data.range(9, override_num_blocks=3)):
            assert rows.limit(0).schema() == data.Schema(names=["id"], types=["int64"])
            assert rows.limit(0).take_all() == []


def test_blocks_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data.DataContext.get_current(), "target_max_block_size", None)
    with hocket.init(num_cpus=2, engine="inprocess"):
        assert data.from_numpy(np.zeros(300 << 20, np.int8)).num_blocks() == 8  # ten of 32 MiB
        data.range(5).write_csv(tmp_path)
        assert data.read_csv(tmp_path).sum("id") == 10


def test_what_a_row_lacks_is_missing() -> None:
    with hocket.init(num_cpus=2, engine="inprocess"):
        assert data.from_items([{"x": 1}, {"y": "a"}, {"y": "b", "x": 2}]).take_all() == [
            {"x": 1, "y": None},
            {"x": None, "y": "a"},
            {"x": 2, "y": "b"},
        ]
        assert TWO.map(lambda row: {row["s"]: 1}).take_all() == [{"a": 1, "b": None}, {"a": None, "b": 1}]
        assert TWO.flat_map(lambda row: [{row["s"]: np.zeros(2)}]).to_arrow().column("b").null_count == 1
        assert TWO.map(lambda row: {"x": 1, **({"t": [1]} if row["s"] == "b" else {})}).unique("x") == [1]


def test_batches_have_the_form_that_is_asked_for() -> None:
    rows = data.from_items(ROWS)
    batch = rows.take_batch()
    assert {name: (array.dtype.str, array.shape) for name, array in batch.items()} == {
        "number": ("<i8", (2,)),
        "float": ("<f8", (2,)),
        "text": ("|O", (2,)),
        "list": ("<i8", (2, 2)),
        "array": ("<f4", (2, 2, 2)),
        "gap": ("<f8", (2,)),
    }
    assert np.isnan(batch["gap"][0])
    frame = rows.take_batch(batch_format="pandas")
    assert frame["text"].tolist() == ["a", "bb"]
    assert frame["array"][1].tolist() == [[1, 1], [1, 1]]
    table = rows.take_batch(batch_format="pyarrow")
    assert table.column("gap").to_pylist() == [None, 7]
    for other in (data.from_pandas(frame.drop(columns="gap")), data.from_arrow(table.drop_columns("gap"))):
        again = other.take_batch()
        assert again["array"][1].tolist() == [[1, 1], [1, 1]]
        assert again["list"].tolist() == [[1, 2], [3, 4]]
    assert rows.to_pandas()["number"].tolist() == [1, 2]


def test_columns_of_frames_and_tables_keep_their_types() -> None:
    frame = pd.DataFrame(
        {
            "i": np.array([1, 2], np.int32),
            "s": ["x", None],
            "n": pd.array([1, None], "Int64"),
            "c": pd.Categorical(["u", "v"]),
        }
    )
    assert data.from_pandas([frame, frame]).take_all() == 2 * [
        {"i": 1, "s": "x", "n": 1, "c": "u"},
        {"i": 2, "s": None, "n": None, "c": "v"},
    ]
    table = pa.table(
        {"b": [True, False], "f": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)), "nothing": pa.nulls(2)}
    )
    found = data.from_arrow(table)
    assert found.schema() == data.Schema(
        names=["b", "f", "nothing"], types=["bool", "fixed_size_list<item: float>[2]", "object"]
    )
    assert found.take_batch()["b"].tolist() == [True, False]


def test_columns_are_chosen_named_and_added() -> None:
    rows = data.from_items([{"x": 1, "y": 2}, {"x": 3, "y": 4}])
    with hocket.init(num_cpus=2, engine="inprocess"):
        assert rows.select_columns(["y"]).take(1) == [{"y": 2}]
        assert rows.drop_columns("y").take(1) == [{"x": 1}]
        assert rows.rename_columns({"x": "z"}).columns() == ["z", "y"]
        assert rows.add_column("sum", lambda frame: frame["x"] + frame["y"]).take_all()[1] == {"x": 3, "y": 4, "sum": 7}
        assert rows.flat_map(lambda row: [row] * (row["x"] - 1)).take_all() == [{"x": 3, "y": 4}] * 2
        assert rows.map_batches(lambda batch: iter([batch, batch])).count() == 4
        assert rows.map(lambda row: {"x": row["x"] / 2}).to_pandas()["x"].tolist() == [0.5, 1.5]
        assert rows.filter(lambda row: row["x"] > 9).take_all() == []
        assert rows.filter(lambda row: row["x"] and None).take_all() == []
        assert rows.filter(lambda row: row["x"] > 9).columns() == ["x", "y"]
    assert (
        repr(rows.map(add_text).random_shuffle(seed=1))
        == "Dataset(1 blocks, 2 rows -> map(add_text) -> shuffle(seed=1))"
    )


def test_kinds_of_values_that_differ_between_blocks_are_joined_or_refused() -> None:
    def build(*parts: Any) -> data.Dataset:
        return data.Dataset([block_reads.Held(blocks.build({"x": part}, "it")) for part in parts])

    assert build([1, 2], [None, 3]).take_batch(4, batch_format="pyarrow").column("x").to_pylist() == [1, 2, None, 3]
    assert build([1], [0.5]).take_batch()["x"].tolist() == [1.0, 0.5]
    ragged = build([np.zeros(2)], [np.zeros(3)]).take_batch()["x"]
    assert [len(row) for row in ragged] == [2, 3]
    with pytest.raises(
        TypeError, match="Column 'x' is int64 in some blocks and string in others, so one batch cannot hold it"
    ):
        build([1], ["a"]).take_batch()
    other = data.Dataset([block_reads.Held(blocks.build({name: [1]}, "it")) for name in "xy"])
    with hocket.init(num_cpus=2, engine="inprocess"):
        assert other.take_all() == [{"x": 1}, {"y": 1}]
        assert other.to_arrow().to_pylist() == [{"x": 1, "y": None}, {"x": None, "y": 1}]
        assert other.sort("x").take_all() == [{"x": 1, "y": None}, {"x": None, "y": 1}]
        with pytest.raises(KeyError, match="There is no column 'y': the columns are 'x'"):
            other.groupby("y").count().take_all()
        shuffled = other.random_shuffle(seed=1).repartition(1).take_all()
        assert sorted(shuffled, key=lambda row: row["x"] is None) == [{"x": 1, "y": None}, {"x": None, "y": 1}]


def test_what_a_function_is_given_is_shared_unless_it_asks_for_a_copy() -> None:
    def spoil(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        batch["data"] += 1
        return batch

    given = np.zeros(3)
    with hocket.init(num_cpus=2, engine="inprocess"):
        with pytest.raises(ValueError, match=r"read-only(.|\n)*Write zero_copy_batch=False for copies"):
            data.from_numpy(given).map_batches(spoil).take_all()
        assert data.from_numpy(given).map_batches(spoil, zero_copy_batch=False).take_batch()["data"].tolist() == [
            1,
            1,
            1,
        ]
    for batch in data.from_numpy([given, given]).iter_batches():
        batch["data"] += 1
        assert len(batch["data"]) == 6
    assert given.tolist() == [0, 0, 0]


def test_a_buffer_mixes_rows_in_its_window() -> None:
    batches = data.range(20).iter_batches(
        batch_size=5, local_shuffle_buffer_size=10, local_shuffle_seed=3, drop_last=True
    )
    rows = [row for batch in batches for row in batch["id"].tolist()]
    assert rows != list(range(20))
    assert sorted(rows[:10]) == list(range(10))
    assert rows == [row for batch in batches for row in batch["id"].tolist()]


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_are_read(tmp_path: Path) -> None:
    table = pa.table({"x": range(10), "s": [str(number) for number in range(10)]})
    folder = tmp_path / "rows"
    folder.mkdir()
    parquet.write_table(table, folder / "a.parquet", row_group_size=4)
    parquet.write_table(table.slice(0, 3), folder / "b.parquet")
    (folder / "notes.txt").write_text("no rows")
    (tmp_path / "rows.csv").write_text("x,s\n1,one\n2,two\n")
    (tmp_path / "rows.jsonl").write_text('{"x": 1, "s": "one"}\n{"x": 2}\n')
    context = data.DataContext.get_current()
    before, context.target_max_block_size = context.target_max_block_size, 200
    try:
        rows = data.read_parquet(str(folder))
        assert (rows.num_blocks(), rows.count()) == (4, 13)  # a group of rows each: the footers say how many
    finally:
        context.target_max_block_size = before
    with hocket.init(num_cpus=2, engine="inprocess"):
        assert [row["x"] for row in rows.iter_rows()] == [*range(10), *range(3)]
        assert data.read_parquet([str(folder / "b.parquet")], columns=["s"]).take_all() == [
            {"s": "0"},
            {"s": "1"},
            {"s": "2"},
        ]
        assert data.read_csv(str(tmp_path / "rows.csv")).take_all() == [{"x": 1, "s": "one"}, {"x": 2, "s": "two"}]
        assert data.read_json(str(tmp_path / "rows.jsonl")).take_all() == [{"x": 1, "s": "one"}, {"x": 2, "s": None}]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(
        ValueError, match=r"read_parquet\(\) cannot read '.*broken.parquet': .*Repair the file, leave it out"
    ):
        data.read_parquet(str(broken))
    parquet.write_table(pa.table({"x": range(1000)}), broken, compression="none")
    content = bytearray(broken.read_bytes())
    rows = data.read_parquet(str(broken))
    content[4:40] = b"\xff" * 36  # the footer stays, the rows do not
    broken.write_bytes(bytes(content))
    ragged = tmp_path / "ragged.csv"
    ragged.write_text("x,y\n1,2\n3\n")
    with hocket.init(num_cpus=2, engine="inprocess"):
        with pytest.raises(ValueError, match=r"read_parquet\(\) cannot read '.*broken.parquet'"):
            rows.take_all()
        with pytest.raises(ValueError, match=r"read_csv\(\) cannot read '.*ragged.csv': .*Expected 2 columns, got 1"):
            data.read_csv(str(ragged)).take_all()


def test_a_file_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"read_csv\(\): there is no file or folder '.*nothing.csv' in "):
        data.read_csv(str(tmp_path / "nothing.csv"))
    with pytest.raises(FileNotFoundError, match=r"the folder '.*' has no file whose name ends in \.parquet"):
        data.read_parquet(str(tmp_path))
    with pytest.raises(ValueError, match="the address 'quux://bucket/rows' has the unknown scheme 'quux'"):
        data.read_parquet("quux://bucket/rows")
    with pytest.raises(TypeError, match=r"read_json\(\) takes a path or a list of them, but received 3"):
        data.read_json(3)
    with pytest.raises(ValueError, match=r"read_csv\(\) received no path"):
        data.read_csv([])
    parquet.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(KeyError, match=r"x\.parquet': There is no column 'y': the columns are 'x'"):
        data.read_parquet(str(tmp_path), columns=["y"])


# --- mistakes ---------------------------------------------------------------------------------------------------------

TWO = data.from_items([{"x": 1, "s": "a"}, {"x": 2, "s": "b"}])


def as_any(value: Any) -> Any:
    return value


def return_number(batch: Any) -> Any:
    return 3


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: TWO.map_batches(return_number),
            TypeError,
            r"The result of map_batches\(`return_number`\) must be a dict of arrays, .* but is an int: 3",
        ),
        (
            lambda: TWO.map_batches(lambda batch: {"x": 1}),
            TypeError,
            r"column 'x' has a value of type int, 1, but a column needs",
        ),
        (
            lambda: TWO.map_batches(lambda batch: {"x": np.array(1)}),
            TypeError,
            r"column 'x' has a single value, array\(1\)",
        ),
        (lambda: TWO.map_batches(lambda batch: {}), ValueError, "has no column, and rows cannot be counted"),
        (
            lambda: TWO.map_batches(lambda batch: {"x": [1], "y": [1, 2]}),
            ValueError,
            r"columns of different lengths, \{'x': 1, 'y': 2\}",
        ),
        (lambda: TWO.map_batches(lambda batch: {1: [1]}), TypeError, "has a column named 1, but a name must be a text"),
        (
            lambda: TWO.map(return_number),
            TypeError,
            r"The result of map\(`return_number`\): a row must be a dict of values by column, but row 0 is an int: 3",
        ),
        (
            lambda: TWO.flat_map(return_number),
            TypeError,
            r"The result of flat_map\(`return_number`\) must be a list of rows, but is an int: 3",
        ),
        (
            lambda: TWO.add_column("y", lambda frame: [1]),
            ValueError,
            r"add_column\('y', .* returned 1 values for 2 rows",
        ),
        (
            lambda: TWO.add_column("y", lambda frame: frame[["x"]] % 3),
            TypeError,
            r"returned a DataFrame, a whole batch, but must return one column. Return a value for each row",
        ),
        (
            lambda: TWO.map(lambda row: row).select_columns("y"),
            KeyError,
            "There is no column 'y': the columns are 'x', 's'",
        ),
    ],
)
def test_a_mistake_in_a_step_names_the_function(make: Any, error: type[Exception], message: str) -> None:
    with hocket.init(num_cpus=1, engine="inprocess"), pytest.raises(error, match=message):
        make().take_all()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: data.from_items([{"x": 1}, 2]),
            TypeError,
            "a row must be a dict of values by column, but row 1 is an int: 2",
        ),
        (
            lambda: data.from_items(as_any({"x": [1]})),
            TypeError,
            r"from_items\(\) takes a list of rows, but received a dict",
        ),
        (
            lambda: data.from_items([1], override_num_blocks=0),
            ValueError,
            "override_num_blocks must be a whole number from 1, but received 0",
        ),
        (
            lambda: data.from_numpy(as_any([1, 2])),
            TypeError,
            r"from_numpy\(\) takes arrays, but 'data' is a list",
        ),
        (
            lambda: data.from_numpy({"x": np.zeros(2), "y": np.zeros(3)}),
            ValueError,
            r"columns of different lengths, \{'x': 2, 'y': 3\}",
        ),
        (
            lambda: data.from_pandas([1]),
            TypeError,
            r"from_pandas\(\) takes a DataFrame or a list of them, but received an int",
        ),
        (lambda: data.from_pandas(pd.DataFrame([[1, 2]], columns=["x", "x"])), ValueError, "must have different names"),
        (lambda: data.from_arrow([1]), TypeError, r"from_arrow\(\) takes an Arrow table"),
        (
            lambda: data.from_arrow(pa.Table.from_arrays([pa.array([1])] * 2, names=["x", "x"])),
            ValueError,
            r"occur more than once: \['x'\]",
        ),
        (lambda: data.range(-1), ValueError, "n must be a whole number from 0, but received -1"),
        (lambda: TWO.map_batches(as_any(3)), TypeError, r"map_batches\(\) takes a function, but received 3"),
        (
            lambda: TWO.map_batches(Counted),
            TypeError,
            r"map_batches\(\) calls instances of Counted, but this class has no __call__",
        ),
        (
            lambda: TWO.map_batches(return_number, batch_size=0),
            ValueError,
            "batch_size must be 1 or more rows, but received 0",
        ),
        (lambda: TWO.map_batches(return_number, batch_format="torch"), ValueError, "batch_format must be one of"),
        (
            lambda: TWO.map_batches(return_number, num_cpus=-1),
            ValueError,
            "num_cpus must be a number from 0, but received -1",
        ),
        (lambda: TWO.select_columns(["x", "y"]), KeyError, "There is no column 'y': the columns are 'x', 's'"),
        (
            lambda: TWO.select_columns([]),
            ValueError,
            r"select_columns\(\) takes the names of columns, each once, but received \[\]",
        ),
        (lambda: TWO.drop_columns(["x", "s"]), ValueError, r"drop_columns\(\['x', 's'\]\) leaves no column"),
        (lambda: TWO.rename_columns({"x": "s"}), ValueError, "gives two columns the same name"),
        (lambda: TWO.random_shuffle(seed=-1), ValueError, "seed must be a whole number from 0, but received -1"),
        (lambda: TWO.repartition(0), ValueError, "num_blocks must be a whole number from 1, but received 0"),
        (lambda: TWO.split(0), ValueError, "n must be a whole number from 1 to 100,000, but received 0"),
        (lambda: TWO.take(-1), ValueError, "limit must be a whole number from 0, but received -1"),
        (
            lambda: TWO.take_all(limit=1),
            ValueError,
            r"take_all\(limit=1\) was called, but the data set has more than 1 rows",
        ),
        (lambda: TWO.to_pandas(limit=1), ValueError, r"to_pandas\(limit=1\) was called, but the data set has 2 rows"),
        (
            lambda: data.from_items([]).take_batch(),
            ValueError,
            r"take_batch\(\) was called, but the data set has no rows",
        ),
        (lambda: iter(TWO), TypeError, r"Write iter_rows\(\) or iter_batches\(\)"),
        (lambda: TWO.iter_batches(batch_size=0), ValueError, "batch_size must be 1 or more rows, but received 0"),
    ],
)
def test_a_mistake_is_told_at_once(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
    assert not hocket.is_initialized()


def test_without_arrow_only_what_asks_for_it_is_missing() -> None:
    program = """
import sys
sys.modules["pyarrow"] = None
from hocket import data
rows = data.from_items([{"x": [1, 2], "s": "a", "gap": None}, {"x": [3, 4], "s": "b", "gap": 1}])
print(rows.take(1), rows.schema().types)
print(rows.take_batch()["x"].tolist(), rows.take_batch(batch_format="pandas")["s"].tolist())
for make in (lambda: data.read_csv("x.csv"), lambda: data.from_arrow(1), lambda: rows.take_batch(batch_format="pyarrow")):
    try:
        make()
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "[{'x': [1, 2], 's': 'a', 'gap': None}] ['object', 'object', 'object']"
    assert lines[1] == "[[1, 2], [3, 4]] ['a', 'b']"
    assert lines[2].startswith(
        "read_csv() needs pyarrow, and 'pyarrow' cannot be imported. Run pip install 'hocket[data]'"
    )
    assert ["hocket[data]" in line for line in lines[2:]] == [True] * 3


def test_take_works_on_no_more_rows_than_it_needs(session: None, tmp_path: Path) -> None:
    def note(row: dict[str, Any]) -> dict[str, Any]:
        (tmp_path / str(row["id"])).touch()
        return {"id": row["id"], "square": row["id"] ** 2}

    rows = data.range(1000).map(note)
    assert rows.take(3) == [{"id": at, "square": at**2} for at in range(3)]
    assert len(list(tmp_path.iterdir())) <= 3 * 8  # a few of each block that was begun
    renamed = rows.rename_columns({"square": "power"}).select_columns(["power"])
    assert renamed.take(2) == [{"power": 0}, {"power": 1}]
    assert rows.filter(lambda row: row["id"] >= 500).take(1) == [{"id": 500, "square": 250_000}]
    assert [row["id"] for row in rows.random_shuffle(seed=1).take(5)] == [
        row["id"] for row in rows.random_shuffle(seed=1).take(9)
    ][:5]


ANY_DATA: Any = data
ANY_TWO: Any = TWO
"""Without types, which would refuse what is tried."""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ANY_TWO.random_shuffle(sed=1), r"^random_shuffle\(\) has no keyword 'sed'\. Did you mean 'seed'\?$"),
        (
            lambda: ANY_TWO.random_shuffle(sd_card=1),
            r"It takes seed, num_blocks; and the options of hocket\.remote\(\)\.$",
        ),
        (lambda: ANY_TWO.streaming_train_test_split(0.5, sed=1), "Did you mean 'seed'"),
        (
            lambda: ANY_TWO.map_batches(len, batchsize=3),
            r"^map_batches\(\) has no keyword 'batchsize'\. Did you mean 'batch_s",
        ),
        (lambda: ANY_TWO.map(len, batch_size=3), r"^map\(\) has no keyword 'batch_size'\. It takes fn_args, fn_kwargs"),
        (lambda: ANY_TWO.map(len, fn_kwarg={}), r"^map\(\) has no keyword 'fn_kwarg'\. Did you mean 'fn_kwargs'"),
        (
            lambda: ANY_TWO.flat_map(len, concurency=3),
            r"^flat_map\(\) has no keyword 'concurency'\. Did you mean 'concurren",
        ),
        (
            lambda: ANY_TWO.filter(len, max_retris=3),
            r"^filter\(\) has no keyword 'max_retris'\. Did you mean 'max_retries'",
        ),
        (lambda: ANY_TWO.filter(expr="id > 1", concurency=3), "Did you mean 'concurrency'"),
        (
            lambda: ANY_TWO.groupby("id").map_groups(len, zero_copy=0),
            r"^map_groups\(\) .*Did you mean 'zero_copy_batch'",
        ),
        (lambda: ANY_TWO.map(len, max_retries="x"), "type of keyword 'max_retries' must be int, but received type str"),
        (
            lambda: ANY_TWO.join(ANY_TWO, how="left", on="id"),
            r"^join\(\) has no keyword 'how'\. Did you mean 'join_type'\?$",
        ),
        (
            lambda: ANY_TWO.iter_batches(batchsize=3),
            r"^iter_batches\(\) has no keyword 'batchsize'\. Did you mean 'batch_siz",
        ),
        (lambda: ANY_TWO.to_pandas(limt=3), r"^to_pandas\(\) has no keyword 'limt'\. Did you mean 'limit'"),
        (
            lambda: ANY_TWO.train_test_split(0.5, sed=3),
            r"^train_test_split\(\) has no keyword 'sed'\. Did you mean 'seed'",
        ),
        (lambda: ANY_TWO.count(exact=True), r"^count\(\) has no keyword 'exact'\. It takes none\.$"),
        (
            lambda: ANY_DATA.range(9, parallelism=2),
            r"^range\(\) .* 'parallelism'\. Did you mean 'override_num_blocks'\?$",
        ),
        (lambda: ANY_DATA.from_items([], num_block=2), r"^from_items\(\) .* Did you mean 'override_num_blocks'\?$"),
        (lambda: ANY_DATA.read_text("x", encodin="ascii"), r"^read_text\(\) .* Did you mean 'encoding'\?$"),
        (lambda: ANY_DATA.read_csv("x", parse_option=1), r"^read_csv\(\) .* Did you mean 'parse_options'\?$"),
        (lambda: ANY_DATA.read_parquet("x", colums=["x"]), r"^read_parquet\(\) .* Did you mean 'columns'\?$"),
        (
            lambda: ANY_TWO.write_parquet("x", compres="gzip"),
            r"^write_parquet\(\) .* 'compres'\. Did you mean 'compression'",
        ),
        (lambda: ANY_TWO.write_csv("x", write_option=1), r"^write_csv\(\) .* Did you mean 'write_options'\?$"),
        (lambda: ANY_TWO.write_orc("x", stripe=1), r"^write_orc\(\) .* Did you mean 'stripe_size'\?$"),
        (
            lambda: ANY_TWO.write_json("x", mod="error"),
            r"^write_json\(\) has no keyword 'mod'\. Did you mean 'mode'\?$",
        ),
    ],
)
def test_a_keyword_that_is_none_is_told_at_once(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()
    assert not hocket.is_initialized()


def test_what_rays_remote_arguments_are_is_taken(session: None) -> None:
    rows = data.range(10).random_shuffle(seed=1, num_cpus=1, scheduling_strategy="SPREAD")
    found = rows.map(
        lambda row: row, max_retries=1, retry_exceptions=[OSError], ray_remote_args_fn=None, memory=1 << 20
    )
    assert sorted(row["id"] for row in found.take_all()) == list(range(10))

    def write(group: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        group["id"] += 1
        return group

    changed = data.range(3).groupby("id").map_groups(write, zero_copy_batch=False)
    assert changed.take_all() == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_methods_that_refuse_keywords_are_the_class_s_own() -> None:
    assert pickle.loads(pickle.dumps(data.Dataset.count)) is data.Dataset.count
    assert data.Dataset.join.__qualname__ == "Dataset.join"
    assert "join_type" in inspect.signature(data.Dataset.join).parameters
    assert "override_num_blocks" in inspect.signature(data.range).parameters


@pytest.mark.parametrize(
    "look",
    [
        lambda rows: rows.count(),
        lambda rows: rows.num_blocks(),
        lambda rows: rows.schema(),
        lambda rows: rows.columns(),
        lambda rows: rows.size_bytes(),
        lambda rows: rows.sum("id"),
        lambda rows: rows.limit(2).count(),
        lambda rows: rows.union(rows).count(),
        lambda rows: rows.repartition(2).num_blocks(),
        lambda rows: rows.materialize(),
        lambda rows: rows.take(1),
    ],
)
def test_no_shortcut_leaves_the_check_of_zip_out(session: None, look: Any) -> None:
    rows = data.range(100).zip(data.range(5))
    assert repr(rows) == "Dataset(? blocks, ? rows -> zip)"
    with pytest.raises(ValueError, match=r"need equally many rows, but received \[100, 5\]"):
        look(rows)
    assert data.range(5).zip(data.range(5)).count() == 5


@pytest.mark.parametrize(
    ("make", "known"),
    [
        (lambda rows: rows, 4),
        (lambda rows: rows.map(lambda row: row), 4),
        (lambda rows: rows.filter(keep_none), 4),
        (lambda rows: rows.repartition(3), 3),
        (lambda rows: rows.repartition(1000), 100),
        (lambda rows: rows.repartition(target_num_rows_per_block=30), 4),
        (lambda rows: rows.random_shuffle(seed=1, num_blocks=7), 7),
        (lambda rows: rows.randomize_block_order(seed=1), 4),
        (lambda rows: rows.union(rows, rows), 12),
        (lambda rows: rows.limit(30), 2),
        (lambda rows: rows.limit(0), 1),
        (lambda rows: rows.zip(rows.repartition(2)), 4),
        (lambda rows: rows.sort("id"), None),
        (lambda rows: rows.filter(keep_none).repartition(3), None),
        (lambda rows: rows.filter(keep_some).repartition(3), None),
        (lambda rows: rows.filter(keep_some).limit(2), None),
        (lambda rows: rows.filter(keep_some).random_shuffle(seed=1), None),
        (lambda rows: rows.union(rows.sort("id")), None),
    ],
)
def test_number_of_blocks_is_that_which_comes(session: None, make: Any, known: int | None) -> None:
    rows = make(data.range(100, override_num_blocks=4))
    shown = "?" if known is None else known
    assert repr(rows).startswith(f"Dataset({shown} blocks")
    assert rows.num_blocks() == sum(1 for _ in rows._stream())
    assert known is None or rows.num_blocks() == known
    assert ("not known before they are made" in rows._repr_html_()) == (known is None)


def keep_none(row: dict[str, Any]) -> bool:
    return False


def keep_some(row: dict[str, Any]) -> bool:
    return bool(row["id"] < 3)


def test_files_of_all_that_is_read(session: None, tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{name}.parquet") for name in "abc"]
    for path in paths:
        parquet.write_table(pa.table({"id": [1, 2]}), path)
    first, second, third = (data.read_parquet(path) for path in paths)
    assert first.union(second.join(third, on="id")).input_files() == paths


@pytest.mark.parametrize(
    "look",
    [
        lambda rows: rows.sum("xx"),
        lambda rows: rows.groupby("xx").count().take_all(),
        lambda rows: rows.filter(expr="xx > 1").take_all(),
        lambda rows: rows.map(lambda row: row).sort("xx").take_all(),
        lambda rows: rows.map(lambda row: row).select_columns("xx").take_all(),
        lambda rows: rows.with_column("y", expressions.col("xx")).take(1),
        lambda rows: preprocessors.StandardScaler(["xx"]).fit(rows),
        lambda rows: rows.unique("xx"),
        lambda rows: rows.join(rows, on="xx").take_all(),
    ],
)
def test_a_column_that_is_not_there_is_told_without_our_frames(session: None, look: Any) -> None:
    with pytest.raises(KeyError, match="There is no column 'xx': the columns are 'id'") as found:
        look(data.range(10, override_num_blocks=2))
    package = str(Path(hocket.__file__).parent)
    assert [frame.path for frame in found.traceback if str(frame.path).startswith(package)] == []
    assert package not in str(found.value)


@pytest.mark.parametrize("loop", ["iter_batches", "iter_rows", "iter_torch_batches", "take_all"])
def test_an_error_of_a_step_comes_to_a_loop_without_our_frames(session: None, loop: str) -> None:
    def fail(row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("a bad row")

    rows = data.range(10, override_num_blocks=2).map(fail)
    with pytest.raises(ValueError, match="a bad row") as found:
        for _ in getattr(rows, loop)():
            pass
    package = str(Path(hocket.__file__).parent)
    assert [frame.path for frame in found.traceback if str(frame.path).startswith(package)] == []
    assert len(found.traceback) == 1


def test_mistakes_of_ours_keep_their_frames(session: None, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: dict[str, Any] = {}
    monkeypatch.setattr(data.Dataset, "_stream", lambda self: nothing["missing"])
    with pytest.raises(KeyError, match="missing") as found:
        data.range(3).filter(lambda row: True).count()
    assert any(str(frame.path).endswith("looking.py") for frame in found.traceback)


def test_a_dataset_is_no_list() -> None:
    rows = data.range(3)
    with pytest.raises(TypeError, match=r"A Dataset has no length before it is executed. Write count\(\)"):
        len(rows)
    with pytest.raises(TypeError, match=r"A Dataset cannot be indexed, but received \[0\]\. Write take\(n\)"):
        rows[0]
    with pytest.raises(TypeError, match=r"Write iter_rows\(\) or iter_batches\(\)"):
        list(rows)
    with pytest.raises(
        TypeError, match=r"A Dataset is neither true nor false .*\. Write count\(\) > 0, or `is not None`"
    ):
        bool(rows)
    with pytest.raises(TypeError, match=r"Write filter\(\.\.\.\)\.count\(\) > 0"):
        _ = 3 in rows


def test_a_schema_prints_as_a_table() -> None:
    assert str(data.from_items([{"label": 1, "a_long_name": "x"}]).schema()).splitlines() == [
        "Column       Type",
        "------       ----",
        "label        int64",
        "a_long_name  string",
    ]


def test_draws_do_not_depend_on_how_many_tasks_there_are(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.csv").write_text("x\n" + "\n".join(map(str, range(100 * number, 100 * number + 100))))
    found = []
    for num_cpus in (2, 8):  # with 8, other tasks than those that read draw
        with hocket.init(num_cpus=num_cpus, engine="inprocess"):
            rows = data.read_csv(tmp_path, override_num_blocks=5)
            parts = (rows.random_sample(0.1, seed=3), *rows.streaming_train_test_split(0.2, seed=3))
            found.append([part.take_all() for part in parts])
    assert found[0] == found[1]
