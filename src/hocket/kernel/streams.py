"""Streams: the items that generators yield.

**Items.** Each item is an object. The stream holds one count on each item. The reader takes the items in order, and
with each item its count. The object at the next index exists already, so that the reader can wait for it: it becomes an
item, the error that ended the generator, or `State.end_value`. After an error comes the end: every stream ends alike.

**Back-pressure.** An item stays until the reader takes it. A generator that runs far ahead of its reader sends a
request (`pause`) and waits. The kernel answers once, when the reader has taken enough items, with their number. It
sends no answer without a request: a generator about to start after its worker's death would miss it, and wait for ever.
So each attempt sends its own request, and answers to earlier attempts may be lost.

**Ends.** The kernel cancels a generator that no reader can reach any more (`State.abandon`). Another attempt of a
generator yields from the start: items that an earlier attempt has yielded are dropped, so the reader sees each once.
"""

from __future__ import annotations

from hocket.kernel import ids, objects, records
from hocket.kernel.instructions import Consumed, Free
from hocket.kernel.records import ObjectRecord, StreamRecord, TaskRecord, WorkerRecord
from hocket.kernel.state import State


def open_stream(kernel: State, task: TaskRecord) -> None:
    """Make the stream of a new generator task, and the object of its first item."""
    task.stream = kernel.streams[task.id] = StreamRecord(task.id)
    _add_place(kernel, task.stream, task)


def yield_item(
    kernel: State, worker: WorkerRecord, task_id: int, index: int, value: tuple[object, ...], contained: tuple[int, ...]
) -> None:
    """Store the item that a generator has yielded at this index; drop it if an earlier attempt has yielded the item."""
    task = worker.inflight.get(task_id)
    stream = task.stream if task is not None else None
    if stream is None or task_id not in kernel.streams or index != stream.produced:
        kernel.instructions.append(Free(ids.build_item_id(task_id, index), value))
        return
    _fill_place(kernel, stream, value, contained, False)
    _add_place(kernel, stream, task)


def take_item(kernel: State, task_id: int, index: int, holder: int = records.DRIVER) -> int:
    """Hand the stream's count on an item to its reader, which has read the items before; return the item's id."""
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
    """Note that a generator waits until its reader has taken `wanted` items."""
    stream = kernel.streams.get(task_id)
    if stream is not None and task_id in worker.inflight:
        stream.wanted = wanted
        _let_go_on(kernel, stream)


def lift_bound(kernel: State, task_id: int) -> None:
    """Let a generator run without a bound, because a caller waits for its end; a bound in its options still holds."""
    stream = kernel.streams.get(task_id)
    if stream is not None:
        stream.is_unbounded = True
        _let_go_on(kernel, stream)


def _let_go_on(kernel: State, stream: StreamRecord) -> None:
    """Answer a paused generator if it may go on."""
    task = kernel.tasks.get(stream.task_id)
    if not stream.wanted or task is None or task.worker is None:
        return
    is_lifted = stream.is_unbounded and not task.options.backpressure
    if is_lifted or stream.read >= stream.wanted:
        stream.wanted = 0
        consumed = ids.LAST_INDEX if is_lifted else stream.read
        kernel.instructions.append(Consumed(task.worker, stream.task_id, consumed))


def end_stream(kernel: State, stream: StreamRecord) -> None:
    """End the stream of a generator that has returned."""
    if stream.task_id in kernel.streams:
        _fill_place(kernel, stream, kernel.end_value, (), False)


def fail_stream(kernel: State, stream: StreamRecord, error: tuple[object, ...]) -> None:
    """Store an error as the last item, then end the stream."""
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
    """Give the next item its value; free the value if the reader has taken and dropped the item already."""
    item_id = ids.build_item_id(stream.task_id, stream.produced)
    record = kernel.objects.get(item_id)
    stream.produced += 1
    if record is None:
        kernel.instructions.append(Free(item_id, value))
    else:
        objects.store(kernel, record, value, contained, failed)
