"""Passes on the workers' stderr, and keeps the last lines of it.

The relay waits only a moment for a reader of its own stderr. While nobody reads, it reads nothing from living workers:
their pipes fill and they wait, as if they wrote to the stopped terminal themselves. Output of dead workers is kept.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from typing import final

from hocket.engine import descendants, descriptors, outlets

READ_BYTES = 4096
"""The bytes that are read at once."""

LINE_BYTES = 64 * 1024
"""The rest of a line is read before another worker's output, up to so many bytes."""

STUCK_SECONDS = 0.05
"""How long to wait at a time for a reader of stderr. Nothing else is done meanwhile."""

LEFT_BYTES = 16 * 1024 * 1024
"""The bytes of output that are kept while nobody reads stderr."""

MOST_READS = 256
"""How often a dead worker's stderr is read: a pipe holds less, but a grandchild may keep it open, and write on."""


@final
class Stream:
    """The stderr of one worker."""

    __slots__ = ("fd", "tail")

    def __init__(self, fd: int) -> None:
        self.fd: int | None = fd
        """The end of the pipe; None when the pipe has ended, as the number may be another worker's from then on."""
        self.tail = descendants.Tail()

    def read_tail(self) -> str:
        """Return the last lines of the output."""
        return "\n".join(self.tail.read().splitlines()[-descendants.TAIL_LINES :])


@final
class StderrRelay:
    """All workers' streams, and the guardian's own stderr.

    Args:
        poll: The epoll set in which the streams are registered.
    """

    def __init__(self, poll: select.epoll) -> None:
        self._poll = poll
        self._streams: dict[int, Stream] = {}
        self._left = bytearray()
        self._stderr = outlets.Outlet(2)

    @property
    def is_stuck(self) -> bool:
        """Whether output waits for a reader of the guardian's stderr."""
        return bool(self._left)

    def add(self, fd: int) -> Stream:
        """Take over a descriptor, and pass on its output."""
        os.set_blocking(fd, False)
        stream = self._streams[fd] = Stream(fd)
        self._poll.register(fd, select.EPOLLIN)
        return stream

    def list_sources(self) -> list[int]:
        """Return the descriptors of all streams."""
        return list(self._streams)

    def cut_off(self) -> None:
        """Close everything in a fork of this process."""
        self._stderr.close()
        for fd in self._streams:
            os.close(fd)

    def take(self, fd: int) -> None:
        """Read a stream's output, and keep it until it is written; do nothing if the descriptor is no stream's."""
        stream = self._streams.get(fd)
        size = 0
        while stream is not None and size < LINE_BYTES:
            try:
                data = os.read(fd, READ_BYTES)
            except BlockingIOError:  # or the event was for an earlier pipe with this number, closed in the same round
                return
            if not data:
                self.close(stream)
                return
            size += len(data)
            stream.tail.keep(data)
            if len(self._left) < LEFT_BYTES:
                self._left += data
            if data.endswith(b"\n"):
                return

    def write(self, patience_s: float) -> None:
        """Write the kept output, as long as each piece finds room within this time."""
        while self._left and self._write_piece(patience_s):
            pass

    def _write_piece(self, patience_s: float) -> bool:
        """Write some of the output; return whether there was room in time."""
        if not self._stderr.is_writable(patience_s):
            return False
        try:
            del self._left[: self._stderr.write(self._left)]
        except BlockingIOError:  # other processes have written meanwhile
            return False
        except OSError:  # nobody reads stderr any more; the tail is kept all the same
            self._left.clear()
        return True

    def close(self, stream: Stream) -> None:
        """Stop reading a stream."""
        fd, stream.fd = stream.fd, None
        if fd is not None:
            del self._streams[fd]
            self._poll.unregister(fd)
            os.close(fd)

    def drain(self, stream: Stream) -> None:
        """Read the rest of a dead worker's output."""
        for _ in range(MOST_READS):
            if stream.fd is None or not descriptors.is_readable(stream.fd):
                return
            self.take(stream.fd)

    def finish(self, is_waited_for: Callable[[], bool]) -> None:
        """Pass on the rest of the output while it is read, and wait some seconds for a slow reader while
        `is_waited_for`."""
        for stream in list(self._streams.values()):
            self.drain(stream)
            self.write(0)
        deadline = time.monotonic() + outlets.LAST_SECONDS
        while self._left and time.monotonic() < deadline:
            if not self._write_piece(STUCK_SECONDS) and not is_waited_for():
                return
