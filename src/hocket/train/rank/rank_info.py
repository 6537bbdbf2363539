"""The facts that a rank gets with the call of the training function: its place in the group, and its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hocket.train.checkpoints import checkpoint, storage
from hocket.train.rank import rank_placement, reports


@dataclass(frozen=True, kw_only=True)
class AttemptInfo:
    """The facts that all ranks of an attempt get."""

    world_size: int
    run_storage: storage.Storage
    attempt: int = 0
    """The number of earlier starts of the group."""
    token: str = ""
    """The token that `storage.sees_token` looks for; empty if files go through the driver, or the rank runs in it."""
    start_checkpoint: checkpoint.Checkpoint | None = None
    """The checkpoint from which the attempt starts; None if it starts anew."""
    start_positions: reports.Positions = field(default_factory=dict)
    """The loaders' positions at the report of that checkpoint."""
    name_prefix: str = "checkpoint"
    """The beginning of the names of checkpoints that `checkpoint_upload_fn` uploads, unique to this attempt."""
    validates: bool = False
    """Whether the trainer was given a `ValidationConfig`."""
    datasets: Mapping[str, Any] = field(default_factory=dict)
    """The trainer's datasets, by name (`datasets.Supply`)."""
    compares: bool = False
    """Whether ranks that should be equal are compared (`equality`)."""
    compares_every: int = 0
    """The number of steps between further comparisons; 0: only at reports and ends."""
    stays: bool = False
    """Whether the rank may run another function afterwards, as a rank of `Trainer` does. Its collectives then stay
    open, and the function's value is returned from every rank, not only from rank 0."""


@dataclass(frozen=True, kw_only=True)
class RankInfo(AttemptInfo):
    """The facts that one rank gets."""

    rank: int
    local_rank: int = 0
    """The rank's index among the ranks of its node."""
    local_world_size: int = 1
    """The number of ranks on the node."""
    node_rank: int = 0
    """The index of the node among those of the group."""
    use_gpu: bool = False
    bystander: str = ""
    """The name of the rank's role, if it does not report, such as an evaluator; else empty."""


def build(
    attempt: AttemptInfo, rank: int, place: rank_placement.RankPlacement, *, use_gpu: bool, bystander: str = ""
) -> RankInfo:
    """Return the facts for one rank."""
    return RankInfo(
        **vars(attempt),
        rank=rank,
        local_rank=place.local_rank,
        local_world_size=place.local_world_size,
        node_rank=place.node_rank,
        use_gpu=use_gpu,
        bystander=bystander,
    )
