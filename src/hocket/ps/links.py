"""A strategy, as one process sees it: its servers and its gate, opened once and found again by the strategy's key."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from hocket.core import actor
from hocket.ps import access, dense, errors, memory, place, records
from hocket.ps.memory import Array

POLICIES: Final = ("raise", "skip", "clip")


@final
@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is."""

    book: memory.MemoryRef
    handle: actor.ActorHandle


@final
@dataclass(frozen=True, slots=True)
class Address:
    """Where a strategy's servers are. It travels with each variable."""

    key: str
    servers: tuple[ServerAddress, ...]
    gate: memory.MemoryRef
    timeout_s: float
    bad_gradients: str
    is_scaled: bool
    """Whether a stale push takes a smaller step."""


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a push of gradients.

    Attributes:
        is_applied: Whether it was applied now. False: it had been before, or was skipped.
        staleness: How many pushes of others were applied since the pull.
    """

    is_applied: bool
    staleness: int


@final
class Link:
    """The servers, reached.

    Args:
        address: Where they are.
    """

    def __init__(self, address: Address) -> None:
        self.address: Final = address
        self.stores: Final[list[access.Access]] = [
            access.open_server(server.book, index, server.handle, address.timeout_s)
            for index, server in enumerate(address.servers)
        ]
        self.gate: Final = access.open_gate(address.gate, address.servers[0].handle, address.timeout_s)
        self.skipped = 0

    def enter(self) -> None:
        """Note that the calling closure reads."""
        here = place.get_optional_place()
        if here is not None and here.gate is None:
            self.gate.enter(here.worker)
            here.gate = self.gate

    def update(self, server: int, operations: Sequence[records.Operation]) -> bool:
        """Do something that is no gradient, on one server; return whether it was done now."""
        here = place.get_optional_place()
        return self.stores[server].push(here.take_ticket() if here is not None else None, operations)

    def push(self, operations: dict[int, list[records.Operation]]) -> Outcome:
        """Apply gradients, on each server wholly or not at all.

        Args:
            operations: By server.
        """
        here = place.get_optional_place()
        if here is None:
            done = [self.stores[server].push(None, operations[server]) for server in sorted(operations)]
            return Outcome(any(done), 0)
        ticket = here.take_ticket()
        self.gate.grant(here.worker)
        if self.address.is_scaled:
            operations = self._scale(operations, here)
        done = [self.stores[server].push(ticket, operations[server]) for server in sorted(operations)]
        here.gate = None
        if not any(done):
            self.gate.forget(here.worker)
            return Outcome(is_applied=False, staleness=0)
        return Outcome(is_applied=True, staleness=self.gate.leave(here.worker))

    def admit(self, name: str, gradient: Array) -> Array | None:
        """Return a gradient as it may be applied; None if the push is to be skipped.

        Raises:
            NonFiniteGradientError: It is not finite, and the policy is to raise.
        """
        try:
            dense.check_finite(name, gradient)
        except errors.NonFiniteGradientError:
            if self.address.bad_gradients == "raise":
                raise
            if self.address.bad_gradients == "skip":
                self.skipped += 1
                return None
            finite = gradient[np.isfinite(gradient)]
            limit = float(np.abs(finite).max()) if finite.size else 0.0
            cleaned: Array = np.nan_to_num(gradient, nan=0.0, posinf=limit, neginf=-limit)
            return cleaned
        return gradient

    def _scale(
        self, operations: dict[int, list[records.Operation]], here: place.Place
    ) -> dict[int, list[records.Operation]]:
        """Divide the step by one more than the staleness (Zhang, Gupta, Lian and Liu, "Staleness-aware Async-SGD", 2016)."""
        reading = self.gate.get_reading(here.worker)
        factor = 1.0 / (1 + max(0, self.gate.version - reading))
        return {
            server: [records.Operation(one.number, one.kind, one.value, one.ids, one.scale * factor) for one in given]
            for server, given in operations.items()
        }


_links: dict[str, Link] = {}
_lock = threading.Lock()


def open_link(address: Address) -> Link:
    """Reach a strategy's servers; again: returns the same."""
    link = _links.get(address.key)
    if link is None:
        with _lock:
            link = _links.get(address.key)
            if link is None:
                link = _links[address.key] = Link(address)
    return link


def close_link(key: str) -> None:
    """Forget a strategy that is closed."""
    with _lock:
        _links.pop(key, None)
