"""Files that are cut, damaged, changed while they are read, or cannot be written: named, and never taken by half."""

from __future__ import annotations

import gzip
import io
import logging
import os
import random
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import hocket
from hocket import data

pytestmark = pytest.mark.timeout(120)

SAFE = ("parquet", "orc", "tfrecords", "npz", "png", "csv.gz", "tar")
"""Formats in which a file that was cut is never taken for a whole one."""


@pytest.fixture(scope="module", autouse=True)
def here() -> Iterator[hocket.SessionContext]:
    with hocket.init(num_cpus=2, engine="inprocess") as context:
        yield context


def make_picture(folder: Path, kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (20, 20, 3)).astype(np.uint8)
    data.from_items([{"image": noise}]).write_images(folder, "image", file_format=kind)


def make_archive(folder: Path) -> None:
    rows = [{"__key__": f"k{at}", "txt": f"text {at}", "cls": at, "npy": np.arange(3)} for at in range(20)]
    data.from_items(rows).write_webdataset(folder)


def make_packed(folder: Path) -> None:
    folder.mkdir()
    (folder / "a.csv.gz").write_bytes(gzip.compress(b"x,y\n" + b"".join(b"%d,a\n" % at for at in range(500))))


def make_arrays(folder: Path) -> None:
    folder.mkdir()
    np.savez(folder / "a.npz", x=np.arange(5), y=np.arange(5.0))


def write(kind: str, folder: Path) -> tuple[Path, Callable[..., data.Dataset]]:
    """Write a file of a kind, and return it and what reads it."""
    rows = data.from_items([{"x": at, "s": f"t{at}", "f": at / 2} for at in range(200)], override_num_blocks=1)
    others: dict[str, tuple[Callable[[Path], None], Callable[..., data.Dataset]]] = {
        "npy": (lambda path: data.range_tensor(50, shape=(4,)).write_numpy(path, column="data"), data.read_numpy),
        "npz": (make_arrays, data.read_numpy),
        "png": (lambda path: make_picture(path, "png"), data.read_images),
        "jpg": (lambda path: make_picture(path, "jpg"), data.read_images),
        "tar": (make_archive, data.read_webdataset),
        "csv.gz": (make_packed, data.read_csv),
    }
    make, read = others.get(kind, (None, None))
    if make is None or read is None:
        make, read = getattr(rows, f"write_{kind}"), getattr(data, f"read_{kind}")
    make(folder)
    return next(folder.glob(f"*.{kind}")), read


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["parquet", "orc", "csv", "csv.gz", "json", "tfrecords", "npy", "npz", "png", "jpg", "tar"]
)
def test_a_damaged_file_is_named_or_left_out(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, read = write(kind, tmp_path / "good")
    whole = path.read_bytes()
    wanted = read(str(path)).take_all()
    size = len(whole)
    cut = [whole[:end] for end in sorted({1, 5, size // 4, size // 2, size * 3 // 4, size - 1})]
    chance = random.Random(kind)
    damaged = []
    for _ in range(12):
        changed = bytearray(whole)
        for _ in range(3):
            changed[chance.randrange(size)] = chance.randrange(256)
        damaged.append(bytes(changed))
    bad = tmp_path / f"bad{''.join(path.suffixes)}"
    named = 0
    cases: list[bytes] = [*cut, *damaged]
    for number, content in enumerate(cases):
        bad.write_bytes(content)
        try:
            rows = read(str(bad)).take_all()
        except ValueError as error:
            assert "bad." in str(error)  # noqa: PT017 (it may also be read)
            named += 1
            with caplog.at_level(logging.WARNING, logger="hocket.data"):
                assert len(read(str(bad), on_error="skip").take_all()) <= len(wanted)
            assert "bad." in caplog.text
        else:
            is_cut = number < len(cut) and kind in SAFE
            assert len(rows) == len(wanted) if is_cut else len(rows) <= len(wanted), f"{len(content)} of {size} bytes"
    assert named >= 3


def test_an_archive_that_was_cut_between_its_members(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for at in range(50):
            member = tarfile.TarInfo(f"{at:03}.txt")
            member.size = 3
            archive.addfile(member, io.BytesIO(b"abc"))
    whole = path.read_bytes()
    assert data.read_webdataset(str(path)).count() == 50
    path.write_bytes(whole[: 10 * 1024])
    with pytest.raises(ValueError, match=r"a.tar': the archive is damaged or incomplete: it has no end mark"):
        data.read_webdataset(str(path)).take_all()
    broken = bytearray(whole)
    broken[20 * 1024 : 20 * 1024 + 3] = b"zzz"  # in a header, whose checksum then is wrong
    path.write_bytes(broken)
    with pytest.raises(ValueError, match="the archive is damaged or incomplete"):
        data.read_webdataset(str(path)).take_all()
    path.write_bytes(whole[: 50 * 1024 + 1024])  # two blocks of zeros, and no padding after them
    assert data.read_webdataset(str(path)).count() == 50


def test_files_that_change_while_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"x": list(range(100))}), path, row_group_size=100)
    rows = data.read_parquet(path)
    parquet.write_table(pa.table({"x": [1]}), path, row_group_size=1)
    with pytest.raises(ValueError, match=r"a\.parquet.*it was changed: it had 100 rows, and now has 1"):
        rows.take_all()
    parquet.write_table(pa.table({"y": list(range(1000))}), path, row_group_size=100)
    with pytest.raises(ValueError, match=r"a.parquet.*it had the columns \['x'\], and now has \['y'\]"):
        rows.take_all()
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"the file .*a\.parquet.* no longer exists"):
        rows.take_all()
    text = tmp_path / "a.csv"
    text.write_text("x\n1\n")
    read = data.read_csv(text)
    text.unlink()
    with pytest.raises(FileNotFoundError, match=r"the file .*a\.csv.* no longer exists"):
        read.take_all()


def test_links_that_go_round(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.csv").write_text("x\n1\n")
    (tmp_path / "a" / "back").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "nowhere.csv").symlink_to(tmp_path / "gone.csv")
    (tmp_path / "self.csv").symlink_to(tmp_path / "self.csv")
    assert data.read_csv(tmp_path).take_all() == [{"x": 1}]


@pytest.mark.timeout(20)
def test_links_to_the_folder_and_above(tmp_path: Path) -> None:
    """Each alone would double what there is with each link; Arrow goes forty links deep."""
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "x.csv").write_text("x\n1\n")
    for number in range(3):
        (folder / f"self{number}").symlink_to(".")
        (folder / f"up{number}").symlink_to("..")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "y.csv").write_text("x\n2\n")
    (folder / "beside").symlink_to("../b")
    assert data.read_csv(folder).take_all() == [{"x": 2}, {"x": 1}]
    data.range(3).write_csv(str(folder), mode="append")


@pytest.mark.timeout(20)
def test_folders_that_name_each_other(tmp_path: Path) -> None:
    for one in range(20):
        (tmp_path / "all" / str(one)).mkdir(parents=True)
        for other in range(20):
            (tmp_path / "all" / str(one) / f"to{other}").symlink_to(f"../../all{other}")
        (tmp_path / f"all{one}").symlink_to(f"all/{one}")
    with pytest.raises(ValueError, match="More than 8 links lead to this folder"):
        data.read_csv(tmp_path / "all")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("mode", ["append", "overwrite", "error"])
def test_a_manifest_that_is_a_pipe(tmp_path: Path, mode: str) -> None:
    os.mkfifo(tmp_path / "_MANIFEST")
    with pytest.raises(FileExistsError, match=r"_MANIFEST of .* is not a file|has files"):
        data.range(3).write_csv(str(tmp_path), mode=mode)


@pytest.mark.parametrize(
    ("name", "fault"),
    [("a\0", "NUL"), ("\ud800", "not valid UTF-8"), ("a" * 1_000_000, "8,192 bytes")],
)
def test_paths_that_no_file_has(tmp_path: Path, name: str, fault: str) -> None:
    for call in (data.read_csv, data.range(3).write_csv):
        with pytest.raises(ValueError, match=rf"(?s)csv\(\): no file can have the path .*{fault}") as found:
            call(f"{tmp_path}/{name}")
        assert len(str(found.value)) < 500


def test_rows_of_other_lengths(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,y\n1,a\n2,b,c\n3,d\n")
    with pytest.raises(ValueError, match=r"read_csv\(\) cannot read '.*a.csv': .*Expected 2 columns, got 3: 2,b,c"):
        data.read_csv(path).take_all()
    options: Any = pa.csv.ParseOptions(invalid_row_handler=lambda row: "skip")
    assert data.read_csv(path, parse_options=options).take_all() == [{"x": 1, "y": "a"}, {"x": 3, "y": "d"}]
    path = tmp_path / "a.json"
    path.write_text('{"x": 1}\n{"x": [2]}\n')
    assert data.read_json(path).take_all() == [{"x": 1}, {"x": [2]}]
    given: Any = pa.json.ParseOptions(explicit_schema=pa.schema([("x", pa.int64())]))
    with pytest.raises(ValueError, match=r"read_json\(\) cannot read '.*a.json': JSON parse error"):
        data.read_json(path, parse_options=given).take_all()
    path.write_text('{"x": 1}\n{"y": 2}\n')
    assert data.read_json(path).take_all() == [{"x": 1, "y": None}, {"x": None, "y": 2}]


FULL = """
import resource, signal, sys
from pathlib import Path

import numpy as np

import hocket
from hocket import data

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hocket.init(num_cpus=2, engine="inprocess")
rows = data.from_numpy({"x": np.random.default_rng(0).random(200_000)}, override_num_blocks=2)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for kind in sys.argv[2:]:
    folder = Path(sys.argv[1], kind)
    try:
        getattr(rows, f"write_{kind}")(folder, **({"column": "x"} if kind == "numpy" else {}))
    except OSError as error:
        assert f"write_{kind}() cannot write" in str(error), error
        assert str(folder) in str(error), error
        print(kind, sorted(path.name for path in folder.iterdir()))
hocket.shutdown()
"""


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk."""
    kinds = ["parquet", "csv", "json", "numpy", "orc"]
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path), *kinds],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": "src"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{kind} []" for kind in kinds], "nothing half-written is left"
