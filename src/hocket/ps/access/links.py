"""Links: the servers and the gate of a strategy, opened once in each process and found by the strategy's key.

A process on a server's machine works in the server's memory itself, through `stores.store.Store`. Elsewhere a proxy
with the same methods calls the server, so a variable's code is the same in both cases. The gate is reached in the same
ways.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from hocket import exceptions
from hocket.core import actor
from hocket.engine import events
from hocket.ps import errors
from hocket.ps.access import closure_context, remote
from hocket.ps.stores import dense, gate, memory, records, store
from hocket.ps.stores.memory import Array

_NOTED_SECONDS: Final = 1e-4
"""Pulls and pushes that take this long are noted in the event ring. Noting an event costs a hundredth of that."""

POLICIES: Final = ("raise", "skip", "clip")


@final
@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of a server: its book and its actor."""

    book: memory.MemoryRef
    handle: actor.ActorHandle


@final
@dataclass(frozen=True, slots=True)
class Address:
    """The addresses of a strategy's servers and its gate. It is pickled with each variable."""

    key: str
    servers: tuple[ServerAddress, ...]
    gate: memory.MemoryRef
    timeout_s: float
    bad_gradients: str
    is_scaled: bool
    """Whether a stale push takes a smaller step."""
    is_synchronous: bool
    is_shared: bool
    """Whether processes on a server's machine use its memory directly; otherwise they call the server."""
    registry: actor.ActorHandle | None
    """The actor that makes variables; None: the driver makes them."""


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a push of gradients.

    Attributes:
        is_applied: Whether this push was applied. False: it had been applied before, came too late, or was skipped.
        staleness: The number of other workers' pushes that were applied since the pull.
    """

    is_applied: bool
    staleness: int


@final
class Link:
    """A strategy's servers and its gate, opened in this process."""

    def __init__(self, address: Address) -> None:
        self.address: Final = address
        self.stores: Final = [_open_server(address, index) for index in range(len(address.servers))]
        self.gate: Final = _open_gate(address)

    def enter(self, context: closure_context.ClosureContext | None) -> None:
        """Note that a closure reads. With `context` None, no push will follow, and nothing is noted."""
        if context is None or context.is_inside:
            return
        begun = time.perf_counter()
        if not self.address.is_synchronous:
            self.gate.enter(context.worker)
        else:
            while self.gate.enter_round(context.worker):
                self._close_round()  # the worker that was to close it has died
        context.note_entered(self.gate)
        seconds = time.perf_counter() - begun
        if seconds >= _NOTED_SECONDS:
            events.note(events.Kind.PULL, "pull", begun, seconds)

    def update(
        self,
        context: closure_context.ClosureContext | None,
        server: int,
        operations: Sequence[records.Operation],
    ) -> bool:
        """Do operations other than gradients on one server; return whether they were done by this call."""
        return self.stores[server].push(context.take_ticket() if context is not None else None, operations)

    def push(
        self, context: closure_context.ClosureContext | None, operations: dict[int, list[records.Operation]]
    ) -> Outcome:
        """Apply gradients, on each server wholly or not at all.

        Args:
            context: The context of the closure or step. None: the push is never sent twice, and has no staleness.
            operations: The operations by server.
        """
        begun = time.perf_counter()
        outcome = self._push(context, operations)
        seconds = time.perf_counter() - begun
        if seconds >= _NOTED_SECONDS:
            events.note(events.Kind.PUSH, "push", begun, seconds, outcome.staleness)
        return outcome

    def _push(
        self, context: closure_context.ClosureContext | None, operations: dict[int, list[records.Operation]]
    ) -> Outcome:
        if context is None:
            done = [self.stores[server].push(None, operations[server]) for server in sorted(operations)]
            return Outcome(any(done), 0)
        ticket = context.take_ticket()
        if self.address.is_synchronous:
            return self._push_round(context, ticket, operations)
        self.gate.grant(context.worker)
        if self.address.is_scaled:
            operations = self._scale(operations, context.worker)
        done = [self.stores[server].push(ticket, operations[server]) for server in sorted(operations)]
        context.note_pushed()
        return Outcome(any(done), self.gate.leave(context.worker, ticket.closure, ticket.turn))

    def _push_round(
        self,
        context: closure_context.ClosureContext,
        ticket: records.Ticket,
        operations: dict[int, list[records.Operation]],
    ) -> Outcome:
        """Deposit a gradient for a synchronous step; close the step if this gradient completes it."""
        version = self.gate.get_round(context.worker, ticket.closure, ticket.turn)
        for server, given in operations.items() if version >= 0 else ():  # a late gradient must not overwrite the boxes
            self.stores[server].deposit(context.worker, version, given)
        context.note_pushed()
        what = self.gate.arrive(context.worker, ticket.closure, ticket.turn)
        if what == gate.CLOSES:
            self._close_round()
        return Outcome(what != gate.COMES_LATE, 0)

    def flush(self) -> None:
        """Apply the gradients of a synchronous step that no worker will complete."""
        if self.address.is_synchronous and self.gate.list_arrived()[1]:
            self._close_round()

    def set_idle(self, worker: int, *, is_idle: bool) -> None:
        """Note that a worker has no work, or has work again. Close a synchronous step that waited for this worker."""
        self.gate.set_idle(worker, is_idle=is_idle)
        if is_idle and self.gate.claim_round():
            self._close_round()

    def _close_round(self) -> None:
        version, workers = self.gate.list_arrived()
        for found in self.stores:
            found.close_round(version, workers)
        self.gate.close_round(version)

    def admit(self, name: str, gradient: Array) -> Array | None:
        """Return a gradient that may be applied; None if the push is to be skipped."""
        try:
            dense.check_finite(name, gradient)
        except errors.NonFiniteGradientError:
            if self.address.bad_gradients == "raise":
                raise
            if self.address.bad_gradients == "skip":
                self.gate.note_skipped()
                return None
            finite = gradient[np.isfinite(gradient)]
            limit = float(np.abs(finite).max()) if finite.size else 0.0
            cleaned: Array = np.nan_to_num(gradient, nan=0.0, posinf=limit, neginf=-limit)
            return cleaned
        return gradient

    def _scale(self, operations: dict[int, list[records.Operation]], worker: int) -> dict[int, list[records.Operation]]:
        """Divide the step by one plus the staleness (Zhang, Gupta, Lian and Liu, "Staleness-aware Async-SGD", 2016)."""
        reading = self.gate.get_reading(worker)
        factor = 1.0 / (1 + max(0, self.gate.version - reading))
        return {
            server: [dataclasses.replace(one, scale=one.scale * factor) for one in given]
            for server, given in operations.items()
        }


_links: dict[str, Link] = {}
_lock = threading.Lock()


def open_link(address: Address) -> Link:
    """Return the link to a strategy's servers. A second call returns the same link."""
    link = _links.get(address.key)
    if link is None:
        with _lock:
            link = _links.get(address.key)
            if link is None:
                link = _links[address.key] = Link(address)
    return link


def close_link(key: str) -> None:
    """Forget the link of a closed strategy."""
    with _lock:
        _links.pop(key, None)


def _open_server(address: Address, index: int) -> store.Store:
    """Return a server's store, or a proxy where its memory is out of reach. A server restarts if it dies, and the
    engine repeats its calls; tickets make repeated pushes harmless."""
    server = address.servers[index]
    if address.is_shared and memory.is_reachable(server.book):
        return store.Store(server.book, index, address.timeout_s)
    return remote.build_proxy(store.Store, store.ASKABLE, functools.partial(_ask, server.handle.call_store))


def _open_gate(address: Address) -> gate.Gate:
    """Return the gate, or a proxy where its memory is out of reach."""
    if address.is_shared and memory.is_reachable(address.gate):
        return gate.Gate(address.gate, address.timeout_s)
    return remote.build_proxy(gate.Gate, gate.ASKABLE, functools.partial(_ask, address.servers[0].handle.call_gate))


def _ask(method: object, name: str, *args: object, out: Array | None = None) -> object:
    """Call a server; copy the answer into `out`, if given."""
    try:
        found = remote.ask(method, name, *args)
    except (exceptions.ActorError, exceptions.ActorUnschedulableError) as error:
        raise errors.ServerLostError(
            f"A server is lost, with the variables that it held: {error} A server that was only killed is restarted; "
            "this server's machine is lost, or the strategy was closed. Make a new ParameterServerStrategy and "
            "restore a checkpoint."
        ) from error
    if out is None:
        return found
    out[...] = found
    return out
