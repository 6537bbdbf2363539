"""The actor that runs trials one after another: the function in one thread, the search's calls in another."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import socket
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO, final

from hocket.tune import errors
from hocket.tune.worker import orders, programs, trial_session

_copying: dict[str, _Copying] = {}
"""This process's streams, by name. A logging handler that took one in a trial writes to later trials' files, too."""


@final
class TrialActor:
    """An actor that runs trials, in two threads: `run` in the trial's function, `exchange` waiting for its events.

    Args:
        program: The program of a trial.
    """

    def __init__(self, program: programs.Program) -> None:
        self._program = program
        self._events: queue.SimpleQueue[orders.Event] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[orders.Order] = queue.SimpleQueue()
        self._is_known = False

    def run(self, assignment: bytes) -> None:
        """Run a trial; `exchange` returns its events.

        Args:
            assignment: A pickled `orders.Assignment`. If unpickling fails, the trial fails.
        """
        if not self._is_known:
            self._is_known = True
            self._events.put(introduce())
        before = set(threading.enumerate())
        try:
            told: orders.Assignment = pickle.loads(assignment)
        except BaseException as error:  # unpickling runs users' code
            self._events.put(orders.Ended(error, traceback.format_exc()))
            return
        try:
            with _inside(Path(told.experiment, told.folder)):
                ended = run_trial(self._program, told, self._ask, self._events.put)
        except BaseException as error:  # the search waits for an end, whatever happens
            ended = orders.Ended(error, traceback.format_exc())
        is_clean = before.issuperset(threading.enumerate())
        self._events.put(orders.Ended(ended.error, ended.traceback, is_clean))

    def exchange(self, order: int | None = None) -> Sequence[orders.Row]:
        """Answer the trial's last report, if there is an answer; return the trial's next events, at least one.

        Args:
            order: The answer, packed, as the events are.
        """
        if order is not None:
            self._orders.put(orders.unpack_order(order))
        found = [self._events.get()]
        while not _is_waited_for(found[-1]):
            found.append(self._events.get())
        return [orders.pack(event) for event in found]

    def _ask(self, report: orders.Report) -> orders.Order:
        self._events.put(report)
        return self._orders.get()


def _is_waited_for(event: orders.Event) -> bool:
    """Return whether to send an event at once, as the next one comes only after an answer, or much later."""
    return isinstance(event, orders.Ended | orders.Introduction) or (
        isinstance(event, orders.Report) and not event.is_last
    )


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Make a trial's folder the working directory in the block, as Ray does, so trials may use equal file names."""
    try:
        before = Path.cwd()
    except FileNotFoundError:  # another process has removed it
        before = Path("/")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
    except OSError as error:
        raise errors.TuneError(
            f"The trial's folder cannot be created or entered: {str(folder)!r}: {error.strerror or error}. Free disk "
            "space there, or remove a file that has its name."
        ) from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.chdir(before)


def introduce() -> orders.Introduction:
    """Return this process's id and host."""
    return orders.Introduction(os.getpid(), socket.gethostname())


def run_trial(
    program: programs.Program, assignment: orders.Assignment, ask: orders.Exchange, post: orders.Post
) -> orders.Ended:
    """Run a trial, and return its end."""
    try:
        session = trial_session.TrialSession(assignment, ask, post)
        printed = _copied(session.trial_storage.path, assignment.output_files)
        with trial_session.opened(session), printed:
            program.run(session)
        session.rank.finish()
    except trial_session.TrialStopped:
        return orders.Ended()
    except BaseException as error:  # KeyboardInterrupt and SystemExit end the trial, too
        return orders.Ended(error, traceback.format_exc())
    return orders.Ended()


@final
class _Copying:
    """A stream that also writes its text to a file, while there is one. All else is left to the wrapped stream."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.file: TextIO | None = None

    def write(self, text: str) -> int:
        if self.file is not None:
            self.file.write(text)
        return self.stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)


def _find(name: str, stream: TextIO) -> _Copying:
    if name not in _copying or _copying[name].stream is not stream:
        _copying[name] = _Copying(stream)
    return _copying[name]


@contextlib.contextmanager
def _copied(folder: Path, names: tuple[str, str] | None) -> Iterator[None]:
    """Add printed text to files in a folder during the block, and still write it to its streams.

    Text that bypasses the methods of ``sys.stdout`` and ``sys.stderr``, such as C code's, is not added. `names` are the
    files' names for both streams, which may be equal; None for no files.
    """
    if names is None:
        yield
        return
    before = sys.stdout, sys.stderr
    with contextlib.ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        files = {name: stack.enter_context((folder / name).open("a", buffering=1)) for name in names}
        streams = [_find(name, stream) for name, stream in zip(("stdout", "stderr"), before, strict=True)]
        for stream, name in zip(streams, names, strict=True):
            stream.file = files[name]
        sys.stdout, sys.stderr = streams
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
            for stream in streams:
                stream.file = None
