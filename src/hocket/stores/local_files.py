"""Files of this machine: read in folders that other users may have filled, and written whole or not at all.

Another user may have left a pipe, which waits for ever when it is opened, or a device, which then does something. A
file that is written stays as it was until the new file is whole, also on a full disk.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

MOST_BYTES: Final = 1 << 28
"""The largest file that is read at once: a thousand times a manifest. A sparse file may be as large as the disk."""

BESIDE: Final = ".tmp"
"""The suffix of the name under which `write_synced` writes a file until it is whole."""


# --- reading ----------------------------------------------------------------------------------------------------------


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a regular file for reading."""
    _check_regular(os.stat(path), path)  # noqa: PTH116 (one call for all kinds of paths)
    opened = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb")
    try:
        _check_regular(os.fstat(opened.fileno()), path)  # another file may have the name by now
    except OSError:
        opened.close()
        raise
    return opened


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the contents of a small file, such as a manifest."""
    with open_regular(path) as opened:
        data = opened.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(
            errno.EFBIG, f"The file has more than {MOST_BYTES:,} bytes, so Hocket did not write it", os.fspath(path)
        )
    return data


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a small file in UTF-8; see `read_bytes`.

    Raises:
        ValueError: The file is not UTF-8.
    """
    return read_bytes(path).decode()


def _check_regular(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(
            errno.EINVAL, "It is not a regular file, but a pipe, a device, a socket or a folder", os.fspath(path)
        )


# --- writing ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def replaced(target: Path) -> Iterator[BinaryIO]:
    """Yield a new file that takes the target's name at the end of the block, or is removed if the block fails.

    The file's first name is free and cannot be guessed: a link that another user left there could lead to any file of
    this user.
    """
    beside = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}")
    try:
        with beside.open("xb") as file:
            yield file
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def write(path: Path, text: str) -> None:
    """Write a text in UTF-8, with backslash escapes for characters that UTF-8 lacks.

    Args:
        path: The file. Anything but a regular file, such as ``/dev/stdout``, is written in place.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from hocket.stores import local_files
        >>> path = Path(tempfile.mkdtemp(), "a.txt")
        >>> local_files.write(path, "told")
        >>> path.read_text()
        'told'
    """
    data = text.encode("utf-8", "backslashreplace")
    target = path.resolve()
    if not target.is_file() and target.exists():
        path.write_bytes(data)
        return
    try:
        with replaced(target) as file:
            file.write(data)
    except PermissionError:
        if not target.is_file():
            raise
        target.write_bytes(data)  # this user may write the file, but not its folder


def write_synced(path: Path, data: bytes) -> None:
    """Write a small file that a crash of the machine leaves whole, or as it was before.

    One process at a time may write the file. The next write removes the half-written file of a killed process.
    """
    beside = path.with_name(path.name + BESIDE)
    beside.unlink(missing_ok=True)
    try:
        with beside.open("xb") as file:
            file.write(data)
            sync_file(file)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def sync_file(file: BinaryIO) -> None:
    """Flush an open file and sync it to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Sync a file or a folder of this machine to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
