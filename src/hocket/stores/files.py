"""Single files in a store: written whole or not at all, read, removed and listed, with a bound on each wait."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from hocket import extras
from hocket.stores import calls, manifests, names, places

_CHUNK_BYTES: Final = 8 << 20  # sent and digested at a time: S3 wants at least 5 MiB in a part of an upload
_MOST_LINKS: Final = 8  # on the way to a file; a guess. Without a bound, folders that link to each other have no end


def write(place: places.Place, data: bytes) -> None:
    """Write a small file at once: a reader finds the earlier file or the new one, whole."""
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
    """Make the folder of a file, if the store has folders."""
    if place.filesystem.type_name not in ("s3", "gcs"):
        place.filesystem.create_dir(posixpath.dirname(place.path), recursive=True)


def send(source: Path, place: places.Place) -> manifests.Record:
    """Copy a file of this machine to a store; return the record of the bytes sent.

    A failure may leave a part of the file in the store.
    """

    def copy() -> manifests.Record:
        make_folder(place)
        with (
            source.open("rb") as reader,
            place.filesystem.open_output_stream(place.path, compression=None) as stream,
        ):
            return manifests.copy_stream(reader, stream, chunk_bytes=_CHUNK_BYTES)

    return calls.ask(place, "write", copy, size_bytes=source.stat().st_size)


def bring(outer: places.Place, name: str, folder: Path, size_bytes: int) -> manifests.Record:
    """Copy a file of a store to this machine; return the record of the bytes received.

    Args:
        outer: A folder of the store.
        name: The file's path in `outer`, and in `folder`.
        folder: The folder of this machine.
        size_bytes: The file's size.
    """
    target, place = names.join(folder, name, f"The store's folder {outer.shown!r}"), outer.join(name)

    def copy() -> manifests.Record:
        with place.filesystem.open_input_stream(place.path, compression=None) as stream, target.open("wb") as writer:
            return manifests.copy_stream(stream, writer, chunk_bytes=_CHUNK_BYTES)

    target.parent.mkdir(parents=True, exist_ok=True)
    return calls.ask(place, "read", copy, size_bytes=size_bytes)


def read_optional(place: places.Place) -> bytes | None:
    """Return the contents of a small file; None if there is no file."""

    def read() -> bytes:
        with place.filesystem.open_input_stream(place.path, compression=None) as stream:
            found: bytes = stream.read()
        return found

    try:
        return calls.ask(place, "read", read)
    except FileNotFoundError:
        return None


def remove(place: places.Place) -> None:
    """Remove a file if it exists."""
    with contextlib.suppress(FileNotFoundError):
        calls.ask(place, "remove", lambda: place.filesystem.delete_file(place.path))


def remove_folder(place: places.Place) -> None:
    """Remove a folder and its contents if it exists."""
    fs = extras.load("pyarrow.fs", "A store", "pyarrow", "Run pip install 'hocket[data]'.")

    def delete() -> None:
        try:
            place.filesystem.delete_dir(place.path)
        except OSError:  # Google's client has no other error for a missing folder
            if place.filesystem.get_file_info(place.path).type is not fs.FileType.NotFound:
                raise

    calls.ask(place, "remove", delete)


def move(source: places.Place, target: places.Place) -> None:
    """Rename a file, or copy and remove it if the store cannot rename."""
    make_folder(target)
    calls.ask(source, "move", lambda: source.filesystem.move(source.path, target.path))


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a folder."""

    path: str
    """The path in the file system's own form."""
    size: int
    """In bytes."""
    is_file: bool
    """Whether the entry is a regular file: no folder, pipe, device, or link to nothing."""
    is_folder: bool


def list_entries(place: places.Place) -> list[Entry]:
    """Return all entries of a folder and of the folders below it; none if the folder does not exist."""
    fs = extras.load("pyarrow.fs", "A store", "pyarrow", "Run pip install 'hocket[data]'.")
    if places.is_local(place.filesystem):
        return [*walk(place.path)] if Path(place.path).exists() else []
    selector = fs.FileSelector(place.path, allow_not_found=True, recursive=True)
    kinds = fs.FileType
    return [
        Entry(one.path, one.size or 0, is_file=one.type == kinds.File, is_folder=one.type == kinds.Directory)
        for one in place.filesystem.get_file_info(selector)
    ]


def walk(folder: str) -> Iterator[Entry]:
    """Yield all entries of a folder of this machine and of the folders below it; none if the folder does not exist.

    A link to a folder above the link is left out.

    Raises:
        OSError: A folder cannot be read, or too many links lie one behind the other.
    """
    real = Path(folder).resolve()
    above = frozenset((found.st_dev, found.st_ino) for found in map(os.stat, (real, *real.parents)))
    waiting: list[tuple[str, frozenset[tuple[int, int]], int]] = [(folder, above, 0)]
    while waiting:
        outer, above, links = waiting.pop()
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, f"More than {_MOST_LINKS} links lead to this folder", outer)
        with contextlib.suppress(FileNotFoundError), os.scandir(outer) as found:
            for one in found:
                status = _look(one)
                if status is None:
                    continue
                itself = (status.st_dev, status.st_ino)
                is_file, is_folder = stat.S_ISREG(status.st_mode), stat.S_ISDIR(status.st_mode)
                if is_folder and one.is_symlink() and itself in above:
                    continue
                yield Entry(one.path, status.st_size if is_file else 0, is_file, is_folder)
                if is_folder:
                    waiting.append((one.path, above | {itself}, links + one.is_symlink()))


def _look(one: os.DirEntry[str]) -> os.stat_result | None:
    """Return the status of an entry's target, or of a link without a target; None if the entry is gone by now."""
    try:
        return one.stat()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        return one.stat(follow_symlinks=False) if one.is_symlink() else None


def list_sizes(place: places.Place) -> dict[str, int]:
    """Return the sizes in bytes of all files in a folder and below it, by relative path; none without a folder."""
    outer = place.path.strip("/")
    found: dict[str, int] = {}
    for one in calls.ask(place, "list", lambda: list_entries(place)):
        if one.is_file:
            path = one.path.removeprefix("/").removeprefix(f"{outer}/" if outer else "")  # not all have the slash
            found[names.check(path, f"The store's folder {place.shown!r}")] = one.size
    return found


def list_local(folder: Path) -> list[str]:
    """Return the sorted relative paths of everything but folders in a folder of this machine and below it."""
    return sorted(os.path.relpath(one.path, folder) for one in walk(str(folder)) if not one.is_folder)
