"""The gate for pulls and pushes: it bounds how far workers run ahead of each other.

A worker *enters* when it pulls; the gate notes the version that it reads. The worker *leaves* when its push was
applied; the gate then increments the version. A push's **staleness** is the number of other pushes applied between the
two. The gate counts the staleness of each push. With a bound, it never exceeds `max_staleness`.

Deadlines keep the bound without deadlock. A worker that read version v must be applied while at most
``v + max_staleness`` pushes were: that is its deadline. The gate admits a pull, and grants a push, only if all other
workers can still meet their deadlines, one after the other in the order of deadlines (Jackson's rule: if any order
meets all deadlines, that order does). The worker with the earliest deadline can always be granted, so some worker can
always go on. With ``max_staleness=0`` one worker at a time is inside.

The bound is that of the stale synchronous parallel model (Ho et al., "More Effective Distributed ML via a Stale
Synchronous Parallel Parameter Server", 2013), counted in pushes instead of in each worker's clock: the number of pushes
that a gradient misses, from any worker.

**Synchronous steps** are the alternative: all workers compute from the same version, and the mean of their gradients is
applied. A step takes the first N of M gradients, so that M - N backup workers may be slow (Chen, Pan, Monga, Bengio and
Jozefowicz, "Revisiting Distributed Synchronous SGD", 2016); the gate drops and counts later gradients. The worker that
brings the last gradient of a step closes the step; if that worker dies first, the next waiting worker closes it.

The state lies in memory of its own, under a robust mutex. The coordinator removes a worker that died inside. Numbers
that must change together (the version, the histogram and the log of one push) are first written to a journal: if a
worker dies in the middle, the next process that takes the mutex finishes the change.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from hocket._base import showing
from hocket.collective import futex
from hocket.ps import errors
from hocket.ps.stores import memory, mutex
from hocket.ps.stores.memory import Array

ASKABLE: Final = frozenset(
    {
        *("version", "late", "skipped", "enter", "grant", "leave", "note_skipped", "forget", "get_reading"),
        *(
            "enter_round",
            "get_round",
            "arrive",
            "claim_round",
            "list_arrived",
            "close_round",
            "set_idle",
            "set_workers",
            "set_version",
        ),
        *("get_histogram", "get_log"),
    }
)
"""The names in `Gate` that a process on another machine may use, through the first server."""

MAX_WORKERS: Final = 1024

_NO_WORKER: Final = MAX_WORKERS + 1
"""The closer of a step, if the coordinator closes it."""

UNBOUNDED: Final = -1

_OUTSIDE: Final = -1
_MUST_CLOSE: Final = -2

WAITS, CLOSES, COMES_LATE = range(3)
"""The outcomes for a worker that has brought its gradient to a synchronous step."""

_HISTOGRAM: Final = 1024
"""Number of counters in the histogram, one for each staleness; the last counts all larger ones."""

LOG_ROWS: Final = 1 << 22
"""Number of pushes in the log, which keeps the newest. Each takes 32 bytes; the unused part takes no memory."""

VERSION, BOUND, HIGHEST, LOGGED, IS_LOGGING, NEEDED, CLOSER, LATE, SKIPPED, WORKERS, PENDING = range(11)
"""Words: pushes or steps applied; the bound; one more than the highest worker seen; pushes logged; whether pushes are
logged; gradients that a synchronous step needs (0: steps are not synchronous); the worker that closes the step, plus
one (0: none); gradients that came too late; pushes skipped because of NaN; number of workers; number of changes pending
in the journal."""

_HOLD_SECONDS: Final = 0.001
"""Seconds that a process sleeps between two attempts to hold the gate. A push takes a millisecond or so, and does not
ring the bell when there is no bound."""

_SLICE_SECONDS: Final = 0.5
"""Seconds that a sleep lasts at most: a waiter looks again even if no other process wakes it. A guess."""

Change = tuple[int, int]
"""The place of one of the gate's numbers, and its new value."""


def _plan() -> memory.SegmentPlan:
    layout = memory.SegmentPlan()
    layout.add("mutex", (mutex.MUTEX_BYTES,), np.uint8)
    layout.add("words", (16,), np.int64)
    layout.add("bell", (16,), np.uint32)
    layout.add("readings", (MAX_WORKERS,), np.int64)
    layout.add("is_granted", (MAX_WORKERS,), np.uint8)
    layout.add("is_idle", (MAX_WORKERS,), np.uint8)
    layout.add("arrivals", (MAX_WORKERS,), np.int64)
    layout.add("accepted", (MAX_WORKERS, 2), np.int64)
    layout.add("histogram", (_HISTOGRAM,), np.int64)
    layout.add("journal", (4 * MAX_WORKERS + 16, 2), np.int64)
    layout.add("log", (LOG_ROWS, 4), np.int64)
    return layout


def build(kept: memory.Memory, settings: Settings) -> None:
    """Initialise a gate in new memory. The process that made the memory calls this once."""
    arrays = _plan().view(kept)
    mutex.build(int(arrays["mutex"].ctypes.data))
    arrays["words"][BOUND] = UNBOUNDED if settings.max_staleness is None else settings.max_staleness
    arrays["words"][IS_LOGGING] = settings.is_logging
    arrays["words"][NEEDED] = settings.needed
    arrays["words"][WORKERS] = settings.num_workers
    arrays["readings"].fill(_OUTSIDE)
    arrays["arrivals"].fill(_OUTSIDE)
    arrays["accepted"].fill(_OUTSIDE)


def count_bytes() -> int:
    """Return the size of a gate's memory; most of it is never touched."""
    return _plan().nbytes


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """The initial settings of a gate."""

    max_staleness: int | None
    needed: int
    """Number of gradients that a synchronous step needs. 0: no synchronous steps."""
    is_logging: bool
    num_workers: int


@final
class Journal:
    """Atomic changes of several numbers in shared memory: all or none, even if their process is killed.

    A change is first written down, then counted, then done. Its places and values are absolute, so it can be done
    again: the next process that gets a dead process's lock finishes the counted changes. The caller holds the lock.

    Args:
        numbers: All numbers that can change, and the journal itself: 64-bit integers.
        begin: The index in `numbers` where the journal begins; each change takes two numbers.
        pending: The index of the number that counts the pending changes.
    """

    def __init__(self, numbers: memoryview[int], begin: int, pending: int) -> None:
        self._numbers, self._begin, self._pending = numbers, begin, pending

    def change(self, *changes: Change) -> None:
        """Set numbers, all or none of them."""
        numbers, at = self._numbers, self._begin
        for place, value in changes:
            numbers[at], numbers[at + 1] = place, value
            at += 2
        numbers[self._pending] = len(changes)
        self.finish()

    def finish(self) -> None:
        """Do the pending changes. A second call changes nothing."""
        numbers, begin, pending = self._numbers, self._begin, self._pending
        for at in range(begin, begin + 2 * numbers[pending], 2):
            numbers[numbers[at]] = numbers[at + 1]
        numbers[pending] = 0


@final
class Gate:
    """The gate, as one process sees it. A pull or a push waits at most `timeout_s` seconds.

    Raises:
        OSError: This process does not share memory with the gate's owner.
    """

    def __init__(self, ref: memory.MemoryRef, timeout_s: float) -> None:
        kept = memory.open_memory(ref)
        arrays = _plan().view(kept)
        self._words = arrays["words"]
        self._bell = arrays["bell"]
        self._bell_address = int(self._bell.ctypes.data)
        self._readings = arrays["readings"]
        self._is_granted = arrays["is_granted"].view(np.bool_)
        self._is_idle = arrays["is_idle"].view(np.bool_)
        self._arrivals = arrays["arrivals"]  # by worker: the step whose gradient the worker has brought
        self._accepted = arrays["accepted"]  # by worker: the ticket of its last gradient: closure and turn
        self._histogram = arrays["histogram"]
        self._log = arrays["log"]
        self._timeout_s = timeout_s
        start = kept.address
        at = {name: (int(array.ctypes.data) - start) // 8 for name, array in arrays.items()}
        self._word_at, self._reading_at, self._arrival_at = at["words"], at["readings"], at["arrivals"]
        self._accepted_at, self._histogram_at = at["accepted"], at["histogram"]
        self._log_at = at["log"]
        numbers = kept.view(0, (count_bytes() // 8,), np.int64).data
        self._journal = Journal(numbers, at["journal"], self._word_at + PENDING)
        self._mutex = mutex.Mutex(int(arrays["mutex"].ctypes.data), "the gate", timeout_s, lambda: self._journal.finish)

    @property
    def version(self) -> int:
        """Number of pushes that have left."""
        return int(self._words[VERSION])

    # -- synchronous steps --

    def get_round(self, worker: int, closure: int, turn: int) -> int:
        """Return the step that a worker's gradient is for. -1: the gradient is for no step, because the worker has not
        pulled since its last gradient, or this gradient was counted before. See `leave` for the arguments."""
        is_repeated = (closure, turn) <= (int(self._accepted[worker, 0]), int(self._accepted[worker, 1]))
        return _OUTSIDE if is_repeated else int(self._readings[worker])

    def arrive(self, worker: int, closure: int, turn: int) -> int:
        """Note that a worker's gradient is in its boxes; return the outcome. See `leave` for the arguments.

        Returns:
            `WAITS`: the step needs more gradients. `CLOSES`: this worker must close the step. `COMES_LATE`: the step is
            over, or the gradient was counted before.
        """
        with self._mutex:
            words = self._words
            version = int(words[VERSION])
            is_repeated = (closure, turn) <= (int(self._accepted[worker, 0]), int(self._accepted[worker, 1]))
            if is_repeated or self._readings[worker] != version or self._arrivals[worker] == version or self._is_full():
                late = int(words[LATE]) + (not is_repeated)
                self._journal.change((self._word_at + LATE, late), (self._reading_at + worker, _OUTSIDE))
                return COMES_LATE
            self._journal.change(
                (self._reading_at + worker, _OUTSIDE),
                *self._accept(worker, closure, turn),
                (self._arrival_at + worker, version),
            )
            if not self._is_full():
                return WAITS
            words[CLOSER] = worker + 1
            return CLOSES

    def claim_round(self) -> bool:
        """Tell whether the caller, which is no worker, must close the step: it is full, and no worker is closing it."""
        with self._mutex:
            must_close = self._is_full() and not self._words[CLOSER]
            if must_close:
                self._words[CLOSER] = _NO_WORKER
            return must_close

    def list_arrived(self) -> tuple[int, list[int]]:
        """Return the step's number, and the workers that have brought a gradient to it, rising."""
        with self._mutex:
            version = int(self._words[VERSION])
            return version, [int(worker) for worker in np.flatnonzero(self._arrivals == version)]

    def close_round(self, version: int) -> None:
        """Note that a step was applied. A second call does nothing."""
        with self._mutex:
            if self._words[VERSION] == version:
                arrived = np.flatnonzero(self._arrivals == version)
                self._journal.change(
                    (self._histogram_at, int(self._histogram[0]) + len(arrived)),
                    *self._log_pushes([(int(worker), version, version) for worker in arrived]),
                    (self._word_at + CLOSER, 0),
                    (self._word_at + VERSION, version + 1),
                )
            self._bell[0] += 1
        self._wake()

    def enter_round(self, worker: int) -> bool:
        """Wait until this worker may pull for the next step.

        Returns whether the worker must close the current step, because its closer has died.
        """
        return bool(self._wait(worker, self._try_enter_round) == _MUST_CLOSE)

    def set_idle(self, worker: int, is_idle: bool) -> None:
        """Note that a worker has no work, or has work again. A step does not wait for a worker without work."""
        with self._mutex:
            self._is_idle[worker] = is_idle
            self._bell[0] += 1
        self._wake()

    def set_version(self, version: int) -> None:
        """Continue counting from a checkpoint's version. Called while no worker trains."""
        with self._mutex:
            self._words[VERSION] = version
            self._arrivals.fill(_OUTSIDE)

    def set_workers(self, count: int) -> None:
        """Set the number of workers."""
        with self._mutex:
            self._words[WORKERS] = count
            if self._words[CLOSER] == _NO_WORKER:  # a coordinator before this one; a repeated close changes nothing
                self._words[CLOSER] = 0
            self._bell[0] += 1
        self._wake()

    def _is_full(self) -> bool:
        words = self._words
        has_arrived = self._arrivals == words[VERSION]
        count = int(np.count_nonzero(has_arrived))
        if count >= words[NEEDED]:
            return True
        return count > 0 and count + int(np.count_nonzero(self._is_idle & ~has_arrived)) >= words[WORKERS]

    def _try_enter_round(self, worker: int) -> bool:
        words = self._words
        words[HIGHEST] = max(int(words[HIGHEST]), worker + 1)
        if not self._is_full():
            if self._arrivals[worker] == words[VERSION]:
                return False
            self._readings[worker] = words[VERSION]
            return True
        if words[CLOSER]:
            return False
        words[CLOSER] = worker + 1
        self._readings[worker] = _MUST_CLOSE
        return True

    # -- asynchronous pushes --

    def enter(self, worker: int) -> int:
        """Wait until this worker may pull; return the version that it reads.

        Raises:
            PushTimeoutError: Other workers are inside, and do not leave in time.
        """
        return self._wait(worker, self._try_enter)

    def grant(self, worker: int) -> None:
        """Wait until this worker's push may be applied.

        Raises:
            PushTimeoutError: Another worker's push must be applied first, and does not come in time.
        """
        self._wait(worker, self._try_grant)

    def leave(self, worker: int, closure: int, turn: int) -> int:
        """Note that a push was applied; return its staleness.

        A repeated push, from a worker that repeats the closure of a dead one, counts nothing. `closure` and `turn` are
        those of the push's ticket.
        """
        with self._mutex:
            version = int(self._words[VERSION])
            reading = int(self._readings[worker])
            staleness = 0
            if (closure, turn) <= (int(self._accepted[worker, 0]), int(self._accepted[worker, 1])):
                self._readings[worker] = _OUTSIDE
            else:
                staleness = version - reading if reading >= 0 else 0
                place = min(staleness, _HISTOGRAM - 1)
                self._journal.change(
                    *self._accept(worker, closure, turn),
                    (self._histogram_at + place, int(self._histogram[place]) + 1),
                    *self._log_pushes([(worker, reading, version)]),
                    (self._reading_at + worker, _OUTSIDE),
                    (self._word_at + VERSION, version + 1),
                )
            self._is_granted[worker] = False
            self._bell[0] += 1
        self._wake()
        return staleness

    def forget(self, worker: int) -> None:
        """Let the other workers go on without a worker that died, or that will not push."""
        with self._mutex:
            self._readings[worker] = _OUTSIDE
            self._is_granted[worker] = False
            if self._words[CLOSER] == worker + 1:
                self._words[CLOSER] = 0
            self._bell[0] += 1
        self._wake()

    def get_reading(self, worker: int) -> int:
        """Return the version that a worker inside has read; the current version if the worker is outside."""
        reading = int(self._readings[worker])
        return reading if reading != _OUTSIDE else self.version

    @property
    def late(self) -> int:
        """Number of gradients that came too late for their synchronous step."""
        return int(self._words[LATE])

    @property
    def skipped(self) -> int:
        """Number of pushes skipped because a gradient was not finite."""
        return int(self._words[SKIPPED])

    def note_skipped(self) -> None:
        """Count a skipped push."""
        with self._mutex:
            self._words[SKIPPED] += 1

    @contextlib.contextmanager
    def held(self) -> Iterator[int]:
        """Keep pushes of gradients out during the ``with`` block, after those begun have ended; yield the version."""
        while True:
            heard = int(self._bell[0])
            futex.fence()
            with self._mutex:
                if not self._is_granted.any() and not self._words[CLOSER]:
                    yield int(self._words[VERSION])
                    return
            futex.wait(self._bell_address, heard, _HOLD_SECONDS)

    def get_histogram(self) -> dict[int, int]:
        """Return the number of pushes by staleness."""
        with self._mutex:
            return {int(staleness): int(self._histogram[staleness]) for staleness in np.flatnonzero(self._histogram)}

    def describe(self) -> showing.Facts:
        """Return the facts that viewers show, read without the mutex."""
        bound, needed = int(self._words[BOUND]), int(self._words[NEEDED])
        count = int(self._words[HIGHEST])
        return {
            "version": self.version,
            "staleness": [[int(at), int(self._histogram[at])] for at in np.flatnonzero(self._histogram)],
            "max_staleness": None if bound == UNBOUNDED else bound,
            "needed": needed,
            "late": self.late,
            "skipped": self.skipped,
            "inside": [worker for worker in range(count) if self._readings[worker] != _OUTSIDE],
        }

    def get_log(self) -> Array:
        """Return the newest pushes, oldest first: worker, version read, version applied at, nanoseconds.

        Empty without ``log_pushes``.
        """
        with self._mutex:
            count = int(self._words[LOGGED])
            if count <= LOG_ROWS:
                return self._log[:count].copy()
            return np.roll(self._log, -(count % LOG_ROWS), axis=0)

    # -- under the mutex --

    def _accept(self, worker: int, closure: int, turn: int) -> list[Change]:
        """Return the changes that note the ticket of a worker's last gradient."""
        place = self._accepted_at + 2 * worker
        return [(place, closure), (place + 1, turn)]

    def _log_pushes(self, pushes: list[tuple[int, int, int]]) -> list[Change]:
        """Return the changes that log pushes: worker, version read, version applied at."""
        if not self._words[IS_LOGGING]:
            return []
        now, logged = time.monotonic_ns(), int(self._words[LOGGED])
        changes = [(self._word_at + LOGGED, logged + len(pushes))]
        for row, push in enumerate(pushes, logged):
            place = self._log_at + row % LOG_ROWS * 4
            changes += enumerate((*push, now), place)
        return changes

    def _try_enter(self, worker: int) -> bool:
        words = self._words
        words[HIGHEST] = max(int(words[HIGHEST]), worker + 1)
        if words[BOUND] != UNBOUNDED and self._readings[worker] == _OUTSIDE:
            waiting, granted = self._list_deadlines(worker)
            waiting.append(int(words[VERSION]) + int(words[BOUND]))
            if not _can_keep(int(words[VERSION]), sorted(waiting), granted):
                return False
        self._readings[worker] = words[VERSION]  # a worker that pulls again before its push reads the newer version
        return True

    def _try_grant(self, worker: int) -> bool:
        words = self._words
        if words[BOUND] != UNBOUNDED and self._readings[worker] != _OUTSIDE:
            waiting, granted = self._list_deadlines(worker)
            granted.append(int(self._readings[worker]) + int(words[BOUND]))
            if not _can_keep(int(words[VERSION]), sorted(waiting), granted):
                return False
        self._is_granted[worker] = True
        return True

    def _list_deadlines(self, but: int) -> tuple[list[int], list[int]]:
        """Return the deadlines of the other workers inside: of those that compute, and of those whose push is being
        applied."""
        words = self._words
        readings = self._readings[: int(words[HIGHEST])]
        waiting: list[int] = []
        granted: list[int] = []
        for worker in np.flatnonzero(readings != _OUTSIDE):
            if worker != but:
                (granted if self._is_granted[worker] else waiting).append(int(readings[worker]) + int(words[BOUND]))
        return waiting, granted

    # -- waiting --

    def _wait(self, worker: int, attempt: Any) -> int:
        end = time.monotonic() + self._timeout_s
        while True:
            heard = int(self._bell[0])
            futex.fence()
            with self._mutex:
                if attempt(worker):
                    return int(self._readings[worker])
            left = end - time.monotonic()
            if left <= 0:
                raise errors.PushTimeoutError(self._explain(worker))
            futex.wait(self._bell_address, heard, min(left, _SLICE_SECONDS))

    def _wake(self) -> None:
        if self._words[BOUND] != UNBOUNDED or self._words[NEEDED]:
            futex.wake(self._bell_address)

    def _explain(self, worker: int) -> str:
        if self._words[NEEDED]:
            version, arrived = int(self._words[VERSION]), np.flatnonzero(self._arrivals == self._words[VERSION])
            return (
                f"Worker {worker} has waited for {self._timeout_s:.0f} s for step {version}, which needs the "
                f"gradients of {int(self._words[NEEDED])} workers and has those of {[int(one) for one in arrived]}. "
                "Is a worker stopped, or does one push less often than the others? Allow for it with backup_workers."
            )
        readings = self._readings[: int(self._words[HIGHEST])]
        inside = [int(other) for other in np.flatnonzero(readings != _OUTSIDE) if other != worker]
        slowest = min(inside, key=lambda other: int(readings[other]), default=None)
        return (
            f"Worker {worker} has waited for {self._timeout_s:.0f} s: with max_staleness={int(self._words[BOUND])} it "
            f"may not run further ahead of worker {slowest}, which pulled at version "
            f"{int(readings[slowest]) if slowest is not None else '?'} of {self.version} and has not pushed since. Is "
            "that worker stopped, or much slower? Use a larger max_staleness, or a larger timeout_s."
        )


def _can_keep(version: int, waiting: list[int], granted: list[int]) -> bool:
    """Tell whether all pushes can be applied by their deadlines.

    Args:
        version: The number of pushes applied.
        waiting: The deadlines of pushes not granted yet, sorted.
        granted: The deadlines of pushes that are being applied, in any order.
    """
    last = version + len(granted)
    return all(deadline >= last - 1 for deadline in granted) and all(
        deadline >= last + place for place, deadline in enumerate(waiting)
    )
