"""Arguments and values that programs for Ray Data use: types, expressions, functions' options, batches, JSON lines."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import hocket
from hocket import data
from hocket.data import aggregate, context, exceptions
from hocket.data.datasource import Datasource, ReadTask
from hocket.data.datatype import DataType, TypeCategory
from hocket.data.expressions import col, download, lit, udf

UNTYPED: Any = data


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    with hocket.init(num_cpus=2):
        yield


# --- types ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "shown", "arrows"),
    [
        (DataType.int8(), "DataType(arrow:int8)", pa.int8()),
        (DataType.bool(), "DataType(arrow:bool)", pa.bool_()),
        (DataType.string(), "DataType(arrow:string)", pa.string()),
        (DataType.from_numpy("float32"), "DataType(numpy:float32)", pa.float32()),
        (DataType(int), "DataType(python:int)", pa.int64()),
        (DataType.list(DataType.int64()), "DataType(arrow:list<item: int64>)", pa.list_(pa.int64())),
        (
            DataType.fixed_size_list(DataType.float32(), 3),
            "DataType(arrow:fixed_size_list<item: float>[3])",
            pa.list_(pa.float32(), 3),
        ),
        (
            DataType.struct([("x", DataType.int64())]),
            "DataType(arrow:struct<x: int64>)",
            pa.struct([("x", pa.int64())]),
        ),
        (
            DataType.map(DataType.string(), DataType.int64()),
            "DataType(arrow:map<string, int64>)",
            pa.map_(pa.string(), pa.int64()),
        ),
        (
            DataType.temporal("timestamp", tz="UTC"),
            "DataType(arrow:timestamp[us, tz=UTC])",
            pa.timestamp("us", "UTC"),
        ),
        (DataType.temporal("date32"), "DataType(arrow:date32[day])", pa.date32()),
        (DataType.infer_dtype("hello"), "DataType(arrow:string)", pa.string()),
        (DataType.infer_dtype(np.int32(4)), "DataType(numpy:int32)", pa.int32()),
    ],
)
def test_types(kind: DataType, shown: str, arrows: Any) -> None:
    assert (repr(kind), kind.to_arrow_dtype()) == (shown, arrows)
    assert kind == DataType(kind.kind)
    assert kind != DataType.large_list(DataType.int8())
    assert len({kind, DataType(kind.kind)}) == 1


def test_kinds_of_types() -> None:
    numbers = [DataType.int8(), DataType.from_numpy("uint8"), DataType(float), DataType(pa.decimal128(5, 2))]
    assert all(kind.is_numerical_type() for kind in numbers)
    assert not any(kind.is_numerical_type() for kind in (DataType.string(), DataType.bool(), DataType(set)))
    assert DataType.tensor((2, 3), DataType.float32()).is_tensor_type()
    assert DataType.list(DataType.int8()).is_of(TypeCategory.LIST)
    assert DataType.large_list(DataType.int8()).is_of("large_list")
    assert not DataType.int8().is_of("nonsense")
    assert DataType(str).is_string_type()
    assert DataType(bytes).is_binary_type()
    assert DataType.from_numpy("datetime64[s]").is_temporal_type()
    assert DataType.struct([]).is_nested_type()
    assert DataType.map(DataType.string(), DataType.int8()).is_map_type()
    assert DataType.int32().to_numpy_dtype() == np.dtype("int32")
    assert DataType(int).to_python_type() is int


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: DataType("int64"), TypeError, r"takes an Arrow, numpy or Python type, but received 'int64'"),
        (
            lambda: DataType.temporal("time32", "ns"),
            ValueError,
            "takes one of timestamp, .* received 'time32' and 'ns'",
        ),
        (lambda: DataType.temporal("year"), ValueError, "but received 'year' and None"),
        (lambda: DataType.int8().to_python_type(), ValueError, r"DataType\(arrow:int8\) is not a Python type"),
        (lambda: DataType(set).to_arrow_dtype(), ValueError, "Arrow has no type for all values of set"),
    ],
)
def test_wrong_types(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def test_types_in_expressions() -> None:
    @udf(return_dtype=DataType.int16())
    def add_one(values: Any) -> Any:
        return pc.add(values, 1)

    rows = data.range(2).with_columns({"more": add_one(col("id")), "text": col("id").cast(DataType.string())})
    assert rows.take_all() == [{"id": 0, "more": 1, "text": "0"}, {"id": 1, "more": 2, "text": "1"}]
    schema = rows.schema()
    assert schema is not None
    assert schema.types[1] == "int16"


# --- expressions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (col("l").list.sort(order="descending"), [3, 2, 1, None]),
        (col("l").list.sort(null_placement="at_start"), [None, 1, 2, 3]),
        (col("t").str.starts_with("aA", ignore_case=True), True),
        (col("t").str.contains("X", ignore_case=True), False),
        (col("t").str.count("b", ignore_case=True), 2),
        (col("t").str.replace("a", "-", max_replacements=1), "A-Bba"),
        (col("t").str.replace_regex("[aA]", "-", max_replacements=1), "-aBba"),
        (col("n").is_in(lit([1, 2])), True),
        (col("n").not_in(lit([1, 2])), False),
    ],
)
def test_expressions(expr: Any, expected: object) -> None:
    rows = data.from_items([{"l": [3, None, 1, 2], "t": "AaBba", "n": 2}])
    (row,) = rows.with_column("found", expr).take_all()
    found = row["found"].tolist() if isinstance(row["found"], np.ndarray) else row["found"]
    assert found == expected


def test_wrong_orders() -> None:
    with pytest.raises(
        ValueError, match=r"sort\(\) takes an order from \('ascending', 'descending'\), .* \('up', 'at_end'\)"
    ):
        col("l").list.sort(order="up")


def test_downloads(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    rows = data.from_items([{"at": str(tmp_path / "a")}, {"at": None}])
    assert [row["b"] for row in rows.with_column("b", download("at")).take_all()] == [b"one", None]
    lost = data.from_items([{"at": str(tmp_path / "b")}]).with_column("b", download("at"))
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/b"):
        lost.materialize()


# --- functions --------------------------------------------------------------------------------------------------------


def test_options_that_a_function_returns() -> None:
    def look(batch: dict[str, Any]) -> dict[str, Any]:
        return {"found": np.array([os.environ.get("PORTED_WORD", "")])}

    how: Any = {"ray_remote_args_fn": lambda: {"runtime_env": {"env_vars": {"PORTED_WORD": "heard"}}}}
    assert data.range(1).map_batches(look, **how).take_all() == [{"found": "heard"}]
    with pytest.raises(ValueError, match=r"Invalid option keyword 'nonsense' for map_batches\(\)"):
        UNTYPED.range(1).map_batches(look, ray_remote_args_fn=lambda: {"nonsense": 1})


class Same:
    def __call__(self, batch: Any) -> Any:
        return batch


class AddOne:
    def __call__(self, batch: Any) -> Any:
        return batch["id"] + 1


def test_options_of_operations_on_columns() -> None:
    rows = data.range(2)
    assert rows.add_column("x", lambda batch, k: batch["id"] * k, fn_args=[3], concurrency=2).take_all() == [
        {"id": 0, "x": 0},
        {"id": 1, "x": 3},
    ]
    assert rows.add_column("x", AddOne, concurrency=1).drop_columns(["id"], num_cpus=0.5).take_all() == [
        {"x": 1},
        {"x": 2},
    ]
    named = rows.select_columns("id", concurrency=2).rename_columns({"id": "y"}, compute=None, memory=1)
    assert named.with_column("z", col("y") + 1, num_cpus=1).take(1) == [{"y": 0, "z": 1}]
    unknown: Any = named
    with pytest.raises(TypeError, match=r"drop_columns\(\) has no keyword 'concurency'. Did you mean 'concurrency'"):
        unknown.drop_columns("y", concurency=2)
    with pytest.raises(TypeError, match=r"add_column\(\) has no keyword 'batch_fromat'. Did you mean 'batch_format'"):
        unknown.add_column("y", len, batch_fromat="numpy")


def test_options_of_queries(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS x")
        connection.commit()
    how: dict[str, Any] = {"parallelism": 2, "ray_remote_args": {}, "shard_keys": ["x"]}
    assert data.read_sql("SELECT * FROM t", lambda: sqlite3.connect(path), **how).take_all() == [{"x": 1}]
    with pytest.raises(TypeError, match=r"read_sql\(\) has no keyword 'params'. Did you mean 'sql_params'"):
        data.read_sql("SELECT * FROM t", lambda: sqlite3.connect(path), params=())


@pytest.mark.parametrize("most", [1, 4])
def test_blocks_of_an_actor(most: int) -> None:
    compute = data.ActorPoolStrategy(size=1, max_tasks_in_flight_per_actor=most)
    rows = data.range(12, override_num_blocks=6).map_batches(Same, compute=compute)
    assert [row["id"] for row in rows.take_all()] == list(range(12))
    with pytest.raises(ValueError, match="max_tasks_in_flight_per_actor must be a whole number from 1, but received 0"):
        data.ActorPoolStrategy(max_tasks_in_flight_per_actor=0)


def test_groups_come_one_by_one(tmp_path: Path) -> None:
    """The first block is there before the last group is begun."""

    def make(group: dict[str, Any]) -> dict[str, Any]:
        (tmp_path / str(group["k"][0])).touch()
        return {"k": group["k"][:1], "x": np.zeros((1, 1 << 20), np.uint8)}

    before = data.DataContext.get_current().target_max_block_size
    data.DataContext.get_current().target_max_block_size = 1 << 20
    try:
        rows = data.range(64).map_batches(lambda batch: {"k": batch["id"]}).groupby("k").map_groups(make)
        assert rows.take(1)[0]["k"] == 0
        assert not (tmp_path / "63").exists()
        assert [row["k"] for row in rows.select_columns(["k"]).take_all()] == list(range(64))
        assert (tmp_path / "63").exists()
    finally:
        data.DataContext.get_current().target_max_block_size = before


def test_settings_of_rays() -> None:
    current = context.DataContext.get_current()
    assert current.shuffle_strategy == context.ShuffleStrategy.HASH_SHUFFLE
    current.shuffle_strategy = context.ShuffleStrategy.SORT_SHUFFLE_PULL_BASED
    assert data.range(4).sort("id", descending=True).take(1) == [{"id": 3}]
    current.shuffle_strategy = context.ShuffleStrategy.HASH_SHUFFLE
    assert exceptions.UserCodeException is hocket.exceptions.UserCodeException


# --- rows -------------------------------------------------------------------------------------------------------------


def test_json_lines_of_mixed_values(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": {"a": 1}}\n{"x": {"a": "text"}}\n\n{"x": {"a": [1]}}\n')
    rows = data.read_json(str(tmp_path / "a.jsonl")).take_all()
    assert [row["x"] for row in rows] == [{"a": 1}, {"a": "text"}, {"a": [1]}]
    (tmp_path / "b.jsonl").write_text('[1, "a"]\n[2, "b"]\n')
    assert data.read_json(str(tmp_path / "b.jsonl")).columns() == ["0", "1"]
    (tmp_path / "c.jsonl").write_text('{"x": 1}\n{"x": \n')
    with pytest.raises(ValueError, match="cannot read"):
        data.read_json(str(tmp_path / "c.jsonl")).materialize()


def test_samples_with_dicts(tmp_path: Path) -> None:
    data.from_items([{"__key__": "a", "mp": {"n": 1, "t": "x"}}]).write_webdataset(tmp_path)
    (row,) = data.read_webdataset(str(tmp_path)).take_all()
    (path,) = tmp_path.glob("*.tar")
    assert (row["mp"], row["__url__"]) == ({"n": 1, "t": "x"}, str(path))


def test_loops_of_torch_that_have_a_length() -> None:
    torch_data = pytest.importorskip("torch.utils.data")

    class Loop(torch_data.IterableDataset):  # type: ignore[misc,name-defined]  # PyTorch may be absent
        def __init__(self, items: list[Any]) -> None:
            self.items = items

        def __iter__(self) -> Iterator[Any]:
            return iter(self.items)

        def __len__(self) -> int:
            return len(self.items)

    assert data.from_torch(Loop([0, 1, 2])).take_all() == [{"item": 0}, {"item": 1}, {"item": 2}]
    rows = [{"x": [1, 2]}, {"x": [3, 4]}]  # each item is a row, also one that could be a batch
    assert data.from_torch(Loop(rows)).take_all() == rows
    pairs = [([1, 2], [3, 4]), ([5, 6], [7, 8])]
    assert [list(row["item"]) for row in data.from_torch(Loop(pairs)).take_all()] == [list(pair) for pair in pairs]


class Numbers(Datasource):
    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: object = None
    ) -> list[ReadTask]:
        tables = [{"x": np.arange(30)}, {"x": np.arange(30, 60)}]
        return [ReadTask(lambda: tables, per_task_row_limit=50)]


def test_limits_of_read_tasks() -> None:
    assert [row["x"] for row in data.read_datasource(Numbers()).take_all()] == list(range(50))


def test_different_elements_of_lists() -> None:
    rows = data.from_items([{"k": "a", "l": [2, 1]}, {"k": "a", "l": [2, 3]}, {"k": "b", "l": [5]}])
    found = rows.groupby("k").aggregate(aggregate.Unique("l", encode_lists=True, alias_name="u")).take_all()
    assert [list(row["u"]) for row in found] == [[1, 2, 3], [5]]


def test_columns_that_are_none() -> None:
    rows = data.range(2)
    assert rows.drop_columns([]).columns() == ["id"]
    with pytest.raises(ValueError, match=r"rename_columns\(\) needs at least one name, but received {}"):
        rows.rename_columns({})


def test_batches_of_jax() -> None:
    jax = pytest.importorskip("jax")
    rows = data.range(5).map_batches(lambda batch: {"x": batch["id"].astype(np.float32), "n": batch["id"]})
    last = list(rows.iter_jax_batches(batch_size=4, paddings={"x": -1.0, "n": 7}))[-1]
    assert (last["x"].tolist(), last["n"].tolist()) == ([4.0, -1.0, -1.0, -1.0], [4, 7, 7, 7])
    (first, _) = rows.iter_jax_batches(batch_size=4, collate_fn=lambda batch: batch["x"] * 2)
    assert isinstance(first, jax.Array)
    assert first.tolist() == [0.0, 2.0, 4.0, 6.0]
    with pytest.raises(ValueError, match="paddings fill batches up to batch_size, which is None"):
        rows.iter_jax_batches(batch_size=None, paddings=0)
