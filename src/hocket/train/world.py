"""The ranks' own collectives on numpy arrays, for frameworks that bring no process group.

A framework's `BackendConfig` calls `arrange` when the ranks live, and `leave` when they are done; its adapter calls `get_world` in a rank. The
controller brings the ranks together, so nothing listens: the first rank of each machine makes the memory, the others open it below ``/proc``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from hocket.collective import futex, host_group, lookout, segment, turns
from hocket.collective import world as collective_world
from hocket.collective.world import World
from hocket.core import actor, api
from hocket.train import backend, worker_group, worker_session

TIMEOUT_SECONDS = 1800.0
"""How long an operation waits for a rank. torch's default."""


@final
@dataclass(frozen=True, kw_only=True)
class WorldConfig(backend.BackendConfig):
    """Joins the ranks for `get_world`, and does nothing else. For training functions that average numpy arrays themselves.

    Raises:
        ValueError: `timeout_s` is not positive.
    """

    timeout_s: float = TIMEOUT_SECONDS
    """Seconds that an operation may wait for a rank."""

    def __post_init__(self) -> None:
        check_timeout(self.timeout_s)

    def on_start(self, group: worker_group.WorkerGroup) -> None:
        """Join the ranks."""
        arrange(group, self.timeout_s)

    def on_shutdown(self, group: worker_group.WorkerGroup) -> None:
        """Part them."""
        leave(group)


def check_timeout(timeout_s: float) -> None:
    """Refuse a time-out that is none.

    Raises:
        ValueError: It is not positive.
    """
    if not timeout_s > 0:
        raise ValueError(
            f"timeout_s must be more than 0 seconds, but received {timeout_s!r}. Leave it out for {TIMEOUT_SECONDS:.0f}."
        )


def arrange(group: worker_group.WorkerGroup, timeout_s: float = TIMEOUT_SECONDS) -> None:
    """Join the ranks of a group. Called by the controller.

    Args:
        group: The ranks.
        timeout_s: How long an operation may wait for a rank.

    Raises:
        WorkerGroupError: A rank died, or cannot open the memory.
    """
    size = len(group)
    hosts = _list_hosts(group.execute(_identify_host, [()] * size))
    made = {host[0]: group.call(host[0], _make_memory, len(host)) for host in hosts if host[1:]}
    exchange = None
    if len(hosts) > 1:
        exchange = collective_world.start_actor(len(hosts))
        group.resources.callback(api.kill, exchange)
    steps = [_Step(rank, hosts, made.get(_find_host(hosts, rank)[0], ("", "")), exchange) for rank in range(size)]
    group.execute(_open_memory, [(step,) for step in steps])
    group.execute(_join, [(step, timeout_s) for step in steps])


def leave(group: worker_group.WorkerGroup) -> None:
    """Part the ranks of a group. Called by the controller."""
    group.execute(_leave, [()] * len(group))


def get_world(caller: str) -> World:
    """Return the calling rank's collectives; with one rank, some that have nothing to do.

    Args:
        caller: The function's name, for the message.

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


# --- in the ranks ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Step:
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


def _identify_host() -> str:
    return segment.identify_host() if futex.is_available() else ""


def _list_hosts(found: Sequence[str]) -> list[list[int]]:
    """Return the ranks of each machine; one that cannot share memory is alone."""
    hosts: dict[str, list[int]] = {}
    for rank, name in enumerate(found):
        hosts.setdefault(name or f"rank {rank}", []).append(rank)
    return list(hosts.values())


def _find_host(hosts: Sequence[Sequence[int]], rank: int) -> Sequence[int]:
    return next(host for host in hosts if rank in host)


def _make_memory(size: int) -> tuple[str, str]:
    """Called in the first rank of a machine."""
    global _memory  # noqa: PLW0603 (a rank is a process)
    _memory = segment.create(size)
    return _memory.path, _memory.identity


def _open_memory(step: _Step) -> None:
    global _memory  # noqa: PLW0603 (the same)
    path, identity = step.memory
    if not path:
        return
    host = _find_host(step.hosts, step.rank)
    if step.rank != host[0]:
        _memory = segment.open_segment(path, identity, len(host))
    assert _memory is not None, "the first rank has made it"
    lookout.join(_memory, host.index(step.rank))


def _join(step: _Step, timeout_s: float) -> None:
    """All ranks of this machine have opened the memory."""
    global _world, _memory  # noqa: PLW0603 (the same)
    host = _find_host(step.hosts, step.rank)
    local = None
    if _memory is not None:
        local = host_group.HostGroup(_memory, host.index(step.rank), timeout_s=timeout_s, names=host)
        _memory = None
    exchange = None
    if step.exchange is not None and step.rank == host[0]:
        exchange = collective_world.through_actor(step.exchange, list(step.hosts).index(host), timeout_s)
    _world = World(step.rank, step.hosts, local, exchange)


def _leave() -> None:
    global _world
    before, _world = _world, None
    if before is not None:
        before.close()
