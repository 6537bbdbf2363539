"""The ranks' own collectives on numpy arrays, for frameworks that bring no process group: the rank's side.

An adapter calls `get_world`. The rest is called by the driver when it joins the ranks and parts them (`hocket.train.run.joining`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hocket.collective import futex, host_group, lookout, segment, turns
from hocket.collective import world as collective_world
from hocket.collective.world import World
from hocket.core import actor
from hocket.train.rank import worker_session


def get_world(caller: str) -> World:
    """Return the calling rank's collectives; with one rank, some that have nothing to do.

    Raises:
        RuntimeError: It is called outside a training function, or by one whose trainer did not join the ranks.
    """
    info = worker_session.get_session(caller).info
    if _world is not None:
        return _world
    if info.world_size == 1:
        return World(0, [[0]])
    raise RuntimeError(
        f"hocket.train.{caller}() needs ranks that are joined, but this trainer's backend did not join them. Use the framework's own trainer, or "
        "DataParallelTrainer(..., backend_config=hocket.train.world.WorldConfig())."
    )


@dataclass(frozen=True, slots=True)
class Step:
    """What one rank must know."""

    rank: int
    hosts: Sequence[Sequence[int]]
    memory: tuple[str, str]
    """Path and identity of what the machine's ranks share; empty if the rank is alone there."""
    exchange: actor.ActorHandle | None


_world: World | None = None
_memory: segment.Segment | None = None


def _take() -> tuple[World | None, segment.Segment | None]:
    return _world, _memory


def _put(kept: tuple[World | None, segment.Segment | None]) -> None:
    global _world, _memory
    _world, _memory = kept


LOCAL: Final = turns.Local(_take, _put, lambda: (None, None))
"""Both, for ranks that take turns in one process."""


def identify_host() -> str:
    return segment.identify_host() if futex.is_available() else ""


def find_host(hosts: Sequence[Sequence[int]], rank: int) -> Sequence[int]:
    return next(host for host in hosts if rank in host)


def make_memory(size: int) -> tuple[str, str]:
    """Called in the first rank of a machine."""
    global _memory  # noqa: PLW0603 (a rank is a process)
    _memory = segment.create(size)
    return _memory.path, _memory.identity


def open_memory(step: Step) -> None:
    global _memory  # noqa: PLW0603 (the same)
    path, identity = step.memory
    if not path:
        return
    host = find_host(step.hosts, step.rank)
    if step.rank != host[0]:
        _memory = segment.open_segment(path, identity, len(host))
    assert _memory is not None, "the first rank has made it"
    lookout.join(_memory, host.index(step.rank))


def join(step: Step, timeout_s: float) -> None:
    """All ranks of this machine have opened the memory."""
    global _world, _memory  # noqa: PLW0603 (the same)
    host = find_host(step.hosts, step.rank)
    local = None
    if _memory is not None:
        local = host_group.HostGroup(_memory, host.index(step.rank), timeout_s=timeout_s, names=host)
        _memory = None
    exchange = None
    if step.exchange is not None and step.rank == host[0]:
        exchange = collective_world.through_actor(step.exchange, list(step.hosts).index(host), timeout_s)
    _world = World(step.rank, step.hosts, local, exchange)


def leave() -> None:
    global _world
    before, _world = _world, None
    if before is not None:
        before.close()
