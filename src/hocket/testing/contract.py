"""The judge of an engine: tests that every engine must pass, through the public API.

To test an engine, inherit and say how to open it::

    class TestMine(EngineContract):
        engine = "mine"

`ProcessEngineContract` adds what only engines with processes of their own can do: parallelism, time-outs, interrupts, deaths.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket import exceptions
from hocket.core import actor, api, generators, placement, session
from hocket.testing import calls, ends, errors, leftovers

CPUS = 2


def _square(x: int) -> int:
    return x * x


def _make_text(size: int) -> str:
    return "ä" * (size // 2)


def _make_dict(size: int) -> dict[int, bytes]:
    return dict.fromkeys(range(size // 100_000), b"x") | {-1: bytes(size)}


def _make_list(size: int) -> list[int]:
    return list(range(size // 10))


def _list_named_actors() -> list[tuple[str, str]]:
    return sorted(session.get_engine().list_named_actors())


def _count(amount: float) -> None:
    session.get_engine().record_metrics((("counter", "tests", "", (), (), (amount,)),))


class _Counter:
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


class _AsyncGate:
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


class _Sleeper:
    """An asynchronous actor whose calls wait for time, for a thread and for each other."""

    async def sleep(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async def work_in_thread(self, x: int) -> int:
        return await asyncio.to_thread(_square, x)

    async def add_up(self, other: Any, n: int) -> float:
        total: float = sum(await asyncio.gather(*[other.sleep.remote(0.01) for _ in range(n)]))
        return total


class _Recorder:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> list[str]:
        self.notes.append(text)
        return list(self.notes)


def wait_until(is_done: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Wait for what no reference tells of; fails after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not is_done():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def _try_add(counter: Any) -> int | None:
    try:
        return int(api.get(counter.add.remote()))
    except exceptions.ActorUnavailableError:
        return None


def _is_dead(counter: Any) -> bool:
    try:
        api.get(counter.get_value.remote())
    except exceptions.ActorDiedError:
        return True
    return False


class GeneratorContract:
    """What every engine must do with generators. Part of `EngineContract`."""

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
        wait_until(lambda: session.get_engine().statistics()["objects"] == 0)

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
        tries = api.remote(_Counter).remote()

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


class AsyncContract:
    """What every engine must do with coroutines and futures. Part of `EngineContract`."""

    def test_calls_of_an_asynchronous_actor_wait_for_each_other(self) -> None:
        gate = api.remote(_AsyncGate).remote()
        waiting = [gate.wait.remote() for _ in range(20)]
        api.get(gate.open.remote())
        assert api.get(waiting) == ["through"] * 20

    def test_asynchronous_actor_awaits_references(self) -> None:
        square = api.remote(_square)

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
        square = api.remote(_square)
        assert square.remote(4).future().result(timeout=30) == 16

    def test_reference_can_be_awaited(self) -> None:
        square = api.remote(_square)

        async def main() -> list[int]:
            return list(await asyncio.gather(*[square.remote(i) for i in range(5)]))

        assert asyncio.run(main()) == [0, 1, 4, 9, 16]

    def test_what_waits_for_time_is_awaited(self) -> None:
        sleeper = api.remote(_Sleeper).remote()

        async def main() -> Any:
            return await api.remote(_Sleeper).remote().add_up.remote(sleeper, 3)

        assert asyncio.run(main()) == pytest.approx(0.03)

    def test_futures_end_in_any_order(self) -> None:
        sleeper = api.remote(_Sleeper).remote()
        late, soon = (sleeper.sleep.remote(seconds).future() for seconds in (0.05, 0.01))
        assert sorted(done.result() for done in futures.as_completed([late, soon], 20)) == [0.01, 0.05]
        assert sleeper.sleep.remote(0.01).future().result(20) == 0.01

    def test_task_awaits_and_holds_futures(self) -> None:
        @api.remote
        def wait_in_two_ways(sleeper: Any) -> tuple[float, float]:
            async def wait() -> float:
                return float(await sleeper.sleep.remote(0.01))

            return asyncio.run(wait()), sleeper.sleep.remote(0.02).future().result()

        assert api.get(wait_in_two_ways.remote(api.remote(_Sleeper).remote())) == (0.01, 0.02)

    def test_coroutine_waits_for_a_thread(self) -> None:
        assert api.get(api.remote(_Sleeper).remote().work_in_thread.remote(3)) == 9

    def test_wait_gives_coroutines_their_time(self) -> None:
        sleeper = api.remote(_Sleeper).remote()
        refs = [sleeper.sleep.remote(seconds) for seconds in (3600, 0.01)]
        assert api.wait(refs, timeout=20) == ([refs[1]], [refs[0]])
        assert api.wait(refs[:1], timeout=0.01) == ([], refs[:1])

    def test_awaited_error_is_raised(self) -> None:
        counter = api.remote(_Counter).remote()

        async def main() -> None:
            await counter.fail.remote()

        with pytest.raises(KeyError, match="missing"):
            asyncio.run(main())

    def test_generator_can_be_read_asynchronously(self) -> None:
        @api.remote
        def count(n: int) -> Iterator[int]:
            yield from range(n)

        async def main() -> list[int]:
            return [await ref async for ref in count.remote(3)]

        assert asyncio.run(main()) == [0, 1, 2]


class ActorLifeContract:
    """What every engine must do with the life of actors. Part of `EngineContract`."""

    def test_every_actor_has_the_special_methods(self) -> None:
        counter = api.remote(_Counter).remote(5)
        assert api.get(counter.__ray_ready__.remote()) is True
        assert api.get(counter.__ray_call__.remote(lambda self, x: self.value + x, 2)) == 7

    def test_terminated_actor_runs_its_hook_and_what_was_asked_before(self, tmp_path: Path) -> None:
        class Polite:
            def __init__(self, path: Path) -> None:
                self.path = path

            def ping(self) -> str:
                return "pong"

            def __ray_shutdown__(self) -> None:
                self.path.write_text("bye")

        polite = api.remote(Polite).remote(tmp_path / "hook")
        before = polite.ping.remote()
        with pytest.raises(exceptions.ActorDiedError, match="exit_actor"):
            api.get(polite.__ray_terminate__.remote())
        assert api.get(before) == "pong"
        wait_until((tmp_path / "hook").exists)

    def test_exit_actor_ends_it_past_except_exception(self) -> None:
        class Quitter:
            def quit(self) -> None:
                with contextlib.suppress(Exception):
                    actor.exit_actor()

        quitter = api.remote(max_restarts=5)(Quitter).remote()
        with pytest.raises(exceptions.ActorDiedError, match="ended itself"):
            api.get(quitter.quit.remote())
        with pytest.raises(exceptions.ActorDiedError, match="ended itself"):
            api.get(quitter.quit.remote())

    def test_exit_actor_outside_an_actor(self) -> None:
        with pytest.raises(TypeError, match="inside a method of an actor"):
            actor.exit_actor()

    def test_killed_actor_is_built_again_if_asked(self) -> None:
        counter = api.remote(_Counter).options(max_restarts=1).remote(10)
        assert api.get(counter.add.remote()) == 11
        api.kill(counter, no_restart=False)
        wait_until(lambda: _try_add(counter) == 11)
        api.kill(counter, no_restart=True)
        wait_until(lambda: _is_dead(counter))
        with pytest.raises(exceptions.ActorDiedError, match="killed"):
            api.get(counter.add.remote())

    def test_pending_calls_are_limited(self) -> None:
        gate = api.remote(_AsyncGate).options(max_pending_calls=2).remote()
        waiting = [gate.wait.remote(), gate.wait.remote()]
        with pytest.raises(exceptions.PendingCallsLimitExceeded, match="max_pending_calls=2"):
            gate.open.remote()
        del waiting

    def test_concurrency_groups_do_not_hold_each_other_up(self) -> None:
        class Mixed:
            async def wait(self) -> str:
                self.event = asyncio.Event()
                await self.event.wait()
                return "done"

            @actor.method(concurrency_group="io")
            async def ping(self) -> str:
                return "pong"

        mixed = api.remote(concurrency_groups={"io": 1})(Mixed).remote()
        waiting = mixed.wait.remote()
        assert api.get(mixed.ping.remote()) == "pong"
        assert api.get(mixed.ping.options(concurrency_group="io").remote()) == "pong"
        del waiting

    def test_call_that_waits_for_an_argument_is_overtaken_only_if_allowed(self) -> None:
        gate = api.remote(_AsyncGate).remote()
        late = gate.wait.remote()
        quick = api.remote(_Recorder).options(allow_out_of_order_execution=True).remote()
        first, second = quick.note.remote(late), quick.note.remote("second")
        assert api.get(second) == ["second"]
        api.get(gate.open.remote())
        assert api.get(first) == ["second", "through"]

    def test_retry_exceptions_of_methods(self) -> None:
        class Flaky:
            def __init__(self) -> None:
                self.tries = 0

            @actor.method(retry_exceptions=[ValueError])
            def work(self) -> int:
                self.tries += 1
                if self.tries < 3:
                    raise ValueError(self.tries)
                return self.tries

        assert api.get(api.remote(max_task_retries=2)(Flaky).remote().work.remote()) == 3

    def test_get_if_exists(self) -> None:
        made = [api.remote(_Counter).options(name="shared", get_if_exists=True).remote(3) for _ in range(3)]
        assert len(set(made)) == 1
        assert api.get([one.add.remote() for one in made]) == [4, 5, 6]

    def test_current_actor(self) -> None:
        class Selfish:
            def me(self) -> Any:
                return api.get_runtime_context().current_actor

            def name(self) -> Any:
                return api.get_runtime_context().get_actor_name()

        selfish = api.remote(Selfish).options(name="me").remote()
        assert api.get(selfish.me.remote()) == selfish
        assert api.get(selfish.name.remote()) == "me"


class EnvironmentContract:
    """What every engine must do with runtime environments and groups. Part of `EngineContract`."""

    def test_variables_are_seen_and_inherited(self) -> None:
        @api.remote
        def read(name: str) -> str | None:
            return os.environ.get(name)

        @api.remote(runtime_env={"env_vars": {"HOCKET_OUTER": "1", "HOCKET_BOTH": "outer"}})
        def nest() -> list[Any]:
            inner = read.options(runtime_env={"env_vars": {"HOCKET_BOTH": "inner"}})
            refs = [read.remote("HOCKET_OUTER"), inner.remote("HOCKET_OUTER"), inner.remote("HOCKET_BOTH")]
            return list(api.get(refs))

        assert api.get(nest.remote()) == ["1", "1", "inner"]
        assert api.get(read.remote("HOCKET_OUTER")) is None

    def test_folder_and_modules(self, tmp_path: Path) -> None:
        (tmp_path / "work").mkdir()
        (tmp_path / "work" / "note.txt").write_text("here")
        (tmp_path / "hocket_extra_module.py").write_text("answer = 42")
        environment = {"working_dir": str(tmp_path / "work"), "py_modules": [str(tmp_path / "hocket_extra_module.py")]}

        @api.remote(runtime_env=environment)
        def look() -> tuple[str, int]:
            import hocket_extra_module  # type: ignore[import-not-found]

            return Path("note.txt").read_text(), hocket_extra_module.answer

        assert api.get(look.remote()) == ("here", 42)

    def test_children_run_in_the_captured_group(self) -> None:
        group = placement.placement_group([{"CPU": 1}])
        strategy = placement.PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)

        @api.remote
        def where() -> str | None:
            return api.get_runtime_context().get_placement_group_id()

        @api.remote
        def nest() -> Any:
            return api.get(where.remote())

        assert api.get(nest.options(scheduling_strategy=strategy).remote()) == group.id
        assert api.get(where.remote()) is None

    def test_nodes_are_chosen_by_id_and_label(self) -> None:
        square = api.remote(_square)
        here = api.get_runtime_context().get_node_id()
        affinity = placement.NodeAffinitySchedulingStrategy
        assert api.get(square.options(scheduling_strategy=affinity(here, soft=False)).remote(2)) == 4
        assert api.get(square.options(scheduling_strategy=affinity("elsewhere", soft=True)).remote(2)) == 4
        with pytest.raises(exceptions.TaskUnschedulableError, match="'elsewhere', which is not there"):
            square.options(scheduling_strategy=affinity("elsewhere", soft=False)).remote(2)
        assert api.get(square.options(label_selector={"ray.io/node-id": here}).remote(2)) == 4
        with pytest.raises(exceptions.TaskUnschedulableError, match="none has them"):
            square.options(label_selector={"disk": "ssd"}).remote(2)
        label = placement.NodeLabelSchedulingStrategy
        assert api.get(square.options(scheduling_strategy=label({"disk": placement.DoesNotExist()})).remote(2)) == 4
        with pytest.raises(exceptions.TaskUnschedulableError, match="none has them"):
            square.options(scheduling_strategy=label({"disk": placement.In("ssd")})).remote(2)


class EngineContract(
    calls.CallContract,
    calls.CountedGeneratorContract,
    ends.EndsContract,
    GeneratorContract,
    AsyncContract,
    ActorLifeContract,
    EnvironmentContract,
    errors.ErrorContract,
):
    """What every engine must do."""

    engine = ""
    cleans_up = True
    """Whether a closed session leaves nothing in this process and of it; not so where the system below goes on."""

    @pytest.fixture(autouse=True)
    def open_session(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """Open a session for each test, and check that it leaves nothing; skip what the engine says that it cannot do."""
        before = leftovers.Leftovers.look()
        with session.init(num_cpus=CPUS, resources={"camera": 1}, engine=self.engine):
            limits = session.get_engine().limits
            for marker in request.node.iter_markers("needs"):
                for ability in marker.args:
                    if ability in limits:
                        pytest.skip(f"{self.engine}: {limits[ability]}")
            yield
        if self.cleans_up:
            assert before.list_new() == []

    # --- tasks ---

    def test_task_returns_its_value(self) -> None:
        square = api.remote(_square)
        assert api.get(square.remote(7)) == 49

    def test_many_tasks_keep_their_order_in_get(self) -> None:
        square = api.remote(_square)
        assert api.get([square.remote(x) for x in range(500)]) == [x * x for x in range(500)]

    def test_top_level_references_are_resolved_by_position_and_by_keyword(self) -> None:
        @api.remote
        def join(first: str, second: str) -> str:
            return first + second

        assert api.get(join.remote(api.put("a"), second=api.put("b"))) == "ab"

    def test_nested_references_stay_references(self) -> None:
        @api.remote
        def open_box(box: list[Any]) -> int:
            return int(api.get(box[0])) + 1

        assert api.get(open_box.remote([api.put(41)])) == 42

    def test_several_returns(self) -> None:
        @api.remote(num_returns=3)
        def three() -> tuple[int, int, int]:
            return 1, 2, 3

        assert api.get(three.remote()) == [1, 2, 3]

    def test_no_returns(self) -> None:
        @api.remote(num_returns=0)
        def nothing() -> None:
            return None

        assert nothing.remote() is None

    def test_wrong_number_of_returns_is_an_error(self) -> None:
        @api.remote(num_returns=2)
        def three() -> tuple[int, int, int]:
            return 1, 2, 3

        with pytest.raises(ValueError, match=r"num_returns=2 but returned 3 values"):
            api.get(three.remote()[0])

    def test_tasks_nest_deeper_than_there_are_cpus(self) -> None:
        @api.remote
        def depth(left: int) -> int:
            return 0 if left == 0 else 1 + int(api.get(depth.remote(left - 1)))

        assert api.get(depth.remote(10)) == 10

    def test_closure_may_hold_a_reference(self) -> None:
        ref = api.put(5)

        @api.remote
        def read() -> int:
            return int(api.get(ref))

        assert api.get(read.remote()) == 5

    def test_result_may_hold_references(self) -> None:
        @api.remote
        def wrap() -> list[Any]:
            return [api.put(1), api.put(2)]

        assert api.get(api.get(wrap.remote())) == [1, 2]

    # --- errors ---

    def test_error_is_of_both_classes_and_has_the_remote_traceback(self) -> None:
        @api.remote
        def fail() -> None:
            raise ValueError("deliberate")

        with pytest.raises(ValueError, match="deliberate") as caught:
            api.get(fail.remote())
        assert isinstance(caught.value, exceptions.TaskError)
        assert isinstance(caught.value.cause, ValueError)
        assert "in fail" in str(caught.value)

    def test_failed_dependency_fails_its_dependants_with_the_cause_and_without_running_them(self) -> None:
        @api.remote
        def fail() -> None:
            raise LookupError("first")

        @api.remote
        def use(value: Any, log: Any) -> None:
            api.get(log.add.remote())

        log = api.remote(_Counter).remote()
        with pytest.raises(LookupError, match="first"):
            api.get(use.remote(use.remote(fail.remote(), log), log))
        assert api.get(log.add.remote(0)) == 0

    def test_retry_exceptions_tries_again(self) -> None:
        counter = api.remote(_Counter).remote()

        @api.remote(max_retries=5, retry_exceptions=[OSError])
        def flaky(counter: Any) -> int:
            count = int(api.get(counter.add.remote()))
            if count < 3:
                raise OSError(count)
            return count

        assert api.get(flaky.remote(counter)) == 3

    def test_exceptions_that_are_not_named_are_not_tried_again(self) -> None:
        counter = api.remote(_Counter).remote()

        @api.remote(max_retries=5, retry_exceptions=[OSError])
        def fail(counter: Any) -> None:
            api.get(counter.add.remote())
            raise KeyError("no")

        with pytest.raises(KeyError, match="no"):
            api.get(fail.remote(counter))
        assert api.get(counter.add.remote(0)) == 1

    def test_error_info_lists_failures(self) -> None:
        @api.remote
        def fail() -> None:
            raise ValueError("listed")

        with pytest.raises(ValueError, match="listed"):
            api.get(fail.remote())
        assert [(record.name, record.error_type, record.message) for record in api.error_info()] == [
            ("fail", "ValueError", "listed")
        ]

    # --- values ---

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
        def both(first: Any, second: Any) -> tuple[Any, Any]:
            return first + 1, second + 1

        first, second = np.zeros(1_000_000), np.full(500_000, 5.0)
        found = api.get(both.remote(first, api.put(second)))
        assert (found[0].shape, float(found[0][-1])) == ((1_000_000,), 1.0)
        assert (found[1].shape, float(found[1][-1])) == ((500_000,), 6.0)

    @pytest.mark.parametrize(
        "make", [bytes, bytearray, _make_text, _make_dict, _make_list], ids=lambda make: make.__name__
    )
    def test_large_values_that_are_no_arrays(self, make: Callable[[int], Any]) -> None:
        size = 3_000_000

        @api.remote
        def count(value: Any, *more: Any, **named: Any) -> int:
            return sum(map(len, (value, *more, *named.values())))

        @api.remote
        def build(count: int) -> Any:
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
            def take_apart(self) -> Any:
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

        box = {"text": "x" * 3_000_000, "ref": api.put(5)}
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
        def twice(box: list[Any]) -> int:
            first, second = api.get([box[0], box[0]])
            first[0] = 7
            return int(second[0])

        assert api.get(twice.remote([api.put(np.zeros(1_000_000))])) == 0

    def test_objects_are_freed_with_their_last_reference(self) -> None:
        before = session.get_engine().statistics()["objects"]
        refs = [api.put(x) for x in range(100)]
        assert session.get_engine().statistics()["objects"] == before + 100
        del refs
        assert session.get_engine().statistics()["objects"] == before

    def test_finished_tasks_leave_no_records(self) -> None:
        square = api.remote(_square)
        api.get([square.remote(x) for x in range(100)])
        wait_until(lambda: session.get_engine().statistics()["objects"] == 0)
        assert session.get_engine().statistics()["tasks"] == 0

    def test_get_twice_gives_distinct_values(self) -> None:
        ref = api.put([1])
        assert api.get(ref) is not api.get(ref)

    def test_one_handle_for_each_object(self) -> None:
        ref = api.put(1)
        assert api.get(api.put([ref]))[0] is ref

    # --- wait ---

    def test_wait_returns_exactly_as_many_as_asked_in_order(self) -> None:
        refs = [api.put(x) for x in range(4)]
        ready, rest = api.wait(refs, num_returns=2)
        assert (ready, rest) == (refs[:2], refs[2:])

    def test_waiting_task_lends_its_cpu(self) -> None:
        square = api.remote(_square)

        @api.remote(num_cpus=CPUS)
        def wait_for_others() -> int:
            ready, _ = api.wait([square.remote(2)])
            return int(api.get(ready[0]))

        assert api.get(wait_for_others.remote()) == 4

    def test_task_inside_a_coroutine_knows_its_name(self) -> None:
        @api.remote
        def tell() -> str | None:
            return session.get_engine().get_context().task_name

        class Asker:
            async def ask(self) -> Any:
                return await tell.remote()

        asker: Any = api.remote(Asker)
        assert "tell" in api.get(asker.remote().ask.remote())

    def test_wait_counts_errors_as_ready(self) -> None:
        @api.remote
        def fail() -> None:
            raise ValueError("counts")

        ref = fail.remote()
        assert api.wait([ref]) == ([ref], [])

    # --- actors ---

    def test_actor_keeps_state_and_order(self) -> None:
        counter = api.remote(_Counter).remote(10)
        assert api.get([counter.add.remote() for _ in range(100)]) == list(range(11, 111))

    def test_actor_method_errors_leave_it_alive(self) -> None:
        counter = api.remote(_Counter).remote()
        with pytest.raises(KeyError, match="missing"):
            api.get(counter.fail.remote())
        assert api.get(counter.add.remote()) == 1

    def test_handles_travel(self) -> None:
        counter = api.remote(_Counter).remote()

        @api.remote
        def use(handle: Any) -> int:
            return int(api.get(handle.add.remote(5)))

        assert api.get([use.remote(counter), use.remote(counter)])[1] in (5, 10)
        assert api.get(counter.add.remote(0)) == 10

    def test_failed_constructor_fails_every_call_with_its_error(self) -> None:
        class Broken:
            def __init__(self) -> None:
                raise RuntimeError("constructor failed")

            def use(self) -> None:
                return None

        broken = api.remote(Broken).remote()
        with pytest.raises((exceptions.ActorDiedError, RuntimeError), match="constructor"):
            api.get(broken.use.remote())

    def test_killed_actor_fails_its_calls(self) -> None:
        counter = api.remote(_Counter).remote()
        api.get(counter.add.remote())
        api.kill(counter)

        def fails() -> bool:
            try:
                return api.get(counter.add.remote()) is None
            except exceptions.ActorDiedError as error:
                return "killed by `kill`" in str(error)

        wait_until(fails)

    @pytest.mark.needs("immediate_kill")
    def test_killed_actor_answers_no_more(self) -> None:
        counter = api.remote(_Counter).remote()
        api.kill(counter)
        with pytest.raises(exceptions.ActorDiedError, match="killed by `kill`"):
            api.get(counter.add.remote())

    def test_actor_ends_with_its_last_handle(self) -> None:
        counter = api.remote(_Counter).remote()
        ref = counter.add.remote()
        del counter
        assert api.get(ref) == 1
        deadline = time.monotonic() + 5
        while session.get_engine().statistics()["actors"] and time.monotonic() < deadline:
            threading.Event().wait(0.005)
        assert session.get_engine().statistics()["actors"] == 0

    def test_named_actors_are_found_until_they_end(self) -> None:
        cls = api.remote(_Counter)
        counter = cls.options(name="the counter").remote(1)
        assert api.get(api.get_actor("the counter").add.remote()) == 2
        with pytest.raises(exceptions.ActorAlreadyExistsError, match="'the counter' is taken"):
            cls.options(name="the counter").remote()
        assert cls.options(name="the counter", get_if_exists=True).remote() == counter
        api.kill(counter)
        with pytest.raises(ValueError, match="Failed to look up actor with name 'the counter'"):
            api.get_actor("the counter")

    def test_method_with_several_returns(self) -> None:
        class Pair:
            @actor.method(num_returns=2)
            def both(self) -> tuple[int, int]:
                return 1, 2

        assert api.get(api.remote(Pair).remote().both.remote()) == [1, 2]

    # --- resources ---

    def test_resources_are_reported(self) -> None:
        total = api.cluster_resources()
        assert total["memory"] > 0
        assert (total["CPU"], total["camera"]) == (float(CPUS), 1.0)
        free = api.available_resources()
        assert (free["CPU"], free["camera"]) == (float(CPUS), 1.0)
        assert [node["Alive"] for node in api.nodes()] == [True]

    def test_actor_holds_what_it_names(self) -> None:
        counter = api.remote(num_cpus=1, resources={"camera": 1})(_Counter).remote()
        api.get(counter.add.remote())
        free = api.available_resources()
        assert free["CPU"] == CPUS - 1.0
        assert "camera" not in free

    @pytest.mark.parametrize(
        ("given", "shown"), [({"num_cpus": 64}, "CPU: 64"), ({"resources": {"lidar": 1}}, "lidar: 1")]
    )
    def test_impossible_requests_are_refused_at_the_call(self, given: dict[str, Any], shown: str) -> None:
        with pytest.raises(exceptions.TaskUnschedulableError, match=f"asks for .*{shown}.*has .*Ask for less"):
            api.remote(**given)(_square).remote(1)
        with pytest.raises(exceptions.ActorUnschedulableError, match=shown):
            api.remote(**given)(_Counter).remote()

    def test_placement_group_reserves_all_or_nothing(self) -> None:
        group = placement.placement_group([{"CPU": 1}, {"CPU": 1}], name="both")
        assert group.wait(10)
        assert "CPU" not in api.available_resources()
        strategy = placement.PlacementGroupSchedulingStrategy(group, 1)
        counter = api.remote(num_cpus=1, scheduling_strategy=strategy)(_Counter).remote()
        assert api.get(counter.add.remote()) == 1
        assert placement.get_placement_group("both") == group
        placement.remove_placement_group(group)
        with pytest.raises(exceptions.ActorDiedError, match=r"[Pp]lacement group .*removed"):
            api.get(counter.add.remote())
        wait_until(lambda: api.available_resources().get("CPU") == CPUS)

    def test_placement_groups_wait_for_each_other(self) -> None:
        first = placement.placement_group([{"CPU": 2}])
        others = [placement.placement_group([{"CPU": 1}]) for _ in range(2)]
        ready = [group.ready() for group in others]
        placement.remove_placement_group(first)
        assert api.get(ready) == [None, None]

    def test_what_waits_for_a_removed_placement_group_fails(self) -> None:
        first, second = placement.placement_group([{"CPU": 2}]), placement.placement_group([{"CPU": 1}])
        pending = second.ready()
        strategy = placement.PlacementGroupSchedulingStrategy(second)
        task = api.remote(scheduling_strategy=strategy)(_square).remote(1)
        placement.remove_placement_group(second)
        late = api.remote(scheduling_strategy=strategy)(_square).remote(1)
        for ref in (pending, task, late):
            with pytest.raises(exceptions.TaskPlacementGroupRemoved, match="removed"):
                api.get(ref)
        placement.remove_placement_group(first)

    def test_removed_placement_group_is_in_the_table(self) -> None:
        group = placement.placement_group([{"CPU": 1}], name="gone")
        assert group.wait(timeout_seconds=20)
        placement.remove_placement_group(group)
        found = placement.placement_group_table(group)
        assert (found["state"], found["bundles"], found["name"]) == ("REMOVED", {0: {"CPU": 1}}, "gone")
        with pytest.raises(ValueError, match="'gone': there is none"):
            placement.get_placement_group("gone")

    def test_impossible_placement_group_is_refused(self) -> None:
        with pytest.raises(exceptions.InfeasibleResourcesError, match=r"asks for .*CPU: 2.* but this session has"):
            placement.placement_group([{"CPU": 2}, {"CPU": 2}])

    def test_context_tells_where_the_code_runs(self) -> None:
        @api.remote(num_cpus=0.5)
        def tell() -> tuple[str | None, str | None, dict[str, float]]:
            context = api.get_runtime_context()
            return context.get_task_name(), context.get_actor_id(), context.get_assigned_resources()

        assert api.get(tell.remote()) == ("tell", None, {"CPU": 0.5})
        assert api.get_runtime_context().get_task_id() is None

    def test_named_actors_are_listed_while_they_live(self) -> None:
        engine = session.get_engine()
        named = api.remote(_Counter).options(name="named", namespace="one").remote()
        other = api.remote(_Counter).options(name="other", namespace="two").remote()
        unnamed = api.remote(_Counter).remote()
        api.get([handle.add.remote() for handle in (named, other, unnamed)])
        assert sorted(engine.list_named_actors()) == [("one", "named"), ("two", "other")]
        assert api.get(api.remote(_list_named_actors).remote()) == [("one", "named"), ("two", "other")]

    def test_what_a_task_counts_is_there_with_its_result(self) -> None:
        engine = session.get_engine()
        engine.record_metrics((("counter", "tests", "", (), (), (0.5,)),))
        api.get([api.remote(_count).remote(amount) for amount in range(10)])
        (family,) = engine.collect_metrics().families.values()
        assert (family.kind, family.name, family.series) == ("counter", "tests", {(): (45.5,)})

    def test_unpicklable_argument_names_the_part(self) -> None:
        with pytest.raises(exceptions.SerializationError, match=r"\['inner'\].*lock.*Remedy"):
            api.remote(_square).remote({"inner": threading.Lock()})

    def test_unpicklable_result_is_the_tasks_error(self) -> None:
        @api.remote
        def lock() -> Any:
            return threading.Lock()

        with pytest.raises(exceptions.SerializationError, match=r"the result of `lock`.*Remedy"):
            api.get(lock.remote())


class LineContract:
    """What must hold when workers call actors directly, as they do after a few calls. Part of `ProcessEngineContract`."""

    def test_calls_keep_their_order_whichever_way_they_take(self) -> None:
        class Log:
            def __init__(self) -> None:
                self.entries: list[int] = []

            def add(self, number: int, argument: Any = None) -> int:
                self.entries.append(number)
                return number

            def read(self) -> list[int]:
                return self.entries

        def call_in_many_ways(log: Any) -> list[int]:
            square = api.remote(_square)
            shared, large = api.put(1), np.ones(100_000)
            for number in range(300):
                argument: Any = None
                if number % 7 == 3:
                    argument = shared
                elif number % 11 == 5:
                    argument = square.remote(number)
                elif number % 13 == 8:
                    argument = [shared]
                elif number % 53 == 9:
                    argument = large
                log.add.remote(number, argument)
            return list(api.get(log.read.remote()))

        log = api.remote(Log).remote()
        assert api.get(api.remote(call_in_many_ways).remote(log)) == list(range(300))

    def test_references_on_direct_results_can_leave(self) -> None:
        def pass_on(counter: Any, gate: Any) -> Any:
            square = api.remote(_square)
            for _ in range(10):
                api.get(counter.add.remote(0))
                api.get(gate.open.remote())
            done = counter.add.remote(5)
            api.wait([done])
            waiting = gate.wait_again.remote()
            api.get(counter.add.remote(0))
            nested = api.put([done, waiting])
            squared = square.remote(done)
            length = api.remote(len).remote(waiting)
            api.get(gate.open.remote())
            return [done, waiting, nested, squared, length]

        counter, gate = api.remote(_Counter).remote(0), api.remote(_AsyncGate).remote()
        refs = api.get(api.remote(pass_on).remote(counter, gate))
        done, waiting, nested, squared, length = refs
        assert api.get([done, waiting, squared, length]) == [5, "through", 25, 7]
        assert api.get(api.get(nested)) == [5, "through"]
        del refs, done, waiting, nested, squared, length, counter, gate
        wait_until(lambda: session.get_engine().statistics()["objects"] == 0)

    def test_large_results_and_results_with_references_come_all_the_same(self) -> None:
        class Maker:
            def make(self, size: int) -> Any:
                return np.full(size, 7.0)

            def wrap(self, value: int) -> Any:
                return [api.put(value)]

            @actor.method(num_returns=2)
            def both(self) -> Any:
                return np.ones(100_000), api.put("second")

        def use(maker: Any) -> list[float]:
            sums = [float(api.get(maker.make.remote(size)).sum()) for size in (1, 10, 100_000, 10, 200_000)]
            sums += [api.get(api.get(maker.wrap.remote(value))[0]) for value in range(6)]
            first, second = maker.both.remote()
            return [*sums, float(api.get(first).sum()), len(api.get(api.get(second)))]

        maker = api.remote(Maker).remote()
        expected = [7.0, 70.0, 700_000.0, 70.0, 1_400_000.0, 0, 1, 2, 3, 4, 5, 100_000.0, 6]
        assert api.get(api.remote(use).remote(maker)) == expected
        wait_until(
            lambda: session.get_engine().statistics()["objects"] <= 1
        )  # where an actor counts as an object it is one

    def test_errors_of_direct_calls_are_raised_and_listed(self) -> None:
        def fail_often(counter: Any) -> list[str]:
            texts = []
            for _ in range(8):
                try:
                    api.get(counter.fail.remote())
                except KeyError as error:
                    texts.append(str(error.args[0]))
            return texts

        counter = api.remote(_Counter).remote()
        assert api.get(api.remote(fail_often).remote(counter)) == ["missing"] * 8
        wait_until(lambda: len(api.error_info()) == 8)

    @pytest.mark.needs("death_evidence")
    def test_death_of_an_actor_fails_its_direct_calls(self) -> None:
        class Mortal:
            def ping(self) -> int:
                return os.getpid()

            def die(self) -> None:
                os.kill(os.getpid(), signal.SIGKILL)

        def outlive(mortal: Any) -> list[str]:
            for _ in range(8):
                api.get(mortal.ping.remote())
            first = mortal.ping.remote()
            api.get(first)
            refs = [first, mortal.die.remote(), mortal.ping.remote(), mortal.ping.remote()]
            api.put(refs[2:])
            outcomes = []
            for ref in [*refs, mortal.ping.remote()]:
                try:
                    outcomes.append(type(api.get(ref)).__name__)
                except exceptions.ActorDiedError as error:
                    outcomes.append("SIGKILL" if "SIGKILL" in str(error) else str(error))
            return outcomes

        mortal = api.remote(Mortal).remote()
        assert api.get(api.remote(outlive).remote(mortal)) == ["int"] + ["SIGKILL"] * 4

    @pytest.mark.needs("death_evidence")
    def test_promise_of_a_dead_caller_is_broken(self) -> None:
        def promise(gate: Any, keeper: Any) -> None:
            for _ in range(8):
                api.get(gate.open.remote())
            waiting = gate.wait_again.remote()
            api.get(keeper.keep.remote([waiting]))
            os.kill(os.getpid(), signal.SIGKILL)

        class Keeper:
            def keep(self, refs: Any) -> None:
                self.refs = refs

            def look(self) -> Any:
                return api.get(self.refs)

        gate, keeper = api.remote(_AsyncGate).remote(), api.remote(Keeper).remote()
        with pytest.raises(exceptions.WorkerCrashedError):
            api.get(api.remote(max_retries=0)(promise).remote(gate, keeper))
        with pytest.raises(exceptions.OwnerDiedError, match="SIGKILL"):
            api.get(keeper.look.remote())

    def test_direct_calls_are_cancelled(self) -> None:
        def cancel_one(gate: Any) -> str:
            for _ in range(8):
                api.get(gate.open.remote())
            waiting = gate.wait_again.remote()
            with pytest.raises(ValueError, match="force=True is not supported"):
                api.cancel(waiting, force=True)
            api.cancel(waiting)
            try:
                return str(api.get(waiting))
            except exceptions.TaskCancelledError:
                return "cancelled"

        gate = api.remote(_AsyncGate).remote()
        assert api.get(api.remote(cancel_one).remote(gate)) == "cancelled"

    def test_actor_outlives_its_handle_until_direct_calls_are_answered(self) -> None:
        def drop_early() -> list[int]:
            counter = api.remote(_Counter).remote(0)
            for _ in range(8):
                api.get(counter.add.remote(0))
            refs = [counter.add.remote() for _ in range(100)]
            del counter
            return list(api.get(refs))

        assert api.get(api.remote(drop_early).remote()) == list(range(1, 101))
        wait_until(lambda: session.get_engine().statistics()["actors"] == 0)

    @pytest.mark.needs("deadlock_search")
    def test_circle_of_direct_calls_is_found(self) -> None:
        class Node:
            def set_peer(self, peer: Any) -> None:
                self.peer = peer

            def warm(self) -> None:
                for _ in range(8):
                    api.get(self.peer.ping.remote())

            def ping(self) -> int:
                return 1

            def ask(self) -> Any:
                return api.get(self.peer.answer.remote())

            def answer(self) -> Any:
                return api.get(self.peer.ping.remote())

        first, second = api.remote(Node).remote(), api.remote(Node).remote()
        api.get([first.set_peer.remote(second), second.set_peer.remote(first)])
        api.get(first.warm.remote())
        api.get(second.warm.remote())
        with pytest.raises(exceptions.DeadlockError, match=r"Node\.(answer|ping)"):
            api.get(first.ask.remote())

    def test_threads_of_one_worker_share_a_line(self) -> None:
        def call_in_threads(counter: Any) -> int:
            def add() -> None:
                for _ in range(50):
                    api.get(counter.add.remote())

            threads = [threading.Thread(target=add) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return int(api.get(counter.get_value.remote()))

        counter = api.remote(_Counter).remote(0)
        assert api.get(api.remote(call_in_threads).remote(counter)) == 200

    def test_coroutines_call_directly(self) -> None:
        class Caller:
            async def call(self, counter: Any, n: int) -> int:
                for _ in range(5):
                    await counter.add.remote(0)
                return sum(await asyncio.gather(*[counter.add.remote(1) for _ in range(n)]))

        counter, caller = api.remote(_Counter).remote(0), api.remote(Caller).remote()
        assert api.get(caller.call.remote(counter, 100)) == 5050

    def test_order_holds_behind_a_line_that_is_full(self) -> None:
        class Log:
            def __init__(self) -> None:
                self.entries: list[int] = []

            def add(self, number: int, payload: bytes, argument: Any = None) -> None:
                self.entries.append(number)

            def read(self) -> list[int]:
                return self.entries

        def flood(log: Any) -> list[int]:
            shared = api.put(1)
            for number in range(600):
                log.add.remote(number, bytes(10_000), shared if number % 200 == 199 else None)
            return list(api.get(log.read.remote()))

        log = api.remote(Log).remote()
        assert api.get(api.remote(flood).remote(log)) == list(range(600))

    def test_promise_survives_the_normal_end_of_its_worker(self) -> None:
        def pass_on(gate: Any) -> Any:
            for _ in range(8):
                api.get(gate.open.remote())
            return [gate.wait_again.remote()]

        gate = api.remote(_AsyncGate).remote()
        waiting = api.get(api.remote(max_calls=1)(pass_on).remote(gate))[0]
        api.get(gate.open.remote())
        assert api.get(waiting) == "through"

    @pytest.mark.parametrize("size", [10, 100_000])
    def test_promise_and_delivery_may_cross(self, size: int) -> None:
        class Maker:
            def make(self, size: int) -> Any:
                return [api.put(size), np.ones(size)]

        def pass_on(maker: Any, size: int) -> list[float]:
            length = api.remote(len)
            return list(api.get([length.remote(maker.make.remote(size)) for _ in range(40)]))

        maker = api.remote(Maker).remote()
        assert api.get(api.remote(pass_on).remote(maker, size)) == [2] * 40

    def test_promised_call_can_be_cancelled_by_others(self) -> None:
        def pass_on(gate: Any) -> Any:
            for _ in range(8):
                api.get(gate.open.remote())
            waiting = gate.wait_again.remote()
            api.get(gate.count.remote())
            return [waiting]

        gate = api.remote(_AsyncGate).remote()
        waiting = api.get(api.remote(pass_on).remote(gate))[0]
        api.cancel(waiting)
        with pytest.raises(exceptions.TaskCancelledError):
            api.get(waiting)

    @pytest.mark.needs("cancel_before_creation")
    def test_line_begins_behind_a_call_that_is_cancelled(self) -> None:
        def use() -> int:
            counter = api.remote(resources={"camera": 1})(_Counter).remote()
            square = api.remote(_square)
            slow = square.options(resources={"camera": 1}).remote(3)
            refs = [counter.add.remote(), counter.add.remote(), counter.add.remote()]
            last = counter.add.remote()
            api.cancel(refs[2])
            del slow
            return int(api.get(last))

        assert api.get(api.remote(use).remote()) in (3, 4)


class ProcessEngineContract(calls.ProcessCallContract, ends.ProcessEndsContract, LineContract, EngineContract):
    """What engines with processes of their own must also do."""

    def test_tasks_run_in_other_processes_at_the_same_time(self) -> None:
        class Meeting:
            def __init__(self) -> None:
                self.barrier = threading.Barrier(2)

            def come(self) -> bool:
                self.barrier.wait(30)
                return True

        meeting = api.remote(Meeting).options(max_concurrency=2).remote()

        @api.remote
        def join(meeting: Any) -> tuple[bool, int]:
            return api.get(meeting.come.remote()), os.getpid()

        (_, first), (_, second) = api.get([join.remote(meeting), join.remote(meeting)])
        assert len({first, second, os.getpid()}) == 3

    def test_get_times_out_and_the_task_goes_on(self) -> None:
        gate = api.remote(_Gate).options(max_concurrency=2).remote()
        ref = gate.wait.remote()
        with pytest.raises(exceptions.GetTimeoutError, match=r"not there after 0.05 s"):
            api.get(ref, timeout=0.05)
        with pytest.raises(TimeoutError):
            api.get(ref, timeout=0)
        gate.open.remote()
        assert api.get(ref) == "open"

    def test_get_raises_the_first_error_without_waiting_for_the_rest(self) -> None:
        gate = api.remote(_Gate).options(max_concurrency=2).remote()
        ref = gate.wait.remote()

        @api.remote
        def fail() -> None:
            raise ValueError("at once")

        with pytest.raises(ValueError, match="at once"):
            api.get([ref, fail.remote()])
        gate.open.remote()

    def test_wait_gives_what_is_ready_when_the_time_is_over(self) -> None:
        gate = api.remote(_Gate).options(max_concurrency=2).remote()
        late, there = gate.wait.remote(), api.put(1)
        assert api.wait([late, there], num_returns=2, timeout=0.05) == ([there], [late])
        gate.open.remote()

    def test_late_argument_holds_up_its_own_caller_only(self) -> None:
        gate = api.remote(_Gate).options(max_concurrency=2).remote()
        counter = api.remote(_Counter).remote()
        late = api.remote(_pass_on).remote(gate.wait_for.remote(100))
        first, second = counter.add.remote(late), counter.add.remote()

        @api.remote
        def other(counter: Any) -> int:
            return int(api.get(counter.add.remote(1000)))

        assert api.get(other.remote(counter)) == 1000
        gate.open.remote()
        assert api.get([first, second]) == [1100, 1101]

    def test_cancelled_before_start_never_runs(self) -> None:
        gate = api.remote(_Gate).options(max_concurrency=2).remote()
        counter = api.remote(_Counter).remote()

        @api.remote
        def count(late: Any, counter: Any) -> None:
            api.get(counter.add.remote())

        ref = count.remote(gate.wait.remote(), counter)
        api.cancel(ref)
        with pytest.raises(exceptions.TaskCancelledError, match=r"cancelled before it (started|was done)"):
            api.get(ref)
        gate.open.remote()
        assert api.get(counter.add.remote(0)) == 0

    @pytest.mark.needs("interrupted_sleep")
    @pytest.mark.parametrize("force", [False, True])
    def test_cancelled_while_running_is_interrupted(self, force: bool) -> None:
        gate = api.remote(_Gate).options(max_concurrency=2).remote()

        @api.remote
        def run(gate: Any) -> None:
            gate.open.remote()
            time.sleep(60)

        ref = run.remote(gate)
        api.get(gate.wait.remote())
        api.cancel(ref, force=force)
        with pytest.raises(exceptions.TaskCancelledError, match="cancelled"):
            api.get(ref, timeout=20)

    def test_cancelling_by_force_spares_the_task_in_front(self) -> None:
        gate = api.remote(_Gate).options(max_concurrency=8).remote()

        @api.remote(max_retries=0)
        def maybe_wait(gate: Any) -> str:
            return str(api.get(gate.wait.remote())) if gate is not None else "short"

        api.get([maybe_wait.remote(None) for _ in range(300)])  # the function is now known to be short: rows are deep
        late = [maybe_wait.remote(gate) for _ in range(2)]
        behind = [maybe_wait.remote(gate) for _ in range(6)]
        for ref in behind:
            api.cancel(ref, force=True)
        gate.open.remote()
        assert api.get(late, timeout=30) == ["open", "open"]

    def test_cancel_wakes_another_thread_that_waits(self) -> None:
        gate = api.remote(_Gate).options(max_concurrency=2).remote()
        ref = api.remote(_pass_on).remote(gate.wait.remote())
        canceller = threading.Timer(0.1, api.cancel, [ref])
        canceller.start()
        with pytest.raises(exceptions.TaskCancelledError, match=r"cancelled before it (started|was done)"):
            api.get(ref, timeout=30)
        canceller.join()
        gate.open.remote()

    def test_threaded_actor_answers_while_another_call_waits(self) -> None:
        class Waiter:
            def wait_for(self, refs: list[Any]) -> int:
                return len(api.wait(refs, num_returns=1)[0])

            def answer(self) -> str:
                return "here"

        gate = api.remote(_Gate).options(max_concurrency=2).remote()
        waiter = api.remote(Waiter).options(max_concurrency=2).remote()
        waiting = waiter.wait_for.remote([gate.wait.remote()])
        assert api.get([waiter.answer.remote() for _ in range(20)], timeout=30) == ["here"] * 20
        gate.open.remote()
        assert api.get(waiting, timeout=30) == 1

    @pytest.mark.needs("death_evidence")
    def test_dead_worker_is_explained(self) -> None:
        @api.remote(max_retries=0)
        def die() -> None:
            sys.stderr.write("a last word\n")
            os.kill(os.getpid(), signal.SIGKILL)

        with pytest.raises(
            exceptions.WorkerCrashedError, match=r"killed by signal 9 \(SIGKILL\)(.|\n)*a last word"
        ) as caught:
            api.get(die.remote())
        assert caught.value.death is not None
        assert caught.value.death.peak_rss_bytes > 0

    @pytest.mark.needs("death_evidence")
    def test_segmentation_fault_is_explained_with_the_stack(self) -> None:
        @api.remote(max_retries=0)
        def crash() -> None:
            os.kill(os.getpid(), signal.SIGSEGV)

        with pytest.raises(exceptions.WorkerCrashedError, match=r"SIGSEGV(.|\n)*in crash"):
            api.get(crash.remote())

    @pytest.mark.needs("death_evidence")
    def test_exit_code_is_explained(self) -> None:
        @api.remote(max_retries=0)
        def leave() -> None:
            raise SystemExit(3)

        with pytest.raises(exceptions.WorkerCrashedError, match="exited with code 3"):
            api.get(leave.remote())

    def test_dead_worker_is_tried_again_as_often_as_asked(self) -> None:
        counter = api.remote(_Counter).remote()

        @api.remote(max_retries=2)
        def die_twice(counter: Any) -> int:
            count = int(api.get(counter.add.remote()))
            if count < 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return count

        assert api.get(die_twice.remote(counter)) == 3

    @pytest.mark.needs("death_evidence")
    def test_dead_actor_is_explained(self) -> None:
        counter = api.remote(_Counter).remote()
        pid = api.get(counter.get_pid.remote())
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(exceptions.ActorDiedError, match=rf"pid {pid}\) was killed by signal 9") as caught:
            api.get([counter.add.remote() for _ in range(1000)])
        assert caught.value.death is not None

    def test_long_task_does_not_hold_up_short_ones_behind_it(self) -> None:
        gate = api.remote(_Gate).options(max_concurrency=8).remote()

        @api.remote
        def maybe_wait(gate: Any) -> None:
            if gate is not None:
                api.get(gate.wait.remote())

        api.get([maybe_wait.remote(None) for _ in range(300)])  # the function is now known to be short
        late = maybe_wait.remote(gate)
        api.get([maybe_wait.remote(None) for _ in range(300)], timeout=30)
        gate.open.remote()
        api.get(late)

    def test_threaded_actor_runs_calls_at_once(self) -> None:
        gate = api.remote(_Gate).options(max_concurrency=2).remote()
        ref = gate.wait.remote()
        gate.open.remote()
        assert api.get(ref, timeout=20) == "open"

    def test_references_outlive_the_worker_that_made_them(self) -> None:
        class Maker:
            def make(self) -> list[Any]:
                return [api.put(np.arange(1_000_000)), api.put("small")]

            def get_pid(self) -> int:
                return os.getpid()

        maker = api.remote(Maker).remote()
        large, small = api.get(maker.make.remote())
        api.kill(maker)
        assert int(api.get(large).sum()) == 499_999_500_000
        assert api.get(small) == "small"

    @pytest.mark.needs("exact_statistics")
    def test_shared_memory_is_given_back(self) -> None:
        ref = api.put(np.zeros(1_000_000))
        assert session.get_engine().statistics()["shared_bytes"] >= 8_000_000
        array = api.get(ref)
        del ref
        assert float(array.sum()) == 0.0
        del array
        assert session.get_engine().statistics()["shared_bytes"] == 0

    def test_view_into_shared_memory_outlives_its_reference(self) -> None:
        view = api.get(api.put(np.full(1_000_000, 7)))
        for _ in range(3):
            api.put(np.zeros(1_000_000, dtype=np.int64))
        assert int(view.min()) == 7

    # --- the life of actors ---

    @pytest.mark.needs("death_evidence")
    def test_actor_is_built_again_as_often_as_asked(self) -> None:
        counter = api.remote(_Counter).options(max_restarts=2).remote(100)
        for _ in range(2):
            assert api.get(counter.add.remote()) == 101
            os.kill(api.get(counter.get_pid.remote()), signal.SIGKILL)
            wait_until(lambda: _try_add(counter) == 101)
            api.get(counter.reset.remote(100))
        os.kill(api.get(counter.get_pid.remote()), signal.SIGKILL)
        wait_until(lambda: _is_dead(counter))
        with pytest.raises(exceptions.ActorDiedError, match=r"SIGKILL"):
            api.get(counter.add.remote())

    @pytest.mark.needs("death_evidence")
    def test_running_call_of_a_restarted_actor_is_lost_or_tried_again_and_the_others_wait(self, tmp_path: Path) -> None:
        class Fragile:
            def __init__(self, path: Path) -> None:
                self.path = path

            def die_once(self) -> str:
                if not self.path.exists():
                    self.path.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return "alive"

            def ping(self) -> str:
                return "pong"

        fragile = api.remote(Fragile).options(max_restarts=1).remote(tmp_path / "once")
        dying, behind = fragile.die_once.remote(), fragile.ping.remote()
        with pytest.raises(exceptions.ActorUnavailableError, match=r"was lost: .*SIGKILL(.|\n)*max_task_retries"):
            api.get(dying)
        assert api.get(behind) == "pong"
        (tmp_path / "once").unlink()
        again = api.remote(Fragile).options(max_restarts=1, max_task_retries=1).remote(tmp_path / "once")
        assert api.get([again.die_once.remote(), again.ping.remote()]) == ["alive", "pong"]

    def test_restarted_actor_knows_it_and_keeps_its_name_and_arguments(self) -> None:
        class Phoenix:
            def __init__(self, array: Any) -> None:
                self.total = float(array.sum())

            def look(self) -> tuple[float, bool]:
                return self.total, api.get_runtime_context().was_current_actor_reconstructed

            def die(self) -> None:
                os._exit(1)

        argument = api.put(np.ones(200_000))
        phoenix = api.remote(Phoenix).options(max_restarts=-1, max_task_retries=-1, name="phoenix").remote(argument)
        del argument
        assert api.get(phoenix.look.remote()) == (200_000.0, False)
        with pytest.raises(exceptions.ActorUnavailableError):
            api.get(phoenix.die.options(max_task_retries=0).remote())
        assert api.get(api.get_actor("phoenix").look.remote()) == (200_000.0, True)

    def test_threads_of_concurrency_groups(self) -> None:
        class Mixed:
            def __init__(self) -> None:
                self.event = threading.Event()

            def wait(self) -> str:
                self.event.wait()
                return "through"

            @actor.method(concurrency_group="io")
            def open(self) -> None:
                self.event.set()

        mixed = api.remote(concurrency_groups={"io": 2})(Mixed).remote()
        waiting = mixed.wait.remote()
        api.get(mixed.open.remote())
        assert api.get(waiting) == "through"

    def test_cancelled_coroutine_gets_asyncios_error(self) -> None:
        class Sleeper:
            def __init__(self) -> None:
                self.log: list[str] = []

            async def sleep(self) -> None:
                self.log.append("started")
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    self.log.append("cancelled")
                    raise

            async def look(self) -> list[str]:
                return self.log

        sleeper = api.remote(Sleeper).remote()
        sleeping = sleeper.sleep.remote()
        wait_until(lambda: bool(api.get(sleeper.look.remote())))
        api.cancel(sleeping)
        with pytest.raises(exceptions.TaskCancelledError):
            api.get(sleeping)
        assert api.get(sleeper.look.remote()) == ["started", "cancelled"]
        with pytest.raises(ValueError, match="force=True is not supported"):
            api.cancel(sleeper.sleep.remote(), force=True)

    def test_generator_pauses_for_its_reader(self) -> None:
        counter = api.remote(_Counter).remote()

        def produce(counter: Any) -> Iterator[int]:
            for _ in range(20):
                yield api.get(counter.add.remote())

        items = api.remote(_generator_backpressure_num_objects=3)(produce).remote(counter)
        assert api.get(next(items)) == 1
        wait_until(lambda: bool(api.get(counter.get_value.remote()) >= 4))
        assert api.get(counter.get_value.remote()) == 4
        assert [api.get(ref) for ref in items] == list(range(2, 21))

    def test_generator_survives_its_worker(self, tmp_path: Path) -> None:
        def count(path: Path) -> Iterator[int]:
            for i in range(6):
                if i == 3 and not path.exists():
                    path.touch()
                    time.sleep(0.05)  # so that the first items are on their way
                    os.kill(os.getpid(), signal.SIGKILL)
                yield i

        assert [api.get(ref) for ref in api.remote(count).remote(tmp_path / "died")] == list(range(6))

    def test_items_can_be_taken_while_the_generator_runs(self) -> None:
        gate = api.remote(_AsyncGate).remote()

        def produce(gate: Any) -> Iterator[str]:
            yield "early"
            yield api.get(gate.wait.remote())

        items = api.remote(produce).remote(gate)
        assert api.get(next(items)) == "early"
        assert api.wait([items], timeout=0.05) == ([], [items])
        api.get(gate.open.remote())
        assert api.get(next(items)) == "through"

    # --- processes ---

    def test_worker_ends_after_max_calls(self) -> None:
        pids = [api.get(api.remote(max_calls=2)(_get_pid).remote()) for _ in range(6)]
        assert len(set(pids)) == 3
        assert all(pids.count(pid) == 2 for pid in pids)

    def test_environment_has_its_own_processes(self) -> None:
        get_pid = api.remote(_get_pid)
        other = get_pid.options(runtime_env={"env_vars": {"HOCKET_A": "1"}})
        plain = {api.get(get_pid.remote()) for _ in range(3)}
        assert not plain & {api.get(other.remote()) for _ in range(3)}

    @pytest.mark.parametrize(("cpus", "threads"), [(1, "1"), (2, "2"), (0.5, "1")])
    def test_libraries_get_as_many_threads_as_cpus(self, cpus: float, threads: str) -> None:
        read = api.remote(num_cpus=cpus)(lambda: os.environ.get("OMP_NUM_THREADS"))
        assert api.get(read.remote()) == os.environ.get("OMP_NUM_THREADS", threads)

    @pytest.mark.needs("deadlock_search")
    def test_wait_in_a_circle_is_found(self) -> None:
        class Node:
            def set_peer(self, peer: Any) -> None:
                self.peer = peer

            def ask(self) -> Any:
                return api.get(self.peer.answer.remote())

            def answer(self) -> Any:
                return api.get(self.peer.ask.remote())

        first, second = api.remote(Node).remote(), api.remote(Node).remote()
        api.get([first.set_peer.remote(second), second.set_peer.remote(first)])
        with pytest.raises(
            exceptions.DeadlockError, match=r"Node\.ask(.|\n)*Node\.answer|Node\.answer(.|\n)*Node\.ask"
        ):
            api.get(first.ask.remote())

    @pytest.mark.needs("deadlock_search")
    def test_actor_that_waits_for_itself_is_found(self) -> None:
        class Selfish:
            def ask(self) -> Any:
                return api.get(api.get_runtime_context().current_actor.answer.remote())

            def answer(self) -> int:
                return 1

        with pytest.raises(exceptions.DeadlockError, match=r"Selfish\.ask"):
            api.get(api.remote(Selfish).remote().ask.remote())

    def test_call_in_the_row_of_a_thread_pool_can_be_cancelled(self) -> None:
        class Busy:
            def __init__(self) -> None:
                self.event = threading.Event()

            def wait(self) -> str:
                self.event.wait()
                return "through"

            @actor.method(concurrency_group="io")
            def open(self) -> None:
                self.event.set()

        busy = api.remote(max_concurrency=2, concurrency_groups={"io": 1})(Busy).remote()
        running = [busy.wait.remote() for _ in range(2)]
        queued = busy.wait.remote()
        api.get(busy.__ray_ready__.options(concurrency_group="io").remote())
        api.cancel(queued)
        api.get(busy.open.remote())
        assert api.get(running) == ["through"] * 2
        with pytest.raises(exceptions.TaskCancelledError):
            api.get(queued)

    def test_abandoned_generator_does_not_wait_for_its_reader(self) -> None:
        class Source:
            def count(self) -> Iterator[int]:
                yield from range(100)

            def ping(self) -> str:
                return "pong"

        source = api.remote(Source).remote()
        items = source.count.options(_generator_backpressure_num_objects=2).remote()
        next(items)
        del items
        assert api.get(source.ping.remote()) == "pong"

    @pytest.mark.needs("idle_deaths")
    def test_worker_that_dies_idle_costs_nobody_a_try(self) -> None:
        get_pid = api.remote(max_retries=0)(_get_pid)
        for _ in range(3):
            os.kill(api.get(get_pid.remote()), signal.SIGKILL)
            assert api.get(get_pid.remote()) > 0
            os.kill(api.get(get_pid.remote()), signal.SIGKILL)
            assert api.get(api.remote(_Counter).remote(1).get_value.remote()) == 1

    @pytest.mark.needs("processes")
    def test_a_death_costs_what_was_running_and_nothing_else(self, tmp_path: Path) -> None:
        trace = tmp_path / "runs"
        task = api.remote(max_retries=0)(_note_and_end_some)
        refs = [task.remote(str(trace), number, 20) for number in range(60)]
        failed, values = _split_outcomes(refs, exceptions.WorkerCrashedError)
        assert failed == [19, 39, 59]
        assert values == [number for number in range(60) if number not in failed]
        assert sorted(map(int, trace.read_text().split())) == list(range(60))

    @pytest.mark.needs("processes", "exact_deaths")
    def test_a_death_of_an_actor_that_is_built_again_costs_the_call_that_ran(self, tmp_path: Path) -> None:
        trace = tmp_path / "runs"

        class Mortal:
            def work(self, number: int) -> int:
                return _note_and_end_some(str(trace), number, 20)

        mortal = api.remote(max_restarts=-1)(Mortal).remote()
        failed, values = _split_outcomes(
            [mortal.work.remote(number) for number in range(60)], exceptions.ActorUnavailableError
        )
        assert failed == [19, 39, 59]
        assert values == [number for number in range(60) if number not in failed]
        assert sorted(map(int, trace.read_text().split())) == list(range(60))

    @pytest.mark.needs("processes", "exact_deaths")
    def test_items_of_a_generator_arrive_before_its_death(self) -> None:
        def produce() -> Iterator[int]:
            yield from range(100)
            os._exit(3)

        items = api.remote(max_retries=0)(produce).remote()
        assert [api.get(next(items)) for _ in range(100)] == list(range(100))
        with pytest.raises(exceptions.WorkerCrashedError):
            api.get(next(items))

    def test_workers_may_poll(self) -> None:
        def poll(refs: Any) -> tuple[int, int, Any]:
            ready, rest = api.wait(refs, num_returns=2, timeout=0)
            return len(ready), len(rest), api.get(ready[0], timeout=0)

        gate = api.remote(_AsyncGate).remote()
        there, missing = api.put("there"), gate.wait.remote()
        assert api.get(api.remote(poll).remote([there, missing])) == (1, 1, "there")

    def test_threads_of_an_actor_may_wait_for_tasks_that_call_it(self) -> None:
        class Host:
            def start(self, task: Any, me: Any) -> None:
                self.answers: list[Any] = []
                self.thread = threading.Thread(target=lambda: self.answers.append(api.get(task.remote(me))))
                self.thread.start()

            def ping(self) -> str:
                time.sleep(0.05)
                return "pong"

            def look(self) -> list[Any]:
                return self.answers

        def call_often(host: Any) -> int:
            return len(api.get([host.ping.remote() for _ in range(50)]))

        host = api.remote(Host).remote()
        api.get(host.start.remote(api.remote(call_often), host))
        wait_until(lambda: api.get(host.look.remote()) == [50])

    @pytest.mark.needs("long_chains")
    def test_long_chains_fail_and_are_freed(self) -> None:
        gate = api.remote(_AsyncGate).remote()
        ref = gate.fail_when_open.remote()
        add = api.remote(lambda x: x)
        for _ in range(3000):
            ref = add.remote(ref)
        nested: Any = api.put(1)
        for _ in range(3000):
            nested = api.put([nested])
        api.get(gate.open.remote())
        with pytest.raises(KeyError, match="opened"):
            api.get(ref)
        del ref, nested, gate
        wait_until(lambda: session.get_engine().statistics()["objects"] == 0)


def _note_and_end_some(file: str, number: int, every: int) -> int:
    """Note the run; every so manieth ends its process."""
    with open(file, "ab", buffering=0) as trace:
        trace.write(b"%d\n" % number)
    if number % every == every - 1:
        os._exit(3)
    return number


def _split_outcomes(refs: list[Any], kind: type[Exception]) -> tuple[list[int], list[Any]]:
    """Return the places of those that failed with an error of that kind, and the values of the others."""
    failed, values = [], []
    for place, ref in enumerate(refs):
        try:
            values.append(api.get(ref))
        except kind:
            failed.append(place)
    return failed, values


def _get_pid() -> int:
    return os.getpid()


class _Gate:
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


def _pass_on(value: Any) -> Any:
    return value
