"""What a table refuses, and how it says so. Nothing is changed by what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import ps
from hocket.ps.access import closure_context


@pytest.fixture(scope="module")
def strategy() -> Iterator[ps.ParameterServerStrategy]:
    with hocket.init(engine="inprocess"):
        made = ps.ParameterServerStrategy({"worker": 1, "server": 2}, optimizer=ps.SGD(lr=1.0))
        with made.scope():
            ps.Embedding(10, 2, name="table", initializer=ps.Zeros())
            ps.Embedding(None, 2, name="hashed", capacity=10, initializer=ps.Zeros())
        yield made
        made.close()


def _push(values: Any, ids: Any) -> Callable[[Any, ps.ParameterServerStrategy], object]:
    return lambda table, strategy: strategy.push([(ps.IndexedSlices(values, ids), table)])


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (
            lambda table, _: table.lookup([3, 10]),
            IndexError,
            r"`table` has the ids 0 to 9, but received 10\. For ids of any size",
        ),
        (lambda table, _: table.pull([-1]), IndexError, "has the ids 0 to 9, but received -1"),
        (lambda table, strategy: strategy.pull([table]), TypeError, r"the table `table`\. Write table\.pull\(ids\)"),
        (lambda table, _: table.lookup([0.5]), TypeError, "Ids of `table` are whole numbers, but received float64"),
        (lambda table, _: table.assign_rows([1, 1], np.ones((2, 2))), ValueError, "An id of `table` is given twice"),
        (
            lambda table, _: table.assign_rows([1], np.ones((1, 3))),
            ValueError,
            "could not be broadcast|cannot be broadcast",
        ),
        (_push(np.ones((2, 2)), [0, 10]), IndexError, "has the ids 0 to 9, but received 10"),
        (_push(np.ones((2, 3)), [0, 1]), ValueError, "must have rows of length 2, but received rows of length 3"),
        (_push(np.ones((2, 2)), [0]), ValueError, "needs a row for each id"),
        (
            lambda table, strategy: strategy.push([(np.ones((10, 2)), table)]),
            TypeError,
            r"must be IndexedSlices\(values, ids\)",
        ),
    ],
)
def test_what_a_table_is_asked_wrongly(
    strategy: ps.ParameterServerStrategy, use: Callable[[Any, Any], object], error: type[Exception], message: str
) -> None:
    table = strategy.variables["table"]
    with pytest.raises(error, match=message):
        use(table, strategy)
    assert strategy.snapshot()["table"].lookup(np.arange(10)).any() == np.False_
    assert strategy.version == 0


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ((0, 4), {}, r"must have 1 row or more, but received 0"),
        ((4, 0), {}, "dim must be 1 or more, but received 0"),
        ((None, 4), {}, r"but received None\. Write capacity=1_000_000"),
        ((4, 4), {"capacity": 9}, r"capacity and eviction are only for ps.Embedding\(None, 4, ...\)"),
        ((4, 4), {"initial_value": np.zeros((4, 3))}, r"must have the shape \(4, 4\), but received \(4, 3\)"),
        ((None, 4), {"capacity": 9, "initial_value": np.zeros((9, 4))}, "for tables whose ids are row numbers"),
        ((10, 3), {"name": "table"}, "A variable named 'table' already exists"),
        (
            (10, 3),
            {"name": "table", "exist_ok": True},
            "already exists as a table of 10 x 2 float32, but received a table of 10 x 3 float32",
        ),
    ],
)
def test_what_no_table_can_be(
    strategy: ps.ParameterServerStrategy, arguments: tuple[Any, Any], settings: dict[str, Any], message: str
) -> None:
    with strategy.scope(), pytest.raises(ValueError, match=message):
        ps.Embedding(*arguments, **settings)


def test_whole_numbers_are_no_rows(strategy: ps.ParameterServerStrategy) -> None:
    with strategy.scope(), pytest.raises(TypeError, match="rows are floats, but received dtype=int32"):
        ps.Embedding(4, 4, dtype="int32")


def test_a_table_that_is_there_is_given_again(strategy: ps.ParameterServerStrategy) -> None:
    with strategy.scope():
        again = ps.Embedding(10, 2, name="table", exist_ok=True)
    assert (again.rows, again.dim, again.servers) == (10, 2, (0, 1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"by": "colour"}, "must be 'age' or 'frequency', but received 'colour'"),
        ({"by": "age", "fraction": 0}, "must be more than 0 and at most 1, but received 0"),
    ],
)
def test_evictions_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ps.Eviction(**settings)


def test_rows_that_are_idle_are_given_up(strategy: ps.ParameterServerStrategy) -> None:
    with strategy.scope():
        table = ps.Embedding(None, 2, capacity=100, initializer=ps.Zeros())
    for one in (7, 8, 9):
        strategy.push([(ps.IndexedSlices(-np.ones((1, 2)), [one]), table)])
    assert table.evict(idle_updates=2) == 1
    assert table.lookup([7, 8, 9])[:, 0].tolist() == [0, 1, 1]
    fixed: Any = strategy.variables["table"]
    with pytest.raises(ValueError, match="has 10 rows in fixed places"):
        fixed.evict(1)
    with pytest.raises(ValueError, match="idle_updates must be a whole number from 0, but received -1"):
        table.evict(-1)


def test_a_stale_push_takes_a_smaller_step(strategy: ps.ParameterServerStrategy) -> None:
    del strategy  # for its session
    scaled = ps.ParameterServerStrategy({"worker": 2, "server": 1}, optimizer=ps.SGD(lr=1.0), scale_by_staleness=True)
    with scaled.scope():
        weight = ps.Variable(0.0)
    workers = [closure_context.ClosureContext(index, 2) for index in range(2)]
    for worker in workers:
        with closure_context.entered(worker):
            scaled.pull([weight])
    staleness = []
    for worker in workers:
        with closure_context.entered(worker):
            staleness.append(scaled.push([(-1.0, weight)]).staleness)
    assert staleness == [0, 1]
    assert weight.numpy() == 1.5  # one whole step, and half of one
    scaled.close()


def test_rows_are_written_in_the_shape_in_which_they_are_read(strategy: ps.ParameterServerStrategy) -> None:
    ids, values = np.array([[1, 2], [3, 4]]), np.arange(8.0).reshape(2, 2, 2)
    with strategy.scope():
        table = ps.Embedding(5, 2, initializer=ps.Zeros())
    table.assign_rows(ids, values)
    assert table.lookup(ids).tolist() == values.tolist()
    table.assign_rows(ids, values.reshape(4, 2) + 1)
    assert table.lookup(ids).tolist() == (values + 1).tolist()
    table.add_rows(ids, values)
    assert table.lookup(ids).tolist() == (2 * values + 1).tolist()
