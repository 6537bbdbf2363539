"""Values, and the counts that keep them.

**Counting.** An object is freed when no reference, borrower, dependent task or container needs it. A worker's share of
a count is remembered (`ObjectRecord.holders`) and given back at once when the worker dies; what the driver, tasks and
containers hold has no name, because they do not die alone.

**Waiting.** An object exists from the moment that its task is submitted. Until it has a value, tasks (`dependents`) and
workers (`watchers`) stand in its record and are served, once, when `store` brings the value. An error is a value like
any other, only that it fails the tasks which wait for it instead of making them ready.

**More than a value.** The object of an actor's constructor stands for the actor, and that of a generator for its
stream: their last reference ends more than a value.
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
    """Register a value that exists already, with one reference, held by a worker or the driver."""
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
    """Count one more need for each, of a task, a container or the driver; those that are gone already stay so."""
    for object_id in object_ids:
        record = kernel.objects.get(object_id)
        if record is not None:
            record.count += 1


def release(kernel: State, object_id: int, holder: int = records.DRIVER, count: int = 1) -> None:
    """Count references as gone; at zero the value is freed."""
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
    """Count the driver's handles that were garbage-collected as gone, until there are no more.

    Args:
        kernel: The state.
        dropped: Their ids; finalizers append while we are at it.
        interned: Objects whose handle the engine has to `forget` first.
        forget: Called with the id of each of those.
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
    """Nobody wants these results of a task."""
    for position, (value, _) in enumerate(values):
        kernel.instructions.append(Free(task_id + position, value))


def _free(kernel: State, record: ObjectRecord) -> None:
    del kernel.objects[record.id]
    if record.value is not None and len(record.value) > 2:
        kernel.instructions.append(Free(record.id, record.value))
    if record.contained:
        kernel.to_release += record.contained
        if not kernel.is_releasing:  # a row, not a recursion: values may refer to values, thousands deep
            kernel.is_releasing = True
            while kernel.to_release:
                release(kernel, kernel.to_release.pop())
            kernel.is_releasing = False
    if record.id in kernel.actors:
        kernel.forget_actor(kernel.actors[record.id])
    if record.id in kernel.streams:
        _drop_stream(kernel, record.id)


def _drop_stream(kernel: State, task_id: int) -> None:
    """Nobody reads it any more: what was not taken is freed, what is still to come will be, and its generator is
    cancelled."""
    stream = kernel.streams.pop(task_id)
    for index in range(stream.taken, stream.produced + 1):
        release(kernel, ids.build_item_id(stream.task_id, index))
    task = kernel.tasks.get(task_id)
    if task is not None:
        kernel.abandon(task)


def release_arguments(kernel: State, task: TaskRecord) -> None:
    """The task needs its arguments no longer."""
    for object_id in task.dependencies:
        release(kernel, object_id)
    for object_id in task.borrowed:
        release(kernel, object_id)
    if task.args is not None:
        if len(task.args) > 2:
            kernel.instructions.append(Free(0, task.args))
        task.args = None


def watch(kernel: State, object_id: int, worker_id: int) -> None:
    """Tell the worker when the object is there; at once if it is."""
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
    """Give an object its value, and serve all who wait for it."""
    if contained:  # first: if these are no ids, the object has no value yet
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
        if not kernel.is_serving:  # a row, not a recursion: an error may run through thousands of dependent tasks
            kernel.is_serving = True
            try:
                while kernel.to_serve:
                    _serve(kernel, *kernel.to_serve.popleft())
            finally:
                kernel.is_serving = False


def _serve(kernel: State, dependents: list[TaskRecord], value: tuple[object, ...], failed: bool) -> None:
    """An argument of these tasks is there."""
    for task in dependents:
        if task.state == TaskState.WAITING:
            task.unresolved -= 1
            if failed:
                kernel.fail_with(task, value)
            elif task.unresolved == 0:
                kernel.make_ready(task)
