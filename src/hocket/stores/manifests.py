"""The manifest of a folder: a JSON file that lists the folder's files with sizes and digests.

The manifest is written last, so a folder that has a manifest is whole. It also reveals later changes. Checkpoints of
training, on disk and in stores, have this form::

    {"files": {"weights": {"size_bytes": 4, "sha256": "9f86d0..."}}, ...}

Parameter servers and meshes note digests alone, ``{"files": {"weights": "9f86d0..."}}``. This module reads both forms.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, final

from hocket._base import texts
from hocket.stores import local_files, names

_CHUNK_BYTES: Final = 1 << 20  # copied and digested at a time; a guess, above the sizes that cost speed


@final
@dataclass(frozen=True, slots=True)
class Record:
    """The entry of a file in a manifest."""

    size_bytes: int
    sha256: str


@final
@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is missing or differs from its entry in a manifest."""

    file: str
    """The file's path in the folder."""
    text: str
    """The fault, as the rest of a sentence that begins with the file."""
    is_gone: bool = False

    def __str__(self) -> str:
        return f"{self.file!r} {self.text}"


# --- files ------------------------------------------------------------------------------------------------------------


def copy_stream(reader: Any, writer: Any = None, *, most: float = math.inf, chunk_bytes: int = _CHUNK_BYTES) -> Record:
    """Read a stream to its end; return the record of the bytes read.

    Args:
        reader: The stream.
        writer: A stream that receives all bytes. Default: none.
        most: The number of bytes after which to stop.
        chunk_bytes: The number of bytes read at a time.
    """
    digest, size = hashlib.sha256(), 0
    while chunk := reader.read(min(chunk_bytes, most - size)):
        digest.update(chunk)
        size += len(chunk)
        if writer is not None:
            writer.write(chunk)
    return Record(size, digest.hexdigest())


def copy(source: Path, target: Path) -> Record:
    """Copy a file of this machine and sync the copy to the disk; return the record of the copy."""
    with source.open("rb") as reader, target.open("wb") as writer:
        record = read_open(reader, writer)
        local_files.sync_file(writer)
    return record


def read_open(reader: BinaryIO, writer: BinaryIO | None = None) -> Record:
    """Read a file up to its present size, since another process may append to it without end; return the record."""
    return copy_stream(reader, writer, most=os.fstat(reader.fileno()).st_size)


def read_file(file: Path) -> Record:
    """Return the record of a file.

    Raises:
        OSError: The file cannot be read, or is not a regular file.
    """
    with local_files.open_regular(file) as opened:
        return read_open(opened)


# --- writing ----------------------------------------------------------------------------------------------------------


def describe(records: Mapping[str, Record]) -> dict[str, dict[str, object]]:
    """Return the value of a manifest's key ``"files"``."""
    return {name: {"size_bytes": one.size_bytes, "sha256": one.sha256} for name, one in records.items()}


def encode(manifest: Mapping[str, object]) -> bytes:
    """Return the bytes of a manifest's file."""
    return json.dumps(manifest, indent=1, default=_simplify).encode()


def _simplify(value: object) -> object:
    """Return a NumPy number as a Python number, and a description of anything else that JSON cannot hold."""
    return value.item() if hasattr(value, "item") and getattr(value, "size", 0) == 1 else texts.safe_repr(value)


# --- reading ----------------------------------------------------------------------------------------------------------


def read_optional(file: Path) -> dict[str, Any] | None:
    """Return a manifest of this machine; None if it is missing, unreadable, or refused by `parse`."""
    try:
        return parse(local_files.read_text(file))
    except (OSError, ValueError):
        return None


def parse(blob: str | bytes) -> dict[str, Any] | None:
    """Return a parsed manifest; None if it has another form, or names files outside its folder."""
    try:
        found = json.loads(blob)
        records = found.get("files", {})
        for inner, record in records.items():
            names.check(inner, "A manifest")
            if isinstance(record, dict):
                size, digest = record["size_bytes"], record["sha256"]
                if type(size) is not int or type(digest) is not str:
                    return None
    except (ValueError, LookupError, AttributeError, RecursionError):
        return None
    return dict(found)


def read_records(manifest: Mapping[str, Any], loose: Collection[str] = ()) -> dict[str, Record]:
    """Return the records of a manifest's files, without the files that have a digest alone.

    Args:
        manifest: The result of `parse`.
        loose: The names of files that may change after the commit; their records are left out.
    """
    return {
        inner: Record(record["size_bytes"], record["sha256"])
        for inner, record in manifest.get("files", {}).items()
        if inner not in loose and isinstance(record, dict)
    }


def find_gap(records: Mapping[str, Record], sizes: Mapping[str, int]) -> Damage | None:
    """Return the first file of a manifest that is missing or has another size; None if there is none."""
    for inner, record in records.items():
        if inner not in sizes:
            return Damage(inner, "is missing", is_gone=True)
        if sizes[inner] != record.size_bytes:
            return Damage(inner, f"has {sizes[inner]} bytes, but had {record.size_bytes} when it was saved")
    return None


def compare(inner: str, found: Record, noted: Record | str) -> Damage | None:
    """Return how a file differs from its record or digest in a manifest; None if it does not."""
    if noted in (found, found.sha256):
        return None
    if isinstance(noted, str):
        return Damage(inner, "has changed since it was written")
    is_same = found.size_bytes == noted.size_bytes
    return Damage(
        inner,
        f"has changed since it was saved ({found.size_bytes} bytes now, {noted.size_bytes} then"
        f"{is_same * ', with another digest'})",
    )


def find_damage(folder: Path, noted: Mapping[str, Record | str]) -> Damage | None:
    """Read the files of a manifest; return the first that is missing or has changed, or None.

    Args:
        folder: A folder of this machine.
        noted: The record or the digest of each file, by path in the folder.
    """
    for inner, record in noted.items():
        try:
            damage = compare(inner, read_file(folder / inner), record)
        except FileNotFoundError as error:
            return Damage(inner, f"cannot be read: {error}", is_gone=True)
        except OSError as error:
            return Damage(inner, f"cannot be read: {error}")
        if damage is not None:
            return damage
    return None
