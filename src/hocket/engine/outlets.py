"""Writing to a descriptor that others share, without ever waiting for its reader.

A terminal and a pipe say that they are writable when there is some room, and a write of more than that waits; several
processes write to the same pipe, so the room may be gone by then. O_NONBLOCK would hold for all who share the
descriptor, the user's shell among them. So a terminal or a pipe is opened anew, which gives it flags of its own, and on
a socket each call says that it must not wait. A file never lets anybody wait.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from typing import final

from hocket.engine import descriptors

PIECE_BYTES = 4096
"""How much is written at once. A pipe takes that as a whole or not at all, so nobody writes into the middle of it."""

LAST_SECONDS = 8.0
"""How long the end of a session or a launch waits for a reader: a pager that is looked at, a terminal that is stopped.
An ordinary program would wait without end. Below `processes.END_SECONDS`, which a driver waits for its guardian."""

_FLAGS = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@final
class Outlet:
    """A descriptor to write to. It stays open when this is closed."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._own: int | None = None
        self._socket: socket.socket | None = None
        try:
            mode = os.fstat(fd).st_mode
        except OSError:  # it is closed, as every write will say
            return
        with contextlib.suppress(OSError):  # a terminal of another user cannot be opened, nor a pipe that nobody reads
            if stat.S_ISSOCK(mode):
                self._socket = socket.socket(fileno=os.dup(fd))
            elif stat.S_ISFIFO(mode) or os.isatty(fd):
                self._own = os.open(f"/proc/self/fd/{fd}", _FLAGS)

    @property
    def fd(self) -> int:
        """The descriptors to wait for, until something can be written."""
        return self._fd if self._own is None else self._own

    def list_descriptors(self) -> list[int]:
        """Return the descriptors that a fork of this process has to close."""
        return [fd for fd in (self._own, self._socket.fileno() if self._socket else None) if fd is not None]

    def is_writable(self, timeout_s: float) -> bool:
        """Wait until something can be written, or an error says that it cannot; tell whether that came about in
        time."""
        return descriptors.is_writable(self.fd, timeout_s)

    def write(self, data: bytes | bytearray) -> int:
        """Write from the beginning as much as there is room for; whole lines, where there are any.

        Returns:
            How many bytes were written.
        """
        piece = data[: data.rfind(b"\n", 0, PIECE_BYTES) + 1 or PIECE_BYTES]
        if self._socket is not None:
            return self._socket.send(piece, socket.MSG_DONTWAIT)
        if self._own is not None:
            return os.write(self._own, piece)
        if not descriptors.is_writable(self._fd):
            raise BlockingIOError
        return os.write(self._fd, piece)

    def close(self) -> None:
        """Close what was opened for it."""
        for fd in self.list_descriptors():
            os.close(fd)
        if self._socket is not None:
            self._socket.detach()
        self._own = self._socket = None
