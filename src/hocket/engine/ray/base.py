"""The session and the process's handles, which all parts of the engine on Ray share."""

from __future__ import annotations

import operator
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol, final

import ray

from hocket import exceptions
from hocket.engine import contract
from hocket.engine.ray import listing, natives, origins


class Connection(Protocol):
    """The engine's connection to its Ray."""

    @property
    def address(self) -> str:
        """The address of the cluster."""

    @property
    def is_attached(self) -> bool:
        """Whether the user's own code connected this process to Ray, and will disconnect it."""

    def close(self) -> None:
        """Disconnect from Ray."""


@final
class Session:
    """The session, and whether it is over.

    Args:
        connection: The driver's connection to Ray; None in a worker.
        namespace: The namespace of actors' names.
        session_id: The session's id.
    """

    def __init__(self, connection: Connection | None, *, namespace: str, session_id: str) -> None:
        self.connection, self.namespace, self.session_id = connection, namespace, session_id
        self.pid = os.getpid()
        self.is_closed = False
        #: Callbacks of `when_done` that have not been called yet.
        self._callbacks: set[Callable[[], None]] = set()
        self._lock = threading.Lock()
        room = listing.Room()
        self.room, self.origins = room, origins.Origins(room)

    def check_open(self) -> None:
        """Raise if the session is over."""
        if self.is_closed or not ray.is_initialized():  # a ray.shutdown() of the user's ends the session, too
            raise exceptions.SessionClosedError("The session was shut down. Call hocket.init() to open a new one.")

    def finish(self) -> list[Callable[[], None]] | None:
        """End the session; return the functions to call. None if it is over, or this process must not end it."""
        with self._lock:
            is_fork = os.getpid() != self.pid  # a fork's exit does not end the driver's session
            if self.is_closed or self.connection is None or is_fork:
                return None
            self.is_closed = True
            found = list(self._callbacks)
            self._callbacks.clear()
            return found

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Note a function to call when the session is closed; return False if it is closed already."""
        with self._lock:
            if not self.is_closed:
                self._callbacks.add(callback)
            return not self.is_closed

    def take_callback(self, callback: Callable[[], None]) -> bool:
        """Take back a function, to call it now; return False if the session's end has called it."""
        with self._lock:
            is_there = callback in self._callbacks
            self._callbacks.discard(callback)
            return is_there


@final
class Groups:
    """The placement groups of this process that end with the session (`made`), and those it has removed (`removed`)."""

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}
        self.removed: set[int] = set()

    def remove(self, group_id: int) -> None:
        """Note that a group is removed."""
        self.made.pop(group_id, None)
        self.removed.add(group_id)


@final
class RayHandles(contract.Handles):
    """Our handles, which contain Ray's handles. Ray counts them.

    Args:
        engine: The engine to which the handles belong.
        session: The session.
        groups: The placement groups of this process, by id.
        rebuilder: A function that turns Ray's handle into ours when a message is unpickled.
    """

    def __init__(
        self,
        engine: contract.Engine,
        session: Session,
        groups: Groups,
        rebuilder: Callable[[object], contract.AnyRef],
    ) -> None:
        super().__init__(engine)
        self._session, self._groups, self._rebuilder = session, groups, rebuilder
        self.known: weakref.WeakValueDictionary[int, contract.AnyRef] = weakref.WeakValueDictionary()

    def wrap(self, native: object) -> contract.AnyRef:
        """Return our handle for a handle of Ray's that is new to this process."""
        ref: contract.AnyRef = contract.ObjectRef(natives.identify(native), self._engine)
        ref._native = native
        return ref

    def wrap_known(self, native: object) -> contract.AnyRef:
        """Return this process's handle for a handle of Ray's that came in a message."""
        ref = self.wrap(native)
        return self.known.setdefault(ref._id, ref)

    def reduce_ref(self, ref: contract.ObjectRef[object]) -> tuple[object, ...]:
        if self._session.is_closed:
            raise contract.build_closed_error(ref)
        self.known.setdefault(ref._id, ref)
        if contract.encoding.refs is not None:  # for the pickle of a function, in which Ray does not see references
            contract.encoding.refs.append(ref)
            return operator.getitem, (contract.REFERENCES, len(contract.encoding.refs) - 1)
        return self.reduce_pinned(ref)

    def reduce_pinned(self, ref: contract.ObjectRef[object]) -> tuple[object, ...]:
        return natives.reduce_native(ref._native, self._rebuilder)

    def format_ref(self, ref: contract.ObjectRef[object]) -> str:
        return natives.format_id(ref._native)

    def intern(self, object_id: int) -> contract.AnyRef:
        known = self.known.get(object_id)
        if known is None:
            group = self._groups.made.get(object_id) or listing.find_group(object_id)
            if group is None:
                raise exceptions.ObjectLostError(f"No object with the id {object_id:x} is known in this process.")
            known = self.wrap_known(group)
        return known

    def remember(self, ref: contract.ObjectRef[object]) -> contract.AnyRef:
        return self.known.setdefault(ref._id, ref)

    def adopt(self, object_id: int) -> None:
        raise NotImplementedError("Ray counts its handles itself.")
