"""Workers, the resources that they hold, and the tasks that they give back.

**Leases.** A worker that runs plain tasks holds resources of one *shape* for as long as tasks of that shape keep
coming: its lease. The tasks wait in its queue, which is the deeper, the shorter their runs are (`FunctionRecord.depth`,
which `learn` sets): so many tiny tasks share one message. A lease ends with its last task. The worker is then idle,
and may take another shape with the same runtime environment and the same GPUs: libraries look for GPUs only once.

**Tasks that did not start.** A worker that blocks in `get` gives them back itself (`hand_back`): the task that it waits
for may be behind it in its own queue. If a worker makes no progress, the engine takes them back without its consent
(`withdraw`): so a wrong guess about the length of runs delays tasks only briefly.

**CPUs.** A worker that blocks lends its CPU to others. It takes the CPU back without waiting, although more tasks may
then run for a moment than there are CPUs: a wait for a CPU could last for ever.
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
"""The most tasks in one worker's queue. Measured: no gain beyond."""

MAX_EARLY_DEATHS = 10
"""How many workers may die before they start the same task. Then something ends all new processes, and the death counts
as an attempt of the task. A guess."""

QUEUE_SECONDS = 0.002
"""How many seconds of work may wait in a worker's queue: the most that a task loses in the wrong queue."""


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
    """Set how many tasks of a function may wait in a worker's queue. Slow runs count at once, fast runs gradually."""
    runs = function.runs
    runs.count += 1
    mean = function.mean_s
    function.mean_s = seconds if runs.count == 1 or seconds > 4 * mean else mean + (seconds - mean) * 0.2
    depth = int(QUEUE_SECONDS / (function.mean_s + 1e-6))
    function.depth = MAX_DEPTH if depth > MAX_DEPTH else depth or 1  # not `min` and `max`: each task pays for this


def take_idle(kernel: State, environment: str, gpu_ids: tuple[GpuId, ...] = ()) -> WorkerRecord:
    """Return an idle worker with this runtime environment and exactly these GPUs, or a new worker. Pass over a worker
    that made no progress with its last tasks."""
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
    """Stop idle workers until `most` are left, beginning with the longest idle."""
    while len(kernel.idle) > most:
        stop(kernel, kernel.idle.pop(0))


def end_lease(kernel: State, worker: WorkerRecord) -> None:
    """Give the worker's resources back. The worker is then idle, unless it is dead or has had its last run."""
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
    """Let the process finish the tasks that it has, then exit."""
    worker.killed = worker.stopped = True
    kernel.instructions.append(Stop(worker))


def expect_end(kernel: State, worker: WorkerRecord) -> None:
    """Note that Hocket itself ends the process: its death will be no crash."""
    worker.killed = True


def count_run(worker: WorkerRecord, function: str, task: TaskRecord) -> bool:
    """Count a run of a function with ``max_calls``; return whether it was the worker's last run."""
    worker.runs[function] = worker.runs.get(function, 0) + 1
    worker.killed = worker.killed or worker.runs[function] >= task.options.max_calls
    return worker.killed


def block(
    kernel: State, worker: WorkerRecord, returned: list[tuple[int, int]], number: int = 0, wait: Wait | None = None
) -> None:
    """Note that a thread of the worker waits in `get`. Other tasks may use its CPU, and other workers its tasks.

    Args:
        worker: The worker.
        returned: The tasks that the worker had not started, each with its number.
        number: The worker's number for the wait.
        wait: The wait; None if other events can end it, such as a time-out.
    """
    worker.blocked += 1
    if wait is not None:
        worker.waits[number] = wait
    if worker.blocked == 1 and worker.allocation is not None:
        worker.allocation.lend_cpu()
    hand_back(kernel, worker, returned)


def unblock(kernel: State, worker: WorkerRecord, number: int = 0) -> None:
    """Note that the thread goes on, and take its CPU share back, even if that overbooks the CPUs."""
    worker.blocked -= 1
    worker.waits.pop(number, None)
    if worker.blocked == 0 and worker.allocation is not None:
        worker.allocation.reclaim_cpu()


def find_stalled(kernel: State) -> list[WorkerRecord]:
    """Return the workers with tasks behind a running one. The engine withdraws these tasks if it sees no progress."""
    crowded = [worker for leases in kernel.leases.values() for worker in leases.values() if len(worker.inflight) > 1]
    kernel.may_stall = bool(crowded)
    return [worker for worker in crowded if not worker.recalled]


def withdraw(kernel: State, worker: WorkerRecord, begun: int) -> None:
    """Take back the tasks that the worker has not started: those with numbers above `begun`.

    The engine has made sure that the worker will not start them. The worker gets no tasks until it finishes one or
    hands some back.
    """
    worker.recalled = True
    if worker.actor is None:
        _take_back(kernel, worker, [task for task in worker.inflight.values() if task.number > begun])


def hand_back(kernel: State, worker: WorkerRecord, unstarted: list[tuple[int, int]]) -> None:
    """Take back the tasks, each with its number, that the worker returns: it has not started them, and never will.
    Tasks that were withdrawn meanwhile are left out."""
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
        end_lease(kernel, worker)  # the worker had not started any task
    kernel.dispatch()


def count_early_death(kernel: State, task: TaskRecord) -> bool:
    """Count the death of a worker that had not started the task yet; return whether there were too many."""
    deaths = kernel.early_deaths.get(task.id, 0) + 1
    is_hopeless = deaths >= MAX_EARLY_DEATHS
    if is_hopeless:
        kernel.early_deaths.pop(task.id, None)
    else:
        kernel.early_deaths[task.id] = deaths
    return is_hopeless


def put_back(kernel: State, task: TaskRecord) -> None:
    """Put a task that was not started at the head of its shape's queue."""
    task.state = TaskState.READY
    if not fail_if_group_is_gone(kernel, task):
        kernel.queues.setdefault(task.options.shape, deque()).appendleft(task)


def fail_if_group_is_gone(kernel: State, task: TaskRecord) -> bool:
    """Fail a task if its placement group was removed, and return whether it was. Such a task would wait for ever."""
    group_id = task.options.shape.group_id
    if not group_id or group_id in kernel.groups:
        return False
    message = (
        f"`{task.options.name}` was to run in placement group {group_id:016x}, which was removed. Make a new group."
    )
    if task.kind == TaskKind.CREATION:
        kernel.fail_exception(task, exceptions.ActorPlacementGroupRemoved(message))
    else:
        kernel.fail_exception(task, exceptions.TaskPlacementGroupRemoved(message))
    return True
