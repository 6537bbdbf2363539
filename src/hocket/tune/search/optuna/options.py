"""What `OptunaSearch` may be made with."""

from __future__ import annotations

from typing import Any


def check_objectives(metric: object, mode: Any) -> None:
    """Check the metric and mode, or metrics and modes."""
    modes = mode if isinstance(mode, list) else [mode]
    for each in modes:
        if each not in ("min", "max") and mode is not None:
            raise ValueError(f"mode must be 'min' or 'max', or a list of these, but received {mode!r}.")
    if isinstance(mode, list) != isinstance(metric, list) and (isinstance(mode, list) or mode is not None):
        raise ValueError(
            f"metric and mode must both be lists or neither, but received {metric!r} and {mode!r}. Write "
            'metric=["loss", "time"], mode=["min", "min"].'
        )
    if isinstance(metric, list) and (mode is None or len(metric) != len(mode)):
        raise ValueError(f"mode must have one entry for each of the metrics {metric!r}, but received {mode!r}.")


def check(optuna: Any, sampler: object, storage: object, seed: Any, given: list[Any], rewards: Any) -> None:
    """Check the rest."""
    if sampler is not None and not isinstance(sampler, optuna.samplers.BaseSampler):
        raise TypeError(
            f"sampler must be one of optuna.samplers, but received {sampler!r}. Write optuna.samplers.TPESampler()."
        )
    if storage is not None and not isinstance(storage, str | optuna.storages.BaseStorage):
        raise TypeError(
            f"storage must be one of optuna.storages or a URL, but received {storage!r}. Write "
            "'sqlite:///study.db', or leave it out."
        )
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
        raise ValueError(f"seed must be an int of 0 or more, but received {seed!r}. Leave it out for the search's.")
    if rewards is not None and len(rewards) != len(given):
        raise ValueError(
            f"evaluated_rewards must have one entry for each of the {len(given)} points_to_evaluate, but received "
            f"{rewards!r}."
        )
