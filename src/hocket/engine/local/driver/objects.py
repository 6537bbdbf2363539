"""Objects: stored, waited for, opened."""

from __future__ import annotations

import pickle
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, final

from hocket import exceptions
from hocket.engine import contract, events, inspection, interrupts, kernel_parts, rules, values
from hocket.engine.events import layout
from hocket.engine.local import driver_store, payloads, reactor
from hocket.engine.local.driver import floor
from hocket.kernel import records
from hocket.kernel.records import DRIVER, TaskKind

DROPPED_AT_ONCE: Final = 32
"""How many dropped handles a caller that only puts small values counts together."""


@final
class DriverObjects(contract.Objects):
    """The driver's values.

    Args:
        engine: The engine of the values' handles.
        session: The lock and the kernel.
        base: Carries out the kernel's instructions.
        store: The objects in shared memory.
        waiters: The threads that wait.
        spans: Receives the times of puts and gets.
        unfetched: Errors that nobody has fetched.
    """

    def __init__(
        self,
        engine: contract.Engine,
        session: kernel_parts.Session,
        base: floor.Floor,
        store: driver_store.DriverStore,
        waiters: reactor.Reactor,
        spans: deque[inspection.OwnSpan],
        unfetched: kernel_parts.Unfetched,
    ) -> None:
        self._engine, self._session, self._kernel, self._floor = engine, session, session.kernel, base
        self._lock, self._guard = session.lock, session.guard
        self._store, self._waiters, self._spans, self._unfetched = store, waiters, spans, unfetched

    # --- storing ------------------------------------------------------------------------------------------------------

    def put(self, value: object) -> contract.AnyRef:
        encoded = values.encode(value, by_index=True)
        contained = tuple([ref._id for ref in encoded.refs]) if encoded.refs else ()
        if encoded.buffers:
            started = time.perf_counter()
            payload, stored = self.store_buffers(encoded, contained)
            seconds = time.perf_counter() - started
            self._spans.append((events.Kind.PUT, "put", started, seconds, payloads.measure(payload)))
            if stored is not None:
                return stored
        else:
            payload = (payloads.INLINE, encoded.data)
        with self._lock:
            if len(self._engine.dropped) >= DROPPED_AT_ONCE:  # each put of large buffers drains them above
                self._floor.drain_dropped()
            object_id = next(self._session.ids)
            self._kernel.put(object_id, payload, contained, DRIVER)
            ref: contract.AnyRef = contract.ObjectRef(object_id, self._engine)
        if self._guard.noted:
            self._guard.check()
        return ref

    def put_error(self, error: exceptions.TaskError) -> contract.AnyRef:
        return kernel_parts.put_error(self._session, self._engine.handles, error)

    def store_buffers(
        self, encoded: values.Encoded, contained: tuple[int, ...] = ()
    ) -> tuple[payloads.Payload, contract.AnyRef | None]:
        """Return a payload that holds a copy of the buffers, and a handle on its object if it has a segment. Called
        without the lock, because bytes are copied, perhaps to the disk."""
        with self._lock:
            if self._engine.dropped:
                self._floor.drain_dropped()  # freed memory may be used again
            object_id = next(self._session.ids)
        holder: contract.AnyRef | None = None

        def announce(payload: payloads.Payload) -> None:
            nonlocal holder
            self._kernel.put(object_id, payload, contained, DRIVER)
            holder = contract.ObjectRef(object_id, self._engine)

        payload = self._store.build_payload(encoded, object_id, announce=announce)
        if self._guard.noted:
            self._guard.check()
        return payload, holder

    # --- waiting ------------------------------------------------------------------------------------------------------

    def get(self, refs: Sequence[contract.AnyRef], timeout_s: float | None) -> list[Any]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        objects, engine, count = self._kernel.objects, self._engine, len(refs)
        found: list[records.ObjectRecord] = []
        started = 0.0
        for ref in refs:
            record = objects.get(ref._id)
            if record is None or ref._engine is not engine:
                raise contract.build_closed_error(ref)
            if record.value is None:
                started = started or time.perf_counter()
                self._wait_for(record, refs, deadline, timeout_s)
            found += (record,)  # not `append`, which would be a call for each
        if started:
            seconds = time.perf_counter() - started
            if seconds >= layout.MERGED_SECONDS:
                self._spans.append((events.Kind.GET, "get", started, seconds, count))
        if count == 1:
            result = [self._open(found[0])]
        elif count < values.MANY:
            result = [self._open(record) for record in found]
        else:
            with values.hold_collector():
                result = [self._open(record) for record in found]
        if self._guard.noted:
            self._guard.check()
        return result

    def _wait_for(
        self,
        record: records.ObjectRecord,
        refs: Sequence[contract.AnyRef],
        deadline: float | None,
        timeout_s: float | None,
    ) -> None:
        """Wait for one object; raise an error in any of the other objects at once."""
        session, failures = self._session, -1

        def is_done() -> bool:
            nonlocal failures
            if record.value is not None or session.end is not None:
                return True
            if failures != session.failures:
                failures = session.failures
                objects = self._kernel.objects
                for ref in refs:
                    other = objects[ref._id]
                    if other.failed:
                        self._open(other)
            return False

        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            is_there = self._waiters.wait_until(is_done, left_s)
        except KeyboardInterrupt:
            self._give_up(refs)
            raise
        if is_there:
            if record.value is None:
                session.check_open()
            return
        missing = sum(self._kernel.objects[ref._id].value is None for ref in refs)
        raise rules.build_timeout_error(missing, len(refs), timeout_s)

    def _give_up(self, refs: Sequence[contract.AnyRef]) -> None:
        """Cancel the tasks of a wait that the user interrupted at a prompt or in a notebook."""
        if not interrupts.is_interactive():
            return  # a program that catches the interrupt may still need its tasks
        with self._lock:
            row = [ref._id for ref in refs]
            while row:
                record = self._kernel.objects.get(row.pop())
                if record is not None and record.task is not None and record.task.kind == TaskKind.FUNCTION:
                    row += record.task.dependencies
                    self._kernel.cancel(record.id, force=False, recursive=True)
            self._floor.finish_change()

    def wait(self, refs: Sequence[contract.AnyRef], num_ready: int, timeout_s: float | None) -> list[bool]:
        session, engine, objects = self._session, self._engine, self._kernel.objects
        there = [False] * len(refs)
        left = num_ready
        for position, ref in enumerate(refs):  # in a series of waits, the first references are mostly there
            record = objects.get(ref._id)
            if record is None:
                raise contract.build_closed_error(ref)
            if record.value is not None:
                if ref._engine is not engine:
                    raise contract.build_closed_error(ref)
                there[position] = True
                left -= 1
                if not left:
                    self._guard.check()
                    return there
        foreign = next((ref for ref in refs if ref._engine is not engine), None)
        if foreign is not None:
            raise contract.build_closed_error(foreign)
        waited = [objects[ref._id] for ref in refs]

        def is_done() -> bool:
            left = num_ready
            for record in waited:
                if record.value is not None:
                    left -= 1
                    if not left:
                        return True
            return session.end is not None

        self._waiters.wait_until(is_done, timeout_s)
        self._guard.check()
        there = rules.limit_true([record.value is not None for record in waited], num_ready)
        if sum(there) < num_ready:  # after the end of a session, no more objects come
            session.check_open()
        return there

    def when_done(self, ref: contract.ObjectRef[object], callback: Callable[[], None]) -> None:
        with self._lock:
            record = self._kernel.objects.get(ref._id)
            if record is not None and record.value is None and self._session.end is None:
                self._session.callbacks.setdefault(ref._id, []).append(callback)
                self._kernel.watch(ref._id, DRIVER)
                return
        callback()

    # --- generators ---------------------------------------------------------------------------------------------------

    def take_item(self, stream: contract.ObjectRef[object], index: int) -> contract.AnyRef:
        return kernel_parts.take_item(self._session, self._engine.handles, self._floor, stream, index)

    def lift_bound(self, stream: contract.ObjectRef[object]) -> None:
        with self._lock:
            self._kernel.lift_bound(stream._id)
            if self._kernel.instructions:
                self._floor.carry_out()

    def is_end(self, item: contract.ObjectRef[object], timeout_s: float | None) -> bool | None:
        record, session = self._kernel.objects[item._id], self._session
        if not self._waiters.wait_until(lambda: record.value is not None or session.end is not None, timeout_s):
            return None
        if record.value is None:
            session.check_open()
        assert record.value is not None
        self._guard.check()
        return record.value[0] == payloads.END

    # --- opening ------------------------------------------------------------------------------------------------------

    def _open(self, record: records.ObjectRecord) -> object:
        payload = record.value
        assert payload is not None
        kind = payload[0]
        refs = self._hold_all(record.contained) if record.contained else None
        if kind == payloads.INLINE:
            if refs is None:  # as `decode` does, without the call, which takes a tenth of a `get`
                try:
                    return pickle.loads(payload[1])  # type: ignore[arg-type]
                except Exception as error:
                    values.note_decoding(error)
                    raise
            return values.decode(payload[1], (), refs)  # type: ignore[arg-type]
        if kind == payloads.SEGMENT:
            with self._lock:
                object_id = record.id
                self._kernel.retain(object_id)
                fd = self._store.lend(object_id)
                buffers = payloads.map_segment(payload, fd, lambda: self._note_unmapped(object_id))
            return values.decode(payload[1], buffers, refs)  # type: ignore[arg-type]
        if kind == payloads.ERROR:
            self._unfetched.note_fetched(payload)
        return payloads.open_payload(payload, refs)

    def _hold_all(self, object_ids: tuple[int, ...]) -> list[contract.AnyRef]:
        """Return handles on the objects that a value refers to: `intern` of each, without a call for each."""
        refs: list[contract.AnyRef] = []
        fresh = []
        with self._lock:
            interned = self._engine.handles.interned
            for object_id in object_ids:
                known = interned.get(object_id)
                ref = known() if known is not None else None
                if ref is None or ref._id == contract.NO_ID:
                    fresh.append(object_id)
                    ref = contract.ObjectRef(object_id, self._engine)
                    interned[object_id] = weakref.ref(ref)
                refs.append(ref)
            self._kernel.retain_all(fresh)
        return refs

    def _note_unmapped(self, object_id: int) -> None:
        """Note the end of a mapping. A finalizer calls this in any thread at any moment, so without a lock."""
        self._store.unmapped.append(object_id)
        self._engine.dropped.append(object_id)
