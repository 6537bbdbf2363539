"""Asynchronous successive halving: at each rung, a trial stops if its score is low among the earlier scores there.

The rungs of a bracket lie at ``grace_period * reduction_factor ** k``. When a trial reaches or passes a rung, its score
is recorded there. It goes on if the score is not below the quantile ``1 - 1 / reduction_factor`` of the rung's earlier
scores (linear interpolation). This variant stops trials, so it needs no checkpoints and never waits. In algorithm 2 of
Li, Jamieson, Rostamizadeh, Gonina, Hardt, Recht and Talwalkar, "A System for Massively Parallel Hyperparameter Tuning"
(2020), trials are promoted instead.

The first trial of a rung always passes, and so does the best so far.

A report may pass several rungs at once. Its score then counts only at the highest: at lower ones a later score would be
unfair to trials that reported in time. (Ray adds such a trial's next reports to the lower rungs.) NaN counts at a rung
as minus infinity. (In Ray it does not count, and its trial goes on.)
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
    """A scheduler that stops trials that are not among the best at rungs of growing time (ASHA). No trial waits.

    Args:
        time_attr: The key of a report's time: any number that grows.
        metric: The metric. Default: the search's.
        mode: ``"max"`` or ``"min"``. Default: the search's.
        max_t: The time at which trials stop, in units of `time_attr`.
        grace_period: The first rung, in the same units. No trial stops before it.
        reduction_factor: At a rung one in this many trials goes on, to this many times the rung's time. More than 1.
        brackets: The number of brackets. Bracket ``s`` has no rungs below ``grace_period * reduction_factor ** s``.
            Trials go to brackets at random, most to the first.
        stop_last_trials: Whether trials stop at `max_t`.
        seed: The seed of the choice of brackets. Default: the search's.

    Raises:
        ValueError: An argument is out of range, or the metric is unknown at the first trial.

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
                f"grace_period must not be more than max_t, but received {grace_period!r} and max_t={max_t!r}. max_t "
                "is the most that a trial may run, and grace_period the least."
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
        #: The bracket of each unfinished trial, and the number of the bracket's rungs that it has passed.
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
        """Stop a trial at `max_t`, or at a rung where it is not among the best."""
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
        """Record the last report of a trial at its rung."""
        self._clock.note_end(self, result)
        time, score = self._clock.read(result), self.get_score(result)
        if time is not None and score is not None:
            self._note(trial, time, score)
        self._places.pop(trial.trial_id, None)

    def on_trial_error(self, controls: contract.TrialControls, trial: trials.Trial) -> None:
        """Forget a trial's place; its scores still count."""
        self._places.pop(trial.trial_id, None)

    def on_trial_remove(self, controls: contract.TrialControls, trial: trials.Trial) -> None:
        """Forget a trial's place; its scores still count."""
        self._places.pop(trial.trial_id, None)

    def _note(self, trial: trials.Trial, time: float, score: float) -> bool:
        """Record a score at the rung that a trial has reached, if any; return whether the trial goes on."""
        if trial.trial_id not in self._places:
            return True
        bracket, behind = self._places[trial.trial_id]
        reached = bisect.bisect_right(bracket.rungs, time)
        if reached <= behind:
            return True
        self._places[trial.trial_id] = bracket, reached
        return bracket.note(reached - 1, score)

    def debug_string(self) -> str:
        """Return the number of stopped trials, and the limit at each rung."""
        rungs = (" | ".join(bracket.describe(-1 if self.mode == "min" else 1)) for bracket in self._brackets)
        return "\n".join([f"AsyncHyperBand: {self._num_stopped} stopped", *rungs])


ASHAScheduler = AsyncHyperBandScheduler
"""The paper's name."""


@final
class _Bracket:
    """A bracket's rungs, and the scores at each."""

    def __init__(self, first: float, max_t: float, factor: float, skipped: int) -> None:
        self._quantile: Final = 1 - 1 / factor
        #: The rungs' times, ascending.
        self.rungs: Final[list[float]] = []
        while (rung := first * factor ** (len(self.rungs) + skipped)) <= max_t:
            self.rungs.append(rung)
        self._scores: Final[list[list[float]]] = [[] for _ in self.rungs]

    def note(self, rung: int, score: float) -> bool:
        """Record a score; return whether it reaches the limit so far."""
        scores = self._scores[rung]
        passes = not scores or score >= interpolate(scores, self._quantile)
        bisect.insort(scores, score)  # moves memory: some 10 µs with 100,000 scores (a guess)
        return passes

    def describe(self, sign: int) -> list[str]:
        """Return the limit at each rung in words."""
        return [
            f"{rung:g}: {sign * interpolate(scores, self._quantile):g}" if scores else f"{rung:g}: none"
            for rung, scores in zip(self.rungs, self._scores, strict=True)
        ]


def interpolate(ordered: list[float], quantile: float) -> float:
    """Return a quantile of ascending numbers as NumPy's ``quantile`` does, but with infinities.

    Every quantile strictly between a number and an infinity is that infinity.
    """
    place = quantile * (len(ordered) - 1)
    index = math.floor(place)
    low, high, part = ordered[index], ordered[min(index + 1, len(ordered) - 1)], place - index
    if low == high or part == 0:
        return low
    if math.isinf(low) or math.isinf(high):
        return low if math.isinf(low) else high
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)
