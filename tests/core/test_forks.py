"""Forks of workers and drivers: the child is cut off from the session, and ends as a script does; the session does
not notice."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hocket
from tests.conftest import RunScript

pytestmark = [pytest.mark.slow, pytest.mark.needs("forks")]

CODES = {
    "return": 0,
    "raise": 1,
    "exit": 0,
    "exit 3": 3,
    "exit text": 1,
    "get": 1,
    "submit": 0,
    "put": 0,
    "future": 1,
    "thread": 0,
    "_exit 5": 5,
}
THREAD_SECONDS = 0.05


@hocket.remote
def one(x: int) -> int:
    return x


def end(how: str, box: list[Any]) -> Any:
    """Do in a child what the test is about."""
    match how.split():
        case ["raise"]:
            raise ValueError("raised in the child")
        case ["exit", *code]:
            sys.exit(None if not code else int(code[0]) if code[0].isdigit() else code[0])
        case ["_exit", code]:
            os._exit(int(code))
        case ["get"]:
            return hocket.get(box[0])
        case ["submit"]:
            return hocket.get(one.remote(5)) == 5
        case ["put"]:
            return hocket.get(hocket.put(5)) == 5
        case ["future"]:
            return box[0].future()
        case ["thread"]:
            threading.Thread(target=time.sleep, args=(THREAD_SECONDS,)).start()
    return "of the child"


def fork(how: str, box: list[Any]) -> Any:
    pid = os.fork()
    if pid == 0:
        return end(how, box)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Forker:
    def __init__(self, how: str = "", box: list[Any] | None = None) -> None:
        self.code = fork(how, box or []) if how else None

    def fork(self, how: str, box: list[Any]) -> Any:
        return fork(how, box)

    def get_code(self) -> Any:
        return self.code

    def fork_and_yield(self, how: str, box: list[Any]) -> Iterator[Any]:
        yield fork(how, box)


class AsyncForker:
    async def fork(self, how: str, box: list[Any]) -> Any:
        return fork(how, box)

    async def fork_and_yield(self, how: str, box: list[Any]) -> AsyncIterator[Any]:
        yield fork(how, box)

    async def fork_and_wait(self) -> Any:
        import asyncio

        pid = os.fork()
        await asyncio.sleep(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])  # noqa: ASYNC222 (the child ends at once)


def fork_in_task(how: str, box: list[Any]) -> Any:
    return hocket.remote(fork).remote(how, box)


def fork_in_actor(how: str, box: list[Any]) -> Any:
    return hocket.remote(Forker).remote().fork.remote(how, box)


def fork_in_constructor(how: str, box: list[Any]) -> Any:
    return hocket.remote(Forker).remote(how, box).get_code.remote()


def fork_in_threaded_actor(how: str, box: list[Any]) -> Any:
    return hocket.remote(Forker).options(max_concurrency=3).remote().fork.remote(how, box)


def fork_in_async_actor(how: str, box: list[Any]) -> Any:
    return hocket.remote(AsyncForker).remote().fork.remote(how, box)


def fork_in_generator(how: str, box: list[Any]) -> Any:
    return next(hocket.remote(Forker).remote().fork_and_yield.options(num_returns="streaming").remote(how, box))


PLACES = [fork_in_task, fork_in_actor, fork_in_constructor, fork_in_threaded_actor, fork_in_async_actor]
Place = Callable[[str, list[Any]], Any]


@pytest.mark.parametrize("place", PLACES)
def test_child_ends_like_a_script(any_session: hocket.SessionContext, place: Place) -> None:
    box = [hocket.put("the parent's")]
    others = [one.remote(x) for x in range(40)]
    codes = {how: place(how, box) for how in CODES}
    others += [one.remote(x) for x in range(40)]
    assert {how: hocket.get(ref, timeout=30) for how, ref in codes.items()} == CODES
    assert hocket.get(others, timeout=30) == [*range(40)] * 2
    assert hocket.get(box) == ["the parent's"]


@pytest.mark.parametrize("how", ["raise", "exit 3", "return"])
@pytest.mark.parametrize("forker", [Forker, AsyncForker])
def test_child_of_a_generator_yields_nothing(any_session: hocket.SessionContext, forker: type, how: str) -> None:
    actor = hocket.remote(forker).remote()
    items = actor.fork_and_yield.options(num_returns="streaming").remote(how, [])
    assert [hocket.get(item, timeout=30) for item in items] == [{"raise": 1, "exit 3": 3, "return": 1}[how]]


def test_child_of_an_asynchronous_actor_may_not_wait(any_session: hocket.SessionContext) -> None:
    actor = hocket.remote(AsyncForker).remote()
    assert hocket.get([actor.fork_and_wait.remote() for _ in range(3)], timeout=30) == [1, 1, 1]


@pytest.mark.about_local("that results are not sent twice")
def test_children_of_tasks_do_not_harm_others(session: hocket.SessionContext) -> None:
    @hocket.remote
    def fork_and_go_on() -> int:
        pid = os.fork()
        if pid == 0:
            raise ValueError("raised in the child")
        return os.getpid()  # the child is still at it

    refs = [[fork_and_go_on.remote(), *[one.remote(x) for x in range(10)]] for _ in range(30)]
    for row in refs:
        assert hocket.get(row[1:], timeout=30) == [*range(10)]
        assert hocket.get(row[0], timeout=30) > 0


@pytest.mark.about_local("its pools and actors in processes of their own")
def test_multiprocessing_in_a_task(session: hocket.SessionContext) -> None:
    @hocket.remote
    def use() -> list[int]:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return pool.map(abs, range(-5, 0))

    assert hocket.get([use.remote() for _ in range(4)], timeout=30) == [[5, 4, 3, 2, 1]] * 4
    assert hocket.get([one.remote(x) for x in range(20)], timeout=30) == [*range(20)]


@pytest.mark.about_local("its sockets")
def test_child_has_none_of_the_sockets(session: hocket.SessionContext) -> None:
    @hocket.remote
    def count_sockets() -> tuple[int, str]:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            found = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.exists()]
            shared = [name for name in found if name.startswith(("socket:", "anon_inode:[eventpoll"))]
            os.write(write, repr(shared).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        return pid, os.read(read, 10_000).decode()

    assert hocket.get(count_sockets.remote(), timeout=30)[1] == "[]"


DRIVER = """
import os, signal, sys
import hocket

hocket.init(num_cpus=2)

@hocket.remote
def one(x):
    return x

class Counter:
    def one(self, x):
        return x

counter = hocket.remote(Counter).remote()
large = hocket.put(b"x" * 3_000_000)
handler = signal.getsignal(signal.SIGINT)
assert hocket.get([one.remote(1), counter.one.remote(2)]) == [1, 2]
waiting = [one.remote(x) for x in range(300)]
pids = []
for how in ("return", "get", "call", "raise", "exit", "init"):
    pid = os.fork()
    if pid == 0:
        assert not hocket.is_initialized()
        if how == "get":
            hocket.get(large)
        elif how == "call":
            large.future()
        elif how == "raise":
            raise ValueError
        elif how == "exit":
            sys.exit(3)
        elif how == "init":
            hocket.init(num_cpus=1)
            assert hocket.get(one.remote(5)) == 5
            hocket.shutdown()
        sys.exit()
    pids.append(pid)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])
print(hocket.get(waiting, timeout=30) == list(range(300)), hocket.get(counter.one.remote(3)), len(hocket.get(large)))
"""


@pytest.mark.about_local("its sockets")
@pytest.mark.slow
def test_fork_of_the_driver_has_no_session(start_script: RunScript) -> None:
    process = start_script(DRIVER)
    out, err = process.communicate(timeout=50)
    assert out == "[0, 1, 1, 1, 3, 0]\nTrue 3 3000000\n", err
    assert "is a fork of a process with a session" in err
    assert process.returncode == 0
