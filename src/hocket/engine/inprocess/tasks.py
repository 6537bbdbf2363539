"""Submission of tasks, actors and calls, which run before `.remote()` returns if possible."""

from __future__ import annotations

from typing import final

from hocket import exceptions
from hocket.engine import checks, contract, kernel_parts, rules, values
from hocket.engine.inprocess import base, payloads, runner, turns
from hocket.kernel import records
from hocket.kernel.records import TaskKind, TaskRecord


@final
class InProcessTasks(contract.Tasks):
    """Takes tasks, actors and calls.

    Args:
        engine: The engine to which the results' handles belong.
        session: The lock and the kernel.
        running: The running tasks, which may submit others.
        mover: The object that runs waiting tasks.
        doer: The runner, which keeps the functions.
        feasibility: The checks of whether tasks can fit.
    """

    def __init__(
        self,
        engine: contract.Engine,
        session: kernel_parts.Session,
        running: base.Running,
        mover: turns.Turns,
        doer: runner.Runner,
        feasibility: kernel_parts.Feasibility,
    ) -> None:
        self._engine, self._session, self._kernel, self._lock = engine, session, session.kernel, session.lock
        self._running, self._turns, self._runner, self._feasibility = running, mover, doer, feasibility

    def submit_task(
        self,
        function: contract.RemoteFunction,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.TaskOptions,
    ) -> list[contract.AnyRef]:
        with self._lock:
            self._session.check_open()
            what = f"Task `{options.name}`"
            self._feasibility.check_feasible(options.shape, exceptions.TaskUnschedulableError, what)
            record = self._runner.add_function(function)
            return self._submit(TaskRecord(*self._encode_call(record, args, kwargs, function.name), options=options))

    def create_actor(
        self,
        actor_class: contract.RemoteFunction,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.ActorOptions,
    ) -> contract.ActorInfo:
        with self._lock:
            self._session.check_open()
            for shape in (options.creation.shape, options.lifetime_shape):
                what = f"Actor `{options.class_name}`"
                self._feasibility.check_feasible(shape, exceptions.ActorUnschedulableError, what)
            if options.name and self._kernel.find_actor(options.namespace, options.name) is not None:
                raise rules.build_name_error(options.name, options.namespace)
            record = self._runner.add_function(actor_class)
            call = self._encode_call(record, args, kwargs, options.class_name)
            task = TaskRecord(*call, options=options.creation, kind=TaskKind.CREATION)
            task.actor_options = options
            ref = self._engine.handles.remember(self._submit(task)[0])
            return contract.ActorInfo(ref=ref, options=options)

    def submit_call(
        self,
        actor: contract.ObjectRef[None],
        method: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.TaskOptions,
    ) -> list[contract.AnyRef]:
        with self._lock:
            if self._session.end is not None:
                rules.raise_ended(self._session.end, options.name)
            task = TaskRecord(*self._encode_call(None, args, kwargs, options.name), options=options, kind=TaskKind.CALL)
            task.actor = checks.get_actor(self._kernel, actor._id)
            task.method = method
            return self._submit(task)

    def cancel(self, ref: contract.ObjectRef[object], *, force: bool, recursive: bool) -> None:
        # This runs no task: the threads that wait run the tasks for which there is room now.
        kernel_parts.cancel(self._session, ref, self._turns.carry_out, force=force, recursive=recursive)

    def _encode_call(
        self, function: records.FunctionRecord | None, args: tuple[object, ...], kwargs: dict[str, object], what: str
    ) -> tuple[int, records.FunctionRecord | None, payloads.Payload | None, tuple[int, ...], tuple[int, ...]]:
        encoded, top = values.encode_arguments(args, kwargs, what)
        dependencies = tuple([ref._id for ref in top])
        payload = None if encoded is None else payloads.build(encoded)
        borrowed = () if encoded is None else tuple([ref._id for ref in encoded.refs])
        return next(self._session.ids), function, payload, dependencies, borrowed

    def _submit(self, task: TaskRecord) -> list[contract.AnyRef]:
        returns = task.options.num_returns
        for _ in range(returns - 1):
            next(self._session.ids)
        found = self._running.find_current()
        if found is not None:
            task.parent = found[1].id
        self._kernel.submit(task)
        refs = [self._engine.handles.build(object_id) for object_id in range(task.id, task.id + abs(returns))]
        self._turns.finish_change()
        return refs
