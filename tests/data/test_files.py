"""Reading and writing files: formats, file systems, folders, broken files."""

from __future__ import annotations

import functools
import gzip
import io
import json
import logging
import os
import sqlite3
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped,unused-ignore]  # it has no types
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from PIL import Image
from pyarrow import csv as arrow_csv
from pyarrow import fs, parquet
from pyarrow import json as arrow_json

import hocket
from hocket import data
from hocket.data import aggregate, datasource
from hocket.data.sources import writing

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", autouse=True)
def here() -> Iterator[hocket.SessionContext]:
    with hocket.init(num_cpus=2, engine="inprocess") as context:
        yield context


@pytest.fixture
def small_blocks() -> Iterator[None]:
    context = data.DataContext.get_current()
    before, context.target_max_block_size = context.target_max_block_size, 10_000
    yield
    context.target_max_block_size = before


def untyped(value: object) -> Any:
    return value


def count_blocks(rows: data.Dataset) -> int:
    return len(list(rows.iter_batches(batch_size=None)))


# --- formats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["csv", "json", "text"])
@pytest.mark.usefixtures("small_blocks")
def test_large_files_of_text_are_read_in_blocks(kind: str, packed: bool, tmp_path: Path) -> None:
    count = 20_000
    lines = {
        "csv": ["x,y", *(f"{at},t{at}" for at in range(count))],
        "json": [json.dumps({"x": at, "y": f"t{at}"}) for at in range(count)],
        "text": [f"t{at}" for at in range(count)],
    }[kind]
    path = tmp_path / (f"rows.{kind}" + (".gz" if packed else ""))
    content = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    readers: dict[str, Callable[..., data.Dataset]] = {
        "csv": data.read_csv,
        "json": data.read_json,
        "text": data.read_text,
    }
    read = readers[kind]
    rows = read(str(path))
    assert count_blocks(rows) > 5
    column = "text" if kind == "text" else "y"
    assert [row[column] for row in rows.take_all()] == [f"t{at}" for at in range(count)]


@pytest.mark.parametrize("count", [3, 3000], ids=["small", "large"])
@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.usefixtures("small_blocks")
def test_whole_numbers_above_int64_keep_their_digits(kind: str, count: int, tmp_path: Path) -> None:
    largest = 2**64 - 1
    columns = {
        "whole": np.array([largest - row for row in range(count)], np.uint64),
        "real": np.full(count, 1e30),
        "signed": [-1.0, *[float(largest)] * (count - 1)],
        "given": np.full(count, largest, np.uint64),
    }
    text = data.from_arrow(pa.table(columns)).repartition(1)
    if kind == "csv":
        text.write_csv(str(tmp_path / "rows"))
        convert = untyped(arrow_csv).ConvertOptions(column_types={"given": pa.float64()})
        found = data.read_csv(str(tmp_path / "rows"), convert_options=convert)
        assert convert.column_types == {"given": pa.float64()}, "the user's is as it was"
    else:
        text.write_json(str(tmp_path / "rows"))
        parse = untyped(arrow_json).ParseOptions(explicit_schema=pa.schema({"given": pa.float64()}))
        found = data.read_json(str(tmp_path / "rows"), parse_options=parse)
        assert parse.explicit_schema == pa.schema({"given": pa.float64()})
    schema = found.schema()
    assert schema is not None
    assert {name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)} == {
        "whole": "uint64", "real": "float64", "signed": "float64", "given": "float64",
    }  # fmt: skip
    assert [row["whole"] for row in found.take_all()] == [largest - row for row in range(count)]


def test_whole_numbers_beside_nulls_and_in_rows_of_several_lines(tmp_path: Path) -> None:
    largest = 2**64 - 1
    (tmp_path / "a.csv").write_text(f"x,y\n {largest},1e30\n,2e30\n")
    rows = data.read_csv(str(tmp_path / "a.csv")).take_all()
    assert rows == [{"x": largest, "y": 1e30}, {"x": None, "y": 2e30}]
    (tmp_path / "a.json").write_text(f'{{"x":\n {largest}, "y": 1e30}}\n{{"x": null, "y": 2e30}}\n')
    parse = untyped(arrow_json).ParseOptions(newlines_in_values=True)
    assert data.read_json(str(tmp_path / "a.json"), parse_options=parse).take_all() == rows


def test_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("é\n\r\nb".encode("latin-1"))
    assert data.read_text(tmp_path, encoding="latin-1").take_all() == [{"text": "é"}, {"text": "b"}]
    assert data.read_text(tmp_path, encoding="latin-1", drop_empty_lines=False).count() == 3
    with pytest.raises(LookupError, match="no-such"):
        data.read_text(tmp_path, encoding="no-such")
    with pytest.raises(ValueError, match=r"read_text\(\) cannot read '.*a.txt': 'utf-8' codec"):
        data.read_text(tmp_path).take_all()
    for encoding in ("utf-16", "utf-8-sig", "utf-8"):
        (tmp_path / "a.txt").write_bytes("a\u2028b\nc\n".encode(encoding))
        assert [row["text"] for row in data.read_text(tmp_path, encoding=encoding).take_all()] == ["a\u2028b", "c"]
    for encoding in ("utf-16", "utf-8-sig", "utf-8"):
        for content, lines in (("", []), ("\n", [""]), ("\n\na", ["", "", "a"])):
            (tmp_path / "a.txt").write_bytes(content.encode(encoding))
            found = data.read_text(tmp_path, encoding=encoding, drop_empty_lines=False)
            assert [row["text"] for row in found.take_all()] == lines
    with pytest.raises(TypeError, match=r"read_text\(\) has no keyword 'lines'"):
        data.read_text(tmp_path, lines=True)
    with pytest.raises(TypeError, match=r"read_csv\(\) has no keyword 'sep'"):
        data.read_csv(tmp_path, sep=";")


def test_json_arrays(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"x": 1},\n {"x": 2, "y": "b"}]')
    assert data.read_json(tmp_path).take_all() == [{"x": 1, "y": None}, {"x": 2, "y": "b"}]
    for text in ('[{"x": 1}, {"x": 2}]', '[\n{"x": 1},\r\n{"x": 2}]', '{"x": 1}\n{"x": 2}'):
        (tmp_path / "a.json").write_text(text, encoding="utf-8-sig", newline="")
        assert data.read_json(tmp_path).take_all() == [{"x": 1}, {"x": 2}]
    (tmp_path / "a.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"a.json': it is a JSON array, but not an array of objects"):
        data.read_json(tmp_path).take_all()


@pytest.mark.parametrize("before", [0, 128, 200_000])  # Arrow's reader takes a mebibyte of bytes at once
def test_lines_of_json_that_are_null_are_rows_without_values(before: int, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x":1}\n' * before + "null\n" * 3 + '{"x":2}\n null \r\n{"x":3}\nnull')
    found = [row["x"] for row in data.read_json(tmp_path).take_all()]
    assert found == [1] * before + [None, None, None, 2, None, 3, None]
    (tmp_path / "a.json").write_text("null")
    assert data.read_json(tmp_path).take_all() == []


def test_columns_of_csv_that_come_twice_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y,x\n1.5,2,3.5\n")
    with pytest.raises(
        ValueError, match=r"columns must have different names, but these names occur more than once: \['x'\]"
    ):
        data.read_csv(tmp_path).take_all()


def test_binary_files_and_their_paths(tmp_path: Path) -> None:
    for at in range(5):
        (tmp_path / f"{at}.bin").write_bytes(bytes([at]))
    rows = data.read_binary_files(tmp_path, include_paths=True).take_all()
    assert [(row["bytes"], Path(row["path"]).name) for row in rows] == [(bytes([at]), f"{at}.bin") for at in range(5)]


def test_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs Pillow: pip install pillow")
    for at in range(3):
        image.fromarray(np.full((4 + at, 6, 3), 10 * at, np.uint8)).save(tmp_path / f"{at}.png")
    rows = data.read_images(tmp_path)
    assert [row["image"].shape for row in rows.take_all()] == [(4, 6, 3), (5, 6, 3), (6, 6, 3)]
    batch = data.read_images(tmp_path, size=(2, 3), mode="L").take_batch(3)
    assert batch["image"].shape == (3, 2, 3)
    assert batch["image"][:, 0, 0].tolist() == [0, 10, 20]
    doubled = data.read_images(tmp_path, size=(2, 2), transform=lambda array: array[:, :, 0] * 2)
    assert doubled.take_batch(3)["image"][2].tolist() == [[40, 40], [40, 40]]
    (tmp_path / "3.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"read_images\(\) cannot read '.*3.png': cannot identify image file"):
        data.read_images(tmp_path).take_all()
    wrong: Any = (3,)
    with pytest.raises(ValueError, match=r"size must be a height and a width, but received \(3,\)"):
        data.read_images(tmp_path, size=wrong)


def test_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(6).reshape(3, 2))
    assert data.read_numpy(tmp_path).take_batch(3)["data"].tolist() == [[0, 1], [2, 3], [4, 5]]
    np.savez(tmp_path / "b.npz", x=np.arange(2), y=np.zeros((2, 2)))
    assert data.read_numpy(tmp_path / "b.npz").schema() == data.Schema(names=["x", "y"], types=["int64", "float64[2]"])
    np.save(tmp_path / "c.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"cannot read '.*c.npy': Object arrays cannot be loaded"):
        data.read_numpy(tmp_path / "c.npy").take_all()


def test_archives_of_samples(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs Pillow: pip install pillow")
    picture, array = io.BytesIO(), io.BytesIO()
    image.fromarray(np.full((2, 2, 3), 7, np.uint8)).save(picture, "PNG")
    np.save(array, np.arange(3))
    members = {
        "train/1.cls": b"3",
        "train/1.txt": "é".encode(),
        "train/1.png": picture.getvalue(),
        "train/2.cls": b"4",
        "train/2.json": b'{"a": 1}',
        "train/2.emb.npy": array.getvalue(),
        "train/2.raw": b"\0",
    }
    with tarfile.open(tmp_path / "samples.tar", "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    first, second = data.read_webdataset(tmp_path).take_all()
    assert (first["__key__"], first["cls"], first["txt"]) == ("train/1", 3, "é")
    assert np.asarray(first["png"]).tolist() == np.full((2, 2, 3), 7).tolist()
    assert (second["cls"], second["json"], second["raw"]) == (4, {"a": 1}, b"\0")
    assert np.asarray(second["emb.npy"]).tolist() == [0, 1, 2]
    assert first["json"] is None
    raw = data.read_webdataset(tmp_path, decoder=False).take(1)[0]
    assert (raw["cls"], raw["txt"]) == (b"3", "é".encode())
    chosen = data.read_webdataset(tmp_path, fileselect=["*/2.*"], suffixes=["cls", "json"], expand_json=True)
    path = str(tmp_path / "samples.tar")
    assert chosen.take_all() == [{"__key__": "train/2", "__url__": path, "cls": 4, "json": {"a": 1}, "a": 1}]
    renamed = data.read_webdataset(tmp_path, filerename=[("train/", "")], suffixes=lambda ending: ending == "txt")
    assert renamed.drop_columns(["__url__"]).take_all() == [{"__key__": "1", "txt": "é"}, {"__key__": "2", "txt": None}]
    decoded = data.read_webdataset(tmp_path, decoder=lambda sample: {"label": int(sample["cls"])})
    assert decoded.take_all() == [{"label": 3}, {"label": 4}]
    with pytest.raises(TypeError, match="suffixes must be a list or a function"):
        data.read_webdataset(tmp_path, suffixes="cls")
    with pytest.raises(TypeError, match="decoder must be True, False or a function"):
        data.read_webdataset(tmp_path, decoder="rgb")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="decoder must return a sample"):
        data.read_webdataset(tmp_path, decoder=lambda sample: 3).take_all()  # type: ignore[arg-type, return-value]


def test_files_of_archives_that_belong_to_no_sample(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("README", "._1.txt", "d/.DS_Store", "d/1.txt", "d/._2.txt", "d/2.txt"):
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x" if name in ("d/1.txt", "d/2.txt") else b"\xff"))
    found = data.read_webdataset(tmp_path, suffixes=["txt"]).drop_columns(["__url__"]).take_all()
    assert found == [{"__key__": "d/1", "txt": "x"}, {"__key__": "d/2", "txt": "x"}]
    with pytest.raises(ValueError, match=r"a row has the __key__ 'd/\.a', whose name begins with a dot"):
        data.from_items([{"__key__": "d/.a", "txt": "x"}]).write_webdataset(tmp_path / "out")


def test_records_of_tensorflow(tmp_path: Path) -> None:
    tensorflow = pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'hocket[tensorflow]'")
    rows = [{"x": 1, "y": 0.5, "text": "é", "many": [1, 2]}, {"x": 2, "y": 1.5, "text": "b", "many": [3, 4]}]
    data.from_items(rows).write_tfrecords(tmp_path)
    (path,) = tmp_path.glob("*.tfrecords")
    read = [tensorflow.train.Example.FromString(one.numpy()) for one in tensorflow.data.TFRecordDataset(str(path))]
    assert [list(one.features.feature["many"].int64_list.value) for one in read] == [[1, 2], [3, 4]]
    found = data.read_tfrecords(tmp_path).take_all()
    assert found == [{**row, "text": row["text"].encode()} for row in rows]  # type: ignore[attr-defined]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"cannot read '.*tfrecords': it ends within a record"):
        data.read_tfrecords(tmp_path).take_all()


# --- folders ----------------------------------------------------------------------------------------------------------


def test_partitioned_folders(tmp_path: Path) -> None:
    rows = data.from_items([{"year": 2025 + at % 2, "kind": "a/b" if at % 3 else None, "x": at} for at in range(12)])
    rows.write_parquet(tmp_path, partition_cols=["year", "kind"])
    assert (tmp_path / "year=2025" / "kind=a%2Fb").is_dir()
    found = data.read_parquet(tmp_path)
    assert sorted(found.take_all(), key=lambda row: row["x"]) == [
        {"x": row["x"], "year": str(row["year"]), "kind": row["kind"]} for row in rows.take_all()
    ]
    part = data.read_parquet(tmp_path / "year=2025" / "kind=a%2Fb")
    assert {(row["year"], row["kind"]) for row in part.take_all()} == {("2025", "a/b")}
    file = next((tmp_path / "year=2026").rglob("*.parquet"))
    assert data.read_parquet(file).unique("year") == ["2026"]
    assert data.read_parquet(tmp_path, columns=["x"]).columns() == ["x"]
    assert data.read_parquet(tmp_path, columns=["year", "x"]).unique("year") == ["2025", "2026"]
    gone = data.from_items([{"k": value, "v": 1} for value in (float("nan"), float("nan"), 1.5)])
    gone.write_parquet(tmp_path / "_gone", partition_cols=["k"])
    assert data.read_parquet(tmp_path / "_gone").groupby("k").sum("v").take_all() == [
        {"k": "1.5", "sum(v)": 1},
        {"k": None, "sum(v)": 2},
    ]
    assert sorted(parquet.read_table(tmp_path, partitioning=None)["x"].to_pylist()) == list(range(12))


def test_files_without_an_ending_are_left_out_aloud(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("a\n1\n")
    (tmp_path / "part-0").write_text("a\n2\n")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "_SUCCESS").touch()
    with pytest.warns(UserWarning, match=r"1 files in .* are left out, such as 'part-0': .* do not end in .csv"):
        assert data.read_csv(tmp_path).take_all() == [{"a": 1}]
    (tmp_path / "notes.txt").unlink()
    assert data.read_csv(tmp_path, file_extensions=[""]).take_all() == [{"a": 1}, {"a": 2}]


def test_many_small_files_are_read_together(tmp_path: Path) -> None:
    for at in range(300):
        parquet.write_table(pa.table({"x": [at]}), tmp_path / f"{at:04}.parquet")
    rows = data.read_parquet(tmp_path)
    assert rows.num_blocks() == 150
    assert [row["x"] for row in rows.take_all()] == list(range(300))
    assert data.read_parquet(tmp_path, override_num_blocks=3).num_blocks() == 3


def test_columns_and_rows_that_are_not_wanted_are_not_read(tmp_path: Path) -> None:
    table = pa.table({"x": range(1000), "y": ["t"] * 1000})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    rows = data.read_parquet(tmp_path, columns=["y"], filter="x >= 250 and x < 260")
    assert rows.num_blocks() == 1
    assert rows._plan.reads[0].groups == (2,), "by its statistics"  # type: ignore[attr-defined]
    assert rows.take_all() == [{"y": "t"}] * 10


def test_what_is_hidden_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "_temporary").mkdir()
    for name in ("a.csv", ".b.csv", "_c.csv", "_temporary/d.csv", "e.txt"):
        (tmp_path / name).write_text("x\n1\n")
    assert data.read_csv(tmp_path).count() == 1


def test_paths_that_are_missing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    paths = [str(tmp_path / "a.csv"), str(tmp_path / "gone.csv")]
    with pytest.raises(FileNotFoundError, match=r"no file or folder '.*gone.csv'"):
        data.read_csv(paths)
    assert data.read_csv(paths, ignore_missing_paths=True).count() == 1
    with pytest.raises(FileNotFoundError, match="none of the paths exists"):
        data.read_csv(paths[1:], ignore_missing_paths=True)
    rows = data.read_csv(paths[0])
    Path(paths[0]).unlink()
    with pytest.raises(FileNotFoundError, match=r"the file '.*a.csv' no longer exists"):
        rows.take_all()


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_broken_files_are_named_or_left_out(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for at in range(3):
        data.from_items([{"x": at}]).write_parquet(tmp_path) if kind == "parquet" else (
            tmp_path / f"{at}.csv"
        ).write_text(f"x\n{at}\n")
    broken = tmp_path / f"0-broken.{kind}"
    broken.write_bytes(b"PAR1" if kind == "parquet" else b"x,y\n1\n1,2,3\n")
    read = data.read_parquet if kind == "parquet" else data.read_csv
    with pytest.raises(ValueError, match=rf"read_{kind}\(\) cannot read '.*0-broken.{kind}'"):
        read(tmp_path).take_all()
    with caplog.at_level(logging.WARNING):
        rows = read(tmp_path, on_error="skip")
        assert sorted(row["x"] for row in rows.take_all()) == [0, 1, 2]
        assert "1 files were left out, because they cannot be read: " in rows.stats()
    assert "leaves out" in caplog.text
    with pytest.raises(ValueError, match="on_error must be 'raise' or 'skip', but received 'ignore'"):
        read(tmp_path, on_error="ignore")


def test_files_with_other_columns(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    parquet.write_table(pa.table({"y": [1]}), tmp_path / "b.parquet")
    parquet.write_table(pa.table({"x": [5], "z": ["s"]}), tmp_path / "c.parquet")
    read = data.read_parquet(tmp_path)
    assert read.take_all() == [
        {"x": 1, "y": None, "z": None},
        {"y": 1, "x": None, "z": None},
        {"x": 5, "z": "s", "y": None},
    ]
    assert read.count() == 3
    assert read.sum("y") == 1
    assert data.read_parquet(tmp_path, columns=["x"]).take_all() == [{"x": 1}, {"x": None}, {"x": 5}]
    assert data.read_parquet(tmp_path, filter="x > 1").take_all() == [{"x": 5, "z": "s", "y": None}]
    assert data.read_parquet(tmp_path, filter="x is None", columns=["x", "y"]).take_all() == [{"x": None, "y": 1}]
    with pytest.raises(KeyError, match=r"a.parquet.*no column 'w': the columns are 'x', 'z', 'y'"):
        data.read_parquet(tmp_path, columns=["w"])
    for at in range(80):
        parquet.write_table(pa.table({"y": [at]}), tmp_path / f"d{at}.parquet")
    assert data.read_parquet(tmp_path).to_arrow().column("x").null_count == 81
    assert data.read_parquet(tmp_path, columns=["x"], on_error="skip").to_arrow().num_rows == 83
    parquet.write_table(pa.table({"x": ["text"]}), tmp_path / "e.parquet")
    with pytest.raises(TypeError, match="Column 'x' is int64 in some blocks and string in others"):
        data.read_parquet(tmp_path).to_arrow()


def test_files_of_text_with_other_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,a\n")
    (tmp_path / "b.csv").write_text("x\n2\n")
    rows = data.read_csv(tmp_path)
    assert rows.take_all() == [{"x": 1, "y": "a"}, {"x": 2}]
    assert rows.to_arrow().to_pylist() == [{"x": 1, "y": "a"}, {"x": 2, "y": None}]
    assert rows.sort("x", descending=True).take(1) == [{"x": 2, "y": None}]
    (tmp_path / "c.csv").write_text("x,y\n2.5,7\n")
    with pytest.raises(TypeError, match="Column 'y' is string in some blocks and int64 in others"):
        data.read_csv(tmp_path).to_arrow()


# --- which files ------------------------------------------------------------------------------------------------------


def test_folders_become_columns(tmp_path: Path) -> None:
    for year in (2025, 2026):
        for flag in ("true", "false"):
            folder = tmp_path / f"year={year}" / f"new={flag}"
            folder.mkdir(parents=True)
            (folder / "a.csv").write_text(f"x\n{year}\n")
    typed = datasource.Partitioning("hive", field_types={"year": int, "new": bool})
    rows = data.read_csv(tmp_path, partitioning=typed)
    assert rows.take(2) == [{"x": 2025, "year": 2025, "new": False}, {"x": 2025, "year": 2025, "new": True}]
    assert data.read_csv(tmp_path, partitioning=None).columns() == ["x"]
    recent = datasource.PathPartitionFilter.of(lambda found: found["year"] == "2026")
    assert data.read_csv(tmp_path, partition_filter=recent).count() == 2
    with pytest.raises(FileNotFoundError, match="partition_filter leaves none of 4 files"):
        data.read_csv(tmp_path, partition_filter=datasource.PathPartitionFilter.of(lambda found: False))
    with pytest.raises(ValueError, match="has year=2025, which is neither true nor false"):
        data.read_csv(tmp_path, partitioning=datasource.Partitioning("hive", field_types={"year": bool}))
    with pytest.raises(ValueError, match="has new=false, which cannot be read as float"):
        data.read_csv(tmp_path, partitioning=datasource.Partitioning("hive", field_types={"new": float}))
    with pytest.raises(ValueError, match=r"has the folders \['new', 'year'\], but field_names are \['a'\]"):
        data.read_csv(tmp_path, partitioning=datasource.Partitioning("hive", field_names=["a"]))


def test_folders_without_names_become_columns(tmp_path: Path) -> None:
    for place in ("cats/small", "dogs/large"):
        (tmp_path / place).mkdir(parents=True)
        Image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(tmp_path / place / "a.png")
        parquet.write_table(pa.table({"x": [1]}), tmp_path / place / "a.parquet")
    kinds = datasource.Partitioning("dir", field_names=["kind", "size"])
    rows = data.read_images(tmp_path, partitioning=kinds)
    assert [(row["kind"], row["size"]) for row in rows.take_all()] == [("cats", "small"), ("dogs", "large")]
    read = data.read_parquet(tmp_path, partitioning=kinds, columns=["size", "x"])
    assert read.take_all() == [{"x": 1, "size": "small"}, {"x": 1, "size": "large"}]
    for base in (f"file://{tmp_path}", os.path.relpath(tmp_path)):
        based = datasource.Partitioning("dir", base_dir=base, field_names=["kind", "size"])
        assert based.read(f"{tmp_path}/cats/big/a.png", f"{tmp_path}/cats") == {"kind": "cats", "size": "big"}
    in_store = datasource.Partitioning("dir", base_dir="s3://bucket/rows", field_names=["kind"])
    assert in_store.read("bucket/rows/cats/a.png", "bucket/rows/cats") == {"kind": "cats"}
    below = datasource.Partitioning("dir", base_dir=str(tmp_path / "cats"), field_names=["size"])
    assert data.read_parquet(tmp_path / "cats", partitioning=below).take_all() == [{"x": 1, "size": "small"}]
    with pytest.raises(ValueError, match=r"lies in the folders \['cats', 'small'\], but field_names are \['kind'\]"):
        data.read_images(tmp_path, partitioning=datasource.Partitioning("dir", field_names=["kind"]))


def test_endings_and_order_of_files(tmp_path: Path) -> None:
    for at in range(40):
        (tmp_path / f"{at:02}.dat").write_text(f"x\n{at}\n")
    (tmp_path / "notes.txt").write_text("none")
    read = data.read_csv(tmp_path, file_extensions=["dat"])
    assert [row["x"] for row in read.take_all()] == list(range(40))
    orders = [
        [row["x"] for row in data.read_csv(tmp_path, file_extensions=[".dat"], shuffle=shuffle).take_all()]
        for shuffle in (data.FileShuffleConfig(3), data.FileShuffleConfig(seed=3), "files")
    ]
    assert sorted(orders[0]) == sorted(orders[2]) == list(range(40))
    assert orders[0] == orders[1] != list(range(40))
    assert orders[2] != orders[0]
    with pytest.raises(TypeError, match="shuffle must be 'files' or a FileShuffleConfig, but received True"):
        data.read_csv(tmp_path, shuffle=True)
    with pytest.raises(TypeError, match="file_extensions must be a list of texts, but received 'csv'"):
        data.read_csv(tmp_path, file_extensions="csv")
    with pytest.raises(TypeError, match="partitioning must be a Partitioning, but received 'hive'"):
        data.read_csv(tmp_path, partitioning="hive")
    with pytest.raises(ValueError, match="style must be 'hive' or 'dir', but received 'x'"):
        datasource.Partitioning("x")
    with pytest.raises(ValueError, match="needs the names of the columns"):
        datasource.Partitioning("dir")
    with pytest.raises(ValueError, match="seed must be a whole number from 0, but received 'x'"):
        data.FileShuffleConfig(untyped("x"))


# --- writing ----------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    rows = data.from_items([{"x": at, "text": f"é{at}", "list": [at, 1]} for at in range(100)], override_num_blocks=4)
    rows.write_parquet(tmp_path / "parquet", compression="zstd")
    assert data.read_parquet(tmp_path / "parquet").take_all() == rows.take_all()
    rows.write_json(tmp_path / "json")
    assert data.read_json(tmp_path / "json").take_all() == rows.take_all()
    flat = rows.drop_columns("list")
    flat.write_csv(tmp_path / "csv")
    assert data.read_csv(tmp_path / "csv").take_all() == flat.take_all()
    tensors = data.from_numpy({"a": np.arange(12.0).reshape(3, 2, 2)})
    tensors.write_numpy(tmp_path / "numpy", column="a")
    assert data.read_numpy(tmp_path / "numpy").take_batch(3)["data"].shape == (3, 2, 2)
    tensors.write_parquet(tmp_path / "tensors")
    assert data.read_parquet(tmp_path / "tensors").schema() == tensors.schema()
    manifest = json.loads((tmp_path / "parquet" / writing.MANIFEST).read_text())
    assert manifest["rows"] == 100
    assert len(manifest["files"]) == 4
    assert not list(tmp_path.rglob("*.tmp"))


def test_folders_that_have_files(tmp_path: Path) -> None:
    rows = data.range(3)
    rows.write_parquet(tmp_path)
    rows.write_parquet(tmp_path)
    assert data.read_parquet(tmp_path).count() == 6
    rows.write_parquet(tmp_path, mode="ignore")
    assert data.read_parquet(tmp_path).count() == 6
    rows.write_parquet(tmp_path, mode="overwrite")
    assert data.read_parquet(tmp_path).count() == 3
    (tmp_path / "notes.txt").touch()
    data.read_parquet(tmp_path).write_parquet(tmp_path, mode="overwrite")
    assert data.read_parquet(tmp_path).count() == 3, "it is read before it is replaced"
    with pytest.raises(KeyError):
        rows.sort("gone").write_parquet(tmp_path, mode="overwrite")
    assert data.read_parquet(tmp_path).count() == 3, "what failed replaced nothing"
    assert (tmp_path / "notes.txt").exists()
    with pytest.raises(ValueError, match="takes the path of a folder, but received ''"):
        rows.write_parquet("")
    with pytest.raises(FileExistsError, match=r"has files\. Choose another folder"):
        rows.write_parquet(tmp_path, mode="error")
    with pytest.raises(ValueError, match=r"mode must be one of 'append', .* received 'w'"):
        rows.write_parquet(tmp_path, mode="w")


def test_what_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"write_numpy\(\) cannot write .*column 'x' holds object"):
        data.from_items([{"x": "a"}]).write_numpy(tmp_path, column="x")
    with pytest.raises(TypeError, match=r"write_json\(\) cannot write .*a bytes, b'a', cannot be written as JSON"):
        data.from_items([{"x": b"a"}]).write_json(tmp_path)
    with pytest.raises(KeyError, match="no column 'gone'"):
        data.range(3).write_parquet(tmp_path, partition_cols=["gone"])
    assert not list(tmp_path.iterdir()), "nothing half-written is left"

    def fail(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 2:
            raise ArithmeticError("in a step")
        return row

    with pytest.raises(ArithmeticError, match="in a step"):
        data.range(3, override_num_blocks=3).map(fail).write_parquet(tmp_path)
    assert not (tmp_path / writing.MANIFEST).exists(), "it was not finished"


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_write_that_fails_leaves_what_was_there(mode: str, tmp_path: Path) -> None:
    data.range(10).write_parquet(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] > 15:
            raise ArithmeticError("in a step")
        return row

    with pytest.raises(ArithmeticError, match="in a step"):
        data.range(20, override_num_blocks=4).map(fail).write_parquet(tmp_path, mode=mode)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    form = writing.Json()
    with pytest.raises(OSError, match="No space left"), Path("/dev/full").open("wb", buffering=0) as full:
        form.write(full, data.range(3)._peek())
    error = writing.explain(OSError(28, "No space left on device"), "write_json()", "/x")
    assert isinstance(error, OSError)
    assert error.errno == 28
    assert "cannot write '/x'" in str(error)


# --- file systems -----------------------------------------------------------------------------------------------------


def test_a_file_system_of_fsspec() -> None:
    memory = fsspec.filesystem("memory")
    data.range(10).write_parquet("memory://here/rows")
    with pytest.raises(TypeError, match="cannot be written as JSON"):
        data.from_items([{"x": 1}, {"x": 2}, {"x": b"a"}]).write_json("memory://here/broken")
    assert not memory.glob("/here/broken/*.json"), "nothing half-written is there"
    assert data.read_parquet("/here/rows", filesystem=memory).count() == 10
    assert data.read_parquet("memory://here/rows").sum("id") == 45
    memory.rm("/here", recursive=True)


def test_arrays_of_hugging_face_are_arrays(tmp_path: Path) -> None:
    """Its files say in a field's metadata which shape the lists have."""
    known = {"ARROW:extension:name": "datasets.features.features.Array2DExtensionType"}
    for name, shape, wanted in (("a", [2, 3], (2, 2, 3)), ("b", [3, 3], (2,))):
        kind = pa.list_(pa.list_(pa.uint8()))
        field = pa.field("x", kind, metadata={**known, "ARROW:extension:metadata": json.dumps([shape, "uint8"])})
        rows = pa.array([[[1, 2, 3], [4, 5, 6]]] * 2, kind)
        parquet.write_table(pa.table([rows], schema=pa.schema([field])), tmp_path / f"{name}.parquet")
        found = data.read_parquet(tmp_path / f"{name}.parquet").take_batch(2)["x"]
        assert found.shape == wanted, "lists of another shape stay lists"


def test_addresses_of_this_machine(tmp_path: Path) -> None:
    data.range(10).write_csv(f"file://{tmp_path}")
    assert data.read_csv(f"file://{tmp_path}").count() == 10
    assert data.read_csv(str(tmp_path), filesystem=fs.LocalFileSystem()).count() == 10
    assert data.read_csv(str(tmp_path), filesystem=fsspec.filesystem("file")).count() == 10
    before = Path.cwd()
    try:
        os.chdir(tmp_path)
        assert data.read_csv(".").count() == 10
    finally:
        os.chdir(before)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"paths": 3}, TypeError, "takes a path or a list of them, but received 3"),
        ({"paths": []}, ValueError, "received no path"),
        ({"paths": "quux://bucket/x"}, ValueError, "has the unknown scheme 'quux'"),
        ({"paths": "s3://bucket/x?speed=9"}, ValueError, "has the unknown option 'speed'"),
        ({"paths": "/tmp", "filesystem": 3}, TypeError, "filesystem must be one of pyarrow's or fsspec's"),
        ({"paths": ["/tmp", "memory://x"]}, ValueError, "all paths must be on one file system"),
        ({"paths": "/tmp", "override_num_blocks": 0}, ValueError, "override_num_blocks must be a whole number from 1"),
    ],
)
def test_a_mistake_is_told_at_once(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        data.read_csv(**given)


# --- other programs ---------------------------------------------------------------------------------------------------


def test_databases(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x INTEGER, y TEXT)")
        connection.executemany(
            "INSERT INTO t VALUES (?, ?)", [(at, f"t{at}" if at % 2 else None) for at in range(9000)]
        )
    rows = data.read_sql("SELECT * FROM t WHERE x < ? ORDER BY x", lambda: sqlite3.connect(path), sql_params=(8500,))
    assert data.read_sql("SELECT 1", lambda: sqlite3.connect(path), override_num_blocks=2).count() == 1
    assert rows.count() == 8500
    assert count_blocks(rows) == 3
    assert rows.take(2) == [{"x": 0, "y": None}, {"x": 1, "y": "t1"}]
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        data.read_sql("SELECT * FROM gone", lambda: sqlite3.connect(path)).take_all()
    assert data.read_sql("SELECT x FROM t WHERE x < 0", lambda: sqlite3.connect(path)).columns() == ["x"]
    with pytest.raises(
        ValueError, match="a query with more than one column 'x', but columns must have different names"
    ):
        data.read_sql("SELECT 1 AS x, 2 AS x", lambda: sqlite3.connect(path)).take_all()
    open_one: Any = sqlite3.connect(path)
    with pytest.raises(TypeError, match="connection_factory must be a function"):
        data.read_sql("SELECT 1", open_one)
    open_one.close()


def test_generators() -> None:
    def batches() -> Iterator[dict[str, np.ndarray]]:
        for at in range(3):
            yield {"x": np.full(2, at)}

    assert [row["x"] for row in data.from_generators([batches, batches]).take_all()] == [0, 0, 1, 1, 2, 2] * 2

    for values in ([{"a": 1}, {"a": 2}], [b"a", b"b"], [bytearray(b"a"), bytearray(b"b")]):
        rows: list[dict[str, Any]] = [{"x": value} for value in values]
        assert data.from_generators([functools.partial(iter, rows)]).take_all() == rows
    single = data.from_generators([lambda: iter([{"x": np.array(1)}, {"x": np.array(2)}])])
    assert [int(row["x"]) for row in single.take_all()] == [1, 2]

    def fail() -> Iterator[dict[str, int]]:
        yield {"x": 1}
        raise ArithmeticError("after one")

    with pytest.raises(ArithmeticError, match="after one"):
        data.from_generators([fail]).take_all()
    wrong: Any = [3]
    with pytest.raises(TypeError, match="takes functions without arguments, but received 3"):
        data.from_generators(wrong)


def test_other_libraries_datasets() -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'hocket[torch]'")

    class Squares(torch.utils.data.Dataset):  # type: ignore[misc,name-defined,unused-ignore]
        def __len__(self) -> int:
            return 1000

        def __getitem__(self, at: int) -> dict[str, Any]:
            return {"x": at, "y": np.float32(at**2)}

    rows = data.from_torch(Squares())
    assert (rows.count(), rows.num_blocks()) == (1000, 3)
    assert data.from_torch(Squares(), local_read=True).count() == 1000
    assert rows.take_batch(3)["y"].tolist() == [0, 1, 4]
    tensorflow = pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'hocket[tensorflow]'")
    pairs = tensorflow.data.Dataset.from_tensor_slices(([1, 2], [3, 4]))
    assert data.from_tf(pairs).take_all() == [{"item_0": 1, "item_1": 3}, {"item_0": 2, "item_1": 4}]
    wrong: Any = [1]
    with pytest.raises(TypeError, match=r"from_tf\(\) takes a tf.data.Dataset"):
        data.from_tf(wrong)
    with pytest.raises(TypeError, match=r"takes one split, but received a dict of splits: \['test', 'train'\]"):
        data.from_huggingface({"train": 1, "test": 2})


# --- columns that nobody looks at -------------------------------------------------------------------------------------


def test_only_columns_that_are_looked_at_are_read(tmp_path: Path) -> None:
    for shop in ("a", "b"):
        (tmp_path / f"shop={shop}").mkdir()
        table = pa.table({"k": [1, 2, 1], "x": [1.0, 2.0, 3.0], "y": ["p", "q", "r"]})
        parquet.write_table(table, tmp_path / f"shop={shop}" / "rows.parquet")
    rows = data.read_parquet(tmp_path)
    for narrowed, columns in (
        (rows.select_columns(["x", "k"]), ("x", "k")),
        (rows.groupby("k").sum("x"), ("k", "x")),
        (rows.groupby(["shop", "k"]).aggregate(aggregate.Quantile("x")), ("k", "x")),
        (rows.groupby("shop").mean("x"), ("x",)),
    ):
        reads: Any = narrowed._plan.narrow().reads
        assert [read.selection.columns for read in reads] == [columns] * 2
    for whole in (
        rows.map_batches(lambda batch: batch),
        rows.sort("x"),
        rows.groupby("shop").count(),  # a file would have no column left to read
        rows.select_columns(["x", "nope"]),
    ):
        assert whole._plan.narrow() is whole._plan
    assert rows.groupby("shop").mean("x").take_all() == [{"shop": "a", "mean(x)": 2.0}, {"shop": "b", "mean(x)": 2.0}]
    assert rows.groupby("shop").count().take_all() == [{"shop": "a", "count()": 3}, {"shop": "b", "count()": 3}]
    assert rows.select_columns(["x", "shop"]).take(1) == [{"x": 1.0, "shop": "a"}]
    with pytest.raises(KeyError, match="the columns are 'k', 'x', 'y', 'shop'"):
        rows.groupby("nope").sum("x").take_all()
    with pytest.raises(ValueError, match=r"which are 'k', 'x', 'y', but received '\(shop == \"a\"\)'"):
        data.read_parquet(tmp_path, filter=pc.field("shop") == "a")
    filtered = data.read_parquet(tmp_path, filter=pc.field("y") == "r").groupby("k").sum("x")
    assert filtered.take_all() == [{"k": 1, "sum(x)": 6.0}]


@pytest.mark.parametrize("num_copies", [1, 70])  # of many files no footer is read beforehand
def test_columns_are_known_where_a_filter_leaves_no_row(num_copies: int, tmp_path: Path) -> None:
    for number in range(num_copies):
        parquet.write_table(pa.table({"x": [1, 2], "y": ["a", "b"]}), tmp_path / f"{number:02}.parquet")
    none = data.read_parquet(tmp_path, filter="x > 2")
    assert none.columns() == ["x", "y"]
    joined = data.range(2).join(none, "left_outer", on="id", right_on="x").take_all()
    assert joined == [{"id": 0, "y": None}, {"id": 1, "y": None}]
    parquet.ParquetWriter(tmp_path / "none", pa.schema({"z": pa.int64()})).close()  # it has no group of rows
    assert data.read_parquet(tmp_path / "none").columns() == ["z"]


def test_a_column_of_the_file_counts_more_than_that_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "k=folder").mkdir()
    parquet.write_table(pa.table({"k": ["file"], "path": ["own"], "x": [1]}), tmp_path / "k=folder" / "a.parquet")
    rows = data.read_parquet(tmp_path, include_paths=True)
    assert rows.take_all() == [{"k": "file", "path": "own", "x": 1}]
    assert rows.select_columns(["x", "k", "path"]).take_all() == [{"x": 1, "k": "file", "path": "own"}]
    assert rows.groupby("k").count().take_all() == [{"k": "file", "count()": 1}]


def test_rows_stay_in_order_through_many_files(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number:02}.csv").write_text(f"x\n{number}\n")
    data.read_csv(tmp_path, override_num_blocks=12).write_parquet(tmp_path / "out")
    assert [row["x"] for row in data.read_parquet(tmp_path / "out").take_all()] == list(range(12))


@pytest.mark.parametrize("options", [{}, {"parse_options": arrow_csv.ParseOptions(delimiter=";")}])
def test_texts_of_several_lines_stay_whole_in_large_csv_files(options: dict[str, Any], tmp_path: Path) -> None:
    texts = [f"{number}\n" * 3 + "end" for number in range(100_000)]
    data.from_items([{"x": text} for text in texts], override_num_blocks=1).write_csv(tmp_path)
    assert (tmp_path / json.loads((tmp_path / "_MANIFEST").read_text())["files"][0]["path"]).stat().st_size > 2 << 20
    assert [row["x"] for row in data.read_csv(tmp_path, **options).take_all()] == texts


@pytest.mark.usefixtures("small_blocks")
def test_ends_of_lines_in_texts_stay_whole(tmp_path: Path) -> None:
    """Arrow takes a mebibyte at once, or a block of a large file; some of these end between the two signs."""
    texts = ["\r\n" * (at % 7) + "\r" * (at % 3) + "\n" * (at % 2) for at in range(100_000)]
    (tmp_path / "a.csv").write_bytes(b"x\r\n" + b"".join(f'"{text}"\r\n'.encode() for text in texts) + b'"\r"\r')
    assert [row["x"] for row in data.read_csv(tmp_path).take_all()] == [*texts, "\r"]
    data.DataContext.get_current().target_max_block_size = 64 << 20
    assert [row["x"] for row in data.read_csv(tmp_path).take_all()] == [*texts, "\r"]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.usefixtures("small_blocks")
def test_large_arrays_of_json(indent: int | None, tmp_path: Path) -> None:
    rows = [{"x": number, "y": f"text {number}"} for number in range(1000)]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=indent))
    assert data.read_json(tmp_path).take_all() == rows
    (tmp_path / "a.json").write_text("".join(f'[{number}, "a"]\n' for number in range(2000)))
    assert data.read_json(tmp_path).take_all() == [{"0": number, "1": "a"} for number in range(2000)]


@pytest.mark.usefixtures("small_blocks")
def test_of_a_large_broken_file_the_rest_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.csv").write_text("x\n" + "1\n" * 30_000 + "1,2\n")
    with caplog.at_level(logging.WARNING):
        count = data.read_csv(tmp_path, on_error="skip").count()
    assert 0 < count < 30_000
    assert f"leaves out everything after {count} rows of" in caplog.text


def test_a_name_with_a_dot_is_a_column_and_no_path(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"a": [{"b": 1, "c": 2}], "a.b": [3], "z": [4]}), tmp_path / "a.parquet")
    assert data.read_parquet(tmp_path, columns=["z", "a.b"]).take_all() == [{"z": 4, "a.b": 3}]
    assert data.read_parquet(tmp_path, columns=["a"]).take_all() == [{"a": {"b": 1, "c": 2}}]
