"""Objects: stored, waited for, opened. A caller that waits runs what stands in the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from hocket import exceptions
from hocket.engine import contract, rules
from hocket.engine.inprocess import coroutines, payloads, submission, turning
from hocket.kernel import records


class ObjectAccess(submission.Submission):
    """Puts and gets."""

    def put(self, value: object) -> contract.AnyRef:
        with self.lock:
            self._check_open()
            self._drain_dropped()
            object_id = next(self._ids)
            payload, contained = payloads.encode(value)
            self.kernel.put(object_id, payload, contained, records.DRIVER)
            return contract.ObjectRef(object_id, self)

    def get(self, refs: Sequence[contract.AnyRef], timeout_s: float | None) -> list[Any]:
        with self.lock:
            found = []
            for ref in refs:
                record = self.kernel.objects.get(ref._id)
                if record is None or ref._engine is not self:
                    raise contract.build_closed_error(ref)
                found.append(record)
            if any(record.value is None for record in found):
                self._make(found, timeout_s)
            return [self._open(record) for record in found]

    def _make(self, wanted: list[records.ObjectRecord], timeout_s: float | None) -> None:
        """Run what stands in the way of these objects."""
        self._turn_until(
            lambda: all(record.value is not None for record in wanted) or any(record.failed for record in wanted),
            timeout_s,
        )
        failed = next((record for record in wanted if record.failed), None)
        if failed is not None:
            self._open(failed)
        missing = [record for record in wanted if record.value is None]
        if missing and timeout_s is not None:
            raise rules.build_timeout_error(len(missing), len(wanted), timeout_s)
        if missing:
            raise exceptions.DeadlockError(
                f"{len(missing)} objects can never be made: nothing that would make them can run. Look for a task "
                "that waits for itself, or for a placement group that is not reserved."
            )

    def _turn_until(self, is_enough: Callable[[], bool], timeout_s: float | None) -> None:
        """Run what can run, and wait for timers, sockets and threads that coroutines wait for, until it is enough or
        in vain."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        found = self._find_current()
        if found is not None:
            self.kernel.block(found[0], [])
        try:
            self.carry_out()
            self._run_all()
            while not is_enough():
                left = turning.PAUSE_S if deadline is None else min(turning.PAUSE_S, deadline - time.monotonic())
                loops = [loop for loop in self._loops.values() if loop.can_go_on()]
                if not loops or left <= 0:
                    return
                for loop in loops:
                    with self.lock.open():
                        loop.spin(wait_s=left / len(loops))
                self._spin()
                self._run_all()
        finally:
            if found is not None:
                self.kernel.unblock(found[0])

    def _turn(self) -> bool:
        """Let coroutines and tasks run as far as they come; tell whether somebody outside still waits for some."""
        if self.end is None:
            self._spin()
            self._run_all()
        return bool(self._callbacks)

    def _open(self, record: records.ObjectRecord) -> object:
        assert record.value is not None
        if record.failed:
            self.unfetched.note_fetched(record.value)
            exceptions.raise_stored(payloads.decode(record.value))
        return payloads.decode(record.value, self._hold_all(record.contained))

    def wait(self, refs: Sequence[contract.AnyRef], num_ready: int, timeout_s: float | None) -> list[bool]:
        with self.lock:
            wanted = [self.kernel.objects[ref._id] for ref in refs]
            self._turn_until(lambda: sum(record.value is not None for record in wanted) >= num_ready, timeout_s)
            left = num_ready
            there = []
            for record in wanted:
                is_there = left > 0 and record.value is not None
                left -= is_there
                there.append(is_there)
            if left and timeout_s is None:
                raise exceptions.DeadlockError(f"Only {num_ready - left} of {num_ready} objects can ever be there.")
            return there

    def when_done(self, ref: contract.ObjectRef[object], callback: Callable[[], None]) -> None:
        with self.lock:
            record = self.kernel.objects.get(ref._id)
            if record is not None and record.value is None and self.end is None:
                self._callbacks.setdefault(ref._id, []).append(callback)
                self.kernel.watch(ref._id, records.DRIVER)
                self._find_turner(record)
                return
        callback()

    def _find_turner(self, record: records.ObjectRecord) -> None:
        """See to it that somebody turns the loops while the caller waits for an object in a way of his own."""
        loop = coroutines.get_running_loop()
        if loop is not None:
            if not any(one.is_loop(loop) for one in self._loops.values()):
                self._turner.turn_from_loop(loop)
        elif self._find_current() is None:
            self._turner.turn_from_thread()
        else:  # in a task, whose thread has the engine's lock until it ends: nobody else could
            self._turn_until(lambda: record.value is not None, None)

    def is_end(self, item: contract.ObjectRef[object], timeout_s: float | None) -> bool | None:
        with self.lock:
            record = self.kernel.objects[item._id]
            if record.value is None and timeout_s != 0:
                self._make([record], timeout_s)
            return None if record.value is None else record.value is self.kernel.end_value
