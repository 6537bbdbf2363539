"""Relays the ranks' output, and keeps its last lines.

Nothing here blocks. Output that the agent's own reader does not take stays here. Then the ranks' pipes fill up and the
ranks wait, as if they wrote to the reader themselves. Meanwhile the agent still sees deaths and signals.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import termios
import time

from hocket.engine import descendants, descriptors, outlets

CHUNK_BYTES = 4096
"""How many bytes to read at once."""

LINE_BYTES = 64 * 1024
"""The length from which a line is relayed in parts."""

STOPPED_SECONDS = 0.5
"""How long a stopped launch waits for a reader at its end; other launches wait `outlets.LAST_SECONDS`."""

HOLD_SECONDS = 0.05
"""How long the start of a line waits for the rest, to keep ranks' lines apart. A prompt or a progress bar has none."""


def open_pipe(target: int, *, is_logged: bool = False) -> tuple[int, int]:
    """Return a descriptor to read, and one that replaces `target` in a rank: of a terminal if `target` is one, else of
    a pipe. Logged output comes through a pipe, too, which keeps colours and progress bars out of the file."""
    if is_logged or not os.isatty(target):
        return os.pipe2(os.O_CLOEXEC)
    ours, theirs = os.openpty()
    with contextlib.suppress(OSError, termios.error):
        settings = termios.tcgetattr(theirs)
        settings[1] &= ~termios.OPOST  # pass output through unchanged: the real terminal processes it
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        size = fcntl.ioctl(target, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    return ours, theirs


class Source:
    """A stream of a rank."""

    def __init__(
        self, fd: int, target: int, prefix: bytes, log_fd: int | None = None, *, is_shown: bool = True
    ) -> None:
        self.fd = fd
        self.target = target
        self.is_shown = is_shown
        self._log_fd = log_fd
        self._prefix = prefix
        self._line = b""
        #: When the start of a line was first held back; None if no line is.
        self.held_since: float | None = None
        self.tail = descendants.Tail()

    def read_tail(self) -> str:
        """Return the last lines of the stream."""
        text = self.tail.read()
        lines = [
            line.rstrip("\r").rpartition("\r")[2] for line in text.rstrip().split("\n")
        ]  # of a progress bar, the last state
        return "\n".join(lines[-descendants.TAIL_LINES :])

    def log(self, data: bytes) -> str:
        """Write to the log file, if there is one. Return the first error as a text, and close the file."""
        try:
            while data and self._log_fd is not None:
                data = data[os.write(self._log_fd, data) :]
        except OSError as error:
            self.close_log()
            return str(error)
        return ""

    def close_log(self) -> None:
        """Close the log file."""
        if self._log_fd is not None:
            os.close(self._log_fd)
            self._log_fd = None

    def get_log(self) -> int | None:
        """Return the log file's descriptor, or None."""
        return self._log_fd

    def split(self, data: bytes, *, is_end: bool = False) -> bytes:
        """Return the output that can be relayed now: whole lines."""
        if not self._prefix:
            whole = self._line + data
            end = len(whole) if is_end or len(whole) > LINE_BYTES else max(whole.rfind(b"\n"), whole.rfind(b"\r")) + 1
            self._line = whole[end:]
            self.held_since = time.monotonic() if self._line else None
            return whole[:end]
        *lines, self._line = (self._line + data).split(b"\n")
        if self._line and (is_end or len(self._line) > LINE_BYTES):
            lines.append(self._line)
            self._line = b""
        return b"".join(self._prefix + line + b"\n" for line in lines)


class Relay:
    """All relayed streams."""

    def __init__(self) -> None:
        self._sources: dict[int, Source] = {}
        self._waiting = {1: bytearray(), 2: bytearray()}
        self._outlets = {target: outlets.Outlet(target) for target in self._waiting}
        self._targets = {outlet.fd: target for target, outlet in self._outlets.items()}

    def add(
        self, fd: int, target: int, prefix: str = "", log_fd: int | None = None, *, is_shown: bool = True
    ) -> Source:
        """Relay a descriptor's data, and write it to a file. The relay closes both.

        Args:
            fd: The descriptor to read.
            target: The stream to write to: 1 or 2.
            prefix: The start of each line there.
            log_fd: The log file.
            is_shown: Whether to relay the data at all.
        """
        os.set_blocking(fd, False)
        source = self._sources[fd] = Source(fd, target, prefix.encode(), log_fd, is_shown=is_shown)
        return source

    def find_release(self) -> float | None:
        """Return when to relay the start of a line without waiting longer; None if no line is held back."""
        sources = [source for source in self._sources.values() if not self._waiting[source.target]]
        held = [source.held_since for source in sources if source.held_since is not None]
        return min(held) + HOLD_SECONDS if held else None

    def release(self, now: float) -> None:
        """Relay the starts of lines that were held back long enough."""
        for source in self._sources.values():
            if self._waiting[source.target]:  # then reads pause, and the rest of the line may be in the pipe
                continue
            if source.held_since is not None and now - source.held_since >= HOLD_SECONDS:
                self._waiting[source.target] += source.split(b"", is_end=True)

    def list_descriptors(self) -> list[int]:
        """Return the descriptors that a fork of this process must close."""
        logs = [source.get_log() for source in self._sources.values()]
        own = [fd for outlet in self._outlets.values() for fd in outlet.list_descriptors()]
        return [*self._sources, *(log for log in logs if log is not None), *own]

    def register(self, poll: select.poll) -> None:
        """Register the events to wait for: for each target, either reads for it or writes to it."""
        for target, waiting in self._waiting.items():
            if waiting:
                poll.register(self._outlets[target].fd, select.POLLOUT)
        for source in self._sources.values():
            if not self._waiting[source.target]:
                poll.register(source.fd, select.POLLIN)

    def handle(self, fd: int) -> None:
        """Read from or write to a ready descriptor; do nothing if it is none of the relay's."""
        if fd in self._targets:
            self._write(self._targets[fd])
        elif fd in self._sources:
            self._read(self._sources[fd])

    def take_rest(self, fd: int) -> None:
        """Read the rest of a dead rank's output, up to the size of a pipe. It stays in memory until it is relayed."""
        for _ in range(32):
            if fd not in self._sources or not descriptors.is_readable(fd):
                return
            self.handle(fd)

    def say(self, text: str) -> None:
        """Write a text to stderr, in order with the ranks' output."""
        self._waiting[2] += text.encode(errors="backslashreplace")

    def drain(self, seconds: float) -> None:
        """Relay the remaining output while a reader takes it, then close the streams. Another process may hold a stream
        open, so it counts as ended when there is nothing to read."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            poll = select.poll()
            self.register(poll)
            ready = poll.poll(20 if any(self._waiting.values()) else 0)
            for fd, _ in ready:
                self.handle(fd)
            if not ready and not any(self._waiting.values()):
                break
        for source in list(self._sources.values()):
            self._close(source)
        while any(self._waiting.values()) and time.monotonic() < deadline:
            for target in [target for target, waiting in self._waiting.items() if waiting]:
                if self._outlets[target].is_writable(0.02):
                    self._write(target)

    def close(self) -> None:
        """Close the descriptors for writing. No output may follow."""
        for outlet in self._outlets.values():
            outlet.close()

    def _read(self, source: Source) -> None:
        try:
            data = os.read(source.fd, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:  # a terminal reports its closed other end like this
            data = b""
        if not data:
            self._close(source)
            return
        source.tail.keep(data)
        if fault := source.log(data):
            self.say(f"hocket run: a file of --log-dir cannot be written any more: {fault}\n")
        if source.is_shown:
            self._waiting[source.target] += source.split(data)

    def _write(self, target: int) -> None:
        waiting = self._waiting[target]
        try:
            del waiting[: self._outlets[target].write(waiting)]
        except BlockingIOError:
            pass
        except OSError:  # there is no reader any more; the tail is still kept
            waiting.clear()

    def _close(self, source: Source) -> None:
        self._waiting[source.target] += source.split(b"", is_end=True)
        del self._sources[source.fd]
        source.close_log()
        os.close(source.fd)
