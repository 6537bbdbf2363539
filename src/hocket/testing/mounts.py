"""Folders that only one thread, or one machine made of namespaces, sees."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

_NEW_MOUNTS, _RECURSIVE_AND_PRIVATE = 0x20000, 0x4000 | 0x40000
"""CLONE_NEWNS of unshare(2); MS_REC and MS_PRIVATE of mount(2)."""


def hide(paths: Sequence[str]) -> None:
    """Replace folders by private empty ones for this thread, and for the processes that it starts from now on.

    Raises:
        OSError: This thread may not mount.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare"):
        raise OSError("this system has no unshare(2)")
    _check_call(libc.unshare(_NEW_MOUNTS), "unshare")
    _check_call(libc.mount(b"none", b"/", None, _RECURSIVE_AND_PRIVATE, None), "mount")
    for path in paths:
        _check_call(libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, None), path)


def _check_call(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
