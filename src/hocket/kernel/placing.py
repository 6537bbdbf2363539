"""Which task goes to which worker, and when.

Ready tasks wait in one queue for each shape. Tasks of one shape are interchangeable: the kernel looks only at the head
of each queue, however long the queue is. A task gets a worker of its own if a pool has the resources now. Else it joins
the queue of a worker that has a lease of its shape and room (`leases`).

**Fairness.** A lease could pass from task to task without end. So a worker ends its lease when another shape waits.
`dispatch` then offers the free resources to all shapes in turn, and moves a shape that got some to the back. Placement
groups come before tasks: else a bundle that needs a whole node would wait until nothing runs at all.
"""

from __future__ import annotations

from collections import deque

from hocket.kernel import actors, calls, leases, objects, resources
from hocket.kernel.records import TaskKind, TaskRecord, TaskState, WorkerRecord, WorkerState
from hocket.kernel.state import State


def dispatch(kernel: State) -> None:
    """Start all tasks that fit now. Called when resources or workers become free."""
    if kernel.pending_groups:
        reserve_groups(kernel)
    for shape in [shape for shape, queue in kernel.queues.items() if queue]:
        queue = kernel.queues[shape]
        waiting = len(queue)
        dispatch_shape(kernel, shape, queue)
        if len(queue) < waiting:  # the shape had its turn: it goes to the back, so that no shape starves another
            kernel.queues[shape] = kernel.queues.pop(shape)


def dispatch_shape(kernel: State, shape: resources.Shape, queue: deque[TaskRecord]) -> None:
    """Start tasks of one shape while there is room."""
    while queue:
        task = queue[0]
        if task.state != TaskState.READY:
            queue.popleft()
            continue
        pool = _find_pool(kernel, shape)
        if pool is not None:
            queue.popleft()
            _start_on_idle(kernel, task, shape, pool.take(shape.demand))
        elif task.kind == TaskKind.FUNCTION and (worker := _find_room(kernel, task, shape)) is not None:
            queue.popleft()
            leases.run(kernel, worker, task)
        else:
            return


def start_at_once(kernel: State, task: TaskRecord, shape: resources.Shape) -> bool:
    """Start a task of a shape with an empty queue if there is room now; return False if the task has to wait there."""
    allocation = None if shape.group_id else kernel.pool.take_if_fits(shape.demand)
    if allocation is None:
        return False
    _start_on_idle(kernel, task, shape, allocation)
    return True


def _find_pool(kernel: State, shape: resources.Shape) -> resources.Pool | None:
    """Return a pool that has the resources now."""
    if not shape.group_id:
        return kernel.pool if kernel.pool.fits(shape.demand) else None
    group = kernel.groups.get(shape.group_id)
    if group is None:
        return None
    pools = group.pools if shape.bundle_index < 0 else group.pools[shape.bundle_index : shape.bundle_index + 1]
    return next((pool for pool in pools if pool.fits(shape.demand)), None)


def _find_room(kernel: State, task: TaskRecord, shape: resources.Shape) -> WorkerRecord | None:
    """Return the leased worker with the shortest queue that has room."""
    assert task.function is not None
    depth = task.function.depth
    if depth <= 1 or shape.only:
        return None
    best = None
    for worker in kernel.leases.get(shape, {}).values():
        row = len(worker.inflight)
        if row < depth and not worker.blocked and not worker.recalled and not worker.killed:
            best, depth = worker, row
    return best


def _start_on_idle(kernel: State, task: TaskRecord, shape: resources.Shape, allocation: resources.Allocation) -> None:
    worker = leases.take_idle(kernel, shape.environment, allocation.gpu_ids)
    worker.allocation = allocation
    if task.kind == TaskKind.CREATION:
        worker.state = WorkerState.ACTOR
        actor = task.actor
        assert actor is not None
        worker.actor = actor
        actor.worker = worker
        leases.run(kernel, worker, task)
        # The calls need not wait for the constructor here: the worker runs them after it.
        for key in list(actor.queues):
            calls.send_row(kernel, actor, key)
        return
    worker.state = WorkerState.LEASED
    worker.shape = shape
    if shape in kernel.leases:
        kernel.leases[shape][worker.id] = worker
    else:
        kernel.leases[shape] = {worker.id: worker}
    leases.run(kernel, worker, task)


def go_on(kernel: State, worker: WorkerRecord, task: TaskRecord) -> None:
    """Give the worker its next task, or end its lease; `task` is the task that it has just finished."""
    actor = worker.actor
    if actor is not None:
        if actor.queues:
            for key in list(actor.queues):
                calls.send_row(kernel, actor, key)
        if actor.unreachable:
            actors.end_if_unreachable(kernel, actor)
        return
    shape = worker.shape
    if shape is None:
        return
    if worker.recalled:  # it has just finished a task, so it makes progress again
        worker.recalled = False
    queue = kernel.queues.get(shape)
    # A process about to end gets no further task: that task would be blamed for its death.
    is_last = (shape.only and leases.count_run(worker, shape.only, task)) or worker.killed
    if queue and not is_last and (len(kernel.queues) == 1 or not _others_wait(kernel, shape)):
        _refill(kernel, worker, shape, queue)
    if not worker.inflight:
        leases.end_lease(kernel, worker)
        if queue or kernel.pending_groups or (kernel.queues and (queue is None or len(kernel.queues) > 1)):
            dispatch(kernel)


def _others_wait(kernel: State, shape: resources.Shape) -> bool:
    return any(queue for other, queue in kernel.queues.items() if other != shape)


def _refill(kernel: State, worker: WorkerRecord, shape: resources.Shape, queue: deque[TaskRecord]) -> None:
    inflight = worker.inflight
    if worker.blocked or (shape.group_id and shape.group_id not in kernel.groups):
        return
    while queue:
        task = queue[0]
        if task.state != TaskState.READY:
            queue.popleft()
            continue
        if task.kind != TaskKind.FUNCTION:
            return
        assert task.function is not None
        if inflight and (len(inflight) >= task.function.depth or shape.only):
            return
        queue.popleft()
        leases.run(kernel, worker, task)


def reserve_groups(kernel: State) -> None:
    """Reserve the groups that fit now; a group that does not fit holds up no other."""
    has_reserved = False
    for group in list(kernel.pending_groups):
        if resources.all_fit(kernel.pool, group.bundles):
            has_reserved = True
            kernel.pending_groups.remove(group)
            for bundle in group.bundles:
                allocation = kernel.pool.take(bundle)
                group.allocations.append(allocation)
                group.pools = (*group.pools, resources.Pool.build(bundle, allocation.gpu_ids))
            record = kernel.objects.get(group.id)
            if record is not None:
                objects.store(kernel, record, kernel.none_value, (), False)
    if has_reserved:
        dispatch(kernel)


def could_ever_fit(kernel: State, shape: resources.Shape) -> bool:
    """Return whether the shape fits an otherwise empty session."""
    if not shape.group_id:
        return kernel.pool.could_fit(shape.demand)
    group = kernel.groups.get(shape.group_id)
    if group is None:
        return True
    bundles = group.bundles if shape.bundle_index < 0 else group.bundles[shape.bundle_index : shape.bundle_index + 1]
    return any(resources.Pool.build(bundle).could_fit(shape.demand) for bundle in bundles)
