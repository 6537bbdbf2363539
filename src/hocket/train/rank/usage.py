"""The usage of a run that cuts its model over ranks: bytes moved and kept, by the layouts and as counted.

A strategy counts in the rank while it trains, and calls `note` when it is closed. Rank 0's goes with what the training
function returns to `hocket.train.Result.sharding`.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from hocket.train.rank import worker_session


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingBytes:
    """Bytes of one rank: what it keeps of the model, and what it receives of it in a step of the optimizer.

    Received is what the ranks must exchange, as `hocket.mesh.explain` counts it: of an all-reduce of n bytes among k
    ranks 2 n (k - 1) / k.

    Example:
        >>> from hocket.train import ShardingBytes
        >>> told = ShardingBytes(parameters=4096, gradients=4096, gathered=4096, reduced=4096)
        >>> told.gathered + told.reduced
        8192
    """

    parameters: int
    """Of the parameters, kept."""
    gradients: int
    """Of their gradients, kept."""
    gathered: int
    """Received to have parameters whole where layers use them, in the forward pass."""
    reduced: int
    """Received to have the parts' gradients added up."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingUsage:
    """The usage of a run with `hocket.train.strategies.Sharded`, in rank 0: predicted from the layouts, and
    measured."""

    predicted: ShardingBytes
    """What the layouts say, if in a step each layer computes once, forward and backward."""
    measured: ShardingBytes | None
    """What was counted, a step. None: no step was taken, or the ranks' collectives are not Hocket's own: in JAX, and
    Keras on it, XLA decides what moves, and does not say what for."""
    steps: int
    """How many steps were taken. Evaluation between them counts as theirs; what comes after the last does not count. In
    JAX: how many batches were made."""
    gathered_again: int
    """Bytes received a step to have parameters whole once more, where the backward pass needs them. Which those are
    depends on the layers: at most `ShardingBytes.gathered`."""
    other: int
    """Bytes received a step in all other collectives: of activations, if layers compute with parts, and what the
    training function does."""
    received: Mapping[str, int]
    """All bytes received a step, by the kind of collective: ``"all-reduce"``, ``"all-gather"``, ``"reduce-scatter"``,
    ``"all-to-all"``. In JAX: in one execution of the program that receives most of those that are compiled in the
    first step, each collective counted once; with ``"collective-permute"``."""
    optimizer: int
    """Bytes that optimizers keep for the parameters."""
    peak_memory: int
    """The most memory that the rank's process has had, in bytes, with all that it has imported."""


@final
@dataclass(frozen=True, slots=True)
class Returned:
    """The training function's return value in a rank, and the notes of a strategy there."""

    value: object
    usage: ShardingUsage


NOTE: Final = "usage"
"""Under which name a session keeps it."""


def note(usage: ShardingUsage) -> None:
    """Have a usage go to `Result.sharding`, if this is a rank. Called by a strategy that is closed."""
    session = worker_session.get_optional_session()
    if session is not None:
        session.notes[NOTE] = usage


def wrap(value: object, session: worker_session.WorkerSession) -> object:
    """Return what a rank returns, with what was noted there."""
    usage = session.notes.get(NOTE)
    return Returned(value, usage) if isinstance(usage, ShardingUsage) else value


def unwrap(returned: object) -> tuple[object, ShardingUsage | None]:
    """Return what the training function has returned, and what was noted."""
    return (returned.value, returned.usage) if isinstance(returned, Returned) else (returned, None)


def read_peak_memory() -> int:
    """Return the most memory that this process has had, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts kilobytes
