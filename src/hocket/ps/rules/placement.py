"""Placement: chooses servers for variables, by bytes and traffic, and servers for rows of tables, by their ids.

**Variables.** `Placer` chooses a server for each new variable or shard. TensorFlow deals variables out in turn, so one
server may hold most of the bytes by bad luck. Here bytes come first: a server is a candidate if it has the fewest
bytes, or stays within `SLACK` of the average with the new variable. Among the candidates, the server with the least
traffic takes the variable. So two small variables that every worker reads do not share a server.

No placement balances a variable that is larger than a server's share. `plan_shards` returns the number of shards for
it: as many as there are servers, if it is large enough to matter.

**Rows of tables.** Popular ids are usually low, because vocabularies are sorted by frequency, and popularity falls as a
power of the rank (Zipf). A server with a contiguous range of low ids would have nearly all the work. So ids are dealt
out in turn: `locate` puts id i into row i // n of shard i % n, and `find_ids` is its inverse. Ids that are hashes, or
any numbers, have no such order; `hash_shard` deals them out by a hash.

Measured, as the busiest server's work over the average, for a million ids, popularity 1 / rank, and 4 servers (8):
ranges 3.6 (6.8), a hash 1.23 (1.53) on average, in turn 1.16 (1.40). The rest comes from the few most popular ids. They
count once for a batch if a pull requests each id once, as it should; then, with 8192 ids a batch, it is 1.014 (1.023)
for a hash, and below 1.001 in turn. For popularity 1 / rank**1.3 it is 1.03 (1.06) and 1.001 (1.003), and with ids that
are requested as often as they occur 1.8 (2.9) and 1.6 (2.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from hocket.ps import checks
from hocket.ps.rules import hashing

Ids: TypeAlias = npt.NDArray[np.int64]
"""Row ids, shard numbers, or row numbers in a shard."""

SLACK: Final = 1.1
"""The largest ratio of a server's bytes to the average at which traffic still decides: this project's own bound."""

MIN_SHARD_BYTES: Final = 64 << 10
"""The default of `min_shard_bytes` in `plan_shards`. A guess: writing them takes as long as a few messages."""


@final
@dataclass(frozen=True, kw_only=True)
class PlacementStatistics:
    """The loads of servers. Each tuple has one entry for each server.

    Args:
        num_placed: The number of variables and shards.
        num_bytes: Their bytes.
        traffic: The bytes that a step moves, as the callers of `Placer` estimated them.

    Example:
        >>> from hocket.ps.rules import placement
        >>> placement.PlacementStatistics(num_placed=(2, 1), num_bytes=(30, 10), traffic=(0.0, 0.0)).bytes_imbalance
        1.5
    """

    num_placed: tuple[int, ...]
    num_bytes: tuple[int, ...]
    traffic: tuple[float, ...]

    @property
    def bytes_imbalance(self) -> float:
        """The most bytes of a server, over the average: 1 at best."""
        return _measure_imbalance(self.num_bytes)

    @property
    def traffic_imbalance(self) -> float:
        """The most traffic of a server, over the average: 1 at best."""
        return _measure_imbalance(self.traffic)


@final
class Placer:
    """The choice of servers for variables, one after the other as they are made. Not safe for several threads at once.

    Args:
        num_servers: The number of servers.

    Raises:
        ValueError: `num_servers` is less than 1.

    Example:
        >>> from hocket.ps.rules import placement
        >>> placer = placement.Placer(2)
        >>> [placer.place(nbytes) for nbytes in (400, 100, 200, 100)]
        [0, 1, 1, 1]
        >>> placer.statistics().num_bytes
        (400, 400)
    """

    def __init__(self, num_servers: int) -> None:
        num_servers = checks.require_count("num_servers", num_servers, "Parameters need a server that holds them.")
        self._placed = [0] * num_servers
        self._bytes = [0] * num_servers
        self._traffic = [0.0] * num_servers

    def place(self, nbytes: int, traffic: float | None = None) -> int:
        """Choose a server for a variable, and count the variable there.

        Args:
            nbytes: The variable's bytes, with its slots.
            traffic: About how many of these bytes a step moves. Default: all of them, as for a dense variable.

        Returns:
            The server's number.
        """
        return self._place(*_check(nbytes, traffic), range(len(self._bytes)))

    def place_shards(self, sizes: Sequence[int], traffic: Sequence[float] | None = None) -> list[int]:
        """Choose servers for the shards of one variable: different servers as long as there are any left.

        Args:
            sizes: The bytes of each shard.
            traffic: About how many bytes of each shard a step moves. Default: all of them.

        Returns:
            The servers' numbers, in the order of the shards.

        Example:
            >>> from hocket.ps.rules import placement
            >>> placer = placement.Placer(3)
            >>> placer.place(10)
            0
            >>> placer.place_shards([50, 40, 40])
            [1, 2, 0]
        """
        if traffic is not None and len(traffic) != len(sizes):
            raise ValueError(
                f"traffic must have a number for each of the {len(sizes)} shards, but received {traffic!r}. Leave it "
                "out if a step moves whole shards."
            )
        wanted = [_check(nbytes, traffic[at] if traffic is not None else None) for at, nbytes in enumerate(sizes)]
        chosen = [0] * len(wanted)
        left: list[int] = []
        for at in sorted(
            range(len(wanted)), key=lambda at: wanted[at], reverse=True
        ):  # the largest first: they are hardest to fit
            left = left or list(range(len(self._bytes)))
            chosen[at] = self._place(*wanted[at], left)
            left.remove(chosen[at])
        return chosen

    def occupy(self, server: int, nbytes: int, traffic: float | None = None) -> None:
        """Count a variable on a server that is already known, for example from a checkpoint or a colocated variable."""
        self._count(self._require_server(server), *_check(nbytes, traffic))

    def release(self, server: int, nbytes: int, traffic: float | None = None) -> None:
        """Undo the count of a variable on its server. The arguments are those of its placement."""
        nbytes, moved = _check(nbytes, traffic)
        server = self._require_server(server)
        if not self._placed[server] or nbytes > self._bytes[server]:
            raise ValueError(
                f"server {server} holds {self._placed[server]} variables of {self._bytes[server]} bytes together, so "
                f"{nbytes} bytes cannot be released. Release each variable once, with the size that it was placed "
                "with."
            )
        self._count(server, -nbytes, -moved, -1)
        if not self._placed[server]:
            self._traffic[server] = 0.0  # removes rounding errors

    def statistics(self) -> PlacementStatistics:
        """Return the load of each server."""
        return PlacementStatistics(
            num_placed=tuple(self._placed), num_bytes=tuple(self._bytes), traffic=tuple(self._traffic)
        )

    def _place(self, nbytes: int, traffic: float, servers: Sequence[int]) -> int:
        limit = SLACK * (sum(self._bytes) + nbytes) / len(self._bytes) - nbytes
        least = min(self._bytes[server] for server in servers)
        fitting = [server for server in servers if self._bytes[server] <= max(least, limit)]
        chosen = min(
            fitting, key=lambda server: (self._traffic[server], self._bytes[server], self._placed[server], server)
        )
        self._count(chosen, nbytes, traffic)
        return chosen

    def _count(self, server: int, nbytes: int, traffic: float, placed: int = 1) -> None:
        self._placed[server] += placed
        self._bytes[server] += nbytes
        self._traffic[server] += traffic

    def _require_server(self, server: int) -> int:
        if not 0 <= server < len(self._bytes):
            raise ValueError(
                f"server must be from 0 to {len(self._bytes) - 1}, but received {server!r}. Give what place() returned."
            )
        return server


def plan_shards(nbytes: int, num_servers: int, *, min_shard_bytes: int = MIN_SHARD_BYTES) -> int:
    """Return the number of shards for a value that may be cut anywhere: as many as servers, or 1 for small shards.

    Args:
        nbytes: The value's bytes, with its slots.
        num_servers: The number of servers.
        min_shard_bytes: The least bytes of a shard.

    Example:
        >>> from hocket.ps.rules import placement
        >>> placement.plan_shards(1 << 30, 4), placement.plan_shards(1 << 10, 4)
        (4, 1)
    """
    nbytes = checks.require_count("nbytes", nbytes, "Give the variable's size.", least=0)
    num_servers = checks.require_count("num_servers", num_servers, "Parameters need a server that holds them.")
    min_shard_bytes = checks.require_count("min_shard_bytes", min_shard_bytes, f"Leave it out for {MIN_SHARD_BYTES}.")
    return num_servers if nbytes >= num_servers * min_shard_bytes else 1


def locate(ids: Ids, num_shards: int) -> tuple[Ids, Ids]:
    """Return the shards of ids, and their rows there. Ids are dealt out in turn.

    Args:
        ids: Ids from 0.
        num_shards: The number of shards.

    Example:
        >>> import numpy as np
        >>> from hocket.ps.rules import placement
        >>> shards, rows = placement.locate(np.array([0, 1, 2, 7]), 3)
        >>> shards.tolist(), rows.tolist()
        ([0, 1, 2, 1], [0, 0, 0, 2])
    """
    rows = ids // num_shards
    return ids - rows * num_shards, rows  # a second division takes longer


def find_ids(shards: Ids | int, rows: Ids, num_shards: int) -> Ids:
    """Return the ids at these shards and rows: the inverse of `locate`.

    Example:
        >>> import numpy as np
        >>> from hocket.ps.rules import placement
        >>> placement.find_ids(1, np.arange(3), num_shards=4).tolist()
        [1, 5, 9]
    """
    found: Ids = rows * num_shards + shards
    return found


def count_rows(num_ids: int, num_shards: int) -> list[int]:
    """Return the number of rows in each shard of a table with ids from 0 to below `num_ids`, as `locate` deals them.

    Example:
        >>> from hocket.ps.rules import placement
        >>> placement.count_rows(13, 5)
        [3, 3, 3, 2, 2]
    """
    num_ids = checks.require_count("num_ids", num_ids, "Give the number of the table's rows.", least=0)
    num_shards = checks.require_count("num_shards", num_shards, "Give the number of servers, say.")
    return [(num_ids - shard + num_shards - 1) // num_shards for shard in range(num_shards)]


def hash_shard(ids: Ids, num_shards: int) -> Ids:
    """Return the shards of ids that may be any 64-bit numbers. The same on all machines, so it may be saved.

    Args:
        ids: The ids.
        num_shards: The number of shards, below 2**31.

    Example:
        >>> import numpy as np
        >>> from hocket.ps.rules import placement
        >>> placement.hash_shard(np.array([0, 8, 16, -5]), 4).tolist()
        [3, 2, 1, 0]
    """
    mixed = ids.astype(np.uint64)  # negative ids wrap around
    mixed += np.uint64(hashing.GOLDEN)
    hashing.mix(mixed)
    mixed >>= np.uint64(32)
    mixed *= np.uint64(num_shards)  # scales 32 random bits to a number below num_shards
    mixed >>= np.uint64(32)
    return mixed.view(np.int64)


def _check(nbytes: int, traffic: float | None) -> tuple[int, float]:
    nbytes = checks.require_count("nbytes", nbytes, "Give the variable's size.", least=0)
    if traffic is None:
        return nbytes, float(nbytes)
    rule, remedy = "must be a finite number of bytes from 0", "Leave it out for a variable that is read whole."
    return nbytes, checks.require_number("traffic", traffic, rule, remedy)


def _measure_imbalance(loads: Sequence[float]) -> float:
    total = sum(loads)
    return max(loads) * len(loads) / total if total else 1.0
