"""Numbers from the environment."""

from __future__ import annotations

import math
import os

MOST_SECONDS = 2_000_000.0
"""The largest number of seconds, 23 days; larger values count as this. Every system call accepts such a wait."""


def read_seconds(name: str, default: float) -> float:
    """Return an environment variable as seconds; `default` if the variable is empty or not set."""
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
