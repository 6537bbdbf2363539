"""The display's model of a run, without IO or a clock: methods take the time in seconds, from any origin."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hocket.train.tracking import plots, values

TOTALS = {
    "step": ("total_steps", "num_steps", "max_steps", "steps"),
    "global_step": ("total_steps", "num_steps", "max_steps", "steps"),
    "iteration": ("num_iterations", "max_iterations", "iterations"),
    "epoch": ("num_epochs", "max_epochs", "epochs"),
}
"""The metrics that count a run's progress; the first that is reported is used. Each has the possible names of its
total, among the metrics or in the configuration."""

RATES = ("samples_per_second", "samples_per_s")
"""Metrics that are the rate of all ranks together."""

POINT_SECONDS = 0.25
"""Seconds between the points from which speeds are computed. A guess: shorter than a glance, longer than a fast
step."""

POINT_COUNT = 64
"""The number of points: a window of 16 seconds or more, so that the time left does not jump. A guess."""

LAG_WEIGHT = 0.3
"""The weight of the last report in a rank's lag. A guess: ten reports forget the past."""


@dataclass(frozen=True, kw_only=True)
class Keys:
    """The metrics to show. None: found by their usual names."""

    step: str | None = None
    total: float | None = None
    """The total of steps."""
    loss: str | None = None
    samples: str = "samples"
    """The metric with the number of samples that a rank has used since its last report. Ranks' numbers are added up."""


@dataclass(frozen=True, slots=True)
class Lag:
    """A rank's lag behind the first rank."""

    rank: int
    seconds: float
    is_waited_for: bool
    """Whether other ranks have reported, and this rank has not yet."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The values to show at one moment."""

    step_name: str
    """The metric that counts the progress, or ``"report"``."""
    step: float
    done: float
    """The number of steps that are done: one more than `step` if steps count from 0."""
    total: float | None
    loss_name: str
    loss: float | None
    steps_per_s: float | None
    samples_per_s: float | None
    elapsed_s: float
    left_s: float | None
    lags: tuple[Lag, ...]
    """The ranks' lags, by rank; empty if there is one rank."""
    restarts: int


@dataclass(frozen=True, slots=True)
class _Point:
    time: float
    done: float
    samples: float


class Progress:
    """The progress of a run, by its reports. Used under a lock of the caller."""

    def __init__(self, keys: Keys, config: object, now: float) -> None:
        self._keys = keys
        self._config: Mapping[str, object] = config if isinstance(config, Mapping) else {}
        self._began = now
        self.report_count = 0
        """The number of reports that all ranks have made."""
        self._restarts = 0
        self._metrics: Mapping[str, object] = {}
        self._numbers: dict[str, float] = {}
        self._finite: dict[str, float] = {}
        """The finite numbers, for computing. The display still shows a loss that is NaN."""
        self._step_name = "report"
        self._counts_from_0: bool | None = None
        self._has_samples = False
        self._samples = 0.0
        self._points: deque[_Point] = deque(maxlen=POINT_COUNT)
        self._seen: list[int] = []
        self._arrivals: list[deque[float]] = []
        self._lags: list[float] = []

    def note_arrivals(self, counts: Sequence[int], now: float) -> None:
        """Note the number of reports of each rank in this attempt."""
        if len(counts) != len(self._seen) or any(new < old for new, old in zip(counts, self._seen, strict=True)):
            self._begin_attempt(len(counts))
        for rank, count in enumerate(counts):
            self._arrivals[rank].extend([now] * (count - self._seen[rank]))
            self._seen[rank] = count

    def _begin_attempt(self, world_size: int) -> None:
        self._seen = [0] * world_size
        self._arrivals = [deque() for _ in range(world_size)]
        self._lags = [0.0] * world_size
        self._points.clear()

    def note_row(self, metrics: Sequence[Mapping[str, object]], now: float, number: int | None = None) -> None:
        """Note the metrics of a report that all ranks have made, by rank, and its number; None: the next number."""
        self.report_count = self.report_count + 1 if number is None else number
        self._metrics = metrics[0]
        self._numbers = values.list_numbers(metrics[0])
        self._finite = {name: number for name, number in self._numbers.items() if math.isfinite(number)}
        self._step_name = self._find_step_name()
        if self._counts_from_0 is None:
            self._counts_from_0 = self._step_name != "report" and self._finite[self._step_name] == 0
        for one in metrics:
            samples = values.get_optional_number(one.get(self._keys.samples))
            if samples is not None and math.isfinite(samples):
                self._has_samples = True
                self._samples += samples
        self._note_point(now)
        if len(metrics) == len(self._arrivals) and all(self._arrivals):
            times = [line.popleft() for line in self._arrivals]
            for rank, time in enumerate(times):
                self._lags[rank] += LAG_WEIGHT * (time - min(times) - self._lags[rank])

    def _note_point(self, now: float) -> None:
        point = _Point(now, self._done, self._samples)
        if len(self._points) > 1 and now - self._points[-2].time < POINT_SECONDS:
            self._points.pop()
        self._points.append(point)

    def note_failure(self) -> None:
        """Note that ranks have failed. If they start again, reports since the last commit come again."""
        self._restarts += 1
        self._begin_attempt(len(self._seen))

    def _find_step_name(self) -> str:
        if self._keys.step is not None:
            return self._keys.step if self._keys.step in self._finite else "report"
        return next((name for name in TOTALS if name in self._finite), "report")

    @property
    def _step(self) -> float:
        return self.report_count if self._step_name == "report" else self._finite[self._step_name]

    @property
    def _done(self) -> float:
        return self._step + 1 if self._counts_from_0 else self._step

    def _find_total(self) -> float | None:
        if self._keys.total is not None:
            return self._keys.total if math.isfinite(self._keys.total) else None
        for name in TOTALS.get(self._step_name, ()):
            for where in (self._metrics, self._config):
                total = values.get_optional_number(where.get(name))
                if total is not None and 0 < total < math.inf:
                    return total
        return None

    def _find_loss(self) -> tuple[str, float | None]:
        name = self._keys.loss
        if name is None:
            found = plots.find_loss_keys(list(self._numbers))
            name = "loss" if "loss" in found or not found else found[0]
        return name, self._numbers.get(name)

    def _find_samples_per_s(self) -> float | None:
        for name in RATES:
            if name in self._finite:
                return self._finite[name]
        return self._find_speed("samples") if self._has_samples else None

    def _find_speed(self, what: str) -> float | None:
        """Return the speed of something in the window, per second; None if it is not known."""
        if len(self._points) < 2:
            return None
        first, last = self._points[0], self._points[-1]
        change: float = getattr(last, what) - getattr(first, what)
        seconds = last.time - first.time
        return change / seconds if seconds > 0 and change > 0 else None

    def _list_lags(self, now: float) -> tuple[Lag, ...]:
        if len(self._arrivals) < 2:
            return ()
        since = min((line[0] for line in self._arrivals if line), default=now)
        found = []
        for rank, (line, usual) in enumerate(zip(self._arrivals, self._lags, strict=True)):
            waited = 0.0 if line else now - since
            found.append(Lag(rank, max(usual, waited), waited > usual))
        return tuple(found)

    def look(self, now: float) -> Snapshot:
        """Return the values to show now."""
        total, speed = self._find_total(), self._find_speed("done")
        loss_name, loss = self._find_loss()
        left = max(total - self._done, 0.0) / speed if total is not None and speed is not None else None
        return Snapshot(
            step_name=self._step_name,
            step=self._step,
            done=self._done,
            total=total,
            loss_name=loss_name,
            loss=loss,
            steps_per_s=speed,
            samples_per_s=self._find_samples_per_s(),
            elapsed_s=now - self._began,
            left_s=left,
            lags=self._list_lags(now),
            restarts=self._restarts,
        )
