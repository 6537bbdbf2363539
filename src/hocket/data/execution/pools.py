"""Steps that actors do: what takes long to make, such as a model, is made once in each, and then used for many blocks.

Blocks go to the actor that has the fewest, and come back in their order. An actor that dies is made again, and what it
was working on is done again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

from hocket.core import actor, api, scopes
from hocket.data import block_reads, blocks, plan, settings
from hocket.data.execution import tasks

BLOCKS_PER_ACTOR: Final = 2
"""How many blocks an actor has at once: the one that it works on, and the next."""

MOST_RESTARTS: Final = 3
"""How often an actor that died is made again. A guess: what dies more often does so because of what it is given."""


class _Member:
    """An actor of a pool."""

    def __init__(self, pool: plan.Pool) -> None:
        self._apply = pool.bind(pool.make())

    def run(self, block: blocks.Block, part: tuple[int, int] | None) -> tuple[blocks.Block, tasks.Size]:
        """Return what becomes of a block."""
        found = self._apply(block if part is None else block.cut(*part))
        return found, tasks.measure(found)


@final
@dataclass(frozen=True)
class Share:
    """What a pool may have."""

    least: int
    most: int
    num_cpus: float
    """What each actor holds."""


class _Team:
    """The actors of a pool, and how many blocks each has."""

    def __init__(self, pool: plan.Pool, share: Share, scope: scopes.Scope) -> None:
        self._pool, self._share, self._scope = pool, share, scope
        self._members: list[tuple[actor.ActorHandle, list[int]]] = []
        self.assigned: list[list[int]] = []
        """Of each block that was sent and not yet given: the count of the actor that has it."""
        for _ in range(share.least):
            self._add()

    def _add(self) -> None:
        options: dict[str, Any] = {**self._pool.resources, "num_cpus": self._share.num_cpus}
        made = api.remote(max_restarts=MOST_RESTARTS, max_task_retries=MOST_RESTARTS, **options)(_Member)
        self._members.append((self._scope.own(made.remote(self._pool)), [0]))

    def send(self, found: block_reads.Held | block_reads.Stored) -> list[Any]:
        """Have the actor that has the least to do take a block."""
        member, count = min(self._members, key=lambda one: one[1][0])
        if count[0] >= BLOCKS_PER_ACTOR and len(self._members) < self._share.most:
            self._add()
            member, count = self._members[-1]
        count[0] += 1
        self.assigned.append(count)
        run: Any = member.run.options(num_returns=2)
        refs: list[object]
        if isinstance(found, block_reads.Stored):
            refs = run.remote(found.ref, (found.start, found.stop))
        else:
            refs = run.remote(found.block, None)
        return refs

    def note_given(self) -> None:
        """Note that the block that was sent first is there."""
        self.assigned.pop(0)[0] -= 1

    def close(self) -> None:
        """End the actors."""
        for member, _ in self._members:
            self._scope.kill(member)


def run_pool(
    found: Iterator[block_reads.Held | block_reads.Stored],
    pool: plan.Pool,
    share: Share,
    options: settings.ExecutionOptions,
    scope: scopes.Scope,
) -> Iterator[block_reads.Stored]:
    """Give what a pool makes of blocks, in their order. Its actors end with the loop."""
    limit = BLOCKS_PER_ACTOR * share.most
    limit = min(limit, options.max_blocks_in_flight or limit)
    team = _Team(pool, share, scope)
    try:
        for stored in tasks.pump(map(team.send, found), replace(options, max_blocks_in_flight=limit), scope):
            team.note_given()
            yield stored
    finally:
        team.close()


def share_out(pools: Sequence[plan.Pool], *, nothing_left: bool) -> list[Share]:
    """Return how many actors there is room for in each of the pools of a plan, which may all run at once.

    Where not even the least fit, they hold no CPU: a pool would wait for ever for what the one behind it holds.

    Args:
        pools: The pools.
        nothing_left: Whether others hold all CPUs.
    """
    total = api.cluster_resources().get("CPU", 1.0)
    left = total - sum(pool.least * pool.num_cpus for pool in pools)
    if nothing_left or left < 0 or api.get_runtime_context().get_actor_id() is not None:  # see `tasks.make_task`
        room = int(total)
        return [Share(pool.least, max(pool.least, min(pool.most, room, _count_room(pool))), 0.0) for pool in pools]
    shares = []
    for pool in pools:
        room = int(left / pool.num_cpus) if pool.num_cpus else max(0, int(total) - pool.least)
        more = max(0, min(pool.most - pool.least, room, _count_room(pool) - pool.least))
        left -= more * pool.num_cpus
        shares.append(Share(pool.least, pool.least + more, pool.num_cpus))
    return shares


def _count_room(pool: plan.Pool) -> int:
    """Return how many of its actors there is enough for of GPUs, memory and the program's own resources.

    One that cannot start would keep the blocks waiting that it was given.
    """
    total = api.cluster_resources()
    own: Any = pool.resources.get("resources") or {}
    held: dict[str, Any] = {"GPU": pool.resources.get("num_gpus"), "memory": pool.resources.get("memory"), **own}
    return min((int(total.get(name, 0) / amount) for name, amount in held.items() if amount), default=pool.most)
