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

from collections import deque
from typing import final

from hocket import exceptions
from hocket.kernel import actors, calls, groups, leases, lines, objects, placing, reasons, records, streams
from hocket.kernel.instructions import Op
from hocket.kernel.records import ObjectRecord, TaskKind, TaskRecord, TaskState, WorkerRecord, WorkerState
from hocket.kernel.state import State

SHORT_SECONDS = 0.001
"""A run shorter than this is one of very many, or of no interest."""

KEPT_RUNS = 1_000
"""So many short runs of a function are all remembered; of those that follow, one in `KEPT_EVERY`. At 100,000 tasks a second
remembering each would cost 5 % (measured), and 10,000 of them would be a tenth of a second's. All are counted."""

KEPT_EVERY = 64
"""A power of two."""


@final
class Kernel(State):
    """All state of a session, and the transitions on it. Not thread-safe: the engine holds a lock."""

    # Objects.
    put = objects.put
    retain = objects.retain
    release = objects.release
    watch = objects.watch

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

    def submit(self, task: TaskRecord) -> None:
        """Take a task in. Its objects exist from now on, with one reference each for the caller."""
        self.tasks[task.id] = task
        known = self.objects
        caller = task.caller
        returns = task.options.num_returns
        for object_id in (task.id,) if returns == 1 else range(task.id, task.id + abs(returns)):
            record = known[object_id] = ObjectRecord(object_id, task)
            if caller:
                record.holders = {caller: 1}
        if returns == records.STREAMING:
            streams.open_stream(self, task)
        if task.borrowed:
            objects.retain_all(self, task.borrowed)
        failed_value = self._depend(task) if task.dependencies else None
        if task.kind == TaskKind.CREATION:
            actors.add_actor(self, task)
        elif task.kind == TaskKind.CALL and not calls.join_row(self, task):
            return
        if failed_value is not None:
            self.fail_with(task, failed_value)
        elif task.unresolved:
            task.state = TaskState.WAITING
        else:
            self.make_ready(task)

    def _depend(self, task: TaskRecord) -> tuple[object, ...] | None:
        """Let the task wait for its arguments; return the error of one that has failed already."""
        failed_value = None
        for object_id in task.dependencies:
            record = self.objects[object_id]
            record.count += 1
            if record.value is None:
                task.unresolved += 1
                if record.dependents is None:
                    record.dependents = []
                record.dependents.append(task)
            elif record.failed and failed_value is None:
                failed_value = record.value
        return failed_value

    def make_ready(self, task: TaskRecord) -> None:
        task.state = TaskState.READY
        if task.kind == TaskKind.CALL:
            actor = task.actor
            assert actor is not None
            if actor.waiting and actor.waiting.pop(task.id, None) is not None:
                calls.find_row(actor, task).append(task)
            calls.send_row(self, actor, calls.get_row_key(task))
            return
        shape = task.options.shape
        if leases.fail_if_group_is_gone(self, task):
            return
        queue = self.queues.get(shape)
        if queue is None:
            queue = self.queues[shape] = deque()
        queue.append(task)
        if len(queue) == 1:
            placing.dispatch_shape(self, shape, queue)

    def finish(
        self,
        worker: WorkerRecord,
        task_id: int,
        seconds: float,
        values: list[tuple[tuple[object, ...], tuple[int, ...]]],
        started: float = 0.0,
    ) -> None:
        """The worker returned the values of a task, each with the ids of the objects that it refers to."""
        task = worker.inflight.pop(task_id, None)
        if task is None:  # its actor was killed meanwhile
            for position, (value, _) in enumerate(values):
                self.instructions.append((Op.FREE, task_id + position, value))
            return
        function = task.function
        if function is not None:
            leases.learn(function, seconds)
        is_kept = function is None or seconds > SHORT_SECONDS or function.runs <= KEPT_RUNS
        if is_kept or not function.runs % KEPT_EVERY:  # type: ignore[union-attr]
            is_kept = True
            task.ran_on = worker.id
            task.started = started
            task.seconds = seconds
        self._settle(worker, task)
        if task.kind == TaskKind.CREATION:
            actors.bring_alive(self, task)
        object_id = task_id
        known = self.objects
        for value, contained in values:
            record = known.get(object_id)
            if record is None:
                self.instructions.append((Op.FREE, object_id, value))
            elif record.value is None:  # an actor that is built again has its value already
                objects.store(self, record, value, contained, False)
            object_id += 1
        if task.stream is not None:
            streams.end_stream(self, task.stream)
        self._close_task(task, is_kept)
        placing.go_on(self, worker, task)

    def fail(
        self,
        worker: WorkerRecord,
        task_id: int,
        error: tuple[object, ...],
        *,
        retryable: bool,
        error_type: str = "",
        started: float = 0.0,
        seconds: float = 0.0,
    ) -> None:
        """The user's code raised; `retryable` says whether its options ask for another try of this exception."""
        task = worker.inflight.pop(task_id, None)
        if task is None:
            return
        task.note_run(worker.id, started, seconds)
        self._settle(worker, task)
        if retryable and task.retries_left and not task.cancelled:
            self._retry(task)
        else:
            if task.kind == TaskKind.CREATION:
                actors.bury_constructor(self, task)
            task.error_type = error_type
            self.fail_with(task, error)
        placing.go_on(self, worker, task)

    def _settle(self, worker: WorkerRecord, task: TaskRecord) -> None:
        task.worker = None
        if worker.actor is not None and task.kind == TaskKind.CALL:
            worker.actor.inflight -= 1

    def _retry(self, task: TaskRecord) -> None:
        if task.retries_left > 0:
            task.retries_left -= 1
        task.attempt += 1
        if task.kind == TaskKind.CALL:
            calls.put_back(task)
        self.make_ready(task)

    def _close_task(self, task: TaskRecord, is_kept: bool = True) -> None:
        task.state = TaskState.DONE
        self.tasks.pop(task.id, None)
        if is_kept:
            self.closed_tasks.append(task)
        actor = task.actor
        if actor is None or actor.creation is not task:  # else its arguments are needed again
            objects.release_arguments(self, task)
        if task.kind == TaskKind.CALL and actor is not None:
            objects.release(self, actor.id)

    def fail_with(self, task: TaskRecord, error: tuple[object, ...]) -> None:
        """Give every object of the task this (encoded) error."""
        if task.state == TaskState.DONE:
            return
        if task.kind == TaskKind.CREATION and task.actor is not None:
            actors.bury_constructor(self, task)
        actors.leave_row(self, task)
        self._close_task(task)
        if task.stream is not None:
            streams.fail_stream(self, task.stream, error)
        for object_id in range(task.id, task.id + max(1, task.options.num_returns)):
            record = self.objects.get(object_id)
            if record is not None and record.value is None:
                objects.store(self, record, error, (), True)

    def fail_exception(self, task: TaskRecord, error: BaseException) -> None:
        """Fail the task with an exception of ours."""
        task.error_type = type(error).__name__
        self.fail_with(task, self.encode_error(error))

    def cancel(self, object_id: int, *, force: bool, recursive: bool) -> None:
        """Cancel the task that makes the object; nothing happens if it is there already."""
        record = self.objects.get(object_id)
        task = record.task if record is not None else None
        if task is None or task.state == TaskState.DONE:
            return
        self._cancel_task(task, force=force)
        if recursive:
            for child in [child for child in self.tasks.values() if child.parent == task.id]:
                if child.kind == TaskKind.FUNCTION:
                    self.cancel(child.id, force=force, recursive=True)

    def _cancel_task(self, task: TaskRecord, *, force: bool) -> None:
        task.cancelled = True
        worker = task.worker
        if worker is None:
            self.fail_exception(task, reasons.explain_cancelled(task))
        elif force and task.kind == TaskKind.FUNCTION and next(iter(worker.inflight)) == task.id:
            worker.killed = True
            self.instructions.append((Op.KILL, worker))
        else:
            self.instructions.append((Op.CANCEL, worker, task.id))

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
            self._retry(task)
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
