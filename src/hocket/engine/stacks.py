"""Stacks of other processes of this machine: what each of their threads is doing.

A byte in a pipe is the question, which a thread answers that holds the interpreter's lock: nothing moves while it
looks. A signal would interrupt a thread without that lock, and looking at the frames of others that run can crash; so a
signal is for a process that does not answer, because something in C keeps the lock.

The answer takes the place of the one before, in a file in memory that any process of the same user can open: so nobody
has to be told where to ask, needs the driver for it, or may trace the process, which containers forbid.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import os
import re
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, final

from hocket import texts

STACK_SECONDS = 1.0
"""How long a living process may take to write its stack when it is asked, and then when it is told: milliseconds,
unless it is stopped."""

SAMPLE_SECONDS = 1.0
"""How long a process looks at itself when it is asked for samples."""

HERTZ = 100
"""How often it looks in a second. Each look takes the interpreter's lock for some 50 us."""

MOST_FRAMES = 200
"""How deep a sample goes. What called the rest is left out."""

MOST_STACKS = 2_000
"""How many different stacks are told apart."""

_SIGNAL: Final = getattr(signal, "SIGRTMAX", signal.SIGUSR2) - 7
"""Tells a process to write its stack, whatever it does. A signal that programs hardly use."""

_PACKAGE: Final = f"{Path(__file__).parents[1]}/"
_FILE_NAME: Final = "hocket-stacks"
_HEADER: Final = re.compile(rb"pid (\d+) ask (\d+) told (\d+) answer (\d+)\n")
_HEADER_BYTES: Final = 80
_END: Final = b"(end)\n"
_WHERE, _SAMPLE = b"?", b"s"


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
        self.file = os.memfd_create(_FILE_NAME, os.MFD_CLOEXEC)
        #: What is written when a signal tells so. Apart: an answer may come at the same time after all.
        self._told = os.memfd_create("hocket-told", os.MFD_CLOEXEC)
        self._questions, self.ask = os.pipe2(os.O_CLOEXEC)
        self._count = 0
        self._lock = threading.Lock()
        self._write(b"")
        faulthandler.register(_SIGNAL, file=self._told, all_threads=True, chain=False)
        self._thread = threading.Thread(target=self._answer, name="hocket-stacks", daemon=True)
        self._thread.start()

    def write(self) -> None:
        """Write where each thread is."""
        self._write(None)

    def close(self) -> None:
        os.close(self.ask)
        self._thread.join()
        faulthandler.unregister(_SIGNAL)
        os.close(self.file)
        os.close(self._told)

    def _answer(self) -> None:
        with os.fdopen(self._questions, "rb", buffering=0) as questions:
            while question := questions.read(1):
                self._write(_sample() if question == _SAMPLE else None)

    def _write(self, answer: bytes | None) -> None:
        """Write an answer in place of the one before; None for the stacks of now."""
        with self._lock:
            os.ftruncate(self.file, 0)
            os.lseek(self.file, 0, os.SEEK_SET)
            facts = os.getpid(), self.ask, self._told, self._count
            os.write(self.file, b"pid %d ask %d told %d answer %d\n" % facts)
            self._count += 1
            if answer is None:
                faulthandler.dump_traceback(self.file, all_threads=True)
            else:
                os.write(self.file, answer)
            os.write(self.file, _END)


def _sample() -> bytes:
    """Look at the other threads for a while; return a line for each stack: its frames, the outermost first, joined by
    semicolons, and how often it was there."""
    own = threading.get_ident()
    counts: collections.Counter[tuple[int, tuple[CodeType, ...]]] = collections.Counter()
    until = time.monotonic() + SAMPLE_SECONDS
    while time.monotonic() < until:
        for thread, frame in sys._current_frames().items():
            if thread != own:
                found = thread, _walk(frame)
                if found in counts or len(counts) < MOST_STACKS:
                    counts[found] += 1
        time.sleep(1 / HERTZ)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = [
        ";".join([_clean(names.get(thread, "a thread")), *map(_name, codes)]) + f" {count}\n"
        for (thread, codes), count in counts.items()
    ]
    return "".join(lines).encode(errors="replace")


def _walk(frame: FrameType | None) -> tuple[CodeType, ...]:
    codes: list[CodeType] = []
    while frame is not None and len(codes) < MOST_FRAMES:
        codes.append(frame.f_code)
        frame = frame.f_back
    return tuple(reversed(codes))


def _name(code: CodeType) -> str:
    file = code.co_filename
    where = f"hocket/{file.removeprefix(_PACKAGE)}" if file.startswith(_PACKAGE) else Path(file).name
    return _clean(f"{code.co_qualname} ({where}:{code.co_firstlineno})")


def _clean(text: str) -> str:
    return texts.show_name(text).replace(";", ",").replace("\n", " ")


_stacks: _Stacks | None = None


_lock = threading.Lock()


def open_probe() -> StackProbe:
    """Answer those who ask, until `close_probe` was called as often."""
    global _stacks  # noqa: PLW0603 (a process has one handler for a signal)
    with _lock:
        if _stacks is None:
            _stacks = _Stacks()
        _stacks.users += 1
        return StackProbe(_stacks.file, _stacks.ask)


def close_probe() -> None:
    """Answer no more."""
    global _stacks  # noqa: PLW0603 (the same)
    with _lock:
        if _stacks is None:
            return  # this is a fork of who opened it
        _stacks.users -= 1
        if not _stacks.users:
            _stacks.close()
            _stacks = None


def _forget() -> None:
    """In a fork: the thread that answers is not in it."""
    global _stacks, _lock
    _stacks, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def find_probe(pid: int) -> StackProbe | None:
    """Return where a process of this user can be asked; None if it cannot."""
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # it was closed meanwhile
                if str(entry.readlink()).startswith(f"/memfd:{_FILE_NAME} "):
                    header = _HEADER.match(entry.read_bytes()[:_HEADER_BYTES])
                    if header is not None and int(header[1]) == pid:  # and not of who it was forked from
                        return StackProbe(int(entry.name), int(header[2]))
    return None


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
        before = file.read_bytes()
        if pid == os.getpid():
            assert _stacks is not None, "it has a probe"
            _stacks.write()
            return _read_answer(file, before, 0.0) or ""
        _ask(descriptors, probe, _WHERE)
        answer = _read_answer(file, before, STACK_SECONDS)
        if answer is None:
            told = descriptors / str(_find_told(file.read_bytes()))
            size = told.stat().st_size
            if process is not None:
                signal.pidfd_send_signal(process, _SIGNAL)
            else:
                os.kill(pid, _SIGNAL)
            answer = _read_rest(told, size)
    except OSError as error:
        return f"(its stack cannot be read: {error})"
    return answer


def sample(pid: int, probe: StackProbe) -> dict[str, int] | None:
    """Have another process look at itself for `SAMPLE_SECONDS`; it must not be stopped.

    Returns:
        How often it was where: by stack, the outermost frame first, joined by semicolons. None if it does not answer.
    """
    descriptors = Path(f"/proc/{pid}/fd")
    file = descriptors / str(probe.report)
    try:
        before = file.read_bytes()
        _ask(descriptors, probe, _SAMPLE)
        answer = _read_answer(file, before, SAMPLE_SECONDS + STACK_SECONDS)
    except OSError:
        return None
    if answer is None:
        return None
    lines = [line.rpartition(" ") for line in answer.splitlines()]
    return {stack: int(count) for stack, _, count in lines if count.isdigit()}


def _ask(descriptors: Path, probe: StackProbe, question: bytes) -> None:
    pipe = os.open(descriptors / str(probe.ask), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with contextlib.suppress(BlockingIOError):  # it has been asked often enough
            os.write(pipe, question)
    finally:
        os.close(pipe)


def _read_number(answer: bytes) -> int:
    header = _HEADER.match(answer[:_HEADER_BYTES])
    return -1 if header is None else int(header[4])


def _find_told(answer: bytes) -> int:
    header = _HEADER.match(answer[:_HEADER_BYTES])
    if header is None:
        raise OSError("it has not said where it would be written")
    return int(header[3])


def _read_answer(file: Path, before: bytes, seconds: float) -> str | None:
    """Wait for a whole answer that is newer than one; return it, or None if it does not come in time."""
    deadline = time.monotonic() + seconds
    while True:
        found = file.read_bytes()
        if _read_number(found) > _read_number(before) and _END in found:
            return found.partition(b"\n")[2].partition(_END)[0].decode(errors="replace")
        if time.monotonic() > deadline:
            return None
        time.sleep(0.005)


def _read_rest(file: Path, size: int) -> str:
    """Return what a signal has added to a file, when it has not grown for a while: it is written line by line."""
    deadline = time.monotonic() + STACK_SECONDS
    found, known = b"", -1
    while time.monotonic() < deadline and not (len(found) > size and len(found) == known):
        known = len(found)
        time.sleep(0.03)
        found = file.read_bytes()
    return found[size:].decode(errors="replace")
