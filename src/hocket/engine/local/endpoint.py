"""The inspection endpoint, through which another process of the same user looks at a session: no socket, no file, no
name.

A driver with workers holds a pipe and a memfd. Another process may open the driver's descriptors by Linux's rules on
``/proc/PID/fd`` (the same user, and a process that may be traced). It writes a byte into the pipe; the driver then
writes a snapshot of the session, as JSON, into the memfd, and the other process reads it there. The driver ignores the
contents of the pipe, and the snapshot is data for people: nothing here can change the session.

The memfd starts with a header: a magic word, the driver's pid (a fork of the driver has the descriptors too, and is not
the driver), the number of the pipe's descriptor, a sequence number that is odd while a snapshot is being written, and
the length of the snapshot.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from hocket._base import showing, texts
from hocket.engine import descendants

MEMFD_NAME = "hocket-window"
"""The name of the memfd among a process's descriptors."""

GUARDIAN_NAME = "hocket:guardian"
"""The process name of a guardian, the child of a driver. It has 15 bytes, as many as Linux keeps."""

MAGIC = b"hocket-1"

_HEADER = struct.Struct("<8sIIQQ")

_DATA_AT = 64
"""The offset of the snapshot."""

_POLL_SECONDS = 0.002
"""How often a reader looks for the answer. A driver that waits in `get` answers in less time."""


class InspectionEndpoint:
    """The driver's side. The thread that finds `fd` readable calls `answer`."""

    def __init__(self) -> None:
        self._memfd = os.memfd_create(MEMFD_NAME, os.MFD_CLOEXEC)
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._sequence = 0
        self._write_header(0)

    def answer(self, build_snapshot: Callable[[], dict[str, object]]) -> None:
        """Write a snapshot for the processes that have asked."""
        try:
            os.read(self.fd, 65536)
        except BlockingIOError:
            return
        try:
            data = showing.encode(build_snapshot()).encode()
        except Exception as error:  # noqa: BLE001 (a look at the session must never harm it)
            data = showing.encode({"failure": texts.describe(error, showing.MOST_TEXT)}).encode()
        self._sequence += 1
        self._write_header(0)
        os.pwrite(self._memfd, data, _DATA_AT)
        self._sequence += 1
        self._write_header(len(data))

    def _write_header(self, length: int) -> None:
        header = _HEADER.pack(MAGIC, os.getpid(), self._write_fd, self._sequence, length)
        os.pwrite(self._memfd, header, 0)

    def close(self) -> None:
        """Give the descriptors back."""
        for fd in (self.fd, self._write_fd, self._memfd):
            os.close(fd)


class Found(NamedTuple):
    """A session of this user on this machine."""

    driver_pid: int
    guardian_pid: int


def list_sessions() -> list[Found]:
    """Return the sessions of the calling user that have started workers, in the order in which they did."""
    me = os.getuid()
    found: list[tuple[int, Found]] = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if os.stat(f"/proc/{name}").st_uid != me or _read_name(name) != GUARDIAN_NAME:
                continue
            status = descendants.read_stat(name)
            parent, started = int(status[1]), int(status[19])
        except OSError:  # the process has ended meanwhile
            continue
        if parent > 1:  # else the driver is dead, and the guardian soon will be
            found.append((started, Found(parent, int(name))))
    return [one for _, one in sorted(found)]


def find_session(driver_pid: int) -> Found | None:
    """Return the session of a driver; None if it is another user's or has no workers. It reads the
    driver's children alone, not all processes as `list_sessions` does."""
    try:
        if (
            driver_pid > 1 and os.stat(f"/proc/{driver_pid}").st_uid == os.getuid()
        ):  # process 1 adopts guardians of dead drivers
            for child in list_children(driver_pid):
                if _read_name(child) == GUARDIAN_NAME:
                    return Found(driver_pid, child)
    except OSError:  # the driver has ended meanwhile
        pass
    return None


def list_children(pid: int) -> list[int]:
    """Return the children of a process.

    Raises:
        OSError: The process has ended.
    """
    found: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as children:  # it may have ended
            found += map(int, children.read().split())
    return found


def _read_name(pid: str | int) -> str:
    with open(f"/proc/{pid}/comm") as comm:
        return comm.read().strip()


def ask(driver_pid: int, timeout_s: float) -> dict[str, Any]:
    """Return a snapshot of a session."""
    deadline = time.monotonic() + timeout_s
    memfd = _open_endpoint(driver_pid)
    try:
        _, _, pipe_number, before, _ = _HEADER.unpack(os.pread(memfd, _HEADER.size, 0))
        pipe = os.open(f"/proc/{driver_pid}/fd/{pipe_number}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(pipe, b"?")
        except BlockingIOError:
            pass  # the pipe is full of questions already
        finally:
            os.close(pipe)
        while time.monotonic() < deadline:
            snapshot = _read_snapshot(memfd, before)
            if snapshot is not None:
                return snapshot
            time.sleep(_POLL_SECONDS)
    except (FileNotFoundError, struct.error) as error:
        raise LookupError(f"the driver (pid {driver_pid}) is ending") from error
    finally:
        os.close(memfd)
    raise TimeoutError(f"the driver (pid {driver_pid}) did not answer within {timeout_s:g} s")


def _open_endpoint(driver_pid: int) -> int:
    folder = f"/proc/{driver_pid}/fd"
    for number in os.listdir(folder):
        try:
            if not os.readlink(f"{folder}/{number}").startswith(f"/memfd:{MEMFD_NAME}"):
                continue
            memfd = os.open(f"{folder}/{number}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        header = os.pread(memfd, _HEADER.size, 0)
        if header.startswith(MAGIC) and len(header) == _HEADER.size and _HEADER.unpack(header)[1] == driver_pid:
            return memfd
        os.close(memfd)
    raise LookupError(f"the process {driver_pid} has no Hocket session")


def _read_snapshot(memfd: int, before: int) -> dict[str, object] | None:
    """Return a snapshot newer than `before`; None if there is none yet, or while the driver writes one."""
    _, _, _, sequence, length = _HEADER.unpack(os.pread(memfd, _HEADER.size, 0))
    if sequence == before or sequence % 2:
        return None
    data = os.pread(memfd, length, _DATA_AT)
    if _HEADER.unpack(os.pread(memfd, _HEADER.size, 0))[3] != sequence:
        return None
    snapshot: dict[str, object] = json.loads(data)
    return snapshot
