"""The life of a task, from `submit` to its end, through all parts of the kernel.

`submit` makes a task's objects. The task then waits for its arguments, is ready, and runs. It ends when a worker
returns its values (`finish`), or when it fails for good (`fail_with`); until then it may get further attempts
(`retry`). After each end its objects have values, its arguments are released, and its worker has its next task.

Constructors and calls of methods go the same way; `actors` and `calls` have the differences.

Finished tasks are kept for viewers (`State.closed_tasks`): all that failed or took long, and a sample of the others.

`submit`, `make_ready`, `finish` and the functions that they call are the hot path. They take some 5 us for each task,
and each task pays for every addition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from hocket.kernel import actors, calls, leases, objects, placing, reasons, records, streams
from hocket.kernel.instructions import Cancel, End, Free
from hocket.kernel.records import ActorState, ObjectRecord, TaskKind, TaskRecord, TaskState, WorkerRecord
from hocket.kernel.state import State

SHORT_SECONDS = 0.001
"""A run shorter than this is short: it is one of very many, or of no interest."""

KEPT_RUNS = 1_000
"""How many short runs of a function are all kept; of later ones, one in `KEPT_EVERY` is. At 100,000 tasks a second, to
keep each would cost 5 % (measured), and 10,000 of them are only a tenth of a second. All runs are counted."""

KEPT_EVERY = 64
"""One in so many short runs is kept; a power of two."""

MOST_ASKED = 100_000
"""The most objects in `State.asked`. A guess: some megabytes."""

MOST_UNFETCHED = 1_000
"""The most errors in `State.unfetched`. A guess: some kilobytes each."""


def submit(kernel: State, task: TaskRecord) -> None:
    """Register a task, and run it as soon as it may. Make its objects, each with one reference of the caller."""
    kernel.tasks[task.id] = task
    known = kernel.objects
    caller = task.caller
    returns = task.options.num_returns
    # `abs`, because a generator (-1) has one object, too, which stands for its stream.
    for object_id in (task.id,) if returns == 1 else range(task.id, task.id + abs(returns)):
        record = known[object_id] = ObjectRecord(object_id, task)
        if caller:
            record.holders = {caller: 1}
    if returns == records.STREAMING:
        streams.open_stream(kernel, task)
    if task.borrowed:
        objects.retain_all(kernel, task.borrowed)
    failed_value = _depend(kernel, task) if task.dependencies else None
    if task.kind == TaskKind.CREATION:
        actors.add_actor(kernel, task)
    elif task.kind == TaskKind.CALL:
        if failed_value is None and calls.run_at_once(kernel, task):
            return
        if not calls.join_row(kernel, task):
            return
    if failed_value is not None:
        fail_with(kernel, task, failed_value)
    elif task.unresolved:
        task.state = TaskState.WAITING
    else:
        make_ready(kernel, task)


def _depend(kernel: State, task: TaskRecord) -> tuple[object, ...] | None:
    """Let the task wait for its arguments; return the error of the first that has failed already, or None."""
    failed_value = None
    for object_id in task.dependencies:
        record = kernel.objects[object_id]
        record.count += 1
        if record.value is None:
            task.unresolved += 1
            if record.dependents is None:
                record.dependents = []
            record.dependents.append(task)
        elif record.failed and failed_value is None:
            failed_value = record.value
    return failed_value


def make_ready(kernel: State, task: TaskRecord) -> None:
    """Let a task run as soon as it may: it has all its arguments, or gets another attempt."""
    task.state = TaskState.READY
    if task.kind == TaskKind.CALL:
        actor = task.actor
        assert actor is not None
        if actor.waiting and actor.waiting.pop(task.id, None) is not None:
            calls.find_row(actor, task).append(task)
        calls.send_row(kernel, actor, calls.get_row_key(task))
        return
    shape = task.options.shape
    if shape.group_id and leases.fail_if_group_is_gone(kernel, task):
        return
    queue = kernel.queues.get(shape)
    if not queue and placing.start_at_once(kernel, task, shape):
        return
    if queue is None:
        queue = kernel.queues[shape] = deque()
    queue.append(task)
    if len(queue) == 1:  # else the head of the queue has already found no room
        placing.dispatch_shape(kernel, shape, queue)


def finish(
    kernel: State,
    worker: WorkerRecord,
    task_id: int,
    seconds: float,
    values: list[tuple[tuple[object, ...], tuple[int, ...]]],
    started: float = 0.0,
) -> None:
    """Store the values that a worker returned for a task, and give the worker its next task. Each value comes with the
    ids of the objects to which it refers. Some values may be errors."""
    task = worker.inflight.pop(task_id, None)
    if task is None:  # the actor was killed meanwhile
        objects.drop_values(kernel, task_id, values)
        return
    function = task.function
    if function is not None:
        leases.learn(function, seconds)
    is_kept = function is None or seconds > SHORT_SECONDS or function.runs.count <= KEPT_RUNS
    if is_kept or not function.runs.count % KEPT_EVERY:  # type: ignore[union-attr]
        is_kept = True
        task.ran_on = worker.id
        task.started = started
        task.seconds = seconds
    task.worker = None
    if worker.actor is not None and task.kind == TaskKind.CALL:
        worker.actor.inflight -= 1
    if task.kind == TaskKind.CREATION:
        actors.bring_alive(kernel, task)
    object_id = task_id
    known, mark = kernel.objects, kernel.error_mark
    for value, contained in values:
        record = known.get(object_id)
        if record is None:
            kernel.instructions.append(Free(object_id, value))
        elif record.value is not None:  # the object of an actor that was built again has its value already
            pass
        elif contained or record.watchers is not None or record.dependents is not None:
            objects.store(kernel, record, value, contained, value[0] == mark)
        else:  # the usual case, spared the call of `store`
            record.value, record.failed, record.task = value, value[0] == mark, None
        object_id += 1
    if task.stream is not None:
        streams.end_stream(kernel, task.stream)
    _close_task(kernel, task, is_kept)
    actor = worker.actor
    if actor is None or actor.queues or actor.unreachable:
        placing.go_on(kernel, worker, task)


def fail(
    kernel: State,
    worker: WorkerRecord,
    task_id: int,
    error: tuple[object, ...],
    *,
    retryable: bool,
    error_type: str = "",
    started: float = 0.0,
    seconds: float = 0.0,
) -> None:
    """Handle an exception of the user's code: try the task again, or give its objects the error. `retryable` says
    whether the task's options ask for another attempt after this exception."""
    task = worker.inflight.pop(task_id, None)
    if task is None:
        return
    task.note_run(worker.id, started, seconds)
    task.worker = None
    if worker.actor is not None and task.kind == TaskKind.CALL:
        worker.actor.inflight -= 1
    if retryable and task.retries_left and not task.cancelled:
        retry(kernel, task)
    else:
        if task.kind == TaskKind.CREATION:
            actors.bury_constructor(kernel, task, error)
        task.error_type = error_type
        fail_with(kernel, task, error)
    placing.go_on(kernel, worker, task)


def retry(kernel: State, task: TaskRecord) -> None:
    """Give a task another attempt."""
    if task.retries_left > 0:  # -1 is without limit, and stays so
        task.retries_left -= 1
    task.attempt += 1
    if task.kind == TaskKind.CALL:
        calls.put_back(task)
    make_ready(kernel, task)


def fail_exception(kernel: State, task: TaskRecord, error: BaseException) -> None:
    """Fail the task with an exception of ours."""
    task.error_type = type(error).__name__
    fail_with(kernel, task, kernel.encode_error(error))


def fail_with(kernel: State, task: TaskRecord, error: tuple[object, ...]) -> None:
    """Give every object of the task this (encoded) error."""
    if task.state == TaskState.DONE:
        return
    if task.kind == TaskKind.CREATION and task.actor is not None and task.actor.state != ActorState.DEAD:
        actors.bury_constructor(kernel, task, error)  # the errors of the actor's calls contain this error
    actors.leave_row(kernel, task)
    _note_unfetched(kernel, task, error)
    _close_task(kernel, task)
    if task.stream is not None:
        streams.fail_stream(kernel, task.stream, error)
    for object_id in range(task.id, task.id + max(1, task.options.num_returns)):
        record = kernel.objects.get(object_id)
        if record is not None and record.value is None:
            objects.store(kernel, record, error, (), True)


def _note_unfetched(kernel: State, task: TaskRecord, error: tuple[object, ...]) -> None:
    """Keep an error until a program fetches it; but no error of a cancelled task, and none that is fetched already."""
    if task.cancelled or task.options.is_own or len(kernel.unfetched) >= MOST_UNFETCHED:
        return
    for object_id in range(task.id, task.id + max(1, task.options.num_returns)):
        record = kernel.objects.get(object_id)
        if object_id in kernel.asked or (record is not None and record.watchers and max(record.watchers) > 0):
            return
    kernel.unfetched.setdefault(id(error), (task.options.name, task.id, error))


def note_fetched(kernel: State, error: tuple[object, ...] | None, actor_id: int = 0) -> None:
    """Drop an error that a program has fetched, and the error of the constructor of the actor that it names."""
    kernel.unfetched.pop(id(error), None)
    if actor_id:
        for key in [key for key, (_, task_id, _) in kernel.unfetched.items() if task_id == actor_id]:
            del kernel.unfetched[key]


def note_asked(kernel: State, object_ids: Iterable[int]) -> None:
    """Note that a program asked for all these objects, and got the error of one."""
    for object_id in object_ids:
        record = kernel.objects.get(object_id)
        if record is not None and record.failed:
            kernel.unfetched.pop(id(record.value), None)
        elif record is not None and record.value is None and len(kernel.asked) < MOST_ASKED:
            kernel.asked.add(object_id)


def note_direct_call(
    kernel: State,
    worker: WorkerRecord,
    task_id: int,
    options: records.TaskOptions,
    started: float,
    seconds: float,
    error_type: str | None,
) -> None:
    """Keep a finished direct call between workers, for viewers."""
    task = TaskRecord(task_id, None, None, (), (), options, task_id >> 40, 0, TaskKind.CALL)
    task.state = TaskState.DONE
    task.actor = worker.actor
    task.note_run(worker.id, started, seconds)
    if error_type is not None:
        task.error_type = error_type
    kernel.closed_tasks.append(task)


def _close_task(kernel: State, task: TaskRecord, is_kept: bool = True) -> None:
    task.state = TaskState.DONE
    if task.id in kernel.tasks:
        del kernel.tasks[task.id]
    if is_kept:
        if task.function is not None:
            task.runs = task.function.runs
        kernel.closed_tasks.append(task)
    actor = task.actor
    if actor is None or actor.creation is not task:  # else a restart needs the arguments again
        if task.args is not None or task.dependencies or task.borrowed:
            objects.release_arguments(kernel, task)
        task.function = None  # `closed_tasks` may keep the task for longer than a program can call the function
    if task.kind == TaskKind.CALL and actor is not None:
        record = kernel.objects.get(actor.id)  # the call's count on its actor ends with it
        if record is not None and record.count > 1:
            record.count -= 1
        else:
            objects.release(kernel, actor.id)


def cancel(kernel: State, object_id: int, *, force: bool, recursive: bool) -> None:
    """Cancel the task that makes the object; do nothing if the object has its value already."""
    record = kernel.objects.get(object_id)
    task = record.task if record is not None else None
    if record is not None and task is None and record.value is None:  # a direct call brings the value to a worker
        for worker in kernel.workers.values():
            if object_id in worker.promised:
                kernel.instructions.append(Cancel(worker, object_id, recursive))
    if task is None or task.state == TaskState.DONE:
        return
    _cancel_task(kernel, task, force=force, recursive=recursive)


def abandon(kernel: State, task: TaskRecord) -> None:
    """Cancel a generator that no reader can reach any more, so that it releases its worker and arguments."""
    if task.state != TaskState.DONE and not task.cancelled:
        _cancel_task(kernel, task, force=False, recursive=False)


def cancel_children(kernel: State, parent: int, *, force: bool = False) -> None:
    """Cancel the unfinished tasks and calls that a task or call has submitted, and those that these have submitted."""
    for child in [child for child in kernel.tasks.values() if child.parent == parent]:
        if child.kind != TaskKind.CREATION and child.state != TaskState.DONE:
            _cancel_task(kernel, child, force=force, recursive=True)


def _cancel_task(kernel: State, task: TaskRecord, *, force: bool, recursive: bool) -> None:
    task.cancelled = records.ALONE if not recursive else records.BY_FORCE if force else records.WITH_CHILDREN
    worker = task.worker
    # A task that has never run has no children. A search for them takes time in proportion to all tasks.
    has_run = worker is not None or task.retries_left != task.options.max_retries or task.retries_left < 0
    if worker is None:
        fail_exception(kernel, task, reasons.explain_cancelled(task))
    elif force and task.kind == TaskKind.FUNCTION:
        kernel.instructions.append(End(worker, task.id))
    else:
        kernel.instructions.append(Cancel(worker, task.id, recursive))
    if recursive and has_run:
        cancel_children(kernel, task.id, force=force)
