"""What only the in-process engine does: turning coroutines, and telling when nothing can."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import ps
from hocket.engine.inprocess import base
from hocket.util.multiprocessing import Pool


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
    with pytest.raises(hocket.exceptions.DeadlockError, match="Only 0 of 1 objects can ever be ready"):
        hocket.wait([waiting])


def test_time_out_that_is_over_is_not_waited_for() -> None:
    with pytest.raises(hocket.exceptions.DeadlockError, match="1 objects can never be made"):
        hocket.get(Sleeper.remote().wait_at_most.remote(3600))


def test_coroutine_that_blocks_its_own_loop_is_a_deadlock() -> None:
    sleeper, other = Sleeper.remote(), Sleeper.remote()
    assert hocket.get(sleeper.block_on.remote(other)) == 0.01
    with pytest.raises(hocket.exceptions.DeadlockError, match="1 objects can never be made"):
        hocket.get(sleeper.block_on.remote(sleeper))


# -- other threads ----------------------------------------------------------------------------------------------------


_calls: list[Callable[[], Any]] = []


def run_first() -> Any:
    """Stands in tasks for what cannot travel."""
    return _calls[0]()


@hocket.remote
def negate(x: int) -> int:
    return -x


@hocket.remote
class Adder:
    def __init__(self) -> None:
        self.total = 0

    def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    def hold(self) -> int:
        run_first()
        return self.total


def use_put() -> Any:
    return hocket.get(hocket.put(5))


def use_task() -> Any:
    return hocket.get(negate.remote(-5))


def use_actor() -> Any:
    adder: Any = Adder
    return hocket.get(adder.remote().add.remote(5))


def use_wait() -> Any:
    ready, _ = hocket.wait([negate.remote(-5)])
    return hocket.get(ready[0])


def use_nested() -> Any:
    return hocket.get(hocket.remote(lambda: wait_by_join(use_task)).remote())


def wait_by_join(use: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(use()))
    thread.start()
    thread.join()
    return found[0]


def wait_by_executor(use: Callable[[], Any]) -> Any:
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        return set(executor.map(lambda _: use(), range(4))).pop()


def wait_by_event(use: Callable[[], Any]) -> Any:
    found: list[Any] = []
    event = threading.Event()

    def work() -> None:
        found.append(use())
        event.set()

    threading.Thread(target=work).start()
    event.wait()
    return found[0]


def wait_by_queue(use: Callable[[], Any]) -> Any:
    found: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=lambda: found.put(use())).start()
    return found.get()


def wait_by_simple_queue(use: Callable[[], Any]) -> Any:
    """In C: no frame says that it waits."""
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=lambda: found.put(use())).start()
    return found.get()


def wait_by_sleeping(use: Callable[[], Any]) -> Any:
    found: list[Any] = []
    threading.Thread(target=lambda: found.append(use())).start()
    while not found:
        time.sleep(0.001)
    return found[0]


def wait_by_loop(use: Callable[[], Any]) -> Any:
    async def wait() -> Any:
        return await asyncio.to_thread(use)

    return asyncio.run(wait())


@pytest.mark.parametrize("use", [use_put, use_task, use_actor, use_wait, use_nested])
@pytest.mark.parametrize(
    "wait",
    [
        wait_by_join,
        wait_by_executor,
        wait_by_event,
        wait_by_queue,
        wait_by_simple_queue,
        wait_by_sleeping,
        wait_by_loop,
    ],
)
def test_a_task_may_wait_for_a_thread_that_uses_the_engine(
    monkeypatch: pytest.MonkeyPatch, wait: Callable[[Any], Any], use: Callable[[], Any]
) -> None:
    monkeypatch.setattr(base, "STILL_SECONDS", 0.03)
    assert hocket.get(hocket.remote(lambda: wait(use)).remote()) == 5
    assert hocket.get(negate.remote(1)) == -1
    assert hocket.available_resources() == hocket.cluster_resources()


def test_a_task_may_use_a_coordinator_and_a_pool() -> None:
    @hocket.remote
    def use_servers() -> float:
        strategy = ps.ParameterServerStrategy(ps.Cluster(workers=2, servers=1))
        coordinator = ps.Coordinator(strategy)
        with strategy.scope():
            variable = ps.Variable(np.zeros(3))
        for _ in range(5):
            coordinator.schedule(lambda: variable.assign_add(np.ones(3)))
        coordinator.join()
        found = float(np.asarray(variable)[0])
        coordinator.close()
        strategy.close()
        return found

    @hocket.remote
    def use_pool() -> list[int]:
        with Pool(2) as pool:
            return [*pool.imap(abs, [-1, 2]), *pool.map_async(abs, [-3]).get(20)]

    assert hocket.get(use_servers.remote()) == 5
    assert hocket.get(use_pool.remote()) == [1, 2, 3]


def test_a_fork_of_a_thread_that_was_lent_the_lock_has_it() -> None:
    """In it there are no other threads, and one of them had the lock, or was about to take it."""

    def fork() -> int:
        hocket.get(hocket.put(1))
        pid = os.fork()
        if pid == 0:
            os._exit(42 if hocket.get(hocket.put(5)) == 5 else 1)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    _calls[:] = [lambda: wait_by_join(fork)]
    assert hocket.get(hocket.remote(run_first).remote()) == 42
    _calls[:] = [lambda: (wait_by_join(use_put), fork())]
    assert hocket.get(hocket.remote(run_first).remote())[1] == 42


def test_tasks_of_threads_that_do_not_wait_run_one_at_a_time() -> None:
    running, most = [0], [0]

    def work() -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        sum(range(20_000))
        running[0] -= 1

    _calls[:] = [work]
    run_in_turn = hocket.remote(run_first)
    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        list(executor.map(lambda _: hocket.get(run_in_turn.remote()), range(40)))
    assert most == [1]


def test_a_thread_waits_for_an_actor_that_is_busy_in_another_one() -> None:
    event = threading.Event()
    begun = threading.Event()

    def begin() -> None:
        begun.set()
        event.wait()

    _calls[:] = [begin]
    kind: Any = Adder
    adder = kind.remote()
    holder = threading.Thread(target=lambda: hocket.get(adder.hold.remote()))
    holder.start()
    threading.Timer(0.1, event.set).start()
    assert begun.wait(20)
    assert hocket.get(adder.add.remote(3)) == 3
    assert event.is_set()
    holder.join()


def test_a_wait_that_tasks_of_other_threads_cannot_end_is_a_deadlock() -> None:
    barrier = threading.Barrier(2)
    _calls[:] = [barrier.wait]
    never = Sleeper.remote().wait.remote()

    @hocket.remote
    def wait(refs: list[Any]) -> Any:
        run_first()
        return hocket.get(refs[0])

    found: list[str] = []

    def call() -> None:
        with pytest.raises(hocket.exceptions.DeadlockError) as caught:
            hocket.get(wait.remote([never]))
        found.append(str(caught.value))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == 2
    assert all("1 objects can never be made" in text for text in found)


class Unnamed:
    """Lets nobody ask for its class."""

    @property  # type: ignore[misc]  # any object may have one
    def __class__(self) -> Any:
        raise ValueError("no class")


def test_an_object_whose_class_cannot_be_asked_for_is_named() -> None:
    sends: list[Any] = [hocket.put, negate.remote]
    for send in sends:
        with pytest.raises(hocket.exceptions.SerializationError, match=r"to another process: ValueError: no class"):
            send(Unnamed())
