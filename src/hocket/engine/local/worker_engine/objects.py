"""Objects: stored, waited for, opened."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, final

from hocket import exceptions
from hocket.engine import contract, faults, rules, values
from hocket.engine.local import direct_channels, journal, messages, payloads, reactor, store
from hocket.engine.local.worker_engine import arrivals, duty, outbox, questions
from hocket.kernel import ids

DIRECT_SECONDS: Final = 0.002
"""How long a wait for a direct call's answer, or for an object of another process, may take before the worker reports
that its CPU is free. A guess: less than a task takes to reach a worker with a lent CPU."""


@final
class WorkerObjects(contract.Objects):
    """A worker's values.

    Args:
        engine: The engine of the values' handles.
        lock: The engine's lock.
        driver: The channel to the driver.
        own: The running work.
        known: The process's handles.
        come: The values that have come.
        post: The outbox.
        asked: The questions to the driver.
        direct: The direct channels to other workers.
        memory: The segments of this process.
        waiters: The threads that wait.
        taker: Has queued work that may go back to the driver.
    """

    def __init__(
        self,
        engine: contract.Engine,
        lock: threading.RLock,
        driver: journal.JournalChannel,
        own: duty.Duty,
        known: arrivals.WorkerHandles,
        come: arrivals.Arrivals,
        post: outbox.Outbox,
        asked: questions.Questions,
        direct: direct_channels.DirectChannels,
        memory: store.WorkerStore,
        waiters: reactor.Reactor,
        taker: duty.Taker,
    ) -> None:
        self._engine, self._lock, self._driver, self._duty = engine, lock, driver, own
        self._handles, self._arrivals, self._outbox, self._questions = known, come, post, asked
        self._direct, self._store, self._waiters, self._taker = direct, memory, waiters, taker
        #: Why a wait can never end, by the wait's number.
        self._deadlocks: dict[int, str] = {}

    # --- storing ------------------------------------------------------------------------------------------------------

    def put(self, value: object) -> contract.AnyRef:
        encoded = values.encode(value, by_index=True)
        contained = tuple([ref._id for ref in encoded.refs])
        if contained:
            with self._lock:
                self._arrivals.publish(encoded.refs)
        if not encoded.buffers:
            with self._lock:
                return self._announce((payloads.INLINE, encoded.data), next(self._duty.ids), contained)
        ref: contract.AnyRef | None = None

        def announce(payload: payloads.Payload) -> None:
            nonlocal ref
            ref = self._announce(payload, object_id, contained)

        with self._lock:
            object_id = next(self._duty.ids)
        payload = self._store.build_payload(encoded, object_id, announce=announce)
        if ref is not None:
            return ref
        with self._lock:
            return self._announce(payload, object_id, contained)

    def put_error(self, error: exceptions.TaskError) -> contract.AnyRef:
        payload = payloads.encode_error(error)
        with self._lock:
            return self._announce(payload, next(self._duty.ids), ())

    def _announce(self, payload: payloads.Payload, object_id: int, contained: tuple[int, ...]) -> contract.AnyRef:
        if faults.plan is not None:
            faults.plan.reach("worker.in_put")
        message = (messages.PUT, object_id, self._outbox.send_payload(payload), contained)
        if payload[0] == payloads.INLINE and len(payload[1]) <= journal.LATER_BYTES and not contained:
            self._driver.post_later(message)
        else:
            self._driver.post_short(message)
        return self._handles.own(object_id)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def get(self, refs: Sequence[contract.AnyRef], timeout_s: float | None) -> list[Any]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._check_own(refs)
        come = self._arrivals.values
        missing = {ref._id for ref in refs if ref._id not in come}
        if missing:
            self._fetch(missing, len(refs), timeout_s)
        if len(refs) < values.MANY:
            return [self._open(ref._id, refs, deadline) for ref in refs]
        with values.hold_collector():
            return [self._open(ref._id, refs, deadline) for ref in refs]

    def _check_own(self, refs: Sequence[contract.AnyRef]) -> None:
        """Raise if a reference was unpickled here and belongs to another session, where its id means another object."""
        for ref in refs:
            if ref._engine is not self._engine:
                raise contract.build_closed_error(ref)

    def wait(self, refs: Sequence[contract.AnyRef], num_ready: int, timeout_s: float | None) -> list[bool]:
        self._check_own(refs)
        is_there = self._arrivals.is_there
        with self._lock:
            unknown = [ref._id for ref in refs if not is_there(ref._id)]
            enough = num_ready - (len(refs) - len(unknown))
            number = next(self._duty.ids)
            if enough > 0:
                if timeout_s != 0:
                    self._block(number, tuple(unknown) if timeout_s is None else (), tuple(unknown), enough)
                for object_id in unknown:
                    self._arrivals.watch(object_id)
        if enough > 0 and timeout_s == 0:
            self._questions.ask("ping")  # the answer comes behind the answers to `watch`
        elif enough > 0:
            try:
                self._waiters.wait_until(
                    lambda: number in self._deadlocks or sum(map(is_there, unknown)) >= enough, timeout_s
                )
            finally:
                self._unblock(number)
        with self._lock:
            there = [is_there(ref._id) for ref in refs]
        return rules.limit_true(there, num_ready)

    def when_done(self, ref: contract.ObjectRef[object], callback: Callable[[], None]) -> None:
        with self._lock:
            if ref._id not in self._arrivals.values:
                self._arrivals.when_come(ref._id, callback)
                callback = self._outbox.send_soon
        callback()

    def _fetch(self, missing: set[int], wanted: int, timeout_s: float | None) -> None:
        """Wait until these values have come, or one of them is an error."""
        have_come = self._arrivals.have_come
        if self._is_close(missing):
            patience_s = DIRECT_SECONDS if timeout_s is None else min(DIRECT_SECONDS, timeout_s)
            if self._waiters.wait_until(lambda: have_come(missing), patience_s):
                return
        if timeout_s == 0:
            self._look_once(missing, wanted, timeout_s)
            return
        number = next(self._duty.ids)
        for_good = tuple(missing) if timeout_s is None else ()
        with self._lock:
            self._block(number, for_good, tuple(missing))
        try:
            if not self._waiters.wait_until(lambda: number in self._deadlocks or have_come(missing), timeout_s):
                raise rules.build_timeout_error(len(missing), wanted, timeout_s)
        finally:
            self._unblock(number)

    def _is_close(self, missing: set[int]) -> bool:
        """Tell whether the values may come before the driver could read that this thread waits: answers by a direct
        channel, and objects of other processes. A result of this worker's own task is not close: the task may need the
        CPU that this worker holds.
        """
        expected, own_id = self._arrivals.expected, self._duty.worker_id
        return all(object_id in expected or object_id >> 40 != own_id for object_id in missing)

    def _look_once(self, missing: set[int], wanted: int, timeout_s: float) -> None:
        """Fetch the values that are there, without a wait for others."""
        with self._lock:
            self._arrivals.have_come(missing)
        self._questions.ask("ping")  # the driver answers in order: when it answers this, the values have come
        with self._lock:
            if not self._arrivals.have_come(missing):
                raise rules.build_timeout_error(len(missing), wanted, timeout_s)

    def wait_lending(self, is_done: Callable[[], bool]) -> None:
        """Wait for other processes; if that takes longer than a moment, the driver may lend the CPU meanwhile."""
        if self._waiters.wait_until(is_done, DIRECT_SECONDS):
            return
        number = next(self._duty.ids)
        with self._lock:
            self._block(number, (), ())
        try:
            self._waiters.wait_until(is_done)
        finally:
            self._unblock(number)

    def _block(self, number: int, wanted: tuple[int, ...], missing: tuple[int, ...], needed: int = 0) -> None:
        """Report to the driver that a thread waits. The driver ignores that if the missing objects are there.

        Called with the lock held.

        Args:
            number: The wait's number.
            wanted: The objects that it waits for without limit; empty if the wait has a time-out.
            missing: The objects that it waits for.
            needed: How many of these end the wait; 0: all of them, or the first error.
        """
        direct = []
        if self._arrivals.expected:
            for object_id in wanted:
                found = self._direct.describe(object_id)
                if found is not None:
                    direct.append((object_id, *found))
        task_id = self._duty.running.task_id
        needs_all = needed in (0, len(missing))
        unstarted = self._taker.take_unstarted()
        self._driver.post((messages.BLOCK, unstarted, number, task_id, wanted, needs_all, direct, missing, needed))

    def _unblock(self, number: int) -> None:
        """Report that a wait is over; raise if it was a deadlock."""
        with self._lock:
            self._driver.post((messages.UNBLOCK, number))
            self._outbox.send_later()  # else this worker's CPU stays lent
            text = self._deadlocks.pop(number, None)
        if text is not None:
            raise exceptions.DeadlockError(text)

    def note_deadlock(self, number: int, text: str) -> None:
        """Note the driver's report that a wait can never end. Called with the lock held."""
        self._deadlocks[number] = text

    # --- generators ---------------------------------------------------------------------------------------------------

    def take_item(self, stream: contract.ObjectRef[object], index: int) -> contract.AnyRef:
        with self._lock:
            self._driver.post((messages.TAKE, stream._id, index))
            self._outbox.send_later()  # the generator may wait for its reader
            return self._handles.own(ids.build_item_id(stream._id, index))

    def lift_bound(self, stream: contract.ObjectRef[object]) -> None:
        with self._lock:
            self._driver.post((messages.LIFT, stream._id))
            self._outbox.send_later()

    def is_end(self, item: contract.ObjectRef[object], timeout_s: float | None) -> bool | None:
        if item._id not in self._arrivals.values:
            try:
                self._fetch({item._id}, 1, timeout_s)
            except exceptions.GetTimeoutError:
                return None
        found = self._arrivals.values.get(item._id)
        return found is not None and found.payload[0] == payloads.END

    # --- opening ------------------------------------------------------------------------------------------------------

    def _open(self, object_id: int, refs: Sequence[contract.AnyRef], deadline: float | None) -> object:
        """Return one of the values; raise if this value, or another that has arrived, is an error."""
        while True:
            with self._lock:
                found = self._arrivals.take_once(object_id)
            if found is not None:
                return self.open_payload(object_id, found)
            for ref in refs:
                other = self._arrivals.values.get(ref._id)
                if other is not None and other.payload[0] >= payloads.ERROR:
                    return self.open_payload(ref._id, other)
            self._fetch({object_id}, len(refs), None if deadline is None else max(0.0, deadline - time.monotonic()))

    def open_payload(self, object_id: int, found: arrivals.Arrived) -> object:
        """Return a value that has arrived; raise the exception of an error."""
        payload = found.payload
        if payload[0] == payloads.SEGMENT:
            fd = payload[-1]
            try:
                return payloads.open_segment(payload, fd, lambda: self._outbox.note_unmapped(object_id), found.held)
            finally:
                os.close(fd)
        return payloads.open_payload(payload, found.held)

    def open_code(self, found: arrivals.Arrived) -> object:
        """Return a function that has arrived. If the function cannot be loaded, `found` stays as it is for another
        try."""
        payload = found.payload
        if payload[0] != payloads.SEGMENT:
            return payloads.open_payload(payload, found.held)
        is_loaded = is_unmapped = False

        def note_unmapped() -> None:  # reported once, and only when the descriptor is closed, too
            nonlocal is_unmapped
            is_unmapped = True
            if is_loaded:
                self._outbox.note_unmapped(payload[2])

        function = payloads.open_segment(payload, payload[-1], note_unmapped, found.held)
        os.close(payload[-1])
        is_loaded = True
        if is_unmapped:
            self._outbox.note_unmapped(payload[2])
        return function
