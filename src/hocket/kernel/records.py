"""What the kernel remembers of each object, task, worker, actor and placement group.

Plain records; `machine.Kernel` is the only one to change them. Every id is a whole number that is never used twice in a
session. A task with *n* returns has the ids ``task_id .. task_id + n - 1`` for its objects, so one return costs no id
of its own.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

from hocket import exceptions
from hocket.kernel import resources

DRIVER = 0
"""The worker id under which the driver submits."""


class TaskKind(enum.IntEnum):
    """What a task record stands for."""

    FUNCTION = 0
    CREATION = 1
    """The constructor of an actor; its object stands for the actor itself."""
    CALL = 2
    """One method invocation on an actor."""


class TaskState(enum.IntEnum):
    """How far a task is. ``WAITING -> READY -> RUNNING -> DONE``; a retry goes back to READY."""

    WAITING = 0
    """A reference among its arguments has no value yet."""
    READY = 1
    RUNNING = 2
    """Sent to a worker; it may still stand in the worker's queue."""
    DONE = 3


DEFAULT_SHAPE = resources.Shape((("CPU", resources.UNIT),))
"""One CPU, anywhere: what most tasks ask for."""


@dataclass(slots=True, frozen=True, kw_only=True)
class TaskOptions:
    """What `.options` may say about a task or a call. Shared by all calls of one remote function."""

    name: str
    """What runs, for messages: a function's or ``Class.method``'s name."""
    num_returns: int = 1
    shape: resources.Shape = DEFAULT_SHAPE
    max_retries: int = 0
    """How often a task is started again after its worker died; -1 is without end."""
    retry_exceptions: bool | tuple[type[BaseException], ...] = False
    """Which exceptions of the user's code are tried again."""


@dataclass(slots=True, frozen=True, kw_only=True)
class ActorOptions:
    """What `.options` may say about an actor."""

    class_name: str
    creation: TaskOptions
    """How its constructor runs; the shape is what it needs to be placed."""
    lifetime_shape: resources.Shape
    """What it holds while it lives."""
    name: str = ""
    """Under which `get_actor` finds it; empty is nameless."""
    namespace: str = ""
    detached: bool = False
    """Whether it outlives its last handle."""
    max_concurrency: int = 1
    """How many of its calls run at once, in threads."""
    methods: tuple[tuple[str, int], ...] = ()
    """Names of its methods, each with its number of returns."""


class FunctionRecord:
    """What is known of a remote function or class, over all its calls."""

    __slots__ = ("blob", "depth", "id", "mean_s", "runs")

    def __init__(self, function_id: bytes, blob: bytes) -> None:
        self.id = function_id
        self.blob = blob
        #: Smoothed duration of a run, in seconds.
        self.mean_s = 0.0
        #: How many of its tasks may stand in one worker's queue; grows when runs are seen to be short.
        self.depth = 1
        self.runs = 0


class ObjectRecord:
    """An immutable value, or the place where it will be."""

    __slots__ = ("contained", "count", "dependents", "failed", "holders", "id", "task", "value", "watchers")

    def __init__(self, object_id: int, task: TaskRecord | None) -> None:
        self.id = object_id
        #: The task that makes it; None once made, and for `put`.
        self.task = task
        #: References, borrowers, dependents and containers that need it. At zero it is freed.
        self.count = 1
        #: The encoded value, opaque to the kernel; None while pending.
        self.value: tuple[object, ...] | None = None
        #: Whether the value is an error.
        self.failed = False
        #: Ids of the objects that the value refers to; each is counted once for this container.
        self.contained: tuple[int, ...] = ()
        #: How many of `count` each worker stands for; given back at once if the worker dies.
        self.holders: dict[int, int] | None = None
        #: Tasks that wait for it.
        self.dependents: list[TaskRecord] | None = None
        #: Workers to be told when it is there.
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
        "function",
        "id",
        "kind",
        "method",
        "options",
        "parent",
        "retries_left",
        "state",
        "unresolved",
        "worker",
    )

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
        #: Objects whose values replace placeholders in the arguments.
        self.dependencies = dependencies
        #: Objects that the arguments refer to without needing their values.
        self.borrowed = borrowed
        self.options = options
        #: The worker that submitted it.
        self.caller = caller
        #: The task that submitted it; 0 is the driver's main program.
        self.parent = parent
        self.kind = kind
        self.state = TaskState.READY
        #: How many dependencies have no value yet.
        self.unresolved = 0
        self.worker: WorkerRecord | None = None
        self.retries_left = options.max_retries
        self.attempt = 0
        self.cancelled = False
        self.actor: ActorRecord | None = None
        self.actor_options: ActorOptions | None = None
        self.method = ""


class WorkerState(enum.IntEnum):
    """What a worker is for at the moment."""

    IDLE = 0
    LEASED = 1
    """It holds resources of one shape and runs tasks of that shape."""
    ACTOR = 2
    DEAD = 3


class WorkerRecord:
    """A process that runs tasks, or one actor."""

    __slots__ = ("actor", "allocation", "blocked", "id", "inflight", "killed", "recalled", "shape", "state")

    def __init__(self, worker_id: int) -> None:
        self.id = worker_id
        self.state = WorkerState.IDLE
        #: Tasks sent to it and not yet answered, in the order of sending.
        self.inflight: dict[int, TaskRecord] = {}
        self.shape: resources.Shape | None = None
        self.allocation: resources.Allocation | None = None
        #: How many of its threads wait in `get`.
        self.blocked = 0
        #: Whether we asked for its death, and so will not call it a crash.
        self.killed = False
        #: Whether it has been asked to hand back what it has not started.
        self.recalled = False
        self.actor: ActorRecord | None = None


class ActorState(enum.IntEnum):
    """``PENDING -> ALIVE -> DEAD``; a failed constructor goes straight to DEAD."""

    PENDING = 0
    ALIVE = 1
    DEAD = 2


class ActorRecord:
    """An object living in a worker process."""

    __slots__ = (
        "death",
        "death_message",
        "holds_itself",
        "id",
        "inflight",
        "init_failed",
        "options",
        "queues",
        "state",
        "unreachable",
        "worker",
    )

    def __init__(self, actor_id: int, options: ActorOptions) -> None:
        self.id = actor_id
        self.options = options
        self.state = ActorState.PENDING
        self.worker: WorkerRecord | None = None
        #: Calls not yet sent, by caller: order is kept for each caller, and between callers there is none.
        self.queues: dict[int, deque[TaskRecord]] = {}
        #: Calls sent and not yet answered.
        self.inflight = 0
        self.init_failed = False
        #: Whether the last handle is gone; it ends when its calls are done.
        self.unreachable = False
        self.death: exceptions.Death | None = None
        self.death_message = ""
        #: Whether it is detached and alive: then one count on its object is its own.
        self.holds_itself = False


@dataclass(slots=True)
class GroupRecord:
    """A placement group: bundles of resources, reserved all together or not at all."""

    id: int
    bundles: tuple[resources.Demand, ...]
    strategy: str
    name: str = ""
    pools: tuple[resources.Pool, ...] = ()
    """One pool a bundle; empty until reserved."""
    allocations: list[resources.Allocation] = field(default_factory=list)
    """What was taken from the node for them."""
    removed: bool = False
