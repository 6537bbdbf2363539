"""Messages of workers, turned into calls of the kernel."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any, Final, final

from hocket import exceptions
from hocket._base import texts
from hocket.engine import contract, kernel_parts, values
from hocket.engine.local import channel, driver_store, ends, functions, links, messages, payloads
from hocket.kernel import metrics, records
from hocket.kernel.records import DRIVER, TaskKind, TaskRecord

ASKED_BY_NAME: Final = frozenset({"claim_name", "release_name", "check_pending", "reserve"})
"""Questions with an answer that depends on the worker that asks."""


@final
class Inbox:
    """The handler of all workers' messages. Every method is called with the lock held. ``_on_NAME`` handles the message
    ``NAME``: the table at the end finds the method, which takes the fields that `messages` declares.

    Args:
        engine: The engine; its handles keep the large arrays of functions.
        session: The kernel.
        ends_of: The links to the workers.
        store: The objects in shared memory.
        table: The code of functions.
        search: Ends actors that no process can reach.
        unfetched: Errors that nobody has fetched.
        answers: The functions that a worker may call with `ASK`, by name.
    """

    def __init__(
        self,
        engine: contract.Engine,
        session: kernel_parts.Session,
        ends_of: links.Links,
        store: driver_store.DriverStore,
        table: functions.Functions,
        search: ends.Ends,
        unfetched: kernel_parts.Unfetched,
        answers: Mapping[str, Callable[..., object]],
    ) -> None:
        self._engine, self._session, self._kernel, self._links, self._store = (
            engine,
            session,
            session.kernel,
            ends_of,
            store,
        )
        self._functions, self._search, self._unfetched, self._answers = table, search, unfetched, answers
        #: Options that workers have sent, by their pickle; and options of direct calls, by the call's name.
        self._options: dict[bytes, Any] = {}
        self._direct_options: dict[str, records.TaskOptions] = {}
        #: Answers of dead actors that the driver delivered. The caller may have received such an answer by its direct
        #: channel, too, and be about to announce it.
        self._delivered: set[int] = set()

    def handle(self, link: links.Link, received: list[channel.Message]) -> None:
        """Handle the messages of one worker."""
        kernel, worker = self._kernel, link.worker
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
                self._store.unpin(message[1], worker.id)
                kernel.release(message[1], worker.id)
            else:
                handler = _HANDLERS.get(op)
                if handler is None or len(message) != len(messages.declared[op]) + 1:
                    raise channel.FrameError(f"message {op!r} is unknown, or is not for the driver")
                handler(self, link, *message[1:])

    def read_last_words(self, link: links.Link) -> None:
        """Handle a dead worker's unsent messages: to the driver, and to the callers of direct calls."""
        self.handle(link, link.page.read_unsent(link.channel.received))
        for message in link.page.read_replies():
            match message:
                case (messages.REPLY, int(task_id), list(results)):
                    for position, payload in enumerate(results):
                        self._deliver(task_id + position, payload)
                case (messages.REPLY_FAILED, int(task_id), tuple(payload), int(returns)):
                    for object_id in range(task_id, task_id + returns):
                        self._deliver(object_id, payload)
                case _:
                    raise channel.FrameError(f"message {message[0]!r} is not an answer to a call")

    def _deliver(self, object_id: int, payload: payloads.Payload) -> None:
        caller = object_id >> 40
        if caller in self._kernel.workers:
            self._delivered.add(object_id)
            self._kernel.deliver(caller, object_id, payload, ())

    def forget_worker(self, worker_id: int) -> None:
        """Forget the deliveries to a dead worker."""
        self._delivered = {object_id for object_id in self._delivered if object_id >> 40 != worker_id}

    # --- submitted work -----------------------------------------------------------------------------------------------

    def _check_new(self, worker: records.WorkerRecord, object_id: int) -> None:
        """Refuse an id that the worker may not give, or that it has given before."""
        if object_id >> 40 != worker.id or object_id in self._kernel.objects:
            raise channel.FrameError(
                f"worker {worker.id} announced object {object_id:x}, whose id is taken or is not the worker's"
            )

    def _take_segment(self, link: links.Link, payload: payloads.Payload) -> None:
        self._store.take(payload, link.channel.take_descriptor(), link.worker.id)

    def _take_arguments(self, link: links.Link, args: payloads.Payload | None) -> None:
        if args is not None and args[0] == payloads.SEGMENT:
            self._take_segment(link, args)
            self._kernel.put(args[2], args, (), DRIVER)

    def _open_options(self, options: bytes) -> Any:
        found = self._options.get(options)
        if found is None:
            found = self._options[options] = pickle.loads(options)
        return found

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
        found = self._open_options(options)
        self._take_arguments(link, args)
        function = self._kernel.functions[function_id]
        worker_id = link.worker.id
        if isinstance(found, records.TaskOptions):
            task = TaskRecord(task_id, function, args, dependencies, borrowed, found, worker_id, parent)
        else:
            creation, kind = found.creation, TaskKind.CREATION
            task = TaskRecord(task_id, function, args, dependencies, borrowed, creation, worker_id, parent, kind)
            task.actor_options = found
        self._kernel.submit(task)

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
        found = self._open_options(options)
        task = TaskRecord(task_id, None, args, dependencies, borrowed, found, link.worker.id, parent, TaskKind.CALL)
        task.method = method
        task.actor = self._kernel.actors[actor_id]
        self._kernel.submit(task)

    def _on_export(self, link: links.Link, function_id: bytes, payload: payloads.Payload, name: str) -> None:
        """Take the code of a function from a worker, which may call the function from now on."""
        is_taken = payload[0] == payloads.SEGMENT
        if is_taken:
            self._take_segment(link, payload)
        link.exported.add(function_id)
        self._functions.note_export(function_id, link.worker.id)
        if self._functions.find(function_id) is not None:
            if is_taken:
                self._store.free(payload)
            return
        refs: list[contract.AnyRef] = []
        if is_taken:
            self._kernel.put(payload[2], payload, (), DRIVER)
            refs.append(contract.ObjectRef(payload[2], self._engine))
        self._functions.add(function_id, payload, refs)

    # --- outcomes -----------------------------------------------------------------------------------------------------

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
        self._session.note_failure()
        retryable = _is_retryable(task, error)
        error = error[:2]
        if not retryable:
            self._session.note_error(task_id, task.options.name, error_type, message)
        self._kernel.fail(
            worker, task_id, error, retryable=retryable, error_type=error_type, started=started, seconds=seconds
        )

    def _fail_in_part(self, worker: records.WorkerRecord, message: channel.Message, failure: payloads.Payload) -> bool:
        """Have a task tried again if an error among its results allows that; return whether the task is tried again."""
        _, task_id, seconds, results, started = message
        task = worker.inflight.get(task_id)
        if task is None:
            return False
        self._session.note_failure()
        if not _is_retryable(task, failure):
            error = kernel_parts.decode_error(failure)
            cause = error if error is None else exceptions.get_cause(error)
            task.error_type = texts.name_class(type(cause))
            self._session.note_error(task_id, task.options.name, task.error_type, texts.safe_text(cause, 1000))
            return False
        self._kernel.drop_values(task_id, results)
        self._kernel.fail(worker, task_id, failure, retryable=True, started=started, seconds=seconds)
        return True

    def _on_back(self, link: links.Link, unstarted: list[tuple[int, int]]) -> None:
        self._kernel.hand_back(link.worker, unstarted)

    def _on_cancel_children(self, link: links.Link, task_id: int) -> None:
        self._kernel.cancel_children(task_id)

    def _on_exiting(self, link: links.Link) -> None:
        self._kernel.exit_actor(link.worker)

    # --- generators ---------------------------------------------------------------------------------------------------

    def _on_yield(
        self, link: links.Link, task_id: int, index: int, payload: payloads.Payload, contained: tuple[int, ...]
    ) -> None:
        if payload[0] == payloads.SEGMENT:
            self._take_segment(link, payload)
        self._kernel.yield_item(link.worker, task_id, index, payload, contained)

    def _on_take(self, link: links.Link, task_id: int, index: int) -> None:
        self._kernel.take_item(task_id, index, link.worker.id)

    def _on_paused(self, link: links.Link, task_id: int, wanted: int) -> None:
        self._kernel.pause(link.worker, task_id, wanted)

    def _on_lift(self, link: links.Link, task_id: int) -> None:
        self._kernel.lift_bound(task_id)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _on_want(self, link: links.Link, object_id: int) -> None:
        record = self._kernel.objects.get(object_id)
        if record is not None and record.failed:
            self._unfetched.note_fetched(record.value)
        self._tell_when_there(link, object_id, link.worker.id)

    def _on_watch(self, link: links.Link, object_id: int) -> None:
        # The kernel's `Tell` only has a worker's id; a negative id says that the worker wants no value.
        self._tell_when_there(link, object_id, -link.worker.id)

    def _tell_when_there(self, link: links.Link, object_id: int, watcher: int) -> None:
        if object_id in self._kernel.objects:
            self._kernel.watch(object_id, watcher)
            return
        error = exceptions.ObjectLostError(f"ObjectRef({object_id:016x}) was freed before a worker requested it.")
        link.channel.post((messages.VALUE, object_id, payloads.encode_error(error), ()))

    def _on_block(
        self,
        link: links.Link,
        unstarted: list[tuple[int, int]],
        number: int,
        running_id: int,
        object_ids: tuple[int, ...],
        needs_all: bool,
        direct: list[tuple[int, int, str]],
        missing: tuple[int, ...],
        needed: int,
    ) -> None:
        if self._are_there(missing, needed):
            link.fetching.add(number)  # the worker does not wait, so its CPU is not lent
            self._kernel.hand_back(link.worker, unstarted)
            return
        wait = records.Wait(running_id, object_ids, needs_all, tuple(direct)) if object_ids else None
        self._kernel.block(link.worker, unstarted, number, wait)

    def _on_unblock(self, link: links.Link, number: int) -> None:
        if number in link.fetching:
            link.fetching.remove(number)
        else:
            self._kernel.unblock(link.worker, number)

    def _are_there(self, object_ids: tuple[int, ...], needed: int) -> bool:
        """Tell whether so many of these objects have values; 0: all of them, or one error."""
        if not object_ids:  # the wait is for something else
            return False
        known = self._kernel.objects
        found = [record for record in map(known.get, object_ids) if record is not None and record.value is not None]
        return len(found) >= (needed or len(object_ids)) or (not needed and any(record.failed for record in found))

    def _on_ask(self, link: links.Link, question_id: int, method: str, data: bytes) -> None:
        try:
            if method not in self._answers:
                raise AttributeError(f"a worker may not call {method!r}")
            args, kwargs = pickle.loads(data)
            if method in ASKED_BY_NAME:
                kwargs["caller"] = link.worker.id
            answer, ok = self._answers[method](*args, **kwargs), True
        except Exception as error:  # noqa: BLE001 (the worker that asked raises it)
            # The traceback would hold the frames above, and the handles of a driver that waits in `get`.
            answer, ok = error.with_traceback(None), False
        encoded = values.encode_whole(answer)
        for ref in encoded.refs:
            self._kernel.retain(ref._id, link.worker.id)
        contained = tuple([ref._id for ref in encoded.refs])
        link.channel.post((messages.ANSWER, question_id, ok, encoded.data, contained))

    # --- objects and memory -------------------------------------------------------------------------------------------

    def _put(self, link: links.Link, object_id: int, payload: payloads.Payload, contained: tuple[int, ...]) -> None:
        """Store a value that a worker has put, or has received by a direct channel."""
        worker = link.worker
        if object_id in self._delivered and object_id >> 40 == worker.id:
            self._delivered.discard(object_id)
            return
        self._check_new(worker, object_id)
        if payload[0] == payloads.SEGMENT:
            self._take_segment(link, payload)
        self._kernel.put(object_id, payload, contained, worker.id, failed=payload[0] == payloads.ERROR)

    def _on_adopt(self, link: links.Link, object_id: int) -> None:
        if object_id in self._kernel.objects:
            self._kernel.retain(object_id, link.worker.id)

    def _on_metrics(self, link: links.Link, batch: metrics.Batch) -> None:
        self._engine.metrics.record(batch)

    def _on_room(self, link: links.Link, question_id: int, needed: int, has: int, granted: int) -> None:
        self._store.note_pool(link.worker.id, has, granted)
        self._store.answer_room(link.worker.id, question_id, needed)

    def _on_pool(self, link: links.Link, has: int, granted: int) -> None:
        self._store.note_pool(link.worker.id, has, granted, is_answer=True)

    # --- direct calls -------------------------------------------------------------------------------------------------

    def _on_introduce(self, link: links.Link, actor_id: int) -> None:
        """Pass one end of a direct channel on to an actor's worker, behind the caller's earlier calls."""
        fd = link.channel.take_descriptor()
        self._kernel.introduce(actor_id, link.worker.id, ((messages.INTRODUCED, link.worker.id), fd))

    def _on_sync(self, link: links.Link, peer_id: int, number: int) -> None:
        self._kernel.introduce(peer_id, link.worker.id, ((messages.SYNC, link.worker.id, number), None))

    def _on_await(self, link: links.Link, peer_id: int, number: int) -> None:
        self._kernel.introduce(peer_id, link.worker.id, ((messages.AWAIT, link.worker.id, number), None))

    def _on_promise(self, link: links.Link, object_id: int) -> None:
        if object_id not in self._kernel.objects:  # else the actor has delivered it meanwhile
            self._check_new(link.worker, object_id)
            self._kernel.promise(link.worker, object_id)

    def _on_fulfil(self, link: links.Link, object_id: int, payload: payloads.Payload) -> None:
        self._kernel.fulfil(link.worker, object_id, payload, failed=payload[0] == payloads.ERROR)

    def _on_deliver(
        self, link: links.Link, object_id: int, payload: payloads.Payload, contained: tuple[int, ...]
    ) -> None:
        if payload[0] == payloads.SEGMENT:
            self._take_segment(link, payload)
        self._kernel.deliver(object_id >> 40, object_id, payload, contained)

    def _on_lost(self, link: links.Link, actor_id: int, object_ids: tuple[int, ...], name: str) -> None:
        self._session.note_failure()
        self._kernel.fail_orphaned(link.worker, actor_id, object_ids, str(name))

    def _on_probed(self, link: links.Link, number: int, is_waiting: bool, sent: int) -> None:
        self._search.note_answer(link.worker, number, is_waiting, sent)

    def _on_notes(self, link: links.Link, notes: list[tuple[int, str, float, float, str | None, str]]) -> None:
        """Note direct calls, for inspection."""
        for task_id, name, started, seconds, error_type, text in notes:
            options = self._direct_options.get(name)
            if options is None:
                options = self._direct_options[name] = records.TaskOptions(name=name)
            self._kernel.note_direct_call(link.worker, task_id, options, started, seconds, error_type)
            if error_type is not None:
                self._session.note_error(task_id, name, error_type, text)


_HANDLERS: Final[dict[int, Callable[..., None]]] = {
    number: getattr(Inbox, f"_on_{name.lower()}")
    for name, number in vars(messages).items()
    if hasattr(Inbox, f"_on_{name.lower()}")
}
"""The handlers of all messages but the most frequent, which `Inbox.handle` handles itself."""


def _is_retryable(task: TaskRecord, payload: payloads.Payload) -> bool:
    """Tell whether this error of the user's code allows another attempt of a task."""
    asked = task.options.retry_exceptions
    if not asked or not task.retries_left or task.cancelled:
        return False
    if len(payload) > 2 and isinstance(payload[2], bool):  # the worker has compared
        return payload[2]
    error = kernel_parts.decode_error(payload)
    cause = error if error is None else exceptions.get_cause(error)
    return asked is True or (asked is not False and issubclass(type(cause), asked))
