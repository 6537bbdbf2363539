"""Unreachable actors that still have counts: actors that hold their own handles, or each other's.

A count says that a handle exists, but not where. An actor that holds its own handle, or a ring of actors that hold each
other's, would never reach zero. This module searches for them as a garbage collector for cycles does. *Inside* are the
actors at rest, and the values that refer to other objects. These explain counts:

- the worker of an actor at rest, for the handles that it holds (`ObjectRecord.holders`);
- a value, for the handles in it (`ObjectRecord.contained`);
- the constructor's arguments that are kept to build an actor again (`ActorRecord.creation`).

All other counts come from outside: a handle in the driver, a task's argument, a stream's item, a worker that runs
tasks, a detached actor's count on itself. An object with such a count stays, and so do all objects that it reaches.

An actor is at rest if it has answered all its calls. Its own threads and background tasks do not keep it alive, just as
when its last handle goes. The kernel sees neither direct calls between workers nor messages on their way to it. So a
caller of `find_unreachable` must have the workers confirm the result first (as `engine.local.ends` does).

The search takes time in proportion to the number of objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hocket.kernel import actors
from hocket.kernel.records import ActorRecord, ActorState, ObjectRecord
from hocket.kernel.state import State


def find_unreachable(kernel: State) -> list[ActorRecord]:
    """Return the living actors that nothing outside reaches and that have no calls, in the order of their creation."""
    resting = {actor.id: actor for actor in kernel.actors.values() if _is_at_rest(actor) and actor.id in kernel.objects}
    if not resting:
        return []
    inside: dict[int, ObjectRecord] = {actor_id: kernel.objects[actor_id] for actor_id in resting}
    containers = [record for record in kernel.objects.values() if record.contained]
    inside.update((record.id, record) for record in containers)
    links = _list_links(resting, inside)
    explained: Counter[int] = Counter()
    for targets in links.values():
        explained.update(targets)
    reached = _follow(links, (record.id for record in inside.values() if record.count > explained[record.id]))
    return [actor for actor_id, actor in resting.items() if actor_id not in reached]


def end_unreachable(kernel: State, found: Iterable[ActorRecord]) -> None:
    """End actors that `find_unreachable` has found, after their workers have confirmed it."""
    for actor in found:
        if actor.state == ActorState.ALIVE:
            actor.unreachable = True
            actors.end_now(
                kernel,
                actor,
                "no code could reach it: only the actor itself or other unreachable actors held its handles.",
            )


def _is_at_rest(actor: ActorRecord) -> bool:
    if actor.state != ActorState.ALIVE or actor.worker is None or actor.holds_itself or actor.worker.killed:
        return False
    is_idle = not (actor.inflight or actor.queues or actor.waiting or actor.worker.inflight)
    return is_idle and not (actor.worker.promised or actor.markers or actor.orphaned)


def _list_links(resting: dict[int, ActorRecord], inside: dict[int, ObjectRecord]) -> dict[int, list[int]]:
    """Return the objects to which each actor and value inside refers, each as often as it is counted for that. An actor
    stands for its worker."""
    links: dict[int, list[int]] = {object_id: list(record.contained) for object_id, record in inside.items()}
    by_worker = {actor.worker.id: actor_id for actor_id, actor in resting.items() if actor.worker is not None}
    for record in inside.values():
        for worker_id, count in (record.holders or {}).items():
            holder = by_worker.get(worker_id)
            if holder is not None:
                links[holder] += [record.id] * count
    for actor_id, actor in resting.items():
        if actor.creation is not None:
            links[actor_id] += [*actor.creation.dependencies, *actor.creation.borrowed]
    return links


def _follow(links: dict[int, list[int]], roots: Iterable[int]) -> set[int]:
    """Return all objects that can be reached from the roots, the roots included."""
    reached = set(roots)
    row = list(reached)
    while row:
        for target in links[row.pop()]:
            if target not in reached and target in links:
                reached.add(target)
                row.append(target)
    return reached
