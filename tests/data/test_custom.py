"""Sources and targets that users write; files of other kinds, their sizes and their names; databases."""

from __future__ import annotations

import csv
import functools
import io
import json
import os
import sqlite3
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped,unused-ignore]  # it may lack its stubs
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import orc

import hocket
from hocket import data
from hocket.data import block, datasource
from hocket.data.sources import writing

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", autouse=True)
def here() -> Iterator[hocket.SessionContext]:
    with hocket.init(num_cpus=2) as context:
        yield context


def as_any(value: object) -> Any:
    return value


def list_names(folder: Path, ending: str) -> list[str]:
    return sorted(path.name for path in folder.glob(f"*{ending}"))


# --- sources ----------------------------------------------------------------------------------------------------------


class Numbers(data.Datasource):
    """Numbers from 0, in as many tasks as are asked for."""

    def __init__(self, count: int, *, is_known: bool = True) -> None:
        self.count = count
        self.is_known = is_known

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: object = None
    ) -> list[data.ReadTask]:
        def read(numbers: list[int]) -> Iterable[Any]:
            yield pa.table({"x": numbers})
            yield pd.DataFrame({"x": numbers[:1]})

        parts = [list(part) for part in np.array_split(np.arange(self.count), parallelism)]
        return [
            data.ReadTask(
                functools.partial(read, part),
                block.BlockMetadata(num_rows=len(part) + 1 if self.is_known else None, size_bytes=8 * len(part)),
            )
            for part in parts
        ]


def test_a_source_of_a_users() -> None:
    rows = data.read_datasource(Numbers(10), override_num_blocks=2)
    assert rows.num_blocks() == 2
    assert rows.count() == 12
    assert [row["x"] for row in rows.take_all()] == [0, 1, 2, 3, 4, 0, 5, 6, 7, 8, 9, 5]
    unknown = data.read_datasource(Numbers(10, is_known=False), parallelism=5, compute=None)
    assert (unknown.num_blocks(), unknown.count()) == (5, 15)
    assert (unknown.repartition(3).num_blocks(), rows.repartition(3).num_blocks()) == (3, 3)
    assert rows.map(lambda row: {"y": 2 * row["x"]}).sum("y") == 100
    with pytest.raises(TypeError, match=r"read_datasource\(\) takes a Datasource, but received 3"):
        data.read_datasource(as_any(3))

    class Wrong(data.Datasource):
        def get_read_tasks(self, *given: object, **named: object) -> Any:
            return [list]

    with pytest.raises(
        TypeError, match=r"get_read_tasks\(\) of Wrong must return a list of ReadTask, but the list has <class 'list'>"
    ):
        data.read_datasource(Wrong())
    with pytest.raises(TypeError, match=r"ReadTask\(\) takes a function, but received \[\]"):
        data.ReadTask(as_any([]))

    class Broken(data.Datasource):
        def get_read_tasks(self, *given: object, **named: object) -> list[data.ReadTask]:
            return [data.ReadTask(lambda: [5])]

    with pytest.raises(TypeError, match="A table from a ReadTask of Broken must be a dict of arrays"):
        data.read_datasource(Broken()).take_all()


# --- targets ----------------------------------------------------------------------------------------------------------


class Lines(data.Datasink):
    """A file of lines for each task, and a note of what happened."""

    def __init__(self, folder: Path, *, fails: bool = False) -> None:
        self.folder = folder
        self.fails = fails
        self.found: list[Any] = []

    def on_write_start(self, schema: object = None) -> None:
        self.folder.mkdir()

    def write(self, blocks: Iterable[Any], ctx: datasource.TaskContext) -> int:
        if self.fails and ctx.task_idx == 1:
            raise ArithmeticError("as it should")
        rows = [row for table in blocks for row in table.to_pylist()]
        (self.folder / str(ctx.task_idx)).write_text("\n".join(map(str, rows)))
        return len(rows)

    def on_write_complete(self, write_result: datasource.WriteResult) -> None:
        self.found = [write_result.num_rows, write_result.write_returns]

    def on_write_failed(self, error: Exception) -> None:
        self.found = [repr(error)]


def test_a_target_of_a_users(tmp_path: Path) -> None:
    rows = data.range(10, override_num_blocks=3)
    sink = Lines(tmp_path / "a")
    rows.write_datasink(sink, concurrency=1)
    assert sink.found == [10, [3, 3, 4]]
    assert (tmp_path / "a" / "0").read_text() == "{'id': 0}\n{'id': 1}\n{'id': 2}"
    bad = Lines(tmp_path / "b", fails=True)
    with pytest.raises(ArithmeticError, match="as it should"):
        rows.write_datasink(bad)
    assert "as it should" in bad.found[0]
    with pytest.raises(TypeError, match=r"write_datasink\(\) takes a Datasink, but received 3"):
        rows.write_datasink(as_any(3))


class Csvs(data.BlockBasedFileDatasink):
    def write_block_to_file(self, block: block.BlockAccessor, file: Any) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, block.column_names())
        writer.writeheader()
        writer.writerows(block.iter_rows())
        assert block.to_pandas().shape == (block.num_rows(), 1)
        assert block.to_numpy("id").sum() == block.to_arrow().column("id").to_numpy().sum()
        file.write(text.getvalue().encode())


class Notes(data.RowBasedFileDatasink):
    def write_row_to_file(self, row: dict[str, Any], file: Any) -> None:
        file.write(json.dumps(row).encode())


def test_a_format_of_a_users(tmp_path: Path) -> None:
    rows = data.range(10, override_num_blocks=3)
    rows.write_datasink(Csvs(tmp_path / "a", file_format="csv", try_create_dir=True))
    assert len(list_names(tmp_path / "a", ".csv")) == 3
    assert data.read_csv(tmp_path / "a").sum("id") == 45
    manifest = json.loads((tmp_path / "a" / writing.MANIFEST).read_text())
    assert (manifest["rows"], len(manifest["files"])) == (10, 3)
    rows.write_datasink(Csvs(tmp_path / "b", file_format="csv", min_rows_per_file=5))
    assert len(list_names(tmp_path / "b", ".csv")) == 2
    rows.write_datasink(Notes(tmp_path / "c", file_format="json", mode="error"))
    assert len(list_names(tmp_path / "c", ".json")) == 10
    with pytest.raises(FileExistsError, match="has files"):
        rows.write_datasink(Notes(tmp_path / "c", file_format="json", mode="error"))
    rows.write_datasink(Notes(tmp_path / "c", file_format="json", mode="ignore"))
    assert data.read_json(tmp_path / "c").sum("id") == 45


# --- files ------------------------------------------------------------------------------------------------------------


def test_orc(tmp_path: Path) -> None:
    rows = data.from_items([{"x": at, "s": None if at % 3 else f"s{at}"} for at in range(20)], override_num_blocks=2)
    rows.write_orc(tmp_path, compression="zstd")
    assert data.read_orc(tmp_path).take_all() == rows.take_all()
    assert data.read_orc(tmp_path, columns=["s"]).columns() == ["s"]
    table = pa.table({"x": list(range(100_000))})
    orc.write_table(table, tmp_path / "large.orc", stripe_size=100_000)
    assert data.read_orc(tmp_path / "large.orc").sum("x") == sum(range(100_000))
    with pytest.raises(ValueError, match=r"read_orc\(\) cannot read '.*large.orc': .*no column 'gone'"):
        data.read_orc(tmp_path / "large.orc", columns=["gone"]).take(1)
    (tmp_path / "bad.orc").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"read_orc\(\) cannot read '.*bad.orc'"):
        data.read_orc(tmp_path / "bad.orc").take(1)
    with pytest.raises(TypeError, match="columns must be a list of names, but received 3"):
        data.read_orc(tmp_path, columns=as_any(3))


def test_pictures_are_written(tmp_path: Path) -> None:
    pictures = [{"image": np.full((4, 6, 3), at, np.uint8), "name": f"n{at}"} for at in range(5)]
    rows = data.from_items(pictures, override_num_blocks=2)
    rows.write_images(tmp_path / "a", "image")
    assert len(list_names(tmp_path / "a", ".png")) == 5
    assert [row["image"][0, 0, 0] for row in data.read_images(tmp_path / "a").take_all()] == list(range(5))
    rows.write_images(tmp_path / "b", column="image", file_format="jpeg", concurrency=1)
    with Image.open(next((tmp_path / "b").glob("*.jpeg"))) as picture:
        assert picture.format == "JPEG"
    with pytest.raises(TypeError, match=r"write_images\(\) cannot write '.*column 'name' does not hold a picture"):
        rows.write_images(tmp_path / "c", "name")
    with pytest.raises(ValueError, match="Pillow has no format 'xyz' for pictures"):
        rows.write_images(tmp_path / "c", "image", file_format="xyz")
    with pytest.raises(KeyError, match="no column 'gone'"):
        rows.write_images(tmp_path / "c", "gone")
    with pytest.raises(ValueError, match="cannot end in 'a/b'"):
        rows.write_images(tmp_path / "c", "image", file_format="a/b")


def test_archives_are_written(tmp_path: Path) -> None:
    rows = data.from_items(
        [
            {
                "__key__": f"k{at}",
                "txt": f"é{at}",
                "cls": at,
                "json": {"at": at},
                "npy": np.arange(3) + at,
                "png": np.full((2, 2, 3), at, np.uint8),
                "bin": bytes([at]),
                "gone": None,
            }
            for at in range(6)
        ]
    )
    rows.write_webdataset(tmp_path / "a", max_rows_per_file=4)
    assert len(list_names(tmp_path / "a", ".tar")) == 2
    found = data.read_webdataset(tmp_path / "a").take_all()
    assert [row["__key__"] for row in found] == [f"k{at}" for at in range(6)]
    last = found[-1]
    assert (last["txt"], last["cls"], last["json"], last["bin"]) == ("é5", 5, {"at": 5}, b"\5")
    assert last["npy"].tolist() == [5, 6, 7]
    assert last["png"].shape == (2, 2, 3)
    data.range(2).write_webdataset(tmp_path / "b", encoder=lambda row: {"txt": str(row["id"])})
    with tarfile.open(next((tmp_path / "b").glob("*.tar"))) as archive:
        assert archive.getnames() == ["000000.txt", "000001.txt"]
    with pytest.raises(
        TypeError, match=r"write_webdataset\(\) cannot write .*'000000.x' must be bytes or text, but would be an int: 1"
    ):
        data.from_items([{"x": 1}]).write_webdataset(tmp_path / "c")
    for keys in (["a", "a"], ["d/img.1", "d/img.2"]):
        one_by_one = data.from_items([{"__key__": key, "txt": "x"} for key in keys], override_num_blocks=1)
        with pytest.raises(ValueError, match=r"two consecutive rows belong to the sample '(a|d/img)', which"):
            one_by_one.write_webdataset(tmp_path / "c")
    with pytest.raises(TypeError, match="encoder must be True, a function or a list of these, but received 'x'"):
        data.range(2).write_webdataset(tmp_path / "c", encoder="x")


def test_databases_are_written(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x INTEGER, y TEXT)")
    connection.close()
    rows = data.range(100, override_num_blocks=2).map(lambda row: {"x": row["id"], "y": f"t{row['id']}"})
    rows.write_sql("INSERT INTO t VALUES (?, ?)", lambda: sqlite3.connect(path), concurrency=1)
    read = data.read_sql("SELECT * FROM t ORDER BY x", lambda: sqlite3.connect(path))
    assert read.take_all() == rows.take_all()
    with pytest.raises(sqlite3.OperationalError, match="no such table: gone"):
        rows.write_sql("INSERT INTO gone VALUES (?, ?)", lambda: sqlite3.connect(path))
    with pytest.raises(TypeError, match="connection_factory must be a function, but received"):
        rows.write_sql("INSERT INTO t VALUES (?, ?)", as_any("rows.db"))


def test_sizes_of_files(tmp_path: Path) -> None:
    rows = data.range(100, override_num_blocks=10)

    def write(**how: Any) -> list[int]:
        folder = tmp_path / "-".join(f"{name}{value}" for name, value in how.items())
        rows.write_parquet(folder, **how)
        assert [row["id"] for row in data.read_parquet(folder).take_all()] == list(range(100))
        return [one["rows"] for one in json.loads((folder / writing.MANIFEST).read_text())["files"]]

    assert write(min_rows_per_file=25) == [30, 30, 30, 10]
    assert write(num_rows_per_file=100) == [100]
    assert write(min_rows_per_file=1) == [10] * 10
    assert write(max_rows_per_file=7) == [7, 3] * 10
    assert write(min_rows_per_file=20, max_rows_per_file=20) == [20] * 5
    with pytest.raises(ValueError, match="min_rows_per_file=5 is more than max_rows_per_file=4"):
        write(min_rows_per_file=5, max_rows_per_file=4)
    with pytest.raises(ValueError, match="max_rows_per_file must be a whole number from 1, but received 0"):
        write(max_rows_per_file=0)
    with pytest.raises(TypeError, match=r"write_json\(\) has no keyword 'lines'. It takes filesystem, mode"):
        rows.write_json(tmp_path, lines=True)
    rows.write_csv(tmp_path / "csv", arrow_csv_args_fn=lambda: {"memory_pool": None}, try_create_dir=True)
    assert data.read_csv(tmp_path / "csv").count() == 100


class Named(datasource.FilenameProvider):
    def get_filename_for_task(self, write_uuid: str, task_index: int) -> str:
        return f"part{task_index}.parquet"


class Called(datasource.FilenameProvider):
    def get_filename_for_row(
        self, row: dict[str, Any], write_uuid: str, task_index: int, block_index: int, row_index: int
    ) -> str:
        return f"{row['name']}.png"


def test_names_of_files(tmp_path: Path) -> None:
    data.range(10, override_num_blocks=2).write_parquet(
        tmp_path / "a", filename_provider=Named(), max_rows_per_file=3, mode=data.SaveMode.CREATE
    )
    assert list_names(tmp_path / "a", ".parquet") == [
        "part0.parquet",
        "part0_000001.parquet",
        "part1.parquet",
        "part1_000001.parquet",
    ]
    pictures = [{"image": np.zeros((2, 2, 3), np.uint8), "name": name} for name in ("b", "a")]
    data.from_items(pictures).write_images(tmp_path / "b", "image", filename_provider=Called())
    assert list_names(tmp_path / "b", ".png") == ["a.png", "b.png"]
    data.from_items(pictures).write_images(tmp_path / "c", "image", filename_provider=Named(file_format="png"))
    assert list_names(tmp_path / "c", "") == [writing.MANIFEST, "part0_000000.parquet", "part0_000001.parquet"]
    with pytest.raises(TypeError, match="filename_provider must be a FilenameProvider, but received 3"):
        data.range(1).write_parquet(tmp_path / "d", filename_provider=3)
    with pytest.raises(FileExistsError, match="has files"):
        data.range(1).write_parquet(tmp_path / "a", mode="create")


class DyingOnce(datasource.BlockBasedFileDatasink):
    """Numbers of rows. The first task that finds a file of this name ends its process in the middle of its own file."""

    def __init__(self, path: object, flag: Path, **how: Any) -> None:
        super().__init__(path, file_format="txt", **how)
        self.flag = flag

    def write_block_to_file(self, block: Any, file: Any) -> None:
        file.write(b"%d" % block.num_rows())
        file.flush()
        if self.flag.exists():
            self.flag.unlink()
            os._exit(1)


@pytest.mark.parametrize("names", [None, Named()])
def test_a_task_that_is_done_again_leaves_nothing_of_its_first_file(names: Any, tmp_path: Path) -> None:
    flag, folder = tmp_path / "flag", tmp_path / "out"
    flag.touch()
    data.range(9, override_num_blocks=3).write_datasink(DyingOnce(folder, flag, filename_provider=names))
    assert not flag.exists()
    assert [row["text"] for row in data.read_text(folder).take_all()] == ["3", "3", "3"]
    assert len(list(folder.iterdir())) == 4


@pytest.mark.parametrize("kind", ["parquet", "csv", "orc", "json"])
def test_no_rows_are_written_with_their_columns(kind: str, tmp_path: Path) -> None:
    rows = data.from_items([{"x": 1, "y": "a"}], override_num_blocks=1).filter(lambda row: False)
    getattr(rows, f"write_{kind}")(tmp_path)
    again = getattr(data, f"read_{kind}")(tmp_path)
    assert again.take_all() == []
    assert again.count() == 0
    assert len(list_names(tmp_path, f".{kind}")) == 1
    if kind != "json":  # nothing in a file of JSON lines says which columns there are
        assert again.columns() == ["x", "y"]
    if kind in {"parquet", "orc"}:
        assert again.schema() == data.from_items([{"x": 1, "y": "a"}]).schema()
    assert again.union(data.from_items([{"x": 2, "y": "b"}])).to_arrow().to_pylist() == [{"x": 2, "y": "b"}]
