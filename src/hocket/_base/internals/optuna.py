"""Undocumented names of Optuna."""

from __future__ import annotations

from typing import Any


def get_number(trial: Any) -> int:
    """Return the number by which the storage counts a trial, over all studies."""
    return int(trial._trial_id)


def get_generator(part: object) -> object:
    """Return the random generator of a sampler, or of a part of a sampler; None if there is none."""
    return getattr(part, "_rng", None)
