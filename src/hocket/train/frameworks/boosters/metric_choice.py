"""The choice of another library's metrics for a report, and of their names there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Choice: TypeAlias = str | Sequence[str] | Mapping[str, str] | None
"""A metric, several, or a dict from a metric's name in reports to its name in the library; None for all."""


def read(metrics: Choice) -> dict[str, str] | None:
    """Return a dict from each metric's name in reports to its name in the library; None for all.

    Raises:
        TypeError: `metrics` has another type.
    """
    if metrics is None:
        return None
    if isinstance(metrics, Mapping):
        names = dict(metrics)
    else:
        listed = [metrics] if isinstance(metrics, str) else list(metrics)
        names = dict(zip(listed, listed, strict=True))
    if not all(isinstance(name, str) for pair in names.items() for name in pair):
        raise TypeError(
            f"metrics must be a list of names, or a dict of names, but received {metrics!r}. Write metrics=['loss'], "
            "or metrics={'loss': 'eval-logloss'} to report it as 'loss'."
        )
    return names or None


def choose(names: Mapping[str, str] | None, found: Mapping[str, object]) -> dict[str, object]:
    """Return the metrics to report."""
    if names is None:
        return dict(found)
    missing = sorted(set(names.values()) - set(found))
    if missing:
        raise ValueError(f"metrics names {missing}, but the metrics are {sorted(found)}. Write names from this list.")
    return {name: found[theirs] for name, theirs in names.items()}
