"""The actor in which trials run, one after another: the function in one thread, what the search asks in another."""

from __future__ import annotations

import os
import queue
import socket
import traceback
from collections.abc import Sequence
from typing import final

from hocket.tune import encoding
from hocket.tune.worker import orders, programs, trial_session


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

    def run(self, assignment: orders.Assignment) -> None:
        """Run a trial; `exchange` has what becomes of it."""
        if not self._is_known:
            self._is_known = True
            self._events.put(introduce())
        run_trial(self._program, assignment, self._ask, self._events.put)

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
        return [orders.pack(_make_portable(event)) for event in found]

    def _ask(self, report: orders.Report) -> orders.Order:
        self._events.put(report)
        return self._orders.get()


def _is_waited_for(event: orders.Event) -> bool:
    """Tell whether the search is to hear of an event at once: nothing comes before it has answered, or for a while."""
    return isinstance(event, orders.Ended | orders.Introduction) or (
        isinstance(event, orders.Report) and not event.is_last
    )


def _make_portable(event: orders.Event) -> orders.Event:
    """Return an event whose error can be pickled."""
    if not isinstance(event, orders.Ended) or event.error is None:
        return event
    return orders.Ended(encoding.make_portable(event.error), event.traceback)


def introduce() -> orders.Introduction:
    """Return which process this is."""
    return orders.Introduction(os.getpid(), socket.gethostname())


def run_trial(
    program: programs.Program,
    assignment: orders.Assignment,
    ask: orders.Exchange,
    post: orders.Post,
) -> None:
    """Run a trial, and post how it ended."""
    session = None
    try:
        session = trial_session.TrialSession(assignment, ask, post)
        with trial_session.opened(session):
            program.run(session)
        session.finish()
    except trial_session.TrialStopped:
        post(orders.Ended())
    except BaseException as error:  # KeyboardInterrupt and SystemExit are the trial's end too
        post(orders.Ended(error, traceback.format_exc()))
    else:
        post(orders.Ended())
