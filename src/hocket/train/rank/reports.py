"""The messages from a rank to the controller."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hocket._base import spending, texts
from hocket.train import validation
from hocket.train.checkpoints import storage
from hocket.train.tracking import plain

Metrics: TypeAlias = dict[str, Any]
"""What was reported, as plain data (`tracking.plain`)."""

Positions: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The state of each loader, by the loader's name. Plain numbers, which go into the checkpoint's manifest."""


@dataclass(frozen=True, slots=True)
class Report:
    """One call of `report` in one rank."""

    index: int
    """How many reports the rank had made before it."""
    metrics_blob: bytes
    """The metrics, pickled at once: what the rank does to its dict afterwards does not matter."""
    staged: storage.Staged | storage.Offered | storage.Adopted | None
    """The files of its checkpoint, already in the run's storage but not committed; or that they have to be fetched."""
    dir_name: str | None
    """The name that the rank wants the checkpoint to have."""
    positions: Positions = field(default_factory=dict)
    """Where the rank's loaders were when it reported, if it gave a checkpoint."""
    validation: bool | validation.ValidationTaskConfig = False
    """Whether, and how, the checkpoint is to be validated."""
    waits: bool = False
    """Whether the rank's training function goes on only when the checkpoint is committed."""
    made_at: float = 0.0
    """When, by the rank's `time.time`."""
    spent: spending.Spent | None = None
    """On what the rank has spent its time since its last report; None if nobody knows."""

    def read_metrics(self) -> Metrics:
        """Return the metrics."""
        metrics: Metrics = pickle.loads(self.metrics_blob)
        return metrics


def encode_metrics(metrics: object) -> bytes:
    """Check metrics and pickle them, as plain data."""
    if not isinstance(metrics, dict):
        raise TypeError(
            f"report() takes a dict of metrics, but received {texts.name_class(type(metrics))}: "
            f"{texts.safe_repr(metrics)}. Write report({{'loss': loss}})."
        )
    return pickle.dumps(plain.convert(metrics), pickle.HIGHEST_PROTOCOL)
