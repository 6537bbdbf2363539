"""What workers have of their own: datasets and values. Numbers: docs/ps.md."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

from hocket import ps
from hocket.ps import errors
from hocket.testing.suites.programs import wait_until
from tests.ps.conftest import Files


def draw(stream: Any) -> Any:
    return next(stream)


def test_each_worker_has_its_own_stream(coordinator):
    """A3 #30, #35, #41: the context's numbers are true."""

    def make(context: ps.InputContext) -> Any:
        assert ps.get_current_worker_index() == context.input_pipeline_id
        return ((context.num_input_pipelines, context.input_pipeline_id, n) for n in range(1000))

    stream = iter(coordinator.create_per_worker_dataset(make))
    items = coordinator.fetch(
        [coordinator.schedule(lambda: (ps.get_current_worker_index(), next(stream))) for _ in range(40)]
    )
    for worker in (0, 1):
        mine = [item for index, item in items if index == worker]
        assert mine == [(2, worker, n) for n in range(len(mine))]
    without = iter(coordinator.create_per_worker_dataset(lambda: iter("abc")))
    assert coordinator.schedule(draw, (without,)).fetch() == "a"


@pytest.mark.needs("parallelism")
def test_dealt_items_go_to_who_is_free(coordinator, files: Files):
    """A3 #32, #33: each item once, and the end of the data is no error."""
    stream = iter(coordinator.create_per_worker_dataset(range(50)))
    values = [coordinator.schedule(draw, (stream,)) for _ in range(60)]
    assert coordinator.join() == 50
    got = []
    for value in values:
        try:
            got.append(value.fetch())
        except errors.OutOfDataError as error:
            assert "no worker has items left in its dataset. Begin another pass: iterator = iter(dataset)" in str(error)  # noqa: PT017
    assert sorted(got) == list(range(50))
    assert coordinator.statistics()["out_of_data"] >= 10
    late = coordinator.schedule(draw, (stream,))
    dependent = coordinator.schedule(abs, (late,))
    assert coordinator.join() == 0
    with pytest.raises(errors.OutOfDataError):
        dependent.fetch()


def test_a_pass_after_a_pass(coordinator):
    """A3 #32. Workers let go of a pass that nobody holds."""
    dataset = coordinator.create_per_worker_dataset(np.arange(8))
    stream = iter(dataset)
    for _ in range(20):
        stream = iter(dataset)
        assert sorted(coordinator.fetch([coordinator.schedule(draw, (stream,)) for _ in range(8)])) == list(range(8))
    del stream

    def have_let_go() -> bool:  # each worker hears of it with its next closures, and one may get none
        coordinator.fetch([coordinator.schedule(abs, (1,)) for _ in range(4)])
        return all(len(one._process.opened) <= 1 for one in coordinator._workers.dispatchers.values())

    wait_until(have_let_go)
    assert len(coordinator._scheduler.inputs.sources) <= 1


def test_a_closure_that_finds_too_few_puts_them_back(coordinator):
    """A3 #32."""
    stream = iter(coordinator.create_per_worker_dataset(lambda: range(3)))
    two = [coordinator.schedule(lambda: [next(stream), next(stream)]) for _ in range(6)]
    coordinator.join()
    found = [value.fetch() for value in two if value._error is None]
    assert found == [[0, 1]] * 2  # each worker has three
    assert coordinator.statistics()["out_of_data"] >= 4

    def push_first(variable: Any) -> None:
        variable.assign_add(1)
        for _ in range(4):
            next(fresh)

    with coordinator.strategy.scope():
        variable = ps.Variable(0)
    fresh = iter(coordinator.create_per_worker_dataset(lambda: range(3)))
    value = coordinator.schedule(push_first, (variable,))
    with pytest.raises(
        errors.OutOfDataError,
        match=r"ran out of data on worker \d after it had pushed 1 times\. Call next\(iterator\) before the first push",
    ):
        value.fetch()
    with pytest.raises(errors.ClosureFailures):
        coordinator.join()


def test_items_that_were_put_back_are_drawn_by_closures_that_need_less(coordinator):
    stream = iter(coordinator.create_per_worker_dataset([1, 2, 3, 4, 5]))
    two = [coordinator.schedule(lambda: [next(stream), next(stream)]) for _ in range(4)]
    assert coordinator.join() == 2
    one = [coordinator.schedule(draw, (stream,)) for _ in range(2)]
    assert coordinator.join() == 1
    found = [value.fetch() for value in two if value._error is None]
    assert sorted(sum(found, [value.fetch() for value in one if value._error is None])) == [1, 2, 3, 4, 5]


@pytest.mark.needs("parallelism")
def test_items_that_two_workers_have_put_back_go_to_a_closure_that_needs_both(coordinator, files: Files):
    stream = iter(coordinator.create_per_worker_dataset(range(6)))

    def draw_many(count: int) -> list[Any]:
        drawn = [next(stream)]
        files.wait_for_others("here", 2)  # each worker has an item, and lacks one
        return drawn + [next(stream) for _ in range(count - 1)]

    many = [coordinator.schedule(draw_many, (7,)) for _ in range(2)]
    coordinator.join()
    assert all(isinstance(value._error, errors.OutOfDataError) for value in many)
    six = coordinator.schedule(lambda: [next(stream) for _ in range(6)])
    assert coordinator.join() == 1
    assert sorted(six.fetch()) == list(range(6))


@pytest.mark.needs("parallelism")
def test_what_a_removed_worker_put_back_is_in_checkpoints_and_goes_to_others(coordinator, files: Files):
    added = coordinator.add_workers(1)[0]
    stream = iter(coordinator.create_per_worker_dataset(range(7)))

    def draw_many() -> list[Any]:
        index = files.wait_for_others("here", 3)
        return [next(stream) for _ in range(8)] if index == added else [next(stream)]

    for _ in range(3):
        coordinator.schedule(draw_many)
    coordinator.join()
    coordinator.remove_worker(added)
    kept = coordinator._scheduler.describe()["passes"][-1]
    drawn = [coordinator.schedule(draw, (stream,)) for _ in range(8)]
    assert coordinator.join() == len(kept["left"])
    assert sorted(value.fetch() for value in drawn if value._error is None) == kept["left"]
    assert len(kept["left"]) >= 4  # the others drew one each at most, and the added one all that was there
    assert coordinator._scheduler.describe()["passes"][-1]["left"] == []


def test_closures_that_draw_from_two_streams_end_where_no_worker_has_both(coordinator):
    first = iter(coordinator.create_per_worker_dataset(lambda context: iter(range(context.input_pipeline_id))))
    second = iter(coordinator.create_per_worker_dataset(lambda context: iter(range(1 - context.input_pipeline_id))))
    both = coordinator.schedule(lambda: (next(first), next(second)))
    assert coordinator.join(timeout=60) == 0
    with pytest.raises(errors.OutOfDataError, match="no worker has items left in its dataset"):
        both.fetch()


def test_data_in_a_generator_of_a_closure(coordinator):
    """Python makes a RuntimeError of a StopIteration in a generator; the end of the data stays the end of the data."""
    stream = iter(coordinator.create_per_worker_dataset(range(2)))
    values = [coordinator.schedule(lambda: list(next(stream) for _ in range(1))) for _ in range(5)]  # noqa: C400
    assert coordinator.join() == 2
    assert sorted(value.fetch() for value in values if value._error is None) == [[0], [1]]


def test_what_is_refused(coordinator):
    """A3 #31, #36."""
    dataset = coordinator.create_per_worker_dataset([1, 2])
    with pytest.raises(NotImplementedError, match=r"each worker draws from its own part\. Call next\(iterator\)"):
        next(iter(dataset))
    with pytest.raises(TypeError, match=r"Write: iterator = iter\(dataset\)"):
        next(dataset)
    for given in (5, iter([1]), {"a": 1}):
        with pytest.raises(
            TypeError,
            match=r"must be a function that returns something to iterate over, or a sequence, but received",
        ):
            coordinator.create_per_worker_dataset(given)
    with pytest.raises(TypeError, match=r"takes a function that makes the value, but received 5\. Write lambda: 5"):
        coordinator.per_worker(5)
    with pytest.raises(RuntimeError, match=r"PerWorkerValue\.value was called outside a closure"):
        coordinator.per_worker(dict).value  # noqa: B018
    variables = iter(coordinator.create_per_worker_dataset(lambda: [ps.Variable(1)]))
    with pytest.raises(RuntimeError, match=r"no strategy is in scope"):
        coordinator.schedule(draw, (variables,)).fetch()
    with pytest.raises(errors.ClosureFailures):
        coordinator.join()
    stream = iter(dataset)
    hidden = coordinator.schedule(lambda box: next(box.stream), (Hidden(stream),))
    with pytest.raises(ValueError, match=r"hidden inside another object\. Pass it as an argument"):
        hidden.fetch()
    with pytest.raises(errors.ClosureFailures):
        coordinator.join()


class Hidden:
    def __init__(self, stream: Any) -> None:
        self.stream = stream


def test_values_of_each_worker(coordinator):
    """A3 #36, #37, #38."""
    made = coordinator.per_worker(lambda: {"worker": ps.get_current_worker_index(), "count": 0})
    assert coordinator.read_all(made) == [{"worker": 0, "count": 0}, {"worker": 1, "count": 0}]

    def count(own: dict[str, int]) -> Any:
        own["count"] += 1
        assert made.value is own
        return own["count"]

    coordinator.fetch([coordinator.schedule(count, (made,)) for _ in range(30)])
    assert sum(own["count"] for own in coordinator.read_all(made)) == 30
    bad = coordinator.per_worker(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        coordinator.read_all(bad)
    coordinator.schedule(count, (bad,))
    with pytest.raises(errors.ClosureFailures) as caught:
        coordinator.join()
    assert isinstance(caught.value.exceptions[0], ZeroDivisionError)


@pytest.mark.needs("processes")
@pytest.mark.needs("parallelism")
def test_streams_go_on_and_values_begin_anew(coordinator):
    """A3 #34, #37, #39: what a worker had is there before its successor runs anything."""
    stream = iter(
        coordinator.create_per_worker_dataset(lambda context: (context.input_pipeline_id * 100 + n for n in range(100)))
    )
    value = coordinator.per_worker(list)

    def step(own: list[int]) -> int:
        own.append(next(stream))
        return own[-1]

    first = coordinator.fetch([coordinator.schedule(step, (value,)) for _ in range(20)])
    for pid in coordinator.get_worker_pids().values():
        os.kill(pid, signal.SIGKILL)
    added = coordinator.add_workers(1)
    second = coordinator.fetch([coordinator.schedule(step, (value,)) for _ in range(20)])
    coordinator.remove_worker(added[0])
    for worker in (0, 1):
        mine = [item for item in first + second if item // 100 == worker]
        assert mine == [worker * 100 + n for n in range(len(mine))]
    assert coordinator.statistics()["recoverable_worker_failure_count"] >= 1
    assert sum(len(own) for own in coordinator.read_all(value)) <= 20
