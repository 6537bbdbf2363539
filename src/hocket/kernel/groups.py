"""Placement groups: resources reserved together, or not at all.

`placing.reserve_groups` takes a group's bundles from the node's pool together, when all fit. Each bundle becomes a
pool, in which the group's tasks and actors are placed. The group's object gets its value when the group is reserved.
The removal of a group ends the tasks and actors that run in it, and fails those that wait for it.
"""

from __future__ import annotations

from hocket import exceptions
from hocket.kernel import actors, objects, placing
from hocket.kernel.instructions import Kill
from hocket.kernel.records import ActorState, GroupRecord, ObjectRecord, TaskKind
from hocket.kernel.state import State


def reserve(kernel: State, group: GroupRecord) -> None:
    """Reserve the bundles, now or as soon as they fit together; the group's object then gets its value."""
    kernel.groups[group.id] = group
    kernel.objects[group.id] = record = ObjectRecord(group.id, None)
    record.count += 1
    kernel.pending_groups.append(group)
    placing.reserve_groups(kernel)


def remove_group(kernel: State, group_id: int) -> None:
    """Give the bundles back, end the tasks and actors in them, and fail those that wait for them."""
    group = kernel.groups.pop(group_id, None)
    if group is None:
        return
    group.removed = True
    kernel.removed_groups.append(group)
    if group in kernel.pending_groups:
        kernel.pending_groups.remove(group)
    message = f"Placement group {group.name or f'{group.id:016x}'!r} was removed."
    _end_all_in(kernel, group_id, message)
    for allocation in group.allocations:
        allocation.give_back()
    record = kernel.objects.get(group_id)
    if record is not None and record.value is None:
        objects.store(kernel, record, kernel.encode_error(exceptions.TaskPlacementGroupRemoved(message)), (), True)
    for shape in [shape for shape in kernel.queues if shape.group_id == group_id]:
        del kernel.queues[shape]
    objects.release(kernel, group_id)
    placing.dispatch(kernel)


def _end_all_in(kernel: State, group_id: int, message: str) -> None:
    """End the tasks and actors of a placement group, running or waiting."""
    for task in [task for task in kernel.tasks.values() if task.options.shape.group_id == group_id]:
        if task.worker is None and task.kind == TaskKind.FUNCTION:
            kernel.fail_exception(task, exceptions.TaskPlacementGroupRemoved(message))
    for actor in list(kernel.actors.values()):
        if actor.options.lifetime_shape.group_id == group_id and actor.state != ActorState.DEAD:
            actors.kill_actor(kernel, actor.id, message)
    for worker in list(kernel.workers.values()):
        if worker.shape is not None and worker.shape.group_id == group_id:
            for task in worker.inflight.values():
                task.retries_left = 0
            kernel.instructions.append(Kill(worker))
