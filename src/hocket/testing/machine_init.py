"""A script that starts a command as process 1 of a machine, and waits for it. `hocket.testing.machines` runs it.

The command sees only its own processes, also in ``/proc``, and no System V memory of others. It dies with this process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

VARIABLE = "HOCKET_MACHINE"
"""The environment variable that has the name of a process's machine."""

_NEW_MOUNTS, _NEW_PIDS, _NEW_IPC = 0x20000, 0x20000000, 0x08000000
_RECURSIVE_AND_PRIVATE = 0x4000 | 0x40000
_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def main() -> None:
    """Start the command, wait for it, and exit with its status."""
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
