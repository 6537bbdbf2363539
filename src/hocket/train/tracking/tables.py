"""Lines of metrics in files: a JSON object each, or comma-separated values."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from hocket.stores import local_files
from hocket.train.tracking import values

_STRANGE: Final = "backslashreplace"
"""The error handler for text that UTF-8 cannot hold: half of a surrogate pair."""


def _end_line(path: Path) -> None:
    """End a line that a full disk or a crash has cut, so that the next row gets a line of its own."""
    if not (path.is_file() and path.stat().st_size):
        return
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")


class JsonLines:
    """A file with a line of JSON for each row. Existing lines stay. `close` must be called.

    Args:
        path: The file; its folder is made if need be.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_line(path)
        self._file = path.open("a", encoding="utf-8")

    def add(self, row: Mapping[str, object]) -> None:
        """Add a row, readable at once."""
        self._file.write(f"{values.encode(row)}\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Csv:
    """A file of comma-separated values with a header. `close` must be called.

    Existing rows stay. For a new column the file is written anew. Nested values get columns of their own, ``val/loss``.

    Args:
        path: The file; its folder is made if need be.

    Raises:
        ValueError: The existing file has no header.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_line(path)
        self._path = path
        self._columns = self._read_header()
        self._file, self._writer = self._open()

    def _read_header(self) -> list[str]:
        if not self._path.exists() or not self._path.stat().st_size:
            return []
        with self._path.open(encoding="utf-8", newline="") as file:
            header = next(csv.reader(file), [])
        if len(set(header)) < len(header) or "" in header:
            raise ValueError(
                f"{str(self._path)!r} must begin with a header, but its first line is {header}. Give CsvLogger "
                "another path."
            )
        return header

    def _open(self) -> tuple[TextIO, Any]:
        file = self._path.open("a", encoding="utf-8", errors=_STRANGE, newline="")
        return file, csv.DictWriter(file, self._columns, restval="", lineterminator="\n")

    def add(self, row: Mapping[str, object]) -> None:
        """Add a row, readable at once."""
        flat = dict(values.flatten(row))
        new = [key for key in flat if key not in self._columns]
        if new:
            self._widen(new)
        self._writer.writerow(flat)
        self._file.flush()

    def _widen(self, new: list[str]) -> None:
        """Write a new file with more columns, and replace the old file by it."""
        self._file.close()
        with (
            self._path.open(encoding="utf-8", newline="") as old,
            local_files.replaced(self._path) as written,
            io.TextIOWrapper(written, encoding="utf-8", errors=_STRANGE, newline="") as file,
        ):
            rows = list(csv.DictReader(old))
            self._columns += new
            # From a line that was cut inside quotes, the reader may make a row with more values than columns.
            writer = csv.DictWriter(file, self._columns, restval="", extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        self._file, self._writer = self._open()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
