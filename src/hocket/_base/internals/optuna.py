"""Optuna's names."""

from __future__ import annotations

from typing import Any


def get_number(trial: Any) -> int:
    """Return the number of a trial, as its storage counts trials over all studies."""
    return int(trial._trial_id)


def get_generator(part: object) -> object:
    """Return the random numbers of a sampler, or of a part of one; None if it has none."""
    return getattr(part, "_rng", None)
