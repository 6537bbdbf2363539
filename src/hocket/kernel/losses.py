"""The remains of a dead process.

Its lease and its counts are given back, and its claims on names and its promises are void. The engine reports all
answers of a process (`tasks.finish`) before its death, so finished tasks are gone already. A task that was running may
have had effects, so its run counts as an attempt. The other tasks were not started, and go back to their queues.
"""

from __future__ import annotations

from collections.abc import Collection

from hocket import exceptions
from hocket.kernel import actors, direct_calls, groups, leases, objects, placing, reasons, records, tasks
from hocket.kernel.records import TaskRecord, TaskState, WorkerRecord, WorkerState
from hocket.kernel.state import State


def lose(kernel: State, worker: WorkerRecord, death: exceptions.Death, running: Collection[int] | None) -> None:
    """Handle the death of a process. `running` are the tasks that it had started, and perhaps finished ones; None if it
    may have started any."""
    if worker.state == WorkerState.DEAD:
        return
    was_actor = worker.actor
    for task in list(worker.inflight.values()):
        if task.cancelled > records.ALONE:  # tasks that it submitted since may have been reported only now
            tasks.cancel_children(kernel, task.id, force=task.cancelled == records.BY_FORCE)
    if worker in kernel.idle:
        kernel.idle.remove(worker)
    _end_lease_of_dead(kernel, worker)
    worker.state = WorkerState.DEAD
    del kernel.workers[worker.id]
    for group_id in [group.id for group in kernel.groups.values() if group.creator == worker.id]:
        groups.remove_group(kernel, group_id)
    if was_actor is not None:
        actors.lose_actor(kernel, was_actor, worker, death, running)
    else:
        inflight, worker.inflight = list(worker.inflight.values()), {}
        started = {task.id for task in inflight if running is None or task.id in running}
        if inflight and not started and leases.count_early_death(kernel, inflight[0]):
            started = {inflight[0].id}
        for task in reversed(inflight):
            _lose_task(kernel, task, death, was_started=task.id in started)
    for record in [record for record in kernel.objects.values() if record.holders and worker.id in record.holders]:
        assert record.holders is not None
        objects.release(kernel, record.id, worker.id, record.holders[worker.id])
    for key in [key for key, claimant in kernel.name_claims.items() if claimant == worker.id]:
        del kernel.name_claims[key]
    if worker.promised:
        message = f"The worker (pid {death.pid}) that was to send the value {death.describe()}"
        direct_calls.break_promises(kernel, worker.promised, exceptions.OwnerDiedError(message))
    placing.dispatch(kernel)


def _end_lease_of_dead(kernel: State, worker: WorkerRecord) -> None:
    if worker.state == WorkerState.LEASED:
        worker.state = WorkerState.DEAD
    leases.end_lease(kernel, worker)


def _lose_task(kernel: State, task: TaskRecord, death: exceptions.Death, *, was_started: bool) -> None:
    task.worker = None
    if task.cancelled:
        error: exceptions.HocketError = exceptions.TaskCancelledError(
            f"Task `{task.options.name}` was cancelled, and its worker ended."
        )
        tasks.fail_exception(kernel, task, error)
    elif not was_started:
        leases.put_back(kernel, task)
    elif task.retries_left:
        tasks.retry(kernel, task)
    else:
        tasks.fail_exception(kernel, task, reasons.explain_crash(task, death))


def fail_unfinished(kernel: State, death: exceptions.Death) -> None:
    """Fail the tasks that a worker with invalid messages left half done. It takes time in proportion to the state, but
    is rare."""
    for task in list(kernel.tasks.values()):
        if task.state == TaskState.RUNNING and (task.worker is None or task.worker.state == WorkerState.DEAD):
            tasks.fail_exception(kernel, task, reasons.explain_crash(task, death))
    for record in list(kernel.objects.values()):
        if record.task is not None and record.value is None and record.task.state == TaskState.DONE:
            error = kernel.encode_error(reasons.explain_crash(record.task, death))
            objects.store(kernel, record, error, (), True)
    placing.dispatch(kernel)
