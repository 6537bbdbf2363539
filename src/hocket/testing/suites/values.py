"""The contract of every engine on values: how they are passed, kept, returned and awaited."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hocket import exceptions
from hocket.core import actor, api, session
from hocket.engine import contract
from hocket.testing.suites import programs


class ValueContract:
    """The values of every engine. Part of `EngineContract`."""

    def test_put_takes_a_snapshot(self) -> None:
        value = [1]
        ref = api.put(value)
        value.append(2)
        assert api.get(ref) == [1]

    @pytest.mark.parametrize("items", [10, 10_000, 1_000_000])
    def test_arrays_come_back_equal_writable_and_private(self, items: int) -> None:
        array = np.arange(items)
        ref = api.put(array)
        first, second = api.get([ref, ref])
        assert np.array_equal(first, array)
        first[0] = -1
        assert second[0] == 0
        assert api.get(ref)[0] == 0

    @pytest.mark.parametrize("items", [10, 10_000, 1_000_000])
    def test_arrays_travel_as_arguments_and_results(self, items: int) -> None:
        @api.remote
        def double(array: Any) -> Any:
            array *= 2
            return array

        array = np.arange(items)
        assert np.array_equal(api.get(double.remote(array)), np.arange(items) * 2)
        ref = api.put(array)
        assert np.array_equal(api.get(double.remote(double.remote(ref))), np.arange(items) * 4)
        assert np.array_equal(api.get(ref), np.arange(items))

    def test_large_arguments_keep_apart(self) -> None:
        @api.remote(num_returns=2)
        def both(first: Any, second: Any) -> tuple[object, object]:
            return first + 1, second + 1

        first, second = np.zeros(1_000_000), np.full(500_000, 5.0)
        found = api.get(both.remote(first, api.put(second)))
        assert (found[0].shape, float(found[0][-1])) == ((1_000_000,), 1.0)
        assert (found[1].shape, float(found[1][-1])) == ((500_000,), 6.0)

    @pytest.mark.parametrize(
        "make",
        [bytes, bytearray, programs.make_text, programs.make_dict, programs.make_list],
        ids=lambda make: make.__name__,
    )
    def test_large_values_that_are_no_arrays(self, make: Callable[[int], Any]) -> None:
        size = 3_000_000

        @api.remote
        def count(value: Any, *more: object, **named: Any) -> int:
            return sum(map(len, (value, *more, *named.values())))

        @api.remote
        def build(count: int) -> object:
            return make(count)

        @api.remote
        def use() -> int:
            found = api.get([build.remote(size), api.put(make(size))])
            return int(api.get(count.remote(*found)))

        value = make(size)
        assert api.get(count.remote(value)) == len(value)
        assert api.get(count.remote(value, api.put(value), named=value)) == 3 * len(value)
        assert api.get([api.put(value), build.remote(size)]) == [value, value]
        assert api.get(use.remote()) == 2 * len(value)
        assert api.get(api.remote(lambda: len(value)).remote()) == len(value)

    def test_large_values_that_are_no_arrays_of_actors_and_generators(self) -> None:
        size = 3_000_000

        class Store:
            def __init__(self, text: str) -> None:
                self.text = text

            def add(self, text: str) -> str:
                return self.text + text

            @actor.method(num_returns=2)
            def take_apart(self) -> object:
                return self.text, len(self.text)

        @api.remote
        def count(amount: int) -> Iterator[bytes]:
            for number in range(amount):
                yield bytes([number]) * size

        def use(store: Any) -> list[int]:
            return [len(api.get(store.add.remote("b" * size))) for _ in range(6)]

        store = api.remote(Store).remote("a" * size)
        assert api.get(store.add.remote("b" * size)) == "a" * size + "b" * size
        assert api.get(store.take_apart.remote()) == ["a" * size, size]
        assert api.get(api.remote(use).remote(store)) == [2 * size] * 6
        assert [api.get(item) == bytes([number]) * size for number, item in enumerate(count.remote(3))] == [True] * 3

    def test_large_values_with_references_inside(self) -> None:
        @api.remote
        def read(box: dict[str, Any]) -> tuple[int, int]:
            return len(box["text"]), api.get(box["ref"])

        box: dict[str, Any] = {"text": "x" * 3_000_000, "ref": api.put(5)}
        ref = api.put(box)
        assert api.get(read.remote(box)) == (3_000_000, 5)
        del box
        assert api.get(read.remote(ref)) == (3_000_000, 5)
        assert api.get(api.get(ref)["ref"]) == 5

    def test_large_error_says_what_to_do(self) -> None:
        @api.remote(max_retries=0)
        def fail(size: int) -> None:
            raise ValueError("x" * size)

        with pytest.raises(exceptions.TaskError, match="ValueError: xxx") as caught:
            api.get(fail.remote(1_000_000))
        assert str(caught.value.cause) == "x" * 1_000_000
        with pytest.raises(
            exceptions.TaskError, match=r"(?s)ValueError: x.*could not be sent: it takes \d.*hocket\.put\(\)"
        ):
            api.get(fail.remote(20_000_000))

    def test_error_may_hold_an_array(self) -> None:
        @api.remote(max_retries=0)
        def fail() -> None:
            raise ValueError(np.ones(10_000))

        with pytest.raises(exceptions.TaskError, match="ValueError: ") as caught:
            api.get(fail.remote())
        assert isinstance(caught.value.cause, ValueError)
        assert float(caught.value.cause.args[0].sum()) == 10_000

    def test_duplicates_in_get_inside_a_task(self) -> None:
        @api.remote
        def twice(box: list[contract.AnyRef]) -> int:
            first, second = api.get([box[0], box[0]])
            first[0] = 7
            return int(second[0])

        assert api.get(twice.remote([api.put(np.zeros(1_000_000))])) == 0

    def test_objects_are_freed_with_their_last_reference(self) -> None:
        before = session.get_engine().view.statistics()["objects"]
        refs = [api.put(x) for x in range(100)]
        assert session.get_engine().view.statistics()["objects"] == before + 100
        del refs
        assert session.get_engine().view.statistics()["objects"] == before

    def test_finished_tasks_leave_no_records(self) -> None:
        square = api.remote(programs.square)
        api.get([square.remote(x) for x in range(100)])
        programs.wait_until(lambda: session.get_engine().view.statistics()["objects"] == 0)
        assert session.get_engine().view.statistics()["tasks"] == 0

    def test_get_twice_gives_distinct_values(self) -> None:
        ref = api.put([1])
        assert api.get(ref) is not api.get(ref)

    def test_one_handle_for_each_object(self) -> None:
        ref = api.put(1)
        assert api.get(api.put([ref]))[0] is ref

    def test_wait_returns_exactly_as_many_as_asked_in_order(self) -> None:
        refs = [api.put(x) for x in range(4)]
        ready, rest = api.wait(refs, num_returns=2)
        assert (ready, rest) == (refs[:2], refs[2:])

    def test_waiting_task_lends_its_cpu(self) -> None:
        square = api.remote(programs.square)

        @api.remote(num_cpus=programs.CPUS)
        def wait_for_others() -> int:
            ready, _ = api.wait([square.remote(2)])
            return int(api.get(ready[0]))

        assert api.get(wait_for_others.remote()) == 4

    def test_task_inside_a_coroutine_knows_its_name(self) -> None:
        @api.remote
        def tell() -> str | None:
            return session.get_engine().view.get_context().task_name

        class Asker:
            async def ask(self) -> object:
                return await tell.remote()

        asker: Any = api.remote(Asker)
        assert "tell" in api.get(asker.remote().ask.remote())

    def test_wait_counts_errors_as_ready(self) -> None:
        @api.remote
        def fail() -> None:
            raise ValueError("counts")

        ref = fail.remote()
        assert api.wait([ref]) == ([ref], [])
