"""The hosts of trials: actors that hold the trials' resources, or the caller's own process.

`TrialPolicy` decides for a crew of actors. Trials wait for room in the order in which the search chooses them. None
overtakes another, so many small trials cannot hold up a large one.

When its trial has ended, an actor runs the next one with the same resources, unless each trial gets its own process. A
trial whose process dies, or that is silent for too long, fails alone.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from hocket import exceptions
from hocket.core import actor, amounts, api
from hocket.crew import contract, crew
from hocket.engine import node
from hocket.tune import encoding, errors
from hocket.tune import trial as trials
from hocket.tune.run import live_trial
from hocket.tune.run import search as searches
from hocket.tune.worker import orders, programs, trial_actor

GRACE_SECONDS: Final = 5.0
"""Seconds in which a trial may reach its next report when the search ends. A guess: it lasts for most steps."""

_LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at stoppers when there are no events."""

_PATIENCE_SECONDS: Final = 2.0
"""Seconds in which a process may start before idle ones make room. A guess: most take a tenth of it."""


_EVENTS: Final = "events"
"""The mark of the call that returns a trial's next events."""


@dataclass(slots=True, eq=False)
class _Process:
    """A trial's process."""

    member: int
    held: Mapping[str, float]
    introduction: orders.Introduction | None = None
    """The process's id and host; None until it has started."""


@dataclass(slots=True, eq=False)
class _Running:
    """A running trial."""

    live: live_trial.LiveTrial
    process: _Process
    begun: float
    """When its process got the trial."""
    heard: float = math.inf
    """When the trial's last event came; infinite until its process has started."""

    def waits_long(self, now: float) -> bool:
        """Return whether the process starts so slowly that it may be waiting for an idle process's resources."""
        return self.process.introduction is None and now - self.begun > _PATIENCE_SECONDS


@final
class TrialPolicy:
    """A crew's policy: which trials run in which actors. It starts trials as long as there is room.

    Args:
        search: The search, which decides about trials.
        build: Starts an actor that holds the given resources.
        total: The amount of each resource.
        reuses: Whether an actor runs one trial after another.
        most: The most trials that run at once.
        deadline: When the search ends, in the clock's seconds; None: when it has nothing left to do.
        timeout_s: Seconds that a trial may be silent; None: no limit.
    """

    def __init__(
        self,
        search: searches.Search,
        build: Callable[[Mapping[str, float]], actor.ActorHandle],
        total: Mapping[str, float],
        *,
        reuses: bool,
        most: int | None,
        deadline: float | None,
        timeout_s: float | None,
    ) -> None:
        self._search, self._build, self._total = search, build, total
        self._reuses, self._most = reuses, most
        self._deadline, self._timeout_s = deadline, timeout_s
        self._members = itertools.count()
        self._running: dict[int, _Running] = {}
        self._idle: list[_Process] = []
        """Processes of trials that have ended, in the order of their ends."""
        self._used: dict[str, float] = {}
        self._next: live_trial.LiveTrial | None = None
        self._kill_at: float | None = None
        self.is_over = False
        """Whether nothing runs, and nothing is left to start."""

    def handle(self, event: contract.Event, now: float) -> Iterator[contract.Action]:
        """Handle an event; see `crew.contract.Policy`."""
        if isinstance(event, contract.Answered):
            yield from self._follow(self._running[event.member], event.value, now)
        elif isinstance(event, contract.TurnBegan):
            yield from self._begin_turn(now)
        elif isinstance(event, contract.TurnEnded):
            yield from self._look(now)
            self._search.step("on_step_end")
        elif isinstance(event, contract.Unplaceable):
            raise event.error
        else:
            running = self._running[event.member]
            yield from self._release(running, is_usable=False)
            self._search.fail(running.live, event.error)

    def find_due(self, now: float) -> float | None:
        """Return when to act at the latest; None if there is no such time."""
        moments = [self._deadline if not self._search.ending else self._kill_at]
        if self._timeout_s is not None:
            heard = min(running.heard for running in self._running.values())
            moments.append(heard + self._timeout_s if math.isfinite(heard) else None)
        if self._search.has_stopper:
            moments.append(now + _LOOK_SECONDS)
        return min([moment for moment in moments if moment is not None], default=None)

    # --- starting -----------------------------------------------------------------------------------------------------

    def _begin_turn(self, now: float) -> Iterator[contract.Action]:
        started = False
        while self._most is None or len(self._running) < self._most:
            if self._next is None or not self._next.waits:  # a scheduler may end a trial that waits for room
                self._next = self._search.choose()
            live = self._next
            if live is None or self._search.ending or not self._has_room(live):
                break
            self._next, started = None, True
            yield from self._start(live, now)
        self.is_over = not (started or self._running)
        yield from self._drop_idle()  # others may be waiting for their resources
        if not self.is_over:
            self._search.step("on_step_begin")

    def _has_room(self, live: live_trial.LiveTrial) -> bool:
        check_feasible(live, self._total)
        return all(
            self._used.get(name, 0.0) + amount <= self._total[name] + 1e-9  # sums of fractions are inexact
            for name, amount in live.resources.items()
            if amount
        )

    def _start(self, live: live_trial.LiveTrial, now: float) -> Iterator[contract.Action]:
        process = next((idle for idle in self._idle if idle.held == live.resources), None)
        if process is None:
            yield from self._drop_idle()
            process = _Process(next(self._members), live.resources)
            yield contract.Start(process.member, functools.partial(self._build, live.resources))
        else:
            self._idle.remove(process)
        running = self._running[process.member] = _Running(live, process, now)
        for name, amount in process.held.items():
            self._used[name] = self._used.get(name, 0.0) + amount
        assignment = encoding.try_pickle(self._search.begin(live))
        if isinstance(assignment, str):
            yield from self._release(running, is_usable=process.introduction is not None)
            self._search.fail(
                live, errors.TuneError(f"The configuration of the trial cannot be sent to its process: {assignment}")
            )
            return
        yield contract.Call(process.member, "run", (assignment,))
        if process.introduction is not None:  # a used process does not introduce itself again
            self._search.handle(live, process.introduction)
        yield self._ask(running, None, now)

    def _drop_idle(self) -> Iterator[contract.Action]:
        while self._idle:
            yield contract.Stop(self._idle.pop().member)

    # --- following ----------------------------------------------------------------------------------------------------

    def _ask(self, running: _Running, order: orders.Order | None, now: float) -> contract.Action:
        process = running.process
        running.heard = now if process.introduction is not None else math.inf
        packed = None if order is None else orders.pack_order(order)
        return contract.Call(process.member, "exchange", (packed,), about=_EVENTS)

    def _follow(self, running: _Running, rows: Sequence[Any], now: float) -> Iterator[contract.Action]:
        order = None
        events = [orders.unpack(row) for row in rows]
        for event in events:
            order = self._search.handle(running.live, event)
            if isinstance(event, orders.Introduction):
                running.process.introduction = event
        if order is not None or isinstance(events[-1], orders.Introduction):
            yield self._ask(running, order, now)
            return
        ended = events[-1]
        assert isinstance(ended, orders.Ended), "what does not wait has ended"
        is_usable = self._reuses and ended.is_clean and ended.error is None
        others = [other for other in self._running.values() if other is not running]
        yield from self._release(running, is_usable=is_usable and not any(other.waits_long(now) for other in others))

    def _release(self, running: _Running, *, is_usable: bool) -> list[contract.Action]:
        process = running.process
        del self._running[process.member]
        for name, amount in process.held.items():
            self._used[name] -= amount
        if is_usable:
            self._idle.append(process)
            return []
        return [contract.Stop(process.member)]

    def _look(self, now: float) -> Iterator[contract.Action]:
        """End the search, and trials, whose time is over."""
        if self._deadline is not None and now >= self._deadline:
            self._search.end("the time budget of the search is over")
        self._search.ask_stopper()
        if self._search.ending and self._kill_at is None:
            self._kill_at = now + GRACE_SECONDS
        for running in list(self._running.values()):
            if self._kill_at is not None and now >= self._kill_at:
                yield from self._release(running, is_usable=False)
                self._search.finish(running.live, trials.Status.TERMINATED, self._search.ending)
            elif self._timeout_s is not None and now >= running.heard + self._timeout_s:
                yield from self._release(running, is_usable=False)
                self._search.fail(
                    running.live,
                    errors.TuneError(
                        f"The trial has not reported for {self._timeout_s:g} s, the limit of "
                        "TuneConfig(trial_timeout_s=...)."
                    ),
                )


def run_in_actors(
    search: searches.Search,
    program: programs.Program,
    *,
    reuses: bool,
    holds: bool,
    most: int | None,
    budget_s: float | None,
    timeout_s: float | None,
) -> None:
    """Run trials in actors until the search ends. None runs on, whatever happens.

    Args:
        search: The search, which decides about trials.
        program: The program of a trial.
        reuses: Whether an actor runs one trial after another.
        holds: Whether an actor holds its trial's resources. A trainer's does not: its ranks do, and Ray's actors lend
            them nothing.
        most: The most trials that run at once.
        budget_s: Seconds until the search ends; None: no limit.
        timeout_s: Seconds that a trial may be silent; None: no limit.
    """
    ref = api.put(program)
    policy = TrialPolicy(
        search,
        lambda held: build_actor(held if holds else {}, ref),
        api.cluster_resources(),
        reuses=reuses,
        most=most,
        deadline=None if budget_s is None else time.monotonic() + budget_s,
        timeout_s=timeout_s,
    )
    team = crew.Crew(policy)
    try:
        team.run()
    finally:
        team.close()


def check_feasible(live: live_trial.LiveTrial, total: Mapping[str, float]) -> None:
    """Raise if the session's resources can never hold a trial."""
    for name, amount in live.resources.items():
        if amount > total.get(name, 0.0) + 1e-9:
            raise exceptions.InfeasibleResourcesError(
                f"Trial {live.trial.trial_id} needs {dict(live.resources)}, but the session has "
                f"{total.get(name, 0.0):g} of {name}. Ask for less with tune.with_resources(...), or start with more: "
                f"{node.write_init_call([name])}.{amounts.ask_for_names([name], total, str.lower)}"
            )


def build_actor(resources: Mapping[str, float], program_ref: object) -> actor.ActorHandle:
    """Start an actor that holds a trial's resources."""
    known = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    options: dict[str, Any] = {known[name]: amount for name, amount in resources.items() if name in known}
    options.setdefault("num_cpus", 0)
    others = {name: amount for name, amount in resources.items() if name not in known}
    # Two threads: see `TrialActor`. No restarts: the search itself tries trials again.
    kind = api.remote(max_concurrency=2, max_restarts=0, resources=others, **options)(trial_actor.TrialActor)
    handle: actor.ActorHandle = kind.remote(program_ref)
    return handle


def run_here(search: searches.Search, program: programs.Program, budget_s: float | None) -> None:
    """Run trials in this process, one after another, so that breakpoints work. Only a report can end a trial."""
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
    """Return an assignment with a copy of its configuration, as a trial in another process would get."""
    blob = encoding.try_pickle(assignment.config)
    if isinstance(blob, str):  # it need not travel here
        return assignment
    return dataclasses.replace(assignment, config=pickle.loads(blob))


@final
class _Here:
    """The carrier of events of a trial that runs in this thread."""

    def __init__(self, search: searches.Search, live: live_trial.LiveTrial, deadline: float | None) -> None:
        self._search, self._live, self._deadline = search, live, deadline
        self.error: BaseException | None = None
        """An error of the search, not of the trial."""

    def ask(self, report: orders.Report) -> orders.Order:
        """Pass a report to the search, and return the answer."""
        self.look()
        return self._handle(report) or orders.Order(orders.Action.STOP)

    def post(self, event: orders.Event) -> None:
        """Pass an event to the search."""
        self._handle(event)

    def _handle(self, event: orders.Event) -> orders.Order | None:
        if self.error is None:
            try:
                return self._search.handle(self._live, event)
            except BaseException as error:  # the search's error: the trial's function must not catch it
                self.error = error
        return None

    def look(self) -> None:
        """End the search if its time is over, or its stopper decides so."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._search.end("the time budget of the search is over")
        self._search.ask_stopper()
