"""Waits that can never end: a search for circles among the threads that wait and the tasks that they wait for.

A thread waits for objects; an object waits for its task; a task waits for its arguments, or, being a call of an
ordinary actor, for the call that the actor is busy with; that one may be a thread that waits. Whatever else holds a
task up (it has no CPU yet, its process is starting) passes with time, so it counts as progress. A wait from which no
path leads to progress is dead, and so is the circle that it stands in.
"""

from __future__ import annotations

from collections.abc import Callable

from hocket.kernel import machine
from hocket.kernel.records import TaskKind, TaskRecord, TaskState, Wait, WorkerRecord


def find_deadlock(kernel: machine.Kernel) -> tuple[WorkerRecord, int, str] | None:
    """Return a wait that can never end: its worker, its number there, and a text that shows the circle; None if
    there is none."""
    search = _Search(kernel)
    try:
        for worker in kernel.workers.values():
            for number, wait in reversed(worker.waits.items()):
                search.path.clear()
                if wait.task_id and not search.wait_can_end(wait):
                    return worker, number, _draw(search.circle)
    except RecursionError:  # a chain of hundreds of tasks; a circle in it would be the first of its kind
        pass
    return None


class _Search:
    """Looks for a way from a wait to something that makes progress."""

    def __init__(self, kernel: machine.Kernel) -> None:
        self._kernel = kernel
        #: By what the thread runs; a thread that a user's code has started may wait as long as it likes and holds up
        #: nobody.
        self._waits = {
            wait.task_id: wait for worker in kernel.workers.values() for wait in worker.waits.values() if wait.task_id
        }
        self._direct = {
            object_id: (actor_id, name) for wait in self._waits.values() for object_id, actor_id, name in wait.direct
        }
        self._known: dict[int, bool] = {}
        #: The calls on the way from the first wait to where the search is now: their ids and names.
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
        """Go on from a call; find out whether the way has come back to it."""
        known = self._known.get(place[0])
        if known is not None:
            return known
        if place in self.path:
            self.circle = self.path[self.path.index(place) :]
            return False
        self.path.append(place)
        result = look()
        self.path.pop()
        if result or not self.path:  # "no" holds for a circle only when the search has left it
            self._known[place[0]] = result
        return result

    def _look_at_direct(self, object_id: int, actor_id: int) -> bool:
        """Tell whether a call between two workers can end: it waits itself, or stands behind one that waits."""
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
        busy = next(iter(actor.worker.inflight.values()), None)  # an ordinary actor runs the first one that it was sent
        if busy is not None and busy is not task:
            return self._task_can_end(busy)
        other = _find_wait(actor.worker)  # a direct call, of which nothing else is known here
        return other is None or self.wait_can_end(other)


def _find_wait(worker: WorkerRecord) -> Wait | None:
    """Return the wait that holds up an ordinary actor."""
    return next((wait for wait in worker.waits.values() if wait.task_id), None)


def _draw(circle: list[tuple[int, str]]) -> str:
    steps = [f"`{name}` ({task_id:016x})" for task_id, name in circle]
    lines = "".join(f"\n    {step} waits for" for step in steps)
    return (
        f"This wait can never end, because it stands in a circle:{lines}\n    "
        f"{steps[0] if steps else 'itself'}\nBreak the circle: return the reference instead of its value, make the "
        "actor's methods coroutines, or give the actor max_concurrency > 1."
    )
