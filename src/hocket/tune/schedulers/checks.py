"""Checks of schedulers' arguments, and the reading of reports."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, final

from hocket.train.tracking import plain
from hocket.tune.schedulers import contract

_log = logging.getLogger(__name__)


def check_search(metric: object, mode: object, time_attr: object = "training_iteration") -> None:
    """Check the names of a report's metric and time, and the mode."""
    if metric is not None and (not isinstance(metric, str) or not metric):
        raise ValueError(
            f"metric must be the name of a number in the reports, but received {metric!r}. Write metric='loss', or "
            "leave it out to take TuneConfig's."
        )
    if mode not in (None, "min", "max"):
        raise ValueError(
            f"mode must be 'min' or 'max', but received {mode!r}. Write mode='max' if a larger metric is better."
        )
    if not isinstance(time_attr, str) or not time_attr:
        raise ValueError(
            f"time_attr must be the name of a growing number in the reports, but received {time_attr!r}. Write "
            "time_attr='training_iteration' for the count of reports, or 'time_total_s' for seconds."
        )


def check_number(
    name: str, value: object, *, above: float | None = None, least: float | None = None, most: float = math.inf
) -> None:
    """Check that a number lies in a range.

    Args:
        name: The argument's name.
        value: The value that was passed.
        above: A limit that the value must exceed.
        least: The least value allowed.
        most: The greatest value allowed.
    """
    low = -math.inf if least is None else least
    rule = f"more than {above:g}" if above is not None else f"{low:g} or more"
    rule += f", and {most:g} or less" if most < math.inf else ""
    number = read_number(value)
    if number is None or number < low or number > most or (above is not None and number <= above):
        example = most if most < math.inf else (above + 1 if above is not None else low)
        raise ValueError(f"{name} must be a number, {rule}, but received {value!r}. Write for example {example:g}.")


def check_count(name: str, value: object) -> None:
    """Check that a value is a whole number, 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number, 1 or more, but received {value!r}. Write for example 1.")


def check_seed(value: object) -> None:
    """Check that a seed is a whole number, or None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"seed must be a whole number, but received {value!r}. Leave it out to take the search's.")


def require_metric(scheduler: contract.TrialScheduler) -> None:
    """Check, at the first trial, that metric and mode are known."""
    if not scheduler.metric or not scheduler.mode:
        name = type(scheduler).__name__
        raise ValueError(
            f"{name} compares trials, so it needs a metric and a mode, but has metric={scheduler.metric!r} and "
            f"mode={scheduler.mode!r}. Write TuneConfig(metric='loss', mode='min', scheduler={name}(...)), or give "
            "both to the scheduler."
        )


def read_number(value: object) -> float | None:
    """Return a value as a float; None if it is no number, or NaN."""
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        return None
    number = float(value)
    return None if math.isnan(number) else number


def read_time(result: Mapping[str, object], time_attr: str) -> float | None:
    """Return the time of a report; None if the report lacks it."""
    return read_number(plain.get_metric(result, time_attr))


@final
class Clock:
    """A reader of reports' times. It warns once if trials end without any, as the scheduler then does nothing.

    Args:
        time_attr: The key of a report's time.
    """

    def __init__(self, time_attr: str) -> None:
        self._time_attr = time_attr
        self._is_found = False

    def read(self, result: Mapping[str, Any]) -> float | None:
        """Return the time of a report; None if the report lacks it."""
        time = read_time(result, self._time_attr)
        self._is_found = self._is_found or time is not None
        return time

    def note_end(self, scheduler: contract.TrialScheduler, result: Mapping[str, object]) -> None:
        """Handle the end of a trial that ended by itself, with its last report."""
        if self._is_found or not result:
            return
        self._is_found = True  # one warning is enough
        _log.warning(
            "%s has decided nothing: no report has %r, which is its time_attr. Report it beside the metric, or write "
            "time_attr='training_iteration', which counts reports.",
            type(scheduler).__name__, self._time_attr,
        )  # fmt: skip
