"""The engine contract: the one seam between the programming model and what carries it out.

`hocket.core` turns decorators and options into the records of this module and hands them to an `Engine`;
`hocket.testing.EngineContract` is the judge of whether an engine keeps its promises.
"""

from __future__ import annotations

import abc
import operator
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, NoReturn, Protocol, TypeAlias, TypeVar

from hocket import exceptions
from hocket.engine import undecodable
from hocket.kernel import metrics

if TYPE_CHECKING:  # workers have no kernel
    import asyncio
    from concurrent import futures

    from hocket.kernel import records, resources

T_co = TypeVar("T_co", covariant=True)


NO_ID = 0
"""The id of no object, and of a handle that is being collected."""

GRACE_SECONDS = 0.3
"""How long tasks may take to give way, and then processes to end. A guess: a function in Python needs milliseconds, and
both together must be over within a second."""

running_handlers: list[int] = []
"""The signals whose handlers the main thread runs, the innermost last: then no event loop of its is between two
callbacks, though one may run."""


def is_from_handler(error: BaseException) -> bool:
    """Tell whether a signal's handler raised it: it has nothing to do with the code that it went through, then."""
    return "__hocket_signal__" in getattr(error, "__dict__", ())


class Id(str):
    """The id of a task, actor, node, session or placement group: its hexadecimal digits, with the methods of Ray's
    ids."""

    __slots__ = ()

    def hex(self) -> str:
        """Return the digits as plain text."""
        return str(self)

    def binary(self) -> bytes:
        """Return the id as bytes."""
        return bytes.fromhex(self)

    def is_nil(self) -> bool:
        """Tell whether it stands for nothing."""
        return not self.strip("f")


_NO_VALUE: Final = (
    "An ObjectRef is no value: it stands for one that is made elsewhere. Write hocket.get(ref) for the value"
)


def _refuse_use(ref: ObjectRef[object], *_: object) -> NoReturn:
    """Raise for an operation on a reference that is meant for its value."""
    raise TypeError(f"{_NO_VALUE}.")


class ObjectRef(Generic[T_co]):
    """A handle on an immutable value that the engine holds, or will hold when a task has made it.

    Pass it to other tasks, put it into containers, `get` it. When the last handle in all processes is gone, the value
    is freed. Handles compare by identity: one process has one handle object for each object.

    Never built by users: `.remote()`, `put` and `placement_group(...).ready()` return them.
    """

    __slots__ = ("__weakref__", "_engine", "_id", "_native")

    _native: object
    """What keeps the object alive, on an engine that stands on another system; not set on others."""

    def __init__(self, object_id: int, engine: Engine) -> None:
        self._id = object_id
        self._engine = engine

    if not TYPE_CHECKING:  # or a type checker would let it pass

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(name, name=name, obj=self)
            raise AttributeError(
                f"An ObjectRef has no attribute {name!r}: it stands for a value that is made elsewhere. Write "
                "hocket.get(ref) for the value.",
                name=name,
                obj=self,
            )

        # Not `__iter__`: a reference is no Iterable. A loop over it asks for its item 0.
        __getitem__ = __setitem__ = __len__ = __lt__ = __le__ = __gt__ = __ge__ = __int__ = __float__ = _refuse_use
        __index__ = __round__ = __neg__ = __pos__ = __abs__ = __invert__ = __and__ = __rand__ = _refuse_use
        __or__ = __ror__ = __xor__ = __rxor__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = _refuse_use
        __rmul__ = __matmul__ = __rmatmul__ = __truediv__ = __rtruediv__ = __floordiv__ = _refuse_use
        __rfloordiv__ = __mod__ = __rmod__ = __divmod__ = __rdivmod__ = __pow__ = __rpow__ = _refuse_use

        def __bool__(self):
            # True as in Ray, whose programs ask whether there is a reference at all; but never silently so.
            advice = "it is always true, and `ref is not None` asks whether there is a reference"
            warnings.warn(f"{_NO_VALUE}; {advice}.", stacklevel=2)
            return True

        def __format__(self, form):
            return str(self) if not form else _refuse_use(self)

    def hex(self) -> str:
        """Return the id in hexadecimal: 16 digits, or 56 on Ray."""
        return self._engine.handles.format_ref(self)

    def binary(self) -> bytes:
        """Return the id as bytes: 16 of them, or 28 on Ray."""
        return bytes.fromhex(self.hex()).rjust(16, b"\0")

    def task_id(self) -> Id:
        """Return the id of the task that makes the value, in hexadecimal."""
        return Id(self.hex())

    def job_id(self) -> Id:
        """Return the id of the session."""
        return Id(self._engine.view.get_context().job_id)

    def future(self) -> futures.Future[T_co]:
        """Return a `concurrent.futures.Future` of the value. Cancelling it does not cancel the task."""
        from concurrent import futures  # here, because most programs need neither this nor asyncio (24 ms)

        future: futures.Future[T_co] = futures.Future()

        def settle() -> None:
            if future.set_running_or_notify_cancel():
                self._settle(future)

        self._engine.objects.when_done(self, settle)
        return future

    def as_future(self) -> asyncio.Future[T_co]:
        """Return an `asyncio.Future` of the value, on the event loop that runs, or else on this thread's, which may be
        run later. Cancelling it does not cancel the task.
        """
        import asyncio

        try:
            loop = asyncio.get_running_loop()
            loop_thread = threading.get_ident()
        except RuntimeError:
            loop = asyncio.get_event_loop()
            loop_thread = 0  # whichever runs it later
        future: asyncio.Future[T_co] = loop.create_future()

        def settle() -> None:
            if not future.done():
                self._settle(future)

        def call_settle() -> None:
            if loop.is_closed():  # nobody waits any more
                return
            if threading.get_ident() == loop_thread and not running_handlers:
                settle()
            else:  # a handler of a signal may have interrupted the loop's own wait
                loop.call_soon_threadsafe(settle)

        self._engine.objects.when_done(self, call_settle)
        return future

    def _settle(self, future: futures.Future[T_co] | asyncio.Future[T_co]) -> None:
        """Give a future the value, which is there, or the error. What a signal's handler raises meanwhile is raised
        here: whoever interrupts the program may not be waiting for this future."""
        try:
            value = self._engine.objects.get((self,), None)[0]
        except BaseException as error:
            if is_from_handler(error):
                self._settle(future)
                raise
            if isinstance(error, exceptions.HocketError):
                exceptions.hide_frames(error)
            elif isinstance(error, Exception) and undecodable.is_from_decoding(error):
                error = undecodable.explain(f"The value of {self!r}", error)
            future.set_exception(error)
        else:
            future.set_result(value)

    def __await__(self) -> Generator[object, None, T_co]:
        return self.as_future().__await__()

    def __repr__(self) -> str:
        return f"ObjectRef({self.hex()})"

    def __reduce__(self) -> tuple[object, ...]:
        return self._engine.handles.reduce_ref(self)

    def __del__(self) -> None:
        # May run in any thread at any moment, so no lock: a deque's append is atomic. Until this is over weak
        # references still give the handle to other threads; without its id they can tell that it is none any more.
        object_id, self._id = self._id, NO_ID
        self._engine.dropped.append(object_id)


AnyRef: TypeAlias = ObjectRef[Any]
"""A reference to something that only the user's code looks into."""


class _Encoding(threading.local):
    refs: list[AnyRef] | None = None
    by_index: bool = False


class _Decoding(threading.local):
    refs: list[AnyRef] | None = None


encoding = _Encoding()
"""``encoding.refs`` is the list that collects the references in the value being encoded by this thread. With
``encoding.by_index`` they are encoded as places in that list, and whoever decodes the value brings the list
(``decoding.refs``): it has to count them anyway, and a list of 10,000 references then takes no call of ours for
each."""

decoding = _Decoding()
"""``decoding.refs`` is the list of handles for the value being decoded by this thread."""


class _References:
    """Stands in an encoded value for the list of its references."""

    def __reduce__(self) -> tuple[object, ...]:
        return _get_decoding_refs, ()


REFERENCES: object = _References()


def _get_decoding_refs() -> list[ObjectRef[object]]:
    if decoding.refs is None:
        raise exceptions.ObjectLostError(
            "A reference was pickled by hand inside a value that was sent, and cannot be unpickled later. Put the "
            "reference itself into the value."
        )
    return decoding.refs


def rebuild_ref(object_id: int) -> ObjectRef[object]:
    """Return this process's handle for the object: what an unpickled reference becomes."""
    return get_current_engine().handles.intern(object_id)


class RemoteFunction:
    """A function or class in the form that travels: encoded once, known by the digest of its code."""

    __slots__ = ("__weakref__", "blob", "buffers", "captured", "id", "name", "value")

    def __init__(
        self,
        value: Any,
        name: str,
        blob: bytes,
        function_id: bytes,
        captured: tuple[ObjectRef[object], ...],
        buffers: tuple[memoryview, ...] = (),
    ) -> None:
        self.value = value
        self.name = name
        self.blob = blob
        self.id = function_id
        #: Memory of large arrays that it refers to: beside `blob`, to be stored once a session.
        self.buffers = buffers
        #: References in its closure; they live as long as it does.
        self.captured = captured


class ActorInfo(NamedTuple):
    """The facts that a handle on an actor needs."""

    ref: ObjectRef[None]
    """Stands for the actor: the actor lives as long as somebody holds it."""
    options: records.ActorOptions


class Inherited(NamedTuple):
    """The settings that work inherits from the work, or the session, that submits it."""

    environment: str = ""
    """The runtime environment, in the form that travels; empty is none."""
    group_id: int = 0
    """The placement group that children run in; 0 is none."""


NOTHING_INHERITED = Inherited()


class WorkContext(NamedTuple):
    """Where the code that asks is running."""

    job_id: str
    node_id: str
    worker_id: str
    task_id: str | None = None
    """None in the driver's main program."""
    task_name: str | None = None
    function_name: str | None = None
    actor_id: str | None = None
    actor_name: str | None = None
    resources: Mapping[str, float] = MappingProxyType({})
    gpu_ids: tuple[resources.GpuId, ...] = ()
    placement_group_id: str | None = None
    namespace: str = ""
    attempt: int = 0
    actor_attempt: int = 0
    """How often the actor has been built again."""
    is_canceled: bool = False
    environment: str = ""
    """The runtime environment, in the form that travels; empty is none."""
    captures_children: bool = False
    """Whether tasks submitted here run in the same placement group, unless they say otherwise."""


class Unfetched(Protocol):
    """The errors of tasks and calls that nobody has fetched.

    Left out are errors of tasks that were cancelled, or tried again with success, and those of Hocket's own functions
    and actors.
    """

    def note_asked(self, refs: Sequence[AnyRef]) -> None:
        """Hear that `get` of these has raised the error of one: those of the others count as fetched."""

    def list_errors(self) -> list[tuple[str, BaseException]]:
        """Return them, each with the name of its task."""


# --- the parts of an engine -------------------------------------------------------------------------------------------


class Tasks(abc.ABC):
    """Work that is handed in."""

    def expect_work(self, modules: Sequence[str] = ()) -> None:
        """Hear that work will come when it is encoded, which may take a while: what takes long to start can start now.

        Args:
            modules: What all of that work will import, and can be imported before a process forks: libraries that start
                no threads then.
        """

    @abc.abstractmethod
    def submit_task(
        self,
        function: RemoteFunction,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.TaskOptions,
    ) -> list[AnyRef]:
        """Run ``function(*args, **kwargs)`` somewhere; return at once, with ``options.num_returns`` references.

        Raises:
            SerializationError: An argument cannot travel.
            TaskUnschedulableError: It asks for more than the session can ever have.
        """

    @abc.abstractmethod
    def create_actor(
        self,
        actor_class: RemoteFunction,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.ActorOptions,
    ) -> ActorInfo:
        """Build an actor somewhere; return at once.

        Raises:
            ActorAlreadyExistsError: A living actor has the name.
            ActorUnschedulableError: It asks for more than the session can ever have.
        """

    @abc.abstractmethod
    def submit_call(
        self,
        actor: ObjectRef[None],
        method: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.TaskOptions,
    ) -> list[AnyRef]:
        """Call a method of an actor; return at once. A dead actor is reported by `get`, not here."""

    @abc.abstractmethod
    def cancel(self, ref: ObjectRef[object], *, force: bool, recursive: bool) -> None:
        """Stop the task that makes the object: unstarted, it never runs; running, it gets a KeyboardInterrupt, and its
        error is a `TaskError`, too, or its process ends if `force`. `recursive`: also the tasks that it submitted.
        """


class Actors(abc.ABC):
    """Actors that live, and their names."""

    @abc.abstractmethod
    def find_actor(self, name: str, namespace: str) -> ActorInfo | None:
        """Return the living actor of that name, or None."""

    @abc.abstractmethod
    def list_named_actors(self) -> list[tuple[str, str]]:
        """Return the namespace and name of each living actor that has a name."""

    @abc.abstractmethod
    def describe_actor(self, actor_id: int) -> ActorInfo:
        """Return what a handle on a living actor needs to know.

        Raises:
            ActorHandleNotFoundError: There is none of that id.
        """

    @abc.abstractmethod
    def kill_actor(self, actor: ObjectRef[None], *, no_restart: bool = True) -> None:
        """End an actor now, without letting it finish anything; it is built again if it may be and `no_restart` is
        False."""

    @abc.abstractmethod
    def request_exit(self) -> None:
        """End the actor that the calling code belongs to, as soon as that can be: the call that asks for it has no
        result, and the others fail. Called before an exception leaves that code, which may be caught, or be in a thread
        or coroutine that nobody waits for.
        """

    @abc.abstractmethod
    def check_pending(self, actor: ObjectRef[None]) -> None:
        """Raise if the caller has as many unanswered calls on the actor as it may have.

        Raises:
            PendingCallsLimitExceeded: It has.
        """


class Objects(abc.ABC):
    """Values that the engine holds, or will hold."""

    @abc.abstractmethod
    def put(self, value: object) -> AnyRef:
        """Store a value.

        Raises:
            SerializationError: It cannot travel.
            ObjectStoreFullError: There is no memory left.
        """

    @abc.abstractmethod
    def put_error(self, error: exceptions.TaskError) -> AnyRef:
        """Return a reference that raises this in `get`, as that of a failed task does."""

    @abc.abstractmethod
    def get(self, refs: Sequence[AnyRef], timeout_s: float | None) -> list[Any]:
        """Wait for the values and return them in order.

        Raises the first error that is met, without waiting for the rest.

        Raises:
            GetTimeoutError: They were not all there in time.
        """

    @abc.abstractmethod
    def wait(self, refs: Sequence[AnyRef], num_ready: int, timeout_s: float | None) -> list[bool]:
        """Wait until `num_ready` of the objects are there, or the time is over; tell of each whether it is there.

        The answer counts exactly ``num_ready`` as there, even if more are. An error counts as there.
        """

    @abc.abstractmethod
    def when_done(self, ref: ObjectRef[object], callback: Callable[[], None]) -> None:
        """Call back once the value, or an error, is there, or the session is closed; at once if it is.

        The callback runs in any thread, must be quick and must not raise.
        """

    @abc.abstractmethod
    def take_item(self, stream: ObjectRef[object], index: int) -> AnyRef:
        """Return the handle on what a generator yields at this place.

        `stream` is the reference that `submit_task` or `submit_call` returned for ``num_returns`` of
        `records.STREAMING`. Items are taken in order, each once, and not before the one before it is there.
        """

    def lift_bound(self, stream: ObjectRef[object]) -> None:
        """Hear that somebody waits for a generator's end and not for its items: it is not to wait for a reader any
        more.

        What the user says with ``_generator_backpressure_num_objects`` stays.
        """

    @abc.abstractmethod
    def is_end(self, item: ObjectRef[object], timeout_s: float | None) -> bool | None:
        """Wait for an item; tell whether it is the end of the stream instead; None if it is not there in time."""


class Resources(abc.ABC):
    """The session's resources, and reservations of them."""

    @abc.abstractmethod
    def reserve(
        self, bundles: Sequence[resources.Demand], strategy: str, name: str, *, is_detached: bool = False
    ) -> ObjectRef[None]:
        """Reserve bundles of resources, all or none; the reference has a value (None) when they are reserved.

        What an actor has reserved is given back when the actor is dead, unless it is detached.

        Raises:
            InfeasibleResourcesError: They can never fit.
        """

    @abc.abstractmethod
    def remove_group(self, group_id: int) -> None:
        """Give a reservation back. What runs in it is ended."""

    @abc.abstractmethod
    def list_groups(self) -> list[dict[str, Any]]:
        """Return a description of each placement group."""

    @abc.abstractmethod
    def list_nodes(self) -> list[dict[str, Any]]:
        """Return a description of each node, with Ray's keys."""

    @abc.abstractmethod
    def get_total_resources(self) -> dict[str, float]:
        """Return what the session has."""

    @abc.abstractmethod
    def get_free_resources(self) -> dict[str, float]:
        """Return what of it is free now; what is used up is left out."""


class View(abc.ABC):
    """The state of the session, for those who look."""

    @abc.abstractmethod
    def get_context(self) -> WorkContext:
        """Tell where the calling code runs."""

    @abc.abstractmethod
    def list_errors(self) -> list[exceptions.ErrorRecord]:
        """Return the failures of this session, oldest first (the last 1,000)."""

    @abc.abstractmethod
    def list_records(
        self, kind: str, filters: Sequence[tuple[str, str, object]] = (), limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Return what the engine knows of all things of a kind, with Ray's names; see `hocket.engine.inspection`.

        What is over is remembered for a while. A row passes the `filters` (``(field, "=" or "!=", value)``) or is left
        out.

        Raises:
            ValueError: The kind is unknown.
        """

    @abc.abstractmethod
    def statistics(self) -> dict[str, Any]:
        """Return counts of what the engine holds now: tasks, objects, actors, workers and bytes."""


class Metrics:
    """Counts and measurements: in the driver those of all processes, in a worker those that it has not sent yet."""

    def __init__(self) -> None:
        self.store = metrics.MetricStore()
        #: Held around uses of the store.
        self.lock = threading.RLock()

    def record(self, batch: metrics.Batch) -> None:
        """Add to what the session has counted and measured.

        What a task or call recorded is in `collect` when its result is there; what one that runs records, about a
        second after that at its next record.
        """
        with self.lock:
            self.store.merge(batch)

    def collect(self) -> metrics.MetricStore:
        """Return what the session has counted and measured; in the driver."""
        return self.store


class Handles(abc.ABC):
    """This process's handles on objects: there is at most one on each, so identity is equality."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: Handles that have left this process in a pickle and may come back in one.
        self.interned: dict[int, weakref.ref[AnyRef]] = {}
        #: Handles that were pickled by somebody else than us: kept until the session ends.
        self.pinned: list[AnyRef] = []

    @abc.abstractmethod
    def adopt(self, object_id: int) -> None:
        """Count one more handle, which this process has just learned of."""

    @abc.abstractmethod
    def reduce_pinned(self, ref: ObjectRef[object]) -> tuple[object, ...]:
        """Return what a user's own pickle has of a handle: in another session it must not stand for something else."""

    def format_ref(self, ref: ObjectRef[object]) -> str:
        """Return the id of a handle as people see it."""
        return f"{ref._id:016x}"

    def build(self, object_id: int) -> AnyRef:
        """Return the first handle on an object that is counted already."""
        return ObjectRef(object_id, self._engine)

    def intern(self, object_id: int) -> AnyRef:
        """Return this process's handle on an object."""
        known = self.interned.get(object_id)
        ref = known() if known is not None else None
        if ref is None or ref._id == NO_ID:
            self.adopt(object_id)
            ref = ObjectRef(object_id, self._engine)
            self.interned[object_id] = weakref.ref(ref)
        return ref

    def remember(self, ref: ObjectRef[object]) -> AnyRef:
        """Make a new handle the one that `intern` returns; for objects that are also looked up by name."""
        self.interned[ref._id] = weakref.ref(ref)
        return ref

    def forget(self, object_id: int) -> None:
        """Forget a handle that has been garbage-collected."""
        known = self.interned.get(object_id)
        if known is not None:
            ref = known()
            if ref is None or ref._id == NO_ID:
                del self.interned[object_id]

    def reduce_ref(self, ref: ObjectRef[object]) -> tuple[object, ...]:
        """Return what `pickle` makes of a handle.

        Whoever is encoding a value in this thread learns of it; anybody else (a user's own pickle) pins it.
        """
        found = encoding.refs
        if found is not None:
            check_current(ref)
        self.remember(ref)
        if found is None:
            self.pinned.append(ref)  # it goes where we cannot follow
            return self.reduce_pinned(ref)
        found.append(ref)
        if encoding.by_index:
            return operator.getitem, (REFERENCES, len(found) - 1)
        return rebuild_ref, (ref._id,)

    def clear(self) -> None:
        """The session is over."""
        self.interned.clear()
        self.pinned.clear()


class Engine(abc.ABC):
    """An engine runs tasks and actors, and holds their values. It has a part for each kind of question.

    Promises, for every engine:

    - **Isolation.** A value is encoded when it is given (`put`, arguments, results); later changes by the giver are not
      seen. `get` returns a value of its own each time; writing to it changes nobody else's.
    - **Resolution.** A reference that is itself an argument is replaced by its value before the task runs; a reference
      inside an argument stays a reference. A task whose argument failed does not run, and fails with the same cause.
    - **Order.** Calls of one caller on one actor run in the order of submission. Between callers there is no order.
    - **No deadlock by nesting.** While code waits in `get` or `wait`, its CPU is free for the tasks that it waits for.
    - **Counting.** A value is freed when no handle on it is reachable from any process; an actor ends when no handle on
      it is, after the calls that were made.
    - **Failure.** Every wait ends: with a value, with an error that says what died and why, or with the caller's own
      time-out. Errors of user code carry the worker's traceback.
    - **Retries.** A task is tried again ``max_retries`` times after its worker died, and for the exceptions that
      ``retry_exceptions`` names; never more often, and never after `cancel`.

    All methods may be called from any thread. Handles belong to the engine that made them. The surface is no larger
    than this because everything else (options, signatures, handles, contexts) is the same on every engine and lives in
    `hocket.core`.
    """

    name: ClassVar[str]
    """Under which name `hocket.init` opens it."""

    is_closable: bool = True
    """Whether `shutdown` may close it: a worker's engine belongs to the session that it works for."""

    reads_parts: ClassVar[bool] = True
    """Whether a process that reads a part of a large value that was spilled to disk loads that part alone."""

    limits: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What of the above, or of what the other engines do, this one cannot: a sentence for each, by the name of the
    ability. Tests ask for an ability with ``needs("name")`` and are left out where it is not had."""

    tasks: Tasks
    actors: Actors
    objects: Objects
    resources: Resources
    view: View
    metrics: Metrics
    handles: Handles

    unfetched: Unfetched | None = None
    """None: the engine shows such errors by itself."""

    is_severed: bool = False
    """Whether this process is a fork of the engine's own."""

    def __init__(self) -> None:
        #: Ids of handles that have been garbage-collected and not yet been counted.
        self.dropped: deque[int] = deque()
        #: The settings that work submitted by this process inherits; None is nothing.
        self.inherited: Inherited | None = None

    def inherit(self, inherited: Inherited | None) -> Inherited | None:
        """Set what work inherits that is submitted from now on; return what it was."""
        before, self.inherited = self.inherited, inherited
        return before

    @abc.abstractmethod
    def close(self) -> None:
        """End the session: every process, every buffer. Calling it again does nothing."""

    def sever(self, part: Any, handles: Handles) -> None:
        """Put something else in the place of all parts: this process is a fork.

        Args:
            part: Its methods refuse.
            handles: The handles that are left.
        """
        self.tasks = self.actors = self.objects = self.resources = self.view = part
        self.handles, self.metrics, self.is_severed = handles, Metrics(), True

    def cut_off(self) -> None:
        """Hear that this process is a fork of the engine's own: nothing that others use may be read or written here
        from now on.

        Called in the fork, in its only thread, before anything else; locks may be held by threads that are not there.
        """


current_engine: Engine | None = None
"""The engine of this process's session, or None. Only `set_current_engine` sets it."""


def build_closed_error(ref: ObjectRef[object]) -> exceptions.ObjectLostError:
    """Return the error of a handle that has outlived its session."""
    return exceptions.ObjectLostError(
        f"{ref!r} belongs to a session that is closed. Make the value, or the actor, again in the session that is open."
    )


def check_current(ref: AnyRef) -> None:
    """Make sure that a handle belongs to the session that is open: in another one its id may stand for something else.

    Raises:
        ObjectLostError: Its session is closed.
    """
    if ref._engine is not current_engine:
        raise build_closed_error(ref)


def set_current_engine(engine: Engine | None) -> None:
    """Make this the engine that unpickled references belong to; None closes."""
    global current_engine  # noqa: PLW0603 (a process has one session: that is what the name `hocket.get` means)
    current_engine = engine


def get_current_engine() -> Engine:
    """Return the engine of this process's session.

    Raises:
        SessionClosedError: There is none.
    """
    if current_engine is None:
        raise exceptions.SessionClosedError(
            "No session is open in this process, so a reference cannot be used. Call hocket.init() first; references "
            "of an earlier session are gone."
        )
    return current_engine
