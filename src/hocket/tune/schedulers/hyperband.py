"""HyperBand: brackets of trials that wait for each other at milestones, where the best of each bracket go on.

Li, Jamieson, DeSalvo, Rostamizadeh and Talwalkar, "Hyperband: A Novel Bandit-Based Approach to Hyperparameter
Optimization" (2018). With ``R = max_t`` and ``eta = reduction_factor``, bracket ``s`` has ``ceil((s_max + 1) / (s + 1)
* eta ** s)`` trials, whose first milestone is ``R / eta ** s``. At a milestone the best ``1 / eta`` of the bracket's
size go on, to a milestone `eta` times as far. As in Ray, brackets are filled from the smallest one, ``s = 0``, to the
largest one, and then again; `max_t` is a bound of the trial and not of the round.

Trials come one after another. A bracket takes new ones until it has its number, and is not halved before:

- A trial that comes to the milestone is paused, and waits until all of its bracket have come there or have ended.
- Trials that end early or fail leave their bracket; what is left of it does not wait for them, and the number that goes
  on at a milestone stays what it was.
- If all trials wait and none is to begin, no more are coming for now. Then the bracket that has not got its number
  is closed, and goes on with what it has (`HyperBandScheduler.choose_trial_to_run`). So a search proposes trials, as
  long as it has some, before it asks which one is to run.
- A report far beyond the milestone is compared with the others' as it is. If its trial goes on, it may already have
  come to the next milestone, and then it still waits.

Among equals, those that were proposed first go on. NaN counts as minus infinity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

from hocket import keywords
from hocket.tune import trial as trials
from hocket.tune.schedulers import checks, contract, fifo


@keywords.guard_init
class HyperBandScheduler(fifo.FIFOScheduler):
    """Runs trials in brackets, which are halved when all of their trials have come to a milestone.

    Trials are paused at milestones and go on from their latest checkpoint, so functions should save one with each
    report. `ASHAScheduler` needs none of this. Meant for subclassing (`HyperBandForBOHB`).

    Args:
        time_attr: What counts as time in a report: any number that grows.
        metric: The metric; the search's, if it is left out.
        mode: ``"max"`` or ``"min"``; the search's, if it is left out.
        max_t: Trials that have come to this time are stopped, in units of `time_attr`.
        reduction_factor: One of so many goes on at a milestone, and so many times as long. More than 1.
        stop_last_trials: Whether trials are stopped at `max_t`. If not, those of a bracket's last round run to their
            end.

    Raises:
        ValueError: An argument is out of range, or the metric is not known when the first trial comes.

    Example:
        >>> from hocket.tune.schedulers import HyperBandScheduler
        >>> from hocket.tune.simulation import simulate
        >>> scheduler = HyperBandScheduler(max_t=4, reduction_factor=2)
        >>> curves = [[quality] * 9 for quality in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)]
        >>> run = simulate(scheduler, curves, num_workers=2, metric="acc", mode="max")
        >>> [trial.steps for trial in run.trials]  # brackets of 3, 3 and 4
        [4, 4, 4, 2, 4, 4, 1, 1, 2, 4]
    """

    looks_ahead = True

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 81,
        reduction_factor: float = 3,
        stop_last_trials: bool = True,
    ) -> None:
        checks.check_search(metric, mode, time_attr)
        checks.check_number("max_t", max_t, least=1)
        checks.check_number("reduction_factor", reduction_factor, above=1)
        self.metric, self.mode = metric, mode
        self._clock = checks.Clock(time_attr)
        self._max_t = max_t
        self._eta = reduction_factor
        self._stops_last = stop_last_trials
        #: s_max + 1.
        self._num_rounds = round(math.log(max_t) / math.log(reduction_factor)) + 1
        #: The first milestones of the kinds of brackets; those below 1 are left out.
        starts = (math.floor(max_t / reduction_factor**s * (1 + 1e-12)) for s in range(self._num_rounds))
        self._starts = [start for start in starts if start >= 1]
        #: The bracket of each trial that is in one.
        self._places: dict[str, _Bracket] = {}
        self._brackets: list[_Bracket] = []
        self._num_stopped = 0

    def _choose_kind(self, number: int) -> int:
        """Return ``s`` of a bracket, given its number: the smallest bracket first."""
        return number % len(self._starts)

    def on_trial_add(self, controls: contract.TrialControls, trial: trials.Trial) -> None:
        """Put a new trial into the bracket that has room, or into a new one."""
        checks.require_metric(self)
        if not self._brackets or self._brackets[-1].is_closed:
            halvings = self._choose_kind(len(self._brackets))
            size = math.ceil(self._num_rounds / (halvings + 1) * self._eta**halvings)
            self._brackets.append(_Bracket(size, self._starts[halvings], halvings, self._eta, self._max_t))
        self._brackets[-1].add(trial)
        self._places[trial.trial_id] = self._brackets[-1]

    def on_trial_result(
        self, controls: contract.TrialControls, trial: trials.Trial, result: Mapping[str, Any]
    ) -> contract.Decision:
        """Pause a trial at its bracket's milestone, or halve the bracket if it is the last one to come there."""
        bracket = self._places.get(trial.trial_id)
        if bracket is None:
            return self.STOP  # it was among those that do not go on, and ran when that was decided
        if trial in bracket.waiting:  # it was let go on when nothing else ran
            bracket.is_closed = True
            self._halve(controls, bracket)
            if trial.trial_id not in self._places:
                return self.STOP
        time, score = self._clock.read(result), self.get_score(result)
        if time is None or score is None:
            return self.CONTINUE
        if time >= self._max_t and self._stops_last:
            self._leave(controls, trial)
            return self.STOP
        if time < bracket.milestone or bracket.is_last_round:
            return self.CONTINUE
        bracket.waiting[trial] = time, score
        self._halve(controls, bracket, reporting=trial)
        if trial.trial_id not in self._places:
            return self.STOP
        return self.PAUSE if trial in bracket.waiting else self.CONTINUE

    def _halve(
        self, controls: contract.TrialControls, bracket: _Bracket, reporting: trials.Trial | None = None
    ) -> None:
        """Halve a bracket as often as all of its trials wait. Those that do not go on are ended, but the reporting."""
        while bracket.is_done:
            for trial in bracket.halve():
                del self._places[trial.trial_id]
                self._num_stopped += 1
                if trial is not reporting:
                    controls.stop_trial(trial)

    def _leave(self, controls: contract.TrialControls, trial: trials.Trial) -> None:
        """Take a trial out of its bracket, which need not wait for it any more."""
        bracket = self._places.pop(trial.trial_id, None)
        if bracket is not None:
            bracket.discard(trial)
            self._halve(controls, bracket)

    def on_trial_complete(
        self, controls: contract.TrialControls, trial: trials.Trial, result: Mapping[str, Any]
    ) -> None:
        """Take a trial that has ended out of its bracket."""
        self._clock.note_end(self, result)
        self._leave(controls, trial)

    def on_trial_error(self, controls: contract.TrialControls, trial: trials.Trial) -> None:
        """Take a trial that has failed out of its bracket."""
        self._leave(controls, trial)

    def on_trial_remove(self, controls: contract.TrialControls, trial: trials.Trial) -> None:
        """Take a trial that was ended out of its bracket."""
        self._leave(controls, trial)

    def choose_trial_to_run(self, controls: contract.TrialControls) -> trials.Trial | None:
        """Return the first trial that is to begin, or that was paused and is to go on.

        If there is none and nothing runs, the bracket that waits for more trials is closed, and halved.
        """
        chosen, runs = self._find(controls)
        if chosen is None and not runs and self._brackets and self._brackets[-1].live:
            self._brackets[-1].is_closed = True
            self._halve(controls, self._brackets[-1])
            chosen, _ = self._find(controls)
        return chosen

    def _find(self, controls: contract.TrialControls) -> tuple[trials.Trial | None, bool]:
        """Return the first trial that can run, and whether some run (True if one can)."""
        runs = False
        for trial in controls.get_trials():
            if trial.status is trials.Status.PENDING:
                return trial, True
            if trial.status is trials.Status.RUNNING:
                runs = True
            elif trial.status is trials.Status.PAUSED:
                bracket = self._places.get(trial.trial_id)
                if bracket is not None and trial not in bracket.waiting:
                    return trial, True
        return None, runs

    def debug_string(self) -> str:
        """Return how many trials it has stopped, and where its brackets are."""
        lines = [f"HyperBand: {self._num_stopped} stopped, {len(self._brackets)} brackets"]
        lines += [f"{number}: {bracket.describe()}" for number, bracket in enumerate(self._brackets) if bracket.live]
        return "\n".join(lines)


@final
class _Bracket:
    """Trials that are halved together."""

    def __init__(self, size: int, milestone: float, halvings: int, eta: float, max_t: float) -> None:
        self._room = size
        self._size = size
        self._eta = eta
        self._max_t = max_t
        self._halvings_left = halvings
        #: Where its trials wait for each other.
        self.milestone = milestone
        #: Its trials that have not ended, in the order in which they were added.
        self.live: dict[trials.Trial, None] = {}
        #: The trials that have come to the milestone, with the time and score that they came with.
        self.waiting: dict[trials.Trial, tuple[float, float]] = {}
        #: Whether it takes no more trials.
        self.is_closed = False

    @property
    def is_last_round(self) -> bool:
        """Whether it will not be halved again."""
        return self._halvings_left == 0

    @property
    def is_done(self) -> bool:
        """Whether it can be halved now."""
        return self.is_closed and not self.is_last_round and 0 < len(self.live) == len(self.waiting)

    def add(self, trial: trials.Trial) -> None:
        self.live[trial] = None
        self._room -= 1
        self.is_closed = self._room == 0

    def discard(self, trial: trials.Trial) -> None:
        self.live.pop(trial, None)
        self.waiting.pop(trial, None)

    def halve(self) -> list[trials.Trial]:
        """Go on to the next milestone with the best; return the others, which are no longer in it."""
        self._halvings_left -= 1
        self._size = math.ceil(self._size / self._eta)
        self.milestone = int(min(self.milestone * self._eta, self._max_t))
        ranked = sorted(self.live, key=lambda trial: (-self.waiting[trial][1], trial.number))
        for trial in ranked[self._size :]:
            self.discard(trial)
        self.waiting = {
            trial: (time, score)
            for trial, (time, score) in self.waiting.items()
            if time >= self.milestone and not self.is_last_round
        }
        return ranked[self._size :]

    def describe(self) -> str:
        """Return in words where it is."""
        return f"{len(self.live)} trials, of which {len(self.waiting)} wait at {self.milestone:g}"
