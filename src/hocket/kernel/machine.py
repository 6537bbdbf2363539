"""The scheduler: told what happened, it says what to do.

An engine calls one method for each thing that happens (a task is submitted, a worker answers, a process dies) and then
carries out `Kernel.instructions`, a list of tuples that starts with an `Op`. The kernel never waits, reads no clock and
draws no random number, so a log of its calls replays to the same state.

**Leases.** A worker that runs plain tasks holds resources of one *shape* for as long as tasks of that shape keep coming;
they stand in its queue, as deep as their runs are short (`FunctionRecord.depth`), so a long row of tiny tasks costs a
fraction of a message each. What a worker has not started can be taken back: when it blocks in `get`, and when it
shows no progress (`recall`), so a wrong guess about length delays nobody for long.

**Order.** Calls of one caller on one actor are sent in the order of submission, also if an earlier one still waits for
an argument. Between callers there is no order, and one caller's late argument does not hold up another's.

**Counting.** An object is freed when no reference, borrower, dependent task or container needs it. A worker's share of a
count is remembered (`ObjectRecord.holders`) and given back at once when the worker dies.
"""

from __future__ import annotations

from typing import final

from hocket import exceptions
from hocket.kernel import actors, groups, leases, lines, objects, placing, reasons, streams, tasks
from hocket.kernel.records import TaskRecord, TaskState, WorkerRecord, WorkerState
from hocket.kernel.state import State


@final
class Kernel(State):
    """All state of a session, and the transitions on it. Not thread-safe: the engine holds a lock."""

    # Objects.
    put = objects.put
    retain = objects.retain
    release = objects.release
    watch = objects.watch

    # Tasks.
    submit = tasks.submit
    finish = tasks.finish
    fail = tasks.fail
    cancel = tasks.cancel
    make_ready = tasks.make_ready
    fail_with = tasks.fail_with
    fail_exception = tasks.fail_exception

    # Workers.
    block = leases.block
    unblock = leases.unblock
    hand_back = leases.hand_back
    find_stalled = leases.find_stalled
    recall = leases.recall
    trim_idle = leases.trim_idle
    dispatch = placing.dispatch
    could_ever_fit = placing.could_ever_fit

    # Actors.
    claim_name = actors.claim_name
    find_actor = actors.find_actor
    kill_actor = actors.kill_actor
    exit_actor = actors.exit_actor
    forget_actor = actors.forget_actor

    # Direct calls.
    introduce = lines.introduce
    promise = lines.promise
    fulfil = lines.fulfil
    deliver = lines.deliver
    mourn = lines.mourn

    # Streams.
    yield_item = streams.yield_item
    take_item = streams.take_item

    # Placement groups.
    reserve = groups.reserve
    remove_group = groups.remove_group

    def lose(self, worker: WorkerRecord, death: exceptions.Death, running_id: int) -> None:
        """The process is dead. `running_id` is the task that it had started last; 0 if unknown."""
        if worker.state == WorkerState.DEAD:
            return
        was_actor = worker.actor
        if worker in self.idle:
            self.idle.remove(worker)
        self._end_lease_of_dead(worker)
        worker.state = WorkerState.DEAD
        del self.workers[worker.id]
        if was_actor is not None:
            actors.lose_actor(self, was_actor, worker, death, running_id)
        else:
            inflight, worker.inflight = list(worker.inflight.values()), {}
            started = next((at for at, task in enumerate(inflight) if task.id == running_id), 0)
            for at, task in reversed(list(enumerate(inflight))):
                self._lose_task(task, death, was_started=at <= started)
        for record in [record for record in self.objects.values() if record.holders and worker.id in record.holders]:
            assert record.holders is not None
            objects.release(self, record.id, worker.id, record.holders[worker.id])
        for key in [key for key, claimant in self.name_claims.items() if claimant == worker.id]:
            del self.name_claims[key]
        if worker.promised:
            message = f"The worker (pid {death.pid}) that was to send the value was {death.describe()}"
            lines.break_promises(self, worker.promised, exceptions.OwnerDiedError(message))
        self.dispatch()

    def fail_orphans(self, death: exceptions.Death) -> None:
        """Fail what a worker that spoke nonsense left half done. Costs time in proportion to the state; it is rare."""
        for task in list(self.tasks.values()):
            if task.state == TaskState.RUNNING and (task.worker is None or task.worker.state == WorkerState.DEAD):
                self.fail_exception(task, reasons.explain_crash(task, death))
        for record in list(self.objects.values()):
            if record.task is not None and record.value is None and record.task.state == TaskState.DONE:
                error = self.encode_error(reasons.explain_crash(record.task, death))
                objects.store(self, record, error, (), True)
        self.dispatch()

    def _end_lease_of_dead(self, worker: WorkerRecord) -> None:
        if worker.state == WorkerState.LEASED:
            worker.state = WorkerState.DEAD
        leases.end_lease(self, worker)

    def _lose_task(self, task: TaskRecord, death: exceptions.Death, *, was_started: bool) -> None:
        task.worker = None
        if task.cancelled:
            error: exceptions.HocketError = exceptions.TaskCancelledError(
                f"Task `{task.options.name}` was cancelled, and its worker ended."
            )
            self.fail_exception(task, error)
        elif not was_started:
            leases.put_back(self, task)
        elif task.retries_left:
            tasks.retry(self, task)
        else:
            self.fail_exception(task, reasons.explain_crash(task, death))

    def validate_state(self) -> None:
        """Check the invariants; tests call it after every step. Costs time in proportion to the state."""
        for name, units in self.pool.free.items():
            assert units <= self.pool.total[name], (name, units, self.pool.total)
        for worker in self.workers.values():
            assert worker.state != WorkerState.LEASED or worker.inflight, (
                f"worker {worker.id} holds resources for nothing"
            )
            for task in worker.inflight.values():
                assert task.state == TaskState.RUNNING, (task.id, task.state)
                assert task.worker is worker, (task.id, worker.id)
        for worker in self.idle:
            assert worker.state == WorkerState.IDLE, (worker.id, worker.state)
            assert not worker.inflight, worker.id
            assert worker.allocation is None, worker.id
        for task in self.tasks.values():
            assert task.state != TaskState.DONE, task.id
            assert (task.state == TaskState.WAITING) == bool(task.unresolved), task.id
        for record in self.objects.values():
            assert record.count > 0, record.id
            assert sum((record.holders or {}).values()) <= record.count, record.id
