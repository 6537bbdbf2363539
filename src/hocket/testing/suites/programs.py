"""Functions and actors that the suites run, and helpers for waiting."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from hocket import exceptions
from hocket.core import actor, api, session
from hocket.engine import contract

CPUS = 2
"""The number of CPUs in the session of each test."""


def square(x: int) -> int:
    return x * x


def make_text(size: int) -> str:
    return "ä" * (size // 2)


def make_dict(size: int) -> dict[int, bytes]:
    return dict.fromkeys(range(size // 100_000), b"x") | {-1: bytes(size)}


def make_list(size: int) -> list[int]:
    return list(range(size // 10))


def list_named_actors() -> list[tuple[str, str]]:
    return sorted(session.get_engine().actors.list_named_actors())


def count(amount: float) -> None:
    session.get_engine().metrics.record((("counter", "tests", "", (), (), (amount,)),))


class Counter:
    def __init__(self, start: int = 0) -> None:
        self.value = start

    def add(self, amount: int = 1) -> int:
        self.value += amount
        return self.value

    def reset(self, value: int) -> None:
        self.value = value

    def get_value(self) -> int:
        return self.value

    def fail(self) -> None:
        raise KeyError("missing")

    def get_pid(self) -> int:
        return os.getpid()


class AsyncGate:
    def __init__(self) -> None:
        self.event = asyncio.Event()

    async def wait(self) -> str:
        await self.event.wait()
        return "through"

    async def open(self) -> None:
        self.event.set()

    async def wait_again(self) -> str:
        self.event.clear()
        return await self.wait()

    async def count(self) -> int:
        return 1

    async def fail_when_open(self) -> None:
        await self.event.wait()
        raise KeyError("opened")


class Sleeper:
    """An asynchronous actor with calls that wait for a time, for a thread and for each other."""

    async def sleep(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async def work_in_thread(self, x: int) -> int:
        return await asyncio.to_thread(square, x)

    async def add_up(self, other: Any, n: int) -> float:
        total: float = sum(await asyncio.gather(*[other.sleep.remote(0.01) for _ in range(n)]))
        return total


class GroupedGate:
    """A gate that is opened in a concurrency group of its own, while other calls wait."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def wait(self) -> str:
        self.event.wait()
        return "through"

    @actor.method(concurrency_group="io")
    def open(self) -> None:
        self.event.set()


class Recorder:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> list[str]:
        self.notes.append(text)
        return list(self.notes)


def wait_until(is_done: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Wait until a condition holds; fail after `limit_s` seconds. For events without a reference to wait for."""
    deadline = time.monotonic() + limit_s
    while not is_done():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def call_often(method: Any) -> None:
    """Call an actor's method without arguments, so often that the worker calls the actor directly from then on."""
    for _ in range(8):
        api.get(method.remote())


def try_add(counter: Any) -> int | None:
    try:
        return int(api.get(counter.add.remote()))
    except exceptions.ActorUnavailableError:
        return None


def is_dead(counter: Any) -> bool:
    try:
        api.get(counter.get_value.remote())
    except exceptions.ActorDiedError:
        return True
    return False


def note_and_end_some(file: str, number: int, every: int) -> int:
    """Note the run in a file. End the process if the run's number is one less than a multiple of `every`."""
    with open(file, "ab", buffering=0) as trace:
        trace.write(b"%d\n" % number)
    if number % every == every - 1:
        os._exit(3)
    return number


def split_outcomes(refs: Sequence[contract.AnyRef], kind: type[Exception]) -> tuple[list[int], list[object]]:
    """Return the indices of references that failed with an error of this kind, and the values of the others."""
    failed, values = [], []
    for place, ref in enumerate(refs):
        try:
            values.append(api.get(ref))
        except kind:
            failed.append(place)
    return failed, values


def get_pid() -> int:
    return os.getpid()


class Gate:
    def __init__(self) -> None:
        self.event = threading.Event()

    def wait(self) -> str:
        assert self.event.wait(60)
        return "open"

    def wait_for(self, value: int) -> int:
        assert self.event.wait(60)
        return value

    def open(self) -> None:
        self.event.set()


def pass_on(value: object) -> object:
    return value
