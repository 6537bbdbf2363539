"""The median stopping rule: a trial stops if its best score is worse than the median of the other trials' means.

Golovin, Solnik, Moitra, Kochanski, Karro and Sculley, "Google Vizier: A Service for Black-Box Optimization" (2017),
section 3.2.2: a trial stops at a time if its best score so far is strictly worse than the median of the other trials'
mean scores up to that time. As in Ray, the others are all trials that have reached that time, finished or not, and
means begin at the grace period.

A trial's mean up to a time it has passed stays the same. So if times recur (counts of reports), the means at each time
are kept sorted. If each time is new (seconds), running sums give the means, at a cost linear in the trials.

A trial that goes back to a checkpoint reports times again; these do not count again. NaN counts as minus infinity, and
so does a mean with it. (Ray leaves out means that are not finite.)
"""

from __future__ import annotations

import bisect
import collections
import heapq
import math
from collections.abc import Mapping
from typing import Final, final

from hocket import keywords
from hocket.tune import trial as trials
from hocket.tune.schedulers import checks, contract, fifo


@keywords.guard_init
@final
class MedianStoppingRule(fifo.FIFOScheduler):
    """A scheduler that stops a trial if its best score is worse than the median of the other trials' running means.

    Args:
        time_attr: The key of a report's time: any number that grows.
        metric: The metric. Default: the search's.
        mode: ``"max"`` or ``"min"``. Default: the search's.
        grace_period: No trial stops before this time, and means begin there; in units of `time_attr`.
        min_samples_required: The least number of other trials for a median. If fewer have reached a trial's time, the
            trial pauses if less advanced trials wait, and else goes on.
        min_time_slice: The least time between two such pauses of a trial, in units of `time_attr`.
        hard_stop: Whether trials stop. If not, they pause, and go on when no other trials are left to begin.

    Raises:
        ValueError: An argument is out of range, or the metric is unknown at the first trial.

    Example:
        >>> from hocket.tune.schedulers import MedianStoppingRule
        >>> from hocket.tune.simulation import simulate
        >>> rule = MedianStoppingRule("training_iteration", grace_period=2, min_samples_required=2)
        >>> curves = [[1.0, 0.8, 0.6], [1.0, 0.7, 0.5], [1.0, 0.9, 0.9]]
        >>> run = simulate(rule, curves, num_workers=3, metric="loss", mode="min")
        >>> [trial.steps for trial in run.trials]
        [3, 3, 2]
    """

    looks_ahead = True

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        grace_period: float = 60.0,
        min_samples_required: int = 3,
        min_time_slice: float = 0,
        hard_stop: bool = True,
    ) -> None:
        checks.check_search(metric, mode, time_attr)
        checks.check_number("grace_period", grace_period, least=0)
        checks.check_count("min_samples_required", min_samples_required)
        checks.check_number("min_time_slice", min_time_slice, least=0)
        self.metric, self.mode = metric, mode
        self._clock = checks.Clock(time_attr)
        self._grace_period = grace_period
        self._num_samples = min_samples_required
        self._slice = min_time_slice
        self._stops = hard_stop
        self._curves: dict[str, _Curve] = {}
        self._means = _Means(self._curves)
        #: The time of each trial's last pause to let others run.
        self._yields: dict[str, float] = {}
        #: The stopped trials; with ``hard_stop=False`` the paused ones.
        self._stopped: set[str] = set()
        # : The trials that may not have begun, in their order, and a heap of those that may be paused. Stopped ones
        # come last, the others by their time.
        self._new: collections.deque[trials.Trial] = collections.deque()
        self._paused: list[tuple[bool, float, int, trials.Trial]] = []

    def on_trial_add(self, controls: contract.TrialControls, trial: trials.Trial) -> None:
        """Check that the metric is known, and add the trial."""
        checks.require_metric(self)
        self._new.append(trial)

    def on_trial_result(
        self, controls: contract.TrialControls, trial: trials.Trial, result: Mapping[str, object]
    ) -> contract.Decision:
        """Stop a trial that is worse than the median, or pause it if too few others have reached its time."""
        time, score = self._clock.read(result), self.get_score(result)
        if time is None or score is None or trial.trial_id in self._stopped:
            return self.CONTINUE
        self._note(trial, time, score)
        if time < self._grace_period:
            return self.CONTINUE
        others = self._means.read(time, trial.trial_id)
        if len(others) < self._num_samples:
            if self._can_yield(controls, trial, time):
                self._yields[trial.trial_id] = time
                heapq.heappush(self._paused, (False, time, trial.number, trial))
                return self.PAUSE
            return self.CONTINUE
        if self._curves[trial.trial_id].best >= others.compute_median():
            return self.CONTINUE
        self._stopped.add(trial.trial_id)
        if self._stops:
            return self.STOP
        heapq.heappush(self._paused, (True, time, trial.number, trial))
        return self.PAUSE

    def on_trial_complete(
        self, controls: contract.TrialControls, trial: trials.Trial, result: Mapping[str, object]
    ) -> None:
        """Take in the last report, if it is new."""
        self._clock.note_end(self, result)
        time, score = self._clock.read(result), self.get_score(result)
        if time is not None and score is not None and trial.trial_id not in self._stopped:
            self._note(trial, time, score)

    def choose_trial_to_run(self, controls: contract.TrialControls) -> trials.Trial | None:
        """Return the first pending trial; else the least advanced paused one, stopped ones last."""
        while self._new and self._new[0].status is not trials.Status.PENDING:
            self._new.popleft()
        if self._new:
            return self._new[0]
        while self._paused and self._paused[0][-1].status is not trials.Status.PAUSED:
            heapq.heappop(self._paused)
        if self._paused:
            return self._paused[0][-1]
        return super().choose_trial_to_run(controls)  # trials that the search itself has paused

    def _note(self, trial: trials.Trial, time: float, score: float) -> None:
        curve = self._curves.setdefault(trial.trial_id, _Curve())
        curve.best = max(curve.best, score)
        before = curve.last
        if time > before:
            curve.append(time, score, counts=time >= self._grace_period)
            self._means.note(curve, before)

    def _get_last(self, trial: trials.Trial) -> float:
        curve = self._curves.get(trial.trial_id)
        return -math.inf if curve is None else curve.last

    def _can_yield(self, controls: contract.TrialControls, trial: trials.Trial, time: float) -> bool:
        """Return whether trials wait that could add a sample at this time."""
        if not time - self._yields.get(trial.trial_id, -math.inf) > self._slice:
            return False
        waiting = (trials.Status.PENDING, trials.Status.PAUSED)
        return any(
            other.status in waiting and other.trial_id not in self._stopped and self._get_last(other) < time
            for other in controls.get_trials()
        )

    def debug_string(self) -> str:
        """Return the number of stopped trials."""
        return f"MedianStoppingRule: {len(self._stopped)} stopped"


@final
class _Curve:
    """A trial's reports that count: their times, and running sums of their scores."""

    __slots__ = ("best", "last", "sums", "times")

    def __init__(self) -> None:
        self.best = -math.inf
        self.last = -math.inf
        self.times: Final[list[float]] = []
        self.sums: Final[list[float]] = []

    def append(self, time: float, score: float, *, counts: bool) -> None:
        self.last = time
        if counts:
            self.times.append(time)
            self.sums.append((self.sums[-1] if self.sums else 0.0) + score)

    def compute_mean(self, time: float) -> float | None:
        """Return the mean of the scores up to a time; None if there are none."""
        count = bisect.bisect_right(self.times, time)
        if not count:
            return None
        mean = self.sums[count - 1] / count
        return -math.inf if math.isnan(mean) else mean  # the sum of infinities with both signs is NaN


@final
class _Means:
    """The means of all trials up to a time, kept for times that recur."""

    def __init__(self, curves: dict[str, _Curve]) -> None:
        self._curves = curves
        #: Times that were read once or more.
        self._asked: set[float] = set()
        #: For each recurring time, the sorted means of all trials that have reached it. The times are sorted, too.
        self._times: list[float] = []
        self._kept: dict[float, list[float]] = {}

    def note(self, curve: _Curve, before: float) -> None:
        """Take in that a trial has gone on from time `before` to its last."""
        first, end = bisect.bisect_right(self._times, before), bisect.bisect_right(self._times, curve.last)
        for time in self._times[first:end]:
            mean = curve.compute_mean(time)
            if mean is not None:
                bisect.insort(self._kept[time], mean)

    def read(self, time: float, asking: str) -> _Others:
        """Return the means up to a time of all trials but one."""
        own = self._curves[asking]
        kept = self._kept.get(time)
        if kept is None:
            found = (curve.compute_mean(time) for curve in self._curves.values() if curve.last >= time)
            kept = sorted(mean for mean in found if mean is not None)
            if time in self._asked:
                bisect.insort(self._times, time)
                self._kept[time] = kept
            self._asked.add(time)
        mean = own.compute_mean(time) if own.last >= time else None
        return _Others(kept, None if mean is None else bisect.bisect_left(kept, mean))


@final
class _Others:
    """Sorted means, without the one at a given place."""

    def __init__(self, means: list[float], left_out: int | None) -> None:
        self._means = means
        self._left_out = left_out

    def __len__(self) -> int:
        return len(self._means) - (self._left_out is not None)

    def _get(self, place: int) -> float:
        return self._means[place + (self._left_out is not None and place >= self._left_out)]

    def compute_median(self) -> float:
        low, high = self._get((len(self) - 1) // 2), self._get(len(self) // 2)
        if low == high or math.isinf(low):
            return low
        return (low + high) / 2
