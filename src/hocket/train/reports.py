"""What travels from a rank to the controller."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hocket.train import storage, validation

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

    def read_metrics(self) -> dict[str, Any]:
        """Return the metrics."""
        metrics: dict[str, Any] = pickle.loads(self.metrics_blob)
        return metrics


def encode_metrics(metrics: object) -> bytes:
    """Check metrics and pickle them.

    Raises:
        TypeError: It is no dict.
        ValueError: It holds a torch tensor, or something that cannot be pickled.
    """
    if not isinstance(metrics, dict):
        raise TypeError(
            f"report() takes a dict of metrics, but received {type(metrics).__name__}: {metrics!r}. Write report({{'loss': loss}})."
        )
    torch = sys.modules.get("torch")  # a tensor can only be there if torch is; it is not imported for this
    if torch is not None:
        for key, value in _walk(metrics, ""):
            if isinstance(value, torch.Tensor):
                raise ValueError(  # noqa: TRY004 (Ray raises it, and programs catch it)
                    f"metrics[{key!r}] must be a plain value, but is a torch tensor of shape {tuple(value.shape)}. Pass .item() of "
                    "it for a number, or .tolist() for several."
                )
    try:
        return pickle.dumps(metrics, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise ValueError(
            f"metrics must be picklable, but {metrics!r} is not: {error}. Report plain numbers, strings, lists and dicts."
        ) from error


def _walk(value: object, key: str) -> Iterator[tuple[str, object]]:
    """Yield each leaf with its path, ``"a/b"``."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _walk(inner, f"{key}/{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for position, inner in enumerate(value):
            yield from _walk(inner, f"{key}/{position}" if key else str(position))
    else:
        yield key, value
