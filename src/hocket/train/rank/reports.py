"""The messages from a rank to the controller."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hocket._base import spending, texts
from hocket.train import validation
from hocket.train.checkpoints import storage
from hocket.train.rank import equality
from hocket.train.tracking import plain

Metrics: TypeAlias = dict[str, Any]
"""The metrics of a report, as plain data (`tracking.plain`)."""

Positions: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The state of each loader, by the loader's name, as plain numbers for the checkpoint's manifest."""


@dataclass(frozen=True, slots=True)
class Report:
    """One call of `report` in one rank."""

    index: int
    """The number of the rank's earlier reports."""
    metrics_blob: bytes
    """The metrics, pickled at once, so that later changes of the rank's dict do not matter."""
    staged: storage.Staged | storage.Offered | storage.Adopted | None
    """The checkpoint's uncommitted files in the run's folder, or the offer of files to fetch; None without a
    checkpoint."""
    dir_name: str | None
    """The name that the rank wants for the checkpoint's folder."""
    positions: Positions = field(default_factory=dict)
    """The positions of the rank's loaders at the report, if it has a checkpoint."""
    validation: bool | validation.ValidationTaskConfig = False
    """Whether to validate the checkpoint, and with which settings."""
    waits: bool = False
    """Whether the rank's training function waits for the commit."""
    made_at: float = 0.0
    """When the report was made, by the rank's ``time.time``."""
    spent: spending.Spent | None = None
    """How the rank has spent its time since its last report; None if not known."""
    look: equality.Look | None = None
    """The rank's tensors at the report, for the divergence check; None if the look travels by itself."""

    def read_metrics(self) -> Metrics:
        """Return the metrics."""
        metrics: Metrics = pickle.loads(self.metrics_blob)
        return metrics


def encode_metrics(metrics: object) -> bytes:
    """Check metrics, and pickle them as plain data."""
    if not isinstance(metrics, dict):
        raise TypeError(
            f"report() takes a dict of metrics, but received {texts.name_class(type(metrics))}: "
            f"{texts.safe_repr(metrics)}. Write report({{'loss': loss}})."
        )
    return pickle.dumps(plain.convert(metrics), pickle.HIGHEST_PROTOCOL)
