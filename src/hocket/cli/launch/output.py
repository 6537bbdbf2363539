"""Passes on what ranks write, and keeps the last lines of it.

Nothing here waits. What the reader of our own output does not take stays here, and then the ranks' pipes fill up and
they wait, as if they wrote there themselves; meanwhile the agent goes on to see deaths and signals.
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
"""How much is read at once."""

LINE_BYTES = 64 * 1024
"""A line that is longer is passed on in parts."""

STOPPED_SECONDS = 0.5
"""How long the end of a launch waits for a reader if the launch was stopped; else it is `outlets.LAST_SECONDS`."""

HOLD_SECONDS = 0.05
"""How long the beginning of a line waits for its end, so that ranks do not write into each other's lines. A prompt or a
progress bar has none."""


def open_pipe(target: int, *, is_logged: bool = False) -> tuple[int, int]:
    """Return where to read, and what a rank gets in the place of `target`: a terminal if that is one, else a pipe. What
    goes to a file, too, comes through a pipe, so that no colours and no progress bars get there."""
    if is_logged or not os.isatty(target):
        return os.pipe2(os.O_CLOEXEC)
    ours, theirs = os.openpty()
    with contextlib.suppress(OSError, termios.error):
        settings = termios.tcgetattr(theirs)
        settings[1] &= ~termios.OPOST  # what is written is written as it is: the real terminal does the rest
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        size = fcntl.ioctl(target, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    return ours, theirs


class Source:
    """One stream of one rank."""

    def __init__(
        self, fd: int, target: int, prefix: bytes, log_fd: int | None = None, *, is_shown: bool = True
    ) -> None:
        self.fd = fd
        self.target = target
        self.is_shown = is_shown
        self._log_fd = log_fd
        self._prefix = prefix
        self._line = b""
        #: Since when the beginning of a line is held back; None if none is.
        self.held_since: float | None = None
        self.tail = descendants.Tail()

    def read_tail(self) -> str:
        """Return the last lines that were written."""
        text = self.tail.read()
        lines = [
            line.rstrip("\r").rpartition("\r")[2] for line in text.rstrip().split("\n")
        ]  # progress bars: the last state
        return "\n".join(lines[-descendants.TAIL_LINES :])

    def log(self, data: bytes) -> str:
        """Write to the file, if there is one; return what is wrong, once."""
        try:
            while data and self._log_fd is not None:
                data = data[os.write(self._log_fd, data) :]
        except OSError as error:
            self.close_log()
            return str(error)
        return ""

    def close_log(self) -> None:
        """Forget the file."""
        if self._log_fd is not None:
            os.close(self._log_fd)
            self._log_fd = None

    def get_log(self) -> int | None:
        """Return the file's descriptor, if there is one."""
        return self._log_fd

    def split(self, data: bytes, *, is_end: bool = False) -> bytes:
        """Return what can be passed on now: whole lines."""
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
    """All streams that go through us."""

    def __init__(self) -> None:
        self._sources: dict[int, Source] = {}
        self._waiting = {1: bytearray(), 2: bytearray()}
        self._outlets = {target: outlets.Outlet(target) for target in self._waiting}
        self._targets = {outlet.fd: target for target, outlet in self._outlets.items()}

    def add(
        self, fd: int, target: int, prefix: str = "", log_fd: int | None = None, *, is_shown: bool = True
    ) -> Source:
        """Pass on what can be read from a descriptor, and write it to a file; both are ours now.

        Args:
            fd: Where to read.
            target: Where to write: 1 or 2.
            prefix: What each line begins with there.
            log_fd: The file.
            is_shown: Whether it is passed on at all.
        """
        os.set_blocking(fd, False)
        source = self._sources[fd] = Source(fd, target, prefix.encode(), log_fd, is_shown=is_shown)
        return source

    def find_release(self) -> float | None:
        """Return when the beginning of a line is not to be held back any longer; None if none is."""
        sources = [source for source in self._sources.values() if not self._waiting[source.target]]
        held = [source.held_since for source in sources if source.held_since is not None]
        return min(held) + HOLD_SECONDS if held else None

    def release(self, now: float) -> None:
        """Pass on what has been held back long enough."""
        for source in self._sources.values():
            if self._waiting[source.target]:  # then nothing is read, and the rest of the line may be there
                continue
            if source.held_since is not None and now - source.held_since >= HOLD_SECONDS:
                self._waiting[source.target] += source.split(b"", is_end=True)

    def list_descriptors(self) -> list[int]:
        """Return the descriptors that a fork of this process has to close."""
        logs = [source.get_log() for source in self._sources.values()]
        own = [fd for outlet in self._outlets.values() for fd in outlet.list_descriptors()]
        return [*self._sources, *(log for log in logs if log is not None), *own]

    def register(self, poll: select.poll) -> None:
        """Say what to wait for: either to read for a target, or to write to it."""
        for target, waiting in self._waiting.items():
            if waiting:
                poll.register(self._outlets[target].fd, select.POLLOUT)
        for source in self._sources.values():
            if not self._waiting[source.target]:
                poll.register(source.fd, select.POLLIN)

    def handle(self, fd: int) -> None:
        """Do what can be done with a descriptor that is ready; nothing if it is none of ours."""
        if fd in self._targets:
            self._write(self._targets[fd])
        elif fd in self._sources:
            self._read(self._sources[fd])

    def take_rest(self, fd: int) -> None:
        """Read what a dead rank left in its pipe, as much as a pipe holds; what nobody takes waits in our memory."""
        for _ in range(32):
            if fd not in self._sources or not descriptors.is_readable(fd):
                return
            self.handle(fd)

    def say(self, text: str) -> None:
        """Write to stderr, in order with the ranks' output."""
        self._waiting[2] += text.encode(errors="backslashreplace")

    def drain(self, seconds: float) -> None:
        """Pass on what is there, as long as somebody takes it; then forget the streams. Another process may hold one
        open: the end is where there is nothing to read now."""
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
        """Close what was opened to write; there is nothing left to say."""
        for outlet in self._outlets.values():
            outlet.close()

    def _read(self, source: Source) -> None:
        try:
            data = os.read(source.fd, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:  # so a terminal says that nobody holds its other end
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
        except OSError:  # nobody reads any more; the tail is kept all the same
            waiting.clear()

    def _close(self, source: Source) -> None:
        self._waiting[source.target] += source.split(b"", is_end=True)
        del self._sources[source.fd]
        source.close_log()
        os.close(source.fd)
