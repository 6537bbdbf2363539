"""The tables of a session, and the five transitions that all its parts share.

`State` is what the kernel knows. The modules beside this one are functions on it, one module for each part, and each
imports only those before it in this list:

1. `objects`: values, and the counts that keep them.
2. `leases`: workers, the resources that they hold, and what they give back.
3. `direct_calls`: calls straight between workers, as far as the kernel has a hand in them.
4. `calls`: the rows of calls that stand before an actor.
5. `streams`: what generators yield.
6. `actors`: their life from the constructor to the grave.
   `reach` finds those among them that nobody can reach any more.
7. `placing`: which task goes to which worker, and when.
8. `groups`: resources reserved together.
9. `tasks`: the life of a task from `submit` to its end. Here all the others meet.
10. `losses`: what a dead process leaves behind.

One event runs through many parts, and through some of them twice: a value arrives, a task that waited for it becomes
ready and is placed, another fails, so its own object has a value, and so on. Downwards a part calls another one by its
name. Upwards it goes through the abstract methods of `State`, which are few: to make a task ready, to fail it, to hand
out what has become free, and to let go of an actor. So nobody who reads a part needs more of what is above it than
these sentences.

They are functions and not classes because no part has a state of its own that the others could leave alone: classes cut
along the same lines all held each other. And a function of a module costs what a method does, so the cut is free.

`machine.Kernel` is the whole: it gives the functions that an engine calls one place and one name each.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable

from hocket.kernel import resources
from hocket.kernel.instructions import Instruction
from hocket.kernel.records import (
    ActorRecord,
    FunctionRecord,
    GroupRecord,
    ObjectRecord,
    StreamRecord,
    TaskRecord,
    WorkerRecord,
)

KEPT_TASKS = 10_000
"""How many tasks that are over are remembered, for those who look. A guess: some 5 MB, a second or so of tiny tasks."""

REMOVED_GROUPS = 1_000
"""How many removed placement groups are remembered."""

KEPT_ACTORS = 1_000
"""How many dead actors are remembered."""


class State(abc.ABC):
    """All that the kernel knows, in tables by id. `machine.Kernel` is the one kind that there is.

    Not thread-safe: the engine holds a lock.
    """

    def __init__(
        self,
        node: resources.Demand,
        *,
        max_idle_workers: int,
        gpu_ids: tuple[resources.GpuId, ...] | None = None,
        error_mark: object = object(),
        encode_error: Callable[[BaseException], tuple[object, ...]],
        none_value: tuple[object, ...],
        end_value: tuple[object, ...] = (),
    ) -> None:
        #: The machine's resources, and how much of them is free.
        self.pool = resources.Pool.build(node, gpu_ids)
        #: Turns an exception of ours into a value, whose second part is its pickle; a pure function that the engine
        #: brings.
        self.encode_error = encode_error
        #: The encoded None, which a reservation returns.
        self.none_value = none_value
        #: The value at the end of a stream.
        self.end_value = end_value
        #: The first element of encoded errors, and of no other value.
        self.error_mark = error_mark
        #: Idle workers beyond this many are stopped.
        self.max_idle_workers = max_idle_workers
        #: The instructions for the engine, in this order; it takes the list away and leaves an empty one.
        self.instructions: list[Instruction] = []
        #: Remote functions by their digest; only the engine adds to it.
        self.functions: dict[bytes, FunctionRecord] = {}
        #: Objects that somebody needs.
        self.objects: dict[int, ObjectRecord] = {}
        #: Tasks that are not over.
        self.tasks: dict[int, TaskRecord] = {}
        #: Workers that live, or are being started.
        self.workers: dict[int, WorkerRecord] = {}
        #: Actors that live, and dead ones that somebody has a handle on.
        self.actors: dict[int, ActorRecord] = {}
        #: Placement groups that have not been removed, reserved or not.
        self.groups: dict[int, GroupRecord] = {}
        #: The last ones that have been.
        self.removed_groups: deque[GroupRecord] = deque(maxlen=REMOVED_GROUPS)
        #: Whether a worker may have a task behind a running one; see `leases.find_stalled`.
        self.may_stall = False
        #: Living actors by namespace and name.
        self.names: dict[tuple[str, str], ActorRecord] = {}
        #: Names promised to workers that are about to create the actor.
        self.name_claims: dict[tuple[str, str], int] = {}
        #: Streams that may still be read, by the ids of their tasks.
        self.streams: dict[int, StreamRecord] = {}
        #: Tasks that wait for a worker, by shape; the shape that has waited for its turn longest comes first.
        self.queues: dict[resources.Shape, deque[TaskRecord]] = {}
        #: Workers that hold resources of a shape. No shape is in it without a worker.
        self.leases: dict[resources.Shape, dict[int, WorkerRecord]] = {}
        #: Workers that hold nothing, the one that has been idle for longest first.
        self.idle: list[WorkerRecord] = []
        #: Groups that wait for their resources, in the order of their making.
        self.pending_groups: list[GroupRecord] = []
        #: The last tasks that are over, oldest first, without their arguments.
        self.closed_tasks: deque[TaskRecord] = deque(maxlen=KEPT_TASKS)
        #: The last actors that were forgotten, oldest first.
        self.closed_actors: deque[ActorRecord] = deque(maxlen=KEPT_ACTORS)
        #: No id is used twice.
        self.next_worker_id = 1
        #: How many workers died before they started a task that they had been sent, by the task.
        self.early_deaths: dict[int, int] = {}
        #: Values that have come and the tasks that wait for them, while the first of them is being served.
        self.to_serve: deque[tuple[list[TaskRecord], tuple[object, ...], bool]] = deque()
        self.is_serving = False
        #: Objects that freed values referred to, while the first of these is being freed.
        self.to_release: list[int] = []
        self.is_releasing = False
        #: Errors of tasks that nobody has fetched: the task's name, its id, and the encoded error, by the error's
        #: identity. All objects of a task, and those that depend on it, have one error.
        self.unfetched: dict[int, tuple[str, int, tuple[object, ...]]] = {}
        #: Objects without a value whose value somebody asked for together with one that is an error.
        self.asked: set[int] = set()

    @abc.abstractmethod
    def make_ready(self, task: TaskRecord) -> None:
        """A task has all its arguments, or is to be tried again: let it run as soon as it may."""

    @abc.abstractmethod
    def fail_with(self, task: TaskRecord, error: tuple[object, ...]) -> None:
        """Give every object of a task this (encoded) error. The task is over."""

    @abc.abstractmethod
    def fail_exception(self, task: TaskRecord, error: BaseException) -> None:
        """Fail a task with an exception of ours."""

    @abc.abstractmethod
    def abandon(self, task: TaskRecord) -> None:
        """Nobody reads this generator any more."""

    @abc.abstractmethod
    def dispatch(self) -> None:
        """Start whatever fits now. Called when resources or workers became free."""

    @abc.abstractmethod
    def forget_actor(self, actor: ActorRecord) -> None:
        """The last handle on an actor is gone."""
