"""What workers say, turned into calls of the kernel."""

from __future__ import annotations

import pickle
from typing import Any, Protocol

from hocket import exceptions, texts
from hocket.engine import values
from hocket.engine.local import channel, hub_store, links, messages, payloads, watch
from hocket.kernel import machine, metrics, records, resources
from hocket.kernel.instructions import Op
from hocket.kernel.records import TaskKind, TaskRecord

ASKABLE = frozenset(
    {
        "claim_name",
        "describe_actor",
        "check_feasible",
        "release_name",
        "look_up_name",
        "list_named_actors",
        "kill_actor",
        "cancel",
        "check_pending",
        "reserve",
        "remove_group",
        "list_groups",
        "list_nodes",
        "get_total_resources",
        "get_free_resources",
        "list_errors",
        "ping",
        "list_records",
        "statistics",
        "explain_full",
    }
)
"""Methods of the hub that a worker may call with `ASK`."""

ASKED_BY_NAME = frozenset({"claim_name", "release_name", "check_pending"})
"""Those of them that want to know which worker asks."""


def _decode_foreign(payload: payloads.Payload) -> BaseException | None:
    """Return a worker's exception; None if this process cannot import what it takes."""
    try:
        error: BaseException = values.decode(payload[1])
    except Exception:  # noqa: BLE001 (a class of the user's may raise anything)
        return None
    return error


def _is_retryable(task: TaskRecord, payload: payloads.Payload) -> bool:
    """Tell whether a task is to be tried again after this error of the user's code."""
    asked = task.options.retry_exceptions
    if not asked or not task.retries_left or task.cancelled:
        return False
    error = _decode_foreign(payload)
    cause = error if error is None else exceptions.get_cause(error)
    return asked is True or (asked is not False and issubclass(type(cause), asked))


class Owner(Protocol):
    """What the dispatcher needs of the hub, besides the methods in `ASKABLE`."""

    kernel: machine.Kernel
    store: hub_store.HubStore
    watch: watch.Watch
    #: Counts failures, so that whoever waits can tell whether to look for one.
    failures: int

    def note_error(self, task_id: int, name: str, error_type: str, text: str) -> None:
        """Remember a failure for `list_errors`."""

    def introduce(self, caller: int, actor_id: int, fd: int) -> None:
        """Pass one end of a line on to an actor's worker."""

    def lend(self, link: links.Link, payload: Any) -> payloads.Payload:
        """Prepare a payload for sending."""

    def export_function(
        self, link: links.Link, function_id: bytes, payload: payloads.Payload, *, is_taken: bool
    ) -> None:
        """A worker has sent the code of a function, and may call it from now on."""

    def record_metrics(self, batch: metrics.Batch) -> None:
        """Add what a worker has counted and measured."""


class Dispatcher:
    """Handles the messages of all workers. Every method is called with the hub's lock held."""

    def __init__(self, owner: Owner) -> None:
        self._hub = owner
        self._kernel = owner.kernel
        self._options: dict[bytes, Any] = {}
        self._direct_options: dict[str, records.TaskOptions] = {}
        #: Answers of dead actors that we brought to their callers. Such a caller may have had the answer by its line, too, and be
        #: about to announce it.
        self._delivered: set[int] = set()

    def handle(self, link: links.Link, received: list[channel.Message]) -> None:
        """Handle what one worker sent."""
        kernel = self._kernel
        worker = link.worker
        for message in received:
            op = message[0]
            if op == messages.PLAIN:
                _, task_id, data, seconds, started = message
                kernel.finish(worker, task_id, seconds, [((payloads.INLINE, data), ())], started)
            elif op == messages.DONE:
                _, task_id, seconds, results, started = message
                failure = None
                for payload, _ in results:
                    if payload[0] == payloads.SEGMENT:
                        self._take_segment(link, payload)
                    elif payload[0] == payloads.ERROR:
                        failure = payload
                if failure is None or not self._fail_in_part(worker, message, failure):
                    kernel.finish(worker, task_id, seconds, results, started)
            elif op == messages.DROP:
                kernel.release(message[1], worker.id, message[2])
            elif op == messages.PUT:
                _, object_id, payload, contained = message
                self._put(link, object_id, payload, contained)
            elif op == messages.UNMAP:
                self._hub.store.unpin(message[1], worker.id)
                kernel.release(message[1], worker.id)
            else:
                self._handle_rare(link, message)

    def _put(self, link: links.Link, object_id: int, payload: payloads.Payload, contained: tuple[int, ...]) -> None:
        """A worker has put a value, or tells of one that it got by a line."""
        worker = link.worker
        if object_id in self._delivered and object_id >> 40 == worker.id:
            self._delivered.discard(object_id)
            return
        self._check_new(worker, object_id)
        if payload[0] == payloads.SEGMENT:
            self._take_segment(link, payload)
        self._kernel.put(object_id, payload, contained, worker.id, failed=payload[0] == payloads.ERROR)

    def read_last_words(self, link: links.Link) -> None:
        """Handle what a dead worker had said and not sent: to us, and to those who called it directly."""
        self.handle(link, link.page.read_unsent(link.channel.received))
        for message in link.page.read_replies():
            match message:
                case (messages.DONE, int(task_id), list(results)):
                    for position, payload in enumerate(results):
                        self._deliver(task_id + position, payload)
                case (messages.FAILED, int(task_id), tuple(payload), int(returns)):
                    for object_id in range(task_id, task_id + returns):
                        self._deliver(object_id, payload)
                case _:
                    raise channel.FrameError(f"message {message[0]!r} is no answer to a call")

    def _deliver(self, object_id: int, payload: payloads.Payload) -> None:
        caller = object_id >> 40
        if caller in self._kernel.workers:
            self._delivered.add(object_id)
            self._kernel.deliver(caller, object_id, payload, ())

    def _handle_rare(self, link: links.Link, message: channel.Message) -> None:  # noqa: C901, PLR0912, PLR0915 (one flat table)
        kernel = self._kernel
        worker = link.worker
        match message:  # what comes often stands first: each is compared with all before it
            case (messages.SUBMIT, task_id, function_id, args, dependencies, borrowed, options, parent):
                self._submit(link, task_id, function_id, args, dependencies, borrowed, options, parent)
            case (messages.SUBMIT_CALL, *call):
                self._submit_call(link, *call)
            case (messages.YIELD, task_id, index, payload, contained):
                if payload[0] == payloads.SEGMENT:
                    self._take_segment(link, payload)
                kernel.yield_item(worker, task_id, index, payload, contained)
            case (messages.TAKE, task_id, index):
                kernel.take_item(task_id, index, worker.id)
            case (messages.WANT | messages.WATCH as op, object_id):
                self._watch(link, object_id, wants_value=op == messages.WANT)
            case (messages.BLOCK, unstarted, number, _, _, _, _, missing, needed) if self._are_there(missing, needed):
                link.fetching.add(number)  # it does not wait, so its CPU is not to be lent
                kernel.hand_back(worker, unstarted)
            case (messages.BLOCK, unstarted, number, running_id, object_ids, needs_all, direct, _, _):
                wait = records.Wait(running_id, object_ids, needs_all, tuple(direct)) if object_ids else None
                kernel.block(worker, unstarted, number, wait)
            case (messages.UNBLOCK, number) if number in link.fetching:
                link.fetching.remove(number)
            case (messages.UNBLOCK, number):
                kernel.unblock(worker, number)
            case (messages.BACK, unstarted):
                kernel.hand_back(worker, unstarted)
            case (
                messages.FAILED,
                task_id,
                (payloads.ERROR, bytes()) as payload,
                str(error_type),
                str(text),
                float(started),
                float(seconds),
            ):
                self._fail(worker, task_id, payload, error_type, text, started, seconds)
            case (messages.PROMISE, object_id):
                if object_id not in kernel.objects:  # else the actor has delivered it meanwhile
                    self._check_new(worker, object_id)
                    kernel.promise(worker, object_id)
            case (messages.FULFIL, object_id, payload):
                kernel.fulfil(worker, object_id, payload, failed=payload[0] == payloads.ERROR)
            case (messages.DELIVER, object_id, payload, contained):
                if payload[0] == payloads.SEGMENT:
                    self._take_segment(link, payload)
                kernel.deliver(object_id >> 40, object_id, payload, contained)
            case (messages.NOTES, notes):
                self._take_notes(worker, notes)
            case (messages.ASK, question_id, method, data):
                self._answer(link, question_id, method, data)
            case (messages.PAUSED, task_id, wanted):
                kernel.pause(worker, task_id, wanted)
            case (messages.PROBED, number, is_waiting, sent):
                self._hub.watch.ends.note_answer(worker, number, is_waiting, sent)
            case (messages.LIFT, task_id):
                kernel.lift_bound(task_id)
            case (messages.CANCEL_CHILDREN, parent):
                kernel.cancel_children(parent)
            case (messages.EXITING,):
                kernel.exit_actor(worker)
            case (messages.EXPORT, function_id, payload, _):
                self._export(link, function_id, payload)
            case (messages.INTRODUCE, actor_id):
                self._hub.introduce(worker.id, actor_id, link.channel.take_descriptor())
            case (messages.SYNC | messages.AWAIT as op, actor_id, number):
                kernel.introduce(actor_id, worker.id, (op, worker.id, number))
            case (messages.LOST, actor_id, object_ids, str(name)):
                self._hub.failures += 1
                kernel.mourn(worker, actor_id, object_ids, name)
            case (messages.ADOPT, object_id):
                if object_id in kernel.objects:
                    kernel.retain(object_id, worker.id)
            case (messages.METRICS, batch):
                self._hub.record_metrics(batch)
            case (messages.ROOM, question_id, needed, has, granted):
                self._hub.store.note_pool(worker.id, has, granted)
                self._hub.store.answer_room(worker.id, question_id, needed)
            case (messages.POOL, has, granted):
                self._hub.store.note_pool(worker.id, has, granted, is_answer=True)
            case _:
                raise channel.FrameError(f"message {message[0]!r} is unknown, or is not for the hub")

    def _are_there(self, object_ids: tuple[int, ...], needed: int) -> bool:
        """Tell whether so many of these objects have values; 0 is all of them, or one error. A wait for no object is for something else."""
        if not object_ids:
            return False
        known = self._kernel.objects
        found = [record for record in map(known.get, object_ids) if record is not None and record.value is not None]
        return len(found) >= (needed or len(object_ids)) or (not needed and any(record.failed for record in found))

    def _take_notes(self, worker: records.WorkerRecord, notes: list[tuple[Any, ...]]) -> None:
        """Remember direct calls, for those who look."""
        for task_id, name, started, seconds, error_type, text in notes:
            options = self._direct_options.get(name)
            if options is None:
                options = self._direct_options[name] = records.TaskOptions(name=name)
            caller = task_id >> 40
            task = TaskRecord(task_id, None, None, (), (), options, caller, 0, TaskKind.CALL)
            task.state = records.TaskState.DONE
            task.actor = worker.actor
            task.note_run(worker.id, started, seconds)
            if error_type is not None:
                task.error_type = error_type
                self._hub.note_error(task_id, name, error_type, text)
            self._kernel.closed_tasks.append(task)

    def _check_new(self, worker: records.WorkerRecord, object_id: int) -> None:
        """Refuse an id that is not the worker's to give, or that it has given before."""
        if object_id >> 40 != worker.id or object_id in self._kernel.objects:
            raise channel.FrameError(f"worker {worker.id} announced an object {object_id:x}, which is not its to make")

    def _take_segment(self, link: links.Link, payload: payloads.Payload) -> None:
        self._hub.store.take(payload, link.channel.take_descriptor(), link.worker.id)

    def _export(self, link: links.Link, function_id: bytes, payload: payloads.Payload) -> None:
        is_segment = payload[0] == payloads.SEGMENT
        if is_segment:
            self._take_segment(link, payload)
        self._hub.export_function(link, function_id, payload, is_taken=is_segment)

    # --- results ------------------------------------------------------------------------------------------------------

    def _fail(
        self,
        worker: records.WorkerRecord,
        task_id: int,
        payload: payloads.Payload,
        error_type: str,
        text: str,
        started: float,
        seconds: float,
    ) -> None:
        task = worker.inflight.get(task_id)
        if task is None:
            return
        self._hub.failures += 1
        retryable = _is_retryable(task, payload)
        if not retryable:
            self._hub.note_error(task_id, task.options.name, error_type, text)
        self._kernel.fail(
            worker, task_id, payload, retryable=retryable, error_type=error_type, started=started, seconds=seconds
        )

    def _fail_in_part(self, worker: records.WorkerRecord, message: channel.Message, failure: payloads.Payload) -> bool:
        """Some results of a task are an error. Tell whether it is to be tried again; else these are its results."""
        _, task_id, seconds, results, started = message
        task = worker.inflight.get(task_id)
        if task is None:
            return False
        self._hub.failures += 1
        if not _is_retryable(task, failure):
            error = _decode_foreign(failure)
            cause = error if error is None else exceptions.get_cause(error)
            task.error_type = texts.name_class(type(cause))
            self._hub.note_error(task_id, task.options.name, task.error_type, texts.safe_text(cause, 1000))
            return False
        for position, (payload, _) in enumerate(results):
            self._kernel.instructions.append((Op.FREE, task_id + position, payload))
        self._kernel.fail(worker, task_id, failure, retryable=True, started=started, seconds=seconds)
        return True

    def note_death(self, worker: records.WorkerRecord, death: exceptions.Death, running: set[int] | None) -> None:
        """Remember an unexpected death for `error_info`."""
        hit = [task for task in worker.inflight.values() if running is None or task.id in running]
        names = ", ".join(task.options.name for task in hit)
        if worker.actor is not None:
            names = names or worker.actor.options.class_name
        text = f"worker pid {death.pid} {death.reason()}"
        self._hub.note_error(hit[0].id if hit else 0, names, "WorkerCrashedError", text)

    def forget_worker(self, worker_id: int) -> None:
        """The worker is dead, and nothing more comes from it."""
        self._delivered = {object_id for object_id in self._delivered if object_id >> 40 != worker_id}

    # --- submissions --------------------------------------------------------------------------------------------------

    def _submit(
        self,
        link: links.Link,
        task_id: int,
        function_id: bytes,
        args: payloads.Payload | None,
        dependencies: tuple[int, ...],
        borrowed: tuple[int, ...],
        options_blob: bytes,
        parent: int,
    ) -> None:
        self._check_new(link.worker, task_id)
        options = self._options.get(options_blob)
        if options is None:
            options = self._options[options_blob] = pickle.loads(options_blob)
        self._take_arguments(link, args)
        function = self._kernel.functions[function_id]
        worker_id = link.worker.id
        if isinstance(options, records.TaskOptions):
            task = TaskRecord(task_id, function, args, dependencies, borrowed, options, worker_id, parent)
        else:
            creation, kind = options.creation, TaskKind.CREATION
            task = TaskRecord(task_id, function, args, dependencies, borrowed, creation, worker_id, parent, kind)
            task.actor_options = options
        self._kernel.submit(task)

    def _submit_call(
        self,
        link: links.Link,
        task_id: int,
        actor_id: int,
        method: str,
        args: payloads.Payload | None,
        dependencies: tuple[int, ...],
        borrowed: tuple[int, ...],
        options_blob: bytes,
        parent: int,
    ) -> None:
        self._check_new(link.worker, task_id)
        self._take_arguments(link, args)
        options = self._options.get(options_blob)
        if options is None:
            options = self._options[options_blob] = pickle.loads(options_blob)
        task = TaskRecord(task_id, None, args, dependencies, borrowed, options, link.worker.id, parent, TaskKind.CALL)
        task.method = method
        task.actor = self._kernel.actors[actor_id]
        self._kernel.submit(task)

    def _take_arguments(self, link: links.Link, args: payloads.Payload | None) -> None:
        if args is not None and args[0] == payloads.SEGMENT:
            self._take_segment(link, args)
            self._kernel.put(args[2], args, (), records.DRIVER)

    # --- values for workers -------------------------------------------------------------------------------------------

    def _watch(self, link: links.Link, object_id: int, *, wants_value: bool) -> None:
        if object_id not in self._kernel.objects:
            error = exceptions.ObjectLostError(f"ObjectRef({object_id:016x}) was freed before it was asked for.")
            link.channel.post((messages.VALUE, object_id, payloads.encode_error(error), ()))
            return
        # The kernel only says "there now"; what the worker wants to hear is remembered in the id's sign.
        self._kernel.watch(object_id, link.worker.id if wants_value else -link.worker.id)

    def tell(self, link: links.Link, object_id: int, *, wants_value: bool) -> None:
        """Send a worker the value that it wants, or the word that it is there."""
        if not wants_value:
            link.channel.outbox.append((messages.READY, object_id))
            return
        record = self._kernel.objects.get(object_id)
        if record is None or record.value is None:  # the worker has dropped it in the same breath
            return
        payload = self._hub.lend(link, record.value)
        for inner in record.contained:
            self._kernel.retain(inner, link.worker.id)
        link.channel.post((messages.VALUE, object_id, payload, record.contained))

    def _answer(self, link: links.Link, question_id: int, method: str, data: bytes) -> None:
        try:
            if method not in ASKABLE:
                raise AttributeError(f"a worker may not call {method!r}")
            args, kwargs = pickle.loads(data)
            if method in ASKED_BY_NAME:
                kwargs["caller"] = link.worker.id
            answer, ok = getattr(self._hub, method)(*args, **kwargs), True
        except Exception as error:  # noqa: BLE001 (the worker that asked raises it)
            # Without the traceback, which holds the frames above, and with them the handles of a driver that waits in `get`.
            answer, ok = error.with_traceback(None), False
        encoded = values.encode_whole(answer)
        for ref in encoded.refs:
            self._kernel.retain(ref._id, link.worker.id)
        contained = tuple([ref._id for ref in encoded.refs])
        link.channel.post((messages.ANSWER, question_id, ok, encoded.data, contained))

    def build_extra(self, worker: records.WorkerRecord, task: TaskRecord) -> dict[str, Any]:
        """Return what a worker must know of a task that is not an ordinary one."""
        shape = task.options.shape
        allocation = worker.allocation
        extra: dict[str, Any] = {
            "resources": {name: units / resources.UNIT for name, units in shape.demand},
            "group_id": shape.group_id,
            "attempt": task.attempt,
        }
        if shape.captures_children:
            extra["captures_children"] = True
        if shape.environment:
            extra["environment"] = shape.environment
        if task.options.backpressure:
            extra["backpressure"] = task.options.backpressure
        if task.stream is not None:
            extra["consumed"] = task.stream.read
        if allocation is not None and allocation.gpu_ids:
            extra["gpu_ids"] = list(allocation.gpu_ids)
        options = task.actor_options
        if options is not None:
            extra["creates_actor"] = True
            extra["max_concurrency"] = options.max_concurrency
            extra["is_async"] = options.is_async
            extra["groups"] = list(options.concurrency_groups)
            extra["namespace"] = options.namespace
            extra["actor_name"] = options.name
            extra["class_name"] = options.class_name
            extra["resources"] = {name: units / resources.UNIT for name, units in options.lifetime_shape.demand}
        return extra


def build_call_extra(task: TaskRecord) -> dict[str, Any] | None:
    """Return what a worker must know of a call that is not an ordinary one."""
    options = task.options
    if not (task.attempt or options.concurrency_group or options.backpressure):
        return None
    consumed = task.stream.read if task.stream is not None else 0
    return {
        "attempt": task.attempt,
        "group": options.concurrency_group,
        "backpressure": options.backpressure,
        "consumed": consumed,
    }
