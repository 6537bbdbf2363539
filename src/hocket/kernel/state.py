"""The tables of a session, and the transitions that all parts of the kernel share.

`State` holds the kernel's data. The modules beside this one are functions on it, one module for each part. Each module
imports only modules before it in this list:

1. `objects`: values, and the counts that keep them.
2. `leases`: workers, the resources that they hold, and the tasks that they give back.
3. `direct_calls`: the kernel's share in calls straight between workers.
4. `calls`: the queues of calls that wait for an actor.
5. `streams`: the items that generators yield.
6. `actors`: the life of an actor from its constructor to its death.
   `reach` finds the actors that nothing can reach any more.
7. `placing`: which task goes to which worker, and when.
8. `groups`: resources reserved together.
9. `tasks`: the life of a task from `submit` to its end, which uses all the parts above.
10. `losses`: the remains of a dead process.

One event runs through many parts, and through some of them twice: a value arrives, a task that waited for it becomes
ready and is placed, another task fails, so its own object has a value, and so on. A part calls the parts before it in
the list by their names. It calls the parts behind it only through the abstract methods of `State`, which are few: to
make a task ready, to fail it, to hand out free resources, and to release an actor.

The parts are modules of functions and not classes, because all of them work on the same tables: classes would hold
references to each other. A function of a module costs no more than a method.

`machine.Kernel` gathers the functions that an engine calls.
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
"""How many finished tasks the kernel keeps, for viewers. A guess: some 5 MB, about a second of tiny tasks."""

REMOVED_GROUPS = 1_000
"""How many removed placement groups the kernel keeps."""

KEPT_ACTORS = 1_000
"""How many dead actors the kernel keeps."""


class State(abc.ABC):
    """The kernel's data, in tables by id. `machine.Kernel` is the only subclass.

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
        #: A pure function of the engine's that encodes an exception of ours. The second element of the result is the
        #: exception's pickle.
        self.encode_error = encode_error
        #: The encoded None: the value of a placement group's object once it is reserved.
        self.none_value = none_value
        #: The value at the end of a stream.
        self.end_value = end_value
        #: The first element of encoded errors, and of no other value.
        self.error_mark = error_mark
        #: The most idle workers; the kernel stops further ones.
        self.max_idle_workers = max_idle_workers
        #: The instructions for the engine, in order; the engine takes the list, and leaves an empty one.
        self.instructions: list[Instruction] = []
        #: Remote functions by their digest; only the engine adds to them.
        self.functions: dict[bytes, FunctionRecord] = {}
        #: Objects with a count above zero.
        self.objects: dict[int, ObjectRecord] = {}
        #: Tasks that are not over.
        self.tasks: dict[int, TaskRecord] = {}
        #: Workers that live, or are being started.
        self.workers: dict[int, WorkerRecord] = {}
        #: Living actors, and dead actors with a handle.
        self.actors: dict[int, ActorRecord] = {}
        #: Placement groups that have not been removed, reserved or not.
        self.groups: dict[int, GroupRecord] = {}
        #: The groups that were removed last.
        self.removed_groups: deque[GroupRecord] = deque(maxlen=REMOVED_GROUPS)
        #: Whether a task may wait in a worker's queue behind a running one; see `leases.find_stalled`.
        self.may_stall = False
        #: Living actors by namespace and name.
        self.names: dict[tuple[str, str], ActorRecord] = {}
        #: Names reserved for processes that are about to create the actor.
        self.name_claims: dict[tuple[str, str], int] = {}
        #: Streams that may still be read, by the ids of their tasks.
        self.streams: dict[int, StreamRecord] = {}
        #: Tasks that wait for a worker, by shape. The shape that has waited longest for its turn comes first.
        self.queues: dict[resources.Shape, deque[TaskRecord]] = {}
        #: Workers that hold resources of a shape, by shape; only shapes with a worker.
        self.leases: dict[resources.Shape, dict[int, WorkerRecord]] = {}
        #: Workers that hold nothing; the worker that has been idle for longest comes first.
        self.idle: list[WorkerRecord] = []
        #: Groups that wait for their resources, in the order of their creation.
        self.pending_groups: list[GroupRecord] = []
        #: The last finished tasks, oldest first, without their arguments.
        self.closed_tasks: deque[TaskRecord] = deque(maxlen=KEPT_TASKS)
        #: The last actors that left `actors`, oldest first.
        self.closed_actors: deque[ActorRecord] = deque(maxlen=KEPT_ACTORS)
        #: The id of the next worker; no id is used twice.
        self.next_worker_id = 1
        #: By task: how many workers died that had the task and had not started it.
        self.early_deaths: dict[int, int] = {}
        #: Values that have come, with the tasks that wait for them, while `objects.store` serves the first of them.
        self.to_serve: deque[tuple[list[TaskRecord], tuple[object, ...], bool]] = deque()
        self.is_serving = False
        #: Objects that freed values referred to, while `objects` frees the first of these values.
        self.to_release: list[int] = []
        self.is_releasing = False
        #: Errors that no program has fetched: the task's name, its id, and the encoded error, by the error's identity.
        #: All objects of a task, and of the tasks that depend on it, share one error.
        self.unfetched: dict[int, tuple[str, int, tuple[object, ...]]] = {}
        #: Objects without a value that a `get` asked for, when it raised the error of another object.
        self.asked: set[int] = set()

    @abc.abstractmethod
    def make_ready(self, task: TaskRecord) -> None:
        """Let a task run as soon as it may: it has all its arguments, or gets another attempt."""

    @abc.abstractmethod
    def fail_with(self, task: TaskRecord, error: tuple[object, ...]) -> None:
        """Give every object of a task this (encoded) error. The task is over."""

    @abc.abstractmethod
    def fail_exception(self, task: TaskRecord, error: BaseException) -> None:
        """Fail a task with an exception of ours."""

    @abc.abstractmethod
    def abandon(self, task: TaskRecord) -> None:
        """Cancel a generator that no reader can reach any more."""

    @abc.abstractmethod
    def dispatch(self) -> None:
        """Start all tasks that fit now. Called when resources or workers become free."""

    @abc.abstractmethod
    def forget_actor(self, actor: ActorRecord) -> None:
        """Note that the last handle on an actor is gone."""
