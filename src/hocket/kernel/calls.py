"""The rows of calls that stand before an actor.

**Order.** Calls of one caller on one actor are sent in the order of submission, also if an earlier one still waits for
an argument. Between callers there is no order, and one caller's late argument does not hold up another's: so each
caller has a row of its own, and one more for each concurrency group that it calls.

An actor that allows disorder keeps calls with missing arguments apart from the rows (`ActorRecord.waiting`); they join
when they are ready. No more than `ActorRecord.window` calls are sent and unanswered: what stands here can still be
cancelled, and is there for the next process if this one dies.
"""

from __future__ import annotations

from collections import deque

from hocket.kernel import direct_calls, leases, objects, reasons, records
from hocket.kernel.records import ActorRecord, ActorState, TaskKind, TaskRecord, TaskState
from hocket.kernel.state import State


def join_row(kernel: State, task: TaskRecord) -> bool:
    """Put the call in its caller's row; False if the actor is dead, and the call has failed."""
    actor = task.actor
    assert actor is not None
    objects.retain(kernel, actor.id)
    if actor.state == ActorState.DEAD:
        kernel.fail_exception(task, reasons.explain_death(actor))
        return False
    if task.unresolved and actor.options.allows_disorder:
        actor.waiting[task.id] = task
    else:
        find_row(actor, task).append(task)
    return True


def run_at_once(kernel: State, task: TaskRecord) -> bool:
    """Send a call that has its arguments past the empty rows of an actor that has room; False if it has to stand in a
    row. So most calls go, and this is a third of their way through the kernel."""
    actor = task.actor
    assert actor is not None
    worker = actor.worker
    if worker is None or actor.queues or actor.markers or actor.state != ActorState.ALIVE:
        return False
    if task.unresolved or actor.inflight >= actor.window:
        return False
    kernel.objects[actor.id].count += 1
    actor.inflight += 1
    leases.run(kernel, worker, task)
    return True


def find_row(actor: ActorRecord, task: TaskRecord) -> deque[TaskRecord]:
    """Return the row that the call stands in."""
    key = (task.caller, task.options.concurrency_group)
    row = actor.queues.get(key)
    if row is None:
        row = actor.queues[key] = deque()
    return row


def get_row_key(task: TaskRecord) -> records.RowKey:
    return (task.caller, task.options.concurrency_group)


def send_row(kernel: State, actor: ActorRecord, key: records.RowKey) -> None:
    """Send what stands at the head of a row and has its arguments."""
    worker = actor.worker
    row = actor.queues.get(key)
    if worker is None or row is None or actor.state == ActorState.DEAD:
        return
    if actor.markers and actor.state != ActorState.ALIVE:
        return
    window = actor.window
    while row and actor.inflight < window:
        task = row[0]
        if task.state == TaskState.WAITING:
            return
        row.popleft()
        if task.state == TaskState.READY:
            actor.inflight += 1
            leases.run(kernel, worker, task)
        if actor.markers:
            direct_calls.pass_markers(kernel, actor, task.id)
    if not row:
        del actor.queues[key]


def put_back(task: TaskRecord) -> None:
    """Put a call that is to be tried again at the head of its row."""
    task.state = TaskState.READY
    assert task.actor is not None
    find_row(task.actor, task).appendleft(task)


def count_pending(actor: ActorRecord, caller: int) -> int:
    """Return how many calls of one caller are unanswered."""
    rows = sum(len(row) for key, row in actor.queues.items() if key[0] == caller)
    waiting = sum(task.caller == caller for task in actor.waiting.values())
    sent = actor.worker.inflight.values() if actor.worker is not None else ()
    return rows + waiting + sum(task.caller == caller and task.kind == TaskKind.CALL for task in sent)
