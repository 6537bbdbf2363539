"""The files of datasets, on the file systems of `hocket.stores.places`: this machine's, S3, Arrow's and fsspec's."""

from __future__ import annotations

import os
import posixpath
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, final

from hocket.core import session
from hocket.data import arrow
from hocket.stores import files as store_files
from hocket.stores import places

FileSystem: TypeAlias = places.FileSystem
"""One of pyarrow's file systems."""

MARK: Final = "_WRITING"
"""The start of a mark's name. A mark is an empty file in a folder of rows that is being written to, or was not written
to its end. Each write has its own."""

GONE: Final = "__HIVE_DEFAULT_PARTITION__"
"""The folder's name, or its part after ``=``, for rows that lack a value of the column."""


@final
@dataclass(frozen=True, slots=True)
class File:
    """A file of a dataset."""

    path: str
    size: int
    root: str
    """The folder that the user named; for a file that the user named, the folder with the file."""
    opening: Mapping[str, Any] | None = None
    """The user's keywords for Arrow's ``open_input_stream``."""


def list_files(
    caller: str,
    paths: object,
    filesystem: object,
    endings: Sequence[str],
    *,
    ignore_missing_paths: bool = False,
) -> tuple[FileSystem, list[File]]:
    """Return the named files, and those in named folders in the order of their names.

    Args:
        caller: The name of the reader, for messages.
        paths: A path, or several, all on one file system.
        filesystem: See `hocket.stores.places.find_place`.
        endings: The endings of names to take from folders; none: all. Files and folders with a leading dot or
            underscore are left out, except `GONE`.
        ignore_missing_paths: Whether to leave out a path that does not exist.
    """
    given: object = [paths] if isinstance(paths, str | os.PathLike) else paths
    if not isinstance(given, Sequence) or not all(isinstance(path, str | os.PathLike) for path in given):
        raise TypeError(
            f"{caller} takes a path or a list of them, but received {paths!r:.80}. Write {caller[:-1]}'folder/')."
        )
    if not given:
        raise ValueError(f"{caller} received no path. Name a file or a folder.")
    found_places = [places.find_place(path, filesystem, caller) for path in given]
    shown = [place.shown for place in found_places]
    if any(place.filesystem != found_places[0].filesystem for place in found_places):
        raise ValueError(f"{caller}: all paths must be on one file system, but received {shown!r:.200}.")
    shared = found_places[0].filesystem
    check_shared(shared, caller)
    found: list[File] = []
    for place, info in zip(found_places, _look(shared, found_places, caller), strict=True):
        found += _list_place(caller, place, info, endings, ignore_missing_paths=ignore_missing_paths)
    if not found:
        raise FileNotFoundError(f"{caller}: none of the paths exists: {shown!r:.200}. Check them.")
    return shared, found


def is_mark(folder: places.Place, info: Any) -> bool:
    """Return whether a file in a folder is the mark of a write."""
    return bool(info.path.startswith(f"{folder.path}/{MARK}-"))


def check_shared(filesystem: FileSystem, caller: str) -> None:
    """Raise if files would lie in one process's memory, where no other process sees them."""
    handler = getattr(filesystem, "handler", None)
    inner = getattr(handler, "fs", None)
    is_own = type(inner).__name__ == "MemoryFileSystem" or filesystem.type_name == "mock"
    if is_own and "parallelism" not in session.get_limits():
        raise ValueError(
            f"{caller}: the file system is in this process's memory, where the session's workers cannot see its "
            "files. Use a folder on a disk, or start the session with hocket.init(engine='inprocess')."
        )


def _look(shared: FileSystem, wanted: Sequence[places.Place], caller: str) -> Iterable[object]:
    try:
        infos: Iterable[object] = shared.get_file_info([place.path for place in wanted])
    except OSError as error:
        raise explain(error, caller, wanted[0].shown) from error
    return infos


def _list_place(
    caller: str, place: places.Place, info: Any, endings: Sequence[str], *, ignore_missing_paths: bool
) -> list[File]:
    fs = arrow.load(caller, "pyarrow.fs")
    if info.type == fs.FileType.NotFound:
        if ignore_missing_paths:
            return []
        where = f" in {str(Path.cwd())!r}" if isinstance(place.filesystem, fs.LocalFileSystem) else ""
        raise FileNotFoundError(f"{caller}: there is no file or folder {place.shown!r}{where}. Check the path.")
    if info.type != fs.FileType.Directory:
        return [File(info.path, info.size or 0, posixpath.dirname(info.path))]
    try:
        inside = store_files.list_entries(place)
    except OSError as error:
        raise explain(error, caller, place.shown) from error
    start = len(place.path.rstrip("/")) + 1
    found = [
        File(one.path, one.size, place.path) for one in inside if one.is_file and _is_data(one.path[start:], endings)
    ]
    if endings and found:
        _tell_left_out(caller, place, [one.path[start:] for one in inside if one.is_file], endings)
    if any(is_mark(place, one) for one in inside):
        warnings.warn(
            f"{caller}: a write to the folder {place.shown!r} is still running or never finished, so rows may be "
            f"missing or repeated. Write the folder again with mode='overwrite', or remove {MARK}-* from it.",
            stacklevel=2,
        )
    if not found:
        kinds = f" whose name ends in {' or '.join(endings)}" if endings else ""
        raise FileNotFoundError(f"{caller}: the folder {place.shown!r} has no file{kinds}. Name the files themselves.")
    return sorted(found, key=lambda one: one.path)


def _tell_left_out(caller: str, place: places.Place, names: Sequence[str], endings: Sequence[str]) -> None:
    """Warn of files whose names have no ending: other programs, such as Spark, may have written data to them."""
    left = [
        name
        for name in names
        if "." not in posixpath.basename(name) and _is_data(name, ()) and not _is_data(name, endings)
    ]
    if left:
        warnings.warn(
            f"{caller}: {len(left)} files in {place.shown!r} are left out, such as {left[0]!r}: their names do not end "
            f"in {' or '.join(endings)}. Pass file_extensions=[''] to read all.",
            stacklevel=2,
        )


def _is_data(path: str, endings: Sequence[str]) -> bool:
    parts = path.split("/")
    is_suspect = path.startswith((".", "_")) or "/." in path or "/_" in path  # quicker than a look at each part
    if is_suspect and any(part.startswith((".", "_")) and "=" not in part and part != GONE for part in parts):
        return False
    name = parts[-1].lower()
    for packed in (".gz", ".bz2", ".zst", ".lz4"):
        name = name.removesuffix(packed)
    return not endings or name.endswith(tuple(endings))


def explain(error: Exception, caller: str, path: str) -> Exception:
    """Return an error that names the file that could not be read, with an error class for its cause."""
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(f"{caller}: the file {path!r} no longer exists: {error}")
    text = str(error)
    refused = isinstance(error, PermissionError) or any(
        word in text
        for word in ("ACCESS_DENIED", "AccessDenied", "Forbidden", "INVALID_ACCESS_KEY", "SIGNATURE_DOES_NOT")
    )
    if refused:
        return PermissionError(
            f"{caller} is not allowed to read {path!r}: {text}. Check the credentials, and the permissions of the "
            "file or bucket."
        )
    if isinstance(error, OSError) and ("AWS Error" in text or "Google Cloud" in text):
        return OSError(f"{caller} cannot reach {path!r}: {text.rstrip('.')}. Check the address and the network.")
    return ValueError(
        f"{caller} cannot read {path!r}: {text.rstrip('.')}. Repair the file, leave it out of the paths, or pass "
        "on_error='skip'."
    )
