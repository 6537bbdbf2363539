"""Readers of the sockets: the thread that waits reads.

A process has sockets to read, and several threads may want the messages. Handing each message from a reader thread to a
waiting thread would cost a thread switch (some 30 us here) for every result. So one thread at a time holds a *role*, as
in the Leader/Followers pattern: to wait in epoll and to handle messages.

- A thread that waits for something takes the role if it is free, and handles messages until its own wish is met.
- A thread that finds the role taken sleeps on a condition, and wakes after each round of messages.
- The *background reader*, a thread, takes the role when no thread has wanted it for `TICK_SECONDS`. It blocks in epoll,
  at no cost, until a waiting thread evicts it through an eventfd. So messages are handled promptly also while the
  program computes, sleeps, or does not call this package.

Tried without success: a background reader that takes the role as soon as it is free. A loop of ``get(f.remote())`` then
pays an eviction for every call.

The lock is the owner's. It is held while messages are handled and never while waiting. It must be reentrant, and its
ownership shows the interrupt handler (see `interrupts`) that a KeyboardInterrupt has to wait.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol, final

from hocket.engine import contract, interrupts, rules

TICK_SECONDS = 0.01
"""How long the role must be free before the background reader takes it. A guess between a wait that a person notices
and a wake-up rate that a profiler shows."""

MAX_FAILURES = 3
"""The number of failed rounds in a row after which the background reader gives up."""

HURRY_SECONDS = 5e-5
"""The interpreter's switch interval while the background reader has messages to handle. With the usual 5 ms every
message waits so long for a program that computes in pure Python. Calls between two actors were 7.5 times slower with a
busy driver than with an idle one, and are 1.9 times slower now (measured with three busy processes on two cores)."""

CALM_SECONDS = 0.05
"""After so long without a message the switch interval returns to its usual value."""

PARK_TICKS = 3
"""After so many ticks in which another thread held the role without a message, the background reader stops ticking,
until that thread passes the role on. Every worker that was just used ticks so often: with 100 ticks, 300 idle actors
woke 30,000 times in the second after their last call, and doubled the time of all tasks. Waking the background reader
again costs some 10 us, and is done at most every 30 ms."""

DROP_SECONDS = 0.1
"""The time between two wake-ups of the background reader for dropped handles: a program that drops thousands while it
computes must not pay a wake-up for each. A guess: an actor may end so much later."""

CLOSE_SECONDS = 5.0
"""How long the end of a session waits for threads that wait in it. They leave at once, unless a callback delays one."""

WAKING_SECONDS = 0.2
"""How long the end of a session waits for threads in `_wake`: each needs a few bytecodes. One of them may stand still
below on the stack, if a signal's handler has interrupted it and ends the session."""

LONGEST_SECONDS = 1e8
"""A longer time-out counts as none: three years, and less than the system's clocks overflow at."""

READABLE = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR


class Owner(Protocol):
    """The part of an engine that a bell needs."""

    #: Ids of handles that have been garbage-collected and not yet been counted.
    dropped: deque[int]


@final
class Bell(deque[int]):
    """A stand-in for an engine's `dropped` while a thread sleeps; always empty itself.

    A handle's finalizer may run in any thread at any moment, so it only appends an id to `Engine.dropped`, and the next
    thread that waits counts the id. But a process that only waits, or a driver that computes while its background
    reader sleeps, may not count for minutes, and an actor without handles would live as long. So while a thread sleeps,
    a bell takes the place of `dropped`. Its `append` puts the usual deque back, appends the id there, and wakes the
    sleeper. The finalizer is the same as ever, and costs nothing more while no thread sleeps.

    Args:
        owner: The engine.
        ring: Wakes the sleeper. A finalizer calls it: it must not wait, lock or raise.
    """

    def __init__(self, owner: Owner, ring: Callable[[], None]) -> None:
        super().__init__()
        self._owner = owner
        #: The deque with the ids, which is `Engine.dropped` while no thread sleeps.
        self.usual = owner.dropped
        self.ring = ring
        #: Whether it has rung since the last look.
        self.has_rung = False

    def answer(self, ring: Callable[[], None]) -> None:
        """Replace the function that wakes the sleeper."""
        self.ring = ring

    def hang(self) -> bool:
        """Take the place of `dropped`; return False if a handle was dropped meanwhile and the thread must not sleep."""
        if self.usual:
            return False
        self._owner.dropped = self
        return not self.usual

    def take_down(self) -> None:
        """Put the usual deque back."""
        self._owner.dropped = self.usual

    def append(self, object_id: int, /) -> None:
        """Put the usual deque back, append the id there, and wake the sleeper."""
        self._owner.dropped = self.usual
        self.usual.append(object_id)
        self.has_rung = True
        self.ring()


class Handler(Protocol):
    """The handler of a reactor's events, which is called with the lock held."""

    def handle(self, fd: int, mask: int) -> None:
        """Handle an event on a descriptor."""

    def before_wait(self) -> float | None:
        """Send unsent messages and do the work that is due; return the longest wait in seconds, None for no limit."""


class Woken(NamedTuple):
    """The cause that has ended a wait."""

    has_come: bool
    """Whether a descriptor was readable."""
    was_nudged: bool
    """Whether another thread has left a message unsent."""


class Reactor:
    """The role, and the epoll set that its holder waits on."""

    def __init__(
        self,
        owner: Owner,
        lock: threading.RLock,
        *,
        build: Callable[[Reactor], Handler],
        guard: interrupts.InterruptGuard,
        check: Callable[[], None],
        name: str,
    ) -> None:
        """Build a reactor.

        Args:
            owner: The engine; its dropped handles end a wait.
            lock: Held while events are handled.
            build: Returns the handler. Called once, with the reactor, which the handler may need.
            guard: The guard against signals; its pending handlers end waits.
            check: Calls the pending handlers after a waiting thread's round; may raise to end the wait.
            name: The name of the background reader thread.
        """
        self._lock = lock
        self._condition = threading.Condition(lock)
        self._guard = guard
        self._check = check
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._holder: int | None = None
        self._rounds = 0
        self._sleepers = 0
        self._poked = False
        self._nudged = False
        #: One entry for each thread that is about to write to the eventfd without the lock.
        self._waking: list[bool] = []
        #: Whether the role's holder has sent everything and waits. A thread that leaves a message unsent now nudges it.
        self.is_asleep = False
        self._unparked = threading.Event()
        self._is_parked = False
        self._reader = threading.Thread(target=self._run_reader, name=name, daemon=True)
        self._reader_id: int | None = None
        self._closed = False
        self._is_retired = False
        #: Set at closing or retirement: the reader sleeps on it, so no thread waits for a tick to pass.
        self._dismissed = threading.Event()
        #: The bell, which hangs while a thread waits.
        self.bell = Bell(owner, self._wake)
        #: Quick callbacks, which are called without the lock after the round of messages that caused them.
        self.due: deque[Callable[[], None]] = deque()
        handler = build(self)
        self._handle, self._before_wait = handler.handle, handler.before_wait
        guard.wake = self.wake  # last: a signal's handler may call it at once

    # --- the epoll set ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the background reader."""
        self._reader.start()

    def watch(self, fd: int) -> None:
        """Handle messages that arrive on this descriptor."""
        self._epoll.register(fd, select.EPOLLIN)

    def watch_writable(self, fd: int, wanted: bool) -> None:
        """Start or stop handling the moment when the descriptor takes more."""
        self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT if wanted else select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """Forget a descriptor."""
        self._epoll.unregister(fd)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def wait_until(self, is_done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Handle messages until `is_done` (called with the lock held); return False if the time is over first."""
        deadline = None if timeout_s is None or timeout_s > LONGEST_SECONDS else time.monotonic() + timeout_s
        me = threading.get_ident()
        was_nudged = False
        while True:
            is_mine = is_there = False
            try:
                with self._lock:
                    if is_done():
                        return True
                    if self._closed:
                        raise rules.build_ended_error()
                    limit_s = TICK_SECONDS if was_nudged else self._before_wait()
                    left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
                    if left_s == 0 and timeout_s:  # a time-out of 0 still looks once, below
                        return False
                    # A signal that is noted later, while the lock is held, wakes the thread that reads.
                    if self._guard.noted and self._guard.is_called():
                        left_s = 0.0
                    if self._holder is None or self._holder == me:
                        self._holder = me
                        is_mine = True
                        self.is_asleep = not was_nudged
                    else:
                        self._sleep(left_s)
                if is_mine:
                    is_there, was_nudged = self._wait_and_handle(limit_s, left_s, is_done)
            finally:
                if is_mine and self._holder == me:  # an exception has come in between
                    with self._lock:
                        self._pass_on()
            if self.due or self._guard.noted:
                self.run_due()
                self._check()
            if is_there or timeout_s == 0:
                return is_there

    def handle_arrived(self) -> None:
        """Handle the messages that have arrived, without waiting; do nothing if another thread has the role."""
        with self._lock:
            if self._holder is None and not self._closed:
                self._handle_all(self._epoll.poll(0))

    def run_due(self) -> None:
        """Call the callbacks that are due. Called without the lock."""
        while self.due:
            try:
                callback = self.due.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                callback()
            except BaseException as error:  # the error does not concern the work of this thread
                if contract.is_from_handler(error):
                    raise
                traceback.print_exc()

    def get_pollable(self) -> int:
        """Return a descriptor that is readable when a message has arrived; for an event loop, after `retire`."""
        return self._epoll.fileno()

    def retire(self) -> None:
        """End the background reader: from now on an event loop calls `handle_arrived`."""
        with self._lock:
            self._is_retired = True
            self._dismiss()
        if self._reader.is_alive():
            self._reader.join()

    def poke(self) -> None:
        """Have the role's holder call `before_wait` and look at its own wish again. Called with the lock held."""
        if self._holder is not None and self._holder != threading.get_ident() and not self._poked:
            self._poked = True
            os.eventfd_write(self._wake_fd, 1)

    def nudge(self) -> None:
        """Have a message that was just left unsent sent after a tick, together with others, whatever this thread does.

        Call it if `is_asleep`, with the lock held. Else the message is sent anyway: by this thread when it waits, or by
        the background reader, which takes the role when no thread has wanted it for a tick.
        """
        if self.is_asleep:
            self.is_asleep = False
            self._nudged = True
            os.eventfd_write(self._wake_fd, 1)

    def wake(self) -> None:
        """End all present waits. A signal's handler calls this, at any moment, without the lock."""
        self._wake()

    def _sleep(self, left_s: float | None) -> None:
        if left_s == 0:
            return
        if self._holder == self._reader_id:  # evict the background reader
            os.eventfd_write(self._wake_fd, 1)
        self._sleepers += 1
        try:
            self._condition.wait(left_s)
        finally:
            self._sleepers -= 1
            if self._closed:
                self._condition.notify_all()

    def _wait_and_handle(
        self, limit_s: float | None, left_s: float | None, is_done: Callable[[], bool]
    ) -> tuple[bool, bool]:
        """Wait for messages as the holder of the role, handle them, and give the role up.

        Returns:
            Whether the wait is over, and whether another thread has left a message unsent.
        """
        if limit_s is None or (left_s is not None and left_s < limit_s):
            limit_s = left_s
        bell = self.bell  # as in `_poll`, without the call
        try:
            events = self._epoll.poll(limit_s if bell.hang() else 0)
        finally:
            bell.take_down()
        with self._lock:
            try:
                was_nudged = self._handle_all(events)
                return is_done(), was_nudged
            finally:
                self._pass_on()

    def _poll(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """Wait for messages, or for handles to be dropped; return the events."""
        try:
            return self._epoll.poll(timeout_s if self.bell.hang() else 0)
        finally:
            self.bell.take_down()

    def _wake(self) -> None:
        """End a wait. Finalizers and handlers of signals call this, without the lock."""
        self._waking.append(True)  # before the look: `close` waits for threads that may have found the eventfd open
        try:
            if not self._closed:
                os.eventfd_write(self._wake_fd, 1)
        finally:
            self._waking.pop()

    def _handle_all(self, events: list[tuple[int, int]]) -> bool:
        """Handle events; return whether only an unsent message of another thread has ended the wait. Called with the
        lock held."""
        self.is_asleep = False
        was_nudged, self._nudged = self._nudged, False
        self._rounds += 1
        for fd, mask in events:
            if fd == self._wake_fd:
                os.eventfd_read(fd)
                self._poked = False
            else:
                was_nudged = False
                self._handle(fd, mask)
        return was_nudged

    def _pass_on(self) -> None:
        """Give the role up. Called with the lock held."""
        self._holder = None
        if self._sleepers or self._closed:
            self._condition.notify_all()
        if self._is_parked:
            self._is_parked = False
            self._unparked.set()

    # --- the background reader ----------------------------------------------------------------------------------------

    def _run_reader(self) -> None:
        self._reader_id = threading.get_ident()
        seen_rounds = -1
        quiet_ticks = failures = 0
        while not (self._closed or self._is_retired):
            with self._lock:
                is_free = self._holder is None and self._rounds == seen_rounds and not self._sleepers
                if is_free:  # no thread has wanted the role for a tick
                    self._holder = self._reader_id
                quiet_ticks = quiet_ticks + 1 if self._rounds == seen_rounds else 0
                seen_rounds = self._rounds
                if quiet_ticks > PARK_TICKS and not is_free:
                    self._is_parked = True
                    self._unparked.clear()
                    quiet_ticks = 0
            if is_free:
                failures = self._try_to_read(failures)
            elif self._is_parked:
                self._unparked.wait()
            else:
                self._dismissed.wait(TICK_SECONDS)

    def _dismiss(self) -> None:
        """End the background reader, wherever it waits."""
        self._dismissed.set()
        self._unparked.set()
        os.eventfd_write(self._wake_fd, 1)

    def _try_to_read(self, failures: int) -> int:
        """Read; return how many rounds in a row have failed. Without a background reader, futures would never end."""
        try:
            self._read_on()
        except Exception:  # a fault of this package
            if self._closed or failures == MAX_FAILURES:
                raise
            traceback.print_exc()
            return failures + 1
        return 0

    def _read_on(self) -> None:
        """Hold the role until a thread that waits asks for it."""
        usual_s = sys.getswitchinterval()
        is_hurried = was_nudged = False
        try:
            while not (self._closed or self._is_retired):
                with self._lock:
                    if self._sleepers:
                        break
                    limit_s = TICK_SECONDS if was_nudged else self._before_wait()
                    self.is_asleep = not was_nudged
                if is_hurried:
                    limit_s = CALM_SECONDS if limit_s is None else min(limit_s, CALM_SECONDS)
                has_come, was_nudged = self._wait_patiently(limit_s)
                if has_come != is_hurried:
                    is_hurried = has_come
                    if usual_s > HURRY_SECONDS:
                        sys.setswitchinterval(HURRY_SECONDS if is_hurried else usual_s)
                if self.due:
                    self.run_due()
        finally:
            if is_hurried and usual_s > HURRY_SECONDS:
                sys.setswitchinterval(usual_s)
            with self._lock:
                self._pass_on()

    def _wait_patiently(self, limit_s: float | None) -> Woken:
        """Wait for messages and handle them; return the cause that has ended the wait. A dropped handle is no message;
        after one, the wait is long enough to collect others."""
        if self.bell.has_rung:
            self.bell.has_rung = False
            events = self._epoll.poll(DROP_SECONDS if limit_s is None else min(limit_s, DROP_SECONDS))
            with self._lock:
                return Woken(bool(events), self._handle_all(events))
        events = self._poll(limit_s)
        with self._lock:
            was_nudged = self._handle_all(events)
        return Woken(bool(events) and not was_nudged and not self.bell.has_rung, was_nudged)

    def cut_off(self) -> None:
        """Close the epoll set in a fork. It is the parent's too, so no descriptor may be unregistered."""
        self._closed = True
        self._epoll.close()

    def close(self) -> None:
        """End all waits and the background reader, and close the set. Called without the lock."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._dismiss()
            self._condition.notify_all()
        if (
            self._reader.is_alive() and threading.current_thread() is not self._reader
        ):  # a callback of the reader may call this
            self._reader.join(timeout=CLOSE_SECONDS)
        with self._lock:
            self._condition.wait_for(self._is_left, CLOSE_SECONDS)
        deadline = time.monotonic() + WAKING_SECONDS
        while self._waking and time.monotonic() < deadline:
            time.sleep(0)
        self._epoll.close()
        os.close(self._wake_fd)

    def _is_left(self) -> bool:
        """Tell whether no other thread waits any more: when a descriptor is closed under a waiting thread, its number
        may soon be another descriptor's."""
        return not self._sleepers and self._holder in {None, threading.get_ident()}
