"""What ``RunConfig(stop=...)`` means."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any, final

from hocket.train.tracking import plain
from hocket.tune.stopper import stoppers


@final
class _MetricStopper(stoppers.Stopper):
    """Ends a trial when a metric has reached its bound: what a dict for ``stop`` means."""

    def __init__(self, bounds: dict[str, float]) -> None:
        self._bounds = bounds
        self._noted: set[str] = set()

    def __call__(self, trial_id: str, result: Mapping[str, object]) -> bool:
        for metric, bound in self._bounds.items():
            value = plain.get_metric(result, metric)
            if value is None:
                self._note_missing(metric, bound, result)
            elif value >= bound:
                return True
        return False

    def _note_missing(self, metric: str, bound: float, result: Mapping[str, object]) -> None:
        """Say once that a report lacks a metric: it may be one that is not in each, or it is misspelt."""
        if metric not in self._noted:
            self._noted.add(metric)
            logging.getLogger("hocket.tune").warning(
                "stop={%r: %r} does nothing at a report without that metric, such as one with %s.",
                metric,
                bound,
                sorted(map(str, result)),
            )

    def stop_all(self) -> bool:
        return False


def build_stopper(stop: object) -> stoppers.Stopper:
    """Make one stopper from what ``RunConfig(stop=...)`` may be.

    Args:
        stop: None; a dict of metrics, nested or with ``/``, and the values at or above which a trial ends; a function
            of a trial's id and its report; a `Stopper`; or a list of stoppers.

    Raises:
        TypeError: It is something else, or a bound is no number.
        ValueError: A bound is NaN.

    Example:
        >>> from hocket.tune.stopper import build_stopper
        >>> stopper = build_stopper({"training_iteration": 10})
        >>> stopper("t0", {"training_iteration": 9}), stopper("t0", {"training_iteration": 10})
        (False, True)
    """
    if stop is None:
        return stoppers.NoopStopper()
    if isinstance(stop, Mapping):
        return _MetricStopper(dict(_flatten(stop))) if stop else stoppers.NoopStopper()
    if isinstance(stop, list | tuple):
        for each in stop:
            if not isinstance(each, stoppers.Stopper):
                raise TypeError(
                    f"A list for stop must hold Stoppers, but one is {each!r}. Write FunctionStopper(...) around a "
                    "function; a dict is given without a list."
                )
        return stoppers.CombinedStopper(*stop)
    if isinstance(stop, type) or (hasattr(stop, "stop_all") and not isinstance(stop, stoppers.Stopper)):
        raise TypeError(
            f"stop must be an object of a class that inherits from hocket.tune.Stopper, but received {stop!r}. Make "
            "one by calling the class, and let the class inherit from Stopper."
        )
    if isinstance(stop, stoppers.Stopper):
        return stop
    if callable(stop):
        return stoppers.FunctionStopper(stop)
    raise TypeError(
        "stop must be a dict of metrics and bounds, a function of (trial_id, result), a Stopper or a list of Stoppers, "
        f'but received {stop!r}. Write stop={{"training_iteration": 10}}.'
    )


def _flatten(stop: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, bound in stop.items():
        if not isinstance(key, str):
            raise TypeError(f"stop must have names of metrics, but one of its keys is {key!r}. Write {{'loss': 0.1}}.")
        name = f"{prefix}{key}"
        if isinstance(bound, Mapping):
            yield from _flatten(bound, f"{name}/")
        elif isinstance(bound, str | None) or not hasattr(bound, "__float__"):
            raise TypeError(
                f"The bound of stop={{{name!r}: ...}} must be a number, but received {bound!r}. A trial ends when the "
                "metric is at or above it; for other rules write a function of (trial_id, result)."
            )
        elif math.isnan(bound):
            raise ValueError(f"The bound of stop={{{name!r}: ...}} must be a number, but received {bound!r}.")
        else:
            yield name, bound
