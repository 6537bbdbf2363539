"""The actor in which trials run, one after another: the function in one thread, what the search asks in another."""

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
"""The streams of this process, by name: what a handler of logging has got in one trial writes to the files of
those after it."""


@final
class TrialActor:
    """Runs trials. It has two threads: `run` is in the trial's function while `exchange` waits for what it reports.

    Args:
        program: What a trial is.
    """

    def __init__(self, program: programs.Program) -> None:
        self._program = program
        self._events: queue.SimpleQueue[orders.Event] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[orders.Order] = queue.SimpleQueue()
        self._is_known = False

    def run(self, assignment: bytes) -> None:
        """Run a trial; `exchange` has what becomes of it.

        Args:
            assignment: An `orders.Assignment`, pickled: what cannot be read here is the trial's error.
        """
        if not self._is_known:
            self._is_known = True
            self._events.put(introduce())
        before = set(threading.enumerate())
        try:
            told: orders.Assignment = pickle.loads(assignment)
        except BaseException as error:  # it is made of what users wrote
            self._events.put(orders.Ended(error, traceback.format_exc()))
            return
        try:
            with _inside(Path(told.experiment, told.folder)):
                ended = run_trial(self._program, told, self._ask, self._events.put)
        except BaseException as error:  # whatever happens, the search waits for an end
            ended = orders.Ended(error, traceback.format_exc())
        is_clean = before.issuperset(threading.enumerate())
        self._events.put(orders.Ended(ended.error, ended.traceback, is_clean))

    def exchange(self, order: int | None = None) -> Sequence[orders.Row]:
        """Answer the trial's last report, if there is an answer; return what it does next, one event or several.

        Args:
            order: The answer, packed, as is what is returned.
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
    """Tell whether the search is to hear of an event at once: nothing comes before it has answered, or for a while."""
    return isinstance(event, orders.Ended | orders.Introduction) or (
        isinstance(event, orders.Report) and not event.is_last
    )


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Have a trial's folder be the working directory in the block, as Ray has it: files with the same name in two
    trials are two files."""
    try:
        before = Path.cwd()
    except FileNotFoundError:  # somebody has removed it
        before = Path("/")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
    except OSError as error:
        raise errors.TuneError(
            f"The trial's folder cannot be made or entered: {str(folder)!r}: {error.strerror or error}. Make room "
            "there, or remove what stands in its way."
        ) from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.chdir(before)


def introduce() -> orders.Introduction:
    """Return which process this is."""
    return orders.Introduction(os.getpid(), socket.gethostname())


def run_trial(
    program: programs.Program, assignment: orders.Assignment, ask: orders.Exchange, post: orders.Post
) -> orders.Ended:
    """Run a trial; return how it ended."""
    try:
        session = trial_session.TrialSession(assignment, ask, post)
        printed = _copied(session.trial_storage.path, assignment.output_files)
        with trial_session.opened(session), printed:
            program.run(session)
        session.finish()
    except trial_session.TrialStopped:
        return orders.Ended()
    except BaseException as error:  # KeyboardInterrupt and SystemExit are the trial's end too
        return orders.Ended(error, traceback.format_exc())
    return orders.Ended()


@final
class _Copying:
    """A stream whose text goes to a file, too, while there is one. Everything else is the stream's."""

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
    """For the duration of a block, add what is printed to files in a folder, beside where it went before. What goes
    past the methods of Python's ``sys.stdout`` and ``sys.stderr``, as from C, does not. The names are those of the
    files for both streams, which may be one; None for none."""
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
