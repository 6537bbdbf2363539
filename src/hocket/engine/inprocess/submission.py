"""Tasks, actors and calls: taken in, and run before `.remote()` returns if they can be."""

from __future__ import annotations

from hocket import exceptions
from hocket.engine import callers, checks, contract, rules, values
from hocket.engine.inprocess import carrier, payloads
from hocket.kernel import records
from hocket.kernel.records import TaskKind, TaskRecord


class Submission(carrier.Carrier):
    """Takes work in."""

    def _check_open(self) -> None:
        if self.end is not None:
            raise self.end

    def submit_task(
        self,
        function: contract.RemoteFunction,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.TaskOptions,
    ) -> list[contract.ObjectRef[object]]:
        with self.lock:
            self._check_open()
            self.check_feasible(options.shape, exceptions.TaskUnschedulableError, f"Task `{options.name}`")
            record = self._find_function(function)
            return self._submit(TaskRecord(*self._encode_call(record, args, kwargs, function.name), options=options))

    def create_actor(
        self,
        actor_class: contract.RemoteFunction,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.ActorOptions,
    ) -> contract.ActorInfo:
        with self.lock:
            self._check_open()
            for shape in (options.creation.shape, options.lifetime_shape):
                self.check_feasible(shape, exceptions.ActorUnschedulableError, f"Actor `{options.class_name}`")
            if options.name and self.kernel.find_actor(options.namespace, options.name) is not None:
                raise rules.build_name_error(options.name, options.namespace)
            call = self._encode_call(self._find_function(actor_class), args, kwargs, options.class_name)
            task = TaskRecord(*call, options=options.creation, kind=TaskKind.CREATION)
            task.actor_options = options
            return contract.ActorInfo(ref=self.remember(self._submit(task)[0]), options=options)

    def submit_call(
        self,
        actor: contract.ObjectRef[None],
        method: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.TaskOptions,
    ) -> list[contract.ObjectRef[object]]:
        with self.lock:
            if self.end is not None:
                rules.raise_ended(self.end, options.name)
            task = TaskRecord(*self._encode_call(None, args, kwargs, options.name), options=options, kind=TaskKind.CALL)
            task.actor = checks.get_actor(self.kernel, actor._id)
            task.method = method
            return self._submit(task)

    def _find_function(self, function: contract.RemoteFunction) -> records.FunctionRecord:
        record = self.kernel.functions.get(function.id)
        if record is None:
            record = self.kernel.functions[function.id] = records.FunctionRecord(function.id, function.blob)
            is_class = isinstance(function.value, type)
            self._function_names[function.id] = callers.name_function(function.value, "__init__" if is_class else "")
            if function.buffers:
                self._buffers[function.id] = [bytes(buffer) for buffer in function.buffers]
        return record

    def _encode_call(
        self, function: records.FunctionRecord | None, args: tuple[object, ...], kwargs: dict[str, object], what: str
    ) -> tuple[int, records.FunctionRecord | None, payloads.Payload | None, tuple[int, ...], tuple[int, ...]]:
        encoded, top = values.encode_arguments(args, kwargs, what)
        dependencies = tuple([ref._id for ref in top])
        payload = None if encoded is None else payloads.build(encoded)
        borrowed = () if encoded is None else tuple([ref._id for ref in encoded.refs])
        return next(self._ids), function, payload, dependencies, borrowed

    def _submit(self, task: TaskRecord) -> list[contract.AnyRef]:
        returns = task.options.num_returns
        for _ in range(returns - 1):
            next(self._ids)
        found = self._find_current()
        if found is not None:
            task.parent = found[1].id
        self.kernel.submit(task)
        refs: list[contract.AnyRef] = [
            contract.ObjectRef(object_id, self) for object_id in range(task.id, task.id + abs(returns))
        ]
        self._finish_change()
        return refs

    def request_exit(self) -> None:
        found = self._find_current()
        if found is not None:
            with self.lock:
                self.kernel.exit_actor(found[0])
