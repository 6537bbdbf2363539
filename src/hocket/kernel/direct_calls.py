"""Direct calls between workers, as far as the kernel has a hand in them.

Two workers that call each other often get a direct channel of their own, and what goes over it is not told here. Four
things are:

- **The beginning.** The first direct call must not overtake those that went through the kernel. So the engine sends a
  marker (`introduce`) that is passed on behind the caller's last call in each of the actor's rows, and not before the
  actor is alive: a process that dies before it has begun to build the actor is replaced, and would take the marker
  along. As long as a marker waits for that, no call is sent ahead either.
- **Promises.** A worker may give a reference away before the call's answer has come over the direct channel. The object
  exists here from then on, promised by that worker (`promise`), and has its value when the worker sends it (`fulfil`).
- **What only we can keep** (`deliver`): an answer that refers to counted objects comes here, and the kernel tells the
  caller.
- **The end.** A direct channel that breaks while calls are under way leaves them to `fail_orphaned`: they fail with the
  actor's death, as soon as it is known and has a reason.
"""

from __future__ import annotations

from collections.abc import Iterable

from hocket import exceptions
from hocket.kernel import objects, reasons
from hocket.kernel.instructions import Free, Moved, Pass, Refuse
from hocket.kernel.records import ActorRecord, ActorState, ObjectRecord, WorkerRecord
from hocket.kernel.state import State


def introduce(kernel: State, actor_id: int, caller: int, marker: tuple[object, ...]) -> None:
    """Pass a marker on to the actor's worker, behind the calls that the caller has made so far."""
    actor = kernel.actors.get(actor_id)
    if actor is None or actor.state == ActorState.DEAD:
        kernel.instructions.append(Refuse(marker))
        return
    ahead = {row[-1].id for key, row in actor.queues.items() if key[0] == caller and row}
    actor.markers.append((marker, ahead))
    pass_markers(kernel, actor)


def pass_markers(kernel: State, actor: ActorRecord, sent_id: int = 0) -> None:
    """Pass on the markers that no call stands in front of; `sent_id` no longer does."""
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
    """The worker has given a reference on an object away that will come to it by a direct call."""
    record = kernel.objects[object_id] = ObjectRecord(object_id, None)
    record.holders = {worker.id: 1}
    worker.promised.add(object_id)


def fulfil(kernel: State, worker: WorkerRecord, object_id: int, value: tuple[object, ...], *, failed: bool) -> None:
    """The object has come to the worker."""
    worker.promised.discard(object_id)
    record = kernel.objects.get(object_id)
    if record is not None and record.value is None:
        objects.store(kernel, record, value, (), failed)


def deliver(kernel: State, holder: int, object_id: int, value: tuple[object, ...], contained: tuple[int, ...]) -> None:
    """A direct call has returned what only we can keep, or its actor is dead; it belongs to the worker that called."""
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
    """The direct channel of a direct call has ended before its answer: the call fails with the actor's death."""
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
    """Fail those objects that have no value yet."""
    value = kernel.encode_error(error)
    for object_id in object_ids:
        record = kernel.objects.get(object_id)
        if record is not None and record.value is None:
            objects.store(kernel, record, value, (), True)
