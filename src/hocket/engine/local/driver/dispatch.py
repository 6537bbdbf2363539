"""What workers say, turned into calls of the kernel."""

from __future__ import annotations

import pickle
from collections.abc import Callable

from hocket import exceptions
from hocket.engine import values
from hocket.engine.local import channel, links, messages, payloads
from hocket.engine.local.driver import task_messages
from hocket.kernel import metrics, records

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
"""Methods of the driver that a worker may call with `ASK`."""

ASKED_BY_NAME = frozenset({"claim_name", "release_name", "check_pending", "reserve"})
"""Those of them that want to know which worker asks."""


class Dispatcher(task_messages.TaskMessages):
    """Handles the messages of all workers. Every method is called with the lock held. ``_on_NAME`` handles the message
    ``NAME``: the table at the end finds it, and it takes the fields that `messages` declares."""

    def _handle_messages(self, link: links.Link, received: list[channel.Message]) -> None:
        """Handle what one worker sent."""
        kernel = self.kernel
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
                self.store.unpin(message[1], worker.id)
                kernel.release(message[1], worker.id)
            else:
                handler = _HANDLERS.get(op)
                if handler is None or len(message) != len(messages.declared[op]) + 1:
                    raise channel.FrameError(f"message {op!r} is unknown, or is not for the driver")
                handler(self, link, *message[1:])

    def _read_last_words(self, link: links.Link) -> None:
        """Handle what a dead worker had said and not sent: to us, and to those who called it directly."""
        self._handle_messages(link, link.page.read_unsent(link.channel.received))
        for message in link.page.read_replies():
            match message:
                case (messages.REPLY, int(task_id), list(results)):
                    for position, payload in enumerate(results):
                        self._deliver(task_id + position, payload)
                case (messages.REPLY_FAILED, int(task_id), tuple(payload), int(returns)):
                    for object_id in range(task_id, task_id + returns):
                        self._deliver(object_id, payload)
                case _:
                    raise channel.FrameError(f"message {message[0]!r} is no answer to a call")

    def _deliver(self, object_id: int, payload: payloads.Payload) -> None:
        caller = object_id >> 40
        if caller in self.kernel.workers:
            self._delivered.add(object_id)
            self.kernel.deliver(caller, object_id, payload, ())

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _on_back(self, link: links.Link, unstarted: list[tuple[int, int]]) -> None:
        self.kernel.hand_back(link.worker, unstarted)

    def _on_cancel_children(self, link: links.Link, task_id: int) -> None:
        self.kernel.cancel_children(task_id)

    def _on_exiting(self, link: links.Link) -> None:
        self.kernel.exit_actor(link.worker)

    # --- generators ---------------------------------------------------------------------------------------------------

    def _on_take(self, link: links.Link, task_id: int, index: int) -> None:
        self.kernel.take_item(task_id, index, link.worker.id)

    def _on_paused(self, link: links.Link, task_id: int, wanted: int) -> None:
        self.kernel.pause(link.worker, task_id, wanted)

    def _on_lift(self, link: links.Link, task_id: int) -> None:
        self.kernel.lift_bound(task_id)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _on_want(self, link: links.Link, object_id: int) -> None:
        record = self.kernel.objects.get(object_id)
        if record is not None and record.failed:
            self.unfetched.note_fetched(record.value)
        self._tell_when_there(link, object_id, link.worker.id)

    def _on_watch(self, link: links.Link, object_id: int) -> None:
        # The kernel only says "there now"; what the worker wants to hear is remembered in the id's sign.
        self._tell_when_there(link, object_id, -link.worker.id)

    def _tell_when_there(self, link: links.Link, object_id: int, watcher: int) -> None:
        if object_id in self.kernel.objects:
            self.kernel.watch(object_id, watcher)
            return
        error = exceptions.ObjectLostError(f"ObjectRef({object_id:016x}) was freed before it was asked for.")
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
            link.fetching.add(number)  # it does not wait, so its CPU is not to be lent
            self.kernel.hand_back(link.worker, unstarted)
            return
        wait = records.Wait(running_id, object_ids, needs_all, tuple(direct)) if object_ids else None
        self.kernel.block(link.worker, unstarted, number, wait)

    def _on_unblock(self, link: links.Link, number: int) -> None:
        if number in link.fetching:
            link.fetching.remove(number)
        else:
            self.kernel.unblock(link.worker, number)

    def _are_there(self, object_ids: tuple[int, ...], needed: int) -> bool:
        """Tell whether so many of these objects have values; 0 is all of them, or one error. A wait for no object is
        for something else."""
        if not object_ids:
            return False
        known = self.kernel.objects
        found = [record for record in map(known.get, object_ids) if record is not None and record.value is not None]
        return len(found) >= (needed or len(object_ids)) or (not needed and any(record.failed for record in found))

    def _on_ask(self, link: links.Link, question_id: int, method: str, data: bytes) -> None:
        try:
            if method not in ASKABLE:
                raise AttributeError(f"a worker may not call {method!r}")
            args, kwargs = pickle.loads(data)
            if method in ASKED_BY_NAME:
                kwargs["caller"] = link.worker.id
            answer, ok = getattr(self, method)(*args, **kwargs), True
        except Exception as error:  # noqa: BLE001 (the worker that asked raises it)
            # Without the traceback, which holds the frames above, and with them the handles of a driver that waits in
            # `get`.
            answer, ok = error.with_traceback(None), False
        encoded = values.encode_whole(answer)
        for ref in encoded.refs:
            self.kernel.retain(ref._id, link.worker.id)
        contained = tuple([ref._id for ref in encoded.refs])
        link.channel.post((messages.ANSWER, question_id, ok, encoded.data, contained))

    # --- objects and memory -------------------------------------------------------------------------------------------

    def _on_adopt(self, link: links.Link, object_id: int) -> None:
        if object_id in self.kernel.objects:
            self.kernel.retain(object_id, link.worker.id)

    def _on_metrics(self, link: links.Link, batch: metrics.Batch) -> None:
        self.record_metrics(batch)

    def _on_room(self, link: links.Link, question_id: int, needed: int, has: int, granted: int) -> None:
        self.store.note_pool(link.worker.id, has, granted)
        self.store.answer_room(link.worker.id, question_id, needed)

    def _on_pool(self, link: links.Link, has: int, granted: int) -> None:
        self.store.note_pool(link.worker.id, has, granted, is_answer=True)

    # --- direct calls -------------------------------------------------------------------------------------------------

    def _on_introduce(self, link: links.Link, actor_id: int) -> None:
        """Pass one end of a direct channel on to an actor's worker, behind what the caller has sent it through us."""
        fd = link.channel.take_descriptor()
        self.kernel.introduce(actor_id, link.worker.id, ((messages.INTRODUCED, link.worker.id), fd))

    def _on_sync(self, link: links.Link, peer_id: int, number: int) -> None:
        self.kernel.introduce(peer_id, link.worker.id, ((messages.SYNC, link.worker.id, number), None))

    def _on_await(self, link: links.Link, peer_id: int, number: int) -> None:
        self.kernel.introduce(peer_id, link.worker.id, ((messages.AWAIT, link.worker.id, number), None))

    def _on_promise(self, link: links.Link, object_id: int) -> None:
        if object_id not in self.kernel.objects:  # else the actor has delivered it meanwhile
            self._check_new(link.worker, object_id)
            self.kernel.promise(link.worker, object_id)

    def _on_fulfil(self, link: links.Link, object_id: int, payload: payloads.Payload) -> None:
        self.kernel.fulfil(link.worker, object_id, payload, failed=payload[0] == payloads.ERROR)

    def _on_deliver(
        self, link: links.Link, object_id: int, payload: payloads.Payload, contained: tuple[int, ...]
    ) -> None:
        if payload[0] == payloads.SEGMENT:
            self._take_segment(link, payload)
        self.kernel.deliver(object_id >> 40, object_id, payload, contained)

    def _on_lost(self, link: links.Link, actor_id: int, object_ids: tuple[int, ...], name: str) -> None:
        self.failures += 1
        self.kernel.fail_orphaned(link.worker, actor_id, object_ids, str(name))

    def _on_probed(self, link: links.Link, number: int, is_waiting: bool, sent: int) -> None:
        self.ends.note_answer(link.worker, number, is_waiting, sent)

    # --- the dead -----------------------------------------------------------------------------------------------------

    def _forget_worker(self, worker_id: int) -> None:
        """The worker is dead, and nothing more comes from it."""
        self._delivered = {object_id for object_id in self._delivered if object_id >> 40 != worker_id}


_HANDLERS: dict[int, Callable[..., None]] = {
    number: getattr(Dispatcher, f"_on_{name.lower()}")
    for name, number in vars(messages).items()
    if hasattr(Dispatcher, f"_on_{name.lower()}")
}
"""Of all messages but the most frequent, which `_handle_messages` looks at itself."""
