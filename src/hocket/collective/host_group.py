"""The collectives of ranks on one host, through memory that they share.

*How.* A tensor is cut into chunks that fit into a processor's cache. For each chunk a rank copies its part into its slot, leaves a mark, waits for the
marks of the others, and combines what they left with what it has. With two ranks, or little to add, each rank adds up everything for itself; otherwise
each adds up one part for all, and copies the rest. That is the scheme of DeepSpeed's and gloo's shared-memory all-reduce (a symmetric one for small
tensors, reduce-scatter and all-gather for large ones), with marks instead of states, so that a step costs one wait.

*Order.* Sums are made in the order of the ranks, whoever is first, so a run with as many ranks gives the same bits again.

*Slots.* The mark of turn s says that the slot of turn s is full. It also says that its rank is done with turn s - 2, because nobody runs further ahead than by
one turn. A rank fills the slot of turn s after it has seen all marks of turn s - 2, so everybody is done with turn s - 4, which had the same slot: four are
enough, and nobody ever waits for a slot. Marks are reused in the same way.

*Waiting.* For `SPIN_SECONDS` a rank looks again and again, which is what a turn usually takes. Every 16 looks it gives its processor away, and where ranks outnumber the
processors each time: the one that it waits for may want the same, as the kernel likes to wake a process where its waker runs. (Measured: without it two ranks on two cores came
to share one, and a turn took 400 us instead of 20.) Then it says that it sleeps, and sleeps in the kernel until it is woken, and looks ten times a second whether there is still something to wait for.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from hocket import texts
from hocket.collective import arithmetic, boxes, errors, futex, lookout, segment, turns
from hocket.collective.arithmetic import NUMPY, Arithmetic, ReduceOp

Bytes = npt.NDArray[np.uint8]

SPIN_SECONDS = 100e-6
"""How long a rank looks before it sleeps. To be woken takes some 50 us. A guess at twice that."""

LOOK_SECONDS = 0.1
"""How often one who sleeps looks around. It also bounds what a lost wake could cost."""

SYMMETRIC_BYTES = 64 * 1024
"""Up to here three ranks and more add everything for themselves, which takes one wait and not two. A guess."""

ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, GATHER, SCATTER, REDUCE_SCATTER, ALL_TO_ALL, BARRIER = range(
    1, len(lookout.KINDS)
)

_MASK: Final = 0xFFFFFFFF
_TURNS: Final = segment.ROUNDS - 1


_groups: weakref.WeakSet[HostGroup] = weakref.WeakSet()
"""Those of this process."""


def end_all() -> None:
    """Say in all groups of this process that its ranks are done: what others wait for will not come."""
    for group in list(_groups):
        with group._lock:
            group.end()


@final
class HostGroup:
    """Ranks of one host. Made by `hocket.collective.meeting.join`, in each of them.

    Arrays are one-dimensional and contiguous. All ranks call the same methods in the same order, with arrays of one size.

    Args:
        memory: What the ranks share; closed with the group.
        rank: This rank.
        timeout_s: How long it may be waited for a rank.
        names: What messages call the ranks. Default: by their numbers.
    """

    def __init__(
        self, memory: segment.Segment, rank: int, *, timeout_s: float = 1800.0, names: Sequence[int] | None = None
    ) -> None:
        size = memory.size
        self.rank = rank
        self.size = size
        self._memory = memory
        self._marks = memory.words
        self._own_marks = [segment.find_mark(size, turn, rank) for turn in range(segment.ROUNDS)]
        others = [other for other in range(size) if other != rank]
        self._their_marks = [
            [(segment.find_mark(size, turn, other), other) for other in others] for turn in range(segment.ROUNDS)
        ]
        self._desk = segment.find_desk(rank)
        self._sleepers = [2 * (segment.find_desk(other) + segment.ASLEEP) for other in others]
        self._lock = threading.Lock()
        self._turn = _Turn(self)
        self._seq = 0
        self._tag = 0
        self._views: dict[tuple[str, Any], list[list[Any]]] = {}
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(memory.view()))
        self._is_crowded = size > len(os.sched_getaffinity(0))
        self._lookout = lookout.Lookout(memory, rank, timeout_s, names or range(size))
        self.boxes = boxes.Boxes(memory, rank, self._ring)
        self._turns = turns.get_optional_turns()
        self._is_open = True
        _groups.add(self)
        #: Why nothing can be called any more.
        self._end: errors.CollectiveError | None = None

    def close(self) -> None:
        """Leave the group. Whoever waits for this rank gets an error."""
        with self._lock:
            self._give_up(errors.CollectiveError("The group is closed. Make a new one in all ranks."))
            if self._is_open:
                self._is_open = False
                self._views.clear()
                self._lookout.close()
                self.boxes.close()
                self._memory.close()

    def end(self) -> None:
        """Say that this rank's program is over: it can still be asked, but will not come to another operation."""
        if self._is_open and self._end is None:
            lookout.end(self._memory, self.rank)
            self._ring()

    # --- what a rank calls ------------------------------------------------------------------------------------------------

    def all_reduce(self, array: Any, op: ReduceOp = ReduceOp.SUM, calc: Arithmetic = NUMPY) -> None:
        """Put the sum of all ranks' arrays, or what `op` makes of them, into each."""
        count = len(array)
        _check_op(op, array, calc)
        with self._turn:
            views, step = self._begin(ALL_REDUCE, array, op, 0, calc)
            if self.size == 2 or array.dtype.itemsize * count <= SYMMETRIC_BYTES:
                self._exchange(array, count, step, views, calc.copy, self._build_sum(op, calc))
            else:
                self._share_out(array, count, step, views, op, calc)

    def reduce(self, array: Any, root: int, op: ReduceOp = ReduceOp.SUM, calc: Arithmetic = NUMPY) -> None:
        """Put the sum of all ranks' arrays, or what `op` makes of them, into that of the root. The others keep theirs."""
        _check_op(op, array, calc)
        _check_root(root, self.size)
        with self._turn:
            views, step = self._begin(REDUCE, array, op, root, calc)
            combine = self._build_sum(op, calc) if self.rank == root else _do_nothing
            self._exchange(array, len(array), step, views, calc.copy, combine)

    def broadcast(self, array: Bytes, root: int, dtype: str = "u8") -> None:
        """Put the root's array into that of each rank."""

        def take(part: Any, slots: Sequence[Any], count: int) -> None:
            np.copyto(part, slots[root][:count])

        _check_root(root, self.size)
        with self._turn:
            views, step = self._begin(BROADCAST, array, 0, root, NUMPY, dtype)
            if self.rank == root:
                self._exchange(array, len(array), step, views, np.copyto, _do_nothing)
            else:
                self._exchange(array, len(array), step, views, _do_nothing, take)

    def all_gather(self, targets: Sequence[Bytes], array: Bytes, dtype: str = "u8") -> None:
        """Put each rank's array into the target of its number, in all ranks."""
        _check_parts("targets", targets, array, self.size)
        with self._turn:
            views, step = self._begin(ALL_GATHER, array, 0, 0, NUMPY, dtype)
            self._gather(targets, array, step, views)

    def gather(self, targets: Sequence[Bytes], array: Bytes, root: int, dtype: str = "u8") -> None:
        """Put each rank's array into the target of its number, in the root; the others give no targets."""
        _check_root(root, self.size)
        if self.rank == root:
            _check_parts("targets", targets, array, self.size)
        with self._turn:
            views, step = self._begin(GATHER, array, 0, root, NUMPY, dtype)
            self._gather(targets if self.rank == root else (), array, step, views)

    def scatter(self, target: Bytes, sources: Sequence[Bytes], root: int, dtype: str = "u8") -> None:
        """Put the root's source of each rank's number into its target; the others give no sources."""
        _check_root(root, self.size)
        if self.rank == root:
            _check_parts("sources", sources, target, self.size)
        with self._turn:
            views, step = self._begin(SCATTER, target, 0, root, NUMPY, dtype)
            step //= self.size

            def give(slot: Any, at: int, count: int) -> None:
                if self.rank == root:
                    for other, source in enumerate(sources):
                        np.copyto(slot[other * count : (other + 1) * count], source[at : at + count])

            def take(slots: Sequence[Any], at: int, count: int) -> None:
                mine = self.rank * count
                np.copyto(target[at : at + count], slots[root][mine : mine + count])

            self._pass_on(len(target), step, views, give, take)

    def all_to_all(self, targets: Sequence[Bytes], sources: Sequence[Bytes], dtype: str = "u8") -> None:
        """Put the source of this rank's number in each rank into the target of that rank's number. All are of one length."""
        _check_parts("targets", targets, targets[0] if targets else (), self.size)
        _check_parts("sources", sources, targets[0], self.size)
        with self._turn:
            views, step = self._begin(ALL_TO_ALL, targets[0], 0, 0, NUMPY, dtype)
            step //= self.size

            def give(slot: Any, at: int, count: int) -> None:
                for other, source in enumerate(sources):
                    np.copyto(slot[other * count : (other + 1) * count], source[at : at + count])

            def take(slots: Sequence[Any], at: int, count: int) -> None:
                mine = self.rank * count
                for other, target in enumerate(targets):
                    np.copyto(target[at : at + count], slots[other][mine : mine + count])

            self._pass_on(len(targets[0]), step, views, give, take)

    def reduce_scatter(
        self, target: Any, sources: Sequence[Any], op: ReduceOp = ReduceOp.SUM, calc: Arithmetic = NUMPY
    ) -> None:
        """Put the sum of all ranks' sources of this rank's number, or what `op` makes of them, into the target. All are of one length."""
        _check_op(op, target, calc)
        _check_parts("sources", sources, target, self.size)
        with self._turn:
            views, step = self._begin(REDUCE_SCATTER, target, op, 0, calc)
            step //= self.size
            combine = calc.combine[op]

            def give(slot: Any, at: int, count: int) -> None:
                for other, source in enumerate(sources):
                    calc.copy(slot[other * count : (other + 1) * count], source[at : at + count])

            def take(slots: Sequence[Any], at: int, count: int) -> None:
                mine, part = self.rank * count, target[at : at + count]
                parts = [slot[mine : mine + count] for slot in slots]
                self._add_up(parts, part, combine, op, calc)

            self._pass_on(len(target), step, views, give, take)

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        with self._turn:
            self._announce(lookout.pack(BARRIER, 0, 0, ""), 0)
            self._wait(self._mark())

    def finish(self, transfer: boxes.Transfer, other: int) -> None:
        """Wait until a message has been sent, or received.

        Raises:
            CollectiveError: It never will be.
        """
        if not transfer.is_done:
            with self._turn:
                self._await(lambda: transfer.is_done, [other])

    def find_sender(self, tag: int) -> int:
        """Wait until a rank has sent a message of the tag that nobody has asked for; return which."""
        with self._turn:
            others = [other for other in range(self.size) if other != self.rank]
            self._await(lambda: self.boxes.find_sender(tag) is not None, others)
            found = self.boxes.find_sender(tag)
            assert found is not None, "it was just found"
            return found

    # --- how --------------------------------------------------------------------------------------------------------------

    def _begin(
        self, kind: int, array: Any, op: int, root: int, calc: Arithmetic, dtype: str = ""
    ) -> tuple[list[list[Any]], int]:
        """Say what begins; return the slots by turn and rank, and how many elements each has."""
        key = (calc.name, array.dtype)
        views = self._views.get(key)
        size = array.dtype.itemsize
        if views is None:
            views = self._views[key] = self._build_views(calc, array.dtype, segment.CHUNK_BYTES // size)
        self._announce(lookout.pack(kind, op, root, dtype or str(array.dtype)), size * len(array))
        return views, segment.CHUNK_BYTES // size

    def _announce(self, doing: int, amount: int) -> None:
        words, desk = self._marks, self._desk
        words[desk + segment.DOING] = doing
        words[desk + segment.AMOUNT] = amount
        self._tag = (doing * 0x9E3779B97F4A7C15 ^ amount * 0xC2B2AE3D27D4EB4F) >> 17 & _MASK

    def _build_views(self, calc: Arithmetic, dtype: Any, count: int) -> list[list[Any]]:
        memory = self._memory.view()
        return [
            [calc.view(memory, dtype, count, segment.find_slot(self.size, turn, rank)) for rank in range(self.size)]
            for turn in range(segment.ROUNDS)
        ]

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
        rank = self.rank
        if count <= step:
            turn = self._seq + 1 & _TURNS
            slots = views[turn]
            give(slots[rank][:count], array)
            self._wait(self._mark())
            take(array, slots, count)
            return
        given: tuple[Any, Any, int, int] | None = None
        for at in range(0, count, step):
            part = array[at : at + step]
            slots = views[self._seq + 1 & _TURNS]
            length = len(part)
            give(slots[rank][:length], part)
            mark = self._mark()
            if given is not None:
                self._wait(given[3])
                take(given[0], given[1], given[2])
            given = part, slots, length, mark
        assert given is not None
        self._wait(given[3])
        take(given[0], given[1], given[2])

    def _gather(self, targets: Sequence[Any], array: Any, step: int, views: list[list[Any]]) -> None:
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
        views: list[list[Any]],
        give: Callable[[Any, int, int], None],
        take: Callable[[Sequence[Any], int, int], None],
    ) -> None:
        """The same for what is not as long in the slot as outside."""
        for at in range(0, length, step) or (0,):
            count = min(step, length - at)
            slots = views[self._seq + 1 & _TURNS]
            give(slots[self.rank], at, count)
            self._wait(self._mark())
            take(slots, at, count)

    def _share_out(
        self, array: Any, count: int, step: int, views: list[list[Any]], op: ReduceOp, calc: Arithmetic
    ) -> None:
        """Have each rank add up one part of each chunk, in the slot of the first rank, where the others get it."""
        combine, size, rank = calc.combine[op], self.size, self.rank
        for at in range(0, count, step):
            part = array[at : at + step]
            slots = views[self._seq + 1 & _TURNS]
            length = len(part)
            calc.copy(slots[rank][:length], part)
            self._wait(self._mark())
            first, last = length * rank // size, length * (rank + 1) // size
            if first < last:
                parts = [slot[first:last] for slot in slots]
                self._add_up(parts, parts[0], combine, op, calc)
            self._wait(self._mark())
            calc.copy(part, slots[0][:length])

    def _add_up(
        self, parts: Sequence[Any], out: Any, combine: Callable[..., object], op: ReduceOp, calc: Arithmetic
    ) -> None:
        combine(parts[0], parts[1], out=out)
        for part in parts[2:]:
            combine(out, part, out=out)
        if op == ReduceOp.MEAN:
            calc.divide(out, self.size, out=out)

    def _build_sum(self, op: ReduceOp, calc: Arithmetic) -> Callable[[Any, Sequence[Any], int], None]:
        """Return what adds up the slots into a part that has this rank's own numbers."""
        combine, divide, size = calc.combine[op], calc.divide, self.size
        is_mean = op == ReduceOp.MEAN
        other = 1 - self.rank

        def add(part: Any, slots: Sequence[Any], count: int) -> None:
            combine(part, slots[other][:count], out=part)  # of two numbers, either may come first
            if is_mean:
                divide(part, 2, out=part)

        def add_all(part: Any, slots: Sequence[Any], count: int) -> None:
            self._add_up([slot[:count] for slot in slots], part, combine, op, calc)

        return add if size == 2 else add_all

    # --- turns ------------------------------------------------------------------------------------------------------------

    def _mark(self) -> int:
        """Say that this rank's part of the next turn is there; return the turn's mark."""
        self._seq = seq = self._seq + 1 & _MASK
        mark = seq << 32 | self._tag
        self._marks[self._own_marks[seq & _TURNS]] = mark
        futex.fence()
        halves = self._memory.halves
        for place in self._sleepers:
            if halves[place]:
                self._wake(place)
        return mark

    def _ring(self) -> None:
        """Wake all who sleep."""
        futex.fence()
        for place in self._sleepers:
            if self._memory.halves[place]:
                self._wake(place)

    def _wake(self, asleep: int) -> None:
        bell = asleep + 2 * (segment.BELL - segment.ASLEEP)
        self._memory.halves[bell] = self._memory.halves[bell] + 1 & _MASK
        futex.wake(self._start + 4 * bell)

    def _wait(self, mark: int) -> None:
        """Wait until all others have made the same mark."""
        marks = self._marks
        for place, other in self._their_marks[mark >> 32 & _TURNS]:
            if marks[place] != mark:
                self._linger(place, other, mark)

    def _linger(self, place: int, other: int, mark: int) -> None:
        marks, until = self._marks, time.perf_counter() + (SPIN_SECONDS if self._turns is None else 0)
        looks = 1 if self._is_crowded else 16
        while True:
            for _ in range(looks):
                if marks[place] == mark:
                    return
            os.sched_yield()
            if marks[place] >> 32 == mark >> 32 and marks[place] != mark:
                self._fail(self._lookout.build_mismatch(other))
            if time.perf_counter() > until:
                break
        self._sleep_until(lambda: marks[place] >> 32 == mark >> 32, self._list_missing(mark))
        if marks[place] != mark:
            self._fail(self._lookout.build_mismatch(other))

    def _await(self, is_over: Callable[[], bool], others: Sequence[int]) -> None:
        """Move messages until something is so."""
        until = time.perf_counter() + (SPIN_SECONDS if self._turns is None else 0)
        while time.perf_counter() < until:
            self.boxes.progress()
            if is_over():
                return
            os.sched_yield()
        self._sleep_until(is_over, lambda: list(others))

    def _list_missing(self, mark: int) -> Callable[[], list[int]]:
        places = self._their_marks[mark >> 32 & _TURNS]
        return lambda: [other for place, other in places if self._marks[place] >> 32 != mark >> 32]

    def _sleep_until(self, is_over: Callable[[], bool], list_missing: Callable[[], list[int]]) -> None:
        """Sleep until something is so that another rank brings about.

        Raises:
            RankDiedError: It never will be.
            CollectiveTimeoutError: It took too long.
        """
        halves, asleep = self._memory.halves, 2 * (self._desk + segment.ASLEEP)
        bell = 2 * (self._desk + segment.BELL)
        start = time.monotonic()
        self._lookout.begin()
        if self._turns is not None:
            self._take_turns(self._turns, is_over, list_missing, start)
            return
        try:
            while True:
                halves[asleep] = 1
                futex.fence()
                heard = halves[bell]
                if self.boxes.progress() or is_over():
                    if is_over():
                        return
                    continue
                futex.wait(self._start + 4 * bell, heard, LOOK_SECONDS)
                waited = time.monotonic() - start
                if waited > LOOK_SECONDS / 2:
                    self._look_around(is_over, list_missing, waited)
        finally:
            halves[asleep] = 0

    def _look_around(self, is_over: Callable[[], bool], list_missing: Callable[[], list[int]], waited: float) -> None:
        """Raise if there is nothing to wait for any more."""
        if is_over():
            return
        try:
            self._lookout.check(list_missing(), waited)
        except errors.CollectiveError as error:
            self.boxes.progress()  # it may have sent something before it ended
            if not is_over():
                self._fail(error)

    def _take_turns(
        self, ours: turns.Turns, is_over: Callable[[], bool], list_missing: Callable[[], list[int]], start: float
    ) -> None:
        """As `_sleep_until`, where the other ranks are threads of this process."""

        def look() -> bool:
            if self.boxes.progress():
                ours.note_progress()
            self._look_around(is_over, list_missing, time.monotonic() - start)
            return is_over()

        ours.wait(look, f"waits in {self._lookout.describe_own()}", needs_rank=True)

    def _fail(self, error: errors.CollectiveError) -> None:
        self._give_up(error)
        raise error

    def _give_up(self, error: errors.CollectiveError) -> None:
        """Leave the group, unless that is done: whoever waits for this rank gets an error."""
        if self._end is None:
            self._end = error
            lookout.leave(self._memory, self.rank)
            self._ring()


@final
class _Turn:
    """Lets in one thread at a time, and ends a group that an operation was broken off in: the ranks are not at one place any more."""

    def __init__(self, group: HostGroup) -> None:
        self._group = group
        self._lock = group._lock
        #: The last turn that was marked before the operation.
        self._seq = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._seq = self._group._seq
        if self._group._end is not None:
            self._lock.release()
            raise self._group._end

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        group = self._group
        try:
            is_local = group._seq == self._seq and isinstance(error, Exception)  # nothing of it was shown to the others
            if error is not None and not is_local:
                doing, why = group._lookout.describe_own(), texts.describe(error, 1_000)
                group._give_up(
                    errors.CollectiveError(
                        f"This rank has left the group: {doing} was broken off by {why}. Make a new group in all ranks."
                    )
                )
        finally:
            self._lock.release()


_possible: set[tuple[str, Any, int]] = set()
"""What was found to be possible: arithmetic, dtype and operation."""


def _check_op(op: ReduceOp, array: Any, calc: Arithmetic) -> None:
    """Refuse what cannot be computed before the other ranks see anything of it."""
    if op == ReduceOp.MEAN and not calc.is_inexact(array.dtype):
        raise TypeError(
            f"op=MEAN needs floats, but received {array.dtype}, whose mean is no whole number. Use SUM and divide as you want it rounded."
        )
    if op in arithmetic.BITWISE and calc.is_inexact(array.dtype):
        raise TypeError(arithmetic.explain_bitwise(op, array.dtype))
    key = (calc.name, array.dtype, int(op))
    if key not in _possible:
        one, other = (calc.view(bytearray(array.dtype.itemsize), array.dtype, 1, 0) for _ in range(2))
        try:
            calc.combine[op](one, other, out=one)
        except Exception as error:  # noqa: BLE001 (frameworks raise what they like)
            raise TypeError(
                f"op={op.name} cannot be done with {array.dtype} ({texts.describe(error)}). Convert the tensor first, as to float32 or int64."
            ) from None
        _possible.add(key)


def _check_parts(name: str, parts: Sequence[Any], array: Any, size: int) -> None:
    """Check that there is a part for each rank, of the length of an array."""
    if len(parts) != size or any(len(part) != len(array) for part in parts):
        raise ValueError(
            f"{name} must be {size} parts of {len(array):,} elements, one for each rank, but received {[len(part) for part in parts]}."
        )


def _check_root(root: int, size: int) -> None:
    if not 0 <= root < size:
        raise ValueError(f"root must be one of the {size} ranks from 0, but received {root!r}.")


def _do_nothing(*_: object) -> None:
    pass
