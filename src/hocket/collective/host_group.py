"""The collectives of ranks on one host, through memory that they share.

*How.* A tensor is cut into chunks that fit into a processor's cache. For each chunk a rank copies its part into its
slot, leaves a mark, waits for the marks of the others, and combines what they left with what it has. With two ranks, or
little to add, each rank adds up everything for itself; otherwise each adds up one part for all, and copies the rest.
That is the scheme of DeepSpeed's and gloo's shared-memory all-reduce (a symmetric one for small tensors, reduce-scatter
and all-gather for large ones), with marks instead of states, so that a step costs one wait.

*Order.* Sums are made in the order of the ranks, whoever is first, so a run with as many ranks gives the same bits
again.

*Waiting.* `rounds` says how ranks keep step.
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
"""Up to here three ranks and more add everything for themselves, which takes one wait and not two. A guess."""

ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, GATHER, SCATTER, REDUCE_SCATTER, ALL_TO_ALL, BARRIER = range(
    1, len(peer_monitor.KINDS)
)

_TURNS: Final = segment.ROUNDS - 1

_Known: TypeAlias = tuple[int, int, int, list[list[object]]]
"""An operation in a word, bytes and elements of a slot, and the slots by turn and rank."""

_groups: weakref.WeakSet[HostGroup] = weakref.WeakSet()
"""Those of this process."""


def end_all() -> None:
    """Say in all groups of this process that its ranks are done: what others wait for will not come."""
    for group in list(_groups):
        group.end()


@final
class HostGroup:
    """Ranks of one host. Made by `hocket.collective.rendezvous.join`, in each of them.

    Arrays are one-dimensional and contiguous. All ranks call the same methods in the same order, with arrays of one
    size.

    Args:
        memory: What the ranks share; closed with the group.
        rank: This rank.
        timeout_s: How long it may be waited for a rank.
        names: What messages call the ranks. Default: by their numbers.
    """

    def __init__(
        self, memory: segment.Segment, rank: int, *, timeout_s: float = 1800.0, names: Sequence[int] | None = None
    ) -> None:
        self.rank = rank
        self.size = memory.size
        self._rounds = rounds.Rounds(memory, rank, timeout_s, names or range(self.size))
        self.messages = self._rounds.messages
        self._operation = self._rounds.operation
        #: Checked pairs of operation and dtype: a call of 4 KB looks its pair up here.
        self._known: dict[object, _Known] = {}
        self._sums: dict[object, Callable[[object, Sequence[object], int], None]] = {}
        _groups.add(self)

    def close(self) -> None:
        """Leave the group. A rank that waits for this one gets an error."""
        self._rounds.close()
        self._known.clear()

    def end(self) -> None:
        """Say that this rank's program is over: it can still be asked, but will not come to another operation."""
        self._rounds.end()

    # --- what a rank calls --------------------------------------------------------------------------------------------

    def all_reduce(self, array: Any, op: ReduceOp = ReduceOp.SUM, calc: Arithmetic = NUMPY) -> None:
        """Put the sum of all ranks' arrays, or what `op` makes of them, into each."""
        count = len(array)
        combine = self._get_sum(op, array, calc)
        with self._operation:
            views, step = self._begin(ALL_REDUCE, array, op, 0, calc)
            if self.size == 2 or array.dtype.itemsize * count <= SYMMETRIC_BYTES:
                self._exchange(array, count, step, views, calc.copy, combine)
            else:
                self._share_out(array, count, step, views, op, calc)

    def reduce(self, array: Any, root: int, op: ReduceOp = ReduceOp.SUM, calc: Arithmetic = NUMPY) -> None:
        """Put the sum of all ranks' arrays, or what `op` makes of them, into that of the root. The others keep
        theirs."""
        combine = self._get_sum(op, array, calc)
        _check_root(root, self.size)
        with self._operation:
            views, step = self._begin(REDUCE, array, op, root, calc)
            self._exchange(array, len(array), step, views, calc.copy, combine if self.rank == root else _do_nothing)

    def broadcast(self, array: Bytes, root: int, dtype: str = "u8") -> None:
        """Put the root's array into that of each rank."""

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
        """Put each rank's array into the target of its number, in all ranks."""
        _check_parts("targets", targets, array, self.size)
        with self._operation:
            views, step = self._begin(ALL_GATHER, array, 0, 0, NUMPY, dtype)
            self._gather(targets, array, step, views)

    def gather(self, targets: Sequence[Bytes], array: Bytes, root: int, dtype: str = "u8") -> None:
        """Put each rank's array into the target of its number, in the root; the others give no targets."""
        _check_root(root, self.size)
        if self.rank == root:
            _check_parts("targets", targets, array, self.size)
        with self._operation:
            views, step = self._begin(GATHER, array, 0, root, NUMPY, dtype)
            self._gather(targets if self.rank == root else (), array, step, views)

    def scatter(self, target: Bytes, sources: Sequence[Bytes], root: int, dtype: str = "u8") -> None:
        """Put the root's source of each rank's number into its target; the others give no sources."""
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
        """Put the source of this rank's number in each rank into the target of that rank's number. All are of one
        length."""
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
        """Put the sum of all ranks' sources of this rank's number, or what `op` makes of them, into the target. All are
        of one length."""
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
        """Return when all ranks have called it."""
        with self._operation:
            self._rounds.announce(peer_monitor.pack(BARRIER, 0, 0, ""), 0)
            self._rounds.wait(self._rounds.mark())

    def finish(self, transfer: point_to_point.Transfer, other: int) -> None:
        """Wait until a message has been sent, or received."""
        if not transfer.is_done:
            self._operation.wait_for(lambda: transfer.is_done, [other])
        if transfer.error is not None:  # the group goes on: the message waits for an array of its size
            raise transfer.error

    def find_sender(self, tag: int) -> int:
        """Wait until a rank has sent a message of the tag that nobody has asked for; return which."""
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
        """Say what begins; return the slots by turn and rank, and how many elements each has."""
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
        """Give each chunk to the others and take theirs; the next one is given before this one is waited for."""
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
        """The same for what is not as long in the slot as outside."""
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
        """Have each rank add up one part of each chunk, in the slot of the first rank, where the others get it."""
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
        """Return what `_build_sum` does. Refuse what cannot be computed before the other ranks see anything of it."""
        key = (op, array.dtype, calc.name)
        found = self._sums.get(key)
        if found is None:
            _check_op(op, array, calc)
            found = self._sums[key] = self._build_sum(op, calc)
        return found

    def _build_sum(self, op: ReduceOp, calc: Arithmetic) -> Callable[[object, Sequence[object], int], None]:
        """Return what adds up the slots into a part that has this rank's own numbers."""
        combine, divide, size = calc.combine[op], calc.divide, self.size
        is_mean, is_first = op == ReduceOp.MEAN, self.rank == 0
        other = 1 - self.rank

        def add(part: object, slots: Sequence[Any], count: int) -> None:
            theirs = slots[other][:count]
            # Rank 0's come first in both: products of complex numbers, zeros and NaNs have other bits the other way
            # round.
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
    """Return what lays a piece of each source side by side into a slot."""

    def give(slot: Any, at: int, count: int) -> None:
        for other, source in enumerate(sources):
            copy(slot[other * count : (other + 1) * count], source[at : at + count])

    return give


def _check_op(op: ReduceOp, array: Any, calc: Arithmetic) -> None:
    if op == ReduceOp.MEAN and not calc.is_inexact(array.dtype):
        raise TypeError(
            f"op=MEAN needs floats, but received {array.dtype}, whose mean is no whole number. Use SUM and divide as "
            "you want it rounded."
        )
    if op in arithmetic.BITWISE and calc.is_inexact(array.dtype):
        raise TypeError(arithmetic.explain_bitwise(op, array.dtype))
    one, other = (calc.view(bytearray(array.dtype.itemsize), array.dtype, 1, 0) for _ in range(2))
    try:
        calc.combine[op](one, other, out=one)
    except Exception as error:  # noqa: BLE001 (frameworks raise what they like)
        raise TypeError(
            f"op={op.name} cannot be done with {array.dtype} ({texts.describe(error)}). Convert the tensor first, "
            "as to float32 or int64."
        ) from None


def _check_parts(name: str, parts: Sequence[Any], array: Any, size: int) -> None:
    """Check that there is a part for each rank, of the length of an array."""
    if len(parts) != size or any(len(part) != len(array) for part in parts):
        raise ValueError(
            f"{name} must be {size} parts of {len(array):,} elements, one for each rank, but received "
            f"{[len(part) for part in parts]}."
        )


def _check_root(root: int, size: int) -> None:
    if not 0 <= root < size:
        raise ValueError(f"root must be one of the {size} ranks from 0, but received {root!r}.")


def _do_nothing(*_: object) -> None:
    pass
