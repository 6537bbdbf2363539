"""When a task that waits lends its CPU to others, and when it does not: only while it really waits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

import hocket

pytestmark = pytest.mark.about_local("how many of its processes run at once")

Fetch = Callable[[list[Any]], object]


def _get(refs: list[Any]) -> object:
    return hocket.get(refs)


def _get_in_time(refs: list[Any]) -> object:
    return hocket.get(refs, timeout=30)


def _get_at_once(refs: list[Any]) -> object:
    return hocket.get(refs, timeout=0)


def _wait(refs: list[Any]) -> object:
    return hocket.wait(refs, num_returns=len(refs))


def _wait_for_one(refs: list[Any]) -> object:
    return hocket.wait(refs, num_returns=1, timeout=30)


def _poll_what_is_not_there(refs: list[Any]) -> object:
    pending = hocket.remote(time.sleep).options(num_cpus=0).remote(1)
    assert hocket.wait([pending], timeout=0) == ([], [pending])
    return refs


@pytest.mark.parametrize("fetch", [_get, _get_in_time, _get_at_once, _wait, _wait_for_one, _poll_what_is_not_there])
def test_tasks_that_ask_for_what_is_there_run_as_many_at_once_as_there_are_cpus(
    session: hocket.SessionContext, fetch: Fetch
) -> None:
    @hocket.remote
    def work(refs: list[Any]) -> int:
        fetch(refs)
        time.sleep(0.02)  # long enough for a task to take the place of this one, if its CPU were free
        return os.getpid()

    refs = [hocket.put(1), hocket.put(bytes(1 << 20))]
    pids = set(hocket.get([work.remote(refs) for _ in range(20)]))
    assert len(pids) <= 2, f"2 CPUs ran work in {len(pids)} processes"


def test_that_also_holds_while_the_driver_does_not_answer(session: hocket.SessionContext) -> None:
    """Whether it is a wait is decided by what is there, and not by how soon it comes."""

    @hocket.remote
    def work(refs: list[Any]) -> int:
        hocket.get(refs)
        return os.getpid()

    ref = hocket.put(1)
    hocket.get(work.remote([ref]))
    pending = [work.remote([ref]) for _ in range(20)]
    deadline = time.monotonic() + 0.1
    while time.monotonic() < deadline:  # holds the lock that the interpreter has for all threads
        sum(range(100_000))
    assert len(set(hocket.get(pending))) <= 2


def test_tasks_that_ask_for_a_failed_object_do_not_lend_either(session: hocket.SessionContext) -> None:
    @hocket.remote
    def fail() -> None:
        raise ValueError("no")

    @hocket.remote
    def work(refs: list[Any]) -> int:
        with pytest.raises(ValueError, match="no"):
            hocket.get(refs)
        time.sleep(0.02)
        return os.getpid()

    failed = fail.remote()
    hocket.wait([failed])
    assert len(set(hocket.get([work.remote([failed]) for _ in range(20)]))) <= 2


def test_who_really_waits_lends(session: hocket.SessionContext) -> None:
    """With one CPU each wait below could not end otherwise, whatever else it asks for is there."""

    @hocket.remote
    def child() -> int:
        return 1

    @hocket.remote(num_cpus=2)
    def parent(there: list[Any]) -> int:
        total = hocket.get([*there, child.remote()])[-1]
        ready, _ = hocket.wait([*there, child.remote()], num_returns=2)
        total += len(ready)
        return int(total + hocket.get(hocket.wait([child.remote()])[0])[0])

    @hocket.remote(num_cpus=2)
    def after_failure(there: list[Any]) -> int:
        return len(hocket.wait([*there, child.remote()], num_returns=2)[0])

    @hocket.remote
    def fail() -> None:
        raise ValueError("no")

    assert hocket.get(parent.remote([hocket.put(0)]), timeout=30) == 4
    failed = fail.remote()
    hocket.wait([failed])
    assert hocket.get(after_failure.remote([failed]), timeout=30) == 2
    assert hocket.available_resources()["CPU"] == 2
