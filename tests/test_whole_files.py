"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hocket import whole_files


def test_what_was_there_stays_if_it_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.html"
    whole_files.write(path, "old \udc80")
    assert path.read_text() == "old \\udc80"

    def fill(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:3])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", fill)
        with pytest.raises(OSError, match="No space"):
            whole_files.write(path, "new")
    assert [one.name for one in tmp_path.iterdir()] == ["a.html"]
    assert path.read_text() == "old \\udc80"


def test_a_link_stays_one_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    whole_files.write(tmp_path / "link", "told")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "told"
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    whole_files.write(tmp_path / "pipe", "told")
    reader.join(10)
    assert read == ["told"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        whole_files.write(tmp_path / "none" / "a", "x")
