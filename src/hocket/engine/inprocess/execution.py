"""One task or call: run, and its outcome told to the kernel."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from hocket import exceptions, texts
from hocket.engine import contract, items, methods, rules, values
from hocket.engine.inprocess import base, coroutines, payloads
from hocket.engine.inprocess.base import current
from hocket.kernel.records import TaskKind, TaskRecord, WorkerRecord


class Execution(base.InProcessState):
    """Runs tasks."""

    def _run(self, worker: WorkerRecord, task: TaskRecord) -> None:
        loop = self._loops.get(worker.id)
        if loop is not None and task.kind == TaskKind.CALL:
            loop.start(task.id, self._run_coroutine(worker, task))
            return
        started = self._starts[task.id] = time.perf_counter()
        inherited, self.inherited = self.inherited, self._build_inherited(task)
        self._stack.append((worker, task))
        token = current.set((worker, task))
        has_actor = worker.actor is not None
        try:
            with _take_on(task.options.shape.environment):
                result = self._call(worker, task)
                if task.options.num_returns < 0:
                    for index, item in enumerate(self._iterate(result)):
                        self._yield_item(worker, task, index, item)
                    result = None
        except exceptions.ActorExit:
            self.kernel.exit_actor(worker)
        except KeyboardInterrupt as error:
            self._fail(worker, task, error, started)
            if self.guard.is_own(error):  # Ctrl-C: the task is over, and so is what the program was about
                raise
        except SystemExit as request:  # where there are processes, this ends one
            code = request.code if isinstance(request.code, int) else 0 if request.code is None else 1
            self._bury(worker, is_graceful=False, running={task.id}, exit_code=code)
        except BaseException as error:  # whatever the user's code raises is the caller's to see
            self._fail(worker, task, error, started)
        else:
            self._finish(worker, task, result, started)
        finally:
            self.inherited = inherited
            self._stack.pop()
            current.reset(token)
            self._starts.pop(task.id, None)
            if (
                has_actor and worker.actor is None and worker.killed
            ):  # it ended itself, whatever became of the exception
                self._bury(worker, is_graceful=True)

    def _build_inherited(self, task: TaskRecord) -> contract.Inherited | None:
        shape = task.options.shape if task.actor is None else task.actor.options.lifetime_shape
        inherited = contract.Inherited(shape.environment, shape.group_id if shape.captures_children else 0)
        return inherited if inherited != contract.NOTHING_INHERITED else None

    async def _run_coroutine(self, worker: WorkerRecord, task: TaskRecord) -> None:
        """Run a call of an asynchronous actor; it may wait in the middle while others run."""
        current.set((worker, task))
        started = self._starts[task.id] = time.perf_counter()
        try:
            result = self._call(worker, task)
            if inspect.isawaitable(result) and not isinstance(result, contract.ObjectRef):
                result = await result
            if task.options.num_returns < 0:
                index = 0
                async for item in coroutines.iterate_async(result):
                    with self.lock:
                        self._yield_item(worker, task, index, item)
                    index += 1
                result = None
        except exceptions.ActorExit:
            self.kernel.exit_actor(worker)
        except BaseException as error:  # whatever the user's code raises is the caller's to see
            name = task.options.name
            cancelled = exceptions.TaskCancelledError(f"Call `{name}` was cancelled while it ran.")
            with self.lock:
                self._fail(worker, task, rules.wrap_cancelled(name, cancelled) if task.cancelled else error, started)
        else:
            with self.lock:
                self._finish(worker, task, result, started)
        finally:
            self._starts.pop(task.id, None)

    def _yield_item(self, worker: WorkerRecord, task: TaskRecord, index: int, item: object) -> None:
        payload, contained = payloads.encode_result(item, f"item {index} of `{task.options.name}`")
        self.kernel.yield_item(worker, task.id, index, payload, contained)
        self.carry_out()

    def _finish(self, worker: WorkerRecord, task: TaskRecord, result: object, started: float) -> None:
        """Store what a task returned; what cannot travel is its error."""
        try:
            results = self._split(task, result)
            encoded = [
                (payloads.encode_error(rules.wrap_error(task.options.name, value.error)), ())
                if type(value) is items.Failure
                else payloads.encode_result(value, f"the result of `{task.options.name}`")
                for value in results
            ]
        except BaseException as error:  # a user's __reduce__ may raise anything
            self._fail(worker, task, error, started)
        else:
            failure = next((value.error for value in results if type(value) is items.Failure), None)
            if failure is not None:
                if _is_retryable(task, failure):
                    self._fail(worker, task, failure, started)
                    return
                task.error_type = texts.name_class(type(failure))
                self._note(task, failure)
            self.kernel.finish(worker, task.id, time.perf_counter() - started, encoded, started)

    def _iterate(self, result: object) -> Iterator[object]:
        """Yield what a generator of the user's yields."""
        found = iter(items.iterate(result))
        while True:
            with self.lock.open():
                try:
                    item = next(found)
                except StopIteration:
                    return
            yield item

    def _call(self, worker: WorkerRecord, task: TaskRecord) -> object:
        args, kwargs = self._open_arguments(task)
        if task.kind == TaskKind.CALL:
            method = methods.get_method(self._instances[worker.id], task.method)
            with self.lock.open():
                return self._take_items(worker, task, method, method(*args, **kwargs))
        assert task.function is not None
        buffers = self._buffers.get(task.function.id, ())
        function = values.decode(task.function.blob, [bytearray(buffer) for buffer in buffers])
        options = task.actor_options
        loop = coroutines.Loop(options.max_concurrency) if options is not None and options.is_async else None
        with self.lock.open():
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

    def _take_items(self, worker: WorkerRecord, task: TaskRecord, function: object, result: object) -> Any:
        """Return the results of a call whose generator is to give so many; a coroutine that does on an event loop."""
        count, name = task.options.num_returns, task.options.name
        if not items.is_to_be_taken(result, count, function):
            return result
        if worker.id in self._loops:
            return items.take_async(result, count, name)
        return items.take(items.iterate(result), count, name)

    def _split(self, task: TaskRecord, result: Any) -> tuple[Any, ...]:
        count = task.options.num_returns
        if abs(count) == 1:
            return (result,)
        results = tuple(result) if count else ()
        if len(results) != count:
            raise ValueError(
                f"Task `{task.options.name}` has num_returns={count} but returned {len(results)} values. Return "
                f"exactly {count}."
            )
        return results

    def _open_arguments(self, task: TaskRecord) -> tuple[tuple[object, ...], dict[str, object]]:
        if task.args is None:
            return (), {}
        args, kwargs = payloads.decode(task.args, self._hold_all(task.borrowed))
        found = []
        for object_id in task.dependencies:
            record = self.kernel.objects[object_id]
            assert record.value is not None
            found.append(payloads.decode(record.value, self._hold_all(record.contained)))
        return values.fill_slots(args, kwargs, found)

    def _fail(self, worker: WorkerRecord, task: TaskRecord, error: BaseException, started: float) -> None:
        seconds = time.perf_counter() - started
        if issubclass(type(error), KeyboardInterrupt):
            error = rules.build_interrupted(task.options.name, error)
        cause = exceptions.get_cause(error)
        retryable = _is_retryable(task, cause)
        if not retryable:
            self._note(task, cause)
        self.kernel.fail(
            worker,
            task.id,
            payloads.encode_error(rules.wrap_error(task.options.name, error)),
            retryable=retryable,
            error_type=texts.name_class(type(cause)),
            started=started,
            seconds=seconds,
        )

    def _note(self, task: TaskRecord, cause: BaseException) -> None:
        self.note_error(task.id, task.options.name, texts.name_class(type(cause)), texts.safe_text(cause))

    def _hold_all(self, object_ids: tuple[int, ...]) -> list[contract.AnyRef]:
        return [self.intern(object_id) for object_id in object_ids]


def _is_retryable(task: TaskRecord, cause: BaseException) -> bool:
    """Tell whether a task is to be tried again after this error of the user's code."""
    asked = task.options.retry_exceptions
    return bool(task.retries_left) and (asked is True or (asked is not False and issubclass(type(cause), asked)))


@contextlib.contextmanager
def _take_on(text: str) -> Iterator[None]:
    """Take on a runtime environment, in the form that travels, for the time of the block; put back all afterwards."""
    if not text:
        yield
        return
    environment = json.loads(text)
    variables, path, folder = dict(os.environ), list(sys.path), os.getcwd()
    os.environ.update(environment.get("env_vars", {}))
    sys.path[:0] = [os.path.dirname(path) for path in environment.get("py_modules", [])]
    if environment.get("working_dir"):
        sys.path.insert(0, environment["working_dir"])
        os.chdir(environment["working_dir"])
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(variables)
        sys.path[:] = path
        os.chdir(folder)
