"""Answers to other processes of this machine: what each thread is doing, and what the process's parts show.

A question is a byte in a pipe. A thread answers it while it holds the interpreter's lock, so no frame changes while it
looks. A signal would interrupt a thread without that lock, and a look at the frames of running threads can crash. So a
signal is only for a process that does not answer, because C code keeps the lock.

Each answer replaces the one before, in a file in memory that any process of the same user can find and open. So
questions need neither the driver, nor a known address, nor the right to trace the process, which containers deny.
"""

from __future__ import annotations

import collections
import faulthandler
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Final, final

from hocket._base import showing, texts

SAMPLE_SECONDS = 1.0
"""How many seconds a process takes samples of its stacks."""

HERTZ = 100
"""How many samples it takes per second. Each needs the interpreter's lock for some 50 us."""

MOST_FRAMES = 200
"""The most frames of a sample; the outer frames of a deeper stack are left out."""

MOST_STACKS = 2_000
"""How many different stacks are counted."""

SIGNAL: Final = getattr(signal, "SIGRTMAX", signal.SIGUSR2) - 7
"""The signal on which a process writes its stacks, whatever it does. Programs hardly use this signal."""

_PACKAGE: Final = __file__.removesuffix("engine/stacks.py")
FILE_NAME: Final = "hocket-stacks"
END: Final = b"(end)\n"

Question = bytes
WHERE: Final[Question] = b"?"
SAMPLE: Final[Question] = b"s"
SHOWN: Final[Question] = b"r"
"""The question for the result of `showing.describe`, as JSON."""


@final
@dataclass(frozen=True, slots=True)
class StackProbe:
    """The two descriptors of a process for questions and answers."""

    report: int
    """The file with the answer."""
    ask: int
    """The pipe that takes questions."""


@final
class _Stacks:
    """The thread and the files with which this process answers other processes."""

    def __init__(self) -> None:
        self.users = 0
        """How many callers of `open_probe` still need answers."""
        self.file = os.memfd_create(FILE_NAME, os.MFD_CLOEXEC)
        #: A separate descriptor for stacks that a signal requests, because a late answer may come at the same time.
        self._told = os.memfd_create("hocket-told", os.MFD_CLOEXEC)
        self._questions, self.ask = os.pipe2(os.O_CLOEXEC)
        self._count = 0
        self._lock = threading.Lock()
        self._write(WHERE, b"")
        faulthandler.register(SIGNAL, file=self._told, all_threads=True, chain=False)
        self._thread = threading.Thread(target=self._answer, name="hocket-stacks", daemon=True)
        self._thread.start()

    def write(self) -> None:
        """Write the stacks of all threads."""
        self._write(WHERE)

    def close(self) -> None:
        os.close(self.ask)
        self._thread.join()
        faulthandler.unregister(SIGNAL)
        os.close(self.file)
        os.close(self._told)

    def _answer(self) -> None:
        with os.fdopen(self._questions, "rb", buffering=0) as questions:
            while question := questions.read(1):
                if question == SAMPLE:
                    self._write(question, _sample())
                elif question == SHOWN:
                    self._write(question, _describe())
                else:
                    self._write(WHERE)

    def _write(self, question: Question, answer: bytes | None = None) -> None:
        """Write an answer in place of the one before; None stands for the current stacks."""
        with self._lock:
            os.ftruncate(self.file, 0)
            os.lseek(self.file, 0, os.SEEK_SET)
            facts = os.getpid(), self.ask, self._told, self._count, question
            os.write(self.file, b"pid %d ask %d told %d answer %d to %b\n" % facts)
            self._count += 1
            if answer is None:
                faulthandler.dump_traceback(self.file, all_threads=True)
            else:
                os.write(self.file, answer)
            os.write(self.file, END)


def _describe() -> bytes:
    """Return the descriptions of this process's parts, as JSON."""
    try:
        return showing.encode(showing.describe()).encode()
    except (TypeError, ValueError):  # a description has values that JSON cannot hold, such as keys that are no texts
        return b"{}"


def _sample() -> bytes:
    """Sample the stacks of the other threads for `SAMPLE_SECONDS`; return a line for each stack. A line has the stack's
    frames, the outermost first, joined by semicolons, and the number of its samples."""
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
    where = f"hocket/{file.removeprefix(_PACKAGE)}" if file.startswith(_PACKAGE) else file.rpartition("/")[2]
    return _clean(f"{code.co_qualname} ({where}:{code.co_firstlineno})")


def _clean(text: str) -> str:
    return texts.show_name(text).replace(";", ",").replace("\n", " ")


_stacks: _Stacks | None = None


_lock = threading.Lock()


def open_probe() -> StackProbe:
    """Answer questions of other processes, until `close_probe` was called as often as this function."""
    global _stacks  # noqa: PLW0603 (a process has one handler for a signal)
    with _lock:
        if _stacks is None:
            _stacks = _Stacks()
        _stacks.users += 1
        return StackProbe(_stacks.file, _stacks.ask)


def write_own() -> None:
    """Write the stacks for a question of this process itself."""
    assert _stacks is not None, "it has a probe"
    _stacks.write()


def close_probe() -> None:
    """End one use of `open_probe`; after the last, answer no more."""
    global _stacks  # noqa: PLW0603 (the same)
    with _lock:
        if _stacks is None:
            return  # this process is a fork of the one that opened it
        _stacks.users -= 1
        if not _stacks.users:
            _stacks.close()
            _stacks = None


def _forget() -> None:
    """Forget the answers in a fork, which does not have the thread that answers."""
    global _stacks, _lock
    _stacks, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
