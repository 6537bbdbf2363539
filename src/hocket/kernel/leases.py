"""Workers, the resources that they hold, and what they give back.

A worker that runs plain tasks holds resources of one *shape* for as long as tasks of that shape keep coming: its lease.
The tasks stand in its queue, as deep as their runs are short (`FunctionRecord.depth`, which `learn` sets), so a long
row of tiny tasks costs a fraction of a message each. A lease ends with its last task; its worker is idle then, and may
take another shape, of the same runtime environment and with the same GPUs: a library looks once, when it is first used,
at which GPUs there are.

What a worker has not started can be taken back: by itself when it blocks in `get` (`hand_back`), because the task that
it waits for may stand behind it in its own queue; and by the engine, which needs no consent for it, when the
worker shows no progress (`withdraw`), so a wrong guess about length delays nobody for long. While it blocks, its CPU is
lent to others. It takes it again without asking, so that more may run for a moment than there are CPUs: to wait for one
could be to wait for ever.
"""

from __future__ import annotations

from collections import deque

from hocket import exceptions
from hocket.kernel import reasons
from hocket.kernel.instructions import Run, Start, Stop
from hocket.kernel.records import FunctionRecord, TaskKind, TaskRecord, TaskState, Wait, WorkerRecord, WorkerState
from hocket.kernel.resources import GpuId
from hocket.kernel.state import State

MAX_DEPTH = 128
"""Tasks in one worker's queue at most. Measured: no gain beyond."""

MAX_EARLY_DEATHS = 10
"""How many workers may die before they start one and the same task; then the death counts as the task's. Something ends
processes here as soon as they are there. A guess."""

QUEUE_SECONDS = 0.002
"""How much work may stand in a worker's queue. The most that a wrong place in the row costs a task."""


def run(kernel: State, worker: WorkerRecord, task: TaskRecord) -> None:
    """Send the task to the worker."""
    task.state = TaskState.RUNNING
    task.worker = worker
    worker.sent = task.number = worker.sent + 1
    if worker.inflight:
        kernel.may_stall = True
    worker.inflight[task.id] = task
    kernel.instructions.append(Run(worker, task))


def learn(function: FunctionRecord, seconds: float) -> None:
    """Set how deep a row of this function's tasks may be. Slow runs count at once, fast ones gradually."""
    runs = function.runs
    runs.count += 1
    mean = function.mean_s
    function.mean_s = seconds if runs.count == 1 or seconds > 4 * mean else mean + (seconds - mean) * 0.2
    depth = int(QUEUE_SECONDS / (function.mean_s + 1e-6))
    function.depth = MAX_DEPTH if depth > MAX_DEPTH else depth or 1  # not `min` and `max`: each task pays for this


def take_idle(kernel: State, environment: str, gpu_ids: tuple[GpuId, ...] = ()) -> WorkerRecord:
    """Return an idle worker of that runtime environment that has seen these GPUs and no others, or a new one. One that
    has not started what it was sent last is passed over."""
    idle = kernel.idle
    last = idle[-1] if idle else None
    if last is not None and last.environment == environment and last.gpu_ids == gpu_ids and not last.recalled:
        return idle.pop()
    for worker in idle:
        if worker.environment == environment and worker.gpu_ids == gpu_ids and not worker.recalled:
            idle.remove(worker)
            return worker
    return _start_worker(kernel, environment, gpu_ids)


def _start_worker(kernel: State, environment: str, gpu_ids: tuple[GpuId, ...]) -> WorkerRecord:
    worker = WorkerRecord(kernel.next_worker_id)
    worker.environment = environment
    worker.gpu_ids = gpu_ids
    kernel.next_worker_id += 1
    kernel.workers[worker.id] = worker
    kernel.instructions.append(Start(worker))
    return worker


def trim_idle(kernel: State, most: int) -> None:
    """Stop idle workers beyond so many, those idle for longest first."""
    while len(kernel.idle) > most:
        stop(kernel, kernel.idle.pop(0))


def end_lease(kernel: State, worker: WorkerRecord) -> None:
    """Give the worker's resources back; it is idle then, unless it is dead or has run for the last time."""
    if worker.shape is not None:
        leases = kernel.leases[worker.shape]
        if worker.id in leases:
            del leases[worker.id]
        if not leases:
            del kernel.leases[worker.shape]
        worker.shape = None
    if worker.allocation is not None:
        worker.allocation.pool.give(worker.allocation)
        worker.allocation = None
    if worker.state == WorkerState.LEASED:
        worker.state = WorkerState.IDLE
        if worker.killed:  # by ``max_calls``
            stop(kernel, worker)
            return
        kernel.idle.append(worker)
        if len(kernel.idle) > kernel.max_idle_workers:
            trim_idle(kernel, kernel.max_idle_workers)


def stop(kernel: State, worker: WorkerRecord) -> None:
    """Let the process finish what it has, then exit."""
    worker.killed = worker.stopped = True
    kernel.instructions.append(Stop(worker))


def expect_end(kernel: State, worker: WorkerRecord) -> None:
    """The engine ends the process because we asked for it: that will be no crash."""
    worker.killed = True


def count_run(worker: WorkerRecord, function: str, task: TaskRecord) -> bool:
    """Count a run of a function with ``max_calls``; tell whether that was the worker's last."""
    worker.runs[function] = worker.runs.get(function, 0) + 1
    worker.killed = worker.killed or worker.runs[function] >= task.options.max_calls
    return worker.killed


def block(
    kernel: State, worker: WorkerRecord, returned: list[tuple[int, int]], number: int = 0, wait: Wait | None = None
) -> None:
    """A thread of the worker waits in `get`: its CPU is free for others, and so are the tasks it had not started.

    Args:
        worker: Which.
        returned: The tasks that it had not started, each with its number.
        number: The worker's name for the wait.
        wait: What it waits for; None if its end does not depend on it alone, as with a time-out.
    """
    worker.blocked += 1
    if wait is not None:
        worker.waits[number] = wait
    if worker.blocked == 1 and worker.allocation is not None:
        worker.allocation.lend_cpu()
    hand_back(kernel, worker, returned)


def unblock(kernel: State, worker: WorkerRecord, number: int = 0) -> None:
    """The thread goes on; its CPU share is taken again, overbooking if need be."""
    worker.blocked -= 1
    worker.waits.pop(number, None)
    if worker.blocked == 0 and worker.allocation is not None:
        worker.allocation.reclaim_cpu()


def find_stalled(kernel: State) -> list[WorkerRecord]:
    """Return workers with tasks waiting behind a running one. The engine withdraws these where it sees no progress."""
    crowded = [worker for leases in kernel.leases.values() for worker in leases.values() if len(worker.inflight) > 1]
    kernel.may_stall = bool(crowded)
    return [worker for worker in crowded if not worker.recalled]


def withdraw(kernel: State, worker: WorkerRecord, begun: int) -> None:
    """Take back what the worker has not started: the tasks that were sent after this number.

    The engine has made sure that it will not.

    The worker gets nothing more until it has finished or said something.
    """
    worker.recalled = True
    if worker.actor is None:
        _take_back(kernel, worker, [task for task in worker.inflight.values() if task.number > begun])


def hand_back(kernel: State, worker: WorkerRecord, unstarted: list[tuple[int, int]]) -> None:
    """The worker did not start these tasks, each named with its number, and never will. What was withdrawn meanwhile is
    not its to return."""
    worker.recalled = False
    tasks = [
        task
        for task_id, number in unstarted
        if (task := worker.inflight.get(task_id)) is not None and task.number == number
    ]
    _take_back(kernel, worker, tasks)


def _take_back(kernel: State, worker: WorkerRecord, tasks: list[TaskRecord]) -> None:
    for task in reversed(tasks):
        del worker.inflight[task.id]
        task.worker = None
        if task.cancelled:
            kernel.fail_exception(task, reasons.explain_cancelled(task))
        elif task.kind == TaskKind.FUNCTION:
            put_back(kernel, task)
    if worker.state == WorkerState.LEASED and not worker.inflight:
        end_lease(kernel, worker)  # it had not started any of them
    kernel.dispatch()


def count_early_death(kernel: State, task: TaskRecord) -> bool:
    """Count the death of a worker that was to start the task, and had not; tell whether there were too many."""
    deaths = kernel.early_deaths.get(task.id, 0) + 1
    is_hopeless = deaths >= MAX_EARLY_DEATHS
    if is_hopeless:
        kernel.early_deaths.pop(task.id, None)
    else:
        kernel.early_deaths[task.id] = deaths
    return is_hopeless


def put_back(kernel: State, task: TaskRecord) -> None:
    """Put a task that was not started at the head of its row."""
    task.state = TaskState.READY
    if not fail_if_group_is_gone(kernel, task):
        kernel.queues.setdefault(task.options.shape, deque()).appendleft(task)


def fail_if_group_is_gone(kernel: State, task: TaskRecord) -> bool:
    """Fail a task whose placement group was removed: it would wait for ever."""
    group_id = task.options.shape.group_id
    if not group_id or group_id in kernel.groups:
        return False
    message = f"`{task.options.name}` was to run in placement group {group_id:016x}, which was removed."
    if task.kind == TaskKind.CREATION:
        kernel.fail_exception(task, exceptions.ActorPlacementGroupRemoved(message))
    else:
        kernel.fail_exception(task, exceptions.TaskPlacementGroupRemoved(message))
    return True
