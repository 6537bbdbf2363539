"""Where trials run: in actors, each with what it holds, or in the caller's own process.

`ActorHost` starts trials as long as there is room. Trials wait for room in the order in which the search gives
them, and none overtakes another: a trial that needs much is not kept waiting by many that need little.

An actor whose trial has ended runs the next one that holds the same, unless each trial is to have a process of its own.
A trial whose process dies, or which says nothing for too long, fails alone.
"""

from __future__ import annotations

import dataclasses
import math
import pickle
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from hocket import exceptions
from hocket.core import actor, amounts, api
from hocket.engine import node
from hocket.tune import encoding, errors
from hocket.tune import trial as trials
from hocket.tune.run import live_trial
from hocket.tune.run import search as searches
from hocket.tune.worker import orders, programs, trial_actor

GRACE_SECONDS: Final = 5.0
"""How long a trial may go on to its next report when the search is over. A guess: long enough for a step of most, and
short enough to be waited for."""

_LOOK_SECONDS: Final = 1.0
"""How often stoppers are asked while nothing happens."""

_PATIENCE_SECONDS: Final = 2.0
"""How long a process may take to start before those that are idle make room. A guess: most take a tenth of it."""


_FEW: Final = 8
"""Of so few trials, what else has happened is looked for in the next turn, which costs less than to look twice."""


@dataclass(slots=True, eq=False)
class _Running:
    """A trial that runs."""

    live: live_trial.LiveTrial
    handle: actor.ActorHandle
    ref: Any
    """What has its next events."""
    heard: float
    """When it was heard of last; infinite as long as its process starts."""
    held: Mapping[str, float] = field(default_factory=dict)
    introduction: orders.Introduction | None = None
    """Which process it is; None as long as it starts."""
    begun: float = field(default_factory=time.monotonic)
    """When it was given to its process."""

    @property
    def waits_long(self) -> bool:
        """Whether its process has not started for so long that it may wait for what an idle one holds."""
        return self.introduction is None and time.monotonic() - self.begun > _PATIENCE_SECONDS


@final
class ActorHost:
    """Runs the trials of a search in actors.

    Args:
        search: It decides.
        program: What a trial is.
        reuses: Whether an actor runs one trial after another.
        holds: Whether an actor holds what its trial asks for. A trainer's does not: its ranks do, and on Ray nothing is
            lent to them.
        most: How many trials run at once at most.
        budget_s: Seconds until the search is over; None: as long as it takes.
        timeout_s: Seconds that a trial may say nothing; None: as long as it likes.
    """

    def __init__(
        self,
        search: searches.Search,
        program: programs.Program,
        *,
        reuses: bool,
        holds: bool,
        most: int | None,
        budget_s: float | None,
        timeout_s: float | None,
    ) -> None:
        self._search, self._reuses, self._most, self._holds = search, reuses, most, holds
        self._program_ref = api.put(program)
        self._deadline = None if budget_s is None else time.monotonic() + budget_s
        self._timeout_s = timeout_s
        self._running: dict[Any, _Running] = {}
        self._idle: list[_Running] = []
        """What is left of trials that have ended: their processes, in the order in which they ended."""
        self._total = api.cluster_resources()
        self._used: dict[str, float] = {}
        self._next: live_trial.LiveTrial | None = None
        self._kill_at: float | None = None

    def run(self) -> None:
        """Run trials until the search is over; none is left running, whatever happens."""
        try:
            while self._start_trials() or self._running:
                self._drop_idle()  # what they hold may be what others wait for
                self._search.step("on_step_begin")
                self._wait()
                self._search.step("on_step_end")
        finally:
            for running in list(self._running.values()):
                api.kill(running.handle)
            self._drop_idle()

    # --- starting -----------------------------------------------------------------------------------------------------

    def _start_trials(self) -> bool:
        """Start what there is room for; return whether one was started."""
        started = False
        while self._most is None or len(self._running) < self._most:
            if self._next is None:
                self._next = self._search.choose()
            live = self._next
            if live is None or self._search.ending or not self._has_room(live):
                break
            self._next, started = None, True
            self._start(self._take_actor(live))
        return started

    def _has_room(self, live: live_trial.LiveTrial) -> bool:
        check_feasible(live, self._total)
        return all(
            self._used.get(name, 0.0) + amount <= self._total[name] + 1e-9
            for name, amount in live.resources.items()
            if amount
        )

    def _take_actor(self, live: live_trial.LiveTrial) -> _Running:
        for position, idle in enumerate(self._idle):
            if idle.held == live.resources:
                del self._idle[position]
                return _Running(live, idle.handle, None, 0.0, idle.held, idle.introduction)
        self._drop_idle()
        actor_resources = live.resources if self._holds else {}
        return _Running(live, build_actor(actor_resources, self._program_ref), None, math.inf, live.resources)

    def _drop_idle(self) -> None:
        while self._idle:
            api.kill(self._idle.pop().handle)

    def _start(self, running: _Running) -> None:
        for name, amount in running.held.items():
            self._used[name] = self._used.get(name, 0.0) + amount
        assignment = encoding.try_pickle(self._search.begin(running.live))
        if isinstance(assignment, str):
            self._release(running, is_usable=running.introduction is not None)
            self._search.fail(running.live, errors.TuneError(f"Its configuration cannot be sent to it: {assignment}"))
            return
        running.handle.run.remote(assignment)
        if running.introduction is not None:
            self._search.handle(running.live, running.introduction)
        self._ask(running)

    def _ask(self, running: _Running, order: orders.Order | None = None) -> None:
        running.ref = running.handle.exchange.remote(None if order is None else orders.pack_order(order))
        running.heard = time.monotonic() if running.introduction is not None else math.inf
        self._running[running.ref] = running

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait until something happens, and handle all that has."""
        if not self._running:
            return
        refs = list(self._running)
        ready, _ = api.wait(refs, num_returns=1, timeout=self._find_patience())
        if ready and len(refs) > _FEW:
            ready, _ = api.wait(refs, num_returns=len(refs), timeout=0)
        for ref in ready:
            self._handle(self._running.pop(ref))
        self._look()

    def _find_patience(self) -> float | None:
        """Return how long may be waited at most."""
        moments = [self._deadline if not self._search.ending else self._kill_at]
        if self._timeout_s is not None:
            heard = min(running.heard for running in self._running.values())
            moments.append(heard + self._timeout_s if math.isfinite(heard) else None)
        if self._search.has_stopper:
            moments.append(time.monotonic() + _LOOK_SECONDS)
        known = [moment for moment in moments if moment is not None]
        return max(min(known) - time.monotonic(), 0.0) if known else None

    def _handle(self, running: _Running) -> None:
        try:
            self._follow(running)
        except BaseException:  # a callback has raised, or the log cannot be written
            api.kill(running.handle)
            raise

    def _follow(self, running: _Running) -> None:
        try:
            events = [orders.unpack(row) for row in api.get(running.ref)]
        except exceptions.HocketError as error:
            self._release(running, is_usable=False)
            self._search.fail(running.live, error)
            return
        order = None
        for event in events:
            order = self._search.handle(running.live, event)
            if isinstance(event, orders.Introduction):
                running.introduction = event
        if order is not None or isinstance(events[-1], orders.Introduction):
            self._ask(running, order)
            return
        ended = events[-1]
        assert isinstance(ended, orders.Ended), "what does not wait has ended"
        is_wanted = not any(other.waits_long for other in self._running.values())
        self._release(running, is_usable=self._reuses and ended.is_clean and ended.error is None and is_wanted)

    def _release(self, running: _Running, *, is_usable: bool) -> None:
        for name, amount in running.held.items():
            self._used[name] -= amount
        if is_usable:
            self._idle.append(running)
        else:
            api.kill(running.handle)

    def _look(self) -> None:
        """End what has had its time."""
        now = time.monotonic()
        if self._deadline is not None and now >= self._deadline:
            self._search.end("the time budget of the search is over")
        self._search.ask_stopper()
        if self._search.ending and self._kill_at is None:
            self._kill_at = now + GRACE_SECONDS
        for running in list(self._running.values()):
            if self._kill_at is not None and now >= self._kill_at:
                self._end(running)
                self._search.finish(running.live, trials.Status.TERMINATED, self._search.ending)
            elif self._timeout_s is not None and now >= running.heard + self._timeout_s:
                self._end(running)
                self._search.fail(
                    running.live,
                    errors.TuneError(
                        f"It has not reported for {self._timeout_s:g} s, which is TuneConfig(trial_timeout_s=...)."
                    ),
                )

    def _end(self, running: _Running) -> None:
        del self._running[running.ref]
        self._release(running, is_usable=False)


def check_feasible(live: live_trial.LiveTrial, total: Mapping[str, float]) -> None:
    """Raise for a trial that can never begin."""
    for name, amount in live.resources.items():
        if amount > total.get(name, 0.0) + 1e-9:
            raise exceptions.InfeasibleResourcesError(
                f"Trial {live.trial.trial_id} holds {dict(live.resources)}, but the session has "
                f"{total.get(name, 0.0):g} of {name}. Ask for less with tune.with_resources(...), or start with more: "
                f"{node.write_init_call([name])}.{amounts.ask_for_names([name], total, str.lower)}"
            )


def build_actor(resources: Mapping[str, float], program_ref: object) -> actor.ActorHandle:
    """Start an actor that holds what a trial asks for."""
    known = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    options: dict[str, Any] = {known[name]: amount for name, amount in resources.items() if name in known}
    options.setdefault("num_cpus", 0)
    others = {name: amount for name, amount in resources.items() if name not in known}
    kind = api.remote(max_concurrency=2, max_restarts=0, resources=others, **options)(trial_actor.TrialActor)
    handle: actor.ActorHandle = kind.remote(program_ref)
    return handle


def run_here(search: searches.Search, program: programs.Program, budget_s: float | None) -> None:
    """Run trials in this process, one after another: breakpoints work. Nothing ends a trial but its reports."""
    deadline = None if budget_s is None else time.monotonic() + budget_s
    total = api.cluster_resources()
    while (live := search.choose()) is not None:
        check_feasible(live, total)
        search.step("on_step_begin")
        handle = _Here(search, live, deadline)
        search.handle(live, trial_actor.introduce())
        handle.post(trial_actor.run_trial(program, _copy_config(search.begin(live)), handle.ask, handle.post))
        search.step("on_step_end")
        handle.look()
        if handle.error is not None:
            raise handle.error


def _copy_config(assignment: orders.Assignment) -> orders.Assignment:
    """Give the trial a configuration of its own, as one in another process has it."""
    blob = encoding.try_pickle(assignment.config)
    if isinstance(blob, str):  # here it need not travel
        return assignment
    return dataclasses.replace(assignment, config=pickle.loads(blob))


@final
class _Here:
    """Carries events of a trial that runs in this thread."""

    def __init__(self, search: searches.Search, live: live_trial.LiveTrial, deadline: float | None) -> None:
        self._search, self._live, self._deadline = search, live, deadline
        self.error: BaseException | None = None
        """What came out of the search, and not out of the trial."""

    def ask(self, report: orders.Report) -> orders.Order:
        """Hand over a report; return the answer."""
        self.look()
        return self._handle(report) or orders.Order(orders.Action.STOP)

    def post(self, event: orders.Event) -> None:
        """Hand over an event."""
        self._handle(event)

    def _handle(self, event: orders.Event) -> orders.Order | None:
        if self.error is None:
            try:
                return self._search.handle(self._live, event)
            except BaseException as error:  # not the trial's: it passes by the function
                self.error = error
        return None

    def look(self) -> None:
        """End the search if its time is over."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._search.end("the time budget of the search is over")
        self._search.ask_stopper()
