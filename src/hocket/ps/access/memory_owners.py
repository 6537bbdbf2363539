"""Memory owners: each makes memory, and keeps it as long as a strategy lives.

On one machine the owner is the driver or, for a training run, an actor that does nothing else; either uses a
`MemoryOwner`. On other nodes of a cluster, a `MemoryOwner` actor keeps the memory of that node's servers. An owner is
not a server: killing a server leaves its memory intact.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, final

from hocket import exceptions
from hocket.core import actor, api, context, placement, session
from hocket.ps.access import remote
from hocket.ps.stores import gate, memory, store

ASKABLE: Final = frozenset({"make", "discard", "make_book", "make_gate", "build", "add", "list_specs"})
"""The names in `MemoryOwner` that other processes may use, if the owner is an actor."""


@final
class MemoryOwner:
    """The owner of memory that it makes in this process."""

    def __init__(self) -> None:
        self._kept: list[memory.Memory] = []
        self._stores: dict[memory.MemoryRef, store.Store] = {}

    def make(self, nbytes: int, purpose: str) -> memory.MemoryRef:
        """Make memory of `nbytes` bytes, full of zeros."""
        return self._make(nbytes, purpose).ref

    def discard(self, refs: Sequence[memory.MemoryRef]) -> None:
        """Close memory that is in no book."""
        for made in [made for made in self._kept if made.ref in refs]:
            self._kept.remove(made)
            made.close()

    def make_book(self, server: int) -> memory.MemoryRef:
        """Make a server's book."""
        made = self._make(store.count_book_bytes(), f"book-{server}")
        store.build_book(made)
        return made.ref

    def make_gate(self, settings: gate.Settings) -> memory.MemoryRef:
        """Make the gate."""
        made = self._make(gate.count_bytes(), "gate")
        gate.build(made, settings)
        return made.ref

    def _make(self, nbytes: int, purpose: str) -> memory.Memory:
        made = memory.create(nbytes, purpose)
        self._kept.append(made)
        return made

    def build(self, spec: store.Spec, value: object) -> None:
        """Initialise a shard in memory that was made for it. A table's value is its first rows, or None."""
        store.build_shard(spec, value)

    def add(self, book: memory.MemoryRef, spec: store.Spec) -> None:
        """Enter an initialised shard into a book."""
        known = self._stores.get(book)
        if known is None:
            known = self._stores[book] = store.Store(book, spec.server, _BOOK_SECONDS)
        known.add(spec)

    def list_specs(self, book: memory.MemoryRef) -> list[store.Spec]:
        """Return the shards that are in a book."""
        known = self._stores.get(book)
        return [] if known is None else known.list_specs()

    def close(self) -> None:
        """Close all memory."""
        self._stores.clear()
        while self._kept:
            self._kept.pop().close()


@final
class ServerNodes:
    """The nodes of a strategy's servers, and their memory's owners. Hosted: an actor replaces the driver as owner."""

    def __init__(self, count: int, *, is_hosted: bool) -> None:
        nodes = _list_nodes()
        self._local: MemoryOwner | None = None if is_hosted else MemoryOwner()
        self._actors: list[actor.ActorHandle] = []
        owners = {nodes[0]: self._start_owner(None) if self._local is None else self._local}
        for node in nodes[1:count]:
            owners[node] = self._start_owner(node)
        self.nodes: Final = list(itertools.islice(itertools.cycle(nodes), count))
        self.owners: Final[Sequence[MemoryOwner]] = [owners[node] for node in self.nodes]
        self.is_spread: Final = len(owners) > 1

    def _start_owner(self, node: str | None) -> MemoryOwner:
        options = {"num_cpus": 0, **({} if node is None else _pin(node))}
        handle = actor.ActorClass(MemoryOwner, options).remote()
        self._actors.append(handle)
        return remote.build_actor_proxy(MemoryOwner, ASKABLE, handle)

    def choose_options(self, server: int) -> dict[str, object]:
        """Return the placement options of a server's actor: on the node of its memory."""
        return _pin(self.nodes[server]) if self.is_spread else {}

    def is_lost(self) -> bool:
        """Tell whether an owner has ended, and its memory with it."""
        book = memory.MemoryRef("", "", 0)  # a book that no owner has
        asked = [handle.list_specs.remote(book) for handle in self._actors]
        try:
            api.get(asked, timeout=_ASK_SECONDS)
        except exceptions.ActorError:
            return True
        except exceptions.GetTimeoutError:  # the owner is stopped or busy: it lives
            return False
        return False

    def close(self) -> None:
        """Close all memory."""
        if self._local is not None:
            self._local.close()
        for handle in self._actors:
            api.kill(handle)


_BOOK_SECONDS: Final = 600.0

_ASK_SECONDS: Final = 10.0
"""Seconds that an owner may take to answer: an owner that is not stopped takes milliseconds. A guess."""


def _pin(node: str) -> dict[str, object]:
    return {"scheduling_strategy": placement.NodeAffinitySchedulingStrategy(node, soft=False)}


def _list_nodes() -> list[str]:
    """Return the ids of the nodes, the caller's first."""
    mine = context.RuntimeContext(session.get_engine().view.get_context(), session.get_engine()).get_node_id()
    others = [str(node["NodeID"]) for node in api.nodes() if node["Alive"] and node["NodeID"] != mine]
    return [mine, *others]
