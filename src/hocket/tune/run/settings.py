"""The settings of a search, with all defaults filled in."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from hocket.tune import configs, stopper
from hocket.tune.schedulers import contract
from hocket.tune.search import searcher

ResourceRequest: TypeAlias = Callable[[dict[str, Any]], Mapping[str, float]]
"""Returns what a trial of a configuration holds, by resource name."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A search."""

    folder: Path
    """Where it is kept."""
    trainable_name: str
    prefix: str
    """How its trials' ids begin."""
    metric: str | None
    mode: str | None
    seed: int
    tune: configs.TuneConfig
    run: configs.RunConfig
    space: Mapping[str, object]
    searcher: searcher.Searcher
    """It knows its space."""
    scheduler: contract.TrialScheduler
    stopper: stopper.Stopper
    request: ResourceRequest
    max_trials: int | None
    """How many trials there are; None: the searcher says when it has no more."""
    window: int | None
    """See `proposals.Proposals`."""
    saves_on_request: bool
    """Whether a trial can be told to save: a `Trainable`."""
    frequency: int = 0
    """After how many steps a `Trainable` saves."""
    saves_at_end: bool = False
    """Whether a `Trainable` saves when it ends."""
    key: bytes = field(default_factory=secrets.token_bytes)
    """What trials of this process's search sign their pickles with: another one opens what is signed."""
    trusts: bool = False
    """Whether a `Trainable` opens what is pickled in its checkpoints, whoever may write there."""
