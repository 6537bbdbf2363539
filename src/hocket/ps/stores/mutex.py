"""A lock in shared memory that survives its holder.

It is the C library's robust mutex (POSIX 2008, ``pthread_mutexattr_setrobust``). When a thread ends, or its process is
killed, while it holds the lock, the operating system hands the lock to the next waiter, together with an error code.
That process repairs the dead process's half-done work (see `store`), and goes on. So no process has to detect a dead
owner, and no time-out has to be tuned.

A holder that is only *stopped* keeps the lock. Other processes then wait until their own time-out ends.

Linux only, like the shared memory. The thread that takes a lock must release it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, final

from hocket.ps import errors

MUTEX_BYTES: Final = 64
"""Room for one lock. The largest `pthread_mutex_t` of glibc and musl on a 64-bit machine has 48 bytes."""

_SHARED: Final = 1
_ROBUST: Final = 1

_SLICE_SECONDS: Final = 0.25
"""Seconds that one wait inside the C library lasts at most; a Ctrl-C waits as long. A guess."""

_library: Any = ctypes.CDLL(None)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def is_available() -> bool:
    """Tell whether this system's C library has such locks."""
    return hasattr(_library, "pthread_mutex_consistent") and hasattr(_library, "pthread_mutex_timedlock")


def build(address: int) -> None:
    """Make a free lock at an address of shared memory. The process that made the memory calls this once."""
    attributes = ctypes.create_string_buffer(64)
    _check(_library.pthread_mutexattr_init(attributes))
    _check(_library.pthread_mutexattr_setpshared(attributes, _SHARED))
    _check(_library.pthread_mutexattr_setrobust(attributes, _ROBUST))
    _check(_library.pthread_mutex_init(ctypes.c_void_p(address), attributes))
    _library.pthread_mutexattr_destroy(attributes)


@final
class Mutex:
    """The lock, as one process sees it; to be used in a ``with`` statement.

    Args:
        address: The lock's address in this process.
        name: The name of the guarded thing, for messages.
        timeout_s: The seconds to wait for the lock.
        recover: Returns a function that repairs the guarded state. The process that gets the lock from a dead holder
            calls the function while it holds the lock. None: the guarded state cannot be half done.
    """

    def __init__(self, address: int, name: str, timeout_s: float, recover: Callable[[], Any] | None = None) -> None:
        self._pointer = ctypes.c_void_p(address)
        self._name = name
        self._timeout_s = timeout_s
        self._recover = recover
        self._try = _library.pthread_mutex_trylock
        self._unlock = _library.pthread_mutex_unlock

    def __enter__(self) -> None:
        code = self._try(self._pointer)
        if code == errno.EBUSY:
            code = self._wait()
        if code == 0:
            return
        if code == errno.EOWNERDEAD:
            try:
                if self._recover is not None:
                    self._recover()()
            except BaseException:
                self._unlock(self._pointer)  # never made consistent: the next owners get the error, too
                raise
            _check(_library.pthread_mutex_consistent(self._pointer))
            return
        if code == errno.ENOTRECOVERABLE:
            raise errors.ParameterServerError(
                f"The memory of {self._name} could not be repaired after a process died in the middle of an update. "
                "Start again from a checkpoint."
            )
        _check(code)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _check(self._unlock(self._pointer))

    def _wait(self) -> int:
        end = time.monotonic() + self._timeout_s
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise errors.PushTimeoutError(
                    f"{self._name} has been locked by another process for {self._timeout_s:.0f} s. A worker that was "
                    "stopped in the middle of an update keeps the lock: continue it (SIGCONT) or kill it. A longer "
                    "wait: ParameterServerStrategy(timeout_s=...)."
                )
            until = time.time() + min(left, _SLICE_SECONDS)
            limit = _Timespec(int(until), int(until % 1 * 1e9))
            code: int = _library.pthread_mutex_timedlock(self._pointer, ctypes.byref(limit))
            if code != errno.ETIMEDOUT:
                return code


def _check(code: int) -> None:
    if code:
        raise OSError(code, f"{os.strerror(code)} (in a mutex of shared memory)")
