"""The kernel's share in direct calls between workers.

Two workers that call each other often get a direct channel. The kernel does not see the calls on it, except for:

- **The beginning.** The first direct call must not overtake calls that went through the kernel. So the engine sends a
  marker (`introduce`), which follows the caller's last call in each of the actor's queues. The marker waits until the
  actor is alive: a process that dies before it begins to build the actor would lose it. Until then no call is sent
  ahead, either.
- **Promises.** A worker may pass a reference on before the call's answer has come over the direct channel. From then on
  the kernel has the object, promised by that worker (`promise`), and gets its value from the worker (`fulfil`).
- **Answers that refer to counted objects.** They come to the kernel, which counts the objects and informs the caller
  (`deliver`).
- **The end.** If a direct channel breaks while calls are running, `fail_orphaned` gets them: they fail with the actor's
  death, as soon as the kernel knows of it and its reason.
"""

from __future__ import annotations

from collections.abc import Iterable

from hocket import exceptions
from hocket.kernel import objects, reasons
from hocket.kernel.instructions import Free, Moved, Pass, Refuse
from hocket.kernel.records import ActorRecord, ActorState, ObjectRecord, WorkerRecord
from hocket.kernel.state import State


def introduce(kernel: State, actor_id: int, caller: int, marker: tuple[object, ...]) -> None:
    """Pass a marker on to the actor's worker, after the calls that the caller has made so far."""
    actor = kernel.actors.get(actor_id)
    if actor is None or actor.state == ActorState.DEAD:
        kernel.instructions.append(Refuse(marker))
        return
    ahead = {row[-1].id for key, row in actor.queues.items() if key[0] == caller and row}
    actor.markers.append((marker, ahead))
    pass_markers(kernel, actor)


def pass_markers(kernel: State, actor: ActorRecord, sent_id: int = 0) -> None:
    """Pass on the markers that have no unsent call before them; the call `sent_id` has just been sent."""
    for _, ahead in actor.markers:
        ahead.discard(sent_id)
    if actor.state != ActorState.ALIVE:
        return
    assert actor.worker is not None
    kept = []
    for marker, ahead in actor.markers:
        if ahead:
            kept.append((marker, ahead))
        else:
            kernel.instructions.append(Pass(actor.worker, marker))
    actor.markers = kept


def promise(kernel: State, worker: WorkerRecord, object_id: int) -> None:
    """Make the object of a reference that the worker has passed on, and whose value a direct call will bring to it."""
    record = kernel.objects[object_id] = ObjectRecord(object_id, None)
    record.holders = {worker.id: 1}
    worker.promised.add(object_id)


def fulfil(kernel: State, worker: WorkerRecord, object_id: int, value: tuple[object, ...], *, failed: bool) -> None:
    """Store a promised value, which the worker has sent."""
    worker.promised.discard(object_id)
    record = kernel.objects.get(object_id)
    if record is not None and record.value is None:
        objects.store(kernel, record, value, (), failed)


def deliver(kernel: State, holder: int, object_id: int, value: tuple[object, ...], contained: tuple[int, ...]) -> None:
    """Store the answer of a direct call for the worker that called: it refers to counted objects, or is the error of a
    dead actor."""
    owner, failed = kernel.workers.get(holder), value[0] == kernel.error_mark
    if owner is None:
        kernel.instructions.append(Free(object_id, value))
        return
    record = kernel.objects.get(object_id)
    if record is None:
        objects.put(kernel, object_id, value, contained, holder, failed=failed)
    elif record.value is None:
        owner.promised.discard(object_id)
        objects.store(kernel, record, value, contained, failed)
    kernel.instructions.append(Moved(holder, object_id))


def fail_orphaned(kernel: State, worker: WorkerRecord, actor_id: int, object_ids: tuple[int, ...], name: str) -> None:
    """Fail a direct call with its actor's death, at once or when that is known: its channel ended before the answer."""
    for object_id in object_ids:
        if object_id not in kernel.objects:
            promise(kernel, worker, object_id)
        worker.promised.discard(object_id)
    actor = kernel.actors.get(actor_id)
    if actor is None:
        message = f"Call `{name}` was lost: its actor has ended."
        break_promises(kernel, object_ids, exceptions.ActorDiedError(message, actor_id=f"{actor_id:016x}"))
    elif actor.state == ActorState.DEAD:
        break_promises(kernel, object_ids, reasons.explain_death(actor))
    else:
        actor.orphaned += object_ids


def break_promises(kernel: State, object_ids: Iterable[int], error: BaseException) -> None:
    """Store an error in those of the objects that have no value yet."""
    value = kernel.encode_error(error)
    for object_id in object_ids:
        record = kernel.objects.get(object_id)
        if record is not None and record.value is None:
            objects.store(kernel, record, value, (), True)
