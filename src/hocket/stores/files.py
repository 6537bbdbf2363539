"""Single files in a store: written whole or not at all, read, removed and listed, with an end to each wait."""

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

_CHUNK_BYTES: Final = 8 << 20  # sent and digested at a time: a part of an upload to S3 has 5 MiB at least
_MOST_LINKS: Final = 8  # on the way to a file. A guess: with more, folders that name each other have no end


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


def send(source: Path, place: places.Place) -> manifests.Record:
    """Write a file of this machine to a store; return what was sent.

    A failure may leave a part of it there.
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
    """Write a file of a store to this machine; return what came.

    Args:
        outer: A folder there.
        name: The file's path in it, and in the folder here.
        folder: The folder here.
        size_bytes: How long the file is.
    """
    target, place = names.join(folder, name, f"The store's folder {outer.shown!r}"), outer.join(name)

    def copy() -> manifests.Record:
        with place.filesystem.open_input_stream(place.path, compression=None) as stream, target.open("wb") as writer:
            return manifests.copy_stream(stream, writer, chunk_bytes=_CHUNK_BYTES)

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


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """The entries of a folder."""

    path: str
    """As the file system has it."""
    size: int
    """In bytes."""
    is_file: bool
    """Whether it is one; no folder, pipe, device, or link to nothing."""
    is_folder: bool


def list_entries(place: places.Place) -> list[Entry]:
    """Return all that is in a folder and the folders in it; nothing where there is no folder."""
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
    """Give all that is in a folder of this machine; nothing where there is none. A link to a folder that it lies in
    leads nowhere.

    Raises:
        OSError: A folder cannot be read, or there are links in folders that links lead to, many times over.
    """
    real = Path(folder).resolve()
    above = frozenset((found.st_dev, found.st_ino) for found in map(os.stat, (real, *real.parents)))
    waiting: list[tuple[str, frozenset[tuple[int, int]], int]] = [(folder, above, 0)]
    while waiting:
        outer, above, links = waiting.pop()
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, f"More than {_MOST_LINKS} links lie one behind the other", outer)
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
    """Return what a name leads to, or what a link is that leads nowhere; None if it is gone by now."""
    try:
        return one.stat()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        return one.stat(follow_symlinks=False) if one.is_symlink() else None


def list_sizes(place: places.Place) -> dict[str, int]:
    """Return the files in a folder and the folders in it, by path relative to it, with their sizes in bytes. There is
    none where there is no folder."""
    outer = place.path.strip("/")
    found: dict[str, int] = {}
    for one in calls.ask(place, "list", lambda: list_entries(place)):
        if one.is_file:
            path = one.path.removeprefix("/").removeprefix(f"{outer}/" if outer else "")  # some give paths without it
            found[names.check(path, f"The store's folder {place.shown!r}")] = one.size
    return found


def list_local(folder: Path) -> list[str]:
    """Return all but folders in a folder of this machine and the folders in it, by path relative to it."""
    return sorted(os.path.relpath(one.path, folder) for one in walk(str(folder)) if not one.is_folder)
