"""Waiting for a word of shared memory, in the kernel: Linux's futex, which works between processes that map the same
memory; and the order in which processes see what was written there.

A wait and a wake are a system call each, made through `ctypes`, which lets other threads of the process run meanwhile.

**Order.** A processor of the x86 family shows stores in the order in which they were made, and reads in order; it may
only read before an earlier store of its own is seen. Others, such as aarch64, promise neither. `order` is for the
places that rely on the first, `fence` for those that need the second. Python has no barrier, but its locks have: to
take one is an acquire, to give it back a release. On x86 either is a full barrier. On aarch64 only a release and the
acquire after it are kept in order, so there a fence takes the lock twice: what stands before the first release is seen
before what stands behind the second acquire.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
import threading
from typing import Final

_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
"""The system call's number. From Linux's tables."""

_WAIT = 0
_WAKE = 1
_EVERYBODY = 2**31 - 1

IS_ORDERED: Final = platform.machine() == "x86_64" and os.environ.get("HOCKET_WEAK_MEMORY", "0") != "1"
"""Whether the processor shows stores in their order. ``HOCKET_WEAK_MEMORY=1`` says that it does not."""

_number = _NUMBERS.get(platform.machine()) if sys.platform.startswith("linux") else None
_lock = threading.Lock()


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


if _number is not None:
    _call = ctypes.CDLL(None, use_errno=True).syscall
    _call.argtypes = (
        ctypes.c_long,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_uint32,
        ctypes.POINTER(_Timespec),
        ctypes.c_void_p,
        ctypes.c_uint32,
    )
    _call.restype = ctypes.c_long


def is_available() -> bool:
    """Tell whether this system has it."""
    return _number is not None


def wait(address: int, value: int, timeout_s: float) -> None:
    """Sleep as long as the word at an address has a value, until somebody wakes it or the time is over.

    It may also return early.
    """
    seconds = int(timeout_s)
    left = _Timespec(seconds, int((timeout_s - seconds) * 1e9))
    if _call(_number, address, _WAIT, value, ctypes.byref(left), None, 0) == -1:
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
            raise OSError(code, os.strerror(code))


def wake(address: int) -> None:
    """Wake all who wait for the word at an address."""
    _call(_number, address, _WAKE, _EVERYBODY, None, None, 0)


def fence() -> None:
    """Have all that was read or written before it be over, and seen, before anything is read or written after it."""
    _lock.acquire()
    _lock.release()
    if not IS_ORDERED:
        _lock.acquire()
        _lock.release()


def order() -> None:
    """Have stores before it be seen before stores after it, and reads before it be over before what comes after it."""
    if not IS_ORDERED:
        fence()
