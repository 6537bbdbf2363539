"""A rank's place in its group, and what it starts from: what it is given when the training function is called."""

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
    """How often the group had been started before."""
    token: str = ""
    """What `storage.sees_token` looks for; empty if the rank is the process that keeps the run."""
    start_checkpoint: checkpoint.Checkpoint | None = None
    """What the attempt starts from."""
    start_positions: reports.Positions = field(default_factory=dict)
    """Where the loaders were when that checkpoint was reported."""
    name_prefix: str = "checkpoint"
    """How the names of checkpoints begin that `checkpoint_upload_fn` uploads; of this attempt only."""
    validates: bool = False
    """Whether the trainer was given a `ValidationConfig`."""
    datasets: Mapping[str, Any] = field(default_factory=dict)
    """The trainer's datasets, by name (`datasets.Supply`)."""
    compares: bool = False
    """Whether ranks that should be equal are compared (`equality`)."""
    compares_every: int = 0
    """After how many steps beside reports; 0: not."""
    stays: bool = False
    """Whether the rank runs another function afterwards, as one of `Trainer`: its collectives stay open, and what the
    function returns is wanted from every rank, not only from rank 0."""


@dataclass(frozen=True, kw_only=True)
class RankInfo(AttemptInfo):
    """The facts that one rank gets."""

    rank: int
    local_rank: int = 0
    """Its index among the ranks of its node."""
    local_world_size: int = 1
    """How many ranks there are on its node."""
    node_rank: int = 0
    """The index of its node among those of the group."""
    use_gpu: bool = False
    bystander: str = ""
    """The name of the rank's role, if it does not report, as an evaluator; else empty."""


def build(
    attempt: AttemptInfo, rank: int, place: rank_placement.RankPlacement, *, use_gpu: bool, bystander: str = ""
) -> RankInfo:
    """Return what a rank is given."""
    return RankInfo(
        **vars(attempt),
        rank=rank,
        local_rank=place.local_rank,
        local_world_size=place.local_world_size,
        node_rank=place.node_rank,
        use_gpu=use_gpu,
        bystander=bystander,
    )
