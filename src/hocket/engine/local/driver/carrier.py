"""What the kernel decides, carried out: its instructions become messages.

`.remote()` sends at once to a worker that was idle; what goes behind another task in a worker's row is sent in company:
with the next wait, after `BATCH` messages, or by the background reader.
"""

from __future__ import annotations

import abc
import os
import time
from typing import Any

from hocket import exceptions
from hocket.engine.local import channel, functions, links, messages, payloads, task_facts
from hocket.engine.local.driver import base
from hocket.kernel import records
from hocket.kernel.instructions import Op
from hocket.kernel.records import DRIVER, TaskKind, TaskRecord

BATCH = 32
"""Messages that wait for company at most."""

FEW = 4
"""So many values beside the arguments make no long message: each that is not in shared memory is short."""


class Carrier(base.DriverState):
    """Carries instructions out."""

    def carry_out(self, *, urgent: bool = True) -> None:
        kernel = self.kernel
        dirty = self._dirty
        while kernel.instructions:
            batch, kernel.instructions = kernel.instructions, []
            for instruction in batch:
                op = instruction[0]
                if op == Op.RUN:
                    _, worker, task = instruction
                    link = self.links.get(worker.id)  # type: ignore[attr-defined]
                    if link is not None:
                        self._send_task(link, task)  # type: ignore[arg-type]
                        dirty.add(link)
                elif op == Op.FREE:
                    self._free(instruction[1], instruction[2])  # type: ignore[arg-type]
                else:
                    self._carry_out_rare(instruction)
        for link in list(dirty):
            outbox = link.channel.outbox
            if urgent or len(outbox) >= BATCH or len(link.worker.inflight) <= len(outbox):
                self.flush(link)
        if dirty:
            self.reactor.poke()

    def _carry_out_rare(self, instruction: tuple[Any, ...]) -> None:
        op = instruction[0]
        if op == Op.START:
            self._start_worker(instruction[1])
            return
        if op == Op.TELL:
            _, worker_id, object_id = instruction
            if worker_id == DRIVER:
                self.reactor.due.extend(self._callbacks.pop(object_id, ()))
                return
            link = self.links.get(abs(worker_id))
            if link is not None:
                self._tell_of_object(link, object_id, wants_value=worker_id > 0)
                self._dirty.add(link)
            return
        if op in {Op.MOVED, Op.REFUSE, Op.PASS}:
            self._carry_out_for_direct_calls(instruction)
            return
        link = self.links.get(instruction[1].id)
        if link is None:
            return
        if op == Op.KILL:
            self.kill_worker(link.worker.id)
        elif op == Op.END:
            self._end_task(link, instruction[2])
        else:
            number = _MESSAGES[op]
            if op == Op.STOP:
                link.stopped_at = time.monotonic()
            link.channel.post((number, *instruction[2:]))
            self._dirty.add(link)

    def _tell_of_object(self, link: links.Link, object_id: int, *, wants_value: bool) -> None:
        """Send a worker the value that it wants, or the word that it is there."""
        if not wants_value:
            link.channel.outbox.append((messages.READY, object_id))
            return
        record = self.kernel.objects.get(object_id)
        if record is None or record.value is None:  # the worker has dropped it in the same breath
            return
        payload = self.lend(link, record.value)
        for inner in record.contained:
            self.kernel.retain(inner, link.worker.id)
        link.channel.post((messages.VALUE, object_id, payload, record.contained))

    @abc.abstractmethod
    def _start_worker(self, worker: records.WorkerRecord) -> None:
        """Have a process forked for the worker."""

    def _end_task(self, link: links.Link, task_id: int) -> None:
        """End the process if this is what it runs, once it is sure that it starts nothing else."""
        worker = link.worker
        begun = link.page.withdraw(worker.sent)
        self.kernel.withdraw(worker, begun)
        task = worker.inflight.get(task_id)
        if task is not None and task.number == begun:
            self.kernel.expect_end(worker)
            self.kill_worker(worker.id)

    def _send_task(self, link: links.Link, task: TaskRecord) -> None:
        function = task.function
        if function is not None and function.id not in link.functions:  # first: so are the descriptors
            link.functions.add(function.id)
            link.channel.post((messages.FUNCTION, function.id, self.lend(link, functions.get_payload(function))))
        dependencies: tuple[object, ...] = ()
        descriptors = len(link.channel.outbox_fds) if task.dependencies else 0
        if task.dependencies:
            dependencies = tuple([self._lend_object(link, object_id) for object_id in task.dependencies])
        if task.borrowed:
            for object_id in task.borrowed:
                self.kernel.retain(object_id, link.worker.id)
        args = task.args
        if args is not None and args[0] == payloads.SEGMENT:
            self.lend(link, args)
        options = task.options
        returns, name, borrowed = options.num_returns, options.name, task.borrowed
        message: channel.Message
        if task.kind == TaskKind.CALL:
            extra = task_facts.build_call_extra(task) if task.attempt or not options.is_simple else None
            message = (messages.CALL, task.id, task.method, args, dependencies, borrowed, returns, name, extra)
        else:
            assert function is not None
            extra = None
            if options.shape is not records.DEFAULT_SHAPE or task.kind or task.attempt or not options.is_simple:
                extra = task_facts.build_extra(link.worker, task)
            message = (messages.RUN, task.id, function.id, args, dependencies, borrowed, returns, name, extra)
        if len(dependencies) > FEW:
            self._post_long(link, task, message, descriptors)
        else:
            link.channel.outbox.append(message)

    def _post_long(self, link: links.Link, task: TaskRecord, message: channel.Message, descriptors: int) -> None:
        """Post a message with values beside the arguments. If these are too many for one, the task has failed."""
        try:
            link.channel.post(message)
        except channel.MessageError as error:
            del link.channel.outbox_fds[descriptors:]
            link.channel.post((messages.SKIP,))
            refused = exceptions.SerializationError(
                f"`{task.options.name}` cannot be sent to a worker: {error}. Put the references into a list and pass "
                "that: then the function gets references, and fetches the values itself."
            )
            self.failures += 1
            self.kernel.fail(
                link.worker,
                task.id,
                payloads.encode_error(refused),
                retryable=False,
                error_type=type(refused).__name__,
            )

    def _lend_object(self, link: links.Link, object_id: int) -> tuple[int, payloads.Payload, tuple[int, ...]]:
        """Prepare an argument for sending, with the references inside it."""
        record = self.kernel.objects[object_id]
        for inner in record.contained:
            self.kernel.retain(inner, link.worker.id)
        return object_id, self.lend(link, record.value), record.contained

    def lend(self, link: links.Link, payload: Any) -> payloads.Payload:
        """Prepare a payload for sending; a mapping of a segment will hold a count on its object."""
        if payload[0] == payloads.SEGMENT:
            self.kernel.retain(payload[2], link.worker.id)
            link.channel.outbox_fds.append(self.store.lend(payload[2], link.worker.id))
        return payload  # type: ignore[no-any-return]

    def _free(self, object_id: int, payload: payloads.Payload) -> None:
        if payload[0] != payloads.SEGMENT:
            return
        if object_id != payload[2]:  # arguments: their task is over; the segment goes when nobody looks into it
            self.kernel.release(payload[2])
        else:
            self.store.free(payload)

    # --- direct channels between workers ------------------------------------------------------------------------------

    def _carry_out_for_direct_calls(self, instruction: tuple[Any, ...]) -> None:
        op = instruction[0]
        if op == Op.REFUSE:
            self._drop_marker(instruction[1])
            return
        link = self.links.get(instruction[1] if op == Op.MOVED else instruction[1].id)
        if op == Op.PASS and link is None:
            self._drop_marker(instruction[2])
        elif op == Op.PASS and link is not None:
            self._pass_marker(link, instruction[2])
        elif link is not None:
            link.channel.post((messages.MOVED, instruction[2]))
            self._dirty.add(link)

    def _pass_marker(self, link: links.Link, marker: tuple[Any, ...]) -> None:
        """Send a marker's message, with the descriptor that belongs to it, if one does."""
        message, fd = marker
        link.channel.post(message)
        if fd is None:
            self._dirty.add(link)
        else:
            link.channel.outbox_fds.append(fd)
            self.flush(link)  # duplicates the descriptor
            os.close(fd)

    def _drop_marker(self, marker: tuple[Any, ...]) -> None:
        """The actor is dead: its caller learns it from the end of the direct channel."""
        if marker[1] is not None:
            os.close(marker[1])


_MESSAGES = {
    Op.CANCEL: messages.CANCEL,
    Op.STOP: messages.STOP,
    Op.CONSUMED: messages.CONSUMED,
}
"""Instructions that are passed on to the worker as they are."""
