"""Files of folders that another user may have filled: a name there may be a pipe, whose opening waits for ever, or a
device, which does something when it is opened."""

from __future__ import annotations

import errno
import io
import os
import stat
from typing import Final

MOST_BYTES: Final = 1 << 28
"""How large a file may be that is read at once: a thousand times what a manifest has. A sparse file may be as large as
the disk."""


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a file for reading."""
    _check(os.stat(path), path)  # noqa: PTH116 (one call for all kinds of paths)
    opened = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb")
    try:
        _check(os.fstat(opened.fileno()), path)  # another may have the name by now
    except OSError:
        opened.close()
        raise
    return opened


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return what is in a small file, such as a manifest."""
    with open_regular(path) as opened:
        data = opened.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(
            errno.EFBIG, f"It has more than {MOST_BYTES:,} bytes, and is no file of Hocket's", os.fspath(path)
        )
    return data


def read_text(path: str | os.PathLike[str]) -> str:
    """Return what is in a small file of UTF-8; see `read_bytes`.

    Raises:
        ValueError: It is no UTF-8.
    """
    return read_bytes(path).decode()


def _check(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "It is no file, but a pipe, a device, a socket or a folder", os.fspath(path))
