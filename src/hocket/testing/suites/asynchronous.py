"""The contract of every engine on asynchronous code."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import pytest

from hocket.core import api, generators
from hocket.testing.suites import programs


class AsyncContract:
    """The coroutines and futures of every engine. Part of `EngineContract`."""

    def test_calls_of_an_asynchronous_actor_wait_for_each_other(self) -> None:
        gate = api.remote(programs.AsyncGate).remote()
        waiting = [gate.wait.remote() for _ in range(20)]
        api.get(gate.open.remote())
        assert api.get(waiting) == ["through"] * 20

    def test_asynchronous_actor_awaits_references(self) -> None:
        square = api.remote(programs.square)

        class Adder:
            async def add(self, x: int) -> int:
                first, second = await asyncio.gather(square.remote(x), square.remote(x + 1))
                return int(first + second)

        assert api.get(api.remote(Adder).remote().add.remote(2)) == 13

    def test_error_of_a_coroutine(self) -> None:
        class Broken:
            async def fail(self) -> None:
                await asyncio.sleep(0)
                raise KeyError("async")

        with pytest.raises(KeyError, match="async"):
            api.get(api.remote(Broken).remote().fail.remote())

    def test_max_concurrency_bounds_coroutines(self) -> None:
        class Busy:
            def __init__(self) -> None:
                self.now = self.most = 0

            async def work(self) -> int:
                self.now += 1
                self.most = max(self.most, self.now)
                await asyncio.sleep(0.01)
                self.now -= 1
                return self.most

        busy = api.remote(max_concurrency=2)(Busy).remote()
        assert max(api.get([busy.work.remote() for _ in range(8)])) == 2

    def test_reference_is_a_future(self) -> None:
        square = api.remote(programs.square)
        assert square.remote(4).future().result(timeout=30) == 16

    def test_reference_can_be_awaited(self) -> None:
        square = api.remote(programs.square)

        async def main() -> list[int]:
            return list(await asyncio.gather(*[square.remote(i) for i in range(5)]))

        assert asyncio.run(main()) == [0, 1, 4, 9, 16]

    def test_what_waits_for_time_is_awaited(self) -> None:
        sleeper = api.remote(programs.Sleeper).remote()

        async def main() -> object:
            return await api.remote(programs.Sleeper).remote().add_up.remote(sleeper, 3)

        assert asyncio.run(main()) == pytest.approx(0.03)

    def test_futures_end_in_any_order(self) -> None:
        sleeper = api.remote(programs.Sleeper).remote()
        late, soon = (sleeper.sleep.remote(seconds).future() for seconds in (0.05, 0.01))
        assert sorted(done.result() for done in futures.as_completed([late, soon], 20)) == [0.01, 0.05]
        assert sleeper.sleep.remote(0.01).future().result(20) == 0.01

    def test_task_awaits_and_holds_futures(self) -> None:
        @api.remote
        def wait_in_two_ways(sleeper: Any) -> tuple[float, float]:
            async def wait() -> float:
                return float(await sleeper.sleep.remote(0.01))

            return asyncio.run(wait()), sleeper.sleep.remote(0.02).future().result()

        assert api.get(wait_in_two_ways.remote(api.remote(programs.Sleeper).remote())) == (0.01, 0.02)

    def test_coroutine_waits_for_a_thread(self) -> None:
        assert api.get(api.remote(programs.Sleeper).remote().work_in_thread.remote(3)) == 9

    def test_wait_gives_coroutines_their_time(self) -> None:
        sleeper = api.remote(programs.Sleeper).remote()
        refs = [sleeper.sleep.remote(seconds) for seconds in (3600, 0.01)]
        assert api.wait(refs, timeout=20) == ([refs[1]], [refs[0]])
        assert api.wait(refs[:1], timeout=0.01) == ([], refs[:1])

    def test_awaited_error_is_raised(self) -> None:
        counter = api.remote(programs.Counter).remote()

        async def main() -> None:
            await counter.fail.remote()

        with pytest.raises(KeyError, match="missing"):
            asyncio.run(main())

    def test_generator_can_be_read_asynchronously(self) -> None:
        @api.remote
        def count(n: int) -> Iterator[int]:
            yield from range(n)

        async def add_one(items: generators.ObjectRefGenerator[int]) -> list[int]:
            return [await ref + 1 async for ref in items]  # for type checkers, users can name the type of the items

        assert asyncio.run(add_one(count.remote(3))) == [1, 2, 3]
