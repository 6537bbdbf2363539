"""The lock, the stack of running tasks, and the actors, which all parts of the in-process engine share."""

from __future__ import annotations

import _thread
import contextlib
import contextvars
import sys
import threading
import time
import types
from collections.abc import Callable, Collection, Iterator
from typing import final

from hocket.engine.inprocess import coroutines
from hocket.kernel.records import TaskRecord, WorkerRecord

LOOK_SECONDS = 0.005
"""How long a thread waits at first before it looks at the lock's owner again; the time doubles with each look."""

SLOWEST_LOOK_SECONDS = 0.05
"""The longest time between two looks."""

STILL_SECONDS = 1.0
"""After so many seconds at the same line, a task counts as waiting: it may wait in a C function, which does not show. A
guess: longer than most calls of numpy, and not too long for a user. If the task only computes, another thread then runs
beside it."""

_WAITING = frozenset({"threading", "selectors"})
"""Modules with functions that wait for other threads, or for their output."""


@final
class Entrance:
    """The engine's reentrant lock, which knows whether its owner runs the user's code, and is lent while that waits.

    Tasks run inside the engine's calls, with the lock held. Ctrl-C must stop tasks at once, but must not stop the
    engine in the middle of its own work. So `_is_owned`, which `engine.interrupts` calls, is true only while the engine
    itself works.

    **Other threads.** A task may wait for a thread that calls the engine: its own thread, a pool's, or a coordinator's.
    So a thread that finds the lock taken looks at the owner's frame. If the owner waits in the user's code
    (`threading.Thread.join`, a condition, a queue, a selector, or a line that does not end), the other thread takes the
    lock. The first owner goes on when its wait ends, and takes the lock again when it returns to the engine. So one
    thread at a time runs tasks, as long as none waits, and their order is always the same. Between the end of a wait
    and the next call of the engine, the user's code may run beside another thread. That is safe, because the engine's
    state is consistent whenever the user's code runs.

    Args:
        check: A function that is called when the user's code goes on. It may raise an interrupt that had to wait.
        park: A function that is called, with the lock, when a thread whose task waits has lent the lock.
        unpark: A function that is called, with the lock, when that thread is back.
    """

    def __init__(self, check: Callable[[], None], park: Callable[[int], None], unpark: Callable[[int], None]) -> None:
        self._check, self._park, self._unpark = check, park, unpark
        self._mutex = threading.RLock()
        """Held for some bytecodes, around each change of the attributes below."""
        self._changed = threading.Condition(self._mutex)
        self._owner = 0
        """The thread that has the lock; 0 for none."""
        self._waiting = 0
        """How many threads wait for the lock."""
        self._depths: dict[int, list[bool]] = {}
        """By thread inside the engine, whether it has the lock or has lent it: for each level of calls, whether the
        user's code runs there."""
        self._parked: set[int] = set()
        """Threads that have lent the lock in the user's code, and are not back."""
        self._idle: set[int] = set()
        """Threads that have found nothing to do since the last progress."""

    def __enter__(self) -> None:
        me = _thread.get_ident()
        depths = self._depths.get(me)
        if depths is None:
            depths = self._depths.setdefault(me, [])
        # Before the lock is taken: a finalizer of the user's may call the engine between any two of these lines, and
        # must find the state consistent.
        depths.append(False)
        with self._mutex:
            if self._owner != me:
                try:
                    self._take(me)
                except BaseException:  # the user has pressed Ctrl-C twice
                    depths.pop()
                    raise
            if self._idle:
                self._idle.clear()

    def __exit__(self, *_: object) -> None:
        me = _thread.get_ident()
        with self._mutex:
            depths = self._depths[me]
            depths.pop()
            if not depths:
                self._depths.pop(me, None)
                if self._owner == me:
                    self._release()
        if not depths or depths[-1]:
            self._check()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Run the user's code in this block."""
        me = _thread.get_ident()
        depths = self._depths[me]
        depths.append(True)
        try:
            self._check()
            yield
        finally:
            with self._mutex:
                if self._owner != me:
                    self._take(me)
                depths.pop()

    def cut_off(self) -> None:
        """Renew the lock in a fork: other threads do not exist there, and may have been about to take the lock."""
        me = _thread.get_ident()
        self._mutex = threading.RLock()
        self._changed = threading.Condition(self._mutex)
        self._depths = {me: self._depths[me]} if me in self._depths else {}
        self._owner = me if self._depths else 0
        self._waiting = 0
        self._parked, self._idle = set(), set()

    def note_progress(self) -> None:
        """Note progress: threads that found nothing to do have to look again before one reports a deadlock."""
        with self._mutex:
            self._idle.clear()

    def wait_for_others(self, running: Collection[int], seconds: float) -> bool:
        """Lend the lock for a moment, because other threads may make the values that the caller waits for.

        Args:
            running: The threads that run tasks.
            seconds: The longest wait, if no thread takes the lock.

        Returns:
            False, at once, if all of these threads wait like the caller; else True.
        """
        me = _thread.get_ident()
        with self._mutex:
            self._idle.add(me)
            if self._idle.issuperset(running):
                return False
            self._release()
            self._changed.wait(seconds)
            self._take(me)
        return True

    def _release(self) -> None:
        """Give the lock up. The mutex is held."""
        self._owner = 0
        if self._waiting:
            self._changed.notify_all()

    def _take(self, me: int) -> None:
        """Wait for the lock, and take it. The mutex is held."""
        pause_s = LOOK_SECONDS
        place: tuple[int, types.FrameType, int] | None = None
        since = 0.0
        self._waiting += 1
        try:
            while self._owner and self._owner != me:
                frame = self._find_user_frame(self._owner)
                if frame is not None:
                    now = time.monotonic()
                    if place != (place := (self._owner, frame, frame.f_lasti)):
                        since = now
                    if frame.f_globals.get("__name__") in _WAITING or now - since > STILL_SECONDS:
                        break
                self._changed.wait(pause_s)
                pause_s = min(2 * pause_s, SLOWEST_LOOK_SECONDS)
        finally:
            self._waiting -= 1
            place = frame = None  # a frame holds all its variables
        lender, self._owner = self._owner, me
        if me in self._parked:
            self._parked.remove(me)
            self._unpark(me)
        if lender and lender != me:
            self._parked.add(lender)
            self._park(lender)

    def _find_user_frame(self, owner: int) -> types.FrameType | None:
        """Return the innermost frame of the owner, if the owner runs the user's code. The mutex is held."""
        depths = self._depths.get(owner)
        return sys._current_frames().get(owner) if depths and depths[-1] else None

    def _is_owned(self) -> bool:
        me = _thread.get_ident()
        depths = self._depths.get(me)
        return self._owner == me and bool(depths) and not depths[-1]  # type: ignore[index]


Work = tuple[WorkerRecord, TaskRecord]
"""A running task or call, and the worker on which it runs for the kernel."""

_current: contextvars.ContextVar[Work] = contextvars.ContextVar("current")
"""The task or call to which the thread, or the coroutine, belongs; not set elsewhere."""


@final
class Running:
    """The running tasks and calls."""

    def __init__(self) -> None:
        #: The tasks with their threads, the task begun last at the end. Tasks of different threads end in any order.
        self._stack: list[tuple[int, Work]] = []
        #: The start of each task, by `time.perf_counter`.
        self.starts: dict[int, float] = {}

    def find_current(self) -> Work | None:
        """Return the task to which the calling code belongs; None for the main program. A thread that runs no task
        counts as part of the task that was begun last."""
        return _current.get(None) or (self._stack[-1][1] if self._stack else None)

    def find_own(self) -> Work | None:
        """Return the task that the calling thread or coroutine itself runs."""
        return _current.get(None)

    def find_last(self, thread: int) -> Work | None:
        """Return the innermost task that a thread runs."""
        return next((work for one, work in reversed(self._stack) if one == thread), None)

    def list_threads(self) -> set[int]:
        """Return the threads that run tasks."""
        return {thread for thread, _ in self._stack}

    def list_busy_actors(self) -> set[int]:
        """Return the workers of actors that take one call at a time, and are in a call in another thread."""
        me = _thread.get_ident()
        return {
            worker.id
            for thread, (worker, _) in self._stack
            if thread != me and worker.actor is not None and worker.actor.options.max_concurrency == 1
        }

    @contextlib.contextmanager
    def entered(self, work: Work) -> Iterator[None]:
        """Have the code in this block belong to a task."""
        entry = (_thread.get_ident(), work)
        self._stack.append(entry)
        token = _current.set(work)
        try:
            yield
        finally:
            self._stack.remove(entry)
            _current.reset(token)
            self.starts.pop(work[1].id, None)

    def enter_coroutine(self, work: Work) -> None:
        """Have the rest of the coroutine belong to a call."""
        _current.set(work)


@final
class Actors:
    """The actors, and their event loops, by worker."""

    def __init__(self) -> None:
        self.instances: dict[int, object] = {}
        self.loops: dict[int, coroutines.Loop] = {}
