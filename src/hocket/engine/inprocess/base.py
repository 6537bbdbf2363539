"""The lock, the stack of running tasks and the actors: the parts of the engine in the caller's process share them."""

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
"""How long a thread waits at first before it looks again at who has the lock; twice as long each time."""

SLOWEST_LOOK_SECONDS = 0.05
"""At most."""

STILL_SECONDS = 1.0
"""A task whose innermost line is the same for so long is taken to wait there: in a C function, which cannot be asked. A
guess: longer than most calls of numpy, and shorter than a reader's patience. If it only computes, another thread works
beside it."""

_WAITING = frozenset({"threading", "selectors"})
"""The modules whose code waits for other threads, or for what these write."""


@final
class Entrance:
    """The engine's reentrant lock, which knows whether its owner runs the user's code, and is lent while that waits.

    Tasks run inside the engine's calls, with the lock held. Ctrl-C must stop them at once and must not stop the engine
    half-way through its own work, so the lock is "owned", as `engine.interrupts` asks, only while the engine works.

    **Other threads.** A task may wait for a thread that calls the engine: one of its own, of a pool, of a coordinator.
    So a thread that finds the lock taken looks at what its owner does. If that is in the user's code, and waits there
    (`threading.Thread.join`, a condition, a queue, a selector, or a line that does not end), the lock is the other
    thread's. The first owner goes on when its wait ends, and takes the lock again where it comes back to the engine.
    So one thread at a time runs tasks, as long as none waits, and the order is the same each time. What the user's code
    does between the end of its wait and its next call of the engine may run beside another thread.

    The user's code is a place where the engine's own state is whole, since a task may call the engine itself.

    A finalizer of the user's may call the engine between any two lines of this class, and then finds the lock whole:
    a thread says first that it is in, and takes the lock then.

    Args:
        check: Called when the user's code goes on; may raise the interrupt that had to wait.
        park: Hears, with the lock, that it was lent by a thread, whose task waits.
        unpark: Hears, with the lock, that the thread is back.
    """

    def __init__(self, check: Callable[[], None], park: Callable[[int], None], unpark: Callable[[int], None]) -> None:
        self._check, self._park, self._unpark = check, park, unpark
        self._mutex = threading.RLock()
        """Held for some bytecodes, around each change of what follows."""
        self._changed = threading.Condition(self._mutex)
        self._owner = 0
        """The thread that has the lock; 0 for none."""
        self._waiting = 0
        """How many threads wait for it."""
        self._depths: dict[int, list[bool]] = {}
        """By thread that has come in, also if it has lent the lock: by depth, whether what runs there is the user's
        code."""
        self._parked: set[int] = set()
        """Threads that have lent the lock in the user's code, and are not back."""
        self._idle: set[int] = set()
        """Threads that have found nothing to do since anybody did something."""

    def __enter__(self) -> None:
        me = _thread.get_ident()
        depths = self._depths.get(me)
        if depths is None:
            depths = self._depths.setdefault(me, [])
        depths.append(False)
        with self._mutex:
            if self._owner != me:
                try:
                    self._take(me)
                except BaseException:  # somebody has pressed Ctrl-C twice
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
        """Run the user's code in here."""
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
        """In a fork: other threads are not here, and may have been in the middle of taking the lock."""
        me = _thread.get_ident()
        self._mutex = threading.RLock()
        self._changed = threading.Condition(self._mutex)
        self._depths = {me: self._depths[me]} if me in self._depths else {}
        self._owner = me if self._depths else 0
        self._waiting = 0
        self._parked, self._idle = set(), set()

    def note_progress(self) -> None:
        """Have threads that found nothing to do look again before anybody takes that for the end."""
        with self._mutex:
            self._idle.clear()

    def wait_for_others(self, running: Collection[int], seconds: float) -> bool:
        """Lend the lock for a moment, because other threads may bring what the caller waits for.

        Args:
            running: The threads that run tasks.
            seconds: How long at most, if nobody takes the lock.

        Returns:
            False, at once, if there is none but those that wait as the caller does.
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
        """The mutex is held."""
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
        """Return the innermost frame of the owner, if that runs the user's code. The mutex is held."""
        depths = self._depths.get(owner)
        return sys._current_frames().get(owner) if depths and depths[-1] else None

    def _is_owned(self) -> bool:
        me = _thread.get_ident()
        depths = self._depths.get(me)
        return self._owner == me and bool(depths) and not depths[-1]  # type: ignore[index]


Work = tuple[WorkerRecord, TaskRecord]
"""A task or call that runs, and the worker that the kernel takes it to run on."""

_current: contextvars.ContextVar[Work] = contextvars.ContextVar("current")
"""What the thread, or the coroutine, belongs to; not set in others."""


@final
class Running:
    """The tasks and calls that run."""

    def __init__(self) -> None:
        #: With their threads, the one begun last at the end. Tasks of different threads may end in any order.
        self._stack: list[tuple[int, Work]] = []
        #: When each task was started, by `time.perf_counter`.
        self.starts: dict[int, float] = {}

    def find_current(self) -> Work | None:
        """Return what the calling code belongs to; None for the main program. A thread that runs no task is taken to be
        of the task that was begun last."""
        return _current.get(None) or (self._stack[-1][1] if self._stack else None)

    def find_own(self) -> Work | None:
        """Return what the calling thread or coroutine runs itself."""
        return _current.get(None)

    def find_last(self, thread: int) -> Work | None:
        """Return what a thread runs: the innermost one."""
        return next((work for one, work in reversed(self._stack) if one == thread), None)

    def list_threads(self) -> set[int]:
        """Return the threads that run tasks."""
        return {thread for thread, _ in self._stack}

    def list_busy_actors(self) -> set[int]:
        """Return the workers of actors that are in a call in another thread, and take one at a time."""
        me = _thread.get_ident()
        return {
            worker.id
            for thread, (worker, _) in self._stack
            if thread != me and worker.actor is not None and worker.actor.options.max_concurrency == 1
        }

    @contextlib.contextmanager
    def entered(self, work: Work) -> Iterator[None]:
        """Have code in the block belong to a task."""
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
