"""HyperBand: the trials of a bracket wait for each other at milestones, where the best go on.

Li, Jamieson, DeSalvo, Rostamizadeh and Talwalkar, "Hyperband: A Novel Bandit-Based Approach to Hyperparameter
Optimization" (2018). With ``R = max_t`` and ``eta = reduction_factor``, bracket ``s`` has ``ceil((s_max + 1) / (s + 1)
* eta ** s)`` trials, whose first milestone is ``R / eta ** s``. At a milestone the best ``1 / eta`` of the bracket's
size go on, to a milestone `eta` times as far. As in Ray, brackets are filled from the smallest, ``s = 0``, to the
largest, and then again. `max_t` bounds the trial, not the round.

Trials come one after another. A bracket takes trials until it is full, and is not halved before:

- A trial that reaches the milestone is paused until all trials of its bracket have reached it or ended.
- Trials that end early or fail leave their bracket, and the others do not wait for them. The number that goes on stays.
- If all trials wait and none is to begin, no more are coming for now. The bracket that is not full is then closed, and
  goes on with its trials (`HyperBandScheduler.choose_trial_to_run`). So a search proposes its trials before it asks.
- A report far beyond the milestone is compared with the others as it is. If its trial goes on and has already reached
  the next milestone, it keeps waiting.

Among equals, the trials proposed first go on. NaN counts as minus infinity.
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
    """A scheduler that runs trials in brackets, and halves a bracket when all its trials have reached a milestone.

    Trials pause at milestones and go on from their latest checkpoint, so functions should save one with each report.
    `ASHAScheduler` needs neither. Meant for subclassing (`HyperBandForBOHB`).

    Args:
        time_attr: The key of a report's time: any number that grows.
        metric: The metric. Default: the search's.
        mode: ``"max"`` or ``"min"``. Default: the search's.
        max_t: The time at which trials stop, in units of `time_attr`.
        reduction_factor: At a milestone one in this many trials goes on, to this many times its time. More than 1.
        stop_last_trials: Whether trials stop at `max_t`. If not, trials of a bracket's last round run to their end.

    Raises:
        ValueError: An argument is out of range, or the metric is unknown at the first trial.

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
        #: The first milestone of each kind of bracket, without those below 1.
        starts = (math.floor(max_t / reduction_factor**s * (1 + 1e-12)) for s in range(self._num_rounds))
        self._starts = [start for start in starts if start >= 1]
        #: The bracket of each trial in a bracket.
        self._places: dict[str, _Bracket] = {}
        self._brackets: list[_Bracket] = []
        self._num_stopped = 0

    def _choose_kind(self, number: int) -> int:
        """Return ``s`` of the bracket with a number: the smallest bracket first."""
        return number % len(self._starts)

    def on_trial_add(self, controls: contract.TrialControls, trial: trials.Trial) -> None:
        """Put a new trial into the bracket with room, or into a new one."""
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
        """Pause a trial at its bracket's milestone, or halve the bracket if the trial is the last to reach it."""
        bracket = self._places.get(trial.trial_id)
        if bracket is None:
            return self.STOP  # dropped at a halving while it ran
        if trial in bracket.waiting:  # it ran on, as nothing else could
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
        """Halve a bracket while all its trials wait. End the trials that drop out, except the reporting one."""
        while bracket.is_done:
            for trial in bracket.halve():
                del self._places[trial.trial_id]
                self._num_stopped += 1
                if trial is not reporting:
                    controls.stop_trial(trial)

    def _leave(self, controls: contract.TrialControls, trial: trials.Trial) -> None:
        """Take a trial out of its bracket, which no longer waits for it."""
        bracket = self._places.pop(trial.trial_id, None)
        if bracket is not None:
            bracket.discard(trial)
            self._halve(controls, bracket)

    def on_trial_complete(
        self, controls: contract.TrialControls, trial: trials.Trial, result: Mapping[str, Any]
    ) -> None:
        """Take a finished trial out of its bracket."""
        self._clock.note_end(self, result)
        self._leave(controls, trial)

    def on_trial_error(self, controls: contract.TrialControls, trial: trials.Trial) -> None:
        """Take a failed trial out of its bracket."""
        self._leave(controls, trial)

    def on_trial_remove(self, controls: contract.TrialControls, trial: trials.Trial) -> None:
        """Take a removed trial out of its bracket."""
        self._leave(controls, trial)

    def choose_trial_to_run(self, controls: contract.TrialControls) -> trials.Trial | None:
        """Return the first trial that can begin, or that was paused and can go on.

        If there is none and nothing runs, close the bracket that waits for more trials, and halve it.
        """
        chosen, runs = self._find(controls)
        if chosen is None and not runs and self._brackets and self._brackets[-1].live:
            self._brackets[-1].is_closed = True
            self._halve(controls, self._brackets[-1])
            chosen, _ = self._find(controls)
        return chosen

    def _find(self, controls: contract.TrialControls) -> tuple[trials.Trial | None, bool]:
        """Return the first trial that can run, and whether any runs (True if one can)."""
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
        """Return the number of stopped trials, and the state of the brackets."""
        lines = [f"HyperBand: {self._num_stopped} stopped, {len(self._brackets)} brackets"]
        lines += [f"{number}: {bracket.describe()}" for number, bracket in enumerate(self._brackets) if bracket.live]
        return "\n".join(lines)


@final
class _Bracket:
    """A group of trials that is halved at milestones."""

    def __init__(self, size: int, milestone: float, halvings: int, eta: float, max_t: float) -> None:
        self._room = size
        self._size = size
        self._eta = eta
        self._max_t = max_t
        self._halvings_left = halvings
        #: The time at which its trials wait for each other.
        self.milestone = milestone
        #: Its unfinished trials, in the order in which they were added.
        self.live: dict[trials.Trial, None] = {}
        #: The trials that have reached the milestone, with their time and score there.
        self.waiting: dict[trials.Trial, tuple[float, float]] = {}
        #: Whether the bracket takes no more trials.
        self.is_closed = False

    @property
    def is_last_round(self) -> bool:
        """Whether the bracket is not halved again."""
        return self._halvings_left == 0

    @property
    def is_done(self) -> bool:
        """Whether the bracket can be halved now."""
        return self.is_closed and not self.is_last_round and 0 < len(self.live) == len(self.waiting)

    def add(self, trial: trials.Trial) -> None:
        self.live[trial] = None
        self._room -= 1
        self.is_closed = self._room == 0

    def discard(self, trial: trials.Trial) -> None:
        self.live.pop(trial, None)
        self.waiting.pop(trial, None)

    def halve(self) -> list[trials.Trial]:
        """Move on to the next milestone with the best trials; drop and return the others."""
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
        """Return the bracket's state in words."""
        return f"{len(self.live)} trials, of which {len(self.waiting)} wait at {self.milestone:g}"
