"""How good a report is: what trials, and their checkpoints, are ranked by."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
