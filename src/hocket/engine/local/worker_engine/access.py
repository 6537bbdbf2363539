"""Objects: stored, waited for, opened."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from hocket import exceptions
from hocket.engine import contract, faults, rules, values
from hocket.engine.local import journal, messages, payloads
from hocket.engine.local.worker_engine import state, submission
from hocket.kernel import ids

DIRECT_SECONDS = 0.002
"""How long a wait for an answer by a direct channel, or for what somebody else makes, may take before the driver is
told that its CPU is free. A guess: less than any task that the CPU could be lent to takes to get there."""


class ObjectAccess(submission.Submission):
    """Puts and gets."""

    def put(self, value: object) -> contract.AnyRef:
        encoded = values.encode(value, by_index=True)
        contained = tuple([ref._id for ref in encoded.refs])
        if contained:
            with self.lock:
                self.publish(encoded.refs)
        if not encoded.buffers:
            with self.lock:
                return self._announce_put((payloads.INLINE, encoded.data), next(self._ids), contained)
        ref: contract.AnyRef | None = None

        def announce(payload: payloads.Payload) -> None:
            nonlocal ref
            ref = self._announce_put(payload, object_id, contained)

        with self.lock:
            object_id = next(self._ids)
        payload = self.store.build_payload(encoded, object_id, announce=announce)
        if ref is not None:
            return ref
        with self.lock:
            return self._announce_put(payload, object_id, contained)

    def put_error(self, error: exceptions.TaskError) -> contract.ObjectRef[object]:
        payload = payloads.encode_error(error)
        with self.lock:
            return self._announce_put(payload, next(self._ids), ())

    def _announce_put(
        self, payload: payloads.Payload, object_id: int, contained: tuple[int, ...]
    ) -> contract.ObjectRef[object]:
        if faults.plan is not None:
            faults.plan.reach("worker.in_put")
        message = (messages.PUT, object_id, self.send_payload(payload), contained)
        if payload[0] == payloads.INLINE and len(payload[1]) <= journal.LATER_BYTES and not contained:
            self.channel.post_later(message)
        else:
            self.channel.post_short(message)
        return self._own(object_id)

    def get(self, refs: Sequence[contract.AnyRef], timeout_s: float | None) -> list[Any]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._check_own(refs)
        missing = {ref._id for ref in refs if ref._id not in self._arrived}
        if missing:
            self._fetch(missing, len(refs), timeout_s)
        if len(refs) < values.MANY:
            return [self._open(ref._id, refs, deadline) for ref in refs]
        with values.hold_collector():
            return [self._open(ref._id, refs, deadline) for ref in refs]

    def _check_own(self, refs: Sequence[contract.AnyRef]) -> None:
        """Raise if one was unpickled here and belongs to another session: its id may stand for something else."""
        for ref in refs:
            if ref._engine is not self:
                raise contract.build_closed_error(ref)

    def wait(self, refs: Sequence[contract.AnyRef], num_ready: int, timeout_s: float | None) -> list[bool]:
        self._check_own(refs)
        with self.lock:
            unknown = [ref._id for ref in refs if not self._is_there(ref._id)]
            enough = num_ready - (len(refs) - len(unknown))
            number = next(self._ids)
            if enough > 0:
                if timeout_s != 0:
                    self._block(number, tuple(unknown) if timeout_s is None else (), tuple(unknown), enough)
                for object_id in unknown:
                    if object_id in self._expected:
                        self._watched.add(object_id)
                    else:
                        self.channel.post((messages.WATCH, object_id))
        if enough > 0 and timeout_s == 0:
            self._ask("ping")  # the answer comes behind the news of what is there
        elif enough > 0:
            try:
                self.reactor.wait_until(
                    lambda: self._is_over(number) or sum(map(self._is_there, unknown)) >= enough, timeout_s
                )
            finally:
                self._unblock(number)
        with self.lock:
            there = [self._is_there(ref._id) for ref in refs]
        return rules.limit_true(there, num_ready)

    def when_done(self, ref: contract.ObjectRef[object], callback: Callable[[], None]) -> None:
        with self.lock:
            if ref._id not in self._arrived:
                self._callbacks.setdefault(ref._id, []).append(callback)
                self._have_arrived({ref._id})
                callback = self.flush_soon
        callback()

    def take_item(self, stream: contract.ObjectRef[object], index: int) -> contract.ObjectRef[object]:
        with self.lock:
            self.channel.post((messages.TAKE, stream._id, index))
            self.flush_later()  # the generator may wait for it
            return self._own(ids.build_item_id(stream._id, index))

    def lift_bound(self, stream: contract.ObjectRef[object]) -> None:
        with self.lock:
            self.channel.post((messages.LIFT, stream._id))
            self.flush_later()

    def is_end(self, item: contract.ObjectRef[object], timeout_s: float | None) -> bool | None:
        if item._id not in self._arrived:
            try:
                self._fetch({item._id}, 1, timeout_s)
            except exceptions.GetTimeoutError:
                return None
        found = self._arrived.get(item._id)
        return found is not None and found.payload[0] == payloads.END

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _fetch(self, missing: set[int], wanted: int, timeout_s: float | None) -> None:
        """Wait until these have come, or one of them is an error."""
        if self._is_close(missing):
            patience_s = DIRECT_SECONDS if timeout_s is None else min(DIRECT_SECONDS, timeout_s)
            if self.reactor.wait_until(lambda: self._have_arrived(missing), patience_s):
                return
        if timeout_s == 0:
            self._look_once(missing, wanted, timeout_s)
            return
        number = next(self._ids)
        for_good = tuple(missing) if timeout_s is None else ()
        with self.lock:
            self._block(number, for_good, tuple(missing))
        try:
            if not self.reactor.wait_until(lambda: self._is_over(number) or self._have_arrived(missing), timeout_s):
                raise rules.build_timeout_error(len(missing), wanted, timeout_s)
        finally:
            self._unblock(number)

    def _is_close(self, missing: set[int]) -> bool:
        """Tell whether the values may be there, or come, before the driver has read that we wait: an answer by a direct
        channel, or what somebody else made. A task of our own is not: it may need the CPU that we hold.
        """
        expected, own_id = self._expected, self.worker_id
        return all(object_id in expected or object_id >> 40 != own_id for object_id in missing)

    def _look_once(self, missing: set[int], wanted: int, timeout_s: float) -> None:
        """Fetch what is there, without waiting for what is not: the driver answers in order, so one question is
        enough."""
        with self.lock:
            self._have_arrived(missing)
        self._ask("ping")
        with self.lock:
            if not self._have_arrived(missing):
                raise rules.build_timeout_error(len(missing), wanted, timeout_s)

    def wait_lending(self, is_done: Callable[[], bool]) -> None:
        """Wait for what others do; if it takes longer than a moment, the CPU is theirs meanwhile."""
        if self.reactor.wait_until(is_done, DIRECT_SECONDS):
            return
        number = next(self._ids)
        with self.lock:
            self._block(number, (), ())
        try:
            self.reactor.wait_until(is_done)
        finally:
            self._unblock(number)

    def _block(self, number: int, wanted: tuple[int, ...], missing: tuple[int, ...], needed: int = 0) -> None:
        """Tell the driver that a thread waits, unless the driver knows better: what is missing here may be there.

        Called with the lock held.

        Args:
            number: Our name for the wait.
            wanted: What it waits for until it comes; nothing if the wait has a time-out.
            missing: What it waits for.
            needed: How many of these end it; 0 is all of them, or the first error.
        """
        direct = []
        if self._expected:
            for object_id in wanted:
                found = self.direct.describe(object_id)
                if found is not None:
                    direct.append((object_id, *found))
        task_id = self.running.task_id
        needs_all = needed in (0, len(missing))
        unstarted = self.take_unstarted()
        self.channel.post((messages.BLOCK, unstarted, number, task_id, wanted, needs_all, direct, missing, needed))

    def _unblock(self, number: int) -> None:
        """A wait is over."""
        with self.lock:
            self.channel.post((messages.UNBLOCK, number))
            self.flush_later()  # or our CPU stays lent
            text = self._deadlocks.pop(number, None)
        if text is not None:
            raise exceptions.DeadlockError(text)

    def _is_over(self, number: int) -> bool:
        """Tell whether the wait of that number is known never to end. Called with the lock held."""
        return number in self._deadlocks

    def _have_arrived(self, missing: set[int]) -> bool:
        """Tell whether the wait is over; ask for what nobody has asked for. Called with the lock held."""
        for object_id in list(missing):
            found = self._arrived.get(object_id)
            if found is not None:
                if found.payload[0] >= payloads.ERROR:
                    return True
                missing.discard(object_id)
            elif (
                object_id not in self._wanted and object_id not in self._expected
            ):  # also when another thread has taken what had arrived
                self._wanted.add(object_id)
                self.channel.post((messages.WANT, object_id))
        return not missing

    def _is_there(self, object_id: int) -> bool:
        return object_id in self._arrived or object_id in self._ready

    # --- opening ------------------------------------------------------------------------------------------------------

    def _open(self, object_id: int, refs: Sequence[contract.ObjectRef[object]], deadline: float | None) -> object:
        """Return one of the values; raise if it, or another one that has arrived, is an error."""
        while True:
            with self.lock:
                found = self._arrived.get(object_id)
                if found is not None and found.payload[0] == payloads.SEGMENT:
                    # One receipt of the driver's stands for one mapping; the next `get` asks for another.
                    del self._arrived[object_id]
            if found is not None:
                return self.open_payload(object_id, found)
            for ref in refs:
                other = self._arrived.get(ref._id)
                if other is not None and other.payload[0] >= payloads.ERROR:
                    return self.open_payload(ref._id, other)
            self._fetch({object_id}, len(refs), None if deadline is None else max(0.0, deadline - time.monotonic()))

    def open_payload(self, object_id: int, found: state.Arrived) -> object:
        """Return a value that has arrived; raise it if it is an error."""
        payload = found.payload
        if payload[0] == payloads.SEGMENT:
            fd = payload[-1]
            try:
                return payloads.open_segment(payload, fd, lambda: self._note_unmapped(object_id), found.held)
            finally:
                os.close(fd)
        return payloads.open_payload(payload, found.held)

    def open_code(self, found: state.Arrived) -> object:
        """Return a function that has arrived. If it cannot be loaded, `found` stays as it is, and this may be called
        again."""
        payload = found.payload
        if payload[0] != payloads.SEGMENT:
            return payloads.open_payload(payload, found.held)
        is_loaded = is_unmapped = False

        def note_unmapped() -> None:  # the driver hears of it once, and only when the descriptor is closed, too
            nonlocal is_unmapped
            is_unmapped = True
            if is_loaded:
                self._note_unmapped(payload[2])

        function = payloads.open_segment(payload, payload[-1], note_unmapped, found.held)
        os.close(payload[-1])
        is_loaded = True
        if is_unmapped:
            self._note_unmapped(payload[2])
        return function
