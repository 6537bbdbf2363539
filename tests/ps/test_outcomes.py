"""Each closure has its own outcome, and runs once, whatever it raises and whatever was sent with it."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from hocket import exceptions, ps
from hocket.ps import errors
from tests.ps.conftest import Files


class Unreadable:
    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise ZeroDivisionError("cannot be read")


class StopError(BaseException):
    """A base of its own, as asyncio's CancelledError and GeneratorExit have: `except Exception` lets it through."""


def count_and_stop(log: Files, counter: Any, number: int, kind: type[BaseException] | None) -> int:
    log.append("ran", number)
    counter.assign_add(1.0)
    if number == 7 and kind is not None:
        raise kind("enough")
    return number


def schedule_and_join(coordinator: ps.Coordinator, calls: list[Any], values: list[Any]) -> None:
    """Schedule calls of `count_and_stop`, and wait for them; `schedule` raises, too, if it is late."""
    values += (coordinator.schedule(count_and_stop, call) for call in calls)
    coordinator.join()


def _has_cause(error: BaseException | None, kind: type[BaseException]) -> bool:
    return isinstance(error, kind) or (isinstance(error, exceptions.TaskError) and type(error.cause) is kind)


@pytest.mark.parametrize(
    "kind",
    [StopError, BaseException, GeneratorExit, asyncio.CancelledError, SystemExit, KeyboardInterrupt, StopIteration],
)
def test_an_outcome_belongs_to_one_closure_whatever_it_raised(any_session, files: Files, kind: type[BaseException]):
    """Those that were sent with it are not run again: their pushes would count twice."""
    strategy = ps.ParameterServerStrategy(ps.Cluster(workers=1, servers=1))
    coordinator = ps.Coordinator(strategy)
    with strategy.scope():
        counter = ps.Variable(0.0)
    coordinator.fetch([coordinator.schedule(count_and_stop, (files, counter, -1, None)) for _ in range(10)])
    before = len(files.read("ran"))  # they are short now, and travel together
    values: list[Any] = []
    with pytest.raises(errors.ClosureFailures) as caught:
        schedule_and_join(coordinator, [(files, counter, number, kind) for number in range(30)], values)
    (error,) = caught.value.exceptions
    assert _has_cause(error, kind) or kind is KeyboardInterrupt
    assert "enough" in str(error)
    ran = files.read("ran")[before:]
    assert ran == [str(number) for number in range(len(ran))]
    assert float(np.asarray(counter)) == before + len(ran)
    assert [value.fetch() for value in values if value._error is None] == [n for n in range(len(ran)) if n != 7]
    coordinator.close()
    strategy.close()


def test_what_was_sent_with_an_argument_that_cannot_be_read_runs_once(any_session, files: Files):
    strategy = ps.ParameterServerStrategy(ps.Cluster(workers=1, servers=1))
    coordinator = ps.Coordinator(strategy)
    with strategy.scope():
        counter = ps.Variable(0.0)
    coordinator.fetch([coordinator.schedule(count_and_stop, (files, counter, -1, None)) for _ in range(10)])
    calls = [(files, counter, number, Unreadable() if number == 7 else None) for number in range(30)]
    with pytest.raises(errors.ClosureFailures):
        schedule_and_join(coordinator, calls, [])
    ran = files.read("ran")[10:]
    assert {str(number) for number in range(7)} <= set(ran)
    assert len(set(ran)) == len(ran)
    assert float(np.asarray(counter)) == 10 + len(ran)
    coordinator.close()
    strategy.close()
