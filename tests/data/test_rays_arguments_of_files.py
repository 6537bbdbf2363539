"""Arguments of readers and writers that programs for Ray Data pass."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyarrow import csv

import hocket
from hocket import data
from hocket.data import datasource
from hocket.data.datasource import FilenameProvider

UNTYPED: Any = data


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    with hocket.init(num_cpus=2):
        yield


@pytest.mark.parametrize("read", ["read_csv", "read_json", "read_text", "read_binary_files"])
def test_files_that_are_packed_under_another_name(read: str, tmp_path: Path) -> None:
    content = {"read_csv": b"x\n1\n2\n", "read_json": b'{"x": 1}\n{"x": 2}\n'}.get(read, b"1\n2\n")
    path = tmp_path / f"file.{read[5:]}"
    path.write_bytes(gzip.compress(content))
    rows = getattr(data, read)(str(path), arrow_open_stream_args={"compression": "gzip"})
    assert rows.count() == (1 if read == "read_binary_files" else 2)


@pytest.mark.parametrize("given", [5, {"mode": "r"}])
def test_wrong_ways_to_open(given: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="arrow_open_stream_args takes 'compression' and 'buffer_size', but received"):
        data.read_csv(str(tmp_path), arrow_open_stream_args=given)


def write(folder: Path) -> str:
    data.range(100, override_num_blocks=2).write_parquet(folder, row_group_size=10)
    return str(folder)


@pytest.mark.parametrize("num_copies", [1, 70])
def test_hashes_of_rows(tmp_path: Path, num_copies: int) -> None:
    """Also of more files than have their footers read first."""
    table = pq.read_table(write(tmp_path / "a"))
    folder = tmp_path / "b"
    folder.mkdir()
    for number in range(num_copies):
        pq.write_table(table.slice(0, 30), folder / f"{number:03}.parquet", row_group_size=10)
    first, again = (data.read_parquet(str(folder), include_row_hash=True, batch_size=7).take_all() for _ in range(2))
    assert first == again
    assert len({row["row_hash"] for row in first}) == len(first) == 30 * num_copies


def test_hashes_and_chosen_columns(tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    rows = data.read_parquet(folder, include_row_hash=True)
    known = {row["id"]: row["row_hash"] for row in rows.take_all()}
    assert rows.select_columns(["id"]).take(1) == [{"id": 0}]
    assert rows.select_columns(["row_hash"]).take(1) == [{"row_hash": known[0]}]
    chosen = data.read_parquet(folder, columns=["id"], include_row_hash=True).sort("id").take(1)
    assert chosen == [{"id": 0, "row_hash": known[0]}]
    kept = data.read_parquet(folder, filter="id > 40 and id < 60", include_row_hash=True).take_all()
    assert {row["id"]: row["row_hash"] for row in kept} == {at: known[at] for at in range(41, 60)}
    some = data.read_parquet(folder, filter="id == 7 or id == 55", include_row_hash=True)
    assert some.select_columns(["row_hash"]).take_all() == [{"row_hash": known[7]}, {"row_hash": known[55]}]


def test_names_of_folders(tmp_path: Path) -> None:
    rows = data.from_items([{"k": "a", "x": 1}, {"k": "b", "x": 2}])
    rows.write_parquet(tmp_path / "plain", partition_cols=["k"], partitioning_flavor=None)
    rows.write_parquet(tmp_path / "hive", partition_cols=["k"], partitioning_flavor="hive")
    assert sorted(path.name for path in (tmp_path / "plain").iterdir() if path.is_dir()) == ["a", "b"]
    assert sorted(path.name for path in (tmp_path / "hive").iterdir() if path.is_dir()) == ["k=a", "k=b"]
    for how in ({"partitioning_flavor": "hive"}, {"partitioning_flavor": "tree", "partition_cols": ["k"]}):
        with pytest.raises(ValueError, match="The flavor must be 'hive' or None, and needs partition columns"):
            rows.write_parquet(tmp_path / "c", **how)


@pytest.mark.parametrize("flavor", ["hive", None])
def test_each_value_comes_back_from_its_folder(tmp_path: Path, flavor: str | None) -> None:
    texts = ["a b", "a/b", "a%2Fb", "_h", ".h", ".", "..", None, "__HIVE_DEFAULT_PARTITION__", *([""] * bool(flavor))]
    rows = [{"x": at, "a/%=": text} for at, text in enumerate(texts)]
    folder = tmp_path / "out"
    data.from_items(rows).write_parquet(folder, partition_cols=["a/%="], partitioning_flavor=flavor)
    style = datasource.Partitioning("hive") if flavor else datasource.Partitioning("dir", field_names=["a/%="])
    assert data.read_parquet(folder, partitioning=style).sort("x").take_all() == rows
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_empty_text_is_no_folder(tmp_path: Path) -> None:
    rows = data.from_items([{"k": "", "x": 1}])
    with pytest.raises(ValueError, match="column 'k' has an empty text, which cannot name a folder"):
        rows.write_parquet(tmp_path / "a", partition_cols=["k"], partitioning_flavor=None)


def test_what_the_function_says_counts_first(tmp_path: Path) -> None:
    how: dict[str, Any] = {"row_group_size": 100, "arrow_parquet_args_fn": lambda: {"row_group_size": 5}}
    data.range(20, override_num_blocks=1).write_parquet(tmp_path, **how)
    (path,) = tmp_path.glob("*.parquet")
    assert pq.ParquetFile(path).num_row_groups == 4


def test_a_function_makes_what_cannot_be_sent(tmp_path: Path) -> None:
    how: dict[str, Any] = {
        "arrow_csv_args_fn": lambda: {"write_options": csv.WriteOptions(include_header=False), "mode": "append"}
    }
    data.range(3, override_num_blocks=1).write_csv(tmp_path, **how)
    (path,) = tmp_path.glob("*.csv")
    assert path.read_text() == "0\n1\n2\n"
    with pytest.raises(TypeError, match="nonsense"):
        UNTYPED.range(3).write_csv(tmp_path, arrow_csv_args_fn=lambda: {"nonsense": 1})


def test_a_folder_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the folder '.*' exists already. Choose another folder") as caught:
        data.range(1).write_parquet(tmp_path, mode="error")
    assert isinstance(caught.value, FileExistsError)
    data.range(1).write_parquet(tmp_path / "new", mode="error")


class Plain(FilenameProvider):
    def get_filename_for_task(self, write_uuid: str, task_index: int) -> str:
        return f"rows-{task_index}.parquet"


class Whole(FilenameProvider):
    def get_filename_for_task(self, write_uuid: str, task_index: int) -> str:
        return f"{write_uuid}-{task_index}.parquet"


def test_names_that_a_later_write_would_write_over(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"returned the name 'rows-0.parquet', which a later write would overwrite"):
        data.range(1).write_parquet(tmp_path / "a", filename_provider=Plain())
    data.range(1).write_parquet(tmp_path / "b", filename_provider=Plain(), mode="overwrite")
    for _ in range(2):
        data.range(1).write_parquet(tmp_path / "c", filename_provider=Whole())
    assert data.read_parquet(str(tmp_path / "c")).count() == 2


class Constant(FilenameProvider):
    def get_filename_for_task(self, write_uuid: str, task_index: int) -> str:
        return "rows.csv"


def read_ids(folder: Path) -> list[int]:
    return sorted(int(row["id"]) for row in data.read_parquet(str(folder)).iter_rows())


def fail(batch: dict[str, Any]) -> dict[str, Any]:
    if 8 in batch["id"]:
        raise ArithmeticError("no")
    return batch


def test_files_of_chosen_names_replace_those_of_the_same_names(tmp_path: Path) -> None:
    for count in (10, 20, 4):
        data.range(count, override_num_blocks=min(count, 5)).write_parquet(
            tmp_path, filename_provider=Plain(), mode="overwrite"
        )
        assert read_ids(tmp_path) == list(range(count))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["_MANIFEST", *(f"rows-{number}.parquet" for number in range(4))]
    with pytest.raises(ArithmeticError):
        data.range(10, override_num_blocks=5).map_batches(fail).write_parquet(
            tmp_path, filename_provider=Plain(), mode="overwrite"
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == names, "those that were written are gone"
    assert read_ids(tmp_path) == list(range(4)), "the old rows are there"


def test_files_of_chosen_names_and_partitions(tmp_path: Path) -> None:
    for count in (6, 9):
        rows = data.from_items([{"id": number, "part": number % 2} for number in range(count)], override_num_blocks=3)
        rows.write_parquet(tmp_path, partition_cols=["part"], filename_provider=Plain(), mode="overwrite")
        assert read_ids(tmp_path) == list(range(count))


def test_two_files_of_one_chosen_name(tmp_path: Path) -> None:
    data.range(2, override_num_blocks=1).write_csv(tmp_path, filename_provider=Constant())
    before = (tmp_path / "rows.csv").read_bytes()
    with pytest.raises(
        ValueError, match=r"returned the name 'rows\.csv' for 3 files, so only one of them would remain"
    ):
        data.range(6, override_num_blocks=3).write_csv(tmp_path, filename_provider=Constant(), mode="overwrite")
    assert {path.name for path in tmp_path.iterdir()} == {"_MANIFEST", "rows.csv"}
    assert (tmp_path / "rows.csv").read_bytes() == before
