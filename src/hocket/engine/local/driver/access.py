"""Objects: stored, waited for, opened."""

from __future__ import annotations

import pickle
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from hocket.engine import contract, events, inspection, interrupts, rules, values
from hocket.engine.local import payloads
from hocket.engine.local.driver import submission
from hocket.kernel import records
from hocket.kernel.records import DRIVER, TaskKind

DROPPED_AT_ONCE = 32
"""So many handles that were dropped are counted together, by a caller that only puts small values."""


class ObjectAccess(submission.Submission):
    """Puts and gets."""

    def put(self, value: object) -> contract.AnyRef:
        encoded = values.encode(value, by_index=True)
        contained = tuple([ref._id for ref in encoded.refs]) if encoded.refs else ()
        if encoded.buffers:
            started = time.perf_counter()
            payload, stored = self._store_buffers(encoded, contained)
            seconds = time.perf_counter() - started
            self.spans.append(inspection.OwnSpan(events.Kind.PUT, "put", started, seconds, payloads.measure(payload)))
            if stored is not None:
                return stored
        else:
            payload = (payloads.INLINE, encoded.data)
        with self.lock:
            if len(self.dropped) >= DROPPED_AT_ONCE:  # none of these is large: what is large is stored above
                self._drain_dropped()
            object_id = next(self._ids)
            self.kernel.put(object_id, payload, contained, DRIVER)
            ref: contract.AnyRef = contract.ObjectRef(object_id, self)
        if self.guard.noted:
            self.guard.check()
        return ref

    def get(self, refs: Sequence[contract.AnyRef], timeout_s: float | None) -> list[Any]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        objects = self.kernel.objects
        found = []
        started = 0.0
        for ref in refs:
            record = objects.get(ref._id)
            if record is None or ref._engine is not self:
                raise contract.build_closed_error(ref)
            if record.value is None:
                started = started or time.perf_counter()
                self._wait_for(record, refs, deadline, timeout_s)
            found.append(record)
        if started:
            seconds = time.perf_counter() - started
            self.spans.append(inspection.OwnSpan(events.Kind.GET, "get", started, seconds, len(refs)))
        if len(found) < values.MANY:
            result = [self._open(record) for record in found]
        else:
            with values.hold_collector():
                result = [self._open(record) for record in found]
        if self.guard.noted:
            self.guard.check()
        return result

    def _wait_for(
        self,
        record: records.ObjectRecord,
        refs: Sequence[contract.ObjectRef[object]],
        deadline: float | None,
        timeout_s: float | None,
    ) -> None:
        """Wait for one object; an error in any of the others is raised at once."""
        failures = -1

        def is_done() -> bool:
            nonlocal failures
            if record.value is not None or self.end is not None:
                return True
            if failures != self.failures:
                failures = self.failures
                objects = self.kernel.objects
                for ref in refs:
                    other = objects[ref._id]
                    if other.failed:
                        self._open(other)
            return False

        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            is_there = self.reactor.wait_until(is_done, left_s)
        except KeyboardInterrupt:
            self._give_up(refs)
            raise
        if is_there:
            if record.value is None and self.end is not None:
                raise self.end
            return
        missing = sum(self.kernel.objects[ref._id].value is None for ref in refs)
        raise rules.build_timeout_error(missing, len(refs), timeout_s)

    def _give_up(self, refs: Sequence[contract.ObjectRef[object]]) -> None:
        """The user interrupted a wait: at a prompt or in a notebook, what the cell asked for is not wanted any more. A
        program that catches the interrupt may have plans with its tasks; there they go on."""
        if not interrupts.is_interactive():
            return
        with self.lock:
            row = [ref._id for ref in refs]
            while row:
                record = self.kernel.objects.get(row.pop())
                if record is not None and record.task is not None and record.task.kind == TaskKind.FUNCTION:
                    row += record.task.dependencies
                    self.kernel.cancel(record.id, force=False, recursive=True)
            self._finish_change()

    def _open(self, record: records.ObjectRecord) -> object:
        payload = record.value
        assert payload is not None
        kind = payload[0]
        refs = self._hold_all(record.contained) if record.contained else None
        if kind == payloads.INLINE:
            if refs is None:  # what `decode` would do, without the call: a tenth of a `get`
                try:
                    return pickle.loads(payload[1])  # type: ignore[arg-type]
                except Exception as error:
                    values.note_decoding(error)
                    raise
            return values.decode(payload[1], (), refs)  # type: ignore[arg-type]
        if kind == payloads.SEGMENT:
            with self.lock:
                object_id = record.id
                self.kernel.retain(object_id)
                fd = self.store.lend(object_id)
                buffers = payloads.map_segment(payload, fd, lambda: self._note_unmapped(object_id))
            return values.decode(payload[1], buffers, refs)  # type: ignore[arg-type]
        if kind == payloads.ERROR:
            self.unfetched.note_fetched(payload)
        return payloads.open_payload(payload, refs)

    def _hold_all(self, object_ids: tuple[int, ...]) -> list[contract.AnyRef]:
        """Return handles on objects that a value refers to: `intern` of each, without a call for each."""
        refs: list[contract.AnyRef] = []
        fresh = []
        with self.lock:
            interned = self.interned
            for object_id in object_ids:
                known = interned.get(object_id)
                ref = known() if known is not None else None
                if ref is None or ref._id == contract.NO_ID:
                    fresh.append(object_id)
                    ref = contract.ObjectRef(object_id, self)
                    interned[object_id] = weakref.ref(ref)
                refs.append(ref)
            self.kernel.retain_all(fresh)
        return refs

    def _note_unmapped(self, object_id: int) -> None:
        """Called by a finalizer, in any thread at any moment, so without a lock."""
        self.store.unmapped.append(object_id)
        self.dropped.append(object_id)

    def wait(self, refs: Sequence[contract.AnyRef], num_ready: int, timeout_s: float | None) -> list[bool]:
        objects = self.kernel.objects
        there = [False] * len(refs)
        left = num_ready
        for position, ref in enumerate(refs):  # a row of waits mostly finds what it wants at the head of its list
            record = objects.get(ref._id)
            if record is None:
                raise contract.build_closed_error(ref)
            if record.value is not None:
                if ref._engine is not self:
                    raise contract.build_closed_error(ref)
                there[position] = True
                left -= 1
                if not left:
                    self.guard.check()
                    return there
        foreign = next((ref for ref in refs if ref._engine is not self), None)
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
            return self.end is not None

        self.reactor.wait_until(is_done, timeout_s)
        self.guard.check()
        there = rules.limit_true([record.value is not None for record in waited], num_ready)
        if self.end is not None and sum(there) < num_ready:  # nothing more will come, however often it is asked
            raise self.end
        return there

    def when_done(self, ref: contract.ObjectRef[object], callback: Callable[[], None]) -> None:
        with self.lock:
            record = self.kernel.objects.get(ref._id)
            if record is not None and record.value is None and self.end is None:
                self._callbacks.setdefault(ref._id, []).append(callback)
                self.kernel.watch(ref._id, DRIVER)
                return
        callback()

    def adopt(self, object_id: int) -> None:
        with self.lock:
            super().adopt(object_id)

    # --- generators ---------------------------------------------------------------------------------------------------

    def lift_bound(self, stream: contract.ObjectRef[object]) -> None:
        with self.lock:
            self.kernel.lift_bound(stream._id)
            if self.kernel.instructions:
                self.carry_out()

    def is_end(self, item: contract.ObjectRef[object], timeout_s: float | None) -> bool | None:
        record = self.kernel.objects[item._id]
        if not self.reactor.wait_until(lambda: record.value is not None or self.end is not None, timeout_s):
            return None
        if record.value is None:
            assert self.end is not None
            raise self.end
        self.guard.check()
        return record.value[0] == payloads.END
