"""Questions to other processes of this machine: what their threads do, and what their parts show; see `stacks`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Final

from hocket._base import showing
from hocket.engine import stacks

STACK_SECONDS = 1.0
"""Seconds that a living process has to write its stack after a question, and then after a signal. It needs milliseconds
unless it is stopped."""

_HEADER: Final = re.compile(rb"pid (\d+) ask (\d+) told (\d+) answer (\d+) to (.)\n")
_HEADER_BYTES: Final = 80


def find_probe(pid: int) -> stacks.StackProbe | None:
    """Return the descriptors through which a process of this user takes questions; None if it has none."""
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # the descriptor was closed meanwhile
                if str(entry.readlink()).startswith(f"/memfd:{stacks.FILE_NAME} "):
                    header = _HEADER.match(entry.read_bytes()[:_HEADER_BYTES])
                    if header is not None and int(header[1]) == pid:  # else the file belongs to the process's parent
                        return stacks.StackProbe(int(entry.name), int(header[2]))
    return None


def fetch(pid: int, probe: stacks.StackProbe, process: int | None = None) -> str:
    """Return the stacks of a process's threads. The process must not be stopped.

    Args:
        pid: The pid of the process, which may be this one.
        probe: The process's probe, from `open_probe`.
        process: A pidfd of the process, so that the signal reaches no other. Default: the signal goes to the pid.
    """
    descriptors = Path(f"/proc/{pid}/fd")
    file = descriptors / str(probe.report)
    try:
        before = file.read_bytes()
        if pid == os.getpid():
            stacks.write_own()
            return _read_answer(file, before, stacks.WHERE, 0.0) or ""
        _ask(descriptors, probe, stacks.WHERE)
        answer = _read_answer(file, before, stacks.WHERE, STACK_SECONDS)
        if answer is None:
            told = descriptors / str(_find_told(file.read_bytes()))
            size = told.stat().st_size
            if process is not None:
                signal.pidfd_send_signal(process, stacks.SIGNAL)
            else:
                os.kill(pid, stacks.SIGNAL)
            answer = _read_rest(told, size)
    except OSError as error:
        return f"(its stack cannot be read: {error})"
    return answer


def sample(pid: int, probe: stacks.StackProbe) -> dict[str, int] | None:
    """Have another process sample its stacks for `stacks.SAMPLE_SECONDS`. The process must not be stopped.

    Returns:
        The counts of samples by stack: its frames, the outermost first, joined by semicolons. None without an answer.
    """
    answer = _fetch(pid, probe, stacks.SAMPLE, stacks.SAMPLE_SECONDS + 4 * STACK_SECONDS)
    if answer is None:
        return None
    lines = [line.rpartition(" ") for line in answer.splitlines()]
    return {stack: int(count) for stack, _, count in lines if count.isdigit()}


def fetch_shown(pid: int, probe: stacks.StackProbe) -> dict[str, list[showing.Facts]] | None:
    """Return the descriptions of another process's parts, by kind; None without an answer. It must not be stopped."""
    answer = _fetch(pid, probe, stacks.SHOWN, STACK_SECONDS)
    try:
        found: dict[str, list[showing.Facts]] | None = None if answer is None else json.loads(answer)
    except ValueError:  # the file holds the answer to another process's question
        return None
    return found


def _fetch(pid: int, probe: stacks.StackProbe, question: stacks.Question, seconds: float) -> str | None:
    """Ask a question, and return the answer; None if none comes in time."""
    descriptors = Path(f"/proc/{pid}/fd")
    file = descriptors / str(probe.report)
    try:
        before = file.read_bytes()
        _ask(descriptors, probe, question)
        return _read_answer(file, before, question, seconds)
    except OSError:
        return None


def _ask(descriptors: Path, probe: stacks.StackProbe, question: stacks.Question) -> None:
    pipe = os.open(descriptors / str(probe.ask), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with contextlib.suppress(BlockingIOError):  # the pipe is full of questions already
            os.write(pipe, question)
    finally:
        os.close(pipe)


def _read_number(answer: bytes) -> int:
    header = _HEADER.match(answer[:_HEADER_BYTES])
    return -1 if header is None else int(header[4])


def _read_question(answer: bytes) -> stacks.Question:
    header = _HEADER.match(answer[:_HEADER_BYTES])
    return b"" if header is None else header[5]


def _find_told(answer: bytes) -> int:
    header = _HEADER.match(answer[:_HEADER_BYTES])
    if header is None:
        raise OSError("the process has not named the file that holds it")
    return int(header[3])


def _read_answer(file: Path, before: bytes, question: stacks.Question, seconds: float) -> str | None:
    """Wait for a complete answer to a question, newer than `before`; return it, or None if it does not come in time."""
    deadline = time.monotonic() + seconds
    while True:
        found = file.read_bytes()
        if _read_number(found) > _read_number(before) and _read_question(found) == question and stacks.END in found:
            return found.partition(b"\n")[2].partition(stacks.END)[0].decode(errors="replace")
        if time.monotonic() > deadline:
            return None
        time.sleep(0.005)


def _read_rest(file: Path, size: int) -> str:
    """Return the text that a signal has added to a file, once the file stops growing: the text comes line by line."""
    deadline = time.monotonic() + STACK_SECONDS
    found, known = b"", -1
    while time.monotonic() < deadline and not (len(found) > size and len(found) == known):
        known = len(found)
        time.sleep(0.03)
        found = file.read_bytes()
    return found[size:].decode(errors="replace")
