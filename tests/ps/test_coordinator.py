"""The coordinator: schedule, join, done, fetch, and what becomes of errors.

The numbers are of the catalogue of TensorFlow's behaviours in docs/ps.md.
"""

from __future__ import annotations

import functools
import gc
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest

import hocket
from hocket import exceptions, ps
from hocket.ps import errors
from hocket.ps.executor import closures, dispatcher
from tests.conftest import ENGINE
from tests.ps.conftest import Files

EXAMPLES = Path(__file__).parents[2] / "examples"


def list_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("hocket-ps")]


class Point(NamedTuple):
    x: Any
    y: Any


def join_failing(coordinator: ps.Coordinator, *call: Any) -> tuple[Exception, ...]:
    """Return what one closure that fails makes of join."""
    coordinator.schedule(*call)
    with pytest.raises(errors.ClosureFailures) as caught:
        coordinator.join()
    return caught.value.exceptions


# -- schedule and fetch -----------------------------------------------------------------------------------------------


def test_values_come_back(coordinator):
    """A2 #13, #23, #24, #29."""
    values = [coordinator.schedule(pow, (2, n)) for n in range(5)]
    assert coordinator.join() == 5
    assert coordinator.done()
    assert coordinator.fetch({"all": values, "one": (values[3], "as it is"), "point": Point(values[1], 7)}) == {
        "all": [1, 2, 4, 8, 16],
        "one": (8, "as it is"),
        "point": Point(2, 7),
    }
    nothing = coordinator.schedule(lambda: None)
    assert nothing.fetch() is None
    assert values[4].get() == values[4].fetch(timeout=0) == 16
    assert repr(values[0]) == "<RemoteValue of pow: READY>"
    array = coordinator.schedule(np.arange, (100_000,)).fetch()
    assert array.sum() == 4999950000
    inside = coordinator.schedule(lambda: ps.IndexedSlices(np.zeros((100_000, 1)), [1])).fetch().values
    inside += 1
    assert inside.sum() == 100_000
    assert coordinator.schedule(functools.partial(max, 3), (2,)).fetch() == 3
    assert coordinator.schedule(dict, kwargs={"a": 1}).fetch() == {"a": 1}


@pytest.mark.needs("parallelism")
def test_scheduling_does_not_wait(coordinator, files: Files):
    """A2 #13, #19: while all workers are busy."""
    blockers = [coordinator.schedule(files.wait_for, ("go",)) for _ in range(2)]
    values = [coordinator.schedule(pow, (n, 2)) for n in range(20)]
    assert not coordinator.done()
    assert not any(value.is_ready for value in blockers)
    assert "NOT_READY" in repr(values[-1])
    with pytest.raises(exceptions.GetTimeoutError, match=r"wait_for has not ended after 0\.01 s\. It goes on"):
        blockers[0].fetch(timeout=0.01)
    with pytest.raises(errors.JoinTimeoutError, match=r"still running after 0\.01 s.*They go on; call join\(\) again"):
        coordinator.join(timeout=0.01)
    files.write("go")
    assert coordinator.join() == 22
    assert coordinator.done()


@pytest.mark.needs("parallelism")
def test_a_faster_worker_runs_more(coordinator, files: Files):
    """A2 #14: one worker is held by a closure, and the other runs the rest, but for what the first was given ahead."""
    held = coordinator.schedule(files.wait_for, ("go",))
    workers = [coordinator.schedule(ps.get_current_worker_index) for _ in range(1000)]
    files.wait_until(lambda: sum(value.is_ready for value in workers) >= 500)
    seen = {value.fetch() for value in workers if value.is_ready}
    files.write("go")
    assert coordinator.join() >= 1001
    assert held.is_ready
    assert len(seen) == 1


@pytest.mark.needs("parallelism")
def test_a_worker_has_its_next_closure_before_it_asks(coordinator, files: Files):
    """A2 #16: two batches are with each worker, one that runs and one that waits there."""
    coordinator.fetch([coordinator.schedule(abs, (-n,)) for n in range(100)])
    with coordinator._scheduler.condition:  # the workers find all of them at once
        waiting = [
            coordinator.schedule(files.wait_for, ("go",)) for _ in range(10)
        ]  # however they are put into batches
    files.wait_until(lambda: coordinator.statistics()["inflight_closures"] >= 4)
    files.write("go")
    assert len(coordinator.fetch(waiting)) == 10


@pytest.mark.needs("parallelism")
def test_join_waits_for_what_was_there(coordinator, files: Files):
    """A2 #18: what another thread schedules meanwhile runs, and is not waited for."""
    first = coordinator.schedule(files.wait_for, ("first",))
    joined = threading.Event()

    def join() -> None:
        coordinator.join()
        joined.set()

    thread = threading.Thread(target=join)
    thread.start()
    files.wait_until(lambda: len(coordinator._scheduler.condition._waiters) > 0)
    second = coordinator.schedule(files.wait_for, ("second",))
    files.write("first")
    assert joined.wait(30)
    assert first.is_ready
    assert not second.is_ready
    files.write("second")
    thread.join()
    assert coordinator.join() >= 1
    assert second.is_ready


def test_values_are_arguments(coordinator):
    """A2 #26: TensorFlow refuses them."""
    one = coordinator.schedule(abs, (-1,))
    total = coordinator.schedule(
        lambda items, more: sum(items) + more["last"], ([one, one, 3],), {"more": {"last": one}}
    )
    for _ in range(300):
        one = coordinator.schedule(lambda n: n + 1, (one,))
    assert total.fetch() == 6
    assert one.fetch() == 301
    assert coordinator.join() == 302


class Box:
    def __init__(self, content: Any) -> None:
        self.content = content


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            (Box(closures.RemoteValue(threading.Condition(), "f")),),
            "A RemoteValue can be an argument of Coordinator.schedule",
        ),
        ((threading.Lock(),), r"create the lock inside the function"),
    ],
)
def test_an_argument_that_cannot_travel_is_named(coordinator, args, message):
    """A2 #26. The others that were sent with it are not concerned."""
    others = [coordinator.schedule(abs, (-1,)) for _ in range(5)]
    bad = coordinator.schedule(abs, args)
    with pytest.raises(errors.ClosureFailures) as caught:
        coordinator.join()
    assert len(caught.value.exceptions) == 1
    with pytest.raises(TypeError, match=message):
        bad.fetch()
    assert [value.fetch() for value in others if value._error is None] == [1] * len([v for v in others if not v._error])
    coordinator.schedule(abs, (-1,))
    assert coordinator.join() >= 1


class Unreadable:
    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise ZeroDivisionError("cannot be read")


def test_a_result_that_cannot_travel_is_named(coordinator):
    """The others that came back with it are not concerned."""
    good = coordinator.schedule(lambda: [Box(1), {2}])
    bad = coordinator.schedule(threading.Lock)
    with pytest.raises(TypeError, match=r"(?s)return value of .*lock"):
        bad.fetch()
    assert [good.fetch()[0].content, good.fetch()[1]] == [1, {2}]
    with pytest.raises(errors.ClosureFailures):
        coordinator.join()
    unreadable = coordinator.schedule(Unreadable)
    with pytest.raises(
        errors.ClosureError, match=r"The result or error of Unreadable cannot be read here: .*cannot be read"
    ):
        unreadable.fetch()
    with pytest.raises(errors.ClosureFailures):
        coordinator.join()
    assert "cannot be read" in str(join_failing(coordinator, abs, (Unreadable(),)))
    ref = coordinator.schedule(lambda: [hocket.put(5)]).fetch()[0]
    assert hocket.get(ref) == 5
    coordinator.join()


def test_a_function_that_cannot_travel_is_named(coordinator):
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"create the lock inside the function"):
        coordinator.schedule(lambda: lock)
    dataset = coordinator.create_per_worker_dataset([1])
    with pytest.raises(TypeError, match=r"A per-worker dataset stays in the coordinator"):
        coordinator.schedule(lambda: iter(dataset))
    with pytest.raises(TypeError, match=r"A Coordinator stays in the process that made it"):
        coordinator.schedule(coordinator.join)
    with pytest.raises(TypeError, match=r"takes a function, and its arguments in args=\(\.\.\.\), but received 5"):
        coordinator.schedule(5)
    with pytest.raises(TypeError, match=r"args must be a tuple of arguments, but received 5\. Write args=\(5,\)"):
        coordinator.schedule(abs, 5)
    assert coordinator.done()


def test_a_function_with_a_state_is_read_anew(coordinator):
    class Adder:
        amount = 1

        def __call__(self, n: int) -> int:
            return n + self.amount

        def add(self, n: int) -> int:
            return n + self.amount

    adder = Adder()
    first = coordinator.schedule(adder, (1,)), coordinator.schedule(adder.add, (1,))
    adder.amount = 10
    second = coordinator.schedule(adder, (1,)), coordinator.schedule(adder.add, (1,))
    assert coordinator.fetch([first, second]) == [(2, 2), (11, 11)]
    coordinator.join()


def test_nothing_is_kept_of_what_nobody_holds(coordinator):
    """A2 #27: memory does not grow with closures, functions or results."""

    def run(count: int) -> int:
        for n in range(count):
            coordinator.schedule(lambda n=n: bytes(100))
        coordinator.join()
        gc.collect()
        return psutil.Process().memory_info().rss

    run(1000)
    before = run(1000)
    few = 8 << 20 if ENGINE == "local" else 40 << 20  # Ray's driver takes some KB for each function, and keeps them
    assert run(2000) - before < few
    scheduler = coordinator._scheduler
    assert not scheduler._open
    assert not scheduler._blocked
    assert len(scheduler._queue) == 0
    assert len(coordinator._functions) <= 2
    assert all(len(one._process.known) <= dispatcher.MAX_FUNCTIONS for one in coordinator._workers.dispatchers.values())


# -- errors -----------------------------------------------------------------------------------------------------------


class CustomError(Exception):
    pass


def fail(number: int) -> None:
    raise CustomError(f"number {number}")


def fail_when(files: Files, name: str) -> None:
    files.wait_for(name)
    raise CustomError(name)


def test_all_errors_are_raised_once(coordinator):
    """A2 #20: TensorFlow raises one of them."""
    bad = [coordinator.schedule(fail, (n,)) for n in range(2)]
    with pytest.raises(errors.ClosureFailures) as caught:
        coordinator.join()
    assert {str(error).splitlines()[-1].partition(": ")[2] or str(error) for error in caught.value.exceptions}
    assert all(isinstance(error, CustomError) for error in caught.value.exceptions)
    assert 1 <= len(caught.value.exceptions) <= 2
    assert coordinator.done()
    with pytest.raises((CustomError, errors.CancelledClosureError)):
        bad[1].fetch()
    with pytest.raises(CustomError, match="number 0"):
        bad[0].fetch()
    assert coordinator.schedule(abs, (-3,)).fetch() == 3
    assert coordinator.join() == 1


def stop_with(kind: type[BaseException]) -> None:
    raise kind("enough")


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_closure_that_would_end_its_process_fails_and_its_worker_lives(coordinator, kind: type[BaseException]):
    (error,) = join_failing(coordinator, stop_with, (kind,))
    assert isinstance(error, exceptions.TaskError)
    assert "enough" in str(error)
    assert not isinstance(error, kind)
    assert coordinator.schedule(abs, (-3,)).fetch() == 3
    assert coordinator.statistics()["recoverable_worker_failure_count"] == 0


@pytest.mark.needs("parallelism")
def test_after_an_error_nothing_runs(coordinator, files: Files):
    """A2 #21, #22: what runs is waited for, what waits is cancelled, and nothing of it comes later."""
    held = coordinator.schedule(files.wait_for, ("go",))
    files.wait_until(lambda: coordinator.statistics()["inflight_closures"] == 1)
    bad = coordinator.schedule(fail_when, (files, "fail"))
    values = [coordinator.schedule(files.append, ("log", n)) for n in range(1000)]
    dependent = coordinator.schedule(abs, (values[-1],))
    files.write("fail")
    with pytest.raises(CustomError):
        bad.fetch()
    assert not coordinator.done()
    files.write("go")
    with pytest.raises(errors.ClosureFailures):
        coordinator.schedule(files.append, ("log", -1))
    assert held.fetch() is None
    assert coordinator.statistics()["inflight_closures"] == coordinator.statistics()["queued_closures"] == 0
    ran = files.read("log")
    assert len(ran) < 1000
    for late in (values[-1], dependent):
        with pytest.raises(
            errors.CancelledClosureError, match=r"did not run, because another closure failed before it"
        ):
            late.fetch()
    assert coordinator.fetch([coordinator.schedule(abs, (-n,)) for n in range(5)]) == list(range(5))
    coordinator.join()
    assert files.read("log") == ran
    assert isinstance(join_failing(coordinator, abs, (bad,))[0], CustomError)  # it needs a value that is an error


def test_two_threads_wait_and_one_is_told(coordinator, files: Files):
    """A2 #20, #22."""
    coordinator.schedule(files.wait_for, ("go",))
    told: list[Any] = []

    def join() -> None:
        try:
            told.append(coordinator.join())
        except errors.ClosureFailures as error:
            told.append(error)

    threads = [threading.Thread(target=join) for _ in range(3)]
    coordinator.schedule(fail, (1,))
    for thread in threads:
        thread.start()
    files.write("go")
    for thread in threads:
        thread.join()
    assert sum(isinstance(one, errors.ClosureFailures) for one in told) == 1


def test_an_error_that_cannot_travel_is_replaced(coordinator):
    def explode() -> None:
        error = ValueError("has a lock")
        error.lock = threading.Lock()  # type: ignore[attr-defined]
        raise error

    assert "has a lock" in str(join_failing(coordinator, explode)[0])


def test_what_makes_no_sense_in_a_closure_is_refused(coordinator):
    (error,) = join_failing(coordinator, _schedule_in_closure)
    assert isinstance(error, RuntimeError)
    assert "Coordinator.schedule was called in a closure, which would wait for itself" in str(error)
    with pytest.raises(RuntimeError, match=r"get_current_worker_index\(\) was called outside a closure"):
        ps.get_current_worker_index()
    with pytest.raises(NotImplementedError, match=r"Call next\(iterator\) in the function that you schedule"):
        next(iter(coordinator.create_per_worker_dataset([1])))
    with pytest.raises(TypeError, match=r"but received 4 as keywords\. Write args=\(3, 4\)"):
        coordinator.schedule(pow, 3, 4)
    with pytest.raises(TypeError, match=r"Write args=\(3, 4, 5\)"):
        coordinator.schedule(pow, (3, 4), 5)
    assert "no strategy is in scope" in str(join_failing(coordinator, lambda: ps.Variable(1))[0])


def _schedule_in_closure() -> None:
    ps.Coordinator.schedule(object.__new__(ps.Coordinator), abs)


# -- looking ----------------------------------------------------------------------------------------------------------


def test_statistics(coordinator):
    """A5 #71."""
    before = coordinator.statistics()
    coordinator.fetch([coordinator.schedule(abs, (1,)) for _ in range(10)])
    after = coordinator.statistics()
    assert after["scheduled_closures"] - before["scheduled_closures"] == 10
    assert after["finished_closures"] - before["finished_closures"] == 10
    assert after["queued_closures"] == after["inflight_closures"] == 0
    assert after["recoverable_worker_failure_count"] == 0
    assert after["closure_execution_seconds"] > before["closure_execution_seconds"]


@pytest.mark.about_local("its processes, which share memory instead of sockets")
def test_no_role_has_a_socket_to_another(coordinator, shared_strategy):
    """A1 #7: TensorFlow's roles are filtered; here they have no connection at all."""

    for pid in (*coordinator.get_worker_pids().values(), *shared_strategy.get_server_pids()):
        assert psutil.Process(pid).net_connections(kind="inet") == []
