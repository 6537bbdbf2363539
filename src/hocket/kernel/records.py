"""The kernel's records of objects, tasks, workers, actors and placement groups.

Only the parts of the kernel (`state` lists them) change the records. Every id is a whole number that a session never
uses twice. The objects of a task with *n* returns have the ids ``task_id .. task_id + n - 1``.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from hocket import exceptions
from hocket.kernel import resources

DRIVER = 0
"""The worker id of the driver."""

STREAMING = -1
"""The ``num_returns`` of a generator: it has as many objects as it yields."""


class TaskKind(enum.IntEnum):
    """The kinds of task records."""

    FUNCTION = 0
    CREATION = 1
    """The constructor of an actor; its object stands for the actor itself."""
    CALL = 2
    """One method invocation on an actor."""


class TaskState(enum.IntEnum):
    """The states of a task: ``WAITING -> READY -> RUNNING -> DONE``; a retry goes back to READY."""

    WAITING = 0
    """A reference among the task's arguments has no value yet."""
    READY = 1
    RUNNING = 2
    """The task was sent to a worker; it may still wait in the worker's queue."""
    DONE = 3


ACTOR_WINDOW = 512
"""The most calls that are sent to one actor and not answered. More calls wait in the kernel, where they can be
cancelled. A guess: fifty times enough to hide a round trip of 50 us at 5 us a call."""

ALONE, WITH_CHILDREN, BY_FORCE = 1, 2, 3
"""How a task is cancelled: alone, together with the tasks that it has submitted, or with these and by force."""

DEFAULT_SHAPE = resources.Shape((("CPU", resources.UNIT),))
"""The shape of most tasks: one CPU, anywhere."""


@dataclass(slots=True, frozen=True, kw_only=True)
class TaskOptions:
    """The options of a task or a call. All calls of one remote function share them."""

    name: str
    """The name of the function, or ``Class.method``, for messages."""
    num_returns: int = 1
    shape: resources.Shape = DEFAULT_SHAPE
    max_retries: int = 0
    """How often the task starts again after its worker died; -1 is without limit."""
    retry_exceptions: bool | tuple[type[BaseException], ...] = False
    """Which exceptions of the user's code lead to another attempt."""
    max_calls: int = 0
    """After how many runs of the function a worker ends; 0 is without limit."""
    concurrency_group: str = ""
    """The group of the actor's threads that runs the call; empty is the default group."""
    backpressure: int = 0
    """How many items of a generator may lie unread before it pauses; 0 is the engine's own bound, -1 without limit."""
    is_own: bool = False
    """Whether the function or actor belongs to Hocket, which then fetches or has reported the errors itself."""
    is_direct: bool = False
    """Whether a worker may send the call to the actor without the driver: it has no objects to count."""
    is_simple: bool = field(init=False, default=True)
    """Whether a worker can do without the options: they have no concurrency group, no back-pressure, and no list of
    exceptions to retry."""

    def __post_init__(self) -> None:
        if self.concurrency_group or self.backpressure or isinstance(self.retry_exceptions, tuple):
            object.__setattr__(self, "is_simple", False)


class MethodOptions(NamedTuple):
    """The options of a method by `@method`. None means the actor's own options."""

    num_returns: int = 1
    max_task_retries: int | None = None
    retry_exceptions: bool | tuple[type[BaseException], ...] = False
    concurrency_group: str = ""
    backpressure: int = 0
    is_dynamic: bool = False
    """Whether the method returns the references to all its items together."""


@dataclass(slots=True, frozen=True, kw_only=True)
class ActorOptions:
    """The options of an actor."""

    class_name: str
    creation: TaskOptions
    """The options of the constructor; its shape is the resources that the actor needs to be placed."""
    lifetime_shape: resources.Shape
    """The resources that the actor holds while it lives."""
    name: str = ""
    """The name by which `get_actor` finds the actor; empty is nameless."""
    namespace: str = ""
    detached: bool = False
    """Whether the actor outlives its last handle."""
    max_concurrency: int = 1
    """How many calls run at once, in threads or on the actor's event loop."""
    is_async: bool = False
    """Whether a method is a coroutine function: then all methods run on one event loop."""
    concurrency_groups: tuple[tuple[str, int], ...] = ()
    """Further groups of threads, each with its size."""
    allows_disorder: bool = False
    """Whether a call may overtake another call of the same caller that waits for an argument."""
    max_restarts: int = 0
    """How often the actor is built again after its process died; -1 is without limit."""
    max_task_retries: int = 0
    """How many further attempts a call has after the process died, unless the method's options differ; -1 is without
    limit."""
    max_pending_calls: int = -1
    """How many calls of one caller may be unanswered; -1 is without limit."""
    methods: tuple[tuple[str, MethodOptions], ...] = ()
    """The names of the actor's methods, each with its default options."""

    @property
    def window(self) -> int:
        """How many calls may be sent to the actor and not yet answered."""
        total = self.max_concurrency + sum(size for _, size in self.concurrency_groups)
        return max(ACTOR_WINDOW, 2 * total) if total > 1 else ACTOR_WINDOW


class FunctionRuns:
    """How often a function has run. Finished tasks refer to this record, and not to the function, which may then go."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class FunctionRecord:
    """A remote function or class, for all its calls."""

    __slots__ = ("__weakref__", "blob", "depth", "id", "keeps", "mean_s", "runs")

    def __init__(self, function_id: bytes, blob: bytes) -> None:
        self.id = function_id
        self.blob = blob
        #: The smoothed duration of a run, in seconds.
        self.mean_s = 0.0
        #: How many of the function's tasks may wait in one worker's queue; it grows when runs prove short.
        self.depth = 1
        self.runs = FunctionRuns()
        #: The engine's own data about the function, which lives as long as this record; opaque to the kernel.
        self.keeps: object = None


class ObjectRecord:
    """An immutable value, or the place for a value that is still to come."""

    __slots__ = ("contained", "count", "dependents", "failed", "holders", "id", "task", "value", "watchers")

    def __init__(self, object_id: int, task: TaskRecord | None) -> None:
        self.id = object_id
        #: The task that makes the value; None once the value is there, and for `put`.
        self.task = task
        #: How many references, borrowers, dependents and containers need the object. At zero it is freed.
        self.count = 1
        #: The encoded value, opaque to the kernel; None while pending.
        self.value: tuple[object, ...] | None = None
        #: Whether the value is an error.
        self.failed = False
        #: Ids of the objects to which the value refers; this container counts each once.
        self.contained: tuple[int, ...] = ()
        #: Each worker's share of `count`, which the kernel subtracts if the worker dies.
        self.holders: dict[int, int] | None = None
        #: Tasks that wait for the value.
        self.dependents: list[TaskRecord] | None = None
        #: Workers that get a message when the value is there.
        self.watchers: list[int] | None = None


class TaskRecord:
    """One call of a remote function, constructor or method, with all its attempts."""

    __slots__ = (
        "actor",
        "actor_options",
        "args",
        "attempt",
        "borrowed",
        "caller",
        "cancelled",
        "dependencies",
        "error_type",
        "function",
        "id",
        "kind",
        "method",
        "number",
        "options",
        "parent",
        "ran_on",
        "retries_left",
        "runs",
        "seconds",
        "started",
        "state",
        "stream",
        "unresolved",
        "worker",
    )

    #: The task's position among all tasks sent to its worker; set when it is sent.
    number: int

    # Set only when an attempt is over: four more assignments in each constructor would cost too much.
    ran_on: int
    """The id of the worker that ran the task last."""
    started: float
    """When that worker started the task, by the engine's clock."""
    seconds: float
    """How long the task ran there."""
    error_type: str
    """The class of the task's final error."""
    runs: FunctionRuns
    """The runs of the task's function, whose own record may be gone by then."""

    def __init__(
        self,
        task_id: int,
        function: FunctionRecord | None,
        args: tuple[object, ...] | None,
        dependencies: tuple[int, ...],
        borrowed: tuple[int, ...],
        options: TaskOptions,
        caller: int = DRIVER,
        parent: int = 0,
        kind: TaskKind = TaskKind.FUNCTION,
    ) -> None:
        self.id = task_id
        self.function = function
        #: The encoded arguments, opaque to the kernel; None is "no arguments".
        self.args = args
        #: Ids of the objects whose values replace placeholders in the arguments.
        self.dependencies = dependencies
        #: Ids of the objects to which the arguments refer without needing their values.
        self.borrowed = borrowed
        self.options = options
        #: The worker that submitted the task.
        self.caller = caller
        #: The task that submitted this task; 0 is the driver's main program.
        self.parent = parent
        self.kind = kind
        self.state = TaskState.READY
        #: How many dependencies have no value yet.
        self.unresolved = 0
        self.worker: WorkerRecord | None = None
        self.retries_left = options.max_retries
        self.attempt = 0
        #: 0 if the task is not cancelled; else `ALONE`, `WITH_CHILDREN` or `BY_FORCE`.
        self.cancelled = 0
        self.actor: ActorRecord | None = None
        self.actor_options: ActorOptions | None = None
        self.method = ""
        self.stream: StreamRecord | None = None

    def note_run(self, worker_id: int, started: float, seconds: float) -> None:
        """Record an attempt that is over."""
        self.ran_on = worker_id
        self.started = started
        self.seconds = seconds

    @property
    def outcome(self) -> tuple[int, float, float, str | None] | None:
        """The task's last attempt: ``(worker id, start, seconds, error type)``; the error type is None after a success.
        The other values are 0 if the task failed before it ran. None if an argument's error failed the task."""
        ran_on, error_type = getattr(self, "ran_on", None), getattr(self, "error_type", None)
        if ran_on is None:
            return None if error_type is None else (0, 0.0, 0.0, error_type)
        return ran_on, self.started, self.seconds, error_type


class StreamRecord:
    """The items of a generator that its reader has not taken yet.

    The object at index `produced` exists already, so a reader can wait for it: it becomes the next item, an error, or
    the end of the stream.
    """

    __slots__ = ("is_unbounded", "produced", "read", "taken", "task_id", "wanted")

    def __init__(self, task_id: int) -> None:
        self.task_id = task_id
        self.produced = 0
        #: How many items the reader has to take before the paused generator goes on; 0 if it is not paused.
        self.wanted = 0
        #: Whether a caller waits for the generator's end, and not for its items: then it never waits for a reader.
        self.is_unbounded = False
        #: The index of the first item on which the stream holds a count; earlier items belong to their reader.
        self.taken = 0
        #: How many items the reader has got: the items that it took, less the last, for which it may still wait.
        self.read = 0


class WorkerState(enum.IntEnum):
    """The states of a worker."""

    IDLE = 0
    LEASED = 1
    """The worker holds resources of one shape and runs tasks of that shape."""
    ACTOR = 2
    DEAD = 3


class WorkerRecord:
    """A process that runs tasks, or one actor."""

    __slots__ = (
        "actor",
        "allocation",
        "blocked",
        "environment",
        "gpu_ids",
        "id",
        "inflight",
        "killed",
        "promised",
        "recalled",
        "runs",
        "sent",
        "shape",
        "state",
        "stopped",
        "waits",
    )

    def __init__(self, worker_id: int) -> None:
        self.id = worker_id
        self.state = WorkerState.IDLE
        #: Tasks sent to the worker and not yet answered, in the order of sending.
        self.inflight: dict[int, TaskRecord] = {}
        self.shape: resources.Shape | None = None
        self.allocation: resources.Allocation | None = None
        #: How many of the worker's threads wait in `get`.
        self.blocked = 0
        #: Whether Hocket itself ends the worker, whose death is then no crash.
        self.killed = False
        #: How many tasks and calls were sent to the worker.
        self.sent = 0
        #: Whether the kernel took back the tasks that the worker had not started, because it made no progress. It gets
        #: no more tasks until it does.
        self.recalled = False
        self.actor: ActorRecord | None = None
        #: The worker's runtime environment, which never changes.
        self.environment = ""
        #: The GPUs for which the worker was started, which never change; empty is for work on the CPU.
        self.gpu_ids: tuple[resources.GpuId, ...] = ()
        #: How often the worker has run each function with ``max_calls``.
        self.runs: dict[str, int] = {}
        #: Whether the worker has the order to exit after the tasks that it has.
        self.stopped = False
        #: Objects that the worker will send when a direct call has brought them to it.
        self.promised: set[int] = set()
        #: The waits of the worker's threads, by numbers that the worker chose.
        self.waits: dict[int, Wait] = {}


class Wait(NamedTuple):
    """The wait of a worker's thread in `get` or `wait`."""

    task_id: int
    """The task that the thread runs; 0 for a thread that the user's code started."""
    object_ids: tuple[int, ...]
    needs_all: bool
    """Whether one missing object is enough to hold the thread up."""
    direct: tuple[tuple[int, int, str], ...] = ()
    """The objects that direct calls will bring: the object's id, the actor's id, and the name of the call."""


class ActorState(enum.IntEnum):
    """The states of an actor: ``PENDING -> ALIVE <-> RESTARTING -> DEAD``; after a failed constructor, DEAD at once."""

    PENDING = 0
    ALIVE = 1
    RESTARTING = 2
    """The actor's process died, and the actor is being built again."""
    DEAD = 3


RowKey = tuple[int, str]
"""A caller, and the concurrency group that it calls: the key of a queue of calls."""


class ActorRecord:
    """An actor: an object in a worker process."""

    __slots__ = (
        "creation",
        "death",
        "death_message",
        "holds_itself",
        "id",
        "inflight",
        "init_error",
        "init_failed",
        "markers",
        "options",
        "orphaned",
        "queues",
        "restarts",
        "state",
        "unreachable",
        "waiting",
        "window",
        "worker",
    )

    def __init__(self, actor_id: int, options: ActorOptions) -> None:
        self.id = actor_id
        self.options = options
        self.state = ActorState.PENDING
        self.worker: WorkerRecord | None = None
        #: Calls not yet sent, by caller and concurrency group: each queue keeps its order, and between queues there is
        #: none.
        self.queues: dict[RowKey, deque[TaskRecord]] = {}
        #: Calls that wait for an argument and may be overtaken.
        self.waiting: dict[int, TaskRecord] = {}
        self.window = options.window
        #: The constructor's task, which builds the actor again; None if it must not.
        self.creation: TaskRecord | None = None
        self.restarts = 0
        #: Markers to pass on to the actor's worker, each with the ids of calls that have to be sent before.
        self.markers: list[tuple[tuple[object, ...], set[int]]] = []
        #: Objects of direct calls that lost their channel, and that fail when the actor's death is known.
        self.orphaned: list[int] = []
        #: How many calls are sent and not yet answered.
        self.inflight = 0
        self.init_failed = False
        #: The constructor's error, encoded.
        self.init_error: tuple[object, ...] | None = None
        #: Whether the last handle is gone; the actor then ends when its calls are done.
        self.unreachable = False
        self.death: exceptions.Death | None = None
        self.death_message = ""
        #: Whether the actor is detached and alive: then one count on its object is its own.
        self.holds_itself = False


class GroupRecord:
    """A placement group: bundles of resources, reserved all together or not at all."""

    __slots__ = ("allocations", "bundles", "creator", "id", "name", "pools", "removed", "strategy")

    def __init__(self, group_id: int, bundles: tuple[resources.Demand, ...], strategy: str, name: str = "") -> None:
        self.id = group_id
        self.bundles = bundles
        self.strategy = strategy
        self.name = name
        #: One pool for each bundle; empty until reserved.
        self.pools: tuple[resources.Pool, ...] = ()
        #: The amounts taken from the node for the bundles.
        self.allocations: list[resources.Allocation] = []
        self.removed = False
        #: The worker of the actor that made the group, which ends with it; None if the group lives until it is removed.
        self.creator: int | None = None
