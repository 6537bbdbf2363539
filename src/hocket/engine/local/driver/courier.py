"""The courier carries out the kernel's instructions: they become messages.

`.remote()` sends at once to a worker that was idle. Tasks behind another task in a worker's queue are sent together:
with the next wait, after `BATCH` messages, or by the background reader.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, final

from hocket import exceptions
from hocket.engine import kernel_parts
from hocket.engine.local import channel, driver_store, functions, links, messages, payloads, task_facts
from hocket.kernel import instructions, records
from hocket.kernel.instructions import Run
from hocket.kernel.records import DRIVER, TaskKind, TaskRecord

BATCH: Final = 32
"""The most messages that wait to be sent together."""

FEW: Final = 4
"""So many values beside the arguments make no long message: each value that is not in shared memory is short."""


class Waiters(Protocol):
    """The threads that wait for results."""

    #: Functions to call without the lock, after the round of messages that brought them about.
    due: Any

    def poke(self) -> None:
        """Have the waiting threads look again."""


@final
class Courier:
    """The part that carries out the kernel's instructions. Every method is called with the lock held.

    Args:
        session: The kernel, and the callbacks of objects.
        ends: The links to the workers.
        store: The objects in shared memory.
        waiters: The threads that wait.
        start_worker: Has a process forked for a worker.
        kill_worker: Has a worker killed.
    """

    def __init__(
        self,
        session: kernel_parts.Session,
        ends: links.Links,
        store: driver_store.DriverStore,
        waiters: Waiters,
        *,
        start_worker: Callable[[records.WorkerRecord], None],
        kill_worker: Callable[[int], None],
    ) -> None:
        self._session, self._kernel, self._links, self._store, self._waiters = (
            session,
            session.kernel,
            ends,
            store,
            waiters,
        )
        self._start_worker, self._kill_worker = start_worker, kill_worker
        self._handlers: dict[type[instructions.Instruction], Callable[[Any], None]] = {
            instructions.Free: self._free,
            instructions.Start: self._start,
            instructions.Tell: self._tell,
            instructions.Kill: self._kill,
            instructions.End: self._end,
            instructions.Cancel: self._cancel,
            instructions.Stop: self._stop,
            instructions.Consumed: self._note_consumed,
            instructions.Moved: self._note_moved,
            instructions.Pass: self._pass_marker,
            instructions.Refuse: self._refuse,
        }

    def carry_out(self, *, urgent: bool = True) -> None:
        """Carry out the kernel's instructions, then send the messages.

        Args:
            urgent: Whether all messages are sent, as by default; else messages behind a running task wait for others.
        """
        kernel, handlers = self._kernel, self._handlers
        links_of, dirty = self._links.by_worker, self._links.dirty
        while kernel.instructions:
            batch, kernel.instructions = kernel.instructions, []
            for instruction in batch:
                if type(instruction) is Run:  # the usual one, without a call
                    try:
                        link = links_of[instruction.worker.id]
                    except KeyError:  # the worker is dead, and the kernel soon learns that
                        continue
                    self._send_task(link, instruction.task)
                    dirty[link] = None
                else:
                    handlers[type(instruction)](instruction)
        for link in list(dirty):
            outbox = link.channel.outbox
            if urgent or len(link.worker.inflight) <= len(outbox) or len(outbox) >= BATCH:
                self._links.flush(link)
        if dirty:
            self._waiters.poke()

    # --- one instruction ----------------------------------------------------------------------------------------------

    def _start(self, instruction: instructions.Start) -> None:
        self._start_worker(instruction.worker)

    def _tell(self, instruction: instructions.Tell) -> None:
        worker_id, object_id = instruction
        if worker_id == DRIVER:
            self._waiters.due.extend(self._session.callbacks.pop(object_id, ()))
            return
        link = self._links.by_worker.get(abs(worker_id))
        if link is None:
            return
        self._links.dirty[link] = None
        if worker_id < 0:  # the worker does not want the value
            link.channel.outbox.append((messages.READY, object_id))
            return
        record = self._kernel.objects.get(object_id)
        if record is None or record.value is None:  # the worker has dropped the object meanwhile
            return
        payload = self._lend(link, record.value)
        for inner in record.contained:
            self._kernel.retain(inner, link.worker.id)
        link.channel.post((messages.VALUE, object_id, payload, record.contained))

    def _kill(self, instruction: instructions.Kill) -> None:
        if instruction.worker.id in self._links.by_worker:
            self._kill_worker(instruction.worker.id)

    def _end(self, instruction: instructions.End) -> None:
        """End a process if it runs this task, after the tasks that it has not started were withdrawn."""
        worker, task_id = instruction
        link = self._links.by_worker.get(worker.id)
        if link is None:
            return
        begun = link.page.withdraw(worker.sent)
        self._kernel.withdraw(worker, begun)
        task = worker.inflight.get(task_id)
        if task is not None and task.number == begun:
            self._kernel.expect_end(worker)
            self._kill_worker(worker.id)

    def _cancel(self, instruction: instructions.Cancel) -> None:
        worker, task_id, recursive = instruction
        self._links.tell(worker.id, (messages.CANCEL, task_id, recursive))

    def _stop(self, instruction: instructions.Stop) -> None:
        link = self._links.by_worker.get(instruction.worker.id)
        if link is not None:
            link.stop(time.monotonic())
            self._links.post(link, (messages.STOP,))

    def _note_consumed(self, instruction: instructions.Consumed) -> None:
        worker, task_id, taken = instruction
        self._links.tell(worker.id, (messages.CONSUMED, task_id, taken))

    def _note_moved(self, instruction: instructions.Moved) -> None:
        self._links.tell(instruction.worker_id, (messages.MOVED, instruction.object_id))

    def _pass_marker(self, instruction: instructions.Pass) -> None:
        """Send a marker's message, with its descriptor if it has one."""
        worker, (message, fd) = instruction
        link = self._links.by_worker.get(worker.id)
        if link is None:
            drop_marker(instruction.marker)
            return
        self._links.post(link, message)
        if fd is not None:
            link.channel.outbox_fds.append(fd)
            self._links.flush(link)  # duplicates the descriptor
            os.close(fd)

    def _refuse(self, instruction: instructions.Refuse) -> None:
        drop_marker(instruction.marker)

    def _free(self, instruction: instructions.Free) -> None:
        object_id, payload = instruction
        if payload[0] != payloads.SEGMENT:
            return
        if object_id != payload[2]:  # arguments: their task is over; the segment goes with its last mapping
            self._kernel.release(payload[2])
        else:
            self._store.free(payload)

    # --- a task -------------------------------------------------------------------------------------------------------

    def _send_task(self, link: links.Link, task: TaskRecord) -> None:
        function = task.function
        if function is not None and function.id not in link.functions:  # first, in the order of the descriptors
            link.functions.add(function.id)
            link.channel.post((messages.FUNCTION, function.id, self._lend(link, functions.get_payload(function))))
        dependencies: tuple[object, ...] = ()
        descriptors = len(link.channel.outbox_fds) if task.dependencies else 0
        if task.dependencies:
            dependencies = tuple([self._lend_object(link, object_id) for object_id in task.dependencies])
        if task.borrowed:
            for object_id in task.borrowed:
                self._kernel.retain(object_id, link.worker.id)
        args = task.args
        if args is not None and args[0] == payloads.SEGMENT:
            self._lend(link, args)
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
        if dependencies and len(dependencies) > FEW:
            self._post_long(link, task, message, descriptors)
        else:
            link.channel.outbox.append(message)

    def _post_long(self, link: links.Link, task: TaskRecord, message: channel.Message, descriptors: int) -> None:
        """Post a message with values beside the arguments. If it becomes too long, the task fails."""
        try:
            link.channel.post(message)
        except channel.MessageError as error:
            del link.channel.outbox_fds[descriptors:]
            link.channel.post((messages.SKIP,))
            refused = exceptions.SerializationError(
                f"`{task.options.name}` cannot be sent to a worker: {error}. Put the references into a list and pass "
                "the list: the function then gets references and fetches the values itself."
            )
            self._session.note_failure()
            self._kernel.fail(
                link.worker,
                task.id,
                payloads.encode_error(refused),
                retryable=False,
                error_type=type(refused).__name__,
            )

    def _lend_object(self, link: links.Link, object_id: int) -> tuple[int, payloads.Payload, tuple[int, ...]]:
        """Prepare an argument for sending, with the references inside it."""
        record = self._kernel.objects[object_id]
        for inner in record.contained:
            self._kernel.retain(inner, link.worker.id)
        return object_id, self._lend(link, record.value), record.contained

    def _lend(self, link: links.Link, payload: Any) -> payloads.Payload:
        """Prepare a payload for sending; a segment's mapping in the worker will hold a count on its object."""
        if payload[0] == payloads.SEGMENT:
            self._kernel.retain(payload[2], link.worker.id)
            link.channel.outbox_fds.append(self._store.lend(payload[2], link.worker.id))
        return payload  # type: ignore[no-any-return]


def drop_marker(marker: tuple[Any, ...]) -> None:
    """Close a marker's descriptor: the caller learns the actor's death from the end of the direct channel."""
    if marker[1] is not None:
        os.close(marker[1])
