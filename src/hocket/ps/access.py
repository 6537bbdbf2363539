"""One server, as a process reaches it: through its memory if the two share a machine, else by asking the server.

`hocket.ps.store.Store` does the work where the memory is; elsewhere a proxy has the server do it, with the same
methods. So a variable's code is the same in both. The gate is reached in the same two ways.
"""

from __future__ import annotations

import functools
from typing import Any

from hocket import exceptions
from hocket.core import actor
from hocket.ps import errors, gate, memory, remote, store
from hocket.ps.memory import Array


def open_server(
    book: memory.MemoryRef, server: int, handle: actor.ActorHandle, timeout_s: float, *, is_shared: bool
) -> store.Store:
    """Reach a server, the faster way if there is one.

    Args:
        book: Its memory.
        server: Its index.
        handle: Its actor. It comes back if it dies, and its calls are made again; tickets keep that from doing harm.
        timeout_s: How long an update may wait.
        is_shared: Whether the memory may be used; else the server is asked.
    """
    if is_shared and memory.is_reachable(book):
        return store.Store(book, server, timeout_s)
    return remote.build_proxy(store.Store, store.ASKABLE, functools.partial(_ask, handle.call_store))


def open_gate(ref: memory.MemoryRef, handle: actor.ActorHandle, timeout_s: float, *, is_shared: bool) -> gate.Gate:
    """Reach the gate, the faster way if there is one. See `open_server`."""
    if is_shared and memory.is_reachable(ref):
        return gate.Gate(ref, timeout_s)
    return remote.build_proxy(gate.Gate, gate.ASKABLE, functools.partial(_ask, handle.call_gate))


def _ask(method: Any, name: str, *args: Any, out: Array | None = None) -> Any:
    """Call a server; put its answer into `out`, if that is given.

    Raises:
        ServerLostError: It will not come back: its machine is gone, and its memory with it.
    """
    try:
        found = remote.ask(method, name, *args)
    except (exceptions.ActorError, exceptions.ActorUnschedulableError) as error:
        raise errors.ServerLostError(
            f"A server is gone, and the variables that it held: {error} A server that is only killed comes back by itself; this one's machine is lost, or the strategy was "
            "closed. Make a new ParameterServerStrategy and restore a checkpoint."
        ) from error
    if out is None:
        return found
    out[...] = found
    return out
