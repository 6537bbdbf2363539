"""Tasks, actors and calls: from the caller's arguments to the kernel.

A task costs two messages, one each way, and both are batched (see `courier`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Final, final

from hocket import exceptions
from hocket.engine import checks, contract, kernel_parts, rules, values
from hocket.engine.local import functions, payloads, reactor
from hocket.engine.local.driver import floor, guardianship, objects
from hocket.kernel import records
from hocket.kernel.records import DRIVER, TaskKind, TaskRecord

READ_EVERY: Final = 64
"""After so many submissions without a wait, the driver reads results: else workers would wait for a driver that only
submits."""


@final
class DriverTasks(contract.Tasks):
    """The intake of tasks, actors and calls.

    Args:
        engine: The engine of the results' handles.
        session: The lock and the kernel.
        base: Carries out the kernel's instructions.
        values_of: Stores large arguments.
        table: The code of functions.
        feasibility: Checks whether resources can be had.
        names: The names of actors.
        parent: The parent of the workers.
        waiters: The threads that wait.
    """

    def __init__(
        self,
        engine: contract.Engine,
        session: kernel_parts.Session,
        base: floor.Floor,
        values_of: objects.DriverObjects,
        table: functions.Functions,
        feasibility: kernel_parts.Feasibility,
        names: kernel_parts.KernelActors,
        parent: guardianship.Guardianship,
        waiters: reactor.Reactor,
    ) -> None:
        self._engine, self._session, self._kernel, self._floor = engine, session, session.kernel, base
        self._lock, self._guard = session.lock, session.guard
        self._objects, self._functions, self._feasibility = values_of, table, feasibility
        self._names, self._parent, self._waiters = names, parent, waiters
        self._since_read = 0

    def expect_work(self, modules: Sequence[str] = ()) -> None:
        with self._lock:
            if self._session.end is None and self._parent.load(modules):
                self._kernel.trim_idle(0)  # each present worker would have to load the modules for itself
                self._floor.carry_out()

    def submit_task(
        self,
        function: contract.RemoteFunction,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.TaskOptions,
    ) -> list[contract.AnyRef]:
        if args or kwargs:
            encoded, top = values.encode_arguments(args, kwargs, function.name)
        else:
            encoded, top = None, _NOTHING
        stored = self._objects.store_buffers(encoded) if encoded is not None and encoded.buffers else None
        known = self._kernel.functions
        record = known[function.id] if function.id in known else self._add_function(function)
        with self._lock:
            if self._session.end is not None:
                raise self._session.end
            shape, feasibility = options.shape, self._feasibility
            if shape is not feasibility.usual and shape not in feasibility.known:
                feasibility.check_feasible(shape, exceptions.TaskUnschedulableError, f"Task `{options.name}`")
            arguments = _NO_ARGUMENTS if encoded is None else self._register(encoded, top, stored)
            returns, ids = options.num_returns, self._session.ids
            task_id = next(ids) if returns == 1 else self._session.make_ids(returns)
            refs = self._submit(TaskRecord(task_id, record, *arguments, options))
        self._since_read += 1
        if self._since_read >= READ_EVERY or self._guard.noted:
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
        stored = self._objects.store_buffers(encoded) if encoded is not None and encoded.buffers else None
        record = self._kernel.functions.get(actor_class.id) or self._add_function(actor_class)
        with self._lock:
            self._session.check_open()
            for shape in (options.creation.shape, options.lifetime_shape):
                self._feasibility.check_feasible(
                    shape, exceptions.ActorUnschedulableError, f"Actor `{options.class_name}`"
                )
            if options.name:
                self._names.claim_name(options.name, options.namespace)
            arguments = self._register(encoded, top, stored)
            task = TaskRecord(next(self._session.ids), record, *arguments, options.creation, kind=TaskKind.CREATION)
            task.actor_options = options
            ref = self._engine.handles.remember(self._submit(task)[0])
        self._since_read += 1
        self._after_submit()
        return contract.ActorInfo(ref=ref, options=options)

    def submit_call(
        self,
        actor: contract.ObjectRef[None],
        method: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.TaskOptions,
    ) -> list[contract.AnyRef]:
        if args or kwargs:
            encoded, top = values.encode_arguments(args, kwargs, options.name)
        else:
            encoded, top = None, _NOTHING
        stored = self._objects.store_buffers(encoded) if encoded is not None and encoded.buffers else None
        with self._lock:
            if self._session.end is not None:
                rules.raise_ended(self._session.end, options.name)
            arguments = _NO_ARGUMENTS if encoded is None else self._register(encoded, top, stored)
            returns, ids = options.num_returns, self._session.ids
            task_id = next(ids) if returns == 1 else self._session.make_ids(returns)
            task = TaskRecord(task_id, None, *arguments, options, DRIVER, 0, TaskKind.CALL)
            task.actor = self._kernel.actors.get(actor._id) or checks.get_actor(self._kernel, actor._id)
            task.method = method
            refs = self._submit(task)
        self._since_read += 1
        if self._since_read >= READ_EVERY or self._guard.noted:
            self._after_submit(refs)
        return refs

    def cancel(self, ref: contract.ObjectRef[object], *, force: bool, recursive: bool) -> None:
        kernel_parts.cancel(self._session, ref, self._floor.finish_change, force=force, recursive=recursive)

    def _submit(self, task: TaskRecord) -> list[contract.AnyRef]:
        """Hand the task to the kernel and return the references. Called with the lock held."""
        returns = task.options.num_returns
        self._kernel.submit(task)
        if self._kernel.instructions:
            self._floor.carry_out(urgent=False)
        if returns == 1 or returns < 0:
            return [contract.ObjectRef(task.id, self._engine)]
        return [contract.ObjectRef(object_id, self._engine) for object_id in range(task.id, task.id + returns)]

    def _after_submit(self, refs: Sequence[contract.AnyRef] = ()) -> None:
        """Read the arrived messages now and then. If a signal's handler raises, the caller gets no references, and the
        task is ended."""
        if self._since_read >= READ_EVERY:
            self._since_read = 0
            with self._lock:
                self._floor.drain_dropped()
            self._waiters.handle_arrived()
        if self._guard.noted:
            try:
                self._guard.check()
            except BaseException:
                if refs:
                    self.cancel(refs[0], force=False, recursive=True)
                    threading.Thread(target=self._end_unseen, args=(refs[0],), name="hocket-end", daemon=True).start()
                raise

    def _end_unseen(self, ref: contract.AnyRef) -> None:
        """End a task without references by force, if it does not end soon."""
        with contextlib.suppress(exceptions.HocketError, ValueError):  # the session has ended; or it is an actor's call
            if not self._objects.wait([ref], 1, contract.GRACE_SECONDS)[0]:
                self.cancel(ref, force=True, recursive=True)

    # --- functions and arguments --------------------------------------------------------------------------------------

    def _add_function(self, function: contract.RemoteFunction) -> records.FunctionRecord:
        """Register the code of a remote function; store large arrays of its closure once. Called without the lock."""
        with self._lock:
            self._functions.watch(function)
            known = self._functions.find(function.id)
        if known is not None:
            return known
        payload: payloads.Payload = (payloads.INLINE, function.blob)
        refs = list(function.captured)  # objects in its closure live as long as it can be called
        if function.buffers:
            encoded = values.Encoded(function.blob, list(function.buffers), [])
            payload, holder = self._objects.store_buffers(encoded)
            refs += [holder] if holder is not None else []
        with self._lock:  # another thread may have been faster
            return self._functions.find(function.id) or self._functions.add(function.id, payload, refs)

    def _register(
        self,
        encoded: values.Encoded | None,
        top: Sequence[contract.AnyRef],
        stored: tuple[payloads.Payload, contract.AnyRef | None] | None,
    ) -> tuple[payloads.Payload | None, tuple[int, ...], tuple[int, ...]]:
        """Return the arguments' payload, the ids of the dependencies, and the ids of references inside arguments."""
        dependencies = tuple([ref._id for ref in top]) if top else ()
        if encoded is None:
            return None, dependencies, ()
        if not encoded.buffers:
            borrowed = tuple([ref._id for ref in encoded.refs]) if encoded.refs else ()
            return (payloads.INLINE, encoded.data), dependencies, borrowed
        assert stored is not None
        payload, holder = stored
        if holder is not None:
            self._kernel.retain(holder._id)  # given back when the task is over
        return payload, dependencies, tuple([ref._id for ref in encoded.refs])


_NO_ARGUMENTS: Final[tuple[None, tuple[int, ...], tuple[int, ...]]] = (None, (), ())

_NOTHING: Final[list[contract.AnyRef]] = []
