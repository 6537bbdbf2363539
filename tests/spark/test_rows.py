"""Rows from Spark and to it: what they are afterwards, how many, and files that are not what was written."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import hocket
from hocket import data
from hocket import spark as hocket_spark

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore"),  # Spark's own, of pandas and of sockets that it leaves to the collector
    pytest.mark.usefixtures("rows_session"),
]

KINDS = """
SELECT id, CAST(id AS TINYINT) byte, CAST(id AS SMALLINT) short, CAST(id AS INT) int,
  CAST(id / 3 AS FLOAT) float, id / 3 double, id % 2 = 0 flag,
  CAST(id AS DECIMAL(9, 2)) small, CAST(id AS DECIMAL(38, 10)) large,
  TIMESTAMP'2024-02-29 23:59:59.123456' at, TIMESTAMP'1500-03-01 00:00:00.000001' old,
  TIMESTAMP_NTZ'2024-02-29 23:59:59.123456' wall, DATE'1500-03-01' day,
  IF(id % 3 = 0, NULL, CONCAT('ü', id)) text, CAST('ab' AS BINARY) bytes,
  ARRAY(1, NULL, id) list, ARRAY(ARRAY(1.5D), NULL) lists, MAP('k', id) map,
  STRUCT(id AS p, ARRAY(CAST(NULL AS STRING)) AS q) struct, CAST(NULL AS DOUBLE) missing
FROM RANGE(0, 20, 1, 3)
"""


def sort(rows: list[Any]) -> list[str]:
    return sorted(map(str, rows))


def test_types_and_missing_values_come_and_go_as_they_are(spark: Any) -> None:
    frame = spark.sql(KINDS)
    rows = data.from_spark(frame)
    assert rows.count() == 20
    assert [row["id"] for row in rows.take_all()] == list(range(20))  # in the order of Spark's parts
    first = rows.take(1)[0]
    assert first["text"] is None
    assert first["missing"] is None
    assert first["large"] == decimal.Decimal("0E-10")
    assert first["at"] == dt.datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=dt.UTC)
    assert first["old"] == dt.datetime(1500, 3, 1, 0, 0, 0, 1, tzinfo=dt.UTC)
    assert first["wall"] == dt.datetime(2024, 2, 29, 23, 59, 59, 123456)  # noqa: DTZ001 (it has no zone)
    assert first["day"] == dt.date(1500, 3, 1)
    assert first["lists"] == [[1.5], None]
    again = rows.to_spark(spark)
    assert again.schema.simpleString() == frame.schema.simpleString()
    assert sort(again.collect()) == sort(frame.collect())


def test_settings_of_the_session_are_as_before(spark: Any) -> None:
    name = "spark.sql.parquet.outputTimestampType"
    before = spark.conf.get(name)
    data.from_spark(spark.range(3))
    assert spark.conf.get(name) == before


@pytest.mark.parametrize("query", ["SELECT * FROM RANGE(0)", "SELECT id FROM RANGE(9) WHERE id < 0"])
def test_no_rows_are_no_rows(query: str, spark: Any) -> None:
    rows = data.from_spark(spark.sql(query))
    assert rows.count() == 0
    assert rows.columns() == ["id"]
    assert rows.to_spark(spark).count() == 0


@pytest.mark.parametrize(
    ("column", "word"),
    [
        ("INTERVAL '1' DAY", "interval day"),
        ("ARRAY(INTERVAL '1' MONTH)", "interval month"),
        ("PARSE_JSON('1')", "variant"),
        ("NULL", "void"),
    ],
)
def test_what_a_file_does_not_keep_is_refused_by_name(column: str, word: str, spark: Any) -> None:
    with pytest.raises(TypeError, match=rf"the column 'x' holds {word}.*Before this call, "):
        data.from_spark(spark.sql(f"SELECT {column} AS x"))


# --- how many ---------------------------------------------------------------------------------------------------------


def fail_first(numbers: set[int]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return what gives all rows of its part, and then fails, in the first attempt of some tasks."""

    def give(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        if context.attemptNumber() == 0 and context.partitionId() in numbers:
            raise RuntimeError("after the last row")

    return give


def test_a_task_that_fails_behind_its_last_row_gives_its_rows_once(spark: Any, tmp_path: Path) -> None:
    frame = spark.range(0, 1000, 1, 4).mapInArrow(fail_first({0, 2}), "id long")
    rows = data.from_spark(frame, path=tmp_path / "rows")
    assert rows.count() == 1000
    assert sorted(row["id"] for row in rows.take_all()) == list(range(1000))
    noted = json.loads((tmp_path / "rows" / "_MANIFEST").read_text())
    assert noted["rows"] == 1000
    assert len(noted["files"]) == 4


def leave(path: Path) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return what gives all rows, and writes a file beside."""

    def give(batches: Iterator[Any]) -> Iterator[Any]:
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.table({"id": [7, 7, 7]}), path)
        yield from batches

    return give


def test_what_an_attempt_without_commit_has_left_does_not_count(spark: Any, tmp_path: Path) -> None:
    target = tmp_path / "rows"
    stray = target / "_temporary" / "0" / "_temporary" / "attempt_1" / "part-00000.parquet"
    rows = data.from_spark(spark.range(0, 10, 1, 1).mapInArrow(leave(stray), "id long"), path=target)
    list(leave(stray)(iter(())))  # and one that comes late, from a machine that was thought dead
    assert stray.exists()
    assert rows.count() == 10
    assert sorted(row["id"] for row in hocket_spark.read(target).take_all()) == list(range(10))


def test_a_file_that_spark_has_not_committed_is_noticed(spark: Any, tmp_path: Path) -> None:
    target = tmp_path / "rows"
    frame = spark.range(0, 10, 1, 1).mapInArrow(leave(target / "part-99999.parquet"), "id long")
    with pytest.raises(OSError, match=r"the tasks that Spark committed received 10 rows, but the files in .* have 13"):
        data.from_spark(frame, path=target)
    assert not (target / "_MANIFEST").exists()
    with pytest.raises(FileNotFoundError, match="or did not finish"):
        hocket_spark.read(target)


def test_a_folder_with_files_is_refused(spark: Any, tmp_path: Path) -> None:
    data.from_spark(spark.range(3), path=tmp_path)  # which is there, and empty
    with pytest.raises(FileExistsError, match=r"from_spark.*has files already.*Choose another folder"):
        data.from_spark(spark.range(3), path=tmp_path)
    with pytest.raises(FileExistsError, match=r"to_spark.*has files already.*Choose another folder"):
        data.range(3).to_spark(spark, path=tmp_path)


def test_spark_has_as_many_rows(spark: Any, tmp_path: Path) -> None:
    rows = data.range(10_000, override_num_blocks=7).map_batches(
        lambda batch: {"id": batch["id"], "x": batch["id"] / 7}
    )
    frame = rows.to_spark(spark, path=tmp_path / "rows")
    assert frame.count() == 10_000
    assert frame.selectExpr("sum(id)").collect()[0][0] == sum(range(10_000))
    assert frame.selectExpr("count(DISTINCT id)").collect()[0][0] == 10_000


# --- files that are not what was written ------------------------------------------------------------------------------


@pytest.fixture
def written(spark: Any, tmp_path: Path) -> Path:
    data.from_spark(spark.range(0, 100, 1, 3), path=tmp_path / "rows")
    return tmp_path / "rows"


def find_file(folder: Path) -> Path:
    return sorted(folder.glob("part-*.parquet"))[1]


def change(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("do", [change, truncate])
def test_a_file_that_has_changed_is_named(do: Callable[[Path], None], written: Path) -> None:
    rows, path = hocket_spark.read(written), find_file(written)
    do(path)
    with pytest.raises(ValueError, match=rf"{path.name}' has changed since Spark wrote it.* 33 rows"):
        rows.take_all()


def test_a_file_that_is_gone_is_named(written: Path) -> None:
    rows, path = hocket_spark.read(written), find_file(written)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=rf"{path.name}', which Spark wrote with 33 rows, is gone"):
        rows.take_all()


def test_length_and_presence_are_seen_before_the_first_row(written: Path) -> None:
    path = find_file(written)
    truncate(path)
    with pytest.raises(ValueError, match=rf"read\(\): the file .*{path.name}' has changed"):
        hocket_spark.read(written)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=rf"{path.name}', which Spark wrote"):
        hocket_spark.read(written)


# --- to Spark ---------------------------------------------------------------------------------------------------------


def test_values_of_numpy_and_arrow_arrive(spark: Any) -> None:
    table = pa.table(
        {
            "half": pa.array(np.array([0.5, 1.5], np.float16)),
            "byte": pa.array([1, 255], pa.uint8()),
            "large": pa.array([1, 2**64 - 1], pa.uint64()),
            "word": pa.array(["a", "b"]).dictionary_encode(),
            "price": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(12, 2)),
            "tags": pa.array([["x", None], None], pa.list_(pa.large_string())),
            "at": pa.array([dt.datetime(2024, 1, 2, 3, 4, 5, 6, dt.UTC), None], pa.timestamp("ns", "UTC")),
        }
    )
    frame = data.from_arrow(table).to_spark(spark)
    assert frame.schema.simpleString() == (
        "struct<half:float,byte:smallint,large:decimal(20,0),word:string,price:decimal(12,2),tags:array<string>,"
        "at:timestamp>"
    )
    first, second = frame.orderBy("byte").collect()
    assert (first.half, first.byte, first.large, first.word, first.tags) == (0.5, 1, 1, "a", ["x", None])
    assert (second.large, second.price, second.tags, second.at) == (2**64 - 1, None, None, None)
    assert frame.orderBy("byte").selectExpr("CAST(at AS STRING)").first()[0] == "2024-01-02 03:04:05.000006"


def test_rows_of_several_axes_become_lists(spark: Any) -> None:
    frame = data.from_numpy({"x": np.arange(6.0).reshape(2, 3)}).to_spark(spark)
    assert frame.orderBy("x").collect()[1].x == [3.0, 4.0, 5.0]
    deep = data.from_numpy({"x": np.arange(12).reshape(2, 2, 3)}).to_spark(spark)
    assert deep.orderBy("x").collect()[1].x == [[6, 7, 8], [9, 10, 11]]


@pytest.mark.parametrize("name", ["a b", "ü%20", "a#b", "a?b", "a*b", "a{b}[c]", "a=b:c"])
def test_folders_may_have_any_name(name: str, spark: Any, tmp_path: Path) -> None:
    data.range(3).to_spark(spark, path=tmp_path / "a_b")  # what the name would mean as a pattern
    assert data.from_spark(spark.range(5), path=tmp_path / "from" / name).count() == 5
    assert data.range(5).to_spark(spark, path=tmp_path / name).count() == 5
    assert {path.name for path in tmp_path.iterdir()} == {"a_b", "from", name}


@pytest.mark.parametrize(
    ("query", "words"), [("SELECT 1 a, 2 a", "has the column 'a' twice"), ("", "has no columns, which a file")]
)
def test_frames_without_columns_or_with_two_of_a_name_are_refused(query: str, words: str, spark: Any) -> None:
    frame = spark.sql(query) if query else spark.range(3).select()
    with pytest.raises(ValueError, match=words):
        data.from_spark(frame)


def test_a_block_whose_values_are_all_missing_has_the_type_of_the_others(spark: Any) -> None:
    rows = data.from_items([{"x": None, "y": None}]).union(data.from_items([{"x": 1, "y": None}]))
    frame = rows.to_spark(spark)
    assert frame.schema.simpleString() == "struct<x:bigint,y:string>"
    assert sort(frame.collect()) == ["Row(x=1, y=None)", "Row(x=None, y=None)"]


def test_what_spark_cannot_read_is_refused_by_name(spark: Any) -> None:
    odd = pa.table({"x": pa.array([1, 2], pa.timestamp("ns"))})
    with pytest.raises(ValueError, match="times in nanoseconds, but Spark's times are in microseconds"):
        data.from_arrow(odd).to_spark(spark)
    long = pa.table({"x": pa.array([1, 2], pa.duration("us"))})
    with pytest.raises(TypeError, match=r"the column 'x' holds duration\[us\], which Spark cannot read"):
        data.from_arrow(long).to_spark(spark)
    mixed = data.from_items([{"x": 1}]).union(data.from_items([{"x": "one"}]))
    with pytest.raises(TypeError, match="a column has different types in different blocks"):
        mixed.to_spark(spark)


def test_other_things_are_refused(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"from_spark\(\) takes a Spark DataFrame, but received a list"):
        data.from_spark([1, 2])
    with pytest.raises(TypeError, match=r"to_spark\(\) takes a SparkSession, but received 'spark'"):
        data.range(3).to_spark("spark")
    with pytest.raises(TypeError, match="path must name a folder, but received 7"):
        data.from_spark(spark.range(3), path=7)  # type: ignore[arg-type]
    data.range(3).write_parquet(tmp_path)
    with pytest.raises(ValueError, match=r"has no digests.*read_parquet"):
        hocket_spark.read(tmp_path)


def test_hocket_counts_what_trains(spark: Any) -> None:
    rows = data.from_spark(spark.range(0, 101, 1, 4))
    parts = rows.split(3)
    assert sum(part.count() for part in parts) == 101
    assert hocket.is_initialized()
