"""The servers: processes that answer for variables.

On one machine a server has little to do: workers read and write its memory themselves (`store`). It answers those who
do not share the memory. It holds nothing that its memory does not, so one that is killed comes back as if nothing had
been.
"""

from __future__ import annotations

import os
from typing import Any, Final, final

from hocket._base import showing
from hocket.core import actor
from hocket.ps import remote
from hocket.ps.executor import streams
from hocket.ps.stores import gate, memory, store

_THREADS: Final = 64
"""How many requests a server answers at once, those that wait at the gate among them. A guess."""


@final
class Server:
    """A server; an actor. Only the first one keeps the gate, and the dealt items."""

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
        """Return its process."""
        return os.getpid()

    def call_store(self, name: str, *args: object) -> object:
        """Do with its variables what a caller on another machine cannot."""
        return remote.answer(self._store, store.ASKABLE, name, args)

    def call_gate(self, name: str, *args: object) -> object:
        """Ask the gate, for a worker of another machine."""
        return remote.answer(self._open_gate(), gate.ASKABLE, name, args)

    def _open_gate(self) -> gate.Gate:
        if self._gate is None:
            self._gate = gate.Gate(self._gate_ref, self._timeout_s)
        return self._gate

    def call_deal(self, ref: memory.MemoryRef, count: int, name: str, *args: object) -> object:
        """Deal out items, for a worker of another machine."""
        deal = self._deals.get(ref)
        if deal is None:
            deal = self._deals[ref] = streams.Deal(ref, count)
        return remote.answer(deal, streams.ASKABLE, name, args)


def start(
    index: int, book: memory.MemoryRef, gate_ref: memory.MemoryRef, timeout_s: float, options: dict[str, Any]
) -> actor.ActorHandle:
    """Start a server. It comes back when it is killed, and then repeats its requests; tickets keep that from
    doing harm."""
    settings = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "max_concurrency": _THREADS, **options}
    return actor.ActorClass(Server, settings).remote(index, book, gate_ref, timeout_s)
