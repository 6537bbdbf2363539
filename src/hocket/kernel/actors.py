"""Actors: their life from the constructor to the grave.

An actor is a worker of its own. Its object stands for all its handles; each call holds one count on it, so it is not
out of reach before its calls are done (`end_if_unreachable`). A detached actor holds itself.

**Placing.** The constructor is a task and waits for resources as any does (`creation.shape`). When it is done, these
are swapped for what the actor holds while it lives, usually less.

**Death.** Its process ends by a crash, `kill`, `exit_actor`, or because its last handle is gone. If its options allow
another life and nobody wanted this end for good, its constructor is made ready again, with the arguments that were kept
for that, and its rows stay (`lose_actor`). Otherwise it is buried: all its calls fail, those that come later too, and
each error tells the reason of the first death.

**Names.** A name belongs to an actor from submission to burial. A worker that is about to create one claims the name
first, so that of two at once only one goes on.
"""

from __future__ import annotations

from collections.abc import Collection

from hocket import exceptions
from hocket.kernel import calls, direct_calls, leases, objects, reasons
from hocket.kernel.instructions import Kill, Refuse
from hocket.kernel.records import ActorRecord, ActorState, TaskKind, TaskRecord, TaskState, WorkerRecord, WorkerState
from hocket.kernel.state import State

OUT_OF_SCOPE = "its last handle went out of scope."


def add_actor(kernel: State, task: TaskRecord) -> None:
    """A constructor was submitted: the actor exists from now on, and has its name."""
    options = task.actor_options
    assert options is not None
    actor = ActorRecord(task.id, options)
    kernel.actors[task.id] = actor
    task.actor = actor
    if options.max_restarts:
        actor.creation = task
    if options.name:
        key = (options.namespace, options.name)
        kernel.name_claims.pop(key, None)
        kernel.names[key] = actor
    if options.detached:
        actor.holds_itself = True
        kernel.objects[task.id].count += 1


def bring_alive(kernel: State, task: TaskRecord) -> None:
    """The constructor is done: swap what it took to place the actor for what the actor holds while it lives."""
    actor = task.actor
    assert actor is not None
    actor.state = ActorState.ALIVE
    if actor.markers:
        direct_calls.pass_markers(kernel, actor)
    worker = actor.worker
    assert worker is not None
    shape = actor.options.lifetime_shape
    if worker.allocation is not None and shape.demand != worker.allocation.demand:
        pool = worker.allocation.pool
        worker.allocation.give_back()
        worker.allocation = pool.take(shape.demand)
        kernel.dispatch()


def claim_name(kernel: State, namespace: str, name: str, holder: int) -> bool:
    """Promise a name to a process that is about to create an actor; False if it is taken."""
    key = (namespace, name)
    if key in kernel.names or kernel.name_claims.get(key, holder) != holder:
        return False
    kernel.name_claims[key] = holder
    return True


def release_name(kernel: State, namespace: str, name: str, holder: int) -> None:
    """Take back a promised name: there will be no such actor."""
    key = (namespace, name)
    if kernel.name_claims.get(key) == holder:
        del kernel.name_claims[key]


def is_claimed(kernel: State, namespace: str, name: str) -> bool:
    """Whether somebody is about to create an actor of that name."""
    return (namespace, name) in kernel.name_claims


def find_actor(kernel: State, namespace: str, name: str) -> ActorRecord | None:
    """Return the living actor of that name."""
    return kernel.names.get((namespace, name))


def leave_row(kernel: State, task: TaskRecord) -> None:
    """A call has ended one way or another: drop it from its row and give back its hold on the actor."""
    actor = task.actor
    if actor is None or task.kind != TaskKind.CALL:
        return
    key = calls.get_row_key(task)
    row = actor.queues.get(key)
    if actor.waiting.pop(task.id, None) is not None:
        end_if_unreachable(kernel, actor)
    elif row and task in row:
        row.remove(task)
        if not row:
            del actor.queues[key]
        if actor.markers:
            direct_calls.pass_markers(kernel, actor, task.id)
        calls.send_row(kernel, actor, key)
        end_if_unreachable(kernel, actor)


def exit_actor(kernel: State, worker: WorkerRecord) -> None:
    """The actor ends itself: it is not built again, and nothing it had to do is done."""
    actor = worker.actor
    if actor is not None:
        worker.killed = True
        _bury(
            kernel, actor, exceptions.Death(pid=0, expected=True), "it ended itself with `exit_actor` or `sys.exit(0)`."
        )


def kill_actor(
    kernel: State, actor_id: int, message: str = "it was killed by `kill`.", *, no_restart: bool = True
) -> None:
    """End the actor now; its calls fail, and the message says why."""
    actor = kernel.actors.get(actor_id)
    if actor is None or actor.state == ActorState.DEAD:
        return
    worker = actor.worker
    if not no_restart and _can_restart(actor):
        if worker is not None and not worker.killed:
            worker.killed = True
            kernel.instructions.append(Kill(worker))
        return
    death = exceptions.Death(pid=0, expected=True)
    if worker is not None:
        worker.killed = True
        kernel.instructions.append(Kill(worker))
    _bury(kernel, actor, death, message)


def forget_actor(kernel: State, actor: ActorRecord) -> None:
    """Its last handle is gone."""
    actor.unreachable = True
    end_if_unreachable(kernel, actor)


def end_if_unreachable(kernel: State, actor: ActorRecord) -> None:
    """End it if it has no handle and nothing to do. One that is being built for the first time is built all the same,
    one that is being built again is not."""
    if not actor.unreachable or actor.inflight or actor.queues or actor.waiting:
        return
    if actor.state == ActorState.PENDING:
        return
    if actor.state == ActorState.RESTARTING:
        kill_actor(kernel, actor.id, OUT_OF_SCOPE)
        return
    if actor.state == ActorState.ALIVE:
        end_now(kernel, actor, OUT_OF_SCOPE)
    is_over = actor.worker is None or actor.worker.state == WorkerState.DEAD or actor.state == ActorState.DEAD
    if is_over and actor.id not in kernel.objects and kernel.actors.pop(actor.id, None) is not None:
        kernel.closed_actors.append(actor)


def end_now(kernel: State, actor: ActorRecord, message: str) -> None:
    """Let the process of an actor that has nothing to do end in its own way; it is dead from now on."""
    assert actor.worker is not None
    leases.stop(kernel, actor.worker)
    actor.state = ActorState.DEAD
    actor.death_message = message
    _drop_name(kernel, actor)
    _drop_creation(kernel, actor)


def _can_restart(actor: ActorRecord) -> bool:
    most = actor.options.max_restarts
    return actor.creation is not None and (most < 0 or actor.restarts < most)


def lose_actor(
    kernel: State, actor: ActorRecord, worker: WorkerRecord, death: exceptions.Death, running: Collection[int] | None
) -> None:
    """Its process is dead: build it again if its options say so. Calls that had not started stay in their rows. Those
    that had are tried again as often as they may be; the others fail, because nobody knows how far they came."""
    creation = kernel.tasks.get(actor.id)
    if creation is not None and creation.worker is worker and not creation.cancelled:
        has_begun = running is None or creation.id in running
        if not has_begun and not leases.count_early_death(kernel, creation):
            _place_again(kernel, actor, worker, creation)
            return
    if not _can_restart(actor):
        _bury(kernel, actor, death, f"its process (pid {death.pid}) {death.describe()}")
        return
    creation = actor.creation
    assert creation is not None
    actor.restarts += 1
    actor.state = ActorState.RESTARTING
    actor.worker = None
    actor.inflight = 0
    worker.actor = None
    inflight, worker.inflight = list(worker.inflight.values()), {}
    lost = []
    for task in reversed(inflight):
        task.worker = None
        if task is creation:
            continue
        if running is not None and task.id not in running and not task.cancelled:
            calls.put_back(task)
        elif task.retries_left and not task.cancelled:
            task.retries_left -= task.retries_left > 0
            task.attempt += 1
            calls.put_back(task)
        else:
            lost.append(task)
    for task in reversed(lost):
        kernel.fail_exception(task, reasons.explain_lost_call(actor, task, death))
    end_if_unreachable(kernel, actor)
    if actor.state == ActorState.DEAD:
        return
    creation.attempt += 1
    kernel.tasks[creation.id] = creation
    kernel.make_ready(creation)


def _place_again(kernel: State, actor: ActorRecord, worker: WorkerRecord, creation: TaskRecord) -> None:
    """The process that was to build the actor died before it began: that was no life of the actor's."""
    inflight, worker.inflight = list(worker.inflight.values()), {}
    worker.actor = actor.worker = None
    actor.inflight = 0
    for task in reversed(inflight):
        task.worker = None
        if task is creation:
            continue
        if task.cancelled:
            kernel.fail_exception(task, reasons.explain_cancelled(task))
        else:
            calls.put_back(task)
            for _, ahead in actor.markers:  # they were made later than the call
                ahead.add(task.id)
    kernel.make_ready(creation)


def bury_constructor(kernel: State, task: TaskRecord, error: tuple[object, ...]) -> None:
    """The constructor raised, or could not be called: there is no actor. The (encoded) error is a part of that of each
    call."""
    actor = task.actor
    assert actor is not None
    actor.init_failed = True
    actor.init_error = error
    if actor.worker is not None:
        leases.stop(kernel, actor.worker)
    if actor.state != ActorState.DEAD:
        _bury(
            kernel,
            actor,
            exceptions.Death(pid=0, expected=True),
            "its constructor raised an exception:",
        )


def _bury(kernel: State, actor: ActorRecord, death: exceptions.Death, message: str) -> None:
    """The actor is dead: all its calls fail, with the reason."""
    if actor.state == ActorState.DEAD:
        message, death = actor.death_message, actor.death or death
    actor.state = ActorState.DEAD
    actor.death = actor.death or death
    actor.death_message = message
    _drop_name(kernel, actor)
    _drop_creation(kernel, actor)
    kernel.instructions += [Refuse(marker) for marker, _ in actor.markers]
    actor.markers = []
    if actor.orphaned:
        direct_calls.break_promises(kernel, actor.orphaned, reasons.explain_death(actor))
        actor.orphaned = []
    worker, actor.worker = actor.worker, None
    actor.inflight = 0
    left = [*(task for row in actor.queues.values() for task in row), *actor.waiting.values()]
    actor.queues = {}
    actor.waiting = {}
    if worker is not None:
        left = [*worker.inflight.values(), *left]
        worker.inflight = {}
        worker.actor = None
    creation = kernel.tasks.get(actor.id)
    if creation is not None and creation not in left and not actor.init_failed:
        left.append(creation)
    for task in left:
        task.worker = None
        if task.state != TaskState.DONE:
            kernel.fail_exception(task, reasons.explain_death(actor))
    if actor.id not in kernel.objects:  # one that its like hold may still be called, in vain
        kernel.actors.pop(actor.id, None)
    if worker is not None and worker.allocation is not None:
        worker.allocation.give_back()
        worker.allocation = None
        kernel.dispatch()


def _drop_name(kernel: State, actor: ActorRecord) -> None:
    key = (actor.options.namespace, actor.options.name)
    if kernel.names.get(key) is actor:
        del kernel.names[key]
    if actor.holds_itself:
        actor.holds_itself = False
        objects.release(kernel, actor.id)


def _drop_creation(kernel: State, actor: ActorRecord) -> None:
    """It will not be built again: give its arguments back."""
    creation, actor.creation = actor.creation, None
    if creation is not None and creation.state == TaskState.DONE:
        objects.release_arguments(kernel, creation)
