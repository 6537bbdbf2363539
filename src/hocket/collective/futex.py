"""Waits for words of shared memory in the operating system (Linux's futex), and the order of memory operations.

The futex works between processes that map the same memory. A wait and a wake are a system call each, made through
`ctypes`, which lets other threads of the process run meanwhile.

**Order.** An x86 processor makes stores visible in their order, and reads in order; only a read may run ahead of an
earlier store of the same processor. Other processors, such as aarch64, guarantee neither. Code that needs only x86's
guarantees calls `order`; code that must also keep a read behind an earlier store calls `fence`. Python has no barrier,
but its locks contain some: taking a lock is an acquire, and releasing it a release. On x86 each is a full barrier. On
aarch64 only a release and the acquire after it are kept in order. Therefore a fence takes the lock twice there:
operations before the first release become visible before operations after the second acquire.
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
"""The number of the futex system call, by machine. From Linux's tables."""

_WAIT = 0
_WAKE = 1
_EVERYBODY = 2**31 - 1

IS_ORDERED: Final = platform.machine() == "x86_64" and os.environ.get("HOCKET_WEAK_MEMORY", "0") != "1"
"""Whether stores become visible in their order. ``HOCKET_WEAK_MEMORY=1`` makes this False on every processor."""

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
    """Tell whether this system has futexes."""
    return _number is not None


def wait(address: int, value: int, timeout_s: float) -> None:
    """Sleep while the word at an address has a value, until a wake or the time-out.

    The function may also return early.
    """
    seconds = int(timeout_s)
    left = _Timespec(seconds, int((timeout_s - seconds) * 1e9))
    if _call(_number, address, _WAIT, value, ctypes.byref(left), None, 0) == -1:
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
            raise OSError(code, os.strerror(code))


def wake(address: int) -> None:
    """Wake all threads that wait for the word at an address."""
    _call(_number, address, _WAKE, _EVERYBODY, None, None, 0)


def fence() -> None:
    """Complete all earlier reads and writes, and make them visible, before any later read or write."""
    _lock.acquire()
    _lock.release()
    if not IS_ORDERED:
        _lock.acquire()
        _lock.release()


def order() -> None:
    """Keep earlier stores ahead of later stores, and earlier reads ahead of all later operations."""
    if not IS_ORDERED:
        fence()
