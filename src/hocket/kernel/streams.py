"""Streams: the items that generators yield.

Each item is an object. The stream holds one count on each item until its reader takes it, in order, and then the count
is the reader's. The object at the place that comes next exists already, so that it can be waited for: it becomes an
item, the error that ended the generator, or `State.end_value`. After an error comes the end, so every stream ends the
same way.

An item stays until it is taken, so a generator that runs far ahead of its reader asks (`pause`) and waits. It is
answered once, as soon as the reader has come so far, with how far that is. No message goes to a generator that has not
asked: one that is only about to start, after its worker's death, would not hear it, and wait for ever. So each attempt
asks for itself, and a message to an earlier one need not reach it. A generator that nobody can read any more is
cancelled (`State.abandon`).

A generator that is tried again yields from the start. What an earlier attempt has yielded is there already, and the new
one is dropped: the reader sees each place once.
"""

from __future__ import annotations

from hocket.kernel import ids, objects, records
from hocket.kernel.instructions import Consumed, Free
from hocket.kernel.records import ObjectRecord, StreamRecord, TaskRecord, WorkerRecord
from hocket.kernel.state import State


def open_stream(kernel: State, task: TaskRecord) -> None:
    """A generator was submitted: its first place exists from now on."""
    task.stream = kernel.streams[task.id] = StreamRecord(task.id)
    _add_place(kernel, task.stream, task)


def yield_item(
    kernel: State, worker: WorkerRecord, task_id: int, index: int, value: tuple[object, ...], contained: tuple[int, ...]
) -> None:
    """A generator has yielded the item at this place; one that an earlier attempt yielded already is dropped."""
    task = worker.inflight.get(task_id)
    stream = task.stream if task is not None else None
    if stream is None or task_id not in kernel.streams or index != stream.produced:
        kernel.instructions.append(Free(ids.build_item_id(task_id, index), value))
        return
    _fill_place(kernel, stream, value, contained, False)
    _add_place(kernel, stream, task)


def take_item(kernel: State, task_id: int, index: int, holder: int = records.DRIVER) -> int:
    """Hand the stream's count on an item to a reader, who has read those before it. Returns the item's id."""
    stream = kernel.streams[task_id]
    stream.taken = index + 1
    stream.read = index
    item_id = ids.build_item_id(task_id, index)
    if holder:
        record = kernel.objects[item_id]
        if record.holders is None:
            record.holders = {}
        record.holders[holder] = record.holders.get(holder, 0) + 1
    if stream.wanted:
        _let_go_on(kernel, stream)
    return item_id


def pause(kernel: State, worker: WorkerRecord, task_id: int, wanted: int) -> None:
    """A generator has run far ahead of its reader, and waits until so many items have been taken."""
    stream = kernel.streams.get(task_id)
    if stream is not None and task_id in worker.inflight:
        stream.wanted = wanted
        _let_go_on(kernel, stream)


def lift_bound(kernel: State, task_id: int) -> None:
    """Somebody waits for the generator's end: it is not to wait for a reader, unless its options say how far it may
    go."""
    stream = kernel.streams.get(task_id)
    if stream is not None:
        stream.is_unbounded = True
        _let_go_on(kernel, stream)


def _let_go_on(kernel: State, stream: StreamRecord) -> None:
    """Answer a generator that waits, if it may go on."""
    task = kernel.tasks.get(stream.task_id)
    if not stream.wanted or task is None or task.worker is None:
        return
    is_lifted = stream.is_unbounded and not task.options.backpressure
    if is_lifted or stream.read >= stream.wanted:
        stream.wanted = 0
        consumed = ids.LAST_INDEX if is_lifted else stream.read
        kernel.instructions.append(Consumed(task.worker, stream.task_id, consumed))


def end_stream(kernel: State, stream: StreamRecord) -> None:
    """The generator has returned."""
    if stream.task_id in kernel.streams:
        _fill_place(kernel, stream, kernel.end_value, (), False)


def fail_stream(kernel: State, stream: StreamRecord, error: tuple[object, ...]) -> None:
    """The last item is the error; then the stream ends."""
    if stream.task_id in kernel.streams:
        _fill_place(kernel, stream, error, (), True)
        _add_place(kernel, stream, None)
        end_stream(kernel, stream)


def _add_place(kernel: State, stream: StreamRecord, task: TaskRecord | None) -> ObjectRecord:
    item_id = ids.build_item_id(stream.task_id, stream.produced)
    record = kernel.objects[item_id] = ObjectRecord(item_id, task)
    return record


def _fill_place(
    kernel: State, stream: StreamRecord, value: tuple[object, ...], contained: tuple[int, ...], failed: bool
) -> None:
    """Give the next item its value. Its reader may have taken and dropped it already."""
    item_id = ids.build_item_id(stream.task_id, stream.produced)
    record = kernel.objects.get(item_id)
    stream.produced += 1
    if record is None:
        kernel.instructions.append(Free(item_id, value))
    else:
        objects.store(kernel, record, value, contained, failed)
