"""How ranks find each other and come to share memory.

They need somewhere to leave a few words for each other: a `Board`. torch's stores are one. The first rank of a host makes the memory and says where it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

from hocket.collective import host_group, lookout, segment


class Board(Protocol):
    """Where ranks leave words for each other."""

    def write(self, key: str, text: str) -> None:
        """Leave a text under a name that is used once."""

    def read(self, key: str) -> str:
        """Return the text under a name; waits until it is there."""


def list_hosts(board: Board, rank: int, size: int) -> list[list[int]]:
    """Return the ranks of each host, in the order of their first ones. All ranks must call it."""
    board.write(f"host/{rank}", segment.identify_host())
    hosts: dict[str, list[int]] = {}
    for other in range(size):
        hosts.setdefault(board.read(f"host/{other}"), []).append(other)
    return list(hosts.values())


def join(board: Board, rank: int, ranks: Sequence[int], *, timeout_s: float = 1800.0) -> host_group.HostGroup:
    """Return the group of these ranks, which are on one host. All of them must call it.

    Args:
        board: Where they leave words.
        rank: This rank's number among all.
        ranks: Those of this host, this one among them.
        timeout_s: How long an operation may wait for a rank.

    Raises:
        OSError: The memory cannot be made, or another rank's cannot be opened.
    """
    local = list(ranks).index(rank)
    first = ranks[0]
    if not local:
        memory = segment.create(len(ranks))
        board.write(f"segment/{first}", json.dumps([memory.path, memory.identity]))
    else:
        path, identity = json.loads(board.read(f"segment/{first}"))
        memory = segment.open_segment(path, identity, len(ranks))
    lookout.join(memory, local)
    board.write(f"joined/{rank}", "")
    for other in ranks:
        board.read(f"joined/{other}")
    return host_group.HostGroup(memory, local, timeout_s=timeout_s, names=ranks)
