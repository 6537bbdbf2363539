"""Tasks, actors and calls: from the caller's arguments to the kernel.

A task costs two messages, one each way, and both are batched (see `carrier`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from hocket import exceptions
from hocket.engine import checks, contract, rules, values
from hocket.engine.local import payloads
from hocket.engine.local.driver import events
from hocket.kernel import records
from hocket.kernel.records import DRIVER, TaskKind, TaskRecord

READ_EVERY = 64
"""After so many submissions without a wait, results are read, so that workers never wait for a driver that only
submits."""


class Submission(events.EventHandling):
    """Takes work in."""

    def submit_task(
        self,
        function: contract.RemoteFunction,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.TaskOptions,
    ) -> list[contract.ObjectRef[object]]:
        if args or kwargs:
            encoded, top = values.encode_arguments(args, kwargs, function.name)
        else:
            encoded, top = None, _NOTHING
        stored = self._store_buffers(encoded) if encoded is not None and encoded.buffers else None
        record = self.kernel.functions.get(function.id) or self._add_function(function)
        with self.lock:
            if self.end is not None:
                raise self.end
            shape = options.shape
            if shape is not self._usual_shape and shape not in self._feasible:
                self.check_feasible(shape, exceptions.TaskUnschedulableError, f"Task `{options.name}`")
            task_id = next(self._ids) if options.num_returns == 1 else self._make_ids(options.num_returns)
            arguments = _NO_ARGUMENTS if encoded is None else self._register(encoded, top, stored)
            refs = self._submit(TaskRecord(task_id, record, *arguments, options))
        self._after_submit(refs)
        return refs

    def create_actor(
        self,
        actor_class: contract.RemoteFunction,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.ActorOptions,
    ) -> contract.ActorInfo:
        encoded, top = values.encode_arguments(args, kwargs, options.class_name)
        stored = self._store_buffers(encoded) if encoded is not None and encoded.buffers else None
        record = self.kernel.functions.get(actor_class.id) or self._add_function(actor_class)
        with self.lock:
            if self.end is not None:
                raise self.end
            for shape in (options.creation.shape, options.lifetime_shape):
                self.check_feasible(shape, exceptions.ActorUnschedulableError, f"Actor `{options.class_name}`")
            if options.name:
                self.claim_name(options.name, options.namespace)
            arguments = self._register(encoded, top, stored)
            task = TaskRecord(next(self._ids), record, *arguments, options.creation, kind=TaskKind.CREATION)
            task.actor_options = options
            ref = self.remember(self._submit(task)[0])
        self._after_submit()
        return contract.ActorInfo(ref=ref, options=options)

    def submit_call(
        self,
        actor: contract.ObjectRef[None],
        method: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.TaskOptions,
    ) -> list[contract.ObjectRef[object]]:
        if args or kwargs:
            encoded, top = values.encode_arguments(args, kwargs, options.name)
        else:
            encoded, top = None, _NOTHING
        stored = self._store_buffers(encoded) if encoded is not None and encoded.buffers else None
        with self.lock:
            if self.end is not None:
                rules.raise_ended(self.end, options.name)
            task_id = next(self._ids) if options.num_returns == 1 else self._make_ids(options.num_returns)
            arguments = _NO_ARGUMENTS if encoded is None else self._register(encoded, top, stored)
            task = TaskRecord(task_id, None, *arguments, options, DRIVER, 0, TaskKind.CALL)
            task.actor = self.kernel.actors.get(actor._id) or checks.get_actor(self.kernel, actor._id)
            task.method = method
            refs = self._submit(task)
        self._after_submit(refs)
        return refs

    def _submit(self, task: TaskRecord) -> list[contract.AnyRef]:
        """Hand the task to the kernel and return the references. Called with the lock held."""
        returns = task.options.num_returns
        self.kernel.submit(task)
        if self.kernel.instructions:
            self.carry_out(urgent=False)
        if returns == 1 or returns < 0:
            return [contract.ObjectRef(task.id, self)]
        return [contract.ObjectRef(object_id, self) for object_id in range(task.id, task.id + returns)]

    def _after_submit(self, refs: Sequence[contract.AnyRef] = ()) -> None:
        """Read what has come now and then. What a handler raises here loses the references, and ends their task."""
        self._since_read += 1
        if self._since_read >= READ_EVERY:
            self._since_read = 0
            with self.lock:
                self._drain_dropped()
            self.reactor.handle_arrived()
        if self.guard.noted:
            try:
                self.guard.check()
            except BaseException:
                if refs:
                    self.cancel(refs[0], force=False, recursive=True)
                    threading.Thread(target=self._end_unseen, args=(refs[0],), name="hocket-end", daemon=True).start()
                raise

    def _end_unseen(self, ref: contract.AnyRef) -> None:
        """End a task that nobody has a reference on, if it does not give way."""
        with contextlib.suppress(exceptions.HocketError, ValueError):  # the session has ended; it is a call of an actor
            if not self.wait([ref], 1, contract.GRACE_SECONDS)[0]:
                self.cancel(ref, force=True, recursive=True)

    # --- what is sent along -------------------------------------------------------------------------------------------

    def _add_function(self, function: contract.RemoteFunction) -> records.FunctionRecord:
        """Register the code of a remote function; store large arrays of its closure once. Called without the lock."""
        with self.lock:
            self.functions.watch(function)
            known = self.functions.find(function.id)
        if known is not None:
            return known
        payload: payloads.Payload = (payloads.INLINE, function.blob)
        refs = list(function.captured)  # what its closure refers to lives as long as it can be called
        if function.buffers:
            payload, holder = self._store_buffers(values.Encoded(function.blob, list(function.buffers), []))
            refs += [holder] if holder is not None else []
        with self.lock:  # another thread may have been faster
            return self.functions.find(function.id) or self.functions.add(function.id, payload, refs)

    def _store_buffers(
        self, encoded: values.Encoded, contained: tuple[int, ...] = ()
    ) -> tuple[payloads.Payload, contract.ObjectRef[object] | None]:
        """Return a payload that holds a copy of the buffers, and a handle on its object if it has a segment. Called
        without the lock: bytes are copied, here or to the disk."""
        with self.lock:
            if self.dropped:
                self._drain_dropped()  # what was freed may be used again
            object_id = next(self._ids)
        holder: contract.AnyRef | None = None

        def announce(payload: payloads.Payload) -> None:
            nonlocal holder
            self.kernel.put(object_id, payload, contained, DRIVER)
            holder = contract.ObjectRef(object_id, self)

        payload = self.store.build_payload(encoded, object_id, announce=announce)
        if self.guard.noted:
            self.guard.check()
        return payload, holder

    def _register(
        self,
        encoded: values.Encoded | None,
        top: Sequence[contract.ObjectRef[object]],
        stored: tuple[payloads.Payload, contract.ObjectRef[object] | None] | None,
    ) -> tuple[payloads.Payload | None, tuple[int, ...], tuple[int, ...]]:
        """Return the arguments as a payload, the ids of the dependencies, and those of the references inside."""
        dependencies = tuple([ref._id for ref in top]) if top else ()
        if encoded is None:
            return None, dependencies, ()
        if not encoded.buffers:
            borrowed = tuple([ref._id for ref in encoded.refs]) if encoded.refs else ()
            return (payloads.INLINE, encoded.data), dependencies, borrowed
        assert stored is not None
        payload, holder = stored
        if holder is not None:
            self.kernel.retain(holder._id)  # given back when the task is over
        return payload, dependencies, tuple([ref._id for ref in encoded.refs])

    # --- small answers ------------------------------------------------------------------------------------------------

    def ping(self) -> None:
        """Answer a worker that wants to have heard all that there is to hear."""

    def request_exit(self) -> None:
        """The driver is no actor."""

    def _finish_change(self) -> None:
        """Carry out what the caller changed, and wake whoever waits for it: it may need no message to come about."""
        self.failures += 1
        self.carry_out()
        self.reactor.poke()


_NO_ARGUMENTS: tuple[None, tuple[int, ...], tuple[int, ...]] = (None, (), ())

_NOTHING: list[contract.ObjectRef[object]] = []
