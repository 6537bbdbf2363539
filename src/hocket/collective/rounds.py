"""The ranks' marks for each other, their waits, and the end of a group: how ranks of one host keep step.

*Slots.* A rank's mark of turn s means that its slot of turn s is full. It also means that the rank is done with turn
s - 2, because no rank runs ahead by more than one turn. A rank fills the slot of turn s after it has seen all marks of
turn s - 2. So all ranks are done with turn s - 4, which used the same slot. Hence four slots are enough, and no rank
ever waits for a slot. Marks are reused in the same way.

*Waiting.* For `SPIN_SECONDS`, the usual time of a turn, a rank looks again and again. It yields its processor after
every 16 looks, or after each look where ranks outnumber processors: the awaited rank may need the same processor,
because the operating system likes to wake a process where its waker runs. (Measured: without the yield, two ranks on
two cores came to share one, and a turn took 400 us instead of 20.) Then the rank sets its sleep flag, and sleeps in the
operating system until a wake. Ten times a second it checks whether the others can still come.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, final

from hocket._base import spending, texts
from hocket.collective import errors, futex, peer_monitor, point_to_point, segment, turns

SPIN_SECONDS = 100e-6
"""Seconds that a rank looks before it sleeps. A wake takes some 50 us. A guess at twice that."""

LOOK_SECONDS = 0.1
"""Seconds between two checks of a sleeping rank. They also bound the cost of a lost wake."""

SHARED_SECONDS = 0.005
"""Seconds between two looks of a thread at its message while another thread is in an operation. A guess."""

_MASK: Final = 0xFFFFFFFF
_TURNS: Final = segment.ROUNDS - 1


@final
class Rounds:
    """One rank's marks, and its waits for those of the others.

    Args:
        memory: The ranks' segment; closed with this object.
        rank: This rank.
        timeout_s: The seconds that an operation may wait for a rank.
        names: The ranks' names in messages.
    """

    def __init__(self, memory: segment.Segment, rank: int, timeout_s: float, names: Sequence[int]) -> None:
        size = memory.size
        self.memory = memory
        self.rank = rank
        #: The number of the last mark that this rank made.
        self.seq = 0
        self.lock = threading.Lock()
        #: The context of an operation: one at a time.
        self.operation = _Operation(self)
        #: The error that made the group unusable.
        self.error: errors.CollectiveError | None = None
        self._tag = 0
        self._doing = self._amount = -1
        self._marks = memory.words
        self._own_marks = [segment.find_mark(size, turn, rank) for turn in range(segment.ROUNDS)]
        others = [other for other in range(size) if other != rank]
        self._their_marks = [
            [(segment.find_mark(size, turn, other), other) for other in others] for turn in range(segment.ROUNDS)
        ]
        self._header = segment.find_header(rank)
        self._sleepers = [2 * (segment.find_header(other) + segment.ASLEEP) for other in others]
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(memory.view()))
        self._is_crowded = size > len(os.sched_getaffinity(0))
        self._monitor = peer_monitor.PeerMonitor(memory, rank, timeout_s, names)
        self.messages = point_to_point.PointToPoint(memory, rank, self.wake_all)
        self._turns = turns.get_optional_turns()
        self._is_open = True

    def close(self) -> None:
        """Leave the group, and close its memory."""
        with self.lock:
            self.give_up(errors.CollectiveError("The group is closed. Make a new one in all ranks."))
            if self._is_open:
                self._is_open = False
                self._monitor.close()
                self.messages.close()
                self.memory.close()

    def end(self) -> None:
        """Note that this rank's program is over: it still answers questions, but comes to no other operation."""
        with self.lock:
            if self._is_open and self.error is None:
                peer_monitor.end(self.memory, self.rank)
                self.wake_all()

    def announce(self, doing: int, amount: int) -> None:
        """Announce an operation, packed by `peer_monitor.pack`, and the number of its bytes."""
        if doing == self._doing and amount == self._amount:  # as in a loop over one tensor
            return
        self._doing, self._amount = doing, amount
        words, header = self._marks, self._header
        words[header + segment.DOING] = doing
        words[header + segment.AMOUNT] = amount
        # Ranks in different operations of the same turn make different marks.
        self._tag = (doing * 0x9E3779B97F4A7C15 ^ amount * 0xC2B2AE3D27D4EB4F) >> 17 & _MASK

    def describe(self) -> str:
        """Return this rank's operation as text."""
        return self._monitor.describe_own()

    def mark(self) -> int:
        """Mark that this rank's part of the next turn is there; return the turn's mark."""
        self.seq = seq = self.seq + 1 & _MASK
        mark = seq << 32 | self._tag
        if not futex.IS_ORDERED:
            futex.order()  # this rank's reads and writes come before its mark
        self._marks[self._own_marks[seq & _TURNS]] = mark
        # The mark must be visible before the sleep flags are read, or a wake could be lost.
        futex.fence()
        halves = self.memory.halves
        for place in self._sleepers:
            if halves[place]:
                self._wake(place)
        return mark

    def wake_all(self) -> None:
        """Wake all sleeping ranks."""
        futex.fence()
        for place in self._sleepers:
            if self.memory.halves[place]:
                self._wake(place)

    def _wake(self, asleep: int) -> None:
        bell = asleep + 2 * (segment.BELL - segment.ASLEEP)
        self.memory.halves[bell] = self.memory.halves[bell] + 1 & _MASK
        futex.wake(self._start + 4 * bell)

    def wait(self, mark: int) -> None:
        """Wait until all other ranks have made the same mark."""
        marks = self._marks
        for place, other in self._their_marks[mark >> 32 & _TURNS]:
            if marks[place] != mark:
                begun = time.perf_counter()
                try:
                    self._linger(place, other, mark)
                finally:
                    spending.OWN.wait += time.perf_counter() - begun
        if not futex.IS_ORDERED:
            futex.order()  # the others' data are read after their marks

    def _linger(self, place: int, other: int, mark: int) -> None:
        marks, until = self._marks, time.perf_counter() + (SPIN_SECONDS if self._turns is None else 0)
        looks = 1 if self._is_crowded else 16
        while True:
            for _ in range(looks):
                if marks[place] == mark:
                    return
            os.sched_yield()
            # Same turn, other tag: the rank is in another operation.
            if marks[place] >> 32 == mark >> 32 and marks[place] != mark:
                self._fail(self._monitor.build_mismatch(other))
            if time.perf_counter() > until:
                break
        self._sleep_until(lambda: marks[place] >> 32 == mark >> 32, self._list_missing(mark))
        if marks[place] != mark:
            self._fail(self._monitor.build_mismatch(other))

    def wait_for(self, is_over: Callable[[], bool], others: Sequence[int]) -> None:
        """Move messages until the condition `is_over` holds, which one of the ranks `others` brings about."""
        until = time.perf_counter() + (SPIN_SECONDS if self._turns is None else 0)
        while time.perf_counter() < until:
            self.messages.progress()
            if is_over():
                return
            os.sched_yield()
        begun = time.perf_counter()
        try:
            self._sleep_until(is_over, lambda: list(others))
        finally:
            spending.OWN.wait += time.perf_counter() - begun

    def _list_missing(self, mark: int) -> Callable[[], list[int]]:
        places = self._their_marks[mark >> 32 & _TURNS]
        return lambda: [other for place, other in places if self._marks[place] >> 32 != mark >> 32]

    def _sleep_until(self, is_over: Callable[[], bool], list_missing: Callable[[], list[int]]) -> None:
        """Sleep until the condition `is_over` holds, which another rank brings about."""
        halves, asleep = self.memory.halves, 2 * (self._header + segment.ASLEEP)
        bell = 2 * (self._header + segment.BELL)
        start = time.monotonic()
        self._monitor.begin()
        if self._turns is not None:
            self._take_turns(self._turns, is_over, list_missing, start)
            return
        try:
            while True:
                halves[asleep] = 1
                futex.fence()
                # A bell that rings after this read makes the futex return at once.
                heard = halves[bell]
                if self.messages.progress() or is_over():
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
        """Raise if the missing ranks can no longer come."""
        if is_over():
            return
        try:
            self._monitor.check(list_missing(), waited)
        except errors.CollectiveError as error:
            self.messages.progress()  # the rank may have sent a message before it ended
            if not is_over():
                self._fail(error)

    def _take_turns(
        self, ours: turns.Turns, is_over: Callable[[], bool], list_missing: Callable[[], list[int]], start: float
    ) -> None:
        """Wait like `_sleep_until`, where the other ranks are threads of this process."""

        def look() -> bool:
            if self.messages.progress():
                ours.note_progress()
            self._look_around(is_over, list_missing, time.monotonic() - start)
            return is_over()

        ours.wait(look, f"waits in {self._monitor.describe_own()}", needs_rank=True)

    def _fail(self, error: errors.CollectiveError) -> None:
        self.give_up(error)
        raise error

    def give_up(self, error: errors.CollectiveError) -> None:
        """Leave the group, unless this rank has left already. A rank that waits for this one gets an error."""
        if self.error is None:
            self.error = error
            peer_monitor.leave(self.memory, self.rank)
            self.wake_all()


@final
class _Operation:
    """A lock that lets in one thread at a time.

    If an operation is broken off, its ranks are no longer at one place, so the group ends.
    """

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._lock = rounds.lock
        #: The last turn marked before the operation.
        self._seq = 0
        self._begun = 0.0

    def wait_for(self, is_over: Callable[[], bool], others: Sequence[int]) -> None:
        """Move messages until the condition `is_over` holds, which one of the ranks `others` brings about. Another
        thread in an operation moves all messages, so the condition may come to hold without this thread's turn."""
        while not self._lock.acquire(timeout=SHARED_SECONDS):
            if is_over():
                return
        self._begin()
        with contextlib.ExitStack() as stack:
            stack.push(self)
            self._rounds.wait_for(is_over, others)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._begin()

    def _begin(self) -> None:
        self._begun = time.perf_counter()
        self._seq = self._rounds.seq
        if self._rounds.error is not None:
            self._lock.release()
            raise self._rounds.error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        rounds, spent = self._rounds, spending.OWN
        spent.collective += time.perf_counter() - self._begun
        spent.operations += 1
        if error is None:
            self._lock.release()
            return
        try:
            is_local = rounds.seq == self._seq and isinstance(error, Exception)  # the others have seen no part of it
            if not is_local:
                doing, why = rounds.describe(), texts.describe(error, 1_000)
                rounds.give_up(
                    errors.CollectiveError(
                        f"This rank has left the group: {doing} was interrupted by {why}. Make a new group in all "
                        "ranks."
                    )
                )
        finally:
            self._lock.release()
