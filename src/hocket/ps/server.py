"""The servers: actors that give other machines access to variables.

Workers on the same machine read and write a server's memory themselves (`store`). A server answers workers that do not
share its memory. A server has no state outside that memory, so a killed server restarts without loss.
"""

from __future__ import annotations

import os
from typing import Any, Final, final

from hocket._base import showing
from hocket.core import actor
from hocket.ps.access import remote
from hocket.ps.executor import streams
from hocket.ps.stores import gate, memory, store

_THREADS: Final = 64
"""Number of requests that a server handles at once, including those that wait at the gate. A guess."""


@final
class Server:
    """A server; an actor. Only the first server keeps the gate and the dealt items."""

    def __init__(self, index: int, book: memory.MemoryRef, gate_ref: memory.MemoryRef, timeout_s: float) -> None:
        self._store = store.Store(book, index, timeout_s)
        self._gate_ref = gate_ref
        self._timeout_s = timeout_s
        self._gate: gate.Gate | None = None
        self._deals: dict[memory.MemoryRef, streams.Deal] = {}
        showing.show("servers", self, Server._describe)

    def _describe(self) -> showing.Facts:
        facts = {"strategy": self._gate_ref.identity, "pid": os.getpid(), **self._store.describe()}
        if self._store.server == 0:
            facts |= self._open_gate().describe()
        return facts

    def get_pid(self) -> int:
        """Return the id of the server's process."""
        return os.getpid()

    def call_store(self, name: str, *args: object) -> object:
        """Call a method of the store, for a process on another machine."""
        return remote.answer(self._store, store.ASKABLE, name, args)

    def call_gate(self, name: str, *args: object) -> object:
        """Call a method of the gate, for a worker on another machine."""
        return remote.answer(self._open_gate(), gate.ASKABLE, name, args)

    def _open_gate(self) -> gate.Gate:
        if self._gate is None:
            self._gate = gate.Gate(self._gate_ref, self._timeout_s)
        return self._gate

    def call_deal(self, ref: memory.MemoryRef, count: int, name: str, *args: object) -> object:
        """Deal out items, for a worker on another machine."""
        deal = self._deals.get(ref)
        if deal is None:
            deal = self._deals[ref] = streams.Deal(ref, count)
        return remote.answer(deal, streams.ASKABLE, name, args)


def start(
    index: int, book: memory.MemoryRef, gate_ref: memory.MemoryRef, timeout_s: float, options: dict[str, Any]
) -> actor.ActorHandle:
    """Start a server. A killed server restarts, and the engine repeats its calls; tickets make repeats harmless."""
    settings = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "max_concurrency": _THREADS, **options}
    return actor.ActorClass(Server, settings).remote(index, book, gate_ref, timeout_s)
