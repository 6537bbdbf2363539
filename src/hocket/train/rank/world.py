"""The ranks' own collectives on numpy arrays, for frameworks without a process group: the rank's side.

A framework's adapter calls `get_world`. The driver calls the other functions when it joins the ranks and parts them
(`hocket.train.run.joining`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hocket.collective import host_group, peer_monitor, segment, turns
from hocket.collective import world as collective_world
from hocket.collective.world import World
from hocket.core import actor
from hocket.train.rank import worker_session


def get_world(caller: str) -> World:
    """Return the calling rank's collectives; with one rank, collectives that have nothing to do.

    Raises:
        RuntimeError: The caller is not in a training function, or the trainer did not join the ranks.
    """
    info = worker_session.get_session(caller).info
    if _Here.world is not None:
        return _Here.world
    if info.world_size == 1:
        return World(0, [[0]])
    raise RuntimeError(
        f"hocket.train.{caller}() needs ranks that are joined, but this trainer's backend did not join them. Use the "
        "framework's own trainer, or DataParallelTrainer(..., backend_config=hocket.train.world.WorldConfig())."
    )


@dataclass(frozen=True, slots=True)
class Step:
    """The facts that one rank needs to join the others."""

    rank: int
    hosts: Sequence[Sequence[int]]
    memory: tuple[str, str]
    """Path and identity of the memory that the machine's ranks share; empty if the rank is alone there."""
    exchange: actor.ActorHandle | None


class _Here:
    """The links of this rank to the others: its collectives and, before `join`, the memory of its machine."""

    world: World | None = None
    memory: segment.Segment | None = None


def _put(kept: tuple[World | None, segment.Segment | None]) -> None:
    _Here.world, _Here.memory = kept


LOCAL: Final = turns.Local(lambda: (_Here.world, _Here.memory), _put, lambda: (None, None))
"""Both links, for ranks that take turns in one process."""


def find_host(hosts: Sequence[Sequence[int]], rank: int) -> Sequence[int]:
    return next(host for host in hosts if rank in host)


def make_memory(size: int) -> tuple[str, str]:
    """Make the machine's shared memory, in its first rank; return the memory's path and identity."""
    _Here.memory = segment.create(size)
    return _Here.memory.path, _Here.memory.identity


def open_memory(step: Step) -> None:
    path, identity = step.memory
    if not path:
        return
    host = find_host(step.hosts, step.rank)
    if step.rank != host[0]:
        _Here.memory = segment.open_segment(path, identity, len(host))
    assert _Here.memory is not None, "the first rank has made it"
    peer_monitor.join(_Here.memory, host.index(step.rank))


def join(step: Step, timeout_s: float) -> None:
    """Make the rank's collectives. Called when all ranks of this machine have opened the memory."""
    host = find_host(step.hosts, step.rank)
    local = None
    if _Here.memory is not None:
        local = host_group.HostGroup(_Here.memory, host.index(step.rank), timeout_s=timeout_s, names=host)
        _Here.memory = None
    exchange = None
    if step.exchange is not None and step.rank == host[0]:
        exchange = collective_world.through_actor(step.exchange, list(step.hosts).index(host), timeout_s)
    _Here.world = World(step.rank, step.hosts, local, exchange)


def leave() -> None:
    before, _Here.world = _Here.world, None
    if before is not None:
        before.close()
