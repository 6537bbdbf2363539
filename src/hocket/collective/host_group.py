"""The collectives of ranks on one host, through shared memory.

*Method.* A tensor is cut into chunks that fit into a processor's cache. For each chunk, a rank copies its data into its
slot, makes a mark, waits for the marks of the others, and combines their slots with its own data. With two ranks, or
small tensors, each rank adds up everything for itself. Otherwise each adds up one part for all, and copies the other
parts. This is the scheme of DeepSpeed's and gloo's shared-memory all-reduce (symmetric for small tensors,
reduce-scatter and all-gather for large ones), but with marks instead of states, so a step costs one wait.

*Order.* Sums are made in the order of the ranks, so a run with the same number of ranks gives the same bits again.

*Waiting.* `rounds` explains how ranks keep step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from hocket._base import texts
from hocket.collective import arithmetic, peer_monitor, point_to_point, rounds, segment
from hocket.collective.arithmetic import NUMPY, Arithmetic, ReduceOp

Bytes = npt.NDArray[np.uint8]

SYMMETRIC_BYTES = 64 * 1024
"""Bytes up to which three or more ranks add everything for themselves: one wait instead of two. A guess."""

ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, GATHER, SCATTER, REDUCE_SCATTER, ALL_TO_ALL, BARRIER = range(
    1, len(peer_monitor.KINDS)
)

_TURNS: Final = segment.ROUNDS - 1

_Known: TypeAlias = tuple[int, int, int, list[list[object]]]
"""An operation packed into a word, bytes of an element, elements of a slot, and the slots by turn and rank."""

_groups: weakref.WeakSet[HostGroup] = weakref.WeakSet()
"""The groups of this process."""


def end_all() -> None:
    """Note in all groups of this process that its ranks are done: they will not come to another operation."""
    for group in list(_groups):
        group.end()


@final
class HostGroup:
    """Ranks of one host. Each rank makes its object with `hocket.collective.rendezvous.join`.

    Arrays are one-dimensional and contiguous. All ranks call the same methods in the same order, with equal sizes.

    Args:
        memory: The ranks' segment; closed with the group.
        rank: This rank.
        timeout_s: The seconds that an operation may wait for a rank.
        names: The ranks' names in messages. Default: their numbers.
    """

    def __init__(
        self, memory: segment.Segment, rank: int, *, timeout_s: float = 1800.0, names: Sequence[int] | None = None
    ) -> None:
        self.rank = rank
        self.size = memory.size
        self._rounds = rounds.Rounds(memory, rank, timeout_s, names or range(self.size))
        self.messages = self._rounds.messages
        self._operation = self._rounds.operation
        #: Facts about each checked pair of operation and dtype. The cache matters for calls of a few KB.
        self._known: dict[object, _Known] = {}
        self._sums: dict[object, Callable[[object, Sequence[object], int], None]] = {}
        _groups.add(self)

    def close(self) -> None:
        """Leave the group. A rank that waits for this one gets an error."""
        self._rounds.close()
        self._known.clear()

    def end(self) -> None:
        """Note that this rank's program is over: it still answers questions, but comes to no other operation."""
        self._rounds.end()

    # --- operations ---------------------------------------------------------------------------------------------------

    def all_reduce(self, array: Any, op: ReduceOp = ReduceOp.SUM, calc: Arithmetic = NUMPY) -> None:
        """Put the sum of all ranks' arrays, or their combination by `op`, into each array."""
        count = len(array)
        combine = self._get_sum(op, array, calc)
        with self._operation:
            views, step = self._begin(ALL_REDUCE, array, op, 0, calc)
            if self.size == 2 or array.dtype.itemsize * count <= SYMMETRIC_BYTES:
                self._exchange(array, count, step, views, calc.copy, combine)
            else:
                self._share_out(array, count, step, views, op, calc)

    def reduce(self, array: Any, root: int, op: ReduceOp = ReduceOp.SUM, calc: Arithmetic = NUMPY) -> None:
        """Put the sum of all ranks' arrays, or their combination by `op`, into the root's array only."""
        combine = self._get_sum(op, array, calc)
        _check_root(root, self.size)
        with self._operation:
            views, step = self._begin(REDUCE, array, op, root, calc)
            self._exchange(array, len(array), step, views, calc.copy, combine if self.rank == root else _do_nothing)

    def broadcast(self, array: Bytes, root: int, dtype: str = "u8") -> None:
        """Put the root's array into the array of each rank."""

        def take(part: Any, slots: Sequence[Any], count: int) -> None:
            np.copyto(part, slots[root][:count])

        _check_root(root, self.size)
        with self._operation:
            views, step = self._begin(BROADCAST, array, 0, root, NUMPY, dtype)
            if self.rank == root:
                self._exchange(array, len(array), step, views, np.copyto, _do_nothing)
            else:
                self._exchange(array, len(array), step, views, _do_nothing, take)

    def all_gather(self, targets: Sequence[Bytes], array: Bytes, dtype: str = "u8") -> None:
        """Put each rank's array into the target with its number, in all ranks."""
        _check_parts("targets", targets, array, self.size)
        with self._operation:
            views, step = self._begin(ALL_GATHER, array, 0, 0, NUMPY, dtype)
            self._gather(targets, array, step, views)

    def gather(self, targets: Sequence[Bytes], array: Bytes, root: int, dtype: str = "u8") -> None:
        """Put each rank's array into the target with its number, in the root; the other ranks pass no targets."""
        _check_root(root, self.size)
        if self.rank == root:
            _check_parts("targets", targets, array, self.size)
        with self._operation:
            views, step = self._begin(GATHER, array, 0, root, NUMPY, dtype)
            self._gather(targets if self.rank == root else (), array, step, views)

    def scatter(self, target: Bytes, sources: Sequence[Bytes], root: int, dtype: str = "u8") -> None:
        """Put the root's source with each rank's number into that rank's target; the other ranks pass no sources."""
        _check_root(root, self.size)
        if self.rank == root:
            _check_parts("sources", sources, target, self.size)
        with self._operation:
            views, step = self._begin(SCATTER, target, 0, root, NUMPY, dtype)
            step //= self.size

            def take(slots: Sequence[Any], at: int, count: int) -> None:
                mine = self.rank * count
                np.copyto(target[at : at + count], slots[root][mine : mine + count])

            self._pass_on(len(target), step, views, _give_parts(sources if self.rank == root else (), np.copyto), take)

    def all_to_all(self, targets: Sequence[Bytes], sources: Sequence[Bytes], dtype: str = "u8") -> None:
        """Put each rank's source with this rank's number into this rank's target with that rank's number."""
        _check_parts("targets", targets, targets[0] if targets else (), self.size)
        _check_parts("sources", sources, targets[0], self.size)
        with self._operation:
            views, step = self._begin(ALL_TO_ALL, targets[0], 0, 0, NUMPY, dtype)
            step //= self.size

            def take(slots: Sequence[Any], at: int, count: int) -> None:
                mine = self.rank * count
                for other, target in enumerate(targets):
                    np.copyto(target[at : at + count], slots[other][mine : mine + count])

            self._pass_on(len(targets[0]), step, views, _give_parts(sources, np.copyto), take)

    def reduce_scatter(
        self, target: Any, sources: Sequence[object], op: ReduceOp = ReduceOp.SUM, calc: Arithmetic = NUMPY
    ) -> None:
        """Put the sum of all ranks' sources with this rank's number, or their combination by `op`, into the target. All
        have one length."""
        self._get_sum(op, target, calc)
        _check_parts("sources", sources, target, self.size)
        with self._operation:
            views, step = self._begin(REDUCE_SCATTER, target, op, 0, calc)
            step //= self.size
            combine = calc.combine[op]

            def take(slots: Sequence[Any], at: int, count: int) -> None:
                mine, part = self.rank * count, target[at : at + count]
                parts = [slot[mine : mine + count] for slot in slots]
                self._add_up(parts, part, combine, op, calc)

            self._pass_on(len(target), step, views, _give_parts(sources, calc.copy), take)

    def barrier(self) -> None:
        """Wait until all ranks have called this method."""
        with self._operation:
            self._rounds.announce(peer_monitor.pack(BARRIER, 0, 0, ""), 0)
            self._rounds.wait(self._rounds.mark())

    def finish(self, transfer: point_to_point.Transfer, other: int) -> None:
        """Wait until a message has been sent or received."""
        if not transfer.is_done:
            self._operation.wait_for(lambda: transfer.is_done, [other])
        if transfer.error is not None:  # the group stays usable: the message waits for an array of its size
            raise transfer.error

    def find_sender(self, tag: int) -> int:
        """Wait for a message of the tag that no receiver has requested; return its sender."""
        with self._operation:
            others = [other for other in range(self.size) if other != self.rank]
            found: list[int] = []

            def look() -> bool:
                sender = self.messages.find_sender(tag)
                found.extend(() if sender is None else (sender,))
                return bool(found)

            self._rounds.wait_for(look, others)
            return found[0]

    # --- how ----------------------------------------------------------------------------------------------------------

    def _begin(
        self, kind: int, array: Any, op: int, root: int, calc: Arithmetic, dtype: str = ""
    ) -> tuple[list[list[object]], int]:
        """Announce an operation; return the slots by turn and rank, and the number of elements in a slot."""
        key = (kind, op, root, calc.name, array.dtype, dtype)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._look(kind, op, root, calc, array.dtype, dtype)
        doing, itemsize, step, views = known
        self._rounds.announce(doing, itemsize * len(array))
        return views, step

    def _look(self, kind: int, op: int, root: int, calc: Arithmetic, dtype: Any, name: str) -> _Known:
        memory, step = self._rounds.memory.view(), segment.CHUNK_BYTES // dtype.itemsize
        views = [
            [calc.view(memory, dtype, step, segment.find_slot(self.size, turn, rank)) for rank in range(self.size)]
            for turn in range(segment.ROUNDS)
        ]
        return peer_monitor.pack(kind, op, root, name or str(dtype)), dtype.itemsize, step, views

    def _exchange(
        self,
        array: Any,
        count: int,
        step: int,
        views: list[list[Any]],
        give: Callable[[Any, Any], object],
        take: Callable[[Any, Sequence[Any], int], object],
    ) -> None:
        """Exchange chunks with the other ranks. Each chunk is given before the previous one is waited for."""
        rank, rounds = self.rank, self._rounds
        if count <= step:
            slots = views[rounds.seq + 1 & _TURNS]
            give(slots[rank][:count], array)
            rounds.wait(rounds.mark())
            take(array, slots, count)
            return
        given: tuple[Any, Any, int, int] | None = None
        for at in range(0, count, step):
            part = array[at : at + step]
            slots = views[rounds.seq + 1 & _TURNS]
            length = len(part)
            give(slots[rank][:length], part)
            mark = rounds.mark()
            if given is not None:
                rounds.wait(given[3])
                take(given[0], given[1], given[2])
            given = part, slots, length, mark
        assert given is not None
        rounds.wait(given[3])
        take(given[0], given[1], given[2])

    def _gather(self, targets: Sequence[Any], array: Any, step: int, views: list[list[object]]) -> None:
        def give(slot: Any, at: int, count: int) -> None:
            np.copyto(slot[:count], array[at : at + count])

        def take(slots: Sequence[Any], at: int, count: int) -> None:
            for target, slot in zip(targets, slots, strict=False):
                np.copyto(target[at : at + count], slot[:count])

        self._pass_on(len(array), step, views, give, take)

    def _pass_on(
        self,
        length: int,
        step: int,
        views: list[list[object]],
        give: Callable[[object, int, int], None],
        take: Callable[[Sequence[object], int, int], None],
    ) -> None:
        """Exchange chunks as in `_exchange`, for operations whose slots and arrays have different layouts."""
        rounds = self._rounds
        for at in range(0, length, step) or (0,):
            count = min(step, length - at)
            slots = views[rounds.seq + 1 & _TURNS]
            give(slots[self.rank], at, count)
            rounds.wait(rounds.mark())
            take(slots, at, count)

    def _share_out(
        self, array: Any, count: int, step: int, views: list[list[Any]], op: ReduceOp, calc: Arithmetic
    ) -> None:
        """Let each rank add up one part of each chunk, into the first rank's slot; then copy the sum from there."""
        combine, size, rank, rounds = calc.combine[op], self.size, self.rank, self._rounds
        for at in range(0, count, step):
            part = array[at : at + step]
            slots = views[rounds.seq + 1 & _TURNS]
            length = len(part)
            calc.copy(slots[rank][:length], part)
            rounds.wait(rounds.mark())
            first, last = length * rank // size, length * (rank + 1) // size
            if first < last:
                parts = [slot[first:last] for slot in slots]
                self._add_up(parts, parts[0], combine, op, calc)
            rounds.wait(rounds.mark())
            calc.copy(part, slots[0][:length])

    def _add_up(
        self, parts: Sequence[object], out: object, combine: Callable[..., object], op: ReduceOp, calc: Arithmetic
    ) -> None:
        combine(parts[0], parts[1], out=out)
        for part in parts[2:]:
            combine(out, part, out=out)
        if op == ReduceOp.MEAN:
            calc.divide(out, self.size, out=out)

    def _get_sum(self, op: ReduceOp, array: Any, calc: Arithmetic) -> Callable[[object, Sequence[object], int], None]:
        """Return the function from `_build_sum`. Refuse an impossible operation before other ranks see any of it."""
        key = (op, array.dtype, calc.name)
        found = self._sums.get(key)
        if found is None:
            _check_op(op, array, calc)
            found = self._sums[key] = self._build_sum(op, calc)
        return found

    def _build_sum(self, op: ReduceOp, calc: Arithmetic) -> Callable[[object, Sequence[object], int], None]:
        """Return a function that adds up the slots into a part that holds this rank's own numbers."""
        combine, divide, size = calc.combine[op], calc.divide, self.size
        is_mean, is_first = op == ReduceOp.MEAN, self.rank == 0
        other = 1 - self.rank

        def add(part: object, slots: Sequence[Any], count: int) -> None:
            theirs = slots[other][:count]
            # Rank 0's numbers come first in both ranks: products of complex numbers, zeros and NaNs have other bits in
            # the other order.
            if is_first:
                combine(part, theirs, out=part)
            else:
                combine(theirs, part, out=part)
            if is_mean:
                divide(part, 2, out=part)

        def add_all(part: object, slots: Sequence[Any], count: int) -> None:
            self._add_up([slot[:count] for slot in slots], part, combine, op, calc)

        return add if size == 2 else add_all


def _give_parts(sources: Sequence[Any], copy: Callable[[Any, Any], object]) -> Callable[[object, int, int], None]:
    """Return a function that copies a piece of each source into a slot, side by side."""

    def give(slot: Any, at: int, count: int) -> None:
        for other, source in enumerate(sources):
            copy(slot[other * count : (other + 1) * count], source[at : at + count])

    return give


def _check_op(op: ReduceOp, array: Any, calc: Arithmetic) -> None:
    if op == ReduceOp.MEAN and not calc.is_inexact(array.dtype):
        raise TypeError(
            f"op=MEAN needs floats, but received {array.dtype}, whose mean may not be a whole number. Use SUM, then "
            "divide and round."
        )
    if op in arithmetic.BITWISE and calc.is_inexact(array.dtype):
        raise TypeError(arithmetic.explain_bitwise(op, array.dtype))
    one, other = (calc.view(bytearray(array.dtype.itemsize), array.dtype, 1, 0) for _ in range(2))
    try:
        calc.combine[op](one, other, out=one)
    except Exception as error:  # noqa: BLE001 (frameworks raise what they like)
        raise TypeError(
            f"op={op.name} does not support {array.dtype} ({texts.describe(error)}). Convert the tensor first, for "
            "example to float32 or int64."
        ) from None


def _check_parts(name: str, parts: Sequence[Any], array: Any, size: int) -> None:
    """Raise unless there is a part for each rank, of the length of an array."""
    if len(parts) != size or any(len(part) != len(array) for part in parts):
        raise ValueError(
            f"{name} must be {size} parts of {len(array):,} elements, one for each rank, but received "
            f"{[len(part) for part in parts]}."
        )


def _check_root(root: int, size: int) -> None:
    if not 0 <= root < size:
        raise ValueError(f"root must be one of the ranks 0 to {size - 1}, but received {root!r}.")


def _do_nothing(*_: object) -> None:
    pass
