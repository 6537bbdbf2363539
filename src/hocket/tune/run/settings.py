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
"""A function from a configuration to the resources of its trial, by name."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a search."""

    folder: Path
    """The search's folder."""
    trainable_name: str
    prefix: str
    """The prefix of its trials' ids."""
    metric: str | None
    mode: str | None
    seed: int
    tune: configs.TuneConfig
    run: configs.RunConfig
    space: Mapping[str, object]
    searcher: searcher.Searcher
    """The searcher, which knows the space."""
    scheduler: contract.TrialScheduler
    stopper: stopper.Stopper
    request: ResourceRequest
    max_trials: int | None
    """The number of trials; None: the searcher decides when there are no more."""
    window: int | None
    """See `proposals.Proposals`."""
    saves_on_request: bool
    """Whether a trial can save when ordered to, as a `Trainable` can."""
    frequency: int = 0
    """The steps between two saves of a `Trainable`."""
    saves_at_end: bool = False
    """Whether a `Trainable` saves when it ends."""
    key: bytes = field(default_factory=secrets.token_bytes)
    """The key with which this search's trials sign their pickles. A trial opens another's pickle if it is signed."""
    trusts: bool = False
    """Whether a `Trainable` unpickles its checkpoints even if other users may write to them."""
