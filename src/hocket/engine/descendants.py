"""Descendants of a process: how it ends all its children and their children, and finds out why one ended.

This module needs only the standard library, because the parents of workers load little.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

_OOM_SCORE = 500
"""Added to a worker's score for the out-of-memory killer: as if it used half of the machine's memory in addition."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NAME = 15


@functools.cache
def _open_libc() -> Any:
    import ctypes  # here (5 ms), because drivers load this module, too, but call none of the functions that need it

    return ctypes.CDLL(None, use_errno=True)


def adopt() -> None:
    """Make this process the parent of its orphaned descendants, so that none is lost."""
    _open_libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(signal_number: int = signal.SIGKILL) -> None:
    """Have the operating system send this process a signal when its parent dies; 0 cancels that."""
    _open_libc().prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def set_name(name: str) -> None:
    """Set the name of this process that `ps` and `top` show; 15 bytes at most."""
    _open_libc().prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def offer_to_oom_killer() -> None:
    """Have the out-of-memory killer prefer this process to its parent, because its tasks can be tried again."""
    with contextlib.suppress(OSError):
        fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        try:
            os.pwrite(fd, b"%d" % min(1000, int(os.read(fd, 16)) + _OOM_SCORE), 0)
        finally:
            os.close(fd)


def allow_forks() -> None:
    """Silence Python's warning (3.12 and later) of forks in a process with threads: numpy's linear algebra starts
    threads when it is loaded, and handles forks itself."""
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)


def draw_new_random_numbers() -> None:
    """Seed the random generators of numpy and torch in a fork, which would else repeat its siblings' numbers. Python
    seeds its own generator itself."""
    for name, attribute in (("numpy.random", None), ("torch", "default_generator")):
        module: Any = sys.modules.get(name)
        if module is not None:
            (getattr(module, attribute) if attribute else module).seed()


# --- a child, as its parent sees it -----------------------------------------------------------------------------------

TAIL_BYTES = 16 * 1024
"""How many bytes of a child's output are kept."""

TAIL_LINES = 20
"""How many lines of these an error shows."""


class Tail:
    """The last bytes that a child has written."""

    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self._size = 0

    def keep(self, data: bytes) -> None:
        """Append output, and drop the oldest beyond `TAIL_BYTES`."""
        self._parts.append(data)
        self._size += len(data)
        while self._size - len(self._parts[0]) > TAIL_BYTES:
            self._size -= len(self._parts.popleft())

    def read(self) -> str:
        """Return the output as text."""
        return b"".join(self._parts).decode(errors="replace")


def read_stack(fd: int, ours: Iterable[str]) -> str:
    """Return the stack that faulthandler wrote to a file, without the lines that contain one of the texts in `ours`."""
    lines = os.pread(fd, TAIL_BYTES, 0).decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if not any(part in line for part in ours)).strip()


class Ended(NamedTuple):
    """How a child ended."""

    pid: int
    signal_number: int | None
    exit_code: int | None
    peak_rss_bytes: int


def open_wake_pipe() -> tuple[int, int]:
    """Return the two ends of a pipe into which Python writes a byte for each signal, SIGCHLD included."""
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    return wake_read, wake_write


def begin_child(name: str, parent_pid: int) -> None:
    """Prepare a fork: form a process group, die with the parent, and reset the parent's handling of signals."""
    os.setpgid(0, 0)
    offer_to_oom_killer()
    die_with_parent()
    if os.getppid() != parent_pid:  # the parent died before the line above
        os._exit(1)
    set_name(name)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def reap() -> Iterator[Ended]:
    """Yield the children that have ended, adopted ones included."""
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        signal_number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        exit_code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        yield Ended(pid, signal_number, exit_code, usage.ru_maxrss * 1024)


def reap_orphans() -> bool:
    """Reap all children that have ended; return False if no child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def end_all(seconds: float = 5.0) -> None:
    """Kill every descendant, for `seconds` at most. A later round finds processes that dying ones have just started."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for pid in list_descendants(os.getpid()):
            kill(pid)
        if not reap_orphans():
            return
        time.sleep(0.001)


# --- all descendants --------------------------------------------------------------------------------------------------


def list_descendants(root: int) -> list[int]:
    """Return the pids of all processes that descend from `root`, from /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parent = int(read_stat(name)[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    row = list(children.get(root, ()))
    while row:
        pid = row.pop()
        found.append(pid)
        row += children.get(pid, ())
    return found


def read_stat(pid: int | str) -> list[bytes]:
    """Return the fields after the process's name in its /proc/PID/stat: its state, its parent, and so on."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return stat.read().rpartition(b")")[2].split()


def read_state(pid: int) -> str:
    """Return the letter of a process's state, as in ``ps``; empty if there is no such process."""
    try:
        return read_stat(pid)[0].decode()
    except OSError:
        return ""


def is_another_users(pid: int) -> bool:
    """Return whether a process with this pid exists that denies us a look at its descriptors."""
    return os.path.exists(f"/proc/{pid}") and not os.access(f"/proc/{pid}/fd", os.R_OK)


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, for example by SIGSTOP or by a debugger."""
    return read_state(pid) in ("T", "t")


def count_oom_kills() -> int:
    """Return how many processes of this cgroup (or of the machine, without cgroups) the out-of-memory killer has
    ended."""
    try:
        with open("/proc/self/cgroup") as cgroup:
            path = next(line[3:].strip() for line in cgroup if line.startswith("0::"))
        return _read_counter(f"/sys/fs/cgroup{path}/memory.events")
    except (OSError, StopIteration):
        pass
    try:
        return _read_counter("/proc/vmstat")
    except OSError:
        return 0


def _read_counter(path: str) -> int:
    with open(path) as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def kill(pid: int) -> None:
    """Kill a process; do nothing if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """Kill the processes of a group, or only its leader if that has not made the group yet."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        kill(pid)
