"""Collectives of all ranks for frameworks without process groups: they take and return numpy arrays.

Ranks on one machine share memory (`hocket.collective.host_group`). Between machines, the first rank of each machine
passes a value to a `HostAllGather`, and receives the values of all machines. `through_actor` makes a `HostAllGather`
from an actor, so the values travel as the engine's objects. This is for frameworks without a transport; torch has gloo
and NCCL (`hocket.collective.torch`).
"""

from __future__ import annotations

import asyncio
import functools
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from hocket import exceptions
from hocket.collective import arithmetic, errors, host_group, peer_monitor
from hocket.collective.arithmetic import NUMPY, ReduceOp
from hocket.core import actor, api

Array: TypeAlias = npt.NDArray[Any]


@final
@dataclass(frozen=True, slots=True)
class UnequalCalls:
    """The result of an exchange between machines whose ranks call different operations."""

    calls: Sequence[str]
    """The call on each machine, as text."""


HostAllGather: TypeAlias = Callable[[str, Any], list[Any] | UnequalCalls]
"""Takes the current call and this machine's value; returns the values of all machines, in order."""

_COMBINE: Final = NUMPY.combine


@final
class World:
    """The ranks' collectives. All ranks call the same methods in the same order, from one thread at a time.

    Args:
        rank: This rank.
        hosts: The ranks of each machine.
        local: The group of this machine's ranks; None if this rank is alone there.
        all_gather_hosts: The exchange between machines, in the first rank of each machine.

    Example:
        >>> import numpy as np
        >>> from hocket.collective.world import World
        >>> world = World(0, [[0]])
        >>> values = np.arange(3.0)
        >>> world.all_reduce(values)  # with one rank there is nothing to add
        >>> values.tolist(), world.all_gather_object("alone")
        ([0.0, 1.0, 2.0], ['alone'])
    """

    def __init__(
        self,
        rank: int,
        hosts: Sequence[Sequence[int]],
        local: host_group.HostGroup | None = None,
        all_gather_hosts: HostAllGather | None = None,
    ) -> None:
        self.rank: Final = rank
        self.size: Final = sum(len(host) for host in hosts)
        self._hosts = [list(host) for host in hosts]
        self._local = local
        self._all_gather_hosts = all_gather_hosts
        self._is_apart = len(self._hosts) > 1
        #: The error that made the group unusable.
        self._error: errors.CollectiveError | None = None

    def all_reduce(self, array: Array, op: ReduceOp = ReduceOp.SUM) -> None:
        """Put the sum of all ranks' arrays, or their combination by `op`, into each array.

        Args:
            array: An array of any shape, contiguous and writable; changed in place. Its shape and dtype are equal in
                all ranks.
            op: The operation. Sums are made in the order of the ranks, so their last bits do not change between runs.
        """
        flat = flatten(array)
        if not self._is_apart:
            if self._local is not None:
                self._local.all_reduce(flat, op)
            else:
                check_op(flat, op)
            return
        check_op(flat, op)
        self._reduce_apart(flat, op, _describe("all_reduce", flat.nbytes, flat.dtype, op))

    def _reduce_apart(self, flat: Array, op: ReduceOp, call: str) -> None:
        inner = ReduceOp.SUM if op is ReduceOp.MEAN else op
        if self._local is not None:
            self._local.reduce(flat, 0, inner)
        if self._all_gather_hosts is not None:
            first, *others = self._exchange(self._all_gather_hosts, call, flat)
            np.copyto(flat, first)
            for other in others:
                _COMBINE[inner](flat, other, out=flat)
            if op is ReduceOp.MEAN:
                np.divide(flat, self.size, out=flat)
        self._spread(flat)

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Put the root's array into the array of each rank.

        Args:
            array: An array of any shape, contiguous and writable; changed in place.
            root: The rank whose array all ranks receive.
        """
        if not 0 <= root < self.size:
            raise ValueError(f"root must be one of the ranks 0 to {self.size - 1}, but received {root!r}.")
        flat = flatten(array)
        data = flat.view(np.uint8)
        home = next(host for host in self._hosts if root in host)
        if self._local is not None and self.rank in home:
            self._local.broadcast(data, home.index(root), str(flat.dtype))
        if not self._is_apart:
            return
        if self._all_gather_hosts is not None:
            call = _describe("broadcast", flat.nbytes, flat.dtype, root)
            given = self._exchange(self._all_gather_hosts, call, data if self.rank in home else None)
            if self.rank not in home:
                np.copyto(data, next(value for value in given if value is not None))
        if self.rank not in home:
            self._spread(flat)

    def all_gather_object(self, value: object) -> list[Any]:
        """Return the values of all ranks, by rank.

        Args:
            value: Any value that can be pickled. Other ranks of the same run unpickle it.
        """
        if self.size == 1:
            return [value]
        here = self._gather_here(pickle.dumps(value, protocol=5))
        if not self._is_apart:
            return [pickle.loads(data) for data in here]
        packed = b""
        if self._all_gather_hosts is not None:
            found: dict[int, bytes] = {}
            all_given = self._exchange(self._all_gather_hosts, "all_gather_object", here)
            for host, given in zip(self._hosts, all_given, strict=True):
                found.update(zip(host, given, strict=True))
            packed = pickle.dumps([found[rank] for rank in range(self.size)])
        all_of_them: list[bytes] = pickle.loads(self._gather_here(packed)[0])
        return [pickle.loads(data) for data in all_of_them]

    def all_gather_bytes(self, data: Array, counts: Sequence[int]) -> list[Array]:
        """Return the bytes of all ranks, by rank.

        Args:
            data: An array of dtype uint8.
            counts: The number of bytes from each rank; the same list in all ranks.
        """
        if self._is_apart:
            return [np.frombuffer(given, np.uint8) for given in self.all_gather_object(data.tobytes())]
        return [data] if self._local is None else _all_gather(self._local, data, counts)

    def all_to_all_bytes(self, parts: Sequence[Array]) -> list[Array]:
        """Return the parts that all ranks have for this rank, by rank.

        Args:
            parts: One part for each rank, of dtype uint8. All ranks' parts for one rank have the same length.
        """
        if self._is_apart:
            rows = self.all_gather_object([part.tobytes() for part in parts])
            return [np.frombuffer(row[self.rank], np.uint8) for row in rows]
        if self._local is None:
            return list(parts)
        most = max(map(len, parts))
        targets = [np.empty(most, np.uint8) for _ in parts]
        self._local.all_to_all(targets, [_pad(part, most) for part in parts])
        return [target[: len(parts[self.rank])] for target in targets]

    def barrier(self) -> None:
        """Wait until all ranks have called this method."""
        if self._is_apart:
            self._reduce_apart(np.zeros(1, np.int32), ReduceOp.SUM, "barrier")
        elif self._local is not None:
            self._local.barrier()

    def close(self) -> None:
        """Leave the group. A rank that waits for this one gets an error."""
        if self._local is not None:
            self._local.close()

    def _exchange(self, all_gather_hosts: HostAllGather, call: str, value: object) -> list[Any]:
        """Exchange a value with the other machines; return the values of all."""
        if self._error is not None:
            raise self._error
        try:
            given = all_gather_hosts(call, value)
            if isinstance(given, UnequalCalls):
                rank, theirs = next(
                    (host[0], other) for host, other in zip(self._hosts, given.calls, strict=True) if other != call
                )
                raise errors.CollectiveMismatchError(
                    f"Rank {self.rank} calls {call}, but rank {rank} calls {theirs} at the same point. All ranks must "
                    "call the same operations in the same order, with equal shapes, dtypes and roots."
                )
        except errors.CollectiveError as error:
            self._error = error
            self.close()  # makes the other ranks of this machine fail, too
            raise
        return given

    def _spread(self, flat: Array) -> None:
        """Copy the array of this machine's first rank to its other ranks."""
        if self._local is not None:
            self._local.broadcast(flat.view(np.uint8), 0, str(flat.dtype))

    def _gather_here(self, data: bytes) -> list[bytes]:
        """Return the bytes of all ranks on this machine."""
        if self._local is None:
            return [data]
        size = self._local.size
        lengths = [np.zeros(8, np.uint8) for _ in range(size)]
        self._local.all_gather(lengths, np.frombuffer(len(data).to_bytes(8, "little"), np.uint8))
        counts = [int.from_bytes(length.tobytes(), "little") for length in lengths]
        return [given.tobytes() for given in _all_gather(self._local, np.frombuffer(data, np.uint8), counts)]


def _all_gather(local: host_group.HostGroup, data: Array, counts: Sequence[int]) -> list[Array]:
    """Return the bytes of all ranks on a machine; their numbers may differ."""
    most = max(counts)
    targets = [np.empty(most, np.uint8) for _ in counts]
    local.all_gather(targets, _pad(data, most))
    return [target[:count] for target, count in zip(targets, counts, strict=True)]


def _pad(data: Array, count: int) -> Array:
    """Return bytes padded with zeros to `count`."""
    if len(data) == count:
        return data
    padded = np.zeros(count, np.uint8)
    padded[: len(data)] = data
    return padded


def flatten(array: Array) -> Array:
    """Return a one-dimensional view of an array that a collective can change in place.

    Raises:
        TypeError: The value is no array, or an array of objects.
        ValueError: The array is read-only, or not contiguous.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(
            f"A collective takes a numpy array, which it changes in place, but received {type(array).__name__}. Write "
            "numpy.asarray(...) first."
        )
    if array.dtype.hasobject:
        raise TypeError(
            f"A collective takes an array of numbers, but received one of {array.dtype}. Use all_gather_object for "
            "other objects."
        )
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise ValueError(
            f"A collective changes its array in place, but received one of shape {array.shape} that is "
            f"{'read-only' if array.flags.c_contiguous else 'not contiguous'}. Pass a copy: array.copy()."
        )
    return array.reshape(-1)


@functools.lru_cache
def _describe(kind: str, num_bytes: int, dtype: np.dtype[Any], detail: int) -> str:
    """Return a call as text. Cached, because each step repeats its calls."""
    how = detail.name.lower() if isinstance(detail, ReduceOp) else f"root {detail}"
    return f"{kind}({num_bytes:,} bytes of {peer_monitor.shorten(str(dtype))}, {how})"


def check_op(flat: Array, op: ReduceOp) -> None:
    """Raise if an operation has no meaning for the array's dtype."""
    if op is ReduceOp.MEAN and not NUMPY.is_inexact(flat.dtype):
        raise TypeError(f"op=MEAN needs floats, but received {flat.dtype}. Use SUM.")
    if op in arithmetic.BITWISE and NUMPY.is_inexact(flat.dtype):
        raise TypeError(arithmetic.explain_bitwise(op, flat.dtype))


# --- between machines ------------------------------------------------------------------------------------------------


class HostAllGatherActor:
    """An actor that collects a value from each machine, and returns all of them to each.

    Args:
        size: The number of machines.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._rounds: dict[int, tuple[dict[int, object], dict[int, str], asyncio.Event]] = {}

    async def gather(self, turn: int, host: int, call: str, value: object) -> list[object] | UnequalCalls:
        """Register this machine's call and value in a turn; wait for the other machines, and return all values."""
        values, calls, is_full = self._rounds.setdefault(turn, ({}, {}, asyncio.Event()))
        values[host], calls[host] = value, call
        if len(values) == self._size:
            is_full.set()
            del self._rounds[turn]  # waiting calls still hold it
        await is_full.wait()
        if any(other != call for other in calls.values()):
            return UnequalCalls([calls[other] for other in range(self._size)])
        return [values[other] for other in range(self._size)]


def start_actor(num_hosts: int) -> actor.ActorHandle:
    """Start the actor through which the machines exchange values. It ends with its last handle."""
    return actor.ActorClass(HostAllGatherActor, {"num_cpus": 0, "max_concurrency": 2 * num_hosts}).remote(num_hosts)


def through_actor(handle: actor.ActorHandle, host: int, timeout_s: float) -> HostAllGather:
    """Return a `HostAllGather` for one machine that uses an actor.

    Args:
        handle: The actor from `start_actor`.
        host: The machine's number.
        timeout_s: The seconds that the other machines may take.
    """
    turn = 0

    def gather(call: str, value: object) -> list[object] | UnequalCalls:
        nonlocal turn
        turn += 1
        try:
            values: list[Any] | UnequalCalls = api.get(handle.gather.remote(turn, host, call, value), timeout=timeout_s)
        except exceptions.GetTimeoutError as error:
            raise errors.CollectiveTimeoutError(
                f"The ranks of another machine have not reached the same operation after {timeout_s:.0f} s. All ranks "
                "must call the same operations."
            ) from error
        return values

    return gather
