"""The run of one task or call, and the report of its outcome."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, final

from hocket import exceptions
from hocket.engine import callers, contract, items, kernel_parts, methods, rules, values
from hocket.engine.inprocess import base, coroutines, courier, outcomes, payloads
from hocket.kernel import records
from hocket.kernel.records import TaskKind, TaskRecord


@final
class Runner:
    """Runs tasks. Every method is called with the lock held, except those that coroutines call.

    Args:
        engine: The engine, which has the settings that tasks inherit.
        session: The session, with the kernel.
        lock: The engine's lock, opened while the user's code runs.
        running: The running tasks.
        actors: The living actors.
        carrier: The courier, which removes workers that have ended themselves.
        told: The receiver of the tasks' outcomes.
    """

    def __init__(
        self,
        engine: contract.Engine,
        session: kernel_parts.Session,
        lock: base.Entrance,
        running: base.Running,
        actors: base.Actors,
        carrier: courier.Courier,
        told: outcomes.Outcomes,
    ) -> None:
        self._engine, self._session, self._kernel, self._lock = engine, session, session.kernel, lock
        self._running, self._actors, self._courier, self._outcomes = running, actors, carrier, told
        #: The settings that tasks inherit from the main program, and from each running task, the task begun last at the
        #: end; empty without a running task.
        self._inherited: list[list[contract.Inherited | None]] = []
        #: Large arrays that functions refer to, by the function's id.
        self._buffers: dict[bytes, list[bytes]] = {}
        #: Full names of functions, by the function's id.
        self._names: dict[bytes, str] = {}

    def add_function(self, function: contract.RemoteFunction) -> records.FunctionRecord:
        """Return the record of a function; make it at the first call."""
        record = self._kernel.functions.get(function.id)
        if record is None:
            record = self._kernel.functions[function.id] = records.FunctionRecord(function.id, function.blob)
            is_class = isinstance(function.value, type)
            self._names[function.id] = callers.name_function(function.value, "__init__" if is_class else "")
            if function.buffers:
                self._buffers[function.id] = [bytes(buffer) for buffer in function.buffers]
        return record

    def name_function(self, work: base.Work) -> str:
        """Return the full name of a task's function or method."""
        worker, task = work
        if task.method:
            return callers.name_function(type(self._actors.instances.get(worker.id)), task.method)
        return self._names.get(task.function.id, "") if task.function is not None else ""

    def cut_off(self) -> None:
        """End the process when the task ends; for a task's fork."""
        self._outcomes = outcomes.ForkedOutcomes()

    def run(self, work: base.Work) -> None:
        """Run a task to its end; only start a call of an asynchronous actor."""
        worker, task = work
        loop = self._actors.loops.get(worker.id)
        if loop is not None and task.kind == TaskKind.CALL:
            loop.start(task.id, self._run_coroutine(work))
            return
        started = self._running.starts[task.id] = time.perf_counter()
        has_actor = worker.actor is not None
        try:
            with self._running.entered(work), self._inheriting(task):
                self._run_plain(work, started)
        finally:
            self._lock.note_progress()
            if (
                has_actor and worker.actor is None and worker.killed
            ):  # the actor ended itself, even if its code caught the exception
                self._courier.bury(worker, is_graceful=True)

    def _run_plain(self, work: base.Work, started: float) -> None:
        worker, task = work
        try:
            with _take_on(task.options.shape.environment):
                result = self._call(work)
                if task.options.num_returns < 0:
                    for index, item in enumerate(self._iterate(result)):
                        self._outcomes.yield_item(work, index, item)
                    result = None
        except exceptions.ActorExit:
            self._kernel.exit_actor(worker)
        except KeyboardInterrupt as error:
            self._outcomes.fail(work, error, started)
            if self._session.guard.is_own(error):  # Ctrl-C ends the task, and also the program that waits for it
                raise
        except SystemExit as request:  # on engines with worker processes, this ends the worker
            code = request.code if isinstance(request.code, int) else 0 if request.code is None else 1
            self._courier.bury(worker, is_graceful=False, running={task.id}, exit_code=code)
        except BaseException as error:  # any error of the user's code is the task's result
            self._outcomes.fail(work, error, started)
        else:
            self._outcomes.finish(work, result, started)

    @contextlib.contextmanager
    def _inheriting(self, task: TaskRecord) -> Iterator[None]:
        """Have tasks that are submitted in this block inherit the task's settings."""
        shape = task.options.shape if task.actor is None else task.actor.options.lifetime_shape
        inherited = contract.Inherited(shape.environment, shape.group_id if shape.captures_children else 0)
        entry = [inherited if inherited != contract.NOTHING_INHERITED else None]
        if not self._inherited:
            self._inherited.append([self._engine.inherited])
        self._inherited.append(entry)
        self._engine.inherit(entry[0])
        try:
            yield
        finally:  # tasks of different threads may end in any order
            self._inherited[:] = [one for one in self._inherited if one is not entry]
            self._engine.inherit(self._inherited[-1][0])
            if len(self._inherited) == 1:
                self._inherited.clear()

    async def _run_coroutine(self, work: base.Work) -> None:
        """Run a call of an asynchronous actor; while it awaits, other calls run."""
        worker, task = work
        self._running.enter_coroutine(work)
        started = self._running.starts[task.id] = time.perf_counter()
        try:
            result = self._call(work)
            if inspect.isawaitable(result) and not isinstance(result, contract.ObjectRef):
                result = await result
            if task.options.num_returns < 0:
                index = 0
                async for item in coroutines.iterate_async(result):
                    with self._lock:
                        self._outcomes.yield_item(work, index, item)
                    index += 1
                result = None
        except exceptions.ActorExit:
            self._kernel.exit_actor(worker)
        except BaseException as error:
            name = task.options.name
            cancelled = exceptions.TaskCancelledError(f"Call `{name}` was cancelled while it ran.")
            with self._lock:
                self._outcomes.fail(work, rules.wrap_cancelled(name, cancelled) if task.cancelled else error, started)
        else:
            with self._lock:
                self._outcomes.finish(work, result, started)
        finally:
            self._running.starts.pop(task.id, None)

    def _iterate(self, result: object) -> Iterator[object]:
        """Yield the items of a user's generator."""
        found = iter(items.iterate(result))
        while True:
            with self._lock.open():
                try:
                    item = next(found)
                except StopIteration:
                    return
            yield item

    def _call(self, work: base.Work) -> object:
        worker, task = work
        args, kwargs = self._open_arguments(task)
        if task.kind == TaskKind.CALL:
            method = methods.get_method(self._actors.instances[worker.id], task.method)
            with self._lock.open():
                return self._take_items(work, method, method(*args, **kwargs))
        assert task.function is not None
        buffers = self._buffers.get(task.function.id, ())
        function = values.decode(task.function.blob, [bytearray(buffer) for buffer in buffers])
        options = task.actor_options
        loop = coroutines.Loop(options.max_concurrency) if options is not None and options.is_async else None
        with self._lock.open():
            if loop is None:
                result = self._take_items(work, function, function(*args, **kwargs))
            else:
                result = loop.build(functools.partial(function, *args, **kwargs))
        if task.kind != TaskKind.CREATION:
            return result
        self._actors.instances[worker.id] = result
        if loop is not None:
            self._actors.loops[worker.id] = loop
        return None

    def _take_items(self, work: base.Work, function: object, result: object) -> Any:
        """Return a call's result; if the result is a generator with a fixed number of results, return its items. On an
        event loop, return a coroutine that takes the items."""
        worker, task = work
        count, name = task.options.num_returns, task.options.name
        if not items.is_to_be_taken(result, count, function):
            return result
        if worker.id in self._actors.loops:
            return items.take_async(result, count, name)
        return items.take(items.iterate(result), count, name)

    def _open_arguments(self, task: TaskRecord) -> tuple[tuple[object, ...], dict[str, object]]:
        if task.args is None:
            return (), {}
        args, kwargs = payloads.decode(task.args, self._hold_all(task.borrowed))
        found = []
        for object_id in task.dependencies:
            record = self._kernel.objects[object_id]
            assert record.value is not None
            found.append(payloads.decode(record.value, self._hold_all(record.contained)))
        return values.fill_slots(args, kwargs, found)

    def _hold_all(self, object_ids: tuple[int, ...]) -> list[contract.AnyRef]:
        return [self._engine.handles.intern(object_id) for object_id in object_ids]


@contextlib.contextmanager
def _take_on(text: str) -> Iterator[None]:
    """Apply a runtime environment, given as text, inside this block, and restore the previous state afterwards."""
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
