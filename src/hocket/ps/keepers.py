"""Who makes memory, and keeps it as long as a strategy lives.

On one machine that is the driver, or for a training run an actor that does nothing else (`Keeper` in either). Servers on other nodes of a cluster have their memory
kept by a `Keeper` actor there. A keeper is not a server: killing a server leaves the memory where it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final, Protocol, final

from hocket.core import actor, api, context, placement, session
from hocket.ps import gate, memory, store


class KeeperAccess(Protocol):
    """What a keeper can be asked for. See `Keeper` for each."""

    def make(self, nbytes: int, purpose: str) -> memory.MemoryRef:
        """Make so much memory, full of zeros."""

    def make_book(self, server: int) -> memory.MemoryRef:
        """Make a server's book."""

    def make_gate(self, settings: gate.Settings) -> memory.MemoryRef:
        """Make the gate."""

    def add(self, book: memory.MemoryRef, spec: store.Spec, value: Any) -> None:
        """Enter a shard into a book."""

    def close(self) -> None:
        """Give all of it up."""


@final
class Keeper:
    """Makes memory in this process, and keeps it."""

    def __init__(self) -> None:
        self._kept: list[memory.Memory] = []
        self._stores: dict[memory.MemoryRef, store.Store] = {}

    def make(self, nbytes: int, purpose: str) -> memory.MemoryRef:
        """Make so much memory, full of zeros."""
        made = memory.create(nbytes, purpose)
        self._kept.append(made)
        return made.ref

    def make_book(self, server: int) -> memory.MemoryRef:
        """Make a server's book."""
        made = memory.create(store.count_book_bytes(), f"book-{server}")
        store.build_book(made)
        self._kept.append(made)
        return made.ref

    def make_gate(self, settings: gate.Settings) -> memory.MemoryRef:
        """Make the gate."""
        made = memory.create(gate.count_bytes(), "gate")
        gate.build(made, settings)
        self._kept.append(made)
        return made.ref

    def add(self, book: memory.MemoryRef, spec: store.Spec, value: Any) -> None:
        """Enter a shard into a book.

        Args:
            book: Of the shard's server.
            spec: The shard; its memory is made.
            value: What a dense one begins with. Of a table: its first rows, or None.
        """
        known = self._stores.get(book)
        if known is None:
            known = self._stores[book] = store.Store(book, spec.server, _BOOK_SECONDS)
        known.add(spec, value)

    def close(self) -> None:
        """Give all of it up."""
        self._stores.clear()
        while self._kept:
            self._kept.pop().close()


@final
class RemoteKeeper:
    """A keeper that is an actor.

    Args:
        handle: The actor.
    """

    def __init__(self, handle: actor.ActorHandle) -> None:
        self._handle = handle

    def make(self, nbytes: int, purpose: str) -> memory.MemoryRef:
        """Make so much memory, full of zeros."""
        made: memory.MemoryRef = api.get(self._handle.make.remote(nbytes, purpose))
        return made

    def make_book(self, server: int) -> memory.MemoryRef:
        """Make a server's book."""
        made: memory.MemoryRef = api.get(self._handle.make_book.remote(server))
        return made

    def make_gate(self, settings: gate.Settings) -> memory.MemoryRef:
        """Make the gate."""
        made: memory.MemoryRef = api.get(self._handle.make_gate.remote(settings))
        return made

    def add(self, book: memory.MemoryRef, spec: store.Spec, value: Any) -> None:
        """Enter a shard into a book."""
        api.get(self._handle.add.remote(book, spec, value))

    def close(self) -> None:
        """End it."""
        api.kill(self._handle)


@final
class Homes:
    """Where the servers of a strategy are, and who keeps their memory.

    Args:
        count: How many servers.
        is_hosted: Whether the driver's part is an actor's.
    """

    def __init__(self, count: int, *, is_hosted: bool) -> None:
        nodes = _list_nodes()
        here: KeeperAccess = Keeper() if not is_hosted else RemoteKeeper(_start_keeper(None))
        keepers: dict[str, KeeperAccess] = {nodes[0]: here}
        for node in nodes[1:count]:
            keepers[node] = RemoteKeeper(_start_keeper(node))
        self.nodes: Final = list(itertools.islice(itertools.cycle(nodes), count))
        self.keepers: Final[Sequence[KeeperAccess]] = [keepers[node] for node in self.nodes]
        self._all = list(keepers.values())
        self.is_spread: Final = len(keepers) > 1

    def choose_options(self, server: int) -> dict[str, Any]:
        """Return where a server's actor must be: with its memory."""
        if not self.is_spread:
            return {}
        return {"scheduling_strategy": placement.NodeAffinitySchedulingStrategy(self.nodes[server], soft=False)}

    def close(self) -> None:
        """Give up all memory."""
        for keeper in self._all:
            keeper.close()


_BOOK_SECONDS: Final = 600.0


def _list_nodes() -> list[str]:
    """Return the ids of the nodes, the caller's first."""
    mine = context.RuntimeContext(session.get_engine().get_context(), session.get_engine()).get_node_id()
    others = [str(node["NodeID"]) for node in api.nodes() if node["Alive"] and node["NodeID"] != mine]
    return [mine, *others]


def _start_keeper(node: str | None) -> actor.ActorHandle:
    options: dict[str, Any] = {"num_cpus": 0}
    if node is not None:
        options["scheduling_strategy"] = placement.NodeAffinitySchedulingStrategy(node, soft=False)
    return actor.ActorClass(Keeper, options).remote()
