"""Starts process 1 of a machine, and waits for it.

A script, which is given a command; started by `hocket.testing.machines`.

The command sees its own processes only, in ``/proc`` too, and none of the others' System V memory. It dies with this
process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

VARIABLE = "HOCKET_MACHINE"
"""The environment variable that tells a process that it is on a machine, and on which."""

_NEW_MOUNTS, _NEW_PIDS, _NEW_IPC = 0x20000, 0x20000000, 0x08000000
_RECURSIVE_AND_PRIVATE = 0x4000 | 0x40000
_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def main() -> None:
    """Do it."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_NEW_MOUNTS | _NEW_PIDS | _NEW_IPC))
    _check(libc.mount(b"none", b"/", None, _RECURSIVE_AND_PRIVATE, None))
    pid = os.fork()
    if pid == 0:
        _check(libc.prctl(_DEATH_SIGNAL, signal.SIGKILL))
        _check(libc.mount(b"proc", b"/proc", b"proc", 0, None))
        os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 (a command, not a text)
    os.close(0)
    os.close(1)
    _, status = os.waitpid(pid, 0)
    sys.exit(abs(os.waitstatus_to_exitcode(status)))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
