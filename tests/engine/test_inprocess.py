"""What only the in-process engine does: turning coroutines, and telling when nothing can."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import hocket


@pytest.fixture(autouse=True)
def session_in_process() -> Iterator[None]:
    with hocket.init(num_cpus=1, engine="inprocess"):
        yield


class PlainSleeper:
    def __init__(self) -> None:
        self.event = asyncio.Event()

    async def sleep(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async def wait(self) -> None:
        await self.event.wait()

    async def wait_at_most(self, seconds: float) -> None:
        asyncio.get_running_loop().call_soon(self.event.set)
        await asyncio.wait_for(self.event.wait(), seconds)
        self.event.clear()
        await self.event.wait()

    async def open(self) -> None:
        self.event.set()

    async def block_on(self, other: Any) -> Any:
        return hocket.get(other.sleep.remote(0.01))


Sleeper: Any = hocket.remote(PlainSleeper)


def find_turner() -> threading.Thread | None:
    return next((thread for thread in threading.enumerate() if thread.name == "hocket-turner"), None)


def test_thread_lives_as_long_as_a_future_is_open() -> None:
    sleeper = Sleeper.remote()
    done, waiting = sleeper.sleep.remote(0).future(), sleeper.wait.remote().future()
    assert done.result() == 0
    thread = find_turner()
    assert thread is not None
    assert not waiting.done()
    hocket.get(sleeper.open.remote())
    assert waiting.result(20) is None
    thread.join(20)
    assert not thread.is_alive()


def test_end_of_the_session_ends_futures_and_their_thread() -> None:
    waiting = Sleeper.remote().wait.remote().future()
    assert find_turner() is not None
    hocket.shutdown()
    with pytest.raises(hocket.exceptions.HocketError):
        waiting.result(20)
    assert find_turner() is None


def test_what_only_the_caller_could_bring_is_a_deadlock() -> None:
    waiting = Sleeper.remote().wait.remote()
    with pytest.raises(hocket.exceptions.DeadlockError, match="1 objects can never be made"):
        hocket.get(waiting)
    with pytest.raises(hocket.exceptions.DeadlockError, match="Only 0 of 1 objects can ever be there"):
        hocket.wait([waiting])


def test_time_out_that_is_over_is_not_waited_for() -> None:
    with pytest.raises(hocket.exceptions.DeadlockError, match="1 objects can never be made"):
        hocket.get(Sleeper.remote().wait_at_most.remote(3600))


def test_coroutine_that_blocks_its_own_loop_is_a_deadlock() -> None:
    sleeper, other = Sleeper.remote(), Sleeper.remote()
    assert hocket.get(sleeper.block_on.remote(other)) == 0.01
    with pytest.raises(hocket.exceptions.DeadlockError, match="1 objects can never be made"):
        hocket.get(sleeper.block_on.remote(sleeper))
