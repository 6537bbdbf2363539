"""How good a report is: the rank of trials and of checkpoints, and which checkpoints are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hocket.train.tracking import plain


def score(metrics: Mapping[str, object], metric: str | None, mode: str | None) -> float:
    """Return a metric so that more is better; minus infinity if it is missing, NaN, or no number.

    Args:
        metrics: A report.
        metric: The metric, nested ones with ``/``; None if nothing ranks.
        mode: ``"max"``, or ``"min"`` if less of it is better.
    """
    value: Any = plain.get_metric(metrics, metric) if metric else None
    if not isinstance(value, int | float) or math.isnan(value):
        return -math.inf
    return float(-value if mode == "min" else value)


def sort_best_first(reports: Sequence[Mapping[str, object]], metric: str | None, mode: str | None) -> list[int]:
    """Return the places of reports, best first; of equals, and without a metric, the newer first.

    Args:
        reports: Oldest first.
        metric: See `score`, as for `mode`.
        mode: See there.
    """
    return sorted(range(len(reports)), key=lambda place: (score(reports[place], metric, mode), place), reverse=True)


def choose_kept(
    reports: Sequence[Mapping[str, object]], num_to_keep: int | None, metric: str | None, mode: str | None
) -> set[int]:
    """Return the places of the reports whose checkpoints are kept: the best, or the newest, and always the last.

    Args:
        reports: One for each checkpoint, oldest first.
        num_to_keep: How many are kept; None: all.
        metric: See `score`, as for `mode`.
        mode: See there.
    """
    if num_to_keep is None:
        return set(range(len(reports)))
    return {*sort_best_first(reports, metric, mode)[:num_to_keep], len(reports) - 1}
