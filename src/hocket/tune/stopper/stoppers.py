"""Stoppers, which end trials or a whole search by their reports.

A stopper sees each report once, in the order of arrival. All but `TimeoutStopper` depend on the reports alone. A search
that goes on after a crash shows them the reports again, so it stops where it would have.
"""

from __future__ import annotations

import abc
import datetime as dt
import inspect
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

import numpy as np

from hocket import keywords
from hocket.train.tracking import plain


class Stopper(abc.ABC):
    """The base of stoppers, which decide after each report whether its trial and the whole search end.

    Example:
        >>> from hocket.tune.stopper import Stopper
        >>> class WhenGood(Stopper):
        ...     def __call__(self, trial_id, result):
        ...         return result["accuracy"] > 0.9
        ...
        ...     def stop_all(self):
        ...         return False
        >>> WhenGood()("t0", {"accuracy": 0.95})
        True
    """

    @abc.abstractmethod
    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return whether a trial ends after this report."""

    @abc.abstractmethod
    def stop_all(self) -> bool:
        """Return whether all trials end and no more begin. The search asks often, after reports and between them."""


@final
class NoopStopper(Stopper):
    """A stopper that ends nothing.

    Example:
        >>> from hocket.tune.stopper import NoopStopper
        >>> NoopStopper()("t0", {"loss": 0.0})
        False
    """

    def __call__(self, trial_id: str, result: Mapping[str, object]) -> bool:
        return False

    def stop_all(self) -> bool:
        return False


@keywords.guard_init
@final
class FunctionStopper(Stopper):
    """A stopper that ends a trial when a function returns True.

    Args:
        function: A function from a trial's id and its report to whether the trial ends.

    Raises:
        TypeError: The function does not take these two arguments.

    Example:
        >>> from hocket.tune.stopper import FunctionStopper
        >>> FunctionStopper(lambda trial_id, result: result["loss"] < 0.1)("t0", {"loss": 0.01})
        True
    """

    def __init__(self, function: Callable[[str, dict[str, Any]], bool]) -> None:
        if not _takes_two(function):
            raise TypeError(
                f"function must be a function of (trial_id, result), but received {function!r}. Write lambda trial_id, "
                'result: result["loss"] < 0.1.'
            )
        self._function = function

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return bool(self._function(trial_id, result))

    def stop_all(self) -> bool:
        return False


def _takes_two(function: Any) -> bool:
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind("", {})
    except TypeError:
        return False
    except ValueError:  # some built-in functions have no known signature
        return True
    return True


@keywords.guard_init
@final
class MaximumIterationStopper(Stopper):
    """A stopper that ends each trial after a number of reports.

    Args:
        max_iter: The number of reports, 1 or more.

    Raises:
        ValueError: `max_iter` is less than 1 or no int.

    Example:
        >>> from hocket.tune.stopper import MaximumIterationStopper
        >>> stopper = MaximumIterationStopper(2)
        >>> stopper("t0", {}), stopper("t0", {})
        (False, True)
    """

    def __init__(self, max_iter: int) -> None:
        check_count("max_iter", max_iter, 1)
        self._max_iter = max_iter
        self._counts: dict[str, int] = {}

    def __call__(self, trial_id: str, result: Mapping[str, object]) -> bool:
        self._counts[trial_id] = self._counts.get(trial_id, 0) + 1
        return self._counts[trial_id] >= self._max_iter

    def stop_all(self) -> bool:
        return False


@keywords.guard_init
@final
class TimeoutStopper(Stopper):
    """A stopper that ends the search after some time, from the first call of `stop_all` in this process.

    Time in earlier processes, before a crash, does not count.

    Args:
        timeout: Seconds, or a timedelta.

    Raises:
        TypeError: `timeout` is neither.
        ValueError: `timeout` is negative or NaN.

    Example:
        >>> from hocket.tune.stopper import TimeoutStopper
        >>> TimeoutStopper(60).stop_all()
        False
    """

    def __init__(self, timeout: float | dt.timedelta) -> None:
        seconds: Any = timeout.total_seconds() if isinstance(timeout, dt.timedelta) else timeout
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(
                f"timeout must be seconds or a datetime.timedelta, but received {timeout!r}. Write timeout=3600."
            )
        if not seconds >= 0:
            raise ValueError(f"timeout must be 0 or more seconds, but received {timeout!r}. Write timeout=3600.")
        self._left = float(seconds)
        #: The time of the last call; None before the first one in this process.
        self._asked: float | None = None

    def __call__(self, trial_id: str, result: Mapping[str, object]) -> bool:
        return False

    def stop_all(self) -> bool:
        now = time.monotonic()
        if self._asked is not None:
            self._left -= now - self._asked
        self._asked = now
        return self._left <= 0

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_asked": None}


@final
class CombinedStopper(Stopper):
    """A stopper that ends whatever one of several stoppers ends. Each of them sees each report.

    Args:
        *stoppers: The stoppers.

    Raises:
        TypeError: An argument is no stopper.

    Example:
        >>> from hocket.tune.stopper import CombinedStopper, MaximumIterationStopper, TrialPlateauStopper
        >>> stopper = CombinedStopper(MaximumIterationStopper(1), TrialPlateauStopper("loss"))
        >>> stopper("t0", {"loss": 0.5})
        True
    """

    def __init__(self, *stoppers: Stopper) -> None:
        for stopper in stoppers:
            if not isinstance(stopper, Stopper):
                raise TypeError(
                    f"CombinedStopper takes Stoppers, but received {stopper!r}. Write FunctionStopper(...) around a "
                    "function."
                )
        self._stoppers = stoppers

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        found = [stopper(trial_id, result) for stopper in self._stoppers]
        return any(found)

    def stop_all(self) -> bool:
        found = [stopper.stop_all() for stopper in self._stoppers]
        return any(found)


def check_count(name: str, value: object, least: int) -> None:
    """Raise ValueError if a value is no int, or too small."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be an int of {least} or more, but received {value!r}.")


def describe_missing(who: str, metric: str, result: Mapping[str, object]) -> str:
    """Return the error message for a report that lacks a required metric."""
    return (
        f"{who} needs the metric {metric!r}, but a trial has reported {sorted(map(str, result))}. Report it each time, "
        "or name another."
    )


@final
class _MetricStopper(Stopper):
    """A stopper that ends a trial when a metric reaches its bound: the meaning of a dict as ``stop``."""

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
        """Warn once that a report lacks a metric: it may be missing from some reports only, or misspelt."""
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


def build_stopper(stop: object) -> Stopper:
    """Return a stopper for a value of ``RunConfig(stop=...)``.

    Args:
        stop: None; a dict of metrics, nested or with ``/``, and the values at or above which a trial ends; a function
            of a trial's id and its report; a `Stopper`; or a list of stoppers.

    Raises:
        TypeError: The value is none of these, or a bound is no number.
        ValueError: A bound is NaN.

    Example:
        >>> from hocket.tune.stopper import build_stopper
        >>> stopper = build_stopper({"training_iteration": 10})
        >>> stopper("t0", {"training_iteration": 9}), stopper("t0", {"training_iteration": 10})
        (False, True)
    """
    if stop is None:
        return NoopStopper()
    if isinstance(stop, Mapping):
        return _MetricStopper(dict(_flatten(stop))) if stop else NoopStopper()
    if isinstance(stop, list | tuple):
        for each in stop:
            if not isinstance(each, Stopper):
                raise TypeError(
                    f"A list for stop must hold Stoppers, but one is {each!r}. Write FunctionStopper(...) around a "
                    "function; give a dict by itself, without a list."
                )
        return CombinedStopper(*stop)
    if isinstance(stop, type) or (hasattr(stop, "stop_all") and not isinstance(stop, Stopper)):
        raise TypeError(
            f"stop must be an object of a class that inherits from hocket.tune.Stopper, but received {stop!r}. Make "
            "one by calling the class, and let the class inherit from Stopper."
        )
    if isinstance(stop, Stopper):
        return stop
    if callable(stop):
        return FunctionStopper(stop)
    raise TypeError(
        "stop must be a dict of metrics and bounds, a function of (trial_id, result), a Stopper or a list of Stoppers, "
        f'but received {stop!r}. Write stop={{"training_iteration": 10}}.'
    )


def _flatten(stop: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, bound in stop.items():
        if not isinstance(key, str):
            raise TypeError(f"The keys of stop must be names of metrics, but one is {key!r}. Write {{'loss': 0.1}}.")
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
