"""Readers of folders that another user may have filled: what is no file is refused, and nothing waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hocket import ps
from hocket.mesh import manifests
from hocket.observe.runs import history, lines
from hocket.ps.checkpoint import checkpoints
from hocket.stores import local_files
from hocket.train.checkpoints import file_chunks, kept, storage
from hocket.tune import log as tune_log

KINDS = ["pipe", "device", "folder", "link to a pipe", "too large"]


def put(path: Path, kind: str) -> None:
    """Leave something that is no small file at a name."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "link to a pipe":
        os.mkfifo(path.with_name("pipe"))
        path.symlink_to("pipe")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)  # takes no room


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_small_file_is_an_error(tmp_path: Path, kind: str) -> None:
    put(tmp_path / "a", kind)
    message = "more than 268,435,456 bytes" if kind == "too large" else "It is not a regular file, but a pipe, a device"
    with pytest.raises(OSError, match=message):
        local_files.read_text(tmp_path / "a")


def test_files_and_links_to_them_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("é", encoding="utf-8")
    (tmp_path / "b").symlink_to("a")
    assert local_files.read_text(tmp_path / "a") == local_files.read_text(tmp_path / "b") == "é"
    with pytest.raises(FileNotFoundError, match="nothing"):
        local_files.read_text(tmp_path / "nothing")
    (tmp_path / "a").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="utf-8"):
        local_files.read_text(tmp_path / "a")


def test_nothing_stays_open(tmp_path: Path) -> None:
    put(tmp_path / "a", "pipe")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(10):
        with pytest.raises(OSError, match="It is not a regular file"):
            local_files.open_regular(tmp_path / "a")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# --- each reader ------------------------------------------------------------------------------------------------------


def refuses(error: type[Exception], read: Callable[[], object]) -> Callable[[], None]:
    """Return what checks that a reader raises."""

    def check() -> None:
        with pytest.raises(error):
            read()

    return check


def read_manifest(folder: Path) -> None:
    assert storage.get_optional_manifest(folder) is None


def read_lines(folder: Path) -> None:
    found = lines.Lines(folder / "run.jsonl")
    assert list(found.read(lambda: None)) == []
    found.close()


def read_damage(folder: Path) -> None:
    manifest = {"files": {"run.jsonl": {"size_bytes": 1, "sha256": "0" * 64}}}
    assert "cannot be read: [Errno 22] It is not a regular file" in (storage.find_damage(folder, manifest) or "")


def read_kept(folder: Path) -> None:
    checkpoint = folder / "run" / "checkpoint_000000"
    checkpoint.mkdir(parents=True)
    manifest = {"files": {"a": {"size_bytes": 1, "sha256": "0" * 64}}}
    (checkpoint / storage.MANIFEST_NAME).write_text(json.dumps(manifest))
    os.mkfifo(checkpoint / "a")
    assert ["cannot be read" in str(one.damage) for one in kept.list_local(folder / "run")] == [True]


READERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a checkpoint's manifest": (storage.MANIFEST_NAME, read_manifest),
    "a checkpoint's files": ("run.jsonl", read_damage),
    "a run's checkpoints": ("other", read_kept),
    "a file that is sent": (
        "a",
        lambda folder: refuses(OSError, lambda: list(file_chunks._read(folder / "a", None, 1)))(),
    ),
    "a log that grows": ("run.jsonl", read_lines),
    "a run's history": ("run.jsonl", lambda folder: refuses(OSError, lambda: history.RunHistory(folder))()),
    "a glimpse": ("run.jsonl", lambda folder: refuses(OSError, lambda: history.take_glimpse(folder / "run.jsonl"))()),
    "a search's log": (tune_log.NAME, lambda folder: refuses(OSError, lambda: list(tune_log.read(folder)))()),
    "a mesh's manifest": ("manifest.json", lambda folder: refuses(OSError, lambda: manifests.read(folder))()),
    "variables": (
        checkpoints.MANIFEST,
        lambda folder: refuses(ps.CheckpointDamagedError, lambda: checkpoints.read_manifest(folder))(),
    ),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_does_not_wait_for_a_pipe(tmp_path: Path, reader: str) -> None:
    name, check = READERS[reader]
    os.mkfifo(tmp_path / name)
    check(tmp_path)


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("command", [["report"], ["runs"], ["runs", "--json"]], ids=" ".join)
@pytest.mark.parametrize("name", ["run.jsonl", "checkpoint_000000/run.jsonl", "checkpoint_000000/manifest", "a file"])
def test_commands_do_not_wait_for_pipes(tmp_path: Path, command: list[str], name: str) -> None:
    run = tmp_path / "run"
    checkpoint = run / "checkpoint_000000"
    checkpoint.mkdir(parents=True)
    manifest = checkpoint / storage.MANIFEST_NAME
    if name == "a file":
        manifest.write_text(json.dumps({"files": {"pipe": {"size_bytes": 1, "sha256": "0" * 64}}, "metrics": {}}))
        os.mkfifo(checkpoint / "pipe")
    elif name.endswith("manifest"):
        os.mkfifo(manifest)
    else:
        os.mkfifo(run / name)
    done = subprocess.run(
        [sys.executable, "-m", "hocket", command[0], str(run), *command[1:]],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr, done.stderr
    assert f"hocket {command[0]}: " in done.stderr, done.stderr
