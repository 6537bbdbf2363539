"""Numbers from the environment."""

from __future__ import annotations

import math
import os

MOST_SECONDS = 2_000_000.0
"""More is taken as this: 23 days, the longest wait that every call of the system takes."""


def read_seconds(name: str, default: float) -> float:
    """Return a variable of the environment as seconds; one that is empty counts as none."""
    text = os.environ.get(name, "").strip()
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise ValueError(
            f"{name} must be a number of seconds that is 0 or more, or inf, but is {text[:100]!r}. Set it to "
            f"{default:g}, which is the default, or unset it."
        )
    return min(seconds, MOST_SECONDS)
