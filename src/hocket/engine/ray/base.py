"""What the engine on Ray knows, and its handles."""

from __future__ import annotations

import abc
import atexit
import operator
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import ray

from hocket import exceptions
from hocket.engine import contract
from hocket.engine.ray import arrays, listing, natives, notes, origins, outside, runner
from hocket.kernel import metrics as kernel_metrics
from hocket.kernel import records

_INLINE_BYTES: Final = 100 * 1024
"""Up to this size a value travels inside the call: Ray's ``max_direct_call_object_size``."""

_FIRST_SEARCH: Final = 16
"""With as many actors the dead among them are looked for, and then whenever their number has doubled."""

_PLAIN: Final = frozenset({type(None), bool, int, float})


class Connection(Protocol):
    """What the engine needs to know of how it came to its Ray."""

    @property
    def address(self) -> str:
        """Where the cluster is."""

    @property
    def is_attached(self) -> bool:
        """Whether somebody else connected this process to Ray, and will disconnect it."""

    def close(self) -> None:
        """Disconnect."""


class KeptArguments:
    """References on what the actors of this process were built from, for as long as those that may be restarted live.

    Ray runs a constructor again from what the actor's creator passed, but does not keep objects that were passed: once
    nobody refers to one, the next restart fails. That holds for references as well as for values that Ray puts into its
    store on the way, because they are large. So the creating process keeps references on both.

    Args:
        list_dead: Returns the ids of actors that are dead, in hexadecimal. (A new one may not be known to be living
            yet.)
    """

    def __init__(self, list_dead: Callable[[], Iterable[str]]) -> None:
        self._list_dead = list_dead
        self._kept: dict[str, list[object]] = {}
        self._search_at = 0
        self._lock = threading.Lock()

    def keep(self, native: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Keep the references among an actor's arguments until it is dead."""
        found = [arg for arg in (*args, *kwargs.values()) if natives.is_object(arg)]
        if not found:
            return
        with self._lock:
            self._kept[natives.format_id(native)] = found
            is_search_due = len(self._kept) >= max(_FIRST_SEARCH, self._search_at)
        if is_search_due:
            dead = self._list_dead()
            with self._lock:
                for actor_id in dead:
                    self._kept.pop(actor_id, None)
                self._search_at = 2 * len(self._kept)

    def forget(self, native: object) -> None:
        """Let go of the arguments of an actor that will not be restarted."""
        with self._lock:
            self._kept.pop(natives.format_id(native), None)

    def clear(self) -> None:
        """Let go of all."""
        with self._lock:
            self._kept.clear()


def put_large(args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
    """Put references in the place of values that Ray would put into its store, where nobody could keep them."""
    return tuple(map(_put_if_large, args)), {name: _put_if_large(arg) for name, arg in kwargs.items()}


def _put_if_large(arg: object) -> object:
    if type(arg) in _PLAIN or natives.is_object(arg) or not _is_large(arg):
        return arg
    return ray.put(arg)


def _is_large(arg: Any) -> bool:
    if type(arg) in (str, bytes):
        return len(arg) > _INLINE_BYTES // 4  # of UTF-8
    if outside.is_outside():
        return True
    serialized = ray._private.worker.global_worker.get_serialization_context().serialize(arg)
    return bool(serialized.total_bytes > _INLINE_BYTES)


class RayState(
    contract.Tasks,
    contract.Actors,
    contract.Objects,
    contract.Resources,
    contract.View,
    contract.Handles,
    contract.Engine,
):
    """The tables.

    Args:
        connection: How this process came to Ray; None in a worker.
        namespace: Where names of actors live.
        session_id: The session's id.
    """

    name = "ray"
    #: Makes our handle of Ray's where a message is unpickled.
    _rebuilder: Callable[[object], contract.ObjectRef[object]]
    #: How a worker of Ray's opens its side of the session: a function of `engine`, and its arguments.
    _home: tuple[Callable[[str, str], None], tuple[str, str]]

    def __init__(self, connection: Connection | None, *, namespace: str, session_id: str) -> None:
        contract.Engine.__init__(self)
        contract.Handles.__init__(self, self)
        self.tasks = self.actors = self.objects = self.resources = self.view = self.handles = self
        self.metrics = RayMetrics(self)
        self.dropped = deque(maxlen=0)  # Ray counts
        self.connection = connection
        self.is_closable = connection is not None
        self._pid = os.getpid()
        self._namespace = namespace
        self.session_id = session_id
        self._is_closed = False
        self._handles: weakref.WeakValueDictionary[int, contract.AnyRef] = weakref.WeakValueDictionary()
        self._functions: dict[tuple[bytes, records.TaskOptions], Any] = {}
        self._codes: dict[bytes, runner.Code] = {}
        self._room = listing.Room()
        self._origins = origins.Origins(self._room)
        #: Callbacks of `when_done` that have not been called.
        self._callbacks: set[Callable[[], None]] = set()
        self._callbacks_lock = threading.Lock()
        #: Ids of actors that end with the session.
        self._own_actors: set[int] = set()
        self._kept_arguments = KeptArguments(listing.list_dead_actors)
        self._groups: dict[int, object] = {}
        #: Placement groups that this process gave back.
        self._removed: set[int] = set()
        #: When this worker last wrote what it had noted.
        self._told_at = time.monotonic()
        arrays.install()
        arrays.share_numbers()
        if self.is_closable:
            atexit.register(self.close)  # Ray has registered its own end, which would come before that of the session
        #: Ids of objects that this process held before, by sessions that are over.
        self._earlier: frozenset[bytes | str] = frozenset()
        if connection is None or connection.is_attached:
            self._earlier = frozenset([*listing.list_objects(), *listing.list_living_actors()])

    def wrap(self, native: object) -> contract.AnyRef:
        """Return our handle for one of Ray's that is new to this process."""
        ref: contract.AnyRef = contract.ObjectRef(natives.identify(native), self)
        ref._native = native
        return ref

    def wrap_known(self, native: object) -> contract.AnyRef:
        """Return this process's handle for one of Ray's that came in a message."""
        ref = self.wrap(native)
        return self._handles.setdefault(ref._id, ref)

    def reduce_ref(self, ref: contract.ObjectRef[object]) -> tuple[object, ...]:
        if self._is_closed:
            raise contract.build_closed_error(ref)
        self._handles.setdefault(ref._id, ref)
        if contract.encoding.refs is not None:  # into the pickle of a function, which Ray does not look into
            contract.encoding.refs.append(ref)
            return operator.getitem, (contract.REFERENCES, len(contract.encoding.refs) - 1)
        return self.reduce_pinned(ref)

    def reduce_pinned(self, ref: contract.ObjectRef[object]) -> tuple[object, ...]:
        return natives.reduce_native(ref._native, self._rebuilder)

    def format_ref(self, ref: contract.ObjectRef[object]) -> str:
        return natives.format_id(ref._native)

    def intern(self, object_id: int) -> contract.AnyRef:
        known = self._handles.get(object_id)
        if known is None:
            group = self._groups.get(object_id) or listing.find_group(object_id)
            if group is None:
                raise exceptions.ObjectLostError(f"Nothing with the id {object_id:x} is known in this process.")
            known = self.wrap_known(group)
        return known

    def remember(self, ref: contract.ObjectRef[object]) -> contract.AnyRef:
        return self._handles.setdefault(ref._id, ref)

    def adopt(self, object_id: int) -> None:
        raise NotImplementedError("Ray counts its handles itself.")

    @abc.abstractmethod
    def send_news(self) -> None:
        """Write what this worker has noted."""

    def _check_open(self) -> None:
        if self._is_closed or not ray.is_initialized():  # the user's own ray.shutdown() ends it too
            raise exceptions.SessionClosedError("The session was shut down. Call hocket.init() to open a new one.")


NEWS_S: Final = 1.0
"""How often a worker writes what it has counted, while a task goes on. A guess."""


class RayMetrics(contract.Metrics):
    """What a process has counted; a worker tells of it through Ray's own store."""

    def __init__(self, engine: RayState) -> None:
        super().__init__()
        self._engine = engine

    def record(self, batch: kernel_metrics.Batch) -> None:
        super().record(batch)
        if self._engine.is_closable:
            return
        runner.has_news = True
        if time.monotonic() - self._engine._told_at > NEWS_S:  # the result may be far
            self._engine.send_news()

    def collect(self) -> kernel_metrics.MetricStore:
        with self.lock:
            return notes.collect_metrics(self._engine.session_id, self.store)
