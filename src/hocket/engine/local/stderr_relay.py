"""Passes on what workers write to stderr, and keeps the last lines of it.

Nothing here waits for who reads our own stderr, but for a moment. While nobody does, nothing of living workers is read:
their pipes fill and they wait, as if they wrote to the stopped terminal themselves. What dead workers left is kept.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from typing import final

from hocket.engine import descendants, descriptors, outlets

READ_BYTES = 4096
"""How much is read at once."""

LINE_BYTES = 64 * 1024
"""The rest of a line is read before another worker's output, up to so much."""

STUCK_SECONDS = 0.05
"""How long to wait at once for somebody to read stderr. Nothing else is done meanwhile."""

LEFT_BYTES = 16 * 1024 * 1024
"""How much is kept of what dead workers wrote while nobody reads stderr."""

MOST_READS = 256
"""How often a dead worker's stderr is read: a pipe has less, but a grandchild may hold it open, and go on."""


@final
class Stream:
    """The stderr of one worker."""

    __slots__ = ("fd", "tail")

    def __init__(self, fd: int) -> None:
        self.fd: int | None = fd
        """Where it arrives; None when that has ended, as the number may be another worker's from then on."""
        self.tail = descendants.Tail()

    def read_tail(self) -> str:
        """Return the last lines that were written."""
        return "\n".join(self.tail.read().splitlines()[-descendants.TAIL_LINES :])


@final
class StderrRelay:
    """All streams, and our own stderr.

    Args:
        poll: Is told of what can be read.
    """

    def __init__(self, poll: select.epoll) -> None:
        self._poll = poll
        self._streams: dict[int, Stream] = {}
        self._left = bytearray()
        self._stderr = outlets.Outlet(2)

    @property
    def is_stuck(self) -> bool:
        """Whether something waits for somebody who reads our stderr."""
        return bool(self._left)

    def add(self, fd: int) -> Stream:
        """Pass on what can be read from a descriptor, which is ours now."""
        os.set_blocking(fd, False)
        stream = self._streams[fd] = Stream(fd)
        self._poll.register(fd, select.EPOLLIN)
        return stream

    def list_sources(self) -> list[int]:
        """Return the descriptors that are read from."""
        return list(self._streams)

    def cut_off(self) -> None:
        """In a fork of this process: let go of everything."""
        self._stderr.close()
        for fd in self._streams:
            os.close(fd)

    def take(self, fd: int) -> None:
        """Read what is there, and keep it until it is written; nothing if the descriptor is none of ours."""
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
        """Write what was read, as long as each piece waits no longer than this for its place."""
        while self._left and self._write_piece(patience_s):
            pass

    def _write_piece(self, patience_s: float) -> bool:
        """Write some of it; tell whether there was room in time."""
        if not self._stderr.is_writable(patience_s):
            return False
        try:
            del self._left[: self._stderr.write(self._left)]
        except BlockingIOError:  # others have written meanwhile
            return False
        except OSError:  # nobody reads stderr any more; the tail is kept all the same
            self._left.clear()
        return True

    def close(self, stream: Stream) -> None:
        """Read no more of it."""
        fd, stream.fd = stream.fd, None
        if fd is not None:
            del self._streams[fd]
            self._poll.unregister(fd)
            os.close(fd)

    def drain(self, stream: Stream) -> None:
        """Read what a dead worker left."""
        for _ in range(MOST_READS):
            if stream.fd is None or not descriptors.is_readable(stream.fd):
                return
            self.take(stream.fd)

    def finish(self, is_waited_for: Callable[[], bool]) -> None:
        """Pass on what dead workers left: as long as it is read, and for some seconds while somebody waits for us."""
        for stream in list(self._streams.values()):
            self.drain(stream)
            self.write(0)
        deadline = time.monotonic() + outlets.LAST_SECONDS
        while self._left and time.monotonic() < deadline:
            if not self._write_piece(STUCK_SECONDS) and not is_waited_for():
                return
