"""The engine contract: the only interface between the programming model and the engines.

`hocket.core` turns decorators and options into the records of this module, and passes them to an `Engine`.
`hocket.testing.EngineContract` tests whether an engine keeps its promises.
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
"""Seconds that tasks have to end after an interrupt, and that processes have afterwards. A guess: a function in Python
needs milliseconds, and both together must be over within a second."""

running_handlers: list[int] = []
"""The signals for which the main thread runs handlers now, the innermost last. While a handler runs, a running event
loop of the main thread may be interrupted anywhere, and not only between two callbacks."""


def is_from_handler(error: BaseException) -> bool:
    """Return whether a signal handler raised an error, which then says nothing about the code that it interrupted."""
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
        """Return whether this is the id of nothing."""
        return not self.strip("f")


_NO_VALUE: Final = "An ObjectRef is not a value, but a handle on one. Write hocket.get(ref) for the value"


def _refuse_use(ref: ObjectRef[object], *_: object) -> NoReturn:
    """Raise TypeError for an operation on a reference that was meant for the value."""
    raise TypeError(f"{_NO_VALUE}.")


class ObjectRef(Generic[T_co]):
    """A handle on an immutable value that the engine holds, or will hold when a task has made it.

    Pass it to other tasks, put it into containers, or `get` the value. When the last handle in all processes is gone,
    the value is freed. Handles compare by identity: a process has one handle for each object.

    `.remote()`, `put` and `placement_group(...).ready()` return references; users do not build them.
    """

    __slots__ = ("__weakref__", "_engine", "_id", "_native")

    _native: object
    """The other system's reference, which keeps the object alive, on an engine on another system; not set on others."""

    def __init__(self, object_id: int, engine: Engine) -> None:
        self._id = object_id
        self._engine = engine

    if not TYPE_CHECKING:  # a type checker that saw these would accept such uses

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(name, name=name, obj=self)
            raise AttributeError(
                f"An ObjectRef has no attribute {name!r}: it is a handle on a value. Write hocket.get(ref) for the "
                "value.",
                name=name,
                obj=self,
            )

        # Not `__iter__`: a reference is no Iterable. A loop over a reference calls `__getitem__(0)`.
        __getitem__ = __setitem__ = __len__ = __lt__ = __le__ = __gt__ = __ge__ = __int__ = __float__ = _refuse_use
        __index__ = __round__ = __neg__ = __pos__ = __abs__ = __invert__ = __and__ = __rand__ = _refuse_use
        __or__ = __ror__ = __xor__ = __rxor__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = _refuse_use
        __rmul__ = __matmul__ = __rmatmul__ = __truediv__ = __rtruediv__ = __floordiv__ = _refuse_use
        __rfloordiv__ = __mod__ = __rmod__ = __divmod__ = __rdivmod__ = __pow__ = __rpow__ = _refuse_use

        def __bool__(self):
            # True as in Ray, because Ray's programs test this way whether there is a reference; but with a warning.
            advice = "an ObjectRef is always true, and `ref is not None` tests whether there is one"
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
        """Return a `concurrent.futures.Future` of the value. To cancel the future does not cancel the task."""
        from concurrent import futures  # here, because most programs need neither this nor asyncio (24 ms)

        future: futures.Future[T_co] = futures.Future()

        def settle() -> None:
            if future.set_running_or_notify_cancel():
                self._settle(future)

        self._engine.objects.when_done(self, settle)
        return future

    def as_future(self) -> asyncio.Future[T_co]:
        """Return an `asyncio.Future` of the value, on the running event loop, or else on this thread's, which may run
        later. To cancel the future does not cancel the task.
        """
        import asyncio

        try:
            loop = asyncio.get_running_loop()
            loop_thread = threading.get_ident()
        except RuntimeError:
            loop = asyncio.get_event_loop()
            loop_thread = 0  # any thread may run the loop later
        future: asyncio.Future[T_co] = loop.create_future()

        def settle() -> None:
            if not future.done():
                self._settle(future)

        def call_settle() -> None:
            if loop.is_closed():  # no coroutine can wait for it any more
                return
            if threading.get_ident() == loop_thread and not running_handlers:
                settle()
            else:  # another thread, or a signal handler that may have interrupted the loop's own wait
                loop.call_soon_threadsafe(settle)

        self._engine.objects.when_done(self, call_settle)
        return future

    def _settle(self, future: futures.Future[T_co] | asyncio.Future[T_co]) -> None:
        """Give a future the value, which is there, or the error. An error that a signal handler raises meanwhile is
        raised here, and not stored: the interrupt concerns the program, and perhaps no waiter of this future."""
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
        # This may run in any thread at any moment, so it takes no lock: a deque's append is atomic. Until it returns,
        # weak references still give the handle to other threads, which see by the missing id that it is dead.
        object_id, self._id = self._id, NO_ID
        self._engine.dropped.append(object_id)


AnyRef: TypeAlias = ObjectRef[Any]
"""A reference to a value of unknown type, which only the user's code uses."""


class _Encoding(threading.local):
    refs: list[AnyRef] | None = None
    by_index: bool = False


class _Decoding(threading.local):
    refs: list[AnyRef] | None = None


encoding = _Encoding()
"""``encoding.refs`` is the list that collects the references in the value that this thread encodes. With
``encoding.by_index`` they are encoded as indices into that list, and the decoder provides the list (``decoding.refs``):
it has to count the references anyway, and 10,000 references then take no call of ours for each."""

decoding = _Decoding()
"""``decoding.refs`` is the list of handles for the value that this thread decodes."""


class _References:
    """A placeholder in an encoded value for the list of its references."""

    def __reduce__(self) -> tuple[object, ...]:
        return _get_decoding_refs, ()


REFERENCES: object = _References()


def _get_decoding_refs() -> list[ObjectRef[object]]:
    if decoding.refs is None:
        raise exceptions.ObjectLostError(
            "A value that was sent holds a reference that your code pickled itself, and that cannot be unpickled here. "
            "Put the reference itself into the value."
        )
    return decoding.refs


def rebuild_ref(object_id: int) -> ObjectRef[object]:
    """Return this process's handle for an object; unpickling a reference calls this."""
    return get_current_engine().handles.intern(object_id)


class RemoteFunction:
    """A function or class, encoded once for sending, and identified by the digest of its code."""

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
        #: The memory of large arrays that the function refers to, apart from `blob`; stored once per session.
        self.buffers = buffers
        #: The references in the function's closure, which live as long as this object.
        self.captured = captured


class ActorInfo(NamedTuple):
    """The facts that a handle on an actor needs."""

    ref: ObjectRef[None]
    """The reference that stands for the actor: the actor lives as long as a handle on it."""
    options: records.ActorOptions


class Inherited(NamedTuple):
    """The settings that a task inherits from the task, or the session, that submits it."""

    environment: str = ""
    """The runtime environment as text; empty is none."""
    group_id: int = 0
    """The placement group in which children run; 0 is none."""


NOTHING_INHERITED = Inherited()


class WorkContext(NamedTuple):
    """Facts about the task, actor or driver that runs the calling code."""

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
    """The runtime environment as text; empty is none."""
    captures_children: bool = False
    """Whether tasks that this code submits run in the same placement group, unless their options differ."""


class Unfetched(Protocol):
    """The errors of tasks and calls that the program has not fetched.

    Left out are errors of cancelled tasks, of tasks that succeeded in a later attempt, and of Hocket's own functions
    and actors.
    """

    def note_asked(self, refs: Sequence[AnyRef]) -> None:
        """Note that a `get` of these references raised the error of one: the others' errors count as fetched, too."""

    def list_errors(self) -> list[tuple[str, BaseException]]:
        """Return the errors, each with the name of its task."""


# --- the parts of an engine -------------------------------------------------------------------------------------------


class Tasks(abc.ABC):
    """The part of an engine that takes tasks, actors and calls."""

    def expect_work(self, modules: Sequence[str] = ()) -> None:
        """Start slow preparations, such as processes: tasks will come when they are encoded, which may take a while.

        Args:
            modules: Modules that all of this work imports, and that a process can import before it forks, because they
                start no threads.
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
            TaskUnschedulableError: The task asks for more than the session can ever have.
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
            ActorUnschedulableError: The actor asks for more than the session can ever have.
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
        """Call a method of an actor; return at once. If the actor is dead, only `get` raises."""

    @abc.abstractmethod
    def cancel(self, ref: ObjectRef[object], *, force: bool, recursive: bool) -> None:
        """Stop the task that makes an object. A task that has not started never runs. A running task gets a
        KeyboardInterrupt, and its error is a `TaskError`, too; with `force`, its process ends. `recursive` also stops
        the tasks that the task submitted."""


class Actors(abc.ABC):
    """The part of an engine for living actors and their names."""

    @abc.abstractmethod
    def find_actor(self, name: str, namespace: str) -> ActorInfo | None:
        """Return the living actor with this name, or None."""

    @abc.abstractmethod
    def list_named_actors(self) -> list[tuple[str, str]]:
        """Return the namespace and name of each living actor that has a name."""

    @abc.abstractmethod
    def describe_actor(self, actor_id: int) -> ActorInfo:
        """Return the facts that a handle on a living actor needs.

        Raises:
            ActorHandleNotFoundError: There is no actor with this id.
        """

    @abc.abstractmethod
    def kill_actor(self, actor: ObjectRef[None], *, no_restart: bool = True) -> None:
        """End an actor now, in the middle of its calls. If `no_restart` is False and its options allow it, the actor is
        built again."""

    @abc.abstractmethod
    def request_exit(self) -> None:
        """End the actor that runs the calling code, as soon as possible. This call has no result, and all others fail.
        `exit_actor` calls this and then raises. The exception alone would not do: the user's code may catch it, or a
        thread or coroutine may raise it for which no call waits."""

    @abc.abstractmethod
    def check_pending(self, actor: ObjectRef[None]) -> None:
        """Check that the caller may make another call on the actor.

        Raises:
            PendingCallsLimitExceeded: The caller has as many unanswered calls on the actor as it may have.
        """


class Objects(abc.ABC):
    """The part of an engine for values that it holds, or will hold."""

    @abc.abstractmethod
    def put(self, value: object) -> AnyRef:
        """Store a value.

        Raises:
            SerializationError: The value cannot travel.
            ObjectStoreFullError: There is no memory left.
        """

    @abc.abstractmethod
    def put_error(self, error: exceptions.TaskError) -> AnyRef:
        """Return a reference that raises this error in `get`, as the reference of a failed task does."""

    @abc.abstractmethod
    def get(self, refs: Sequence[AnyRef], timeout_s: float | None) -> list[Any]:
        """Wait for the values and return them in order. Raise the first error that comes, without waiting for the rest.

        Raises:
            GetTimeoutError: Not all values were there in time.
        """

    @abc.abstractmethod
    def wait(self, refs: Sequence[AnyRef], num_ready: int, timeout_s: float | None) -> list[bool]:
        """Wait until `num_ready` of the objects have a value, or for `timeout_s`; return of each whether it has one.

        The result has at most `num_ready` True entries, even if more objects have a value. An error counts as a value.
        """

    @abc.abstractmethod
    def when_done(self, ref: ObjectRef[object], callback: Callable[[], None]) -> None:
        """Call a function once, when the value or an error is there, or the session is closed; at once if it is so now.

        The callback runs in any thread, must be quick and must not raise.
        """

    @abc.abstractmethod
    def take_item(self, stream: ObjectRef[object], index: int) -> AnyRef:
        """Return the handle on the item that a generator yields at this index.

        `stream` is the reference that `submit_task` or `submit_call` returned for ``num_returns`` of
        `records.STREAMING`. The caller takes items in order, each once, and each only when the item before is there.
        """

    def lift_bound(self, stream: ObjectRef[object]) -> None:
        """Let a generator run without waiting for its reader, because a caller waits for its end and not its items.

        A bound that the user sets with ``_generator_backpressure_num_objects`` stays.
        """

    @abc.abstractmethod
    def is_end(self, item: ObjectRef[object], timeout_s: float | None) -> bool | None:
        """Wait for an item; return whether it is the end of the stream instead; None if it is not there in time."""


class Resources(abc.ABC):
    """The part of an engine for the session's resources and placement groups."""

    @abc.abstractmethod
    def reserve(
        self, bundles: Sequence[resources.Demand], strategy: str, name: str, *, is_detached: bool = False
    ) -> ObjectRef[None]:
        """Reserve bundles of resources, all or none; the reference has a value (None) when they are reserved.

        A group that an actor has reserved ends with the actor, unless the group is detached.

        Raises:
            InfeasibleResourcesError: The bundles can never fit.
        """

    @abc.abstractmethod
    def remove_group(self, group_id: int) -> None:
        """Remove a placement group, and end the tasks and actors in it."""

    @abc.abstractmethod
    def list_groups(self) -> list[dict[str, Any]]:
        """Return a description of each placement group."""

    @abc.abstractmethod
    def list_nodes(self) -> list[dict[str, Any]]:
        """Return a description of each node, with Ray's keys."""

    @abc.abstractmethod
    def get_total_resources(self) -> dict[str, float]:
        """Return the session's total amounts, by resource name."""

    @abc.abstractmethod
    def get_free_resources(self) -> dict[str, float]:
        """Return the amounts that are free now, by resource name, without resources that are used up."""


class View(abc.ABC):
    """The part of an engine that shows the session's state."""

    @abc.abstractmethod
    def get_context(self) -> WorkContext:
        """Return facts about the task, actor or driver that runs the calling code."""

    @abc.abstractmethod
    def list_errors(self) -> list[exceptions.ErrorRecord]:
        """Return the failures of this session, oldest first (the last 1,000)."""

    @abc.abstractmethod
    def list_records(
        self, kind: str, filters: Sequence[tuple[str, str, object]] = (), limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Return a record of each thing of a kind, with Ray's names; see `hocket.engine.inspection`.

        Tasks and actors stay in the lists for a while after their end. Records that do not pass all `filters`
        (``(field, "=" or "!=", value)``) are left out.

        Raises:
            ValueError: The kind is unknown.
        """

    @abc.abstractmethod
    def statistics(self) -> dict[str, Any]:
        """Return the engine's current counts of tasks, objects, actors, workers and bytes."""


class Metrics:
    """The program's metrics: in the driver of all processes, in a worker those that it has not sent yet."""

    def __init__(self) -> None:
        self.store = metrics.MetricStore()
        #: Held around uses of the store.
        self.lock = threading.RLock()

    def record(self, batch: metrics.Batch) -> None:
        """Add a batch to the session's metrics.

        `collect` has a task's metrics when the task's result is there. A running task sends its metrics at its next
        record after about a second.
        """
        with self.lock:
            self.store.merge(batch)

    def collect(self) -> metrics.MetricStore:
        """Return the session's metrics; in the driver only."""
        return self.store


class Handles(abc.ABC):
    """This process's handles on objects, at most one on each: so handles are equal if they are identical."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: Handles that have left this process in a pickle and may come back in a pickle.
        self.interned: dict[int, weakref.ref[AnyRef]] = {}
        #: Handles that the user's own code has pickled: kept until the session ends.
        self.pinned: list[AnyRef] = []

    @abc.abstractmethod
    def adopt(self, object_id: int) -> None:
        """Count one more handle on an object, which has just come to this process."""

    @abc.abstractmethod
    def reduce_pinned(self, ref: ObjectRef[object]) -> tuple[object, ...]:
        """Return the reduced form of a handle in a user's own pickle. In another session it must not mean another
        object."""

    def format_ref(self, ref: ObjectRef[object]) -> str:
        """Return the id of a handle as text for users."""
        return f"{ref._id:016x}"

    def build(self, object_id: int) -> AnyRef:
        """Return the first handle on an object; the engine has counted the handle already."""
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
        """Have `intern` return this new handle; for objects that can also be found by name."""
        self.interned[ref._id] = weakref.ref(ref)
        return ref

    def forget(self, object_id: int) -> None:
        """Remove a garbage-collected handle from the interned ones."""
        known = self.interned.get(object_id)
        if known is not None:
            ref = known()
            if ref is None or ref._id == NO_ID:
                del self.interned[object_id]

    def reduce_ref(self, ref: ObjectRef[object]) -> tuple[object, ...]:
        """Return the reduced form of a handle, for `pickle`.

        If this thread is encoding a value, add the handle to the value's references. Otherwise it is a user's own
        pickle: keep the handle until the session ends.
        """
        found = encoding.refs
        if found is not None:
            check_current(ref)
        self.remember(ref)
        if found is None:
            self.pinned.append(ref)  # the engine cannot count the pickles that hold it
            return self.reduce_pinned(ref)
        found.append(ref)
        if encoding.by_index:
            return operator.getitem, (REFERENCES, len(found) - 1)
        return rebuild_ref, (ref._id,)

    def clear(self) -> None:
        """Drop all handles, at the session's end."""
        self.interned.clear()
        self.pinned.clear()


class Engine(abc.ABC):
    """An engine runs tasks and actors, and holds their values. It has a part for each kind of request.

    Promises, for every engine:

    - **Isolation.** `put`, arguments and results encode a value at once; later changes to the original have no effect.
      Each `get` returns a new value, and changes to it affect no other.
    - **Resolution.** The engine replaces a reference that is itself an argument by its value before the task runs. A
      reference inside an argument stays a reference. If an argument failed, the task does not run, and fails with the
      same cause.
    - **Order.** Calls of one caller on one actor run in the order of submission. Between callers there is no order.
    - **No deadlock by nesting.** While code waits in `get` or `wait`, its CPU is free for the tasks that it waits for.
    - **Counting.** A value is freed when no process can reach a handle on it. An actor ends when no process can reach a
      handle on it, after the calls that were made.
    - **Failure.** Every wait ends: with a value, with an error that says what died and why, or with the caller's own
      time-out. Errors of user code carry the worker's traceback.
    - **Retries.** A task gets up to ``max_retries`` further attempts after its worker died, and for the exceptions that
      ``retry_exceptions`` names; never more, and none after `cancel`.

    Any thread may call all methods. Handles belong to the engine that made them. Everything else (options, signatures,
    handles, contexts) is the same on every engine, and is in `hocket.core`.
    """

    name: ClassVar[str]
    """The name by which `hocket.init` opens the engine."""

    is_closable: bool = True
    """Whether `shutdown` may close the engine: a worker's engine belongs to the driver's session."""

    reads_parts: ClassVar[bool] = True
    """Whether a process that needs only a part of a large value on disk loads that part alone."""

    limits: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """The promises, and abilities of other engines, that this engine lacks: a sentence for each, by the ability's name.
    Tests with ``needs("name")`` are left out on engines that lack the ability."""

    tasks: Tasks
    actors: Actors
    objects: Objects
    resources: Resources
    view: View
    metrics: Metrics
    handles: Handles

    unfetched: Unfetched | None = None
    """The unfetched errors; None if the engine shows such errors by itself."""

    is_severed: bool = False
    """Whether this process is a fork of the engine's own."""

    def __init__(self) -> None:
        #: Ids of handles that have been garbage-collected and not yet been counted.
        self.dropped: deque[int] = deque()
        #: The settings that tasks of this process inherit; None is nothing.
        self.inherited: Inherited | None = None

    def inherit(self, inherited: Inherited | None) -> Inherited | None:
        """Set the settings that tasks submitted from now on inherit; return the previous ones."""
        before, self.inherited = self.inherited, inherited
        return before

    @abc.abstractmethod
    def close(self) -> None:
        """End the session: every process, every buffer. A second call does nothing."""

    def sever(self, part: Any, handles: Handles) -> None:
        """Replace all parts of the engine, in a fork of its process.

        Args:
            part: An object with methods that raise.
            handles: The handles that are left.
        """
        self.tasks = self.actors = self.objects = self.resources = self.view = part
        self.handles, self.metrics, self.is_severed = handles, Metrics(), True

    def cut_off(self) -> None:
        """Detach the engine in a fork of its process: from now on it must not read or write what other processes use.

        The fork calls this first, in its only thread. Threads that do not exist there may hold locks.
        """


current_engine: Engine | None = None
"""The engine of this process's session, or None. Only `set_current_engine` sets it."""


def build_closed_error(ref: ObjectRef[object]) -> exceptions.ObjectLostError:
    """Return the error for a handle of a closed session."""
    return exceptions.ObjectLostError(
        f"{ref!r} belongs to a session that is closed. Make the value, or the actor, again in the open session."
    )


def check_current(ref: AnyRef) -> None:
    """Check that a handle belongs to the open session: in another session, its id may mean another object.

    Raises:
        ObjectLostError: The handle's session is closed.
    """
    if ref._engine is not current_engine:
        raise build_closed_error(ref)


def set_current_engine(engine: Engine | None) -> None:
    """Set the engine of this process's session, to which unpickled references belong; None if the session closes."""
    global current_engine  # noqa: PLW0603 (a process has one session: that is what the name `hocket.get` means)
    current_engine = engine


def get_current_engine() -> Engine:
    """Return the engine of this process's session.

    Raises:
        SessionClosedError: No session is open.
    """
    if current_engine is None:
        raise exceptions.SessionClosedError(
            "No session is open in this process, so a reference cannot be used. Call hocket.init() first; references "
            "of an earlier session are gone."
        )
    return current_engine
