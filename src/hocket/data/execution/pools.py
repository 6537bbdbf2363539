"""Steps that actors do: what takes long to make, such as a model, is made once in each, and then used for many blocks.

A block belongs to the pool, and an actor only has it for a while: it goes to an actor that is there and has little to
do, and to another one if that dies. An actor that died is replaced where there is room for another; where there is
none, the pool goes on with those that are left. A pool gives up where an actor has no place for a while and no other
one is left, or where a block has ended several. Blocks come back in their order.

Where nodes are lost, the actors that are left may hold all CPUs that the tasks before them wait for, while the pool
waits for these: so there a thread looks after the CPUs, and ends actors that hold too many.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

from hocket import exceptions
from hocket.core import actor, api, scopes, session
from hocket.data import block_reads, blocks, plan, settings, steps
from hocket.data.execution import tasks
from hocket.engine import node

MOST_RESTARTS: Final = 3
"""How often a block is given to another actor after one died of it. A guess: what dies more often does so because of
what it is given."""

ROOM_SECONDS: Final = 60.0
"""How long a pool waits for room for its first actor, or for another one where none is left. As training does."""

BUSY: Final = 5
"""How many times longer it waits where tasks of its own plan may hold the room for a while. A guess."""

GATHER_SECONDS: Final = 5.0
"""How long a pool waits for all of its first actors to be placed, before those that are begin. A guess: Ray's workers
take a second or two to start."""

LOOK_SECONDS: Final = 2.0
"""How often it is looked whether a node was lost. A guess: Ray takes several seconds to learn it."""

_LOSSES: Final = (exceptions.ActorError, exceptions.NodeDiedError, exceptions.WorkerCrashedError)
"""What a call on an actor raises that is gone."""


class _Member:
    """An actor of a pool. Its class has the name of the step."""

    _apply: Any = None

    def place(self) -> str:
        """Return the node where it is."""
        return api.get_runtime_context().get_node_id()

    def make(self, pool: plan.Pool) -> None:
        """Make what takes long."""
        try:
            self._apply = pool.bind(pool.make())
        except Exception as error:
            exceptions.mark_user_code(error)
            raise

    def run(self, block: blocks.Block, part: tuple[int, int] | None) -> tuple[blocks.Block, tasks.Size]:
        """Return what becomes of a block."""
        found = steps.call(self._apply, block if part is None else block.cut(*part))
        return found, tasks.measure(found)


@final
@dataclass(frozen=True)
class Share:
    """The limits of a pool."""

    least: int
    most: int
    num_cpus: float
    """What each actor holds."""


@final
@dataclass(eq=False)
class _Job:
    """A block that the pool was given and has not given back."""

    found: block_reads.Held | block_reads.Stored
    refs: list[Any] = field(default_factory=list)
    """On its block and its size; none as long as no actor has it."""
    maker: _Actor | None = None
    deaths: int = 0
    """How many actors died while they worked on it."""
    size: tasks.Size | None = None
    error: exceptions.HocketError | None = None


@final
@dataclass(eq=False)
class _Actor:
    """An actor of a pool, as its driver sees it."""

    handle: actor.ActorHandle
    num_cpus: float
    placed: Any
    """The reference on its node."""
    made: Any
    """The reference that is there when it can take blocks."""
    node_id: str = ""
    is_ready: bool = False
    is_superfluous: bool = False
    """Whether the pool ended it because it held what tasks need."""
    jobs: list[_Job] = field(default_factory=list)
    """What it works on, and what comes next."""


class _Team:
    """The actors of a pool, and its blocks.

    Args:
        allotment: What it may have.
        index: Which of the plan's pools it is.
        scope: Ends the actors if the loop ends early.
    """

    def __init__(self, allotment: Allotment, index: int, scope: scopes.Scope) -> None:
        self._allotment, self._index, self._scope = allotment, index, scope
        self._pool, self._share = allotment.pools[index], allotment.shares[index]
        session.get_engine().tasks.expect_work(["hocket.data.calls"])  # whose classes the actors get
        self._actors: list[_Actor] = []
        self._patience_s = ROOM_SECONDS * (BUSY if allotment.tasks_hold_cpus else 1)
        self._unborn = 0
        self._has_begun = False
        self._changed_at = time.monotonic()
        """When the pool began to wait, or an actor was placed or lost since."""
        self._is_closed = threading.Event()
        scope.at_end(self._is_closed.set)
        self.jobs: deque[_Job] = deque()
        """In the order of the blocks."""
        if allotment.spans_nodes:
            watch = threading.Thread(target=self._look_after_cpus, name="hocket-pool", daemon=True)
            watch.start()

    def begin(self) -> None:
        """Start the first actors, which make what they need while the pool waits for blocks."""
        while len(self._actors) < self._share.least:
            self._add()

    @property
    def most_blocks(self) -> int:
        """How many blocks it may have."""
        return self._pool.blocks_per_actor * self._share.most

    def take_first(self) -> block_reads.Stored:
        """Wait for the first block, and return what became of it."""
        first = self.jobs[0]
        self._changed_at = time.monotonic()
        while first.size is None and first.error is None:
            self._assign()
            self._wait()
        self.jobs.popleft()
        if first.error is not None:
            raise first.error
        assert first.size is not None
        ref, size = first.refs[0], first.size
        return block_reads.Stored(ref, size.num_bytes, 0, size.num_rows, size.types, size.left_out)

    def assign_next(self, found: block_reads.Held | block_reads.Stored) -> None:
        """Have an actor take a block, if one has time."""
        self.jobs.append(_Job(found))
        self._assign()

    def _assign(self) -> None:
        self.begin()
        self._has_begun = self._has_begun or self._find_gathering() <= 0
        for job in self.jobs if self._has_begun else ():
            if job.refs or job.error is not None:
                continue
            there = [one for one in self._actors if one.is_ready and len(one.jobs) < self._pool.blocks_per_actor]
            if not there:
                if len(self._actors) < self._share.most and all(one.is_ready for one in self._actors):
                    self._add()
                return
            self._send(job, min(there, key=lambda one: len(one.jobs)))

    def _find_gathering(self) -> float:
        """Return how many seconds the first actors may still wait for the others; 0 if there is nobody to wait for."""
        late = [one for one in self._actors if not one.is_ready]
        if any(one.node_id for one in late) or len(late) == len(self._actors):
            return math.inf
        return max(0.0, self._changed_at + GATHER_SECONDS - time.monotonic()) if late else 0.0

    def _add(self) -> None:
        pool, num_cpus = self._pool, self._share.num_cpus
        options: dict[str, Any] = {**pool.resources, "num_cpus": num_cpus}
        named = type(pool.name, (_Member,), {"__module__": _Member.__module__})
        try:
            handle = self._scope.own(api.remote(max_restarts=0, **options)(named).remote())
        except exceptions.InfeasibleResourcesError as error:
            self._make_do(error)
            return
        self._actors.append(_Actor(handle, num_cpus, handle.place.remote(), handle.make.remote(pool)))

    def _make_do(self, error: exceptions.HocketError) -> None:
        """Go on with the actors that are there, since there will not be another; without any, raise the error."""
        if not self._actors:
            raise error
        self._share = replace(self._share, least=1, most=len(self._actors))

    def _send(self, job: _Job, chosen: _Actor) -> None:
        run: Any = chosen.handle.run.options(num_returns=2)
        found = job.found
        if isinstance(found, block_reads.Stored):
            job.refs = run.remote(found.ref, (found.start, found.stop))
        else:
            job.refs = run.remote(found.block, None)
        job.maker = chosen
        chosen.jobs.append(job)

    def _wait(self) -> None:
        """Wait until something is known of an actor or a block."""
        waits: dict[Any, tuple[_Actor, _Job | None]] = {}
        for one in self._actors:
            if not one.is_ready:
                waits[one.made if one.node_id else one.placed] = one, None
            waits.update({job.refs[1]: (one, job) for job in one.jobs})
        left_s = math.inf if self._has_begun else self._find_gathering()
        has_place = any(one.node_id for one in self._actors)
        if not has_place:
            left_s = max(0.0, self._changed_at + self._patience_s - time.monotonic())
        there, _ = api.wait([*waits], timeout=None if left_s == math.inf else left_s)
        if not there:
            if not has_place:
                raise self._explain_no_room()
            return
        self._take(there[0], *waits[there[0]])

    def _take(self, ref: Any, one: _Actor, job: _Job | None) -> None:
        """See to what has come of an actor: a block that it had, or how far it is made."""
        try:
            value = api.get(ref)
        except exceptions.HocketError as error:
            if isinstance(error, _LOSSES) and not isinstance(error, exceptions.TaskError):
                self._lose(one, error)
            elif job is None and isinstance(error, exceptions.InfeasibleResourcesError):
                self._actors.remove(one)
                self._make_do(error)
            elif job is None:
                raise
            else:
                job.error = error
                one.jobs.remove(job)
            return
        if job is not None:
            job.size = value
            one.jobs.remove(job)
        elif one.node_id:
            one.is_ready = True
            self._unborn = 0
        else:
            one.node_id, self._changed_at = value, time.monotonic()

    def _lose(self, lost: _Actor, error: exceptions.HocketError) -> None:
        """Take the blocks back that a dead actor had, for others; also those that may be gone with its node."""
        self._actors.remove(lost)
        self._changed_at = time.monotonic()
        self._end(lost)
        running, lost.jobs = lost.jobs, []
        if running and not lost.is_superfluous:
            running[0].deaths += 1
            if running[0].deaths > MOST_RESTARTS:
                running[0].error = self._explain_deaths(f"{running[0].deaths} actors, one after the other", error)
        elif not (lost.is_ready or lost.is_superfluous):
            self._unborn += 1
            if self._unborn > MOST_RESTARTS * self._share.most:
                raise self._explain_deaths(f"{self._unborn} actors before they had made what they need", error)
        if self._allotment.spans_nodes:
            running = [job for job in self.jobs if job.maker is lost]
            self._share = self._allotment.divide()[self._index]
        for job in running:
            job.refs, job.maker, job.size = [], None, None

    def _explain_deaths(self, what: str, error: exceptions.HocketError) -> exceptions.ActorDiedError:
        return exceptions.ActorDiedError(
            f"`{self._pool.name}` has ended {what}. The last: {error}",
            actor_id=getattr(error, "actor_id", ""),
            death=getattr(error, "death", None),
        )

    def _explain_no_room(self) -> exceptions.ActorUnschedulableError:
        wanted = {"CPU": self._share.num_cpus, **_list_held(self._pool)}
        held = node.format_resources({name: amount for name, amount in wanted.items() if amount})
        return exceptions.ActorUnschedulableError(
            f"`{self._pool.name}` has found no room for an actor in {self._patience_s:.0f} s: each holds {held}, and "
            f"of {node.format_resources(api.cluster_resources())} there are "
            f"{node.format_resources(api.available_resources())} left. Have its actors hold less, or end what holds "
            "the rest."
        )

    def _look_after_cpus(self) -> None:
        """End actors as long as they hold more than is the pool's after a loss. Runs in a thread."""
        while not self._is_closed.wait(LOOK_SECONDS):
            with contextlib.suppress(exceptions.HocketError):  # the loop meets the same
                self._free_cpus()

    def _free_cpus(self) -> None:
        share = self._allotment.divide()[self._index]
        if share == self._allotment.shares[self._index]:
            return
        living = {found["NodeID"] for found in api.nodes() if found["Alive"]}
        there = [one for one in list(self._actors) if one.num_cpus and (not one.node_id or one.node_id in living)]
        there.sort(key=lambda one: (one.is_superfluous, not one.is_ready))
        for one in there[share.most if share.num_cpus else 0 :]:
            if not one.is_superfluous:
                one.is_superfluous = True
                self._end(one)

    def close(self) -> None:
        """End the actors."""
        self._is_closed.set()
        for one in self._actors:
            self._end(one)

    def _end(self, one: _Actor) -> None:
        with contextlib.suppress(exceptions.HocketError):  # it is gone, or the session is
            if session.is_initialized():
                self._scope.kill(one.handle)


def run_pool(
    found: Iterator[block_reads.Held | block_reads.Stored],
    allotment: Allotment,
    index: int,
    options: settings.ExecutionOptions,
    scope: scopes.Scope,
) -> Iterator[block_reads.Stored]:
    """Give what a pool makes of blocks, in their order. Its actors end with the loop.

    Args:
        found: The blocks.
        allotment: What the plan's pools may have.
        index: Which of them it is.
        options: The limits.
        scope: Of the execution.
    """
    team = _Team(allotment, index, scope)
    largest, is_over = 0, False
    try:
        team.begin()
        while True:
            while not is_over and _has_room(team, largest, options):
                one = next(found, None)
                if one is None:
                    is_over = True
                else:
                    team.assign_next(one)
            if not team.jobs:
                return
            stored = team.take_first()
            largest = max(largest, stored.num_bytes, 1)
            yield stored
    finally:
        team.close()


def _has_room(team: _Team, largest: int, options: settings.ExecutionOptions) -> bool:
    count = len(team.jobs)
    most = min(team.most_blocks, options.max_blocks_in_flight or team.most_blocks)
    if not largest:  # two are enough to learn the size
        most = min(most, 2)
    return not count or (count < most and largest * (count + 1) <= options.get_bytes_in_flight())


@final
class Allotment:
    """The limits of all pools of a plan together, which may run at once.

    Args:
        pools: The pools.
        options: The limits. In a plan within one whose pools hold all CPUs, tasks hold none.
        task_cpus: How many CPUs a task of the plan holds at most.
    """

    def __init__(self, pools: Sequence[plan.Pool], options: settings.ExecutionOptions, task_cpus: float) -> None:
        self.pools = pools
        self._nothing_left = options.task_cpus is not None
        self._total = tasks.count_cpus() if pools else 0.0
        self.shares = self._share_out(pools, self._total) if pools else []
        held = sum(share.most * share.num_cpus for share in self.shares)
        self.holds_all = bool(pools) and held + 1 > self._total
        """Whether they leave no CPU for tasks, which would wait for ever for one."""
        self.tasks_hold_cpus = not (self._nothing_left or self.holds_all)
        """Whether tasks of the plan hold CPUs."""
        self._for_tasks = task_cpus if self.tasks_hold_cpus else 0.0
        self.spans_nodes = bool(pools) and sum(bool(found["Alive"]) for found in api.nodes()) > 1
        """Whether some of it may be lost."""

    def divide(self) -> list[Share]:
        """Return what each may have now, if CPUs were lost since the start, be it a single actor; else what it had
        then."""
        total = tasks.count_cpus()
        if total >= self._total:
            return self.shares
        return self._share_out([replace(pool, least=1) for pool in self.pools], total - self._for_tasks)

    def _share_out(self, pools: Sequence[plan.Pool], total: float) -> list[Share]:
        """Return how many actors there is room for in each pool. Where not even the least fit, they hold no CPU: a pool
        would wait for ever for what the one behind it holds."""
        left = total - sum(pool.least * pool.num_cpus for pool in pools)
        if self._nothing_left or left < 0 or api.get_runtime_context().get_actor_id() is not None:
            # In an actor: see `tasks.make_task`.
            room = max(0, int(total))
            return [Share(pool.least, max(pool.least, min(pool.most, room, _count_room(pool))), 0.0) for pool in pools]
        shares = []
        for pool in pools:
            room = int(left / pool.num_cpus) if pool.num_cpus else max(0, int(total) - pool.least)
            more = max(0, min(pool.most - pool.least, room, _count_room(pool) - pool.least))
            left -= more * pool.num_cpus
            shares.append(Share(pool.least, pool.least + more, pool.num_cpus))
        return shares


def _list_held(pool: plan.Pool) -> dict[str, Any]:
    """Return what each actor holds besides CPUs."""
    own: Any = pool.resources.get("resources") or {}
    return {"GPU": pool.resources.get("num_gpus"), "memory": pool.resources.get("memory"), **own}


def _count_room(pool: plan.Pool) -> int:
    """Return how many of its actors there is enough for of GPUs, memory and the program's own resources."""
    total, held = session.get_engine().resources.get_total_resources(), _list_held(pool)
    return min((int(total.get(name, 0) / amount) for name, amount in held.items() if amount), default=pool.most)
