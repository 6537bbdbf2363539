"""The kernel's records of objects, tasks, workers, actors and placement groups.

Plain records; only the parts of the kernel (`state` lists them) change them. Every id is a whole number that is never
used twice in a session. A task with *n* returns has the ids ``task_id .. task_id + n - 1`` for its objects, so one
return costs no id of its own.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from hocket import exceptions
from hocket.kernel import resources

DRIVER = 0
"""The worker id under which the driver submits."""

STREAMING = -1
"""The ``num_returns`` of a generator: as many objects as it yields."""


class TaskKind(enum.IntEnum):
    """The kinds of task records."""

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


ACTOR_WINDOW = 512
"""Calls sent to one actor and not answered; more wait in the kernel, where they can be cancelled. A guess: enough to
hide a round trip of 50 us at 5 us a call fifty times over."""

ALONE, WITH_CHILDREN, BY_FORCE = 1, 2, 3
"""How a task is cancelled: nothing but the task, with what it has submitted, or all that by force."""

DEFAULT_SHAPE = resources.Shape((("CPU", resources.UNIT),))
"""One CPU, anywhere: what most tasks ask for."""


@dataclass(slots=True, frozen=True, kw_only=True)
class TaskOptions:
    """The options of a task or a call. Shared by all calls of one remote function."""

    name: str
    """What runs, for messages: a function's or ``Class.method``'s name."""
    num_returns: int = 1
    shape: resources.Shape = DEFAULT_SHAPE
    max_retries: int = 0
    """How often a task is started again after its worker died; -1 is without end."""
    retry_exceptions: bool | tuple[type[BaseException], ...] = False
    """Which exceptions of the user's code are tried again."""
    max_calls: int = 0
    """After so many runs of it a worker ends; 0 is without limit."""
    concurrency_group: str = ""
    """The group of the actor's threads that runs the call; empty is the default one."""
    backpressure: int = 0
    """How many items of a generator may lie unread before it pauses; 0 is the engine's own bound, -1 without limit."""
    is_own: bool = False
    """Whether it is a function or an actor of Hocket's own, whose errors Hocket fetches, or has told already."""
    is_direct: bool = False
    """Whether a worker may send the call to the actor without asking anybody: nothing of it has to be counted."""
    is_simple: bool = field(init=False, default=True)
    """Whether a worker need not know of it: there is no concurrency group, no back-pressure, and no list of exceptions
    that are tried again."""

    def __post_init__(self) -> None:
        if self.concurrency_group or self.backpressure or isinstance(self.retry_exceptions, tuple):
            object.__setattr__(self, "is_simple", False)


class MethodOptions(NamedTuple):
    """The options of a method by `@method`. None leaves it to the actor's own options."""

    num_returns: int = 1
    max_task_retries: int | None = None
    retry_exceptions: bool | tuple[type[BaseException], ...] = False
    concurrency_group: str = ""
    backpressure: int = 0
    is_dynamic: bool = False
    """Whether it returns references on all that it yields, together."""


@dataclass(slots=True, frozen=True, kw_only=True)
class ActorOptions:
    """The options of an actor."""

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
    """How many of its calls run at once, in threads or on its event loop."""
    is_async: bool = False
    """Whether a method is a coroutine function: then all run on one event loop."""
    concurrency_groups: tuple[tuple[str, int], ...] = ()
    """Further groups of threads, each with its size."""
    allows_disorder: bool = False
    """Whether a call may overtake another one of the same caller that waits for an argument."""
    max_restarts: int = 0
    """How often it is built again after its process died; -1 is without end."""
    max_task_retries: int = 0
    """How often a call is tried again after the process died, unless the method says otherwise; -1 is without end."""
    max_pending_calls: int = -1
    """How many calls of one caller may be unanswered; -1 is without limit."""
    methods: tuple[tuple[str, MethodOptions], ...] = ()
    """Names of its methods, each with its defaults."""

    @property
    def window(self) -> int:
        """How many calls may be sent to it and not yet answered."""
        total = self.max_concurrency + sum(size for _, size in self.concurrency_groups)
        return max(ACTOR_WINDOW, 2 * total) if total > 1 else ACTOR_WINDOW


class FunctionRuns:
    """How often a function has run; tasks that are over refer to it, and to nothing that the function needs to run."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class FunctionRecord:
    """A remote function or class, over all its calls."""

    __slots__ = ("__weakref__", "blob", "depth", "id", "keeps", "mean_s", "runs")

    def __init__(self, function_id: bytes, blob: bytes) -> None:
        self.id = function_id
        self.blob = blob
        #: Smoothed duration of a run, in seconds.
        self.mean_s = 0.0
        #: How many of its tasks may stand in one worker's queue; grows when runs are seen to be short.
        self.depth = 1
        self.runs = FunctionRuns()
        #: The engine's own data of the function, kept for as long as somebody needs it; opaque to the kernel.
        self.keeps: object = None


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

    #: Its place among all that its worker has been sent; set when it is sent.
    number: int

    # Set when a try is over, and not before: four stores more in each constructor would be felt.
    ran_on: int
    """The id of the worker that ran it last."""
    started: float
    """When that started it, by the engine's clock."""
    seconds: float
    """How long it ran there."""
    error_type: str
    """The class of the error that it has failed with for good."""
    runs: FunctionRuns
    """Of its function, which may be forgotten by then."""

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
        #: 0: it is not. Else how: `ALONE`, `WITH_CHILDREN` or `BY_FORCE`.
        self.cancelled = 0
        self.actor: ActorRecord | None = None
        self.actor_options: ActorOptions | None = None
        self.method = ""
        self.stream: StreamRecord | None = None

    def note_run(self, worker_id: int, started: float, seconds: float) -> None:
        """Remember the try that is over."""
        self.ran_on = worker_id
        self.started = started
        self.seconds = seconds

    @property
    def outcome(self) -> tuple[int, float, float, str | None] | None:
        """How its last try went: ``(worker id, start, seconds, error type)``; the error type is None after a success.
        None, all of it, for a task that failed with one of its arguments."""
        ran_on, error_type = getattr(self, "ran_on", None), getattr(self, "error_type", None)
        if ran_on is None:
            return None if error_type is None else (0, 0.0, 0.0, error_type)
        return ran_on, self.started, self.seconds, error_type


class StreamRecord:
    """The objects that a generator task yields, as far as nobody has taken them.

    The object at place `produced` exists already, so that it can be waited for: it becomes the next item, or an error,
    or the end of the stream.
    """

    __slots__ = ("is_unbounded", "produced", "read", "taken", "task_id", "wanted")

    def __init__(self, task_id: int) -> None:
        self.task_id = task_id
        self.produced = 0
        #: How many items have to be taken before the generator, which waits, goes on; 0 is: it does not wait for that.
        self.wanted = 0
        #: Whether somebody waits for the generator's end, and not for its items: then it never waits for a reader.
        self.is_unbounded = False
        #: The items before this place belong to their reader; the stream holds one count on each of the others.
        self.taken = 0
        #: How many items the reader has got: those that it took, without the one that it may still wait for.
        self.read = 0


class WorkerState(enum.IntEnum):
    """The states of a worker."""

    IDLE = 0
    LEASED = 1
    """It holds resources of one shape and runs tasks of that shape."""
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
        #: Tasks sent to it and not yet answered, in the order of sending.
        self.inflight: dict[int, TaskRecord] = {}
        self.shape: resources.Shape | None = None
        self.allocation: resources.Allocation | None = None
        #: How many of its threads wait in `get`.
        self.blocked = 0
        #: Whether we asked for its death, and so will not call it a crash.
        self.killed = False
        #: How many tasks and calls it has been sent.
        self.sent = 0
        #: Whether what it had not started was taken from it, because it shows no progress. It gets no more until it
        #: does.
        self.recalled = False
        self.actor: ActorRecord | None = None
        #: The runtime environment that it has taken on, for good.
        self.environment = ""
        #: The GPUs that it was started for, for good; none is for work on the CPU.
        self.gpu_ids: tuple[resources.GpuId, ...] = ()
        #: How often it has run each function with ``max_calls``.
        self.runs: dict[str, int] = {}
        #: Whether it has been told to end when it has done what it has.
        self.stopped = False
        #: Objects that it will send when they have come to it by a direct call.
        self.promised: set[int] = set()
        #: The waits of its threads, by a number that the worker chose.
        self.waits: dict[int, Wait] = {}


class Wait(NamedTuple):
    """A thread of a worker waits in `get` or `wait`."""

    task_id: int
    """What the thread runs."""
    object_ids: tuple[int, ...]
    needs_all: bool
    """Whether one missing object is enough to hold it up."""
    direct: tuple[tuple[int, int, str], ...] = ()
    """Those that come by a direct call: object, actor, and the name of the call."""


class ActorState(enum.IntEnum):
    """``PENDING -> ALIVE <-> RESTARTING -> DEAD``; a failed constructor goes straight to DEAD."""

    PENDING = 0
    ALIVE = 1
    RESTARTING = 2
    """Its process died, and it is being built again."""
    DEAD = 3


RowKey = tuple[int, str]
"""A caller, and the concurrency group that it calls."""


class ActorRecord:
    """An object living in a worker process."""

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
        #: Calls not yet sent, by caller and concurrency group: order is kept in each row, and between rows there is
        #: none.
        self.queues: dict[RowKey, deque[TaskRecord]] = {}
        #: Calls that wait for an argument and may be overtaken.
        self.waiting: dict[int, TaskRecord] = {}
        self.window = options.window
        #: How it is built again; None if it never is.
        self.creation: TaskRecord | None = None
        self.restarts = 0
        #: Markers to pass on to its worker, each with the ids of calls that have to be sent before.
        self.markers: list[tuple[tuple[object, ...], set[int]]] = []
        #: Objects of direct calls whose channel has ended, and that fail with the actor's death.
        self.orphaned: list[int] = []
        #: Calls sent and not yet answered.
        self.inflight = 0
        self.init_failed = False
        #: The constructor's error, encoded.
        self.init_error: tuple[object, ...] | None = None
        #: Whether the last handle is gone; it ends when its calls are done.
        self.unreachable = False
        self.death: exceptions.Death | None = None
        self.death_message = ""
        #: Whether it is detached and alive: then one count on its object is its own.
        self.holds_itself = False


class GroupRecord:
    """A placement group: bundles of resources, reserved all together or not at all."""

    __slots__ = ("allocations", "bundles", "creator", "id", "name", "pools", "removed", "strategy")

    def __init__(self, group_id: int, bundles: tuple[resources.Demand, ...], strategy: str, name: str = "") -> None:
        self.id = group_id
        self.bundles = bundles
        self.strategy = strategy
        self.name = name
        #: One pool a bundle; empty until reserved.
        self.pools: tuple[resources.Pool, ...] = ()
        #: The amounts taken from the node for them.
        self.allocations: list[resources.Allocation] = []
        self.removed = False
        #: The worker of the actor that made it, with which it ends; None: it lives until it is removed.
        self.creator: int | None = None
