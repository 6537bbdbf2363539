"""The manifest of a folder: a file of JSON that says which files the folder has, with sizes and digests.

It is written last, so a folder that has one is whole; and what has changed since then is found by it. This is the form
of training's checkpoints, which stores have, too::

    {"files": {"weights": {"size_bytes": 4, "sha256": "9f86d0..."}}, ...}

Parameter servers and meshes note digests alone, ``{"files": {"weights": "9f86d0..."}}``. Both are compared here.
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

_CHUNK_BYTES: Final = 1 << 20  # copied and digested at a time; a guess, far above where the size matters


@final
@dataclass(frozen=True, slots=True)
class Record:
    """The entry of a file in a manifest."""

    size_bytes: int
    sha256: str


@final
@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is not what was written."""

    file: str
    """Its path in the folder."""
    text: str
    """What is wrong with it, as the rest of a sentence."""
    is_gone: bool = False

    def __str__(self) -> str:
        return f"{self.file!r} {self.text}"


# --- files ------------------------------------------------------------------------------------------------------------


def copy_stream(reader: Any, writer: Any = None, *, most: float = math.inf, chunk_bytes: int = _CHUNK_BYTES) -> Record:
    """Read a stream to its end, and return how much came, with the digest.

    Args:
        reader: What is read.
        writer: Where everything is written. Default: nowhere.
        most: After how many bytes to stop.
        chunk_bytes: How much is read at a time.
    """
    digest, size = hashlib.sha256(), 0
    while chunk := reader.read(min(chunk_bytes, most - size)):
        digest.update(chunk)
        size += len(chunk)
        if writer is not None:
            writer.write(chunk)
    return Record(size, digest.hexdigest())


def copy(source: Path, target: Path) -> Record:
    """Copy a file of this machine, and have the copy on the disk."""
    with source.open("rb") as reader, target.open("wb") as writer:
        record = read_open(reader, writer)
        local_files.sync_file(writer)
    return record


def read_open(reader: BinaryIO, writer: BinaryIO | None = None) -> Record:
    """Read a file as long as it is now: if somebody appends to it meanwhile, there might be no end."""
    return copy_stream(reader, writer, most=os.fstat(reader.fileno()).st_size)


def read_file(file: Path) -> Record:
    """Return what there is to note of a file.

    Raises:
        OSError: It cannot be read, or is no ordinary file.
    """
    with local_files.open_regular(file) as opened:
        return read_open(opened)


# --- what is written --------------------------------------------------------------------------------------------------


def describe(records: Mapping[str, Record]) -> dict[str, dict[str, object]]:
    """Return what stands under ``"files"``."""
    return {name: {"size_bytes": one.size_bytes, "sha256": one.sha256} for name, one in records.items()}


def encode(manifest: Mapping[str, object]) -> bytes:
    """Return a manifest as it is in its file."""
    return json.dumps(manifest, indent=1, default=_simplify).encode()


def _simplify(value: object) -> object:
    """Return a number for a number of numpy's, and a description of anything else that JSON cannot hold."""
    return value.item() if hasattr(value, "item") and getattr(value, "size", 0) == 1 else texts.safe_repr(value)


# --- what is read -----------------------------------------------------------------------------------------------------


def read_optional(file: Path) -> dict[str, Any] | None:
    """Return what a manifest on this machine says; None if there is none that can be read."""
    try:
        return parse(local_files.read_text(file))
    except (OSError, ValueError):
        return None


def parse(blob: str | bytes) -> dict[str, Any] | None:
    """Return what a manifest says; None if it is none of ours, or names files outside of its folder."""
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
    """Return what a manifest that `parse` gave says of files; nothing of those that it describes in another way.

    Args:
        manifest: What it says.
        loose: The names of files that may change after the commit.
    """
    return {
        inner: Record(record["size_bytes"], record["sha256"])
        for inner, record in manifest.get("files", {}).items()
        if inner not in loose and isinstance(record, dict)
    }


def find_gap(records: Mapping[str, Record], sizes: Mapping[str, int]) -> Damage | None:
    """Compare what a manifest says with the sizes of the files that are there; return what is wrong, or None."""
    for inner, record in records.items():
        if inner not in sizes:
            return Damage(inner, "is not there", is_gone=True)
        if sizes[inner] != record.size_bytes:
            return Damage(inner, f"has {sizes[inner]} bytes, and had {record.size_bytes}")
    return None


def compare(inner: str, found: Record, noted: Record | str) -> Damage | None:
    """Compare a file with what was noted of it; return what is wrong, or None."""
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
    """Read all files that are noted; return the first that is not what it was, or None.

    Args:
        folder: A folder of this machine.
        noted: By path in the folder, the record or the digest of each file.
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
