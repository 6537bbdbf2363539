"""Waits that can never end: a search for cycles among waiting threads and the tasks that they wait for.

A thread waits for objects, and an object for its task. A task waits for its arguments; a call on an ordinary actor also
waits for the call that the actor runs, whose thread may wait in turn. Any other delay of a task (it has no CPU yet, its
process is starting) passes with time, so it counts as progress. If no path leads from a wait to progress, the wait can
never end, and is part of a cycle.
"""

from __future__ import annotations

from collections.abc import Callable

from hocket.kernel import machine
from hocket.kernel.records import TaskKind, TaskRecord, TaskState, Wait, WorkerRecord


def find_deadlock(kernel: machine.Kernel) -> tuple[WorkerRecord, int, str] | None:
    """Return a wait that can never end: its worker, its number there, and a text that shows the cycle; None if there is
    no such wait."""
    search = _Search(kernel)
    try:
        for worker in kernel.workers.values():
            for number, wait in reversed(worker.waits.items()):
                search.path.clear()
                if wait.task_id and not search.wait_can_end(wait):
                    return worker, number, _draw(search.circle)
    except RecursionError:  # a chain of hundreds of tasks, in which a cycle is unlikely
        pass
    return None


class _Search:
    """A search for a path from a wait to a task that makes progress."""

    def __init__(self, kernel: machine.Kernel) -> None:
        self._kernel = kernel
        #: Waits by the task that the thread runs. Threads that the user's code started are left out: they hold up no
        #: task.
        self._waits = {
            wait.task_id: wait for worker in kernel.workers.values() for wait in worker.waits.values() if wait.task_id
        }
        self._direct = {
            object_id: (actor_id, name) for wait in self._waits.values() for object_id, actor_id, name in wait.direct
        }
        self._known: dict[int, bool] = {}
        #: The ids and names of the calls from the first wait to the search's current place.
        self.path: list[tuple[int, str]] = []
        self.circle: list[tuple[int, str]] = []

    def wait_can_end(self, wait: Wait) -> bool:
        outcomes = (self._object_can_come(object_id) for object_id in wait.object_ids)
        return all(outcomes) if wait.needs_all else any(outcomes)

    def _object_can_come(self, object_id: int) -> bool:
        found = self._direct.get(object_id)
        if found is not None:
            return self._step((object_id, found[1]), lambda: self._look_at_direct(object_id, found[0]))
        record = self._kernel.objects.get(object_id)
        return record is None or record.task is None or self._task_can_end(record.task)

    def _task_can_end(self, task: TaskRecord) -> bool:
        return self._step((task.id, task.options.name), lambda: self._look_at(task))

    def _step(self, place: tuple[int, str], look: Callable[[], bool]) -> bool:
        """Return whether a call can end: continue the search from it, or find that the path has come back to it."""
        known = self._known.get(place[0])
        if known is not None:
            return known
        if place in self.path:
            self.circle = self.path[self.path.index(place) :]
            return False
        self.path.append(place)
        result = look()
        self.path.pop()
        if result or not self.path:  # inside a cycle, "no" is final only when the search has left the cycle
            self._known[place[0]] = result
        return result

    def _look_at_direct(self, object_id: int, actor_id: int) -> bool:
        """Return whether a direct call between two workers can end: the call may wait, or a call before it."""
        actor = self._kernel.actors.get(actor_id)
        if actor is None or actor.worker is None:
            return True
        wait = self._waits.get(object_id)
        if wait is None and not actor.options.allows_disorder and not actor.options.concurrency_groups:
            wait = _find_wait(actor.worker)
        return wait is None or self.wait_can_end(wait)

    def _look_at(self, task: TaskRecord) -> bool:
        if task.state == TaskState.WAITING:
            return all(self._object_can_come(object_id) for object_id in task.dependencies)
        wait = self._waits.get(task.id)
        if wait is not None:
            return self.wait_can_end(wait)
        actor = task.actor
        if task.kind != TaskKind.CALL or actor is None or actor.worker is None or actor.options.allows_disorder:
            return True
        if actor.options.concurrency_groups:
            return True
        busy = next(iter(actor.worker.inflight.values()), None)  # an ordinary actor runs the call that was sent first
        if busy is not None and busy is not task:
            return self._task_can_end(busy)
        other = _find_wait(actor.worker)  # of a direct call, about which the kernel knows nothing else
        return other is None or self.wait_can_end(other)


def _find_wait(worker: WorkerRecord) -> Wait | None:
    """Return the wait that holds up an ordinary actor."""
    return next((wait for wait in worker.waits.values() if wait.task_id), None)


def _draw(circle: list[tuple[int, str]]) -> str:
    steps = [f"`{name}` ({task_id:016x})" for task_id, name in circle]
    lines = "".join(f"\n    {step} waits for" for step in steps)
    return (
        f"This wait can never end, because the waits form a circle:{lines}\n    "
        f"{steps[0] if steps else 'itself'}\nBreak the circle: return the reference instead of its value, make the "
        "actor's methods coroutines, or give the actor max_concurrency > 1."
    )
