"""Schedulers by name, for programs with a scheduler option."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Final

from hocket.tune.schedulers import (
    async_hyperband,
    contract,
    fifo,
    hb_bohb,
    hyperband,
    median_stopping_rule,
    pb2,
    pbt,
    pbt_replay,
)

NAMES: Final[dict[str, Callable[..., contract.TrialScheduler]]] = {
    "fifo": fifo.FIFOScheduler,
    "async_hyperband": async_hyperband.AsyncHyperBandScheduler,
    "asynchyperband": async_hyperband.AsyncHyperBandScheduler,
    "asha": async_hyperband.AsyncHyperBandScheduler,
    "median_stopping_rule": median_stopping_rule.MedianStoppingRule,
    "medianstopping": median_stopping_rule.MedianStoppingRule,
    "hyperband": hyperband.HyperBandScheduler,
    "hb_bohb": hb_bohb.HyperBandForBOHB,
    "pbt": pbt.PopulationBasedTraining,
    "pbt_replay": pbt_replay.PopulationBasedTrainingReplay,
    "pb2": pb2.PB2,
}
"""Ray's names, and ``"asha"``."""


def create_scheduler(scheduler: str, **kwargs: object) -> contract.TrialScheduler:
    """Return a new scheduler of a name.

    Args:
        scheduler: One of `NAMES`, in upper or lower case.
        **kwargs: Its arguments. As in Ray, unknown ones are ignored.

    Raises:
        ValueError: No scheduler has that name.

    Example:
        >>> from hocket.tune.schedulers import create_scheduler
        >>> create_scheduler("asha", max_t=9, perturbation_interval=3).debug_string()
        'AsyncHyperBand: 0 stopped\\n1: none | 4: none'
    """
    name = scheduler.lower()
    if name not in NAMES:
        raise ValueError(f"scheduler must be one of {', '.join(NAMES)}, but received {scheduler!r}. Write 'asha'.")
    make = NAMES[name]
    return make(**{key: value for key, value in kwargs.items() if key in inspect.signature(make).parameters})
