"""Ranks that do not see the run's folder, on one machine: each has another disk at that path."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

CLONE_NEWNS = 0x20000
MS_REC_PRIVATE = 0x4000 | 1 << 18

libc = ctypes.CDLL(None, use_errno=True)


def cover(path: str, spared: int) -> str:
    """Put an empty disk over a folder, for the calling thread and what it starts; not in the first `spared` processes
    that come.

    The thread is in a mount namespace of its own afterwards, which ends with it.
    """
    for number in range(spared):
        try:
            os.close(os.open(f"{path}-spared-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return path
    check(libc.unshare(CLONE_NEWNS))
    check(libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None))
    check(libc.mount(b"tmpfs", path.encode(), b"tmpfs", 0, b"size=1m"))
    return path


def check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Covered:
    """Travels to a rank, and covers a folder where it arrives: in the thread that will run the training function,
    before it does.

    The folder is made, so that there is something to cover.
    """

    def __init__(self, path: Path, spared: int = 0) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._given = (str(path), spared)

    def __reduce__(self) -> tuple[Any, ...]:
        return cover, self._given


def find_obstacle() -> str:
    """Return why no folder can be covered here; empty if one can. Asks a child, whose namespace ends with it."""
    pid = os.fork()
    if pid == 0:
        code = 0
        if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None):
            code = ctypes.get_errno()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return f"this process may not make a mount namespace: {os.strerror(code)}" if code else ""
