"""Pools: steps that actors run. An actor makes an object once, such as a model, and uses it for many blocks.

A block belongs to the pool, and an actor only borrows it. The pool sends a block to the least busy actor, and sends it
to another one if that actor dies. A dead actor is replaced if there is room; if not, the pool goes on with the actors
that are left. The pool gives up if it has no placed actor for a while, or if several actors died of one block. Blocks
come back in their order.

After the loss of nodes, the remaining actors may hold all CPUs. The tasks that supply the pool's blocks then wait for
CPUs, while the pool waits for the blocks. So, with several nodes, a thread ends actors that hold too many CPUs.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, final

from hocket import exceptions
from hocket.core import actor, api, scopes, session
from hocket.crew import contract, crew
from hocket.data import block_reads, blocks, plan, settings, steps
from hocket.data.execution import tasks
from hocket.engine import node

MOST_RESTARTS: Final = 3
"""How many more actors get a block after one died of it. A guess: a block that kills more is itself the cause."""

ROOM_SECONDS: Final = 60.0
"""How long a pool waits for a place for its first actor, or for another actor where none is left. As in training."""

BUSY: Final = 5
"""How many times longer it waits where tasks of its own plan may hold the room for a while. A guess."""

GATHER_SECONDS: Final = 5.0
"""How long a pool waits until all of its first actors are placed, before the placed ones begin. A guess: Ray's workers
take a second or two to start."""

LOOK_SECONDS: Final = 2.0
"""How often a thread checks whether a node was lost. A guess: Ray takes several seconds to find out."""


class _Actor:
    """An actor of a pool. Its class is renamed after the step."""

    _work: Any = None

    def place(self) -> str:
        """Return the ID of the actor's node."""
        return api.get_runtime_context().get_node_id()

    def make(self, pool: plan.Pool) -> None:
        """Make the object that takes long to make."""
        try:
            self._work = steps.bind(pool.work, pool.make())
        except Exception as error:
            exceptions.mark_user_code(error)
            raise

    def run(self, block: blocks.Block, part: tuple[int, int] | None) -> tuple[blocks.Block, tasks.Size]:
        """Return the step's result for a block, and its size."""
        found = steps.call(self._work, block if part is None else block.cut(*part))
        return found, tasks.measure(found)


@final
@dataclass(frozen=True)
class Share:
    """The limits of a pool: numbers of actors and CPUs."""

    least: int
    most: int
    num_cpus: float
    """How many CPUs each actor holds."""


@final
@dataclass(eq=False)
class Job:
    """A block that the pool has received and not yet returned."""

    found: block_reads.Held | block_reads.Stored
    is_out: bool = False
    """Whether the block was sent to an actor, including one that has finished it."""
    ref: Any = None
    """The reference of the result, when it is ready."""
    maker: _Member | None = None
    deaths: int = 0
    """How many actors died while they worked on the block."""
    size: tasks.Size | None = None
    error: exceptions.HocketError | None = None


@final
@dataclass(frozen=True, slots=True)
class Given:
    """The event that the pool receives a block."""

    job: Job


@final
@dataclass(eq=False)
class _Member:
    """The policy's view of one actor of the pool."""

    num_cpus: float
    node_id: str = ""
    is_ready: bool = False
    is_superfluous: bool = False
    """Whether the pool ended the actor because it held CPUs that tasks need."""
    jobs: list[Job] = field(default_factory=list)
    """The current job, and then the next ones."""


class Room(Protocol):
    """The room that the pools of a plan share."""

    @property
    def tasks_hold_cpus(self) -> bool:
        """Whether tasks of the plan hold CPUs."""

    @property
    def spans_nodes(self) -> bool:
        """Whether the room is on several nodes, which may be lost."""

    @property
    def shares(self) -> list[Share]:
        """The limits of each pool at the start."""

    def divide(self) -> list[Share]:
        """Return the current limits of each pool."""

    def describe(self) -> str:
        """Describe the room that is left, for an error."""


_PLACED: Final = "placed"
_MADE: Final = "made"


@final
class PoolPolicy:
    """The policy of a pool: which actor gets which block, and how many actors there are.

    Args:
        pool: The pool's step.
        room: The limits.
        index: The pool's place among the plan's pools.
        build: Starts an actor that holds this many CPUs.
        now: Seconds of the clock.
    """

    is_over = False  # `run_pool` ends the crew

    def __init__(
        self, pool: plan.Pool, room: Room, index: int, build: Callable[[float], actor.ActorHandle], now: float
    ) -> None:
        self._pool, self._room, self._index, self._build = pool, room, index, build
        self._share = room.shares[index]
        self._members: list[_Member] = []
        self._patience_s = ROOM_SECONDS * (BUSY if room.tasks_hold_cpus else 1)
        self._unborn = 0
        self._has_begun = False
        self._changed_at = now
        """When the wait began, or when an actor was placed or lost since."""
        self.jobs: deque[Job] = deque()
        """The jobs, in the order of the blocks."""

    @property
    def most_blocks(self) -> int:
        """Largest number of blocks in the pool."""
        return self._pool.blocks_per_actor * self._share.most

    def begin_wait(self, now: float) -> None:
        """Note that the reader waits for the first block from now on."""
        self._changed_at = now

    def choose_superfluous(self, share: Share, living: Container[str]) -> list[_Member]:
        """Return the actors to end, so that no more are left than a share allows. Any thread may call this.

        Args:
            share: The limits.
            living: IDs of the living nodes.
        """
        there = [one for one in list(self._members) if one.num_cpus and (not one.node_id or one.node_id in living)]
        # End the actors that are not ready first: they lose the least work.
        there.sort(key=lambda one: (one.is_superfluous, not one.is_ready))
        chosen = [one for one in there[share.most if share.num_cpus else 0 :] if not one.is_superfluous]
        for one in chosen:
            one.is_superfluous = True
        return chosen

    def handle(self, event: contract.Event | Given, now: float) -> Iterator[contract.Action]:
        """See `crew.contract.Policy`."""
        if isinstance(event, Given):
            self.jobs.append(event.job)
            yield from self._assign(now)
        elif isinstance(event, contract.TurnBegan):
            yield from self._assign(now)
        elif isinstance(event, contract.TurnEnded):
            if not self._has_place and now >= self._changed_at + self._patience_s:
                raise self._explain_no_room()
        elif isinstance(event, contract.Answered):
            self._note(event, now)
        elif isinstance(event, contract.Lost):
            yield from self._lose(event.member, event.error, now)
        elif isinstance(event, contract.Failed) and isinstance(event.about, Job):
            event.about.error = event.error
            event.member.jobs.remove(event.about)
        elif isinstance(event.error, exceptions.InfeasibleResourcesError):  # also `Unplaceable`
            self._members.remove(event.member)
            yield contract.Stop(event.member)
            self._make_do(event.error)
        else:
            raise event.error

    def find_due(self, now: float) -> float | None:
        """Return the time of the next deadline."""
        if not self._has_place:
            return self._changed_at + self._patience_s
        left_s = math.inf if self._has_begun else self._find_gathering(now)
        return None if left_s == math.inf else now + left_s

    @property
    def _has_place(self) -> bool:
        return any(one.node_id or one.is_ready for one in self._members)

    def _assign(self, now: float) -> Iterator[contract.Action]:
        while len(self._members) < self._share.least:
            yield from self._add()
        self._has_begun = self._has_begun or self._find_gathering(now) <= 0
        for job in self.jobs if self._has_begun else ():
            if job.is_out or job.error is not None:
                continue
            there = [one for one in self._members if one.is_ready and len(one.jobs) < self._pool.blocks_per_actor]
            if not there:  # an actor that is not ready yet may be enough, so no other one starts beside it
                if len(self._members) < self._share.most and all(one.is_ready for one in self._members):
                    yield from self._add()
                return
            yield self._send(job, min(there, key=lambda one: len(one.jobs)))

    def _find_gathering(self, now: float) -> float:
        """Return how many seconds ready actors still wait for the others: infinity while a placed one is not ready, or
        none is ready; 0 if all are ready, or the time is up."""
        late = [one for one in self._members if not one.is_ready]
        if any(one.node_id for one in late) or len(late) == len(self._members):
            return math.inf
        return max(0.0, self._changed_at + GATHER_SECONDS - now) if late else 0.0

    def _add(self) -> Iterator[contract.Action]:
        one = _Member(self._share.num_cpus)
        self._members.append(one)
        yield contract.Start(one, functools.partial(self._build, one.num_cpus))
        yield contract.Call(one, "place", about=_PLACED)
        yield contract.Call(one, "make", (self._pool,), about=_MADE)

    def _make_do(self, error: exceptions.HocketError) -> None:
        """Go on with the present actors, because another one cannot start; without any, raise the error."""
        if not self._members:
            raise error
        self._share = replace(self._share, least=1, most=len(self._members))

    @staticmethod
    def _send(job: Job, chosen: _Member) -> contract.Call:
        found = job.found
        args: Any = (
            (found.ref, (found.start, found.stop)) if isinstance(found, block_reads.Stored) else (found.block, None)
        )
        job.is_out, job.maker = True, chosen
        chosen.jobs.append(job)
        return contract.Call(chosen, "run", args, about=job, num_returns=2)

    def _note(self, event: contract.Answered, now: float) -> None:
        one: _Member = event.member
        if isinstance(event.about, Job):
            event.about.ref, event.about.size = event.kept[0], event.value
            one.jobs.remove(event.about)
        elif event.about == _PLACED:
            one.node_id, self._changed_at = event.value, now
        else:
            one.is_ready = True
            self._unborn = 0

    def _lose(self, lost: _Member, error: exceptions.HocketError, now: float) -> Iterator[contract.Action]:
        """Take back the blocks of a dead actor for others, also finished blocks that may be gone with its node."""
        self._members.remove(lost)
        self._changed_at = now
        yield contract.Stop(lost)
        running, lost.jobs = lost.jobs, []
        if running and not lost.is_superfluous:
            running[0].deaths += 1  # an actor works on its first job, so only that one may have killed it
            if running[0].deaths > MOST_RESTARTS:
                running[0].error = self._explain_deaths(
                    f"{running[0].deaths} actors, one after the other, on the same block", error
                )
        elif not (lost.is_ready or lost.is_superfluous):
            self._unborn += 1
            if self._unborn > MOST_RESTARTS * self._share.most:
                raise self._explain_deaths(f"{self._unborn} actors before they were ready to work", error)
        if self._room.spans_nodes:  # results lie on the actor's node, so all blocks that it made may be gone
            running = [job for job in self.jobs if job.maker is lost]
            self._share = self._room.divide()[self._index]
        for job in running:
            job.is_out, job.ref, job.maker, job.size = False, None, None, None

    def _explain_deaths(self, what: str, error: exceptions.HocketError) -> exceptions.ActorDiedError:
        return exceptions.ActorDiedError(
            f"`{self._pool.name}` lost {what}. The last error: {error}",
            actor_id=getattr(error, "actor_id", ""),
            death=getattr(error, "death", None),
        )

    def _explain_no_room(self) -> exceptions.ActorUnschedulableError:
        wanted = {"CPU": self._share.num_cpus, **_list_held(self._pool)}
        held = node.format_resources({name: amount for name, amount in wanted.items() if amount})
        return exceptions.ActorUnschedulableError(
            f"`{self._pool.name}` found no room for an actor in {self._patience_s:.0f} s: each actor holds {held}, "
            f"but {self._room.describe()}. Let its actors hold less, or end the work that holds the rest."
        )


def run_pool(
    found: Iterator[block_reads.Held | block_reads.Stored],
    allotment: Allotment,
    index: int,
    options: settings.ExecutionOptions,
    scope: scopes.Scope,
) -> Iterator[block_reads.Stored]:
    """Yield a pool's results for blocks, in their order. The pool's actors end with the loop.

    Args:
        found: The blocks.
        allotment: The limits of the plan's pools.
        index: The pool's place among them.
        options: The limits of the execution.
        scope: The scope of the execution.
    """
    pool = allotment.pools[index]
    session.get_engine().tasks.expect_work(["hocket.data.calls"])  # the actors get classes of this module

    def build(num_cpus: float) -> actor.ActorHandle:
        held: dict[str, Any] = {**pool.resources, "num_cpus": num_cpus}
        named = type(pool.name, (_Actor,), {"__module__": _Actor.__module__})
        return scope.own(api.remote(max_restarts=0, **held)(named).remote())

    policy = PoolPolicy(pool, allotment, index, build, time.monotonic())
    team = crew.Crew(policy, kill=functools.partial(_kill, scope))
    largest, is_over, is_closed = 0, False, threading.Event()
    scope.at_end(is_closed.set)
    if allotment.spans_nodes:
        watch = threading.Thread(
            target=_look_after_cpus, args=(policy, team, scope, allotment, index, is_closed), name="hocket-pool"
        )
        watch.daemon = True
        watch.start()
    try:
        team.tell(contract.TurnBegan())  # actors make their objects while the pool waits for blocks
        while True:
            while not is_over and _has_room(policy, largest, options):
                one = next(found, None)
                if one is None:
                    is_over = True
                else:
                    team.tell(Given(Job(one)))
            if not policy.jobs:
                return
            stored = _take_first(policy, team)
            largest = max(largest, stored.num_bytes, 1)
            yield stored
    finally:
        is_closed.set()
        team.close()


def _take_first(policy: PoolPolicy, team: crew.Crew) -> block_reads.Stored:
    """Wait for the first block, and return its result."""
    first = policy.jobs[0]
    policy.begin_wait(time.monotonic())
    while first.size is None and first.error is None:
        team.turn()
    policy.jobs.popleft()
    if first.error is not None:
        raise first.error
    size = first.size
    assert size is not None, "it has ended"
    return block_reads.Stored(first.ref, size.num_bytes, 0, size.num_rows, size.types, size.left_out)


def _kill(scope: scopes.Scope, handle: actor.ActorHandle) -> None:
    with contextlib.suppress(exceptions.HocketError):  # the actor or the session has ended
        if session.is_initialized():
            scope.kill(handle)


def _look_after_cpus(
    policy: PoolPolicy,
    team: crew.Crew,
    scope: scopes.Scope,
    allotment: Allotment,
    index: int,
    is_closed: threading.Event,
) -> None:
    """End actors as long as they hold more CPUs than the pool's share after a loss. Runs in a thread."""
    while not is_closed.wait(LOOK_SECONDS):
        with contextlib.suppress(exceptions.HocketError):  # the loop meets the same error
            share = allotment.divide()[index]
            if share != allotment.shares[index]:
                living = {found["NodeID"] for found in api.nodes() if found["Alive"]}
                for one in policy.choose_superfluous(share, living):
                    handle = team.get_handle(one)
                    one.is_superfluous = handle is not None  # else it is about to start, and is checked next time
                    if handle is not None:
                        _kill(scope, handle)


def _has_room(policy: PoolPolicy, largest: int, options: settings.ExecutionOptions) -> bool:
    count = len(policy.jobs)
    most = min(policy.most_blocks, options.max_blocks_in_flight or policy.most_blocks)
    if not largest:  # two blocks are enough to learn the size
        most = min(most, 2)
    return not count or (count < most and largest * (count + 1) <= options.get_bytes_in_flight())


@final
class Allotment:
    """The limits of all pools of a plan together, which may run at once.

    Args:
        pools: The pools.
        options: The limits. If this plan is part of another plan whose pools hold all CPUs, tasks hold none.
        task_cpus: Largest number of CPUs of a task of the plan.
    """

    def __init__(self, pools: Sequence[plan.Pool], options: settings.ExecutionOptions, task_cpus: float) -> None:
        self.pools = pools
        self._nothing_left = options.task_cpus is not None
        self._total = tasks.count_cpus() if pools else 0.0
        self.shares = self._share_out(pools, self._total) if pools else []
        held = sum(share.most * share.num_cpus for share in self.shares)
        self.holds_all = bool(pools) and held + 1 > self._total
        """Whether the pools leave no CPU for tasks, which would wait for one for ever."""
        self.tasks_hold_cpus = not (self._nothing_left or self.holds_all)
        """Whether tasks of the plan hold CPUs."""
        self._for_tasks = task_cpus if self.tasks_hold_cpus else 0.0
        self.spans_nodes = bool(pools) and sum(bool(found["Alive"]) for found in api.nodes()) > 1
        """Whether the room is on several nodes, which may be lost."""

    def describe(self) -> str:
        """Describe the room that is left, for an error."""
        total, left = api.cluster_resources(), api.available_resources()
        return f"only {node.format_resources(left)} of {node.format_resources(total)} is free"

    def divide(self) -> list[Share]:
        """Return the current limits of each pool: with at least one actor each if CPUs were lost since the start, else
        the limits at the start."""
        total = tasks.count_cpus()
        if total >= self._total:
            return self.shares
        return self._share_out([replace(pool, least=1) for pool in self.pools], total - self._for_tasks)

    def _share_out(self, pools: Sequence[plan.Pool], total: float) -> list[Share]:
        """Return the number of actors for each pool. Where not even the least numbers fit, actors hold no CPU: else a
        pool would wait for ever for CPUs of the pool after it."""
        left = total - sum(pool.least * pool.num_cpus for pool in pools)
        if self._nothing_left or left < 0 or api.get_runtime_context().get_actor_id() is not None:
            # In an actor: see `tasks.make_task`.
            room = max(0, int(total))
            rooms = [max(pool.least, min(pool.most, room, _count_room(pool))) for pool in pools]
            return [  # an actor that requests more CPUs than there are in all must still fail
                Share(pool.least, most, pool.num_cpus if pool.num_cpus > self._total else 0.0)
                for pool, most in zip(pools, rooms, strict=True)
            ]
        shares = []
        for pool in pools:
            room = int(left / pool.num_cpus) if pool.num_cpus else max(0, int(total) - pool.least)
            more = max(0, min(pool.most - pool.least, room, _count_room(pool) - pool.least))
            left -= more * pool.num_cpus
            shares.append(Share(pool.least, pool.least + more, pool.num_cpus))
        return shares


def _list_held(pool: plan.Pool) -> dict[str, Any]:
    """Return the resources that each actor holds besides CPUs."""
    own: Any = pool.resources.get("resources") or {}
    return {"GPU": pool.resources.get("num_gpus"), "memory": pool.resources.get("memory"), **own}


def _count_room(pool: plan.Pool) -> int:
    """Return how many of the pool's actors fit into the GPUs, the memory and the program's own resources."""
    total, held = session.get_engine().resources.get_total_resources(), _list_held(pool)
    return min((int(total.get(name, 0) / amount) for name, amount in held.items() if amount), default=pool.most)
