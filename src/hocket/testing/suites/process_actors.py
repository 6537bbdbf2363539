"""The contract of engines with processes of their own on actors: restarts, generators, ends."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from hocket import exceptions
from hocket.core import api
from hocket.testing.suites import programs

QUIET_SECONDS = 0.1
"""Seconds of work without a call to the engine, after which the engine may serve itself in a different way."""


class ProcessActorContract:
    """The actors of engines with processes of their own. Part of `ProcessEngineContract`."""

    @pytest.mark.needs("death_evidence")
    def test_actor_is_built_again_as_often_as_asked(self) -> None:
        counter = api.remote(programs.Counter).options(max_restarts=2).remote(100)
        for _ in range(2):
            assert api.get(counter.add.remote()) == 101
            os.kill(api.get(counter.get_pid.remote()), signal.SIGKILL)
            programs.wait_until(lambda: programs.try_add(counter) == 101)
            api.get(counter.reset.remote(100))
        os.kill(api.get(counter.get_pid.remote()), signal.SIGKILL)
        programs.wait_until(lambda: programs.is_dead(counter))
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

    @pytest.mark.parametrize("way", ["dies", "hangs"])
    def test_actor_that_is_being_built_again_ends_with_its_last_handle(self, way: str, tmp_path: Path) -> None:
        class Unbuildable:
            def __init__(self, births: Path) -> None:
                with births.open("a") as file:
                    file.write(f"{os.getpid()}\n")
                is_first = len(births.read_text().split()) == 1
                if way == "dies" or is_first:
                    os._exit(1)
                time.sleep(1000)

        def count() -> int:
            return len(births.read_text().split()) if births.exists() else 0

        def is_named() -> bool:
            try:
                api.get_actor("unbuildable")
            except ValueError:
                return False
            return True

        births = tmp_path / "births"
        actor = api.remote(Unbuildable).options(max_restarts=-1, name="unbuildable").remote(births)
        programs.wait_until(lambda: count() >= 2)
        assert is_named()
        del actor
        programs.wait_until(lambda: not is_named())
        programs.wait_until(lambda: not psutil.pid_exists(int(births.read_text().split()[-1])))

    @pytest.mark.parametrize("is_put", [True, False])
    def test_restarted_actor_knows_it_and_keeps_its_name_and_arguments(self, is_put: bool) -> None:
        class Phoenix:
            def __init__(self, array: Any, *, more: Any) -> None:
                self.total = float(array.sum() + more.sum())

            def look(self) -> tuple[float, bool]:
                return self.total, api.get_runtime_context().was_current_actor_reconstructed

            def die(self) -> None:
                os._exit(1)

        array, more = np.ones(200_000), np.ones(100_000)
        argument, other = (api.put(array), api.put(more)) if is_put else (array, more)
        build = api.remote(Phoenix).options(max_restarts=-1, max_task_retries=-1, name="phoenix").remote
        phoenix = build(argument, more=other)
        del argument, other
        assert api.get(phoenix.look.remote()) == (300_000.0, False)
        for _ in range(3):  # several times, because objects without references vanish only a moment later
            with pytest.raises(exceptions.ActorUnavailableError):
                api.get(phoenix.die.options(max_task_retries=0).remote())
            assert api.get(api.get_actor("phoenix").look.remote()) == (300_000.0, True)

    def test_threads_of_concurrency_groups(self) -> None:
        mixed = api.remote(concurrency_groups={"io": 2})(programs.GroupedGate).remote()
        waiting = mixed.wait.remote()
        api.get(mixed.open.remote())
        assert api.get(waiting) == "through"

    def test_calls_that_wait_for_each_other_all_have_a_thread(self) -> None:
        class Meeting:
            def __init__(self) -> None:
                self.barrier = threading.Barrier(3)

            def call(self) -> bool:
                return True

            def meet(self) -> bool:
                return self.barrier.wait(20) >= 0

        meeting = api.remote(max_concurrency=3)(Meeting).remote()
        for _ in range(50):
            assert all(api.get([meeting.call.remote(), meeting.call.remote()]))
            assert all(api.get([meeting.meet.remote() for _ in range(3)]))

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
        programs.wait_until(lambda: bool(api.get(sleeper.look.remote())))
        api.cancel(sleeping)
        with pytest.raises(  # Ray's message has no name
            exceptions.TaskError, match=r"^(Call `\S*Sleeper.sleep`|The task) was cancelled"
        ) as caught:
            api.get(sleeping)
        assert isinstance(pickle.loads(pickle.dumps(caught.value)), exceptions.TaskCancelledError)
        assert api.get(sleeper.look.remote()) == ["started", "cancelled"]
        with pytest.raises(ValueError, match="force=True is not supported"):
            api.cancel(sleeper.sleep.remote(), force=True)

    def test_generator_pauses_for_its_reader(self) -> None:
        counter = api.remote(programs.Counter).remote()

        def produce(counter: Any) -> Iterator[int]:
            for _ in range(20):
                yield api.get(counter.add.remote())

        items = api.remote(_generator_backpressure_num_objects=3)(produce).remote(counter)
        assert api.get(next(items)) == 1
        programs.wait_until(lambda: bool(api.get(counter.get_value.remote()) >= 4))
        assert api.get(counter.get_value.remote()) == 4
        assert [api.get(ref) for ref in items] == list(range(2, 21))

    @pytest.mark.parametrize("kind", ["asynchronous", "ordinary", "threaded"])
    def test_items_of_an_actor_come_while_its_generator_waits_for_their_reader(self, kind: str, tmp_path: Path) -> None:
        class Producer:
            async def asynchronous(self, seen: Path) -> AsyncIterator[int]:
                for number in range(5):
                    yield number
                await asyncio.to_thread(programs.wait_until, seen.exists)
                yield 5

            def ordinary(self, seen: Path) -> Iterator[int]:
                yield from range(5)
                programs.wait_until(seen.exists)
                yield 5

        class Threaded:
            threaded = Producer.ordinary

        is_threaded = kind == "threaded"
        producer = (api.remote(Threaded).options(max_concurrency=2) if is_threaded else api.remote(Producer)).remote()
        api.get(producer.__ray_ready__.remote())  # else the first item hides a slow start
        for turn in range(3):
            seen = tmp_path / str(turn)
            items = getattr(producer, kind).options(num_returns="streaming").remote(seen)
            assert [api.get(next(items)) for _ in range(5)] == list(range(5))
            seen.touch()
            assert api.get(next(items)) == 5

    @pytest.mark.parametrize("kind", ["task", "actor"])
    def test_items_come_while_a_generator_goes_on_that_was_quiet(self, kind: str, tmp_path: Path) -> None:
        class Producer:
            def produce(self, seen: Path) -> Iterator[int]:
                yield from produce(seen)

        def produce(seen: Path) -> Iterator[int]:
            time.sleep(QUIET_SECONDS)
            yield from range(3)
            programs.wait_until(seen.exists)
            yield 3

        work = api.remote(Producer).remote().produce if kind == "actor" else api.remote(produce)
        items = work.options(num_returns="streaming").remote(tmp_path / "seen")
        assert [api.get(next(items)) for _ in range(3)] == [0, 1, 2]
        (tmp_path / "seen").touch()
        assert api.get(next(items)) == 3

    def test_answer_comes_while_the_next_call_runs_after_one_that_was_quiet(self, tmp_path: Path) -> None:
        class Ordinary:
            def rest(self) -> None:
                time.sleep(QUIET_SECONDS)

            def answer(self) -> int:
                return 1

            def wait(self, seen: Path) -> int:
                programs.wait_until(seen.exists)
                return 2

        ordinary, seen = api.remote(Ordinary).remote(), tmp_path / "seen"
        refs = [ordinary.rest.remote(), ordinary.answer.remote(), ordinary.wait.remote(seen)]
        assert api.get(refs[1]) == 1
        seen.touch()
        assert api.get(refs[2]) == 2

    @pytest.mark.parametrize("kind", ["task", "actor", "threaded", "asynchronous"])
    def test_calls_of_a_worker_go_while_it_does_something_else(self, kind: str, tmp_path: Path) -> None:
        class Called:
            def __init__(self) -> None:
                self.is_told = asyncio.Event()

            async def wait(self) -> None:
                await self.is_told.wait()

            async def tell(self, seen: Path) -> None:
                self.note(seen)
                self.is_told.set()

            def note(self, seen: Path) -> None:
                seen.touch()

        class Caller:
            def call(self, called: object, seen: Path) -> None:
                call(called, seen)

        class AsynchronousCaller:
            async def call(self, called: object, seen: Path) -> None:
                call(called, seen)

        def call(called: Any, seen: Path) -> None:
            for turn in range(5):
                api.get(called.note.remote(seen.with_suffix(f".{turn}")))
            time.sleep(QUIET_SECONDS)
            refs = [called.wait.remote(), called.tell.remote(seen)]
            programs.wait_until(seen.exists)
            api.get(refs)

        called = api.remote(Called).remote()
        if kind == "task":
            work: Any = api.remote(call)
        else:
            made: Any = api.remote(AsynchronousCaller if kind == "asynchronous" else Caller)
            work = (made.options(max_concurrency=2) if kind == "threaded" else made).remote().call
        api.get(work.remote(called, tmp_path / "seen"))

    def test_generator_goes_on_when_its_item_is_taken_while_another_thread_waits(self, tmp_path: Path) -> None:
        def produce(folder: Path) -> Iterator[int]:
            for number in range(3):
                (folder / f"item-{number}").touch()
                yield number

        def read(folder: Path) -> list[int]:
            waiting = threading.Thread(target=api.get, args=(api.remote(programs.wait_until).remote(last.exists),))
            waiting.start()
            options: dict[str, Any] = {"num_returns": "streaming", "_generator_backpressure_num_objects": 1}
            items = api.remote(produce).options(**options).remote(folder)
            refs = [next(items)]
            for number in (1, 2):
                programs.wait_until((folder / f"item-{number}").exists)
                refs.append(next(items))
            last.touch()
            waiting.join()
            found: list[int] = api.get(refs)
            return found

        last = tmp_path / "last"
        assert api.get(api.remote(num_cpus=0)(read).remote(tmp_path)) == [0, 1, 2]

    @pytest.mark.needs("order_in_event_loops")
    def test_answer_comes_while_the_next_call_holds_up_the_event_loop(self, tmp_path: Path) -> None:
        class Asynchronous:
            async def first(self) -> int:
                return 1

            def second(self, seen: Path) -> int:
                programs.wait_until(seen.exists)
                return 2

        actor = api.remote(Asynchronous).remote()
        for turn in range(5):
            seen = tmp_path / str(turn)
            first, second = actor.first.remote(), actor.second.remote(seen)
            assert api.get(first) == 1
            seen.touch()
            assert api.get(second) == 2

    def test_generator_survives_its_worker(self, tmp_path: Path) -> None:
        def count(path: Path) -> Iterator[int]:
            for i in range(6):
                if i == 3 and not path.exists():
                    path.touch()
                    time.sleep(0.05)  # until the first items are on their way
                    os.kill(os.getpid(), signal.SIGKILL)
                yield i

        assert [api.get(ref) for ref in api.remote(count).remote(tmp_path / "died")] == list(range(6))

    def test_items_can_be_taken_while_the_generator_runs(self) -> None:
        gate = api.remote(programs.AsyncGate).remote()

        def produce(gate: Any) -> Iterator[str]:
            yield "early"
            yield api.get(gate.wait.remote())

        items = api.remote(produce).remote(gate)
        assert api.get(next(items)) == "early"
        assert api.wait([items], timeout=0.05) == ([], [items])
        api.get(gate.open.remote())
        assert api.get(next(items)) == "through"
