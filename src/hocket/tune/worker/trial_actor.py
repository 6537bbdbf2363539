"""The actor in which trials run, one after another: the function in one thread, what the search asks in another."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import socket
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import final

from hocket.tune import errors
from hocket.tune.worker import orders, printing, programs, trial_session


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
        printed = printing.copied(session.trial_storage.path, assignment.output_files)
        with trial_session.opened(session), printed:
            program.run(session)
        session.finish()
    except trial_session.TrialStopped:
        return orders.Ended()
    except BaseException as error:  # KeyboardInterrupt and SystemExit are the trial's end too
        return orders.Ended(error, traceback.format_exc())
    return orders.Ended()
