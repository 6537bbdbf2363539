"""Everything runs in the caller's process, in the caller's thread, as soon as it can.

The kernel is the same as everywhere; only its instructions are carried out by a plain call. `.remote()` runs the task before
it returns, if its arguments and resources are there; otherwise whoever waits for it runs it. Values are encoded and decoded
as between processes, so a program that forgets to send something, or shares what it should not, fails here too.

A coroutine that waits for time or for a socket goes on while somebody waits: in `get` and `wait`, in the event loop that awaits a
reference, or, for a `concurrent.futures` future, in a thread that lives for as long as one is open (`turning`).

What cannot be had here: parallelism, time-outs while user code runs, cancelling a task that runs, deaths of workers, and calls by
other threads while a task runs (they go on when it is over). A wait that nothing can end raises `DeadlockError` at once, where
processes would wait for ever; only who awaits a reference or a future waits, because others may still act.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import itertools
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from hocket import exceptions, texts
from hocket.engine import callers, checks, contract, forks, inspection, interrupts, items, methods, node, rules, values
from hocket.engine.inprocess import coroutines, entrance, surroundings, turning
from hocket.kernel import machine, records, resources
from hocket.kernel.instructions import Op
from hocket.kernel.records import TaskKind, TaskRecord, WorkerRecord

Payload = tuple[Any, ...]
"""``(is_error, data, buffers)``"""


class InProcessEngine(contract.Engine):
    """The engine of ``hocket.init(engine="inprocess")``."""

    name = "inprocess"
    limits: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "parallelism": "A task runs in the thread of whoever asks for it, so the driver cannot do something else while it runs or waits. "
            "A generator runs to its end, so one without an end does not return.",
            "processes": "There are no worker processes, which could be told apart, looked at, killed, or given what a process has.",
        }
    )

    def __init__(
        self, node_demand: resources.Demand, *, namespace: str, labels: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        super().__init__()
        self._lock = entrance.Entrance()
        self._guard = interrupts.InterruptGuard(self._lock)
        self._lock.check = self._guard.check
        self._guard.install()
        self._namespace = namespace
        self._labels = dict(labels)
        self._job_id = os.urandom(4).hex()
        self._node_id = os.urandom(16).hex()
        self._kernel = machine.Kernel(
            node_demand,
            max_idle_workers=1 << 30,
            gpu_ids=node.name_gpus(node_demand),
            encode_error=_encode_error,
            error_mark=True,
            none_value=_encode(None)[0],
            end_value=_encode_error(exceptions.ObjectRefStreamEndOfStreamError("The generator has ended.")),
        )
        self._ids = itertools.count(1)
        self._runnable: deque[tuple[WorkerRecord, TaskRecord]] = deque()
        self._instances: dict[int, Any] = {}
        self._stack: list[tuple[WorkerRecord, TaskRecord]] = []
        #: When each task that runs was started, by `time.perf_counter`.
        self._starts: dict[int, float] = {}
        self._loops: dict[int, coroutines.Loop] = {}
        self._callbacks: dict[int, list[Callable[[], None]]] = {}
        self._turner = turning.Turner(self._lock, self._turn)
        self._errors: deque[exceptions.ErrorRecord] = deque(maxlen=1000)
        #: Large arrays that functions refer to.
        self._buffers: dict[bytes, list[bytes]] = {}
        #: Full names, by the function's id.
        self._function_names: dict[bytes, str] = {}
        self._is_closed = False
        self._scene = inspection.Scene(
            kernel=self._kernel,
            job_id=self._job_id,
            node_id=self._node_id,
            namespace=namespace,
            labels=self._labels,
            driver_pid=os.getpid(),
            entrypoint=" ".join(sys.orig_argv),
            opened_at=time.time(),
            get_pid=lambda worker_id: os.getpid(),
            find_running=lambda worker: (0, 0.0),
            starts=self._starts,
            measure=lambda payload: len(payload[1]) + sum(map(len, payload[2])),
            locate=lambda payload: "",
            errors=self._errors,
        )

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
                raise rules.build_name_error(options.name, options.namespace)
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
            if self._is_closed:
                rules.raise_ended(exceptions.SessionClosedError(), options.name)
            task = TaskRecord(*self._encode_call(None, args, kwargs, options.name), options=options, kind=TaskKind.CALL)
            task.actor = checks.get_actor(self._kernel, actor._id)
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
            is_class = isinstance(function.value, type)
            self._function_names[function.id] = callers.name_function(function.value, "__init__" if is_class else "")
            if function.buffers:
                self._buffers[function.id] = [bytes(buffer) for buffer in function.buffers]
        return record

    def _encode_call(
        self, function: records.FunctionRecord | None, args: tuple[Any, ...], kwargs: dict[str, Any], what: str
    ) -> tuple[int, records.FunctionRecord | None, Payload | None, tuple[int, ...], tuple[int, ...]]:
        encoded, top = values.encode_arguments(args, kwargs, what)
        dependencies = tuple([ref._id for ref in top])
        payload = None if encoded is None else _build_payload(encoded)
        borrowed = () if encoded is None else tuple([ref._id for ref in encoded.refs])
        return next(self._ids), function, payload, dependencies, borrowed

    def _submit(self, task: TaskRecord) -> list[contract.ObjectRef[Any]]:
        returns = task.options.num_returns
        for _ in range(returns - 1):
            next(self._ids)
        found = self._find_current()
        if found is not None:
            task.parent = found[1].id
        self._kernel.submit(task)
        refs: list[contract.ObjectRef[Any]] = [
            contract.ObjectRef(object_id, self) for object_id in range(task.id, task.id + abs(returns))
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

    def list_named_actors(self) -> list[tuple[str, str]]:
        with self._lock:
            return list(self._kernel.names)

    def describe_actor(self, actor_id: int) -> contract.ActorInfo:
        with self._lock:
            actor = checks.get_actor(self._kernel, actor_id)
            return contract.ActorInfo(ref=self.intern(actor_id), options=actor.options)

    def kill_actor(self, actor: contract.ObjectRef[None], *, no_restart: bool = True) -> None:
        with self._lock:
            self._kernel.kill_actor(actor._id, no_restart=no_restart)
            self._carry_out()
            self._run_all()

    def request_exit(self) -> None:
        found = self._find_current()
        if found is not None:
            with self._lock:
                self._kernel.exit_actor(found[0])

    def check_pending(self, actor: contract.ObjectRef[None]) -> None:
        with self._lock:
            checks.check_pending(self._kernel, actor._id, records.DRIVER)

    def cancel(self, ref: contract.ObjectRef[Any], *, force: bool, recursive: bool) -> None:
        with self._lock:
            if force:
                checks.check_forcible(self._kernel, ref._id)
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
                    case (Op.TELL, 0, int(object_id)):
                        for callback in self._callbacks.pop(object_id, ()):
                            callback()
                    case (Op.STOP | Op.KILL as op, WorkerRecord() as worker):
                        self._end_worker(worker, op == Op.STOP)
                        kernel.lose(worker, exceptions.Death(pid=os.getpid(), expected=True), ())
                    case (Op.END, WorkerRecord() as worker, int(task_id)):
                        self._end_task(worker, task_id)
                    case (Op.CANCEL, WorkerRecord() as worker, int(task_id), _):
                        self._cancel_runnable(worker, task_id)

    def _end_worker(self, worker: WorkerRecord, is_graceful: bool) -> None:
        instance = self._instances.pop(worker.id, None)
        loop = self._loops.pop(worker.id, None)
        hook = getattr(instance, "__ray_shutdown__", None) if is_graceful else None
        if hook is not None:
            farewell = hook()
            if inspect.isawaitable(farewell) and loop is not None:
                loop.complete(farewell)
        if loop is not None:
            loop.close()

    def _end_task(self, worker: WorkerRecord, task_id: int) -> None:
        """End the worker if this is what it runs; else see to it that the task is not started."""
        if any(task.id == task_id for _, task in self._runnable):
            self._cancel_runnable(worker, task_id)
            return
        worker.killed = True
        self._end_worker(worker, is_graceful=False)
        self._kernel.lose(worker, exceptions.Death(pid=os.getpid(), expected=True), {task_id})

    def _cancel_runnable(self, worker: WorkerRecord, task_id: int) -> None:
        loop = self._loops.get(worker.id)
        if loop is not None:
            loop.cancel(task_id)
        for entry in list(self._runnable):
            if entry[1].id == task_id:
                self._runnable.remove(entry)
                error = exceptions.TaskCancelledError(
                    f"Task `{entry[1].options.name}` was cancelled before it started."
                )
                self._kernel.fail(
                    worker, task_id, _encode_error(error), retryable=False, error_type=type(error).__name__
                )

    def _run_all(self) -> None:
        """Run what can run. A task in here may submit more, which runs in the inner call or the outer one."""
        while self._runnable:
            worker, task = self._runnable.popleft()
            if worker.id in self._kernel.workers and task.id in worker.inflight:
                self._run(worker, task)
            self._drain_dropped()
            self._carry_out()
            if not self._runnable:
                self._spin()

    def _spin(self) -> None:
        """Let coroutines run as far as they come."""
        for worker_id, loop in list(self._loops.items()):
            with self._lock.open():
                loop.spin()
            worker = self._kernel.workers.get(worker_id)
            if worker is not None and worker.actor is None:  # it ended itself
                self._end_worker(worker, is_graceful=True)
                self._kernel.lose(worker, exceptions.Death(pid=os.getpid(), expected=True), ())
        self._carry_out()

    def _run(self, worker: WorkerRecord, task: TaskRecord) -> None:
        loop = self._loops.get(worker.id)
        if loop is not None and task.kind == TaskKind.CALL:
            loop.start(task.id, self._run_coroutine(worker, task))
            return
        started = self._starts[task.id] = time.perf_counter()
        inherited, self.inherited = self.inherited, self._build_inherited(task)
        self._stack.append((worker, task))
        token = _current.set((worker, task))
        has_actor = worker.actor is not None
        try:
            with surroundings.take_on(task.options.shape.environment):
                result = self._call(worker, task)
                if task.options.num_returns < 0:
                    for index, item in enumerate(self._iterate(result)):
                        self._yield_item(worker, task, index, item)
                    result = None
        except exceptions.ActorExit:
            self._kernel.exit_actor(worker)
        except KeyboardInterrupt as error:
            self._fail(worker, task, error, started)
            if self._guard.is_own(error):  # Ctrl-C: the task is over, and so is what the program was about
                raise
        except SystemExit as request:  # where there are processes, this ends one
            code = request.code if isinstance(request.code, int) else 0 if request.code is None else 1
            self._end_worker(worker, is_graceful=False)
            self._kernel.lose(worker, exceptions.Death(pid=os.getpid(), exit_code=code), {task.id})
        except BaseException as error:  # noqa: BLE001 (whatever the user's code raises is the caller's to see)
            self._fail(worker, task, error, started)
        else:
            self._finish(worker, task, result, started)
        finally:
            self.inherited = inherited
            self._stack.pop()
            _current.reset(token)
            self._starts.pop(task.id, None)
            if (
                has_actor and worker.actor is None and worker.killed
            ):  # it ended itself, whatever became of the exception
                self._end_worker(worker, is_graceful=True)
                self._kernel.lose(worker, exceptions.Death(pid=os.getpid(), expected=True), ())

    def _build_inherited(self, task: TaskRecord) -> contract.Inherited | None:
        shape = task.options.shape if task.actor is None else task.actor.options.lifetime_shape
        inherited = contract.Inherited(shape.environment, shape.group_id if shape.captures_children else 0)
        return inherited if inherited != contract.NOTHING_INHERITED else None

    async def _run_coroutine(self, worker: WorkerRecord, task: TaskRecord) -> None:
        """Run a call of an asynchronous actor; it may wait in the middle while others run."""
        _current.set((worker, task))
        started = self._starts[task.id] = time.perf_counter()
        try:
            result = self._call(worker, task)
            if inspect.isawaitable(result) and not isinstance(result, contract.ObjectRef):
                result = await result
            if task.options.num_returns < 0:
                index = 0
                async for item in coroutines.iterate_async(result):
                    with self._lock:
                        self._yield_item(worker, task, index, item)
                    index += 1
                result = None
        except exceptions.ActorExit:
            self._kernel.exit_actor(worker)
        except BaseException as error:  # noqa: BLE001 (whatever the user's code raises is the caller's to see)
            cancelled = exceptions.TaskCancelledError(f"Call `{task.options.name}` was cancelled while it ran.")
            with self._lock:
                self._fail(worker, task, cancelled if task.cancelled else error, started)
        else:
            with self._lock:
                self._finish(worker, task, result, started)
        finally:
            self._starts.pop(task.id, None)

    def _yield_item(self, worker: WorkerRecord, task: TaskRecord, index: int, item: Any) -> None:
        payload, contained = _encode(item, f"item {index} of `{task.options.name}`")
        self._kernel.yield_item(worker, task.id, index, payload, contained)
        self._carry_out()

    def _finish(self, worker: WorkerRecord, task: TaskRecord, result: Any, started: float) -> None:
        """Store what a task returned; what cannot travel is its error."""
        try:
            results = self._split(task, result)
            encoded = [
                (_encode_error(rules.wrap_error(task.options.name, value.error)), ())
                if type(value) is items.Failure
                else _encode(value, f"the result of `{task.options.name}`")
                for value in results
            ]
        except BaseException as error:  # noqa: BLE001 (a user's __reduce__ may raise anything)
            self._fail(worker, task, error, started)
        else:
            failure = next((value.error for value in results if type(value) is items.Failure), None)
            if failure is not None:
                if _is_retryable(task, failure):
                    self._fail(worker, task, failure, started)
                    return
                task.error_type = texts.name_class(type(failure))
                self._note(task, failure)
            self._kernel.finish(worker, task.id, time.perf_counter() - started, encoded, started)

    def _iterate(self, result: Any) -> Iterator[Any]:
        """Yield what a generator of the user's yields."""
        items = iter(coroutines.iterate(result))
        while True:
            with self._lock.open():
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item

    def _call(self, worker: WorkerRecord, task: TaskRecord) -> Any:
        args, kwargs = self._open_arguments(task)
        if task.kind == TaskKind.CALL:
            method = self._find_method(self._instances[worker.id], task.method)
            with self._lock.open():
                return self._take_items(worker, task, method, method(*args, **kwargs))
        assert task.function is not None
        buffers = self._buffers.get(task.function.id, ())
        function = values.decode(task.function.blob, [bytearray(buffer) for buffer in buffers])
        options = task.actor_options
        loop = coroutines.Loop(options.max_concurrency) if options is not None and options.is_async else None
        with self._lock.open():
            if loop is None:
                result = self._take_items(worker, task, function, function(*args, **kwargs))
            else:
                result = loop.build(functools.partial(function, *args, **kwargs))
        if task.kind != TaskKind.CREATION:
            return result
        self._instances[worker.id] = result
        if loop is not None:
            self._loops[worker.id] = loop
        return None

    def _take_items(self, worker: WorkerRecord, task: TaskRecord, function: Any, result: Any) -> Any:
        """Return the results of a call whose generator is to give so many; a coroutine that does on an event loop."""
        count, name = task.options.num_returns, task.options.name
        if not items.is_to_be_taken(result, count, function):
            return result
        if worker.id in self._loops:
            return items.take_async(result, count, name)
        return items.take(coroutines.iterate(result), count, name)

    def _find_method(self, instance: Any, name: str) -> Any:
        if name == "__ray_ready__":
            return lambda: True
        if name == "__ray_call__":
            return lambda function, *args, **kwargs: function(instance, *args, **kwargs)
        if name == "__ray_terminate__":
            return _terminate
        return methods.get_method(instance, name)

    def _split(self, task: TaskRecord, result: Any) -> tuple[Any, ...]:
        count = task.options.num_returns
        if abs(count) == 1:
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
        args, kwargs = _decode(task.args, self._hold_all(task.borrowed))
        found = []
        for object_id in task.dependencies:
            record = self._kernel.objects[object_id]
            assert record.value is not None
            found.append(_decode(record.value, self._hold_all(record.contained)))
        return values.fill_slots(args, kwargs, found)

    def _fail(self, worker: WorkerRecord, task: TaskRecord, error: BaseException, started: float) -> None:
        seconds = time.perf_counter() - started
        if issubclass(type(error), KeyboardInterrupt):
            error = rules.build_interrupted(task.options.name, error)
        cause = exceptions.get_cause(error)
        retryable = _is_retryable(task, cause)
        if not retryable:
            self._note(task, cause)
        self._kernel.fail(
            worker,
            task.id,
            _encode_error(rules.wrap_error(task.options.name, error)),
            retryable=retryable,
            error_type=texts.name_class(type(cause)),
            started=started,
            seconds=seconds,
        )

    def _note(self, task: TaskRecord, cause: BaseException) -> None:
        """Remember a failure for `error_info`."""
        record = exceptions.ErrorRecord(
            task_id=f"{task.id:016x}",
            name=task.options.name,
            error_type=texts.name_class(type(cause)),
            message=texts.safe_text(cause),
            timestamp=time.time(),
        )
        self._errors.append(record)

    # --- values -------------------------------------------------------------------------------------------------------

    def put(self, value: Any) -> contract.ObjectRef[Any]:
        with self._lock:
            self._check_open()
            self._drain_dropped()
            object_id = next(self._ids)
            payload, contained = _encode(value)
            self._kernel.put(object_id, payload, contained, records.DRIVER)
            return contract.ObjectRef(object_id, self)

    def put_error(self, error: exceptions.TaskError) -> contract.ObjectRef[Any]:
        with self._lock:
            object_id = next(self._ids)
            self._kernel.put(object_id, _encode_error(error), (), records.DRIVER, failed=True)
            return contract.ObjectRef(object_id, self)

    def get(self, refs: Sequence[contract.ObjectRef[Any]], timeout_s: float | None) -> list[Any]:
        with self._lock:
            found = []
            for ref in refs:
                record = self._kernel.objects.get(ref._id)
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
                f"{len(missing)} objects can never be made: nothing that would make them can run. Look for a task that waits for "
                "itself, or for a placement group that is not reserved."
            )

    def _turn_until(self, is_enough: Callable[[], bool], timeout_s: float | None) -> None:
        """Run what can run, and wait for timers, sockets and threads that coroutines wait for, until it is enough or in vain."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        found = self._find_current()
        if found is not None:
            self._kernel.block(found[0], [])
        try:
            self._carry_out()
            self._run_all()
            while not is_enough():
                left = turning.PAUSE_S if deadline is None else min(turning.PAUSE_S, deadline - time.monotonic())
                loops = [loop for loop in self._loops.values() if loop.can_go_on()]
                if not loops or left <= 0:
                    return
                for loop in loops:
                    with self._lock.open():
                        loop.spin(wait_s=left / len(loops))
                self._spin()
                self._run_all()
        finally:
            if found is not None:
                self._kernel.unblock(found[0])

    def _turn(self) -> bool:
        """Let coroutines and tasks run as far as they come; tell whether somebody outside still waits for some."""
        if not self._is_closed:
            self._spin()
            self._run_all()
        return bool(self._callbacks)

    def _open(self, record: records.ObjectRecord) -> Any:
        assert record.value is not None
        if record.failed:
            exceptions.raise_stored(_decode(record.value))
        return _decode(record.value, self._hold_all(record.contained))

    def _hold_all(self, object_ids: tuple[int, ...]) -> list[contract.ObjectRef[Any]]:
        return [self.intern(object_id) for object_id in object_ids]

    def wait(self, refs: Sequence[contract.ObjectRef[Any]], num_ready: int, timeout_s: float | None) -> list[bool]:
        with self._lock:
            wanted = [self._kernel.objects[ref._id] for ref in refs]
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

    def when_done(self, ref: contract.ObjectRef[Any], callback: Callable[[], None]) -> None:
        with self._lock:
            record = self._kernel.objects.get(ref._id)
            if record is not None and record.value is None and not self._is_closed:
                self._callbacks.setdefault(ref._id, []).append(callback)
                self._kernel.watch(ref._id, records.DRIVER)
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

    # --- generators ---------------------------------------------------------------------------------------------------

    def take_item(self, stream: contract.ObjectRef[Any], index: int) -> contract.ObjectRef[Any]:
        with self._lock:
            return contract.ObjectRef(self._kernel.take_item(stream._id, index), self)

    def is_end(self, item: contract.ObjectRef[Any], timeout_s: float | None) -> bool | None:
        with self._lock:
            record = self._kernel.objects[item._id]
            if record.value is None and timeout_s != 0:
                self._make([record], timeout_s)
            return None if record.value is None else record.value is self._kernel.end_value

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
        return [node.describe_group(group) for group in (*self._kernel.groups.values(), *self._kernel.removed_groups)]

    def list_nodes(self) -> list[dict[str, Any]]:
        return [node.describe_node(self._node_id, self.get_total_resources(), self._labels)]

    def get_total_resources(self) -> dict[str, float]:
        return {name: units / resources.UNIT for name, units in self._kernel.pool.total.items()}

    def get_free_resources(self) -> dict[str, float]:
        return {name: units / resources.UNIT for name, units in self._kernel.pool.free.items() if units > 0}

    # --- looking, and the end -----------------------------------------------------------------------------------------

    def get_context(self) -> contract.WorkContext:
        common: dict[str, Any] = {"job_id": self._job_id, "node_id": self._node_id}
        found = self._find_current()
        if found is None:
            environment = self.inherited.environment if self.inherited is not None else ""
            return contract.WorkContext(
                **common, worker_id=f"{0:016x}", namespace=self._namespace, environment=environment
            )
        worker, task = found
        actor = worker.actor
        shape = task.options.shape if actor is None else actor.options.lifetime_shape
        return contract.WorkContext(
            **common,
            worker_id=f"{worker.id:016x}",
            task_id=f"{task.id:016x}",
            task_name=task.options.name,
            function_name=self._name_function(worker, task),
            actor_name=actor.options.name if actor is not None else None,
            actor_attempt=actor.restarts if actor is not None else 0,
            is_canceled=task.cancelled,
            environment=shape.environment,
            captures_children=shape.captures_children,
            actor_id=f"{actor.id:016x}" if actor is not None else None,
            resources={name: units / resources.UNIT for name, units in shape.demand},
            gpu_ids=worker.allocation.gpu_ids if worker.allocation is not None else (),
            placement_group_id=f"{shape.group_id:016x}" if shape.group_id else None,
            namespace=self._namespace if actor is None else actor.options.namespace,
            attempt=task.attempt,
        )

    def _name_function(self, worker: WorkerRecord, task: TaskRecord) -> str:
        if task.method:
            return callers.name_function(type(self._instances.get(worker.id)), task.method)
        return self._function_names.get(task.function.id, "") if task.function is not None else ""

    def list_errors(self) -> list[exceptions.ErrorRecord]:
        return list(self._errors)

    def list_records(
        self, kind: str, filters: Sequence[tuple[str, str, Any]] = (), limit: int | None = None
    ) -> list[dict[str, Any]]:
        with self._lock:
            self._drain_dropped()
            return self._scene.list_records(kind, filters, limit)

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

    def _find_current(self) -> tuple[WorkerRecord, TaskRecord] | None:
        """Return what the calling code belongs to; None for the main program."""
        return _current.get(None) or (self._stack[-1] if self._stack else None)

    def cut_off(self) -> None:
        self._guard.remove()
        is_in_task = self._find_current() is not None
        forks.cut_off(self)
        if not is_in_task:
            return
        ends: dict[str, Any] = {  # where there are processes, the child would end here too
            "_finish": lambda worker, task, result, started: forks.end(),
            "_fail": lambda worker, task, error, started: forks.end(error),
            "_yield_item": lambda worker, task, index, item: forks.end(RuntimeError(forks.YIELDED)),
            "_end_worker": lambda worker, is_graceful: forks.end(None if is_graceful else sys.exception()),
            "_carry_out": lambda: forks.end(RuntimeError(forks.WAITED)),
        }
        for name, method in ends.items():
            setattr(self, name, method)

    def close(self) -> None:
        self._is_closed = True
        for callbacks in list(self._callbacks.values()):
            for callback in callbacks:
                callback()
        self._callbacks.clear()
        self._turner.join()
        for worker in list(self._kernel.workers.values()):
            self._end_worker(worker, is_graceful=True)
        self._instances.clear()
        self.pinned.clear()
        self._guard.remove()
        self._guard.check()


_current: contextvars.ContextVar[tuple[WorkerRecord, TaskRecord]] = contextvars.ContextVar("current")
"""What the coroutine belongs to; not set in ordinary code."""


def _is_retryable(task: TaskRecord, cause: BaseException) -> bool:
    """Tell whether a task is to be tried again after this error of the user's code."""
    asked = task.options.retry_exceptions
    return bool(task.retries_left) and (asked is True or (asked is not False and issubclass(type(cause), asked)))


def _terminate() -> None:
    raise exceptions.ActorExit


def _encode(value: Any, what: str = "value") -> tuple[Payload, tuple[int, ...]]:
    encoded = values.encode(value, what, by_index=True)
    return _build_payload(encoded), tuple([ref._id for ref in encoded.refs])


def _build_payload(encoded: values.Encoded) -> Payload:
    pickled, arrays = encoded.split()
    return (False, pickled, [bytes(array) for array in arrays])


def _encode_error(error: BaseException) -> Payload:
    return (True, values.encode_error(error), [])


def _decode(payload: Payload, refs: list[contract.ObjectRef[Any]] | None = None) -> Any:
    return values.decode(payload[1], [bytearray(buffer) for buffer in payload[2]], refs)
