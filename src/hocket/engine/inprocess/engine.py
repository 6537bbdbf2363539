"""Everything runs in the caller's process, in the caller's thread, as soon as it can.

The kernel is the same as everywhere; only its instructions are carried out by a plain call. `.remote()` runs the task before
it returns, if its arguments and resources are there; otherwise whoever waits for it runs it. Values are encoded and decoded
as between processes, so a program that forgets to send something, or shares what it should not, fails here too.

What cannot be had here: parallelism, time-outs while user code runs, cancelling a task that runs, and deaths of workers. A wait
that nothing can end raises `DeadlockError` at once, where processes would wait for ever.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Sequence
from typing import Any

from hocket import exceptions
from hocket.engine import contract, node, values
from hocket.kernel import machine, records, resources
from hocket.kernel.machine import Op
from hocket.kernel.records import TaskKind, TaskRecord, WorkerRecord

Payload = tuple[Any, ...]
"""``(is_error, data, buffers)``"""


class InProcessEngine(contract.Engine):
    """The engine of ``hocket.init(engine="inprocess")``."""

    def __init__(self, node_demand: resources.Demand, *, namespace: str) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._namespace = namespace
        self._job_id = uuid.uuid4().hex[:8]
        self._node_id = uuid.uuid4().hex
        self._kernel = machine.Kernel(
            node_demand, max_idle_workers=1 << 30, encode_error=_encode_error, none_value=_encode(None)[0]
        )
        self._ids = itertools.count(1)
        self._runnable: deque[tuple[WorkerRecord, TaskRecord]] = deque()
        self._instances: dict[int, Any] = {}
        self._stack: list[tuple[WorkerRecord, TaskRecord]] = []
        self._errors: deque[exceptions.ErrorRecord] = deque(maxlen=1000)
        self._is_closed = False

    # --- work ---------------------------------------------------------------------------------------------------------

    def submit_task(
        self,
        function: contract.RemoteFunction,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: records.TaskOptions,
    ) -> list[contract.ObjectRef[Any]]:
        with self._lock:
            self._check_open()
            self._check_feasible(options.shape, exceptions.TaskUnschedulableError, f"Task `{options.name}`")
            record = self._find_function(function)
            return self._submit(TaskRecord(*self._encode_call(record, args, kwargs, function.name), options=options))

    def create_actor(
        self,
        actor_class: contract.RemoteFunction,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: records.ActorOptions,
    ) -> contract.ActorInfo:
        with self._lock:
            self._check_open()
            for shape in (options.creation.shape, options.lifetime_shape):
                self._check_feasible(shape, exceptions.ActorUnschedulableError, f"Actor `{options.class_name}`")
            if options.name and self._kernel.find_actor(options.namespace, options.name) is not None:
                raise exceptions.ActorAlreadyExistsError(
                    f"The name {options.name!r} is taken by another actor in namespace {options.namespace!r}. Choose another "
                    f"name, or get the existing one with hocket.get_actor({options.name!r})."
                )
            call = self._encode_call(self._find_function(actor_class), args, kwargs, options.class_name)
            task = TaskRecord(*call, options=options.creation, kind=TaskKind.CREATION)
            task.actor_options = options
            return contract.ActorInfo(ref=self.remember(self._submit(task)[0]), options=options)

    def submit_call(
        self,
        actor: contract.ObjectRef[None],
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: records.TaskOptions,
    ) -> list[contract.ObjectRef[Any]]:
        with self._lock:
            self._check_open()
            task = TaskRecord(*self._encode_call(None, args, kwargs, options.name), options=options, kind=TaskKind.CALL)
            task.actor = self._kernel.actors[actor._id]
            task.method = method
            return self._submit(task)

    def _check_open(self) -> None:
        if self._is_closed:
            raise exceptions.SessionClosedError("The session was shut down. Call hocket.init() to open a new one.")

    def _check_feasible(
        self, shape: resources.Shape, kind: type[exceptions.InfeasibleResourcesError], what: str
    ) -> None:
        if not self._kernel.could_ever_fit(shape):
            raise kind(node.explain_infeasible(what, shape, self.get_total_resources()))

    def _find_function(self, function: contract.RemoteFunction) -> records.FunctionRecord:
        record = self._kernel.functions.get(function.id)
        if record is None:
            record = self._kernel.functions[function.id] = records.FunctionRecord(function.id, function.blob)
        return record

    def _encode_call(
        self, function: records.FunctionRecord | None, args: tuple[Any, ...], kwargs: dict[str, Any], what: str
    ) -> tuple[int, records.FunctionRecord | None, Payload | None, tuple[int, ...], tuple[int, ...]]:
        encoded, top = values.encode_arguments(args, kwargs, what)
        dependencies = tuple([ref._id for ref in top])
        payload = None if encoded is None else (False, encoded.data, [bytes(buffer) for buffer in encoded.buffers])
        borrowed = () if encoded is None else tuple([ref._id for ref in encoded.refs])
        return next(self._ids), function, payload, dependencies, borrowed

    def _submit(self, task: TaskRecord) -> list[contract.ObjectRef[Any]]:
        returns = task.options.num_returns
        for _ in range(returns - 1):
            next(self._ids)
        if self._stack:
            task.parent = self._stack[-1][1].id
        self._kernel.submit(task)
        refs: list[contract.ObjectRef[Any]] = [
            contract.ObjectRef(object_id, self) for object_id in range(task.id, task.id + returns)
        ]
        self._carry_out()
        self._run_all()
        return refs

    def find_actor(self, name: str, namespace: str) -> contract.ActorInfo | None:
        with self._lock:
            actor = self._kernel.find_actor(namespace, name)
            if actor is None or actor.id not in self._kernel.objects:
                return None
            return contract.ActorInfo(ref=self.intern(actor.id), options=actor.options)

    def kill_actor(self, actor: contract.ObjectRef[None]) -> None:
        with self._lock:
            self._kernel.kill_actor(actor._id)
            self._carry_out()

    def cancel(self, ref: contract.ObjectRef[Any], *, force: bool, recursive: bool) -> None:
        with self._lock:
            self._kernel.cancel(ref._id, force=force, recursive=recursive)
            self._carry_out()

    # --- carrying out -------------------------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        kernel = self._kernel
        while kernel.instructions:
            batch, kernel.instructions = kernel.instructions, []
            for instruction in batch:
                match instruction:
                    case (Op.RUN, WorkerRecord() as worker, TaskRecord() as task):
                        self._runnable.append((worker, task))
                    case (Op.STOP | Op.KILL, WorkerRecord() as worker):
                        self._instances.pop(worker.id, None)
                        kernel.lose(worker, exceptions.Death(pid=os.getpid(), expected=True), 0)
                    case (Op.CANCEL, WorkerRecord() as worker, int(task_id)):
                        self._cancel_runnable(worker, task_id)

    def _cancel_runnable(self, worker: WorkerRecord, task_id: int) -> None:
        for entry in list(self._runnable):
            if entry[1].id == task_id:
                self._runnable.remove(entry)
                error = exceptions.TaskCancelledError(
                    f"Task `{entry[1].options.name}` was cancelled before it started."
                )
                self._kernel.fail(worker, task_id, _encode_error(error), retryable=False)

    def _run_all(self) -> None:
        """Run what can run. A task in here may submit more, which runs in the inner call or the outer one."""
        while self._runnable:
            worker, task = self._runnable.popleft()
            if worker.id in self._kernel.workers and task.id in worker.inflight:
                self._run(worker, task)
            self._drain_dropped()
            self._carry_out()

    def _run(self, worker: WorkerRecord, task: TaskRecord) -> None:
        started = time.perf_counter()
        self._stack.append((worker, task))
        try:
            results = self._call(worker, task)
            encoded = [_encode(value, f"the result of `{task.options.name}`") for value in results]
        except Exception as error:  # noqa: BLE001 (whatever the user's code raises is the caller's to see)
            self._fail(worker, task, error)
        else:
            self._kernel.finish(worker, task.id, time.perf_counter() - started, encoded)
        finally:
            self._stack.pop()

    def _call(self, worker: WorkerRecord, task: TaskRecord) -> tuple[Any, ...]:
        args, kwargs = self._open_arguments(task)
        if task.kind == TaskKind.CALL:
            result = getattr(self._instances[worker.id], task.method)(*args, **kwargs)
        else:
            assert task.function is not None
            result = values.decode(task.function.blob)(*args, **kwargs)
        if task.kind == TaskKind.CREATION:
            self._instances[worker.id] = result
            return (None,)
        count = task.options.num_returns
        if count == 1:
            return (result,)
        results = tuple(result) if count else ()
        if len(results) != count:
            raise ValueError(
                f"Task `{task.options.name}` has num_returns={count} but returned {len(results)} values. Return exactly {count}."
            )
        return results

    def _open_arguments(self, task: TaskRecord) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if task.args is None:
            return (), {}
        args, kwargs = _decode(task.args)
        found = [_decode(self._kernel.objects[object_id].value or ()) for object_id in task.dependencies]
        return values.fill_slots(args, kwargs, found)

    def _fail(self, worker: WorkerRecord, task: TaskRecord, error: Exception) -> None:
        cause = error.cause if isinstance(error, exceptions.TaskError) else error
        asked = task.options.retry_exceptions
        retryable = asked is True or (asked is not False and isinstance(cause, asked))
        if not (retryable and task.retries_left):
            record = exceptions.ErrorRecord(
                task_id=f"{task.id:016x}",
                name=task.options.name,
                error_type=type(cause).__name__,
                message=str(cause),
                timestamp=time.time(),
            )
            self._errors.append(record)
        if not isinstance(error, exceptions.HocketError):
            frames = error.__traceback__
            while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
                frames = frames.tb_next
            text = "".join(traceback.format_exception(type(error), error, frames))
            error = exceptions.TaskError(task.options.name, text, error)
        self._kernel.fail(worker, task.id, _encode_error(error), retryable=retryable)

    # --- values -------------------------------------------------------------------------------------------------------

    def put(self, value: Any) -> contract.ObjectRef[Any]:
        with self._lock:
            self._check_open()
            self._drain_dropped()
            object_id = next(self._ids)
            payload, contained = _encode(value)
            self._kernel.put(object_id, payload, contained, records.DRIVER)
            return contract.ObjectRef(object_id, self)

    def get(self, refs: Sequence[contract.ObjectRef[Any]], timeout_s: float | None) -> list[Any]:
        with self._lock:
            found = []
            for ref in refs:
                record = self._kernel.objects.get(ref._id)
                if record is None or ref._engine is not self:
                    raise exceptions.ObjectLostError(f"{ref!r} belongs to a session that is closed.")
                found.append(record)
            if any(record.value is None for record in found):
                self._make(found, timeout_s)
            return [self._open(record) for record in found]

    def _make(self, wanted: list[records.ObjectRecord], timeout_s: float | None) -> None:
        """Run what stands in the way of these objects."""
        worker = self._stack[-1][0] if self._stack else None
        if worker is not None:
            self._kernel.block(worker, [])
        try:
            self._carry_out()
            self._run_all()
        finally:
            if worker is not None:
                self._kernel.unblock(worker)
        failed = next((record for record in wanted if record.failed), None)
        if failed is not None:
            self._open(failed)
        missing = [record for record in wanted if record.value is None]
        if missing and timeout_s is not None:
            raise exceptions.GetTimeoutError(
                f"{len(missing)} of {len(wanted)} objects were not there after {timeout_s} s."
            )
        if missing:
            raise exceptions.DeadlockError(
                f"{len(missing)} objects can never be made: nothing that would make them can run. Look for a task that waits for "
                "itself, or for a placement group that is not reserved."
            )

    def _open(self, record: records.ObjectRecord) -> Any:
        assert record.value is not None
        if record.failed:
            exceptions.raise_stored(_decode(record.value))
        return _decode(record.value)

    def wait(self, refs: Sequence[contract.ObjectRef[Any]], num_ready: int, timeout_s: float | None) -> list[bool]:
        with self._lock:
            self._run_all()
            left = num_ready
            there = []
            for ref in refs:
                is_there = left > 0 and self._kernel.objects[ref._id].value is not None
                left -= is_there
                there.append(is_there)
            if left and timeout_s is None:
                raise exceptions.DeadlockError(f"Only {num_ready - left} of {num_ready} objects can ever be there.")
            return there

    # --- resources ----------------------------------------------------------------------------------------------------

    def reserve(self, bundles: Sequence[resources.Demand], strategy: str, name: str) -> contract.ObjectRef[None]:
        with self._lock:
            self._check_open()
            node.check_bundles(self._kernel.pool, bundles, strategy, self.get_total_resources())
            group = records.GroupRecord(next(self._ids), tuple(bundles), strategy, name)
            self._kernel.reserve(group)
            self._carry_out()
            self._run_all()
            return contract.ObjectRef(group.id, self)

    def remove_group(self, group_id: int) -> None:
        with self._lock:
            self._kernel.remove_group(group_id)
            self._carry_out()
            self._run_all()

    def list_groups(self) -> list[dict[str, Any]]:
        return [node.describe_group(group) for group in self._kernel.groups.values()]

    def list_nodes(self) -> list[dict[str, Any]]:
        return [node.describe_node(self._node_id, self.get_total_resources())]

    def get_total_resources(self) -> dict[str, float]:
        return {name: units / resources.UNIT for name, units in self._kernel.pool.total.items()}

    def get_free_resources(self) -> dict[str, float]:
        return {name: units / resources.UNIT for name, units in self._kernel.pool.free.items() if units > 0}

    # --- looking, and the end -----------------------------------------------------------------------------------------

    def get_context(self) -> contract.WorkContext:
        common: dict[str, Any] = {"job_id": self._job_id, "node_id": self._node_id}
        if not self._stack:
            return contract.WorkContext(**common, worker_id=f"{0:016x}", namespace=self._namespace)
        worker, task = self._stack[-1]
        actor = worker.actor
        shape = task.options.shape if actor is None else actor.options.lifetime_shape
        return contract.WorkContext(
            **common,
            worker_id=f"{worker.id:016x}",
            task_id=f"{task.id:016x}",
            task_name=task.options.name,
            actor_id=f"{actor.id:016x}" if actor is not None else None,
            resources={name: units / resources.UNIT for name, units in shape.demand},
            gpu_ids=worker.allocation.gpu_ids if worker.allocation is not None else (),
            placement_group_id=f"{shape.group_id:016x}" if shape.group_id else None,
            namespace=self._namespace if actor is None else actor.options.namespace,
            attempt=task.attempt,
        )

    def list_errors(self) -> list[exceptions.ErrorRecord]:
        return list(self._errors)

    def statistics(self) -> dict[str, Any]:
        with self._lock:
            self._drain_dropped()
            kernel = self._kernel
            return {
                "tasks": len(kernel.tasks),
                "objects": len(kernel.objects),
                "actors": len(kernel.actors),
                "workers": 0,
                "worker_pids": [],
                "guardian_pid": None,
                "shared_bytes": 0,
            }

    def adopt(self, object_id: int) -> None:
        if object_id not in self._kernel.objects:
            raise exceptions.ObjectLostError(
                f"ObjectRef({object_id:016x}) is unknown: it was freed or is of another session."
            )
        self._kernel.retain(object_id)

    def _drain_dropped(self) -> None:
        while self.dropped:
            object_id = self.dropped.popleft()
            self.forget(object_id)
            self._kernel.release(object_id)
        self._carry_out()

    def close(self) -> None:
        self._is_closed = True
        self._instances.clear()
        self.pinned.clear()


def _encode(value: Any, what: str = "value") -> tuple[Payload, tuple[int, ...]]:
    encoded = values.encode(value, what)
    return (False, encoded.data, [bytes(buffer) for buffer in encoded.buffers]), tuple(
        [ref._id for ref in encoded.refs]
    )


def _encode_error(error: BaseException) -> Payload:
    return (True, values.encode_error(error), [])


def _decode(payload: Payload) -> Any:
    return values.decode(payload[1], [bytearray(buffer) for buffer in payload[2]])
