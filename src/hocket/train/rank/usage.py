"""The usage of a run that shards its model over ranks: bytes moved and kept, predicted from layouts and as counted.

A strategy counts in the rank while it trains, and calls `note` when it is closed. Rank 0's usage travels with the
training function's value to `hocket.train.Result.sharding`.
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
    """Bytes of the model that one rank keeps, and that it receives in a step of the optimizer.

    Received bytes are the bytes that ranks must exchange, as `hocket.mesh.explain` counts them. For an all-reduce of n
    bytes among k ranks, they are 2 n (k - 1) / k.

    Example:
        >>> from hocket.train import ShardingBytes
        >>> told = ShardingBytes(parameters=4096, gradients=4096, gathered=4096, reduced=4096)
        >>> told.gathered + told.reduced
        8192
    """

    parameters: int
    """Bytes of parameters that the rank keeps."""
    gradients: int
    """Bytes of gradients that the rank keeps."""
    gathered: int
    """Bytes received to make parameters whole for the layers that use them, in the forward pass."""
    reduced: int
    """Bytes received to add up the gradients of the shards."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingUsage:
    """The usage of a run with `hocket.train.strategies.Sharded`, in rank 0: predicted and measured."""

    predicted: ShardingBytes
    """The bytes by the layouts, if each layer computes once in a step, forward and backward."""
    measured: ShardingBytes | None
    """The counted bytes for each step. None: no step was taken, or the ranks' collectives are not Hocket's own. (In
    JAX, and in Keras on JAX, XLA chooses the transfers, and does not say what each is for.)"""
    steps: int
    """The number of steps. Evaluation between steps counts as part of them; work after the last step does not count. In
    JAX: the number of batches that were made."""
    gathered_again: int
    """Bytes received in each step to make parameters whole again for the backward pass. Their number depends on the
    layers: at most `ShardingBytes.gathered`."""
    other: int
    """Bytes received in each step by all other collectives: for activations, if layers compute with shards, and by the
    training function itself."""
    received: Mapping[str, int]
    """All bytes received in each step, by the kind of collective: ``"all-reduce"``, ``"all-gather"``,
    ``"reduce-scatter"``, ``"all-to-all"``. In JAX, also ``"collective-permute"``: the bytes of one execution of one
    program, the one compiled in the first step that receives most, with each collective counted once."""
    optimizer: int
    """Bytes that optimizers keep for the parameters."""
    peak_memory: int
    """The peak memory of the rank's process in bytes, including imported modules."""


@final
@dataclass(frozen=True, slots=True)
class Returned:
    """The training function's return value in a rank, with the usage that a strategy noted there."""

    value: object
    usage: ShardingUsage


NOTE: Final = "usage"
"""The key of the usage in the session's notes."""


def note(usage: ShardingUsage) -> None:
    """Record a usage for `Result.sharding`, if this is a rank. A strategy calls this when it is closed."""
    session = worker_session.get_optional_session()
    if session is not None:
        session.notes[NOTE] = usage


def wrap(value: object, session: worker_session.WorkerSession) -> object:
    """Return a rank's return value, with the usage that was noted there, if any."""
    usage = session.notes.get(NOTE)
    return Returned(value, usage) if isinstance(usage, ShardingUsage) else value


def unwrap(returned: object) -> tuple[object, ShardingUsage | None]:
    """Return the training function's value, and the noted usage or None."""
    return (returned.value, returned.usage) if isinstance(returned, Returned) else (returned, None)


def read_peak_memory() -> int:
    """Return the peak memory of this process, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts kilobytes
