"""Stoppers that watch whether a metric still changes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, final

import numpy as np

from hocket import keywords
from hocket.train.tracking import plain
from hocket.tune import errors
from hocket.tune.stopper import stoppers


@keywords.guard_init
@final
class TrialPlateauStopper(stoppers.Stopper):
    """A stopper that ends a trial whose metric no longer changes.

    Args:
        metric: The metric; nested ones with ``/``.
        std: A trial ends when the standard deviation of its last reports is below this.
        num_results: The number of last reports that count.
        grace_period: The least number of reports before a trial may end.
        metric_threshold: A value that the metric must have reached before a trial may end. Default: none.
        mode: ``"min"`` or ``"max"``: the side of `metric_threshold` where the metric must be. Only a threshold needs
            it.

    Raises:
        TypeError: The metric is no str, or the deviation is no number.
        ValueError: A number is out of range, or there is a threshold without a mode.

    Example:
        >>> from hocket.tune.stopper import TrialPlateauStopper
        >>> stopper = TrialPlateauStopper("loss", num_results=2, grace_period=3)
        >>> [stopper("t0", {"loss": loss}) for loss in (1.0, 1.0, 1.0)]
        [False, False, True]
    """

    def __init__(
        self,
        metric: str,
        std: float = 0.01,
        num_results: int = 4,
        grace_period: int = 4,
        metric_threshold: float | None = None,
        mode: str | None = None,
    ) -> None:
        _check_metric(metric)
        _check_deviation(std)
        stoppers.check_count("num_results", num_results, 1)
        stoppers.check_count("grace_period", grace_period, 0)
        if mode not in ("min", "max", None) or (metric_threshold is not None and mode is None):
            raise ValueError(
                f"With metric_threshold={metric_threshold!r} mode must be 'min' or 'max', but received {mode!r}. Write "
                "mode='min' if less is better."
            )
        self._metric, self._std, self._mode = metric, std, mode
        self._grace_period, self._num_results, self._threshold = grace_period, num_results, metric_threshold
        self._counts: dict[str, int] = {}
        self._values: dict[str, deque[float]] = {}

    def __call__(self, trial_id: str, result: Mapping[str, object]) -> bool:
        value = _read(result, self._metric)
        values = self._values.setdefault(trial_id, deque(maxlen=self._num_results))
        values.append(math.nan if value is None else value)
        self._counts[trial_id] = self._counts.get(trial_id, 0) + 1
        if self._counts[trial_id] < self._grace_period or len(values) < self._num_results:
            return False
        if self._threshold is not None:
            short = values[-1] - self._threshold if self._mode == "min" else self._threshold - values[-1]
            if not short <= 0:
                return False
        return bool(_compute_deviation(values) < self._std)

    def stop_all(self) -> bool:
        return False


@keywords.guard_init
@final
class ExperimentPlateauStopper(stoppers.Stopper):
    """A stopper that ends the search when the best results of all trials no longer change.

    Args:
        metric: The metric; nested ones with ``/``.
        std: The search ends when the standard deviation of the best results is at or below this.
        top: The number of best results that count, 2 or more.
        mode: ``"min"`` if less is better, ``"max"`` otherwise.
        patience: The number of reports in a row for which that must hold.

    Raises:
        TypeError: The metric is no str, or the deviation is no number.
        ValueError: A number is out of range, or the mode is not one of the two.

    Example:
        >>> from hocket.tune.stopper import ExperimentPlateauStopper
        >>> stopper = ExperimentPlateauStopper("loss", top=2)
        >>> stopper("t0", {"loss": 0.5}), stopper("t1", {"loss": 0.5}), stopper.stop_all()
        (False, True, True)
    """

    def __init__(self, metric: str, std: float = 0.001, top: int = 10, mode: str = "min", patience: int = 0) -> None:
        _check_metric(metric)
        _check_deviation(std)
        stoppers.check_count("top", top, 2)
        stoppers.check_count("patience", patience, 0)
        if mode not in ("min", "max"):
            raise ValueError(f"mode must be 'min' or 'max', but received {mode!r}. Write mode='min' if less is better.")
        self._metric, self._std, self._top, self._mode, self._patience = metric, std, top, mode, patience
        self._best: list[float] = []
        #: The number of reports in a row that left the best results unchanged.
        self._steady = 0

    def __call__(self, trial_id: str, result: Mapping[str, object]) -> bool:
        value = _read(result, self._metric)
        if value is None:
            raise errors.TuneError(stoppers.describe_missing("ExperimentPlateauStopper", self._metric, result))
        if not math.isnan(value):
            self._best = sorted([*self._best, value], reverse=self._mode == "max")[: self._top]
        self._steady = self._steady + 1 if self._has_plateaued() else 0
        return self.stop_all()

    def _has_plateaued(self) -> bool:
        return len(self._best) == self._top and bool(_compute_deviation(self._best) <= self._std)

    def stop_all(self) -> bool:
        return self._has_plateaued() and self._steady >= self._patience


def _read(result: Mapping[str, object], metric: str) -> float | None:
    value = plain.get_metric(result, metric)
    return float(value) if hasattr(value, "__float__") else None


def _compute_deviation(values: Any) -> float:
    numbers = np.asarray(list(values), dtype=float)
    return float(numbers.std()) if np.isfinite(numbers).all() else math.inf


def _check_metric(metric: object) -> None:
    if not isinstance(metric, str):
        raise TypeError(f"metric must be the name of a metric, but received {metric!r}. Write metric='loss'.")


def _check_deviation(std: object) -> None:
    if isinstance(std, bool) or not isinstance(std, int | float):
        raise TypeError(f"std must be a number, but received {std!r}. Write std=0.01.")
    if not std > 0:
        raise ValueError(f"std must be more than 0, but received {std!r}. Write std=0.01.")
