"""ActorPool: who gets what, in which order, and what happens in time."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import hocket
from hocket.util import ActorPool


class PlainWorker:
    def __init__(self) -> None:
        self.gate = threading.Event()
        self.seen: list[int] = []

    def double(self, x: int) -> int:
        self.seen.append(x)
        return 2 * x

    @hocket.method(num_returns=2)
    def split(self, x: int) -> tuple[int, int]:
        return x, -x

    def fail(self, x: int) -> None:
        raise KeyError(x)

    def wait(self, x: int) -> int:
        assert self.gate.wait(30)
        return x

    def open(self) -> None:
        self.gate.set()

    def list_seen(self) -> list[int]:
        return self.seen


Worker: Any = hocket.remote(PlainWorker)


def double(actor: Any, x: int) -> Any:
    return actor.double.remote(x)


def fail(actor: Any, x: int) -> Any:
    return actor.fail.remote(x)


def wait(actor: Any, x: int) -> Any:
    return actor.wait.remote(x)


def build_gated() -> Any:
    """An actor whose `wait` ends with its `open`, which another thread of it runs."""
    return Worker.options(max_concurrency=2).remote()


def test_map_keeps_the_order(any_session: hocket.SessionContext) -> None:
    pool = ActorPool([Worker.remote(), Worker.remote()])
    assert list(pool.map(double, range(10))) == [2 * x for x in range(10)]
    assert sorted(pool.map_unordered(double, range(10))) == [2 * x for x in range(10)]
    assert not pool.has_next()
    assert pool.has_free()


def test_map_submits_at_once(any_session: hocket.SessionContext) -> None:
    actors = [Worker.remote(), Worker.remote()]
    for count, map_all in enumerate((ActorPool.map, ActorPool.map_unordered), start=1):
        map_all(ActorPool(actors), double, [1, 2])  # nothing is taken from what it returns
        assert [len(seen) for seen in hocket.get([actor.list_seen.remote() for actor in actors])] == [count, count]


def test_map_drops_what_was_pending(any_session: hocket.SessionContext) -> None:
    pool = ActorPool([Worker.remote()])
    for x in (100, 200, 300):
        pool.submit(double, x)
    assert list(pool.map(double, [1, 2])) == [2, 4]


def test_submit_and_get_next(any_session: hocket.SessionContext) -> None:
    pool = ActorPool([Worker.remote()])
    for x in range(3):
        pool.submit(double, x)
        assert not pool.has_free()
    assert [pool.get_next() for _ in range(3)] == [0, 2, 4]
    assert not pool.has_next()
    with pytest.raises(StopIteration, match="No more results to get"):
        pool.get_next()
    with pytest.raises(StopIteration, match="No more results to get"):
        pool.get_next_unordered()


def test_several_returns(any_session: hocket.SessionContext) -> None:
    pool = ActorPool([Worker.remote()])
    assert list(pool.map(lambda actor, x: actor.split.remote(x), [1, 2])) == [[1, -1], [2, -2]]


def test_an_error_frees_the_actor(any_session: hocket.SessionContext) -> None:
    pool = ActorPool([Worker.remote()])
    pool.submit(fail, 1)
    pool.submit(double, 2)
    with pytest.raises(KeyError, match="1"):
        pool.get_next()
    assert pool.get_next() == 4


@pytest.mark.needs("parallelism")
def test_a_value_that_cannot_be_sent_harms_no_other_one(any_session: hocket.SessionContext) -> None:
    """It had to wait for an actor, so its error comes in the place of its result."""

    def send(actor: Any, x: int) -> Any:
        return actor.double.remote(x) if x != 2 else x

    pool = ActorPool([Worker.remote()])
    for x in (1, 2, 3):
        pool.submit(send, x)
    assert pool.get_next() == 2
    with pytest.raises(TypeError, match=r"fn must return what actor\.method\.remote"):
        pool.get_next()
    assert pool.get_next() == 6
    assert not pool.has_next()
    for x in (1, 2, 3):
        pool.submit(send, x)
    assert pool.get_next_unordered() == 2
    with pytest.raises(TypeError, match=r"fn must return what actor\.method\.remote"):
        pool.get_next_unordered()
    assert pool.get_next_unordered() == 6
    loop = pool.map(send, [1, 2, 3])
    assert next(loop) == 2
    with pytest.raises(TypeError, match=r"fn must return what actor\.method\.remote"):
        next(loop)
    assert not pool.has_next()
    assert pool.has_free()


@pytest.mark.needs("parallelism")
def test_time_outs(session: hocket.SessionContext) -> None:
    actor = build_gated()
    pool = ActorPool([actor])
    pool.submit(wait, 1)
    pool.submit(double, 2)
    for get in (pool.get_next, pool.get_next_unordered):
        with pytest.raises(TimeoutError, match=r"Timed out waiting for result after 0.01 s\. Call again"):
            get(timeout=0.01)
    with pytest.raises(TimeoutError, match=r"The task ObjectRef\(.*\) has been ignored"):
        pool.get_next(timeout=0.01, ignore_if_timedout=True)
    hocket.get(actor.open.remote())
    assert pool.get_next(timeout=30) == 4
    assert not pool.has_next()


@pytest.mark.needs("parallelism")
def test_ignoring_all_that_is_pending(session: hocket.SessionContext) -> None:
    actors = [build_gated(), build_gated()]
    pool = ActorPool(actors)
    for x in range(2):
        pool.submit(wait, x)
    with pytest.raises(TimeoutError, match="All 2 running calls have been ignored"):
        pool.get_next_unordered(timeout=0.01, ignore_if_timedout=True)
    assert not pool.has_next()
    assert pool.has_free()
    hocket.get([actor.open.remote() for actor in actors])


@pytest.mark.needs("parallelism")
def test_no_order_after_a_later_result(session: hocket.SessionContext) -> None:
    late, early = build_gated(), build_gated()
    pool = ActorPool([early, late])
    pool.submit(wait, 1)  # the last actor of the list is the first to be used
    pool.submit(double, 2)
    assert pool.get_next_unordered() == 4
    with pytest.raises(ValueError, match=r"not allowed to call get_next\(\) after get_next_unordered\(\)"):
        pool.get_next()
    hocket.get(late.open.remote())
    assert pool.get_next_unordered() == 1
    pool.submit(double, 3)
    assert pool.get_next() == 6


def test_push_and_pop(any_session: hocket.SessionContext) -> None:
    first, second = Worker.remote(), Worker.remote()
    pool = ActorPool([first])
    assert pool.pop_idle() == first
    assert pool.pop_idle() is None
    pool.submit(double, 1)
    with pytest.raises(ValueError, match=r"1 values wait for an actor.*push\(actor\)"):
        pool.get_next()
    pool.push(second)
    with pytest.raises(ValueError, match="Actor already belongs to current ActorPool"):
        pool.push(second)
    assert pool.get_next() == 2
    with pytest.raises(ValueError, match="Actor already belongs to current ActorPool"):
        pool.push(second)
    pool.push(first)
    assert {pool.pop_idle(), pool.pop_idle()} == {first, second}


def test_bad_input(any_session: hocket.SessionContext) -> None:
    with pytest.raises(TypeError, match="ActorPool takes actor handles, but received 3"):
        ActorPool([3])  # type: ignore[list-item]
    pool = ActorPool([Worker.remote()])
    with pytest.raises(TypeError, match="ActorPool takes actor handles, but received 'x'"):
        pool.push("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"fn must return what actor.method.remote\(...\) returned, but returned 7"):
        pool.submit(lambda actor, value: 7, 1)
    assert pool.has_free()
