"""A user's program, for type checkers: what is wrong is marked, and all else is right. It is never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar, assert_type

import hocket

T = TypeVar("T")


# -- functions --


@hocket.remote
def add(x: int, y: int = 2, *, label: str = "") -> float:
    return x + y


@hocket.remote(num_cpus=2, max_retries=0)
def name(number: int) -> str:
    return str(number)


@hocket.remote
def count(n: int) -> Iterator[int]:
    yield from range(n)


@hocket.remote(num_returns=2)
def split(word: str) -> tuple[str, str]:
    return word[:1], word[1:]


@hocket.remote
def same(value: T) -> T:
    return value


def untyped(a, b=1):  # type: ignore[no-untyped-def]
    return a


ref = add.remote(1)
assert_type(ref, "hocket.ObjectRef[float]")
assert_type(hocket.get(ref), float)
assert_type(hocket.get([ref, ref], timeout=3), list[float])
assert_type(hocket.get(name.remote(1)), str)
assert_type(hocket.put([1]), "hocket.ObjectRef[list[int]]")
assert_type(hocket.wait([ref]), "tuple[list[hocket.ObjectRef[float]], list[hocket.ObjectRef[float]]]")
assert_type(add.bare(1, 2), float)
add.remote(1, y=3, label="sum")
add.remote(hocket.put(1), 3)
add.remote(1, hocket.put(2), label="sum")
add.options(num_cpus=3).remote(4)
name.options(max_retries=3).remote(number=4)
for item in count.remote(3):
    assert_type(item, "hocket.ObjectRef[int]")
head, tail = split.remote("hocket")
one, two = add.options(num_returns=2).remote(1)
hocket.get(same.remote("x"))
hocket.get(hocket.remote(untyped).remote(1, b=2))
hocket.get(hocket.remote(abs).remote(-1))
hocket.get(hocket.remote(lambda: 1).remote())


async def wait_for_it() -> float:
    return await ref


add.remote("one")  # wrong
add.remote()  # wrong
add.remote(1, 2, 3)  # wrong
add.remote(1, lable="sum")  # wrong
add.options(num_cpus=3).remote("four")  # wrong
name.remote(3.5)  # wrong
count.remote("three")  # wrong
add(1)  # wrong
hocket.get(5)  # wrong
hocket.wait([3])  # wrong
hocket.get(name.remote(1)) + 1  # wrong
hocket.get(ref, timeout="1")  # wrong


# -- actors --


@hocket.remote
class Counter(hocket.TypedActor):
    def __init__(self, start: int, *, step: int = 1) -> None:
        self.total = start
        self.step = step

    @hocket.method
    def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    @hocket.method
    async def add_later(self, amount: int) -> int:
        return self.add(amount)

    @hocket.method
    def list_all(self) -> Iterator[int]:
        yield from range(self.total)

    @hocket.method
    async def watch(self) -> AsyncIterator[str]:
        yield "seen"

    @hocket.method(concurrency_group="io")
    def describe(self, prefix: str = "") -> str:
        return f"{prefix}{self.total}"

    @hocket.method(num_returns=2)
    def split(self) -> tuple[int, int]:
        return self.total, self.step


counter = Counter.remote(3)
assert_type(counter.add.remote(1), "hocket.ObjectRef[int]")
assert_type(hocket.get(counter.add_later.remote(1)), int)
assert_type(hocket.get(counter.describe.remote()), str)
for item in counter.list_all.remote():
    assert_type(item, "hocket.ObjectRef[int]")
Counter.remote(3, step=2)
other = Counter.options(name="counter").remote(3)
assert_type(hocket.get(other.add.remote(amount=2)), int)
counter.add.options(num_returns=1).remote(2)
counter.add.remote(hocket.put(2))
total, step = counter.split.remote()
hocket.kill(counter)

Counter.remote("three")  # wrong
Counter.options(name="counter").remote("three")  # wrong
Counter.remote(3, stride=2)  # wrong
counter.add.remote("one")  # wrong
counter.add.remote()  # wrong
counter.add_later.remote("one")  # wrong
counter.describe.remote(suffix="")  # wrong
counter.subtract.remote(1)  # wrong
hocket.get(counter.add.remote(1)).upper()  # wrong


# An actor that says nothing of its types takes anything.
class Plain:
    def __init__(self, start: int) -> None:
        self.total = start

    def add(self, amount: int) -> int:
        return self.total + amount


PlainActor = hocket.remote(Plain)
plain = PlainActor.remote(1)
result: Any = hocket.get(plain.add.remote(2))
hocket.get([plain.add.remote(2) for _ in range(3)])
by_name = hocket.get_actor("counter")
hocket.get(by_name.add.remote(1))


# -- options --

add.options(num_cpus="two")  # wrong
add.options(nonsense=3)  # wrong
add.options(max_retries=0, retry_exceptions=[ValueError], runtime_env={"env_vars": {"A": "1"}}, name="sum")
add.options(num_returns="streaming", num_gpus=0.5)
PlainActor.options(max_concurrency="3")  # wrong
PlainActor.options(name=3)  # wrong
PlainActor.options(name="one", lifetime="detached", max_restarts=-1, resources={"camera": 1}).remote(1)
counter.add.options(concurrency_group=3)  # wrong
counter.add.options(concurrency_group="io", num_returns=1)
given: dict[str, Any] = {"num_cpus": 1}
add.options(**given).remote(1)
PlainActor.options(**given).remote(1)


@hocket.remote(num_cpus="two")  # wrong
def misplaced() -> None: ...
