"""Values, and the counts that keep them.

**Counting.** An object is freed when no reference, borrower, dependent task or container needs it. The record keeps
each worker's share of the count (`ObjectRecord.holders`), which is subtracted if the worker dies. The shares of the
driver, tasks and containers are not kept apart, because these do not die alone.

**Waiting.** An object exists from the moment that its task is submitted. Until it has a value, its record lists the
tasks (`dependents`) and workers (`watchers`) that wait for it, and `store` serves them once. An error is a value, too,
but fails the tasks that wait for it.

**More than a value.** The object of an actor's constructor stands for the actor, and a generator's object for its
stream. The end of their last reference ends the actor or the stream, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable

from hocket.kernel import ids, records
from hocket.kernel.instructions import Free, Tell
from hocket.kernel.records import ObjectRecord, TaskRecord, TaskState
from hocket.kernel.state import State


def put(
    kernel: State,
    object_id: int,
    value: tuple[object, ...],
    contained: tuple[int, ...],
    holder: int,
    *,
    failed: bool = False,
) -> None:
    """Register a value that exists already, with one reference, which a worker or the driver holds."""
    record = ObjectRecord(object_id, None)
    record.value = value
    record.failed = failed
    if contained:
        record.contained = contained
        retain_all(kernel, contained)
    if holder:
        record.holders = {holder: 1}
    kernel.objects[object_id] = record


def retain(kernel: State, object_id: int, holder: int = records.DRIVER) -> None:
    """Count one more reference."""
    record = kernel.objects[object_id]
    record.count += 1
    if holder:
        if record.holders is None:
            record.holders = {}
        record.holders[holder] = record.holders.get(holder, 0) + 1


def retain_all(kernel: State, object_ids: Iterable[int]) -> None:
    """Count one more need of each object, by a task, a container or the driver. Skip objects that are gone."""
    for object_id in object_ids:
        record = kernel.objects.get(object_id)
        if record is not None:
            record.count += 1


def release(kernel: State, object_id: int, holder: int = records.DRIVER, count: int = 1) -> None:
    """Subtract references of a holder; at zero, free the object."""
    record = kernel.objects.get(object_id)
    if record is None:
        return
    if holder:
        held = (record.holders or {}).get(holder, 0)
        count = min(count, held)
        if record.holders is not None:
            if held == count:
                record.holders.pop(holder, None)
            else:
                record.holders[holder] = held - count
    record.count -= count
    if record.count <= 0:
        _free(kernel, record)


def release_dropped(
    kernel: State, dropped: deque[int], interned: Container[int], forget: Callable[[int], None]
) -> None:
    """Subtract the driver's references whose handles were garbage-collected, until there are no more.

    Args:
        kernel: The state.
        dropped: The ids of the objects; finalizers may append further ids meanwhile.
        interned: Objects with handles that the engine has to `forget` first.
        forget: A function of the engine's, called with the id of each such object.
    """
    objects = kernel.objects
    while dropped:
        object_id = dropped.popleft()
        if object_id in interned:
            forget(object_id)
        record = objects.get(object_id)
        if record is not None:
            record.count -= 1
            if record.count <= 0:
                _free(kernel, record)


def drop_values(kernel: State, task_id: int, values: list[tuple[tuple[object, ...], tuple[int, ...]]]) -> None:
    """Free results of a task that is no longer known."""
    for position, (value, _) in enumerate(values):
        kernel.instructions.append(Free(task_id + position, value))


def _free(kernel: State, record: ObjectRecord) -> None:
    del kernel.objects[record.id]
    if record.value is not None and len(record.value) > 2:
        kernel.instructions.append(Free(record.id, record.value))
    if record.contained:
        kernel.to_release += record.contained
        if not kernel.is_releasing:  # a list, not a recursion: values may refer to values, thousands deep
            kernel.is_releasing = True
            while kernel.to_release:
                release(kernel, kernel.to_release.pop())
            kernel.is_releasing = False
    if record.id in kernel.actors:
        kernel.forget_actor(kernel.actors[record.id])
    if record.id in kernel.streams:
        _drop_stream(kernel, record.id)


def _drop_stream(kernel: State, task_id: int) -> None:
    """Drop a stream without a reader: free the items that were not taken, and cancel the generator. Later items are
    freed when they come."""
    stream = kernel.streams.pop(task_id)
    for index in range(stream.taken, stream.produced + 1):
        release(kernel, ids.build_item_id(stream.task_id, index))
    task = kernel.tasks.get(task_id)
    if task is not None:
        kernel.abandon(task)


def release_arguments(kernel: State, task: TaskRecord) -> None:
    """Release a task's arguments, which it no longer needs."""
    for object_id in task.dependencies:
        release(kernel, object_id)
    for object_id in task.borrowed:
        release(kernel, object_id)
    if task.args is not None:
        if len(task.args) > 2:
            kernel.instructions.append(Free(0, task.args))
        task.args = None


def watch(kernel: State, object_id: int, worker_id: int) -> None:
    """Inform a worker when the object has its value; at once if it has."""
    record = kernel.objects[object_id]
    if record.value is not None:
        kernel.instructions.append(Tell(worker_id, object_id))
    elif record.watchers is None:
        record.watchers = [worker_id]
    else:
        record.watchers.append(worker_id)


def store(
    kernel: State, record: ObjectRecord, value: tuple[object, ...], contained: tuple[int, ...], failed: bool
) -> None:
    """Give an object its value, and serve all tasks and workers that wait for it."""
    if contained:  # first, because this raises if these are no ids: the object then has no value yet
        retain_all(kernel, contained)
        record.contained = contained
    record.value = value
    record.failed = failed
    record.task = None
    if record.watchers is not None:
        for worker_id in record.watchers:
            kernel.instructions.append(Tell(worker_id, record.id))
        record.watchers = None
    if record.dependents is not None:
        kernel.to_serve.append((record.dependents, value, failed))
        record.dependents = None
        if not kernel.is_serving:  # a queue, not a recursion: an error may run through thousands of dependent tasks
            kernel.is_serving = True
            try:
                while kernel.to_serve:
                    _serve(kernel, *kernel.to_serve.popleft())
            finally:
                kernel.is_serving = False


def _serve(kernel: State, dependents: list[TaskRecord], value: tuple[object, ...], failed: bool) -> None:
    """Give tasks an argument that they waited for."""
    for task in dependents:
        if task.state == TaskState.WAITING:
            task.unresolved -= 1
            if failed:
                kernel.fail_with(task, value)
            elif task.unresolved == 0:
                kernel.make_ready(task)
