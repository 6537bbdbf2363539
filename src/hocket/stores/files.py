"""Single files in a store: written whole or not at all, read, removed and listed, with an end to each wait."""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from hocket import extras
from hocket.stores import calls, names, places, regular

_CHUNK_BYTES: Final = 8 << 20  # sent and digested at a time: a part of an upload to S3 has 5 MiB at least


@final
@dataclass(frozen=True, slots=True)
class Record:
    """What a manifest says of a file."""

    size_bytes: int
    sha256: str


def write(place: places.Place, data: bytes) -> None:
    """Write a small file: a reader finds what was there before, or this, whole."""
    calls.ask(place, "write", lambda: _write(place, data), size_bytes=len(data))


def _write(place: places.Place, data: bytes) -> None:
    filesystem, renames = place.filesystem, places.is_local(place.filesystem)
    path = f"{place.path}.{secrets.token_hex(4)}.tmp" if renames else place.path
    make_folder(place)
    with filesystem.open_output_stream(path, compression=None) as stream:
        stream.write(data)
    if renames:
        filesystem.move(path, place.path)


def make_folder(place: places.Place) -> None:
    """Make the folder of a file, where a store has folders."""
    if place.filesystem.type_name not in ("s3", "gcs"):
        place.filesystem.create_dir(posixpath.dirname(place.path), recursive=True)


def send(source: Path, place: places.Place) -> Record:
    """Write a file of this machine to a store; return what was sent.

    A failure may leave a part of it there.
    """

    def copy() -> Record:
        digest, size = hashlib.sha256(), 0
        make_folder(place)
        with (
            source.open("rb") as reader,
            place.filesystem.open_output_stream(place.path, compression=None) as stream,
        ):
            while chunk := reader.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
                stream.write(chunk)
        return Record(size, digest.hexdigest())

    return calls.ask(place, "write", copy, size_bytes=source.stat().st_size)


def bring(outer: places.Place, name: str, folder: Path, size_bytes: int) -> Record:
    """Write a file of a store to this machine; return what came.

    Args:
        outer: A folder there.
        name: The file's path in it, and in the folder here.
        folder: The folder here.
        size_bytes: How long the file is.
    """
    target, place = names.join(folder, name, f"The store's folder {outer.shown!r}"), outer.join(name)

    def copy() -> Record:
        digest, size = hashlib.sha256(), 0
        with place.filesystem.open_input_stream(place.path, compression=None) as stream, target.open("wb") as writer:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
                writer.write(chunk)
        return Record(size, digest.hexdigest())

    target.parent.mkdir(parents=True, exist_ok=True)
    return calls.ask(place, "read", copy, size_bytes=size_bytes)


def read_optional(place: places.Place) -> bytes | None:
    """Return what is in a small file; None if it is not there."""

    def read() -> bytes:
        with place.filesystem.open_input_stream(place.path, compression=None) as stream:
            found: bytes = stream.read()
        return found

    try:
        return calls.ask(place, "read", read)
    except FileNotFoundError:
        return None


def remove(place: places.Place) -> None:
    """Remove a file, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        calls.ask(place, "remove", lambda: place.filesystem.delete_file(place.path))


def remove_folder(place: places.Place) -> None:
    """Remove a folder with all that is in it, if it is there."""
    fs = extras.load("pyarrow.fs", "A store", "pyarrow", "Run pip install 'hocket[data]'.")

    def delete() -> None:
        try:
            place.filesystem.delete_dir(place.path)
        except OSError:  # of what is not there Google's client says no more than that
            if place.filesystem.get_file_info(place.path).type is not fs.FileType.NotFound:
                raise

    calls.ask(place, "remove", delete)


def move(source: places.Place, target: places.Place) -> None:
    """Give a file another name, by a copy where a store cannot rename."""
    make_folder(target)
    calls.ask(source, "move", lambda: source.filesystem.move(source.path, target.path))


def list_sizes(place: places.Place) -> dict[str, int]:
    """Return the files in a folder and the folders in it, by path relative to it, with their sizes in bytes. There is
    none where there is no folder."""
    fs = extras.load("pyarrow.fs", "A store", "pyarrow", "Run pip install 'hocket[data]'.")
    selector = fs.FileSelector(place.path, allow_not_found=True, recursive=True)
    infos: list[Any] = calls.ask(place, "list", lambda: place.filesystem.get_file_info(selector))
    outer = place.path.strip("/")
    found: dict[str, int] = {}
    for info in infos:
        if info.type == fs.FileType.File:
            path = info.path.removeprefix("/").removeprefix(f"{outer}/" if outer else "")  # some give paths without it
            found[names.check(path, f"The store's folder {place.shown!r}")] = info.size or 0
    return found


def digest(file: Path) -> str:
    """Return the sha256 of what is in a file of this machine."""
    with regular.open_regular(file) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Have a file or a folder of this machine be on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def list_local(folder: Path) -> list[str]:
    """Return the files in a folder of this machine and the folders in it, by path relative to it."""
    found = [
        os.path.relpath(f"{outer}/{name}", folder)
        for outer, _, names in os.walk(folder, followlinks=True)
        for name in names
    ]
    return sorted(found)
