"""Stoppers: what ends trials, or a whole search, by their reports.

A stopper is shown each report once, in the order of arrival. All but `TimeoutStopper` depend on the reports alone, so
that a search which goes on after a crash, and shows them again, stops where it would have.
"""

from __future__ import annotations

import abc
import datetime as dt
import time
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np

from hocket import keywords


class Stopper(abc.ABC):
    """Decides after each report whether its trial ends, and whether the search does.

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
        """Return whether a trial ends, given its report."""

    @abc.abstractmethod
    def stop_all(self) -> bool:
        """Return whether all trials end and none begins any more. Asked often, after reports and between them."""


@final
class NoopStopper(Stopper):
    """Ends nothing.

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
    """Ends a trial when a function says so.

    Args:
        function: Called with a trial's id and its report, returns whether the trial ends.

    Raises:
        TypeError: It cannot be called.

    Example:
        >>> from hocket.tune.stopper import FunctionStopper
        >>> FunctionStopper(lambda trial_id, result: result["loss"] < 0.1)("t0", {"loss": 0.01})
        True
    """

    def __init__(self, function: Callable[[str, dict[str, Any]], bool]) -> None:
        if not callable(function):
            raise TypeError(
                f"function must be a function, but received {function!r}. Write lambda trial_id, result: "
                'result["loss"] < 0.1.'
            )
        self._function = function

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return bool(self._function(trial_id, result))

    def stop_all(self) -> bool:
        return False


@keywords.guard_init
@final
class MaximumIterationStopper(Stopper):
    """Ends each trial after so many reports.

    Args:
        max_iter: How many, 1 or more.

    Raises:
        ValueError: It is less than 1.

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
    """Ends the search after some time. The clock starts when it is first asked, and the time of other processes, before
    a crash, does not count.

    Args:
        timeout: Seconds, or a timedelta.

    Raises:
        TypeError: It is neither.
        ValueError: It is negative or NaN.

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
        #: When it was asked last; None before that, and in another process.
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
    """Ends what one of several stoppers ends. Each of them sees each report.

    Args:
        *stoppers: The stoppers.

    Raises:
        TypeError: One is none.

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
                    f"CombinedStopper must be given Stoppers, but received {stopper!r}. Write "
                    "FunctionStopper(...) around a function."
                )
        self._stoppers = stoppers

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        found = [stopper(trial_id, result) for stopper in self._stoppers]
        return any(found)

    def stop_all(self) -> bool:
        found = [stopper.stop_all() for stopper in self._stoppers]
        return any(found)


def check_count(name: str, value: object, least: int) -> None:
    """Raise a ValueError if something is no int, or too small."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be an int of {least} or more, but received {value!r}.")


def describe_missing(who: str, metric: str, result: Mapping[str, object]) -> str:
    """Return what is said about a report without a metric that must be there."""
    return (
        f"{who} needs the metric {metric!r}, but a trial has reported {sorted(map(str, result))}. Report it each time, "
        "or name another."
    )
