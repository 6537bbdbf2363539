"""One server, as a process reaches it: through its memory if the two share a machine, else by asking the server.

`Access` is the seam. `hocket.ps.store.Store` does the work where the memory is; `RemoteStore` has the server do it. So a variable's code is the same in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, final

from hocket.core import actor, api
from hocket.ps import gate, memory, records, store
from hocket.ps.memory import Array


class Access(Protocol):
    """What can be done with a server's variables. Any thread may; see `store.Store` for each."""

    @property
    def version(self) -> int:
        """How many pushes were applied."""

    def read(self, number: int, out: Array | None = None) -> Array:
        """Return a copy of a dense shard's value."""

    def read_rows(self, number: int, ids: Array, out: Array | None = None) -> Array:
        """Return copies of rows of a table, made if they are new."""

    def push(self, ticket: records.Ticket | None, operations: Sequence[records.Operation]) -> bool:
        """Do all operations, or none; return whether it was done now."""


class GateAccess(Protocol):
    """What can be done with the gate. See `gate.Gate` for each."""

    @property
    def version(self) -> int:
        """How many pushes have left."""

    def enter(self, worker: int) -> int:
        """Wait until this worker may pull; return the version that it reads."""

    def grant(self, worker: int) -> None:
        """Wait until this worker's push may be applied."""

    def leave(self, worker: int) -> int:
        """Say that the push was applied; return its staleness."""

    def forget(self, worker: int) -> None:
        """Let the others go on without a worker."""

    def get_reading(self, worker: int) -> int:
        """Return the version that a worker inside has read."""


@final
class RemoteStore:
    """A server on another machine.

    Args:
        handle: The server's actor. It comes back if it dies, and its calls are made again; tickets keep that from doing harm.
    """

    def __init__(self, handle: actor.ActorHandle) -> None:
        self._handle = handle

    @property
    def version(self) -> int:
        """How many pushes were applied."""
        return int(api.get(self._handle.get_version.remote()))

    def read(self, number: int, out: Array | None = None) -> Array:
        """Return a copy of a dense shard's value."""
        return _put(api.get(self._handle.read.remote(number)), out)

    def read_rows(self, number: int, ids: Array, out: Array | None = None) -> Array:
        """Return copies of rows of a table."""
        return _put(api.get(self._handle.read_rows.remote(number, ids)), out)

    def push(self, ticket: records.Ticket | None, operations: Sequence[records.Operation]) -> bool:
        """Do all operations, or none; return whether it was done now."""
        return bool(api.get(self._handle.push.remote(ticket, list(operations))))


@final
class RemoteGate:
    """The gate, on another machine.

    Args:
        handle: The first server's actor.
    """

    def __init__(self, handle: actor.ActorHandle) -> None:
        self._handle = handle

    @property
    def version(self) -> int:
        """How many pushes have left."""
        return int(api.get(self._handle.call_gate.remote("version")))

    def enter(self, worker: int) -> int:
        """Wait until this worker may pull; return the version that it reads."""
        return int(api.get(self._handle.call_gate.remote("enter", worker)))

    def grant(self, worker: int) -> None:
        """Wait until this worker's push may be applied."""
        api.get(self._handle.call_gate.remote("grant", worker))

    def leave(self, worker: int) -> int:
        """Say that the push was applied; return its staleness."""
        return int(api.get(self._handle.call_gate.remote("leave", worker)))

    def forget(self, worker: int) -> None:
        """Let the others go on without a worker."""
        api.get(self._handle.call_gate.remote("forget", worker))

    def get_reading(self, worker: int) -> int:
        """Return the version that a worker inside has read."""
        return int(api.get(self._handle.call_gate.remote("get_reading", worker)))


def open_server(book: memory.MemoryRef, server: int, handle: actor.ActorHandle, timeout_s: float) -> Access:
    """Reach a server, the faster way if there is one."""
    if memory.is_reachable(book):
        return store.Store(book, server, timeout_s)
    return RemoteStore(handle)


def open_gate(ref: memory.MemoryRef, handle: actor.ActorHandle, timeout_s: float) -> GateAccess:
    """Reach the gate, the faster way if there is one."""
    if memory.is_reachable(ref):
        return gate.Gate(ref, timeout_s)
    return RemoteGate(handle)


def _put(value: Any, out: Array | None) -> Array:
    if out is None:
        result: Array = value
        return result
    out[...] = value
    return out
