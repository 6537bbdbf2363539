"""Stacks of other processes of this machine: what each of their threads is doing.

A byte in a pipe is the question, which a thread answers that holds the interpreter's lock: nothing moves while it
looks. A signal would interrupt a thread without that lock, and looking at the frames of others that run can crash; so a
signal is for a process that does not answer, because something in C keeps the lock.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, final

STACK_SECONDS = 1.0
"""How long a living process may take to write its stack when it is asked, and then when it is told: milliseconds,
unless it is stopped."""

_SIGNAL: Final = getattr(signal, "SIGRTMAX", signal.SIGUSR2) - 7
"""Tells a process to write its stack, whatever it does. A signal that programs hardly use."""


@final
@dataclass(frozen=True, slots=True)
class StackProbe:
    """Where a process can be asked: two of its descriptors."""

    report: int
    """The file that it writes to."""
    ask: int
    """The pipe that takes questions."""


@final
class _Stacks:
    """Has this process write the stacks of its threads to a file when another one asks for them."""

    def __init__(self) -> None:
        self.users = 0
        """How many in this process want it."""
        self.file: IO[bytes] = os.fdopen(os.memfd_create("hocket-stacks"), "wb", buffering=0)
        self._questions, self.ask = os.pipe2(os.O_CLOEXEC)
        faulthandler.register(_SIGNAL, file=self.file, all_threads=True, chain=False)
        self._thread = threading.Thread(target=self._answer, name="hocket-stacks", daemon=True)
        self._thread.start()

    def write(self) -> None:
        faulthandler.dump_traceback(self.file, all_threads=True)

    def close(self) -> None:
        os.close(self.ask)
        self._thread.join()
        faulthandler.unregister(_SIGNAL)
        self.file.close()

    def _answer(self) -> None:
        with os.fdopen(self._questions, "rb", buffering=0) as questions:
            while questions.read(1):
                self.write()


_stacks: _Stacks | None = None


_lock = threading.Lock()


def open_probe() -> StackProbe:
    """Answer those who ask, until `close_probe` was called as often."""
    global _stacks  # noqa: PLW0603 (a process has one handler for a signal)
    with _lock:
        if _stacks is None:
            _stacks = _Stacks()
        _stacks.users += 1
        return StackProbe(_stacks.file.fileno(), _stacks.ask)


def close_probe() -> None:
    """Answer no more."""
    global _stacks  # noqa: PLW0603 (the same)
    with _lock:
        assert _stacks is not None, "it was opened"
        _stacks.users -= 1
        if not _stacks.users:
            _stacks.close()
            _stacks = None


def is_stopped(pid: int) -> bool:
    """Tell whether a process is stopped, as by SIGSTOP; False if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return text.rpartition(b")")[2].split()[0] in (b"T", b"t")


def fetch(pid: int, probe: StackProbe, process: int | None = None) -> str:
    """Ask a process for its stacks; it must not be stopped.

    Args:
        pid: Which. It may be the calling one.
        probe: What it got from `open_probe`.
        process: A pidfd of it, to be sure which one is told by a signal. Default: it is told by its number.
    """
    descriptors = Path(f"/proc/{pid}/fd")
    file = descriptors / str(probe.report)
    try:
        before = file.stat().st_size
        if pid == os.getpid():
            assert _stacks is not None, "it has a probe"
            _stacks.write()
        else:
            (descriptors / str(probe.ask)).write_bytes(b"?")
            if not _grows(file, before):
                if process is not None:
                    signal.pidfd_send_signal(process, _SIGNAL)
                else:
                    os.kill(pid, _SIGNAL)
                _grows(file, before)
            _wait_for_the_end(file)
        return file.read_bytes()[before:].decode(errors="replace")
    except OSError as error:
        return f"(its stack cannot be read: {error})"


def _wait_for_the_end(file: Path) -> None:
    """Wait until a file has not grown for a while: stacks are written line by line."""
    deadline = time.monotonic() + STACK_SECONDS
    size = -1
    while (now := file.stat().st_size) != size and time.monotonic() < deadline:
        size = now
        time.sleep(0.03)


def _grows(file: Path, size: int) -> bool:
    """Wait until a file is larger than it was; return whether it is, in the time that a process has to write its
    stack."""
    deadline = time.monotonic() + STACK_SECONDS
    while file.stat().st_size == size:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
