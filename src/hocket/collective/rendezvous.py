"""Rendezvous: ranks find each other, and come to share memory.

Ranks without a controller exchange a few texts through a `Store`. torch's stores can serve as one; `ActorStore` needs
only a session. The first rank of a host makes the shared memory, and writes its location into the store.

A controller that can call functions in the ranks needs no store: `meeting` groups the ranks that share memory.
"""

from __future__ import annotations

import asyncio
import collections
import json
from collections.abc import Sequence
from typing import Protocol, final

from hocket import exceptions
from hocket.collective import errors, host_group, meeting, peer_monitor, segment
from hocket.core import actor, api


class Store(Protocol):
    """A place where ranks leave texts for each other."""

    def write(self, key: str, text: str) -> None:
        """Write a text under a key. Each key is used once."""

    def read(self, key: str) -> str:
        """Wait for the text under a key, and return it."""


def list_hosts(store: Store, rank: int, size: int) -> list[list[int]]:
    """Return the ranks of each host, in the order of the hosts' first ranks. All ranks must call this function."""
    store.write(f"host/{rank}", meeting.identify_host())
    return meeting.group_by_host([store.read(f"host/{other}").strip() for other in range(size)])


def join(store: Store, rank: int, ranks: Sequence[int], *, timeout_s: float = 1800.0) -> host_group.HostGroup:
    """Return the group of these ranks, which are on one host. All of them must call this function.

    Args:
        store: The store of the ranks' texts.
        rank: This rank's number among all ranks.
        ranks: The ranks on this host, including this one.
        timeout_s: The seconds that an operation may wait for a rank.
    """
    local = list(ranks).index(rank)
    first = ranks[0]
    if not local:
        memory = segment.create(len(ranks))
        store.write(f"segment/{first}", json.dumps([memory.path, memory.identity]))
    else:
        path, identity = json.loads(store.read(f"segment/{first}"))
        memory = segment.open_segment(path, identity, len(ranks))
    peer_monitor.join(memory, local)
    store.write(f"joined/{rank}", "")
    for other in ranks:
        store.read(f"joined/{other}")
    return host_group.HostGroup(memory, local, timeout_s=timeout_s, names=ranks)


# --- a store in an actor ----------------------------------------------------------------------------------------------

_MAX_WAITING = 10_000
"""Number of ranks that may wait in the actor at once."""


@final
class RendezvousActor:
    """The actor that holds the texts of one group's ranks."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._texts: dict[str, asyncio.Future[str]] = collections.defaultdict(asyncio.Future)

    async def get_size(self) -> int:
        """Return the number of ranks in the group."""
        return self.size

    async def write(self, key: str, text: str) -> bool:
        """Write a text; return False if the key has one already."""
        if self._texts[key].done():
            return False
        self._texts[key].set_result(text)
        return True

    async def read(self, key: str) -> str:
        """Wait for a text, and return it."""
        return await asyncio.shield(self._texts[key])


@final
class ActorStore:
    """A store in a named actor. The actor ends when no rank holds its store any more.

    Args:
        name: The actor's name. The first rank that makes a store starts the actor.
        size: The number of ranks.
        timeout_s: The seconds to wait for another rank's text.
        remedy: The advice in the error message if a rank does not come.
    """

    def __init__(self, name: str, size: int, *, timeout_s: float, remedy: str) -> None:
        options = {"name": name, "get_if_exists": True, "num_cpus": 0, "max_concurrency": _MAX_WAITING}
        self._handle = actor.ActorClass(RendezvousActor, options).remote(size)
        self._timeout_s = timeout_s
        self._remedy = remedy

    def get_size(self) -> int:
        """Return the number of ranks, as the first rank gave it."""
        size: int = api.get(self._handle.get_size.remote())
        return size

    def write(self, key: str, text: str) -> None:
        """See `Store`."""
        if not api.get(self._handle.write.remote(key, text)):
            raise ValueError(
                f"Rank {key.partition('/')[2]} is taken: another process has it. Give each process of a group another "
                "rank."
            )

    def read(self, key: str) -> str:
        """See `Store`."""
        try:
            text: str = api.get(self._handle.read.remote(key), timeout=self._timeout_s)
        except exceptions.GetTimeoutError as error:
            raise errors.CollectiveTimeoutError(
                f"Rank {key.partition('/')[2]} has not joined after {self._timeout_s:.0f} s. {self._remedy}"
            ) from error
        return text
