"""What the engine on Ray knows, and its handles."""

from __future__ import annotations

import atexit
import operator
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import ray

from hocket import exceptions
from hocket.engine import contract
from hocket.engine.ray import arrays, keeping, listing, natives, origins, runner
from hocket.kernel import records


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


class RayState(contract.Engine):
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
        super().__init__()
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
        self._kept_arguments = keeping.KeptArguments(listing.list_dead_actors)
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

    def _check_open(self) -> None:
        if self._is_closed or not ray.is_initialized():  # the user's own ray.shutdown() ends it too
            raise exceptions.SessionClosedError("The session was shut down. Call hocket.init() to open a new one.")
