"""Scores of reports: the order of trials and of checkpoints, and which checkpoints are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hocket.train.tracking import plain


def score(metrics: Mapping[str, object], metric: str | None, mode: str | None) -> float:
    """Return a metric as a score, where more is better; minus infinity if it is missing, NaN, or not a number.

    Args:
        metrics: A report's metrics.
        metric: The metric's name, with ``/`` for nested ones; None for no ranking.
        mode: ``"max"``, or ``"min"`` if less is better.
    """
    value: Any = plain.get_metric(metrics, metric) if metric else None
    if not isinstance(value, int | float) or math.isnan(value):
        return -math.inf
    return float(-value if mode == "min" else value)


def sort_best_first(reports: Sequence[Mapping[str, object]], metric: str | None, mode: str | None) -> list[int]:
    """Return the indices of reports, best first; of equal ones, and without a metric, the newer first.

    Args:
        reports: The reports, oldest first.
        metric: See `score`.
        mode: See `score`.
    """
    return sorted(range(len(reports)), key=lambda place: (score(reports[place], metric, mode), place), reverse=True)


def choose_kept(
    reports: Sequence[Mapping[str, object]], num_to_keep: int | None, metric: str | None, mode: str | None
) -> set[int]:
    """Return the indices of the checkpoints to keep: the best, or without a metric the newest, and always the last.

    Args:
        reports: A report for each checkpoint, oldest first.
        num_to_keep: The number of checkpoints to keep; None: all.
        metric: See `score`.
        mode: See `score`.
    """
    if num_to_keep is None:
        return set(range(len(reports)))
    return {*sort_best_first(reports, metric, mode)[:num_to_keep], len(reports) - 1}
