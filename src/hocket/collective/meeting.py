"""Groups ranks by host: ranks of one host share memory."""

from __future__ import annotations

from collections.abc import Sequence

from hocket.collective import futex, segment


def identify_host() -> str:
    """Return a text that is equal in processes that can share memory; empty if this system has no futexes."""
    return segment.identify_host() if futex.is_available() else ""


def group_by_host(names: Sequence[str]) -> list[list[int]]:
    """Return the ranks of each host, in the order of the hosts' first ranks.

    Args:
        names: The results of `identify_host` in all ranks, in order. A rank with an empty name is alone.
    """
    hosts: dict[str, list[int]] = {}
    for rank, name in enumerate(names):
        hosts.setdefault(name or f"rank {rank}", []).append(rank)
    return list(hosts.values())
