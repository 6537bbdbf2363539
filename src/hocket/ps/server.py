"""The processes behind the variables: servers, and keepers of memory.

On one machine a server has little to do: workers read and write its memory themselves (`store`). It answers those who do not share the memory, and does
what takes long and would hold up a worker: snapshots, checkpoints, eviction. It holds nothing that its memory does not, so one that is killed comes back
as if nothing had been.

The memory is kept by the driver; for servers on other machines, by a `Keeper` there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, final

from hocket.collective import segment
from hocket.ps import gate, memory, records, store, streams
from hocket.ps.memory import Array


@final
class Keeper:
    """Makes memory, and keeps it."""

    def __init__(self) -> None:
        self._kept: list[memory.Memory] = []

    def make(self, nbytes: int, purpose: str) -> memory.MemoryRef:
        """Make so much memory, full of zeros."""
        made = memory.create(nbytes, purpose)
        self._kept.append(made)
        return made.ref

    def identify_host(self) -> str:
        """Return which machine this is."""
        return segment.identify_host()

    def make_book(self, server: int) -> memory.MemoryRef:
        """Make a server's book."""
        made = memory.create(store.count_book_bytes(), f"book-{server}")
        store.build_book(made)
        self._kept.append(made)
        return made.ref

    def make_gate(self, max_staleness: int | None, is_logging: bool) -> memory.MemoryRef:
        """Make the gate."""
        made = memory.create(gate.count_bytes(), "gate")
        gate.build(made, max_staleness, is_logging=is_logging)
        self._kept.append(made)
        return made.ref

    def add(self, book: memory.MemoryRef, spec: store.Spec, value: Any) -> None:
        """Enter a variable into a book of this machine."""
        store.Store(book, spec.server, _BOOK_SECONDS).add(spec, value)

    def close(self) -> None:
        """Give all of it up."""
        while self._kept:
            self._kept.pop().close()


_BOOK_SECONDS = 600.0


@final
class Server:
    """A server; an actor.

    Args:
        index: Which.
        book: Its memory.
        gate_ref: The gate; only the first server's is used.
        timeout_s: How long its updates wait.
    """

    def __init__(self, index: int, book: memory.MemoryRef, gate_ref: memory.MemoryRef, timeout_s: float) -> None:
        self._store = store.Store(book, index, timeout_s)
        self._gate_ref = gate_ref
        self._timeout_s = timeout_s
        self._gate: gate.Gate | None = None
        self._deals: dict[memory.MemoryRef, streams.Deal] = {}

    def get_pid(self) -> int:
        """Return its process."""
        return os.getpid()

    def get_version(self) -> int:
        """Return how many pushes were applied."""
        return self._store.version

    def read(self, number: int) -> Array:
        """Return a copy of a dense shard's value."""
        return self._store.read(number)

    def read_rows(self, number: int, ids: Array) -> Array:
        """Return copies of rows of a table."""
        return self._store.read_rows(number, ids)

    def push(self, ticket: records.Ticket | None, operations: Sequence[records.Operation]) -> bool:
        """Do all operations, or none; return whether it was done now."""
        return self._store.push(ticket, operations)

    def call_deal(self, ref: memory.MemoryRef, count: int, name: str, worker: int) -> Any:
        """Deal out items, for a worker of another machine."""
        deal = self._deals.get(ref)
        if deal is None:
            deal = self._deals[ref] = streams.Deal(ref, count)
        return getattr(deal, name)(worker)

    def call_gate(self, name: str, *args: int) -> Any:
        """Ask the gate, for a worker of another machine."""
        if self._gate is None:
            self._gate = gate.Gate(self._gate_ref, self._timeout_s)
        found = getattr(self._gate, name)
        return found(*args) if callable(found) else found
