"""Descendants of a process: how it ends all that it has started, and theirs, and learns why one ended.

Needs nothing but the standard library, as the parents of workers load little.
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
"""Added to a worker's score: it counts as if it used half of the machine's memory more than it does."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NAME = 15


@functools.cache
def _open_libc() -> Any:
    import ctypes  # here, because drivers load this module too, and call none of its functions that need it (5 ms)

    return ctypes.CDLL(None, use_errno=True)


def adopt() -> None:
    """Become the parent of every descendant whose own parent dies, so that none is lost."""
    _open_libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(signal_number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent dies; 0 takes that back."""
    _open_libc().prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def set_name(name: str) -> None:
    """Name this process, as `ps` and `top` show it; 15 bytes at most."""
    _open_libc().prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def offer_to_oom_killer() -> None:
    """Let the kernel, out of memory, rather end this process than its parent: its work can be tried again."""
    with contextlib.suppress(OSError):
        fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        try:
            os.pwrite(fd, b"%d" % min(1000, int(os.read(fd, 16)) + _OOM_SCORE), 0)
        finally:
            os.close(fd)


def allow_forks() -> None:
    """Have Python (3.12 and later) not warn of forks beside threads: numpy's linear algebra starts some when it is
    loaded, and sees to forks itself."""
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)


def draw_new_random_numbers() -> None:
    """In a fork: seed what it would otherwise share with its siblings. Python's own generator does so by itself."""
    for name, attribute in (("numpy.random", None), ("torch", "default_generator")):
        module: Any = sys.modules.get(name)
        if module is not None:
            (getattr(module, attribute) if attribute else module).seed()


# --- a child, as its parent sees it -----------------------------------------------------------------------------------

TAIL_BYTES = 16 * 1024
"""Bytes kept of what a child has written."""

TAIL_LINES = 20
"""Lines of them that an error shows."""


class Tail:
    """The last of what a child has written."""

    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self._size = 0

    def keep(self, data: bytes) -> None:
        """Remember this, and forget what is too long ago."""
        self._parts.append(data)
        self._size += len(data)
        while self._size - len(self._parts[0]) > TAIL_BYTES:
            self._size -= len(self._parts.popleft())

    def read(self) -> str:
        """Return it as text."""
        return b"".join(self._parts).decode(errors="replace")


def read_stack(fd: int, ours: Iterable[str]) -> str:
    """Return what faulthandler wrote to a file, without the lines that have one of these parts."""
    lines = os.pread(fd, TAIL_BYTES, 0).decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if not any(part in line for part in ours)).strip()


class Ended(NamedTuple):
    """How a child ended."""

    pid: int
    signal_number: int | None
    exit_code: int | None
    peak_rss_bytes: int


def open_wake_pipe() -> tuple[int, int]:
    """Return the two ends of a pipe in which a byte comes with each signal, SIGCHLD among them."""
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    return wake_read, wake_write


def begin_child(name: str, parent_pid: int) -> None:
    """In a fork: form a group, die with the parent, and forget how the parent hears of signals."""
    os.setpgid(0, 0)
    offer_to_oom_killer()
    die_with_parent()
    if os.getppid() != parent_pid:  # it has died before the line above
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
    """Forget those that have ended; False if there is no child left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def end_all(seconds: float = 5.0) -> None:
    """Kill every descendant: what a dying process has just started is found in the next round."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for pid in list_descendants(os.getpid()):
            kill(pid)
        if not reap_orphans():
            return
        time.sleep(0.001)


# --- all of them ------------------------------------------------------------------------------------------------------


def list_descendants(root: int) -> list[int]:
    """Return the pids of all processes that descend from `root`, by a look into /proc."""
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
    """Return what the system says of a process behind its name: its state, its parent, and more."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return stat.read().rpartition(b")")[2].split()


def read_state(pid: int) -> str:
    """Return the letter of a process's state, as ``ps`` shows it; empty if there is none."""
    try:
        return read_stat(pid)[0].decode()
    except OSError:
        return ""


def is_another_users(pid: int) -> bool:
    """Tell whether there is a process of that number whose descriptors we may not look at."""
    return os.path.exists(f"/proc/{pid}") and not os.access(f"/proc/{pid}/fd", os.R_OK)


def is_stopped(pid: int) -> bool:
    """Tell whether somebody has stopped a process, with SIGSTOP for example, or by a debugger."""
    return read_state(pid) in ("T", "t")


def count_oom_kills() -> int:
    """Return how many processes of this cgroup (or of the machine, without cgroups) ran out of memory and were
    killed."""
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
    """Kill a process; nothing if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """Kill the processes of a group, or its leader if it has not made the group yet."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        kill(pid)
