"""How ranks find each other and come to share memory.

Ranks that find each other by themselves need somewhere to leave a few words: a `Store`. torch's stores are one;
`ActorStore` needs nothing but a session. The first rank of a host makes the memory and says where it is.

A controller that can call functions in the ranks needs no store: `meeting` says which ranks share memory.
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
    """Where ranks leave words for each other."""

    def write(self, key: str, text: str) -> None:
        """Leave a text under a name that is used once."""

    def read(self, key: str) -> str:
        """Return the text under a name; waits until it is there."""


def list_hosts(store: Store, rank: int, size: int) -> list[list[int]]:
    """Return the ranks of each host, in the order of their first ones. All ranks must call it."""
    store.write(f"host/{rank}", meeting.identify_host())
    return meeting.group_by_host([store.read(f"host/{other}").strip() for other in range(size)])


def join(store: Store, rank: int, ranks: Sequence[int], *, timeout_s: float = 1800.0) -> host_group.HostGroup:
    """Return the group of these ranks, which are on one host. All of them must call it.

    Args:
        store: Where they leave words.
        rank: This rank's number among all.
        ranks: Those of this host, this one among them.
        timeout_s: How long an operation may wait for a rank.
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
"""How many ranks may wait in the actor at once."""


@final
class RendezvousActor:
    """Where the ranks of one group leave words for each other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._texts: dict[str, asyncio.Future[str]] = collections.defaultdict(asyncio.Future)

    async def get_size(self) -> int:
        """Return how many ranks the group has."""
        return self.size

    async def write(self, key: str, text: str) -> bool:
        """Leave a text; False if there is one."""
        if self._texts[key].done():
            return False
        self._texts[key].set_result(text)
        return True

    async def read(self, key: str) -> str:
        """Return a text, when it is there."""
        return await asyncio.shield(self._texts[key])


@final
class ActorStore:
    """A store in an actor that has a name, which ends when no rank has its store any more.

    Args:
        name: The actor's name. The first rank that asks for it starts it.
        size: How many ranks there are.
        timeout_s: How long to wait for another rank's words.
        remedy: What a rank that does not come must do, for the message.
    """

    def __init__(self, name: str, size: int, *, timeout_s: float, remedy: str) -> None:
        options = {"name": name, "get_if_exists": True, "num_cpus": 0, "max_concurrency": _MAX_WAITING}
        self._handle = actor.ActorClass(RendezvousActor, options).remote(size)
        self._timeout_s = timeout_s
        self._remedy = remedy

    def get_size(self) -> int:
        """Return how many ranks the first one said that there are."""
        size: int = api.get(self._handle.get_size.remote())
        return size

    def write(self, key: str, text: str) -> None:
        """See `Store`."""
        if not api.get(self._handle.write.remote(key, text)):
            raise ValueError(
                f"{key.partition('/')[2]} is taken: another process has this rank. Give each rank of a group another "
                "number."
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
