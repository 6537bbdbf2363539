"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

import pytest
from tests import strangers

from hocket.stores import local_files

shared_place = strangers.shared_place


def test_what_was_there_stays_if_it_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    local_files.write(path, "old \udc80")
    assert path.read_text() == "old \\udc80"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3, before[1]))  # no file may be longer
    try:
        with pytest.raises(OSError, match="File too large"):
            local_files.write(path, "new text")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [one.name for one in tmp_path.iterdir()] == ["a.html"]
    assert path.read_text() == "old \\udc80"


@strangers.needs_root
def test_what_another_user_left_beside_is_not_written_to(shared_place: Path) -> None:
    """He has links at all names that this process may have used for what is half written."""
    home = shared_place.parent / "home"
    home.mkdir()
    (home / "data").write_text("precious")
    ours = os.getpid()

    def lay() -> None:
        for name in (f".a.html.{ours}", ".a.html.tmp", "a.html.tmp", f"a.html.{ours}.part", f".a.html.{ours}.tmp"):
            (shared_place / name).symlink_to(home / "data")

    strangers.run_as_other(lay)
    local_files.write(shared_place / "a.html", "told")
    with local_files.replaced(shared_place / "b") as file:
        file.write(b"told")
    assert (shared_place / "a.html").read_text() == (shared_place / "b").read_text() == "told"
    assert (home / "data").read_text() == "precious"


def test_nothing_is_left_of_a_block_that_fails(tmp_path: Path) -> None:
    def fail() -> None:
        with local_files.replaced(tmp_path / "a") as file:
            file.write(b"told")
            raise KeyError("no")

    with pytest.raises(KeyError, match="no"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_link_stays_one_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    local_files.write(tmp_path / "link", "told")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "told"
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    local_files.write(tmp_path / "pipe", "told")
    reader.join(10)
    assert read == ["told"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        local_files.write(tmp_path / "none" / "a", "x")
