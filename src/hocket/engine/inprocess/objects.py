"""Objects of the in-process engine. A caller that waits for an object runs the tasks before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from hocket import exceptions
from hocket.engine import contract, kernel_parts, rules
from hocket.engine.inprocess import base, coroutines, payloads, turning, turns
from hocket.kernel import records


@final
class InProcessObjects(contract.Objects):
    """Values in this process.

    Args:
        engine: The engine to which the handles belong.
        session: The session, with the kernel.
        lock: The session's lock.
        running: The running tasks.
        actors: The living actors.
        mover: The object that runs waiting tasks.
        unfetched: The errors that the program has not fetched.
    """

    def __init__(
        self,
        engine: contract.Engine,
        session: kernel_parts.Session,
        lock: base.Entrance,
        running: base.Running,
        actors: base.Actors,
        mover: turns.Turns,
        unfetched: kernel_parts.Unfetched,
    ) -> None:
        self._engine, self._session, self._kernel, self._lock = engine, session, session.kernel, lock
        self._running, self._actors, self._turns, self._unfetched = running, actors, mover, unfetched
        self.turner = turning.Turner(lock, mover.turn)

    def put(self, value: object) -> contract.AnyRef:
        with self._lock:
            self._session.check_open()
            self._turns.drain_dropped()
            object_id = next(self._session.ids)
            payload, contained = payloads.encode(value)
            self._kernel.put(object_id, payload, contained, records.DRIVER)
            return self._engine.handles.build(object_id)

    def put_error(self, error: exceptions.TaskError) -> contract.AnyRef:
        return kernel_parts.put_error(self._session, self._engine.handles, error)

    def get(self, refs: Sequence[contract.AnyRef], timeout_s: float | None) -> list[Any]:
        with self._lock:
            found = []
            for ref in refs:
                record = self._kernel.objects.get(ref._id)
                if record is None or ref._engine is not self._engine:
                    raise contract.build_closed_error(ref)
                found.append(record)
            if any(record.value is None for record in found):
                self._make(found, timeout_s)
            return [self._open(record) for record in found]

    def _make(self, wanted: list[records.ObjectRecord], timeout_s: float | None) -> None:
        """Run tasks until these objects have their values, or one of them an error."""
        self._turns.turn_until(
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
                f"{len(missing)} objects can never be made: no task that would make them can run. Look for a task "
                "that waits for itself, or for a placement group that is not reserved."
            )

    def _open(self, record: records.ObjectRecord) -> object:
        assert record.value is not None
        if record.failed:
            self._unfetched.note_fetched(record.value)
            exceptions.raise_stored(payloads.decode(record.value))
        refs = [self._engine.handles.intern(object_id) for object_id in record.contained]
        return payloads.decode(record.value, refs)

    def wait(self, refs: Sequence[contract.AnyRef], num_ready: int, timeout_s: float | None) -> list[bool]:
        with self._lock:
            wanted = [self._kernel.objects[ref._id] for ref in refs]
            self._turns.turn_until(lambda: sum(record.value is not None for record in wanted) >= num_ready, timeout_s)
            left = num_ready
            there = []
            for record in wanted:
                is_there = left > 0 and record.value is not None
                left -= is_there
                there.append(is_there)
            if left and timeout_s is None:
                raise exceptions.DeadlockError(f"Only {num_ready - left} of {num_ready} objects can ever be ready.")
            return there

    def when_done(self, ref: contract.ObjectRef[object], callback: Callable[[], None]) -> None:
        with self._lock:
            record = self._kernel.objects.get(ref._id)
            if record is not None and record.value is None and self._session.end is None:
                self._session.callbacks.setdefault(ref._id, []).append(callback)
                self._kernel.watch(ref._id, records.DRIVER)
                self._find_turner(record)
                return
        callback()

    def _find_turner(self, record: records.ObjectRecord) -> None:
        """Ensure that the actors' loops turn while the caller waits for an object outside of the engine."""
        loop = coroutines.get_running_loop()
        if loop is not None:
            if not any(one.is_loop(loop) for one in self._actors.loops.values()):
                self.turner.turn_from_loop(loop)
        elif self._running.find_current() is None:
            self.turner.turn_from_thread()
        else:  # in a task, whose thread keeps the engine's lock: no other thread could turn the loops
            self._turns.turn_until(lambda: record.value is not None, None)

    def take_item(self, stream: contract.ObjectRef[object], index: int) -> contract.AnyRef:
        return kernel_parts.take_item(self._session, self._engine.handles, self._turns, stream, index)

    def is_end(self, item: contract.ObjectRef[object], timeout_s: float | None) -> bool | None:
        with self._lock:
            record = self._kernel.objects[item._id]
            if record.value is None and timeout_s != 0:
                self._make([record], timeout_s)
            return None if record.value is None else record.value is self._kernel.end_value
