"""The one place that decides whether to open a pickle in a file, which runs code of the file's writer.

A file is trusted if the file and all folders and links on its path belong to this user or to root, and no other user
may write to them. A folder with the sticky bit, such as ``/tmp``, may have other writers: they cannot replace this
user's files in it. A group may write if it is this user's own, with the user's name and no other member. Access lists
that the modes of a file system do not show (NFS 4) are not seen.

The credentials of a store such as S3 decide which users may write there, and no client can list these users. So a
pickle at an address that the program names is opened.

A pickle of this process is opened wherever it was kept: its digest identifies it.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import hashlib
import os
import pickle
import pwd
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, final

from hocket import exceptions
from hocket._base import texts
from hocket.stores import local_files, places

TRUSTED: Final = "HOCKET_TRUSTED_FOLDERS"
"""The environment variable that lists folders, separated by colons, in which all writers are trusted."""

_MOST_LINKS: Final = 40  # as in Linux
_ADDRESS_OF_FILE: Final = re.compile(r"(?!\w+:)|(file|local):")

_own: Final[set[bytes]] = set()
"""The digests of the pickles that this process has written where others may write."""


@final
class Opener:
    """An opener of the pickles in a file.

    Args:
        source: The file, or the place in a store that the file is a copy of.
        caller: The call, for the message, as in ``"Tuner.restore()"``.
        trust: Whether all users who may write there are trusted.
    """

    def __init__(self, source: Path | places.Place, caller: str, *, trust: bool = False) -> None:
        self.trust = trust
        self._source, self._caller = source, caller
        self._is_checked = trust

    def check(self, blob: bytes | None = None) -> None:
        """Raise if other users may have written the file; a pickle that this process made always passes."""
        if self._is_checked or (blob is not None and _digest(blob) in _own):
            return
        for path in [self._source] if isinstance(self._source, Path) else _find_local(self._source):
            fault = find_stranger(path)
            if fault is not None and not _is_named(path):
                raise exceptions.UntrustedFolderError(
                    f"{self._caller} would unpickle {str(path)!r}, which can run code of the file's writer, and "
                    f"{fault}. If you trust all users who may write there, pass trust=True, or list the folder in "
                    f"{TRUSTED} in the environment. Otherwise take away the other users' access (chown, chmod go-w), "
                    "or use a folder of your own."
                )
        self._is_checked = True

    def load(self, blob: bytes) -> Any:
        """Return the unpickled object."""
        self.check(blob)
        try:
            return pickle.loads(blob)
        except Exception as error:
            raise exceptions.SerializationError(
                f"{self._caller} cannot unpickle the objects in {self._shown!r}: {texts.describe(error, 500)}. Import "
                "the modules that define their classes, or use another file."
            ) from error

    @property
    def _shown(self) -> str:
        return str(self._source) if isinstance(self._source, Path) else self._source.shown


def note(blob: bytes) -> bytes:
    """Note that this process has made a pickle and may open it again; return the pickle."""
    _own.add(_digest(blob))
    return blob


def load_file(path: str | os.PathLike[str], caller: str, *, trust: bool = False) -> Any:
    """Return the object that is pickled in a file."""
    with local_files.open_regular(path) as file:
        return Opener(Path(path), caller, trust=trust).load(file.read())


def check_entered(folder: Path, remedy: str) -> None:
    """Raise if another user could redirect the files written into a folder with a name that others can guess.

    The folder or an entry is then another user's link or pipe, or the folder is another user's below a sticky folder.

    Args:
        folder: A folder that this process has made or found.
        remedy: Advice for the message, as in ``"Give RunConfig(name=...) another name"``.
    """
    entries = [(folder, folder.lstat())]
    with contextlib.suppress(PermissionError, FileNotFoundError), os.scandir(folder) as found:
        entries += [(Path(one.path), one.stat(follow_symlinks=False)) for one in found]
    is_private = folder.parent.stat().st_mode & stat.S_ISVTX
    for path, status in entries:
        kind = stat.S_IFMT(status.st_mode)
        is_usual = kind == stat.S_IFREG or (kind == stat.S_IFDIR and not (path == folder and is_private))
        if status.st_uid not in (os.geteuid(), 0) and not is_usual and not _is_named(folder):
            raise exceptions.UntrustedFolderError(
                f"Nothing is written to {str(folder)!r}: {str(path)!r} belongs to user {status.st_uid}, this process "
                f"runs as user {os.geteuid()}, and that user could redirect the files. {remedy}; if you "
                f"trust that user, list the folder in {TRUSTED} in the environment."
            )


def find_stranger(path: str | os.PathLike[str]) -> str | None:
    """Return which other user may write or replace a file, as a clause of a message; None if no other user may.

    The existing part of a missing path counts.
    """
    for step, found in _walk(Path(path).absolute()):
        if found.st_uid not in (os.geteuid(), 0):
            return f"{str(step)!r} belongs to user {found.st_uid}, and this process runs as user {os.geteuid()}"
        is_shared = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if stat.S_ISLNK(found.st_mode) or is_shared:
            continue
        if found.st_mode & stat.S_IWOTH:
            return f"everybody may write to {str(step)!r}"
        if found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid):
            return f"the members of group {found.st_gid} may write to {str(step)!r}"
    return None


def _walk(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield each folder, link and file on the way to a path and to the targets of its links."""
    here, left, links = Path("/"), list(reversed(path.parts)), 0
    while left:
        name = left.pop()
        if name == "..":
            here = here.parent
            continue
        step = here / name
        if name == "/":  # the owner of the root could replace Python as well
            here = step
            continue
        try:
            found = step.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return
        yield step, found
        if not stat.S_ISLNK(found.st_mode):
            here = step
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
        left += reversed(step.readlink().parts)


def _is_own_group(number: int) -> bool:
    try:
        user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(number)
    except KeyError:
        return False
    return group.gr_name == user and {*group.gr_mem} <= {user}


def _is_named(path: Path) -> bool:
    """Tell whether the environment lists the path's folder, or one above it, in `TRUSTED`."""
    named = [Path(one).resolve() for one in os.environ.get(TRUSTED, "").split(":") if one]
    return any(path.resolve().is_relative_to(one) for one in named)


def _find_local(place: places.Place) -> list[Path]:
    """Return the files of this machine that contain a store, as in ``zip://a::/tmp/b.zip``."""
    found = [one for one in place.given.split("::")[1:] if _ADDRESS_OF_FILE.match(one)]
    filesystem = place.filesystem
    if hasattr(filesystem, "base_fs") and places.is_local(filesystem.base_fs):
        found.append(f"{filesystem.base_path}/{place.path}")
    inner: Any = getattr(getattr(filesystem, "handler", None), "fs", None)
    if "file" in getattr(getattr(inner, "fs", None), "protocol", ()):
        found.append(f"{inner.path}/{place.path}")
    archive = getattr(getattr(inner, "fo", None), "name", None)
    return [Path(places.strip_address(one)) for one in [*found, archive] if isinstance(one, str)]


def _digest(blob: bytes) -> bytes:
    return hashlib.sha256(blob).digest()
