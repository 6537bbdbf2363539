"""Which actors nobody can reach any more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hocket import exceptions
from tests.kernel.simulation import FakeWorker, Simulation


def build(sim: Simulation, count: int = 1, **options: object) -> list[int]:
    """Create so many actors, and let their constructors run."""
    found = [sim.create_actor(**options).id for _ in range(count)]  # type: ignore[arg-type]
    sim.settle()
    return found


def introduce(sim: Simulation, actor_id: int, *others: int) -> None:
    """Have an actor keep handles on others."""
    call = sim.call(actor_id, borrowed=others)
    sim.settle()
    sim.drop(call.id)


def find_worker(sim: Simulation, actor_id: int) -> FakeWorker:
    worker = sim.kernel.actors[actor_id].worker
    assert worker is not None
    return sim.workers[worker.id]


def find(sim: Simulation) -> list[int]:
    return [actor.id for actor in sim.kernel.find_unreachable()]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_actors_that_hold_each_other_are_found_when_the_driver_lets_go(size: int) -> None:
    sim = Simulation()
    ring = build(sim, size)
    for actor_id, other in zip(ring, ring[1:] + ring[:1], strict=True):
        introduce(sim, actor_id, other)
    for actor_id in ring[:-1]:
        sim.drop(actor_id)
        assert find(sim) == []
    sim.drop(ring[-1])
    assert find(sim) == ring
    sim.collect()
    sim.settle()
    assert sim.kernel.actors == {}
    assert sim.kernel.objects == {}
    sim.end()


def test_actor_of_a_ring_that_has_ended_is_known_to_those_that_hold_it() -> None:
    """One of them may say something on its way out, and call the other."""
    sim = Simulation()
    first, second = build(sim, 2)
    introduce(sim, first, second)
    introduce(sim, second, first)
    leaving, staying = find_worker(sim, first), find_worker(sim, second)
    for actor_id in (first, second):
        sim.drop(actor_id)
    sim.collect()
    sim.read(leaving)
    sim.die(leaving)
    call = sim.call(first, caller=staying)
    assert type(sim.results[call.id][1]) is exceptions.ActorDiedError
    sim.settle()
    assert sim.kernel.actors == {}
    sim.end()


def test_ring_through_a_value_is_found() -> None:
    sim = Simulation()
    first, second = build(sim, 2)
    box = sim.put((first,))
    introduce(sim, second, box)
    introduce(sim, first, second)
    for object_id in (first, second):
        sim.drop(object_id)
    assert find(sim) == [], "the driver has the box"
    sim.drop(box)
    assert find(sim) == [first, second]
    sim.end()


def test_actor_that_is_built_again_does_not_hold_itself_by_its_arguments() -> None:
    sim = Simulation()
    (first,) = build(sim, max_restarts=3)
    introduce(sim, first, first)
    sim.drop(first)
    assert find(sim) == [first]
    sim.collect()
    sim.settle()
    assert sim.kernel.actors == {}, "and is not built again"
    sim.end()


def hold_in_value(sim: Simulation, actor_id: int) -> None:
    sim.put((sim.put((actor_id,)),))


def hold_in_task(sim: Simulation, actor_id: int) -> None:
    sim.submit(cpus=3)
    sim.submit(borrowed=(actor_id,))


def hold_in_waiting_task(sim: Simulation, actor_id: int) -> None:
    sim.submit(borrowed=(actor_id,), dependencies=(sim.submit(cpus=3).id,))


def hold_in_worker(sim: Simulation, actor_id: int) -> None:
    sim.submit(borrowed=(actor_id,))
    sim.settle()


def hold_in_other_actor(sim: Simulation, actor_id: int) -> None:
    (other,) = build(sim)
    introduce(sim, other, actor_id)


def hold_in_detached_actor(sim: Simulation, actor_id: int) -> None:
    (other,) = build(sim, name="registry", detached=True)
    introduce(sim, other, actor_id)
    sim.drop(other)


def hold_by_unread_call(sim: Simulation, actor_id: int) -> None:
    sim.call(actor_id)


def hold_by_unread_call_of_another(sim: Simulation, actor_id: int) -> None:
    (other,) = build(sim)
    introduce(sim, actor_id, other)
    introduce(sim, other, actor_id)
    sim.call(other)
    sim.drop(other)


@pytest.mark.parametrize(
    "hold",
    [
        hold_in_value,
        hold_in_task,
        hold_in_waiting_task,
        hold_in_worker,
        hold_in_other_actor,
        hold_in_detached_actor,
        hold_by_unread_call,
        hold_by_unread_call_of_another,
    ],
)
def test_what_somebody_can_reach_stays(hold: Callable[[Simulation, int], None]) -> None:
    sim = Simulation()
    (first,) = build(sim)
    introduce(sim, first, first)
    hold(sim, first)
    sim.drop(first)
    assert find(sim) == []
    sim.collect()
    assert first in sim.kernel.actors
    sim.end()


def test_one_that_is_reached_keeps_those_behind_it_and_not_those_before() -> None:
    sim = Simulation()
    before, reached, behind = build(sim, 3)
    for actor_id in (before, reached, behind):
        introduce(sim, actor_id, actor_id)
    introduce(sim, before, reached)
    introduce(sim, reached, behind)
    sim.drop(before)
    sim.drop(behind)
    assert find(sim) == [before]
    sim.end()
