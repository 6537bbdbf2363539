"""A scheduler in simulated time: its decisions about trials whose curves are known.

A search takes hours, but its scheduler's decisions take microseconds. Given the curves, a heap of events replaces the
workers. Each step of a trial ends at a time that its cost determines. The scheduler then sees the report, and the
simulation carries out its decision, as a search would. Thousands of trials take seconds, with the same result each
time.

The rules:

- As long as fewer than `max_pending` trials are pending, the next is proposed. Then, while workers are free, the
  scheduler chooses a trial to run. If it names none, nothing runs, and no trial is left to propose, paused trials end.
- Each report comes with a checkpoint. A paused trial goes on from it at once. A trial that exploits another goes on
  from the other's checkpoint, steps and seconds; if the scheduler pauses it, it waits before that.
- Events of the same time come in the order in which their steps began.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, final

from hocket.tune import trial as trials
from hocket.tune.schedulers import contract

Value: TypeAlias = float | Mapping[str, Any] | Exception
"""The outcome of a step: the metric's value, a dict (the report), or the error that makes the trial fail."""
Curve: TypeAlias = Sequence[Value] | Callable[[dict[str, Any], int, Any], tuple[Value, Any] | None]
"""The values of a trial's steps, or a function ``(config, step, state) -> (value, new state)``. `step` counts from 1.
The function returns None if the trial ended before that step, and must not change `state` in place."""
Kind: TypeAlias = Literal["add", "start", "report", "pause", "exploit", "stop", "complete", "error", "remove"]


@final
@dataclass(frozen=True, slots=True)
class Event:
    """An event in a trial's life."""

    seconds: float
    """The simulated time."""
    number: int
    """The trial's number."""
    kind: Kind
    """The trial was proposed ("add"), began or went on ("start"), reported, was paused, or took another's checkpoint;
    or the scheduler stopped it, it returned ("complete"), it failed, or it ended with nothing else left ("remove")."""
    step: int
    """The trial's step count at the event."""


@final
@dataclass(slots=True, eq=False)
class SimulatedTrial:
    """A trial and its outcome."""

    trial: trials.Trial
    """The trial as the scheduler sees it."""
    steps: int = 0
    """The trial's step count. A trial that exploits another takes over the other's count."""
    num_computed: int = 0
    """The number of steps that the trial itself computed."""
    ending: Kind | None = None
    """The trial's end: ``"complete"``, ``"stop"``, ``"error"`` or ``"remove"``."""
    results: list[dict[str, Any]] = field(default_factory=list)
    """The trial's reports."""
    state: Any = None
    """The state that the trial's function returned last."""
    seconds: float = 0.0
    """Seconds of the trial's steps, including the steps of a checkpoint that it took over."""


@final
@dataclass(frozen=True, slots=True)
class Simulation:
    """The outcomes of all trials."""

    trials: tuple[SimulatedTrial, ...]
    """The trials, in the order of their proposal."""
    events: tuple[Event, ...]
    """The events, in their order."""
    seconds: float
    """The length of the search in simulated seconds."""

    @property
    def num_steps(self) -> int:
        """The number of steps that all trials computed."""
        return sum(trial.num_computed for trial in self.trials)


def simulate(
    scheduler: contract.TrialScheduler,
    curves: Sequence[Curve],
    *,
    metric: str,
    mode: str,
    num_workers: int = 1,
    costs: Sequence[float | Sequence[float]] | None = None,
    configs: Sequence[Mapping[str, object]] | None = None,
    state: object = None,
    seed: int = 0,
    max_pending: int = 1,
) -> Simulation:
    """Run a scheduler over known curves, in simulated time.

    Reports have the metric, ``training_iteration`` (steps) and ``time_total_s`` (seconds). A curve's value that is a
    dict adds keys or replaces them; its report has the metric only if the dict has it.

    Args:
        scheduler: A new scheduler.
        curves: A curve for each trial.
        metric: The name of the curves' values.
        mode: ``"max"`` or ``"min"``.
        num_workers: The most trials that run at once.
        costs: Seconds per step, for each trial: a number (default: 1), or one per step; the last holds for later ones.
        configs: The trials' configurations. Default: empty.
        state: The first state of the trials' functions.
        seed: The scheduler's seed.
        max_pending: The most trials proposed before they begin.

    Example:
        >>> from hocket.tune.schedulers import FIFOScheduler
        >>> from hocket.tune.simulation import simulate
        >>> run = simulate(FIFOScheduler(), [[3, 2, 1], [5, 4]], metric="loss", mode="min", num_workers=2)
        >>> run.seconds, run.num_steps, [trial.ending for trial in run.trials]
        (3.0, 5, ['complete', 'complete'])
    """
    if mode not in ("min", "max"):
        raise ValueError(f"mode must be 'min' or 'max', but received {mode!r}. Write mode='min' for a loss.")
    for name, count in (("num_workers", num_workers), ("max_pending", max_pending)):
        if count < 1:
            raise ValueError(f"{name} must be 1 or more, but received {count!r}. Write {name}=1.")
    for name, given in (("costs", costs), ("configs", configs)):
        if given is not None and len(given) != len(curves):
            raise ValueError(
                f"{name} must have one entry for each of the {len(curves)} curves, but received {len(given)}. Leave it "
                "out if all are alike."
            )
    if not scheduler.set_search_properties(metric, mode, seed=seed, num_samples=len(curves)):
        raise ValueError(
            f"The scheduler was made with metric={scheduler.metric!r} and mode={scheduler.mode!r}, but received "
            f"{metric!r} and {mode!r}. Make it without them."
        )
    simulated = [
        SimulatedTrial(
            trials.Trial(f"{number:05}", number, dict(configs[number]) if configs is not None else {}, str(number)),
            state=state,
        )
        for number in range(len(curves))
    ]
    return _Run(scheduler, simulated, curves, costs, metric, num_workers, max_pending).run()


@final
class _Run:
    """A search in simulated time, and the `TrialControls` of its scheduler."""

    def __init__(
        self,
        scheduler: contract.TrialScheduler,
        simulated: list[SimulatedTrial],
        curves: Sequence[Curve],
        costs: Sequence[float | Sequence[float]] | None,
        metric: str,
        num_workers: int,
        max_pending: int,
    ) -> None:
        self._scheduler = scheduler
        self._all = simulated
        self._curves = curves
        self._costs = costs
        self._metric = metric
        self._num_free = num_workers
        self._max_pending = max_pending
        self._num_proposed = 0
        self._num_pending = 0
        self._now = 0.0
        #: The ends of steps: the time, a count that breaks ties, the trial's number.
        self._heap: list[tuple[float, int, int]] = []
        self._count = itertools.count()
        self._events: list[Event] = []
        #: The unfinished trials, and the list of them that the scheduler got last.
        self._live: dict[int, trials.Trial] = {}
        self._listed: list[trials.Trial] | None = None
        #: The running trials that end at their next report.
        self._doomed: set[int] = set()
        #: For each step under way: its outcome, the state after it, and its seconds.
        self._computing: dict[int, tuple[Value, object, float]] = {}
        #: The trial that has just reported, and whether it took over another's checkpoint at that report.
        self._reporting: trials.Trial | None = None
        self._has_exploited = False

    def run(self) -> Simulation:
        self._fill()
        while self._heap or self._live:
            if self._heap:
                self._now, _, number = heapq.heappop(self._heap)
                self._end_step(self._all[number])
            else:
                for trial in list(self._live.values()):
                    if not trial.is_finished:
                        self._end(trial, "remove")
                        self._scheduler.on_trial_remove(self, trial)
            self._fill()
        return Simulation(tuple(self._all), tuple(self._events), self._now)

    # --- the scheduler's controls -------------------------------------------------------------------------------------

    def get_trials(self) -> Sequence[trials.Trial]:
        if self._listed is None:
            self._listed = list(self._live.values())
        return self._listed

    def stop_trial(self, trial: trials.Trial) -> None:
        if trial.status is trials.Status.RUNNING:
            self._doomed.add(trial.number)
        elif not trial.is_finished:
            self._end(trial, "stop")

    def save_trial(self, trial: trials.Trial) -> None:
        if trial is not self._reporting:
            raise RuntimeError(f"save_trial() is for the trial that has just reported, but received {trial.trial_id}.")

    def exploit(self, trial: trials.Trial, source: trials.Trial, config: dict[str, object], tag: str = "") -> None:
        if source.checkpoint is None:
            raise RuntimeError(f"Trial {trial.trial_id} cannot go on from {source.trial_id}, which has no checkpoint.")
        if trial is self._reporting:
            self._has_exploited = True
        elif trial.status is not trials.Status.PAUSED:
            raise RuntimeError(f"exploit() is for a trial that waits, but {trial.trial_id} is {trial.status}.")
        target, taken = self._all[trial.number], self._all[source.number]
        target.steps, target.state, target.seconds = taken.steps, taken.state, taken.seconds
        trial.config, trial.checkpoint = config, source.checkpoint
        trial.experiment_tag = trial.experiment_tag.partition("@")[0] + tag
        self._note(trial, "exploit")

    # --- events -------------------------------------------------------------------------------------------------------

    def _note(self, trial: trials.Trial, kind: Kind) -> None:
        self._events.append(Event(self._now, trial.number, kind, self._all[trial.number].steps))

    def _fill(self) -> None:
        """Propose trials, and let free workers run the trials that the scheduler chooses."""
        self._propose()
        while self._num_free:
            trial = self._scheduler.choose_trial_to_run(self)
            if trial is None:
                return
            self._start(trial)
            self._propose()

    def _propose(self) -> None:
        while self._num_pending < self._max_pending and self._num_proposed < len(self._all):
            trial = self._all[self._num_proposed].trial
            self._num_proposed += 1
            self._num_pending += 1
            self._live[trial.number] = trial
            self._listed = None
            self._scheduler.on_trial_add(self, trial)
            self._note(trial, "add")

    def _start(self, trial: trials.Trial) -> None:
        if trial.status not in (trials.Status.PENDING, trials.Status.PAUSED):
            raise RuntimeError(f"The scheduler chose trial {trial.trial_id} to run, but it is {trial.status}.")
        self._num_pending -= trial.status is trials.Status.PENDING
        self._num_free -= 1
        trial.status = trials.Status.RUNNING
        self._note(trial, "start")
        self._begin_step(self._all[trial.number])

    def _begin_step(self, simulated: SimulatedTrial) -> None:
        """Begin the next step of a running trial, or end the trial if it has no more steps."""
        trial, curve, step = simulated.trial, self._curves[simulated.trial.number], simulated.steps + 1
        computed: tuple[Value, object] | None
        if callable(curve):
            computed = curve(trial.config, step, simulated.state)
        else:
            computed = (curve[step - 1], None) if step <= len(curve) else None
        if computed is None:
            self._end(trial, "complete")
            self._scheduler.on_trial_complete(self, trial, trial.last_result)
            return
        cost: float | Sequence[float] = 1.0 if self._costs is None else self._costs[trial.number]
        seconds = cost if isinstance(cost, int | float) else cost[min(step, len(cost)) - 1]
        self._computing[trial.number] = *computed, seconds
        heapq.heappush(self._heap, (self._now + seconds, next(self._count), trial.number))

    def _end_step(self, simulated: SimulatedTrial) -> None:
        trial = simulated.trial
        value, simulated.state, seconds = self._computing.pop(trial.number)
        simulated.seconds += seconds
        if isinstance(value, Exception):
            self._end(trial, "error")
            self._scheduler.on_trial_error(self, trial)
            return
        simulated.steps += 1
        simulated.num_computed += 1
        result = {"training_iteration": simulated.steps, "time_total_s": simulated.seconds}
        result |= value if isinstance(value, Mapping) else {self._metric: value}
        simulated.results.append(result)
        trial.last_result, trial.checkpoint = result, f"checkpoint_{simulated.steps:06}"
        self._note(trial, "report")
        self._follow(simulated, "STOP" if trial.number in self._doomed else self._ask(trial, result))

    def _ask(self, trial: trials.Trial, result: dict[str, Any]) -> contract.Decision:
        """Return the scheduler's decision about a report."""
        self._reporting, self._has_exploited = trial, False
        decision = self._scheduler.on_trial_result(self, trial, result)
        self._reporting = None
        if trial.number in self._doomed:
            return "STOP"
        return "CONTINUE" if self._has_exploited and decision == "STOP" else decision

    def _follow(self, simulated: SimulatedTrial, decision: contract.Decision) -> None:
        trial = simulated.trial
        if decision == "STOP":
            self._end(trial, "stop")
        elif decision == "PAUSE":
            trial.status = trials.Status.PAUSED
            self._num_free += 1
            self._note(trial, "pause")
        else:
            self._begin_step(simulated)

    def _end(self, trial: trials.Trial, ending: Kind) -> None:
        self._num_free += trial.status is trials.Status.RUNNING
        self._num_pending -= trial.status is trials.Status.PENDING
        trial.status = trials.Status.ERROR if ending == "error" else trials.Status.TERMINATED
        trial.reason = ending
        self._all[trial.number].ending = ending
        del self._live[trial.number]
        self._listed = None
        self._note(trial, ending)
