"""Asynchronous successive halving: a trial is stopped at a rung if it is not among the best that were there before.

The rungs of a bracket lie at ``grace_period * reduction_factor ** k``. When a trial's time comes to a rung or passes
it, its score is noted there, and it goes on if the score is not below the quantile ``1 - 1 / reduction_factor`` of the
scores that were noted there before (linear interpolation). This is the variant that stops trials, which needs no
checkpoints and never waits: Li, Jamieson, Rostamizadeh, Gonina, Hardt, Recht and Talwalkar, "A System for Massively
Parallel Hyperparameter Tuning" (2020), algorithm 2, where trials are promoted instead.

The quantile keeps the first trials of a rung, whatever they are, and the best one always.

A report may pass several rungs at once. It is noted at the highest of them, and the rungs below it are left out: a
score of a later time would be unfair to those that were there in time. (Ray notes such a trial at the lower ones with
its next reports.) NaN counts at a rung as minus infinity. (In Ray it does not count, and its trial goes on.)
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Mapping
from typing import Any, Final, final

from hocket import keywords
from hocket.tune import trial as trials
from hocket.tune.schedulers import checks, contract, fifo


@keywords.guard_init
@final
class AsyncHyperBandScheduler(fifo.FIFOScheduler):
    """Stops trials that are not among the best at rungs of growing time (ASHA). Nothing ever waits.

    Args:
        time_attr: What counts as time in a report: any number that grows.
        metric: The metric; the search's, if it is left out.
        mode: ``"max"`` or ``"min"``; the search's, if it is left out.
        max_t: Trials that have come to this time are stopped, in units of `time_attr`.
        grace_period: The first rung; no trial is stopped before it, in the same units.
        reduction_factor: One of so many goes on at a rung, and so many times as long. More than 1.
        brackets: How many brackets there are. Bracket ``s`` has no rungs below
            ``grace_period * reduction_factor ** s``. Trials are distributed among them at random, most to the first.
        stop_last_trials: Whether trials are stopped at `max_t`.
        seed: Of that distribution; the search's, if it is left out.

    Raises:
        ValueError: An argument is out of range, or the metric is not known when the first trial comes.

    Example:
        >>> from hocket.tune.schedulers import ASHAScheduler
        >>> from hocket.tune.simulation import simulate
        >>> asha = ASHAScheduler(max_t=4, reduction_factor=2)
        >>> run = simulate(asha, [[0.5, 0.6, 0.7, 0.8], [0.1, 0.2, 0.3, 0.4]], num_workers=1, metric="acc", mode="max")
        >>> [trial.steps for trial in run.trials]
        [4, 1]
    """

    looks_ahead = False

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
        seed: int | None = None,
    ) -> None:
        checks.check_search(metric, mode, time_attr)
        checks.check_number("max_t", max_t, above=0)
        checks.check_number("grace_period", grace_period, above=0)
        if grace_period > max_t:
            raise ValueError(
                f"grace_period must not be more than max_t, but received {grace_period!r} and max_t={max_t!r}. Write "
                "max_t for how long a trial may run, and grace_period for how long each one does."
            )
        checks.check_number("reduction_factor", reduction_factor, above=1)
        checks.check_count("brackets", brackets)
        checks.check_seed(seed)
        self.metric, self.mode = metric, mode
        self._clock = checks.Clock(time_attr)
        self._max_t = max_t
        self._seed = seed
        self._stops_last = stop_last_trials
        self._brackets = [_Bracket(grace_period, max_t, reduction_factor, number) for number in range(brackets)]
        longest = len(self._brackets[0].rungs)
        self._weights = [math.exp(len(bracket.rungs) - longest) for bracket in self._brackets]
        #: Of each trial that is not finished: its bracket, and how many of the bracket's rungs are behind it.
        self._places: dict[str, tuple[_Bracket, int]] = {}
        self._num_stopped = 0

    def on_trial_add(self, controls: contract.TrialControls, trial: trials.Trial) -> None:
        """Put a new trial into a bracket."""
        checks.require_metric(self)
        bracket = self._brackets[0]
        if len(self._brackets) > 1:
            seed = self._search_seed if self._seed is None else self._seed
            drawn = random.Random(f"bracket/{seed}/{trial.number}")
            bracket = drawn.choices(self._brackets, self._weights)[0]
        self._places[trial.trial_id] = bracket, 0

    def on_trial_result(
        self, controls: contract.TrialControls, trial: trials.Trial, result: Mapping[str, Any]
    ) -> contract.Decision:
        """Stop a trial that has come to `max_t`, or to a rung where it is not among the best."""
        time, score = self._clock.read(result), self.get_score(result)
        if time is None or score is None:
            return self.CONTINUE
        is_over = time >= self._max_t and self._stops_last
        if not is_over and self._note(trial, time, score):
            return self.CONTINUE
        self._num_stopped += 1
        self._places.pop(trial.trial_id, None)
        return self.STOP

    def on_trial_complete(
        self, controls: contract.TrialControls, trial: trials.Trial, result: Mapping[str, Any]
    ) -> None:
        """Note the last report of a trial at its rung."""
        self._clock.note_end(self, result)
        time, score = self._clock.read(result), self.get_score(result)
        if time is not None and score is not None:
            self._note(trial, time, score)
        self._places.pop(trial.trial_id, None)

    def on_trial_error(self, controls: contract.TrialControls, trial: trials.Trial) -> None:
        """Forget where a trial was; its scores count on."""
        self._places.pop(trial.trial_id, None)

    def on_trial_remove(self, controls: contract.TrialControls, trial: trials.Trial) -> None:
        """Forget where a trial was; its scores count on."""
        self._places.pop(trial.trial_id, None)

    def _note(self, trial: trials.Trial, time: float, score: float) -> bool:
        """Note a score at the rung that a trial has come to, if any; return whether it goes on."""
        if trial.trial_id not in self._places:
            return True
        bracket, behind = self._places[trial.trial_id]
        reached = bisect.bisect_right(bracket.rungs, time)
        if reached <= behind:
            return True
        self._places[trial.trial_id] = bracket, reached
        return bracket.note(reached - 1, score)

    def debug_string(self) -> str:
        """Return how many trials it has stopped, and what must be reached at each rung."""
        rungs = (" | ".join(bracket.describe(-1 if self.mode == "min" else 1)) for bracket in self._brackets)
        return "\n".join([f"AsyncHyperBand: {self._num_stopped} stopped", *rungs])


ASHAScheduler = AsyncHyperBandScheduler
"""Its other name."""


@final
class _Bracket:
    """Rungs, and the scores that were noted at each.

    A score is put into a sorted list, which moves memory: with 100,000 scores some 10 microseconds (guessed).
    """

    def __init__(self, first: float, max_t: float, factor: float, skipped: int) -> None:
        self._quantile: Final = 1 - 1 / factor
        #: Their times, ascending.
        self.rungs: Final[list[float]] = []
        while (rung := first * factor ** (len(self.rungs) + skipped)) <= max_t:
            self.rungs.append(rung)
        self._scores: Final[list[list[float]]] = [[] for _ in self.rungs]

    def note(self, rung: int, score: float) -> bool:
        """Note a score; return whether it reaches the limit until now."""
        scores = self._scores[rung]
        passes = not scores or score >= interpolate(scores, self._quantile)
        bisect.insort(scores, score)
        return passes

    def describe(self, sign: int) -> list[str]:
        """Return in words what must be reached at each rung."""
        return [
            f"{rung:g}: {sign * interpolate(scores, self._quantile):g}" if scores else f"{rung:g}: none"
            for rung, scores in zip(self.rungs, self._scores, strict=True)
        ]


def interpolate(ordered: list[float], quantile: float) -> float:
    """Return a quantile of ascending numbers as NumPy's ``quantile`` does, but with infinities. Between minus infinity
    and a number lies minus infinity, and between a number and infinity lies infinity."""
    place = quantile * (len(ordered) - 1)
    index = math.floor(place)
    low, high, part = ordered[index], ordered[min(index + 1, len(ordered) - 1)], place - index
    if low == high or part == 0:
        return low
    if math.isinf(low) or math.isinf(high):
        return low if math.isinf(low) else high
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)
