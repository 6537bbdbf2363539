"""Writes to a descriptor that processes share, without ever waiting for its reader.

A terminal or a pipe counts as writable when it has some room, but a write of more bytes waits. And other processes
write to the same pipe, so the room may be gone. O_NONBLOCK would hold for all processes that share the descriptor, the
user's shell included. So an `Outlet` opens a terminal or a pipe again, with its own flags, and passes MSG_DONTWAIT to
each call on a socket. A write to a file never waits.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from typing import final

from hocket.engine import descriptors

PIECE_BYTES = 4096
"""The most bytes in one write. A pipe takes so many bytes together or not at all, and no other write comes between."""

LAST_SECONDS = 8.0
"""How many seconds the end of a session or a launch waits for a slow reader, such as a pager or a stopped terminal. An
ordinary program would wait without end. Less than `processes.END_SECONDS`, which a driver waits for its guardian."""

_FLAGS = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@final
class Outlet:
    """A descriptor to write to. It stays open when the outlet is closed."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._own: int | None = None
        self._socket: socket.socket | None = None
        try:
            mode = os.fstat(fd).st_mode
        except OSError:  # the descriptor is closed, as every write will report
            return
        with contextlib.suppress(OSError):  # another user's terminal cannot be opened, nor a pipe without a reader
            if stat.S_ISSOCK(mode):
                self._socket = socket.socket(fileno=os.dup(fd))
            elif stat.S_ISFIFO(mode) or os.isatty(fd):
                self._own = os.open(f"/proc/self/fd/{fd}", _FLAGS)

    @property
    def fd(self) -> int:
        """The descriptor to wait for until a write is possible."""
        return self._fd if self._own is None else self._own

    def list_descriptors(self) -> list[int]:
        """Return the descriptors that a fork of this process has to close."""
        return [fd for fd in (self._own, self._socket.fileno() if self._socket else None) if fd is not None]

    def is_writable(self, timeout_s: float) -> bool:
        """Wait until a write is possible, or would fail at once; return whether that happened in time."""
        return descriptors.is_writable(self.fd, timeout_s)

    def write(self, data: bytes | bytearray) -> int:
        """Write the beginning of `data`, as far as there is room: whole lines if possible, `PIECE_BYTES` at most.

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
        """Close the outlet's own descriptors."""
        for fd in self.list_descriptors():
            os.close(fd)
        if self._socket is not None:
            self._socket.detach()
        self._own = self._socket = None
