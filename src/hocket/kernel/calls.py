"""The queues of calls that wait for an actor. Names in the code say "row" for such a queue.

**Order.** The kernel sends the calls of one caller on one actor in the order of submission, also if an earlier call
still waits for an argument. Between callers there is no order, and a caller's late argument holds up no other caller.
So each caller has its own queue, and a further queue for each concurrency group that it calls.

An actor that allows disorder keeps calls with missing arguments apart from the queues (`ActorRecord.waiting`); they
join a queue when they are ready. At most `ActorRecord.window` calls are sent and unanswered. The calls in the queues
can still be cancelled, and survive the death of the actor's process.
"""

from __future__ import annotations

from collections import deque

from hocket.kernel import direct_calls, leases, objects, reasons, records
from hocket.kernel.records import ActorRecord, ActorState, TaskKind, TaskRecord, TaskState
from hocket.kernel.state import State


def join_row(kernel: State, task: TaskRecord) -> bool:
    """Append the call to its caller's queue; return False if the actor is dead and the call has failed."""
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
    """Send a call at once if it has its arguments and the actor has empty queues and room; return False if the call has
    to join a queue. Most calls take this path, which is a third of their time in the kernel."""
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
    """Return the queue of the call's caller and concurrency group; make it if there is none."""
    key = (task.caller, task.options.concurrency_group)
    row = actor.queues.get(key)
    if row is None:
        row = actor.queues[key] = deque()
    return row


def get_row_key(task: TaskRecord) -> records.RowKey:
    return (task.caller, task.options.concurrency_group)


def send_row(kernel: State, actor: ActorRecord, key: records.RowKey) -> None:
    """Send the calls at the head of a queue while the actor has room, up to the first that lacks an argument."""
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
    """Put a call that gets another attempt at the head of its queue."""
    task.state = TaskState.READY
    assert task.actor is not None
    find_row(task.actor, task).appendleft(task)


def count_pending(actor: ActorRecord, caller: int) -> int:
    """Return how many calls of one caller are unanswered."""
    rows = sum(len(row) for key, row in actor.queues.items() if key[0] == caller)
    waiting = sum(task.caller == caller for task in actor.waiting.values())
    sent = actor.worker.inflight.values() if actor.worker is not None else ()
    return rows + waiting + sum(task.caller == caller and task.kind == TaskKind.CALL for task in sent)
