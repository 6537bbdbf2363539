"""Actors: their life from the constructor to their death.

An actor has a worker of its own. Its object stands for all its handles. Each call holds one count on the object, so an
actor is reachable until its calls are done (`end_if_unreachable`). A detached actor holds a count on itself.

**Placing.** The constructor is a task, and waits for resources like any other (`creation.shape`). When it is done, the
actor swaps these resources for those that it holds while it lives, usually less.

**Death.** An actor's process ends by a crash, `kill`, `exit_actor`, or because its last handle is gone. An end that is
not meant to be final, of an actor that may restart, makes the constructor ready again, with its old arguments; the
actor's queues stay (`lose_actor`). Otherwise the actor is dead (`_bury`): all its calls fail, later ones too, and each
error gives the reason of the first death.

**Names.** A name belongs to an actor from its submission to its death. A worker that is about to create an actor claims
the name first: of two workers at once, only one succeeds.
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
    """Make the record of an actor whose constructor was submitted; the actor then has its name."""
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
    """Make an actor alive after its constructor: swap the constructor's resources for those that the actor keeps."""
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
    """Reserve a name for a process that is about to create an actor; return False if the name is taken."""
    key = (namespace, name)
    if key in kernel.names or kernel.name_claims.get(key, holder) != holder:
        return False
    kernel.name_claims[key] = holder
    return True


def release_name(kernel: State, namespace: str, name: str, holder: int) -> None:
    """Give up the claim on a name: the process will not create the actor."""
    key = (namespace, name)
    if kernel.name_claims.get(key) == holder:
        del kernel.name_claims[key]


def is_claimed(kernel: State, namespace: str, name: str) -> bool:
    """Return whether a process is about to create an actor with this name."""
    return (namespace, name) in kernel.name_claims


def find_actor(kernel: State, namespace: str, name: str) -> ActorRecord | None:
    """Return the living actor with this name; None if there is none."""
    return kernel.names.get((namespace, name))


def leave_row(kernel: State, task: TaskRecord) -> None:
    """Remove a call that is over from its queue, and end its actor if nothing else holds it."""
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
    """Mark an actor that ends itself as dead: it is not built again, and its calls fail."""
    actor = worker.actor
    if actor is not None:
        worker.killed = True
        _bury(
            kernel, actor, exceptions.Death(pid=0, expected=True), "it ended itself with `exit_actor` or `sys.exit(0)`."
        )


def kill_actor(
    kernel: State, actor_id: int, message: str = "it was killed by `kill`.", *, no_restart: bool = True
) -> None:
    """End the actor's process now. Unless the actor restarts, fail its calls with the message."""
    actor = kernel.actors.get(actor_id)
    if actor is None or actor.state == ActorState.DEAD:
        return
    worker = actor.worker
    if not no_restart and _can_restart(actor):  # `lose_actor` restarts it when the process is dead
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
    """Note that the actor's last handle is gone, and end the actor if it has no calls."""
    actor.unreachable = True
    end_if_unreachable(kernel, actor)


def end_if_unreachable(kernel: State, actor: ActorRecord) -> None:
    """End an actor that has no handle and no calls. A first constructor still runs to its end; a restart does not."""
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
    """Mark an actor without calls as dead, and let its process exit by itself."""
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
    """Handle the death of an actor's process: build the actor again if its options allow it. Calls that had not started
    go back to their queues. Calls that had started get another attempt if their options allow it. The others fail,
    because it is unknown how far they came."""
    creation = kernel.tasks.get(actor.id)
    if creation is not None and creation.worker is worker and not creation.cancelled:
        has_begun = running is None or creation.id in running
        if not has_begun and not leases.count_early_death(kernel, creation):  # this death costs no restart
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
    for task in reversed(inflight):  # the last first, because each goes to the head of its queue
        task.worker = None
        if task is creation:
            continue
        if running is not None and task.id not in running and not task.cancelled:
            calls.put_back(task)
        elif task.retries_left and not task.cancelled:
            task.retries_left -= task.retries_left > 0  # -1 is without limit, and stays so
            task.attempt += 1
            calls.put_back(task)
        else:
            lost.append(task)
    for task in reversed(lost):
        kernel.fail_exception(task, reasons.explain_lost_call(actor, task, death))
    end_if_unreachable(kernel, actor)
    if actor.state == ActorState.DEAD:  # no handle and no call needs it again
        return
    creation.attempt += 1
    kernel.tasks[creation.id] = creation
    kernel.make_ready(creation)


def _place_again(kernel: State, actor: ActorRecord, worker: WorkerRecord, creation: TaskRecord) -> None:
    """Place an actor again whose process died before its constructor began; that counts as no restart."""
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
            for _, ahead in actor.markers:  # the markers are newer than the call
                ahead.add(task.id)
    kernel.make_ready(creation)


def bury_constructor(kernel: State, task: TaskRecord, error: tuple[object, ...]) -> None:
    """Mark an actor as dead whose constructor raised, or could not be called. The errors of its calls contain the
    (encoded) error."""
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
    """Mark the actor as dead, release its name and resources, and fail all its calls with the reason."""
    if actor.state == ActorState.DEAD:  # the first reason stays
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
    if actor.id not in kernel.objects:  # else somebody has a handle, and calls must find the reason of the death
        kernel.actors.pop(actor.id, None)
    if worker is not None and worker.allocation is not None:
        worker.allocation.give_back()
        worker.allocation = None
        kernel.dispatch()


def _drop_name(kernel: State, actor: ActorRecord) -> None:
    key = (actor.options.namespace, actor.options.name)
    if kernel.names.get(key) is actor:  # else a later actor has the name
        del kernel.names[key]
    if actor.holds_itself:
        actor.holds_itself = False
        objects.release(kernel, actor.id)


def _drop_creation(kernel: State, actor: ActorRecord) -> None:
    """Release the constructor's arguments, because the actor will not be built again."""
    creation, actor.creation = actor.creation, None
    if creation is not None and creation.state == TaskState.DONE:  # else the task releases them at its own end
        objects.release_arguments(kernel, creation)
