"""The work that workers hand in, and what became of the work that they had: as `dispatch` hears of it."""

from __future__ import annotations

import pickle

from hocket import exceptions, texts
from hocket.engine import contract, kernel_engine
from hocket.engine.local import channel, links, messages, payloads
from hocket.engine.local.driver import carrier
from hocket.kernel import records
from hocket.kernel.records import DRIVER, TaskKind, TaskRecord


class TaskMessages(carrier.Carrier):
    """Takes submissions, results, items and errors."""

    def _put(self, link: links.Link, object_id: int, payload: payloads.Payload, contained: tuple[int, ...]) -> None:
        """A worker has put a value, or tells of one that it got by a direct channel."""
        worker = link.worker
        if object_id in self._delivered and object_id >> 40 == worker.id:
            self._delivered.discard(object_id)
            return
        self._check_new(worker, object_id)
        if payload[0] == payloads.SEGMENT:
            self._take_segment(link, payload)
        self.kernel.put(object_id, payload, contained, worker.id, failed=payload[0] == payloads.ERROR)

    def _check_new(self, worker: records.WorkerRecord, object_id: int) -> None:
        """Refuse an id that is not the worker's to give, or that it has given before."""
        if object_id >> 40 != worker.id or object_id in self.kernel.objects:
            raise channel.FrameError(f"worker {worker.id} announced an object {object_id:x}, which is not its to make")

    def _take_segment(self, link: links.Link, payload: payloads.Payload) -> None:
        self.store.take(payload, link.channel.take_descriptor(), link.worker.id)

    def _on_submit(
        self,
        link: links.Link,
        task_id: int,
        function_id: bytes,
        args: payloads.Payload | None,
        dependencies: tuple[int, ...],
        borrowed: tuple[int, ...],
        options: bytes,
        parent: int,
    ) -> None:
        self._check_new(link.worker, task_id)
        found = self._options.get(options)
        if found is None:
            found = self._options[options] = pickle.loads(options)
        self._take_arguments(link, args)
        function = self.kernel.functions[function_id]
        worker_id = link.worker.id
        if isinstance(found, records.TaskOptions):
            task = TaskRecord(task_id, function, args, dependencies, borrowed, found, worker_id, parent)
        else:
            creation, kind = found.creation, TaskKind.CREATION
            task = TaskRecord(task_id, function, args, dependencies, borrowed, creation, worker_id, parent, kind)
            task.actor_options = found
        self.kernel.submit(task)

    def _on_submit_call(
        self,
        link: links.Link,
        task_id: int,
        actor_id: int,
        method: str,
        args: payloads.Payload | None,
        dependencies: tuple[int, ...],
        borrowed: tuple[int, ...],
        options: bytes,
        parent: int,
    ) -> None:
        self._check_new(link.worker, task_id)
        self._take_arguments(link, args)
        found = self._options.get(options)
        if found is None:
            found = self._options[options] = pickle.loads(options)
        task = TaskRecord(task_id, None, args, dependencies, borrowed, found, link.worker.id, parent, TaskKind.CALL)
        task.method = method
        task.actor = self.kernel.actors[actor_id]
        self.kernel.submit(task)

    def _take_arguments(self, link: links.Link, args: payloads.Payload | None) -> None:
        if args is not None and args[0] == payloads.SEGMENT:
            self._take_segment(link, args)
            self.kernel.put(args[2], args, (), records.DRIVER)

    def _on_failed(
        self,
        link: links.Link,
        task_id: int,
        error: payloads.Payload,
        error_type: str,
        message: str,
        started: float,
        seconds: float,
    ) -> None:
        match error, error_type, message, started, seconds:
            case ((payloads.ERROR, bytes(), *_), str(), str(), float(), float()):
                pass
            case _:
                raise channel.FrameError(f"message {messages.FAILED!r} does not hold an error")
        worker = link.worker
        task = worker.inflight.get(task_id)
        if task is None:
            return
        self.failures += 1
        retryable = _is_retryable(task, error)
        error = error[:2]
        if not retryable:
            self.note_error(task_id, task.options.name, error_type, message)
        self.kernel.fail(
            worker, task_id, error, retryable=retryable, error_type=error_type, started=started, seconds=seconds
        )

    def _fail_in_part(self, worker: records.WorkerRecord, message: channel.Message, failure: payloads.Payload) -> bool:
        """Some results of a task are an error. Tell whether it is to be tried again; else these are its results."""
        _, task_id, seconds, results, started = message
        task = worker.inflight.get(task_id)
        if task is None:
            return False
        self.failures += 1
        if not _is_retryable(task, failure):
            error = kernel_engine.decode_error(failure)
            cause = error if error is None else exceptions.get_cause(error)
            task.error_type = texts.name_class(type(cause))
            self.note_error(task_id, task.options.name, task.error_type, texts.safe_text(cause, 1000))
            return False
        self.kernel.drop_values(task_id, results)
        self.kernel.fail(worker, task_id, failure, retryable=True, started=started, seconds=seconds)
        return True

    def _on_yield(
        self, link: links.Link, task_id: int, index: int, payload: payloads.Payload, contained: tuple[int, ...]
    ) -> None:
        if payload[0] == payloads.SEGMENT:
            self._take_segment(link, payload)
        self.kernel.yield_item(link.worker, task_id, index, payload, contained)

    def _on_export(self, link: links.Link, function_id: bytes, payload: payloads.Payload, name: str) -> None:
        """A worker has sent the code of a function, and may call it from now on."""
        is_taken = payload[0] == payloads.SEGMENT
        if is_taken:
            self._take_segment(link, payload)
        link.exported.add(function_id)
        self.functions.note_export(function_id, link.worker.id)
        if self.functions.find(function_id) is not None:
            if is_taken:
                self.store.free(payload)
            return
        refs: list[contract.AnyRef] = []
        if is_taken:
            self.kernel.put(payload[2], payload, (), DRIVER)
            refs.append(contract.ObjectRef(payload[2], self))
        self.functions.add(function_id, payload, refs)

    def _on_notes(self, link: links.Link, notes: list[tuple[int, str, float, float, str | None, str]]) -> None:
        """Remember direct calls, for those who look."""
        for task_id, name, started, seconds, error_type, text in notes:
            options = self._direct_options.get(name)
            if options is None:
                options = self._direct_options[name] = records.TaskOptions(name=name)
            self.kernel.note_direct_call(link.worker, task_id, options, started, seconds, error_type)
            if error_type is not None:
                self.note_error(task_id, name, error_type, text)

    def _note_death(self, worker: records.WorkerRecord, death: exceptions.Death, running: set[int] | None) -> None:
        """Remember an unexpected death for `error_info`."""
        hit = [task for task in worker.inflight.values() if running is None or task.id in running]
        names = ", ".join(task.options.name for task in hit)
        if worker.actor is not None:
            names = names or worker.actor.options.class_name
        text = f"worker pid {death.pid} {death.reason()}"
        self.note_error(hit[0].id if hit else 0, names, "WorkerCrashedError", text)


def _is_retryable(task: TaskRecord, payload: payloads.Payload) -> bool:
    """Tell whether a task is to be tried again after this error of the user's code."""
    asked = task.options.retry_exceptions
    if not asked or not task.retries_left or task.cancelled:
        return False
    if len(payload) > 2 and isinstance(payload[2], bool):  # the worker has compared
        return payload[2]
    error = kernel_engine.decode_error(payload)
    cause = error if error is None else exceptions.get_cause(error)
    return asked is True or (asked is not False and issubclass(type(cause), asked))
