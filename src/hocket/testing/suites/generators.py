"""The contract of every engine on generators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

from hocket.core import api, generators, session
from hocket.testing.suites import programs


class GeneratorContract:
    """The generators of every engine. Part of `EngineContract`."""

    def test_generator_gives_its_items_one_by_one(self) -> None:
        @api.remote
        def count(n: int) -> Iterator[int]:
            yield from range(n)

        items = count.remote(5)
        assert isinstance(items, generators.ObjectRefGenerator)
        assert [api.get(ref) for ref in items] == [0, 1, 2, 3, 4]
        assert items.is_finished()
        assert api.get(items.completed()) is None

    def test_large_items_travel(self) -> None:
        @api.remote
        def make(n: int) -> Iterator[Any]:
            for size in range(1, n + 1):
                yield np.full(size * 100_000, size, dtype=np.float64)

        assert [float(api.get(ref).sum()) for ref in make.remote(3)] == [1e5, 4e5, 9e5]

    def test_error_of_a_generator_is_its_last_item(self) -> None:
        @api.remote
        def break_off() -> Iterator[int]:
            yield 1
            raise KeyError("broken")

        items = break_off.remote()
        assert api.get(next(items)) == 1
        with pytest.raises(KeyError, match="broken"):
            api.get(next(items))
        with pytest.raises(StopIteration):
            next(items)

    @pytest.mark.needs("generator_completion")
    def test_error_of_a_generator_is_that_of_its_completion(self) -> None:
        @api.remote
        def break_off() -> Iterator[int]:
            yield 1
            raise KeyError("broken")

        with pytest.raises(KeyError, match="broken"):
            api.get(break_off.remote().completed())

    def test_generator_method_and_number_of_returns(self) -> None:
        class Source:
            def count(self, n: int) -> Iterator[int]:
                yield from range(n)

        source = api.remote(Source).remote()
        assert [api.get(ref) for ref in source.count.remote(3)] == [0, 1, 2]
        assert api.get(source.count.options(num_returns=2).remote(2)) == [0, 1]

    def test_wait_takes_generators(self) -> None:
        @api.remote
        def count() -> Iterator[int]:
            yield 7

        items = count.remote()
        ready, rest = api.wait([items], num_returns=1)
        assert (ready, rest) == ([items], [])
        assert items.next_ready()
        assert api.get(next(items)) == 7

    def test_items_that_nobody_took_are_freed(self) -> None:
        @api.remote
        def count(n: int) -> Iterator[int]:
            yield from range(n)

        items = count.remote(50)
        next(items)
        api.get(items.completed())
        del items
        programs.wait_until(lambda: session.get_engine().view.statistics()["objects"] == 0)

    def test_dynamic_generator_returns_all_at_once(self) -> None:
        @api.remote(num_returns="dynamic")
        def count(n: int) -> Iterator[int]:
            yield from range(n)

        refs = api.get(count.remote(3))
        assert [api.get(ref) for ref in refs] == [0, 1, 2]

    def test_asynchronous_generator(self) -> None:
        class Source:
            async def count(self, n: int) -> AsyncIterator[int]:
                for i in range(n):
                    await asyncio.sleep(0)
                    yield i

        source = api.remote(Source).remote()
        assert [api.get(ref) for ref in source.count.remote(3)] == [0, 1, 2]

    def test_generator_that_is_tried_again_repeats_no_item(self) -> None:
        tries = api.remote(programs.Counter).remote()

        @api.remote(retry_exceptions=True, max_retries=1)
        def count(tries: Any) -> Iterator[int]:
            first = api.get(tries.add.remote()) == 1
            for i in range(4):
                if first and i == 2:
                    raise ValueError("once")
                yield i

        assert [api.get(ref) for ref in count.remote(tries)] == [0, 1, 2, 3]

    def test_end_of_a_generator_can_be_asked_for_only_once_more(self) -> None:
        @api.remote
        def nothing() -> Iterator[int]:
            yield from ()

        items = nothing.remote()
        assert list(items) == []
        with pytest.raises(StopIteration):
            next(items)
