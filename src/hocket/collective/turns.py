"""Ranks that take turns: several ranks in one process, each in a thread; one of them runs at a time.

*Problem.* To debug ranks together, one wants all of them in one process, under one debugger, in the same order in each
run. But frameworks keep a rank's state in their modules: random numbers, the process group, the current session.

*Method.* A rank runs until it waits for another one. Then the turn passes to the next rank, together with the process's
state of a rank: each `Local` is taken from the rank that stops, and put back when that rank continues. So each rank
seems to have its own process, and the order is always the same. Rank 0 runs in the caller's thread, where breakpoints
and Ctrl-C arrive.

*Condition.* All waits of a rank for another go through `wait`. Other waits (for time, files, or a lock of the user's)
keep the turn, which is slow but correct, unless another rank must end the wait. If all ranks wait for each other,
`wait` raises at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from hocket import exceptions

REST_SECONDS = 0.0005
"""Seconds that the process rests if no rank can continue before a thread outside the ranks acts. A guess."""

LOOK_SECONDS = 0.2
"""Seconds between two looks for Ctrl-C by a rank that waits for its turn: Python does not notice a signal that comes
just before a thread goes to sleep."""


_owners: Final[weakref.WeakKeyDictionary[threading.Thread, Hashable]] = weakref.WeakKeyDictionary()

_follow_lock: Final = threading.Lock()


@final
@dataclass(frozen=True)
class Local:
    """State that a process has once, and that each rank has for itself."""

    take: Callable[[], Any]
    """Returns the state, in a form that stays unchanged while other ranks run."""
    put: Callable[[Any], None]
    """Puts back the state that `take` returned."""
    build: Callable[[], Any] | None = None
    """Makes a rank's initial state. Default: the state that the process has."""


class TurnsEnded(BaseException):
    """The end of a rank after another has failed. Not an `Exception`, so the rank's own code does not catch it."""


_here = threading.local()


@final
class Turns:
    """Ranks of one process. `run` may be called several times; the threads are the same until `close`.

    Args:
        size: The number of ranks.
        process_locals: The state that each rank has for itself.
    """

    def __init__(self, size: int, process_locals: Sequence[Local]) -> None:
        self.size: Final = size
        self._locals = list(process_locals)
        self._gates = [threading.Semaphore(0) for _ in range(size)]
        self._work: list[Callable[[], object] | None] = [None] * size
        self._results: list[object] = [None] * size
        #: The rank whose turn it is.
        self._now = 0
        #: The ranks that have not returned.
        self._running: set[int] = set()
        #: The waits of ranks that have looked since any rank continued: a text, and whether only another rank can end
        #: the wait.
        self._stuck: dict[int, tuple[str, bool]] = {}
        self._error: BaseException | None = None
        self._is_closing = False
        self._callers = [local.take() for local in self._locals]
        self._saved = [
            [
                before if local.build is None else local.build()
                for local, before in zip(self._locals, self._callers, strict=True)
            ]
            for _ in range(size)
        ]
        self._threads = [
            threading.Thread(target=self._serve, args=(rank,), name=f"hocket-rank-{rank}", daemon=True)
            for rank in range(1, size)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, bodies: Sequence[Callable[[], object]]) -> list[object]:
        """Call one function in each rank; return the results."""
        self._work = list(bodies)
        self._results = [None] * self.size
        self._running = set(range(self.size))
        self._stuck.clear()
        self._error = None
        self._callers = [local.take() for local in self._locals]
        before = getattr(_here, "rank", None)
        _here.rank = (self, 0)
        try:
            self._now = 0
            self._restore(0)
            self._call(0)
            self._wait_for_turn(0, until_all_done=True)
        finally:
            _here.rank = before
            for local, value in zip(self._locals, self._callers, strict=True):
                local.put(value)
        self._raise_error()
        return self._results

    def close(self) -> None:
        """End the threads. Call it when no rank runs."""
        self._is_closing = True
        for gate in self._gates[1:]:
            gate.release()
        for thread in self._threads:
            thread.join()

    def wait(self, is_over: Callable[[], bool], what: str, *, needs_rank: bool, timeout_s: float | None = None) -> bool:
        """Let the other ranks run until a condition holds; return whether it holds. Called in a rank.

        Args:
            is_over: The condition; may raise.
            what: The rank's activity, for messages: ``"waits in all_reduce"``.
            needs_rank: Whether only another rank can bring the condition about.
            timeout_s: The seconds to wait; None for no limit.
        """
        rank = _here.rank[1]
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._check_ended()
            if is_over():
                self._stuck.clear()
                return True
            if deadline is not None and time.monotonic() > deadline:
                return False
            if self._running <= self._stuck.keys():  # all have looked in vain since any rank continued
                if needs_rank and all(needs for _, needs in self._stuck.values()):
                    raise exceptions.DeadlockError(self._describe())
                time.sleep(REST_SECONDS)
            self._stuck[rank] = (what, needs_rank and deadline is None)
            self._pass_on(rank)

    def note_progress(self) -> None:
        """Note that the calling rank has acted during its wait, so that another rank's condition may hold now."""
        self._stuck.clear()

    def _describe(self) -> str:
        parts = [
            f"rank {rank} {self._stuck[rank][0]}" if rank in self._running else f"rank {rank} has returned"
            for rank in range(self.size)
        ]
        return (
            f"All ranks wait for each other: {', '.join(parts)}. All ranks must call the same operations in the "
            "same order."
        )

    # --- turns --------------------------------------------------------------------------------------------------------

    def _serve(self, rank: int) -> None:
        """Run the thread of a rank other than the first."""
        _here.rank = (self, rank)
        while True:
            self._gates[rank].acquire()
            if self._is_closing:
                return
            self._restore(rank)
            self._call(rank)

    def _call(self, rank: int) -> None:
        """Run the rank's function, in its turn; then pass the turn on for good."""
        body = self._work[rank]
        assert body is not None, "there is work for all"
        try:
            self._check_ended()
            self._results[rank] = body()
        except TurnsEnded:
            pass
        except BaseException as error:  # noqa: BLE001 (`run` raises it)
            if self._error is None:
                self._error = error
        del body
        self._save(rank)
        self._running.discard(rank)
        self._stuck.clear()
        following = self._find_next(rank)
        self._hand_over(0 if following is None else following)

    def _find_next(self, rank: int) -> int | None:
        """Return the running rank that follows a rank; None if no rank runs."""
        order = [(rank + step) % self.size for step in range(1, self.size + 1)]
        return next((other for other in order if other in self._running), None)

    def _pass_on(self, rank: int) -> None:
        following = self._find_next(rank)
        if following == rank or following is None:
            return
        self._save(rank)
        self._hand_over(following)
        self._wait_for_turn(rank)
        self._restore(rank)

    def _hand_over(self, rank: int) -> None:
        self._now = rank
        self._gates[rank].release()

    def _wait_for_turn(self, rank: int, *, until_all_done: bool = False) -> None:
        """Sleep until it is this rank's turn. On Ctrl-C, rank 0 ends the other ranks, and waits on."""
        while self._now != rank or (until_all_done and self._running):
            try:
                self._gates[rank].acquire(timeout=LOOK_SECONDS)
            except BaseException as error:  # noqa: BLE001 (`run` raises it)
                if self._error is None:
                    self._error = error
                if rank == 0 and self._now:
                    self._interrupt(self._threads[self._now - 1])

    @staticmethod
    def _interrupt(thread: threading.Thread) -> None:
        """End a running rank, even if it never waits."""
        assert thread.ident is not None, "it was started"
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(TurnsEnded))

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _check_ended(self) -> None:
        if self._error is not None:
            raise TurnsEnded

    def _save(self, rank: int) -> None:
        self._saved[rank] = [local.take() for local in self._locals]

    def _restore(self, rank: int) -> None:
        for local, value in zip(self._locals, self._saved[rank], strict=True):
            local.put(value)


def get_optional_turns() -> Turns | None:
    """Return the turns of which the calling thread is a rank; None if it is none."""
    found = getattr(_here, "rank", None)
    return None if found is None else found[0]


def wait_for(
    condition: threading.Condition,
    is_over: Callable[[], bool],
    what: str,
    timeout_s: float | None = None,
    *,
    needs_rank: bool,
) -> bool:
    """Wait until a condition holds that another thread brings about; return whether it holds.

    Like ``condition.wait_for``, for ranks that may take turns.

    Args:
        condition: Held by the caller; notified when `is_over` may hold. Ranks that take turns check for themselves.
        is_over: The condition to wait for.
        what: See `Turns.wait`.
        timeout_s: The seconds to wait; None for no limit.
        needs_rank: See `Turns.wait`.
    """
    turns = get_optional_turns()
    if turns is None:
        return condition.wait_for(is_over, timeout_s)
    condition.release()
    try:
        return turns.wait(is_over, what, needs_rank=needs_rank, timeout_s=timeout_s)
    finally:
        condition.acquire()


# A thread inherits nothing from the rank that starts it. A later call from the thread would count for whichever rank
# has the turn then. So while ranks take turns, `threading.Thread.start` notes the rank on whose behalf it was called.
class _Followed:
    """Number of blocks that follow threads, and the original `threading.Thread.start`."""

    count = 0
    start = threading.Thread.start


def find_owner() -> Hashable | None:
    """Return the calling thread's owner, noted at its start; None if it had none, or no block followed threads."""
    return _owners.get(threading.current_thread()) if _Followed.count else None


@contextlib.contextmanager
def follow_threads(find_current: Callable[[], Hashable | None]) -> Iterator[None]:
    """Note the owners of the threads that start during a block. `find_current` runs in the thread that starts another;
    `find_owner` returns its result in the new thread."""
    with _follow_lock:
        if _Followed.count == 0:
            _Followed.start = threading.Thread.start
            threading.Thread.start = _build_start(_Followed.start, find_current)  # type: ignore[assignment, method-assign]
        _Followed.count += 1
    try:
        yield
    finally:
        with _follow_lock:
            _Followed.count -= 1
            if _Followed.count == 0:
                threading.Thread.start = _Followed.start  # type: ignore[method-assign]


def _build_start(
    plain: Callable[[threading.Thread], None], find_current: Callable[[], Hashable | None]
) -> Callable[[threading.Thread], None]:
    @functools.wraps(plain)
    def start(thread: threading.Thread) -> None:
        current = find_current()
        if current is not None:
            _owners[thread] = current
        plain(thread)

    return start
