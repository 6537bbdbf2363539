"""One server, as a process reaches it: through its memory if the two share a machine, else by asking the server.

`Access` is the seam. `hocket.ps.store.Store` does the work where the memory is; `RemoteStore` has the server do it. So a variable's code is the same in both.
`GateAccess` is the same for the gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, final

from hocket import exceptions
from hocket.core import actor, api
from hocket.ps import errors, gate, memory, records, store
from hocket.ps.memory import Array


class Access(Protocol):
    """What can be done with a server's variables. Any thread may; see `store.Store` for each."""

    def read(self, number: int, out: Array | None = None) -> Array:
        """Return a copy of a dense shard's value."""

    def read_rows(self, number: int, ids: Array, out: Array | None = None) -> Array:
        """Return copies of rows of a table, made if they are new."""

    def push(self, ticket: records.Ticket | None, operations: Sequence[records.Operation]) -> bool:
        """Do all operations, or none; return whether it was done now."""

    def deposit(self, worker: int, round_number: int, operations: Sequence[records.Operation]) -> None:
        """Put a worker's gradients of a synchronous step where they wait."""

    def close_round(self, round_number: int, workers: list[int]) -> bool:
        """Apply the mean of the gradients of a synchronous step."""

    def export(self, number: int) -> dict[str, Any]:
        """Return a shard's value, slots and step; of a table its ids, too."""

    def begin_snapshot(self, number: int) -> tuple[Array, Array]:
        """Begin to copy a table as it is now; return its rows, and their ids."""

    def finish_snapshot(self, number: int, which: Array) -> Array:
        """Return the rows as they were when the snapshot began."""

    def evict(self, number: int, idle_updates: int) -> int:
        """Give up the rows of a table that none of its last updates has touched."""

    def get_statistics(self) -> dict[str, int]:
        """Return how many pushes were applied, and how many were put right."""


class GateAccess(Protocol):
    """What can be done with the gate. See `gate.Gate` for each."""

    @property
    def version(self) -> int:
        """How many pushes have left."""

    @property
    def late(self) -> int:
        """How many gradients came too late for their synchronous step."""

    @property
    def skipped(self) -> int:
        """How many pushes were skipped because a gradient was not finite."""

    def enter(self, worker: int) -> int:
        """Wait until this worker may pull; return the version that it reads."""

    def grant(self, worker: int) -> None:
        """Wait until this worker's push may be applied."""

    def leave(self, worker: int, closure: int, turn: int) -> int:
        """Say that the push was applied; return its staleness."""

    def note_skipped(self) -> None:
        """Count a push that is skipped."""

    def forget(self, worker: int) -> None:
        """Let the others go on without a worker."""

    def get_reading(self, worker: int) -> int:
        """Return the version that a worker inside has read."""

    def enter_round(self, worker: int) -> bool:
        """Wait until this worker may pull for the next synchronous step; return whether it must close the one that is on."""

    def arrive(self, worker: int, closure: int, turn: int) -> int:
        """Say that a worker's gradient is in its boxes; return what is to be done."""

    def list_arrived(self) -> tuple[int, list[int]]:
        """Return the synchronous step, and whose gradients it has."""

    def set_idle(self, worker: int, is_idle: bool) -> None:
        """Say that a worker has nothing to do, or has again."""

    def set_workers(self, count: int) -> None:
        """Say how many workers there are."""

    def set_version(self, version: int) -> None:
        """Go on counting from a checkpoint's version."""

    def close_round(self, version: int) -> None:
        """Say that a synchronous step was applied."""

    def get_histogram(self) -> dict[int, int]:
        """Return how many pushes had each staleness."""

    def get_log(self) -> Array:
        """Return the newest pushes."""


@final
class RemoteStore:
    """A server on another machine.

    Args:
        handle: The server's actor. It comes back if it dies, and its calls are made again; tickets keep that from doing harm.
    """

    def __init__(self, handle: actor.ActorHandle) -> None:
        self._handle = handle

    def read(self, number: int, out: Array | None = None) -> Array:
        """Return a copy of a dense shard's value."""
        return _put(self._call("read", number), out)

    def read_rows(self, number: int, ids: Array, out: Array | None = None) -> Array:
        """Return copies of rows of a table."""
        return _put(self._call("read_rows", number, ids), out)

    def push(self, ticket: records.Ticket | None, operations: Sequence[records.Operation]) -> bool:
        """Do all operations, or none; return whether it was done now."""
        return bool(self._call("push", ticket, list(operations)))

    def deposit(self, worker: int, round_number: int, operations: Sequence[records.Operation]) -> None:
        """Put a worker's gradients of a synchronous step where they wait."""
        self._call("deposit", worker, round_number, list(operations))

    def close_round(self, round_number: int, workers: list[int]) -> bool:
        """Apply the mean of the gradients of a synchronous step."""
        return bool(self._call("close_round", round_number, workers))

    def export(self, number: int) -> dict[str, Any]:
        """Return a shard's value, slots and step."""
        found: dict[str, Any] = self._call("export", number)
        return found

    def begin_snapshot(self, number: int) -> tuple[Array, Array]:
        """Begin to copy a table as it is now; return its rows, and their ids."""
        found: tuple[Array, Array] = self._call("begin_snapshot", number)
        return found

    def finish_snapshot(self, number: int, which: Array) -> Array:
        """Return the rows as they were when the snapshot began."""
        found: Array = self._call("finish_snapshot", number, which)
        return found

    def evict(self, number: int, idle_updates: int) -> int:
        """Give up the rows of a table that none of its last updates has touched."""
        return int(self._call("evict", number, idle_updates))

    def get_statistics(self) -> dict[str, int]:
        """Return how many pushes were applied, and how many were put right."""
        found: dict[str, int] = self._call("get_statistics")
        return found

    def _call(self, name: str, *args: Any) -> Any:
        return _ask(self._handle.call_store, name, *args)


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
        return int(self._call("version"))

    @property
    def late(self) -> int:
        """How many gradients came too late for their synchronous step."""
        return int(self._call("late"))

    @property
    def skipped(self) -> int:
        """How many pushes were skipped because a gradient was not finite."""
        return int(self._call("skipped"))

    def enter(self, worker: int) -> int:
        """Wait until this worker may pull; return the version that it reads."""
        return int(self._call("enter", worker))

    def grant(self, worker: int) -> None:
        """Wait until this worker's push may be applied."""
        self._call("grant", worker)

    def leave(self, worker: int, closure: int, turn: int) -> int:
        """Say that the push was applied; return its staleness."""
        return int(self._call("leave", worker, closure, turn))

    def note_skipped(self) -> None:
        """Count a push that is skipped."""
        self._call("note_skipped")

    def forget(self, worker: int) -> None:
        """Let the others go on without a worker."""
        self._call("forget", worker)

    def get_reading(self, worker: int) -> int:
        """Return the version that a worker inside has read."""
        return int(self._call("get_reading", worker))

    def enter_round(self, worker: int) -> bool:
        """Wait until this worker may pull for the next synchronous step."""
        return bool(self._call("enter_round", worker))

    def arrive(self, worker: int, closure: int, turn: int) -> int:
        """Say that a worker's gradient is in its boxes; return what is to be done."""
        return int(self._call("arrive", worker, closure, turn))

    def list_arrived(self) -> tuple[int, list[int]]:
        """Return the synchronous step, and whose gradients it has."""
        found: tuple[int, list[int]] = self._call("list_arrived")
        return found

    def set_idle(self, worker: int, is_idle: bool) -> None:
        """Say that a worker has nothing to do, or has again."""
        self._call("set_idle", worker, is_idle)

    def set_workers(self, count: int) -> None:
        """Say how many workers there are."""
        self._call("set_workers", count)

    def set_version(self, version: int) -> None:
        """Go on counting from a checkpoint's version."""
        self._call("set_version", version)

    def close_round(self, version: int) -> None:
        """Say that a synchronous step was applied."""
        self._call("close_round", version)

    def get_histogram(self) -> dict[int, int]:
        """Return how many pushes had each staleness."""
        found: dict[int, int] = self._call("get_histogram")
        return found

    def get_log(self) -> Array:
        """Return the newest pushes."""
        found: Array = self._call("get_log")
        return found

    def _call(self, name: str, *args: int) -> Any:
        return _ask(self._handle.call_gate, name, *args)


def open_server(
    book: memory.MemoryRef, server: int, handle: actor.ActorHandle, timeout_s: float, *, is_shared: bool
) -> Access:
    """Reach a server, the faster way if there is one.

    Args:
        book: Its memory.
        server: Its index.
        handle: Its actor.
        timeout_s: How long an update may wait.
        is_shared: Whether the memory may be used; else the server is asked.
    """
    if is_shared and memory.is_reachable(book):
        return store.Store(book, server, timeout_s)
    return RemoteStore(handle)


def open_gate(ref: memory.MemoryRef, handle: actor.ActorHandle, timeout_s: float, *, is_shared: bool) -> GateAccess:
    """Reach the gate, the faster way if there is one. See `open_server`."""
    if is_shared and memory.is_reachable(ref):
        return gate.Gate(ref, timeout_s)
    return RemoteGate(handle)


def _ask(method: Any, *args: Any) -> Any:
    """Call a server.

    Raises:
        ServerLostError: It will not come back: its machine is gone, and its memory with it.
    """
    try:
        return api.get(method.remote(*args))
    except (exceptions.ActorError, exceptions.ActorUnschedulableError) as error:
        raise errors.ServerLostError(
            f"A server is gone, and the variables that it held: {error} A server that is only killed comes back by itself; this one's machine is lost, or the strategy was "
            "closed. Make a new ParameterServerStrategy and restore a checkpoint."
        ) from error


def _put(value: Any, out: Array | None) -> Array:
    if out is None:
        result: Array = value
        return result
    out[...] = value
    return out
