"""The contract of every engine on beginnings and ends: constructors on event loops, cancelled calls, unused objects.

The classes are parts of `EngineContract` and `ProcessEngineContract`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket import exceptions
from hocket.core import actor, api
from hocket.testing.suites import programs


class _Ticker:
    """An actor that starts tasks in its constructor, each in a different way."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.ticks = 0
        self.was_set = False
        self.task = asyncio.create_task(self.tick())
        self.other = asyncio.get_event_loop().create_task(self.set())

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            self.ticks += 1

    async def set(self) -> None:
        self.was_set = True

    async def look(self) -> tuple[bool, bool, int]:
        return self.loop is asyncio.get_running_loop(), self.was_set, self.ticks

    async def get_pid(self) -> int:
        return os.getpid()


class _Recorder:
    """An actor that records which of its calls ran, and which of these began after their cancellation was known."""

    def __init__(self) -> None:
        self.ran: set[int] = set()
        self.too_late: list[int] = []

    async def run(self, number: int) -> int:
        if api.get_runtime_context().is_canceled():
            self.too_late.append(number)
        self.ran.add(number)
        await asyncio.sleep(0)
        return number

    @actor.method(concurrency_group="side")
    async def run_aside(self, number: int) -> int:
        return await self.run(number)

    async def list_ran(self) -> set[int]:
        return self.ran

    async def list_too_late(self) -> list[int]:
        return self.too_late


class _ThreadRecorder:
    def __init__(self) -> None:
        self.ran: set[int] = set()

    def run(self, number: int) -> int:
        self.ran.add(number)
        return number

    def list_ran(self) -> set[int]:
        return self.ran


def _cancel_every_second(recorder: Any, method: str, count: int, losses: tuple[type[Exception], ...] = ()) -> set[int]:
    """Make calls, cancel half of them while they run, and return those that were reported as never started.

    `losses` are the errors of an engine that loses calls beside cancelled ones.
    """
    api.get(recorder.__ray_ready__.remote())  # else all cancellations come before the first call begins
    refs = [getattr(recorder, method).remote(number) for number in range(count)]
    api.get(refs[1])
    for ref in refs[::2]:
        api.cancel(ref)
    unstarted = set()
    for number, ref in enumerate(refs):
        try:
            assert api.get(ref) == number
        except exceptions.TaskCancelledError as error:
            assert number % 2 == 0, "nobody cancelled it"
            if "before it started" in str(error):
                unstarted.add(number)
        except losses:
            continue
    return unstarted


class _Held:
    """An actor that is to end. It returns its process id."""

    def get_pid(self) -> int:
        return os.getpid()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _wait_for_end(pid: int) -> bool:
    """Return True when a process has ended, while this process makes no call to the engine; fail after a time-out."""
    programs.wait_until(lambda: not _is_alive(pid))
    return True


SLEEP_SECONDS = 1.2
"""Seconds without a call after which everything in the engine that can sleep does so. This waits for nothing to happen,
so it must be much longer than necessary."""


def _drop_after_silence(held: Any) -> bool:
    """Create an actor, let the engine fall asleep, drop the handle, and wait for the actor's end."""
    handle = held.remote()
    pid = api.get(handle.get_pid.remote())
    time.sleep(SLEEP_SECONDS)
    del handle
    return _wait_for_end(pid)


class _Dropper:
    """An actor that drops a handle while the actor is idle."""

    def drop_in_thread(self, held: Any) -> int:
        box = [held.remote()]
        pid = int(api.get(box[0].get_pid.remote()))
        self.timer = threading.Timer(SLEEP_SECONDS, box.clear)
        self.timer.start()
        return pid


class _AsyncDropper:
    async def drop_in_task(self, held: Any) -> int:
        box = [held.remote()]
        pid = int(await box[0].get_pid.remote())
        asyncio.get_running_loop().call_later(SLEEP_SECONDS, box.clear)
        return pid


def _count_for_ever() -> Iterator[int]:
    yield from itertools.count()


class _Source:
    """An actor with endless generators that counts how many of them have ended."""

    def __init__(self) -> None:
        self.ended = 0

    def count(self) -> Iterator[int]:
        try:
            yield from itertools.count()
        finally:
            self.ended += 1

    def get_ended(self) -> int:
        return self.ended


class _AsyncSource(_Source):
    async def count_apart(self) -> AsyncIterator[int]:
        try:
            for number in itertools.count():
                await asyncio.sleep(0)
                yield number
        finally:
            self.ended += 1


class _Node:
    """An actor that holds handles on others, or on itself."""

    def get_pid(self) -> int:
        return os.getpid()

    def hold(self, others: list[Any]) -> None:
        self.others = others

    def hold_itself(self) -> None:
        self.others = [api.get_runtime_context().current_actor]

    def ask_often(self, times: int) -> int:
        return [int(api.get(self.others[0].get_pid.remote())) for _ in range(times)][-1]

    def wait_for(self, path: Path) -> None:
        programs.wait_until(path.exists)

    def have_wait(self, path: Path, then: Path) -> None:
        api.get(self.others[0].wait_for.remote(path))
        then.touch()


class EndsContract:
    """The ends in every engine. Part of `EngineContract`."""

    def test_constructor_of_an_asynchronous_actor_runs_on_its_loop(self) -> None:
        ticker = api.remote(_Ticker).remote()
        programs.wait_until(lambda: bool(api.get(ticker.look.remote())[2] >= 3))
        assert api.get(ticker.look.remote())[:2] == (True, True)

    def test_constructor_of_an_asynchronous_actor_that_raises(self) -> None:
        class Broken:
            def __init__(self) -> None:
                self.task = asyncio.create_task(asyncio.sleep(3600))
                raise KeyError("no key")

            async def ping(self) -> None: ...

        with pytest.raises(exceptions.ActorDiedError, match="`Broken`"):
            api.get(api.remote(Broken).remote().ping.remote())

    def test_constructor_cannot_be_a_coroutine(self) -> None:
        class Async:
            async def __init__(self) -> None:  # type: ignore[misc]
                await asyncio.sleep(0)

        with pytest.raises(TypeError, match=r"`Async.__init__` is a coroutine function.*Write `def __init__`"):
            api.remote(Async)


class ProcessEndsContract:
    """The ends in engines with processes of their own. Part of `ProcessEngineContract`."""

    race_rounds = 5
    """How often to run a race that depends on chance. Once is enough for an engine that relies on another system."""
    race_calls = 500
    """The number of calls in a race."""
    race_losses: tuple[type[Exception], ...] = ()
    """The errors of calls that an engine loses beside cancelled ones, if one of its limits allows such losses."""

    def test_asynchronous_actor_that_is_built_again_has_its_tasks_again(self) -> None:
        ticker = api.remote(max_restarts=1, max_task_retries=-1)(_Ticker).remote()
        pid = api.get(ticker.get_pid.remote())
        programs.wait_until(lambda: bool(api.get(ticker.look.remote())[2] >= 3))
        api.kill(ticker, no_restart=False)
        programs.wait_until(lambda: bool(api.get(ticker.get_pid.remote()) != pid))
        programs.wait_until(lambda: bool(api.get(ticker.look.remote())[2] >= 3))

    def test_calls_that_come_while_a_constructor_runs_on_the_loop(self, tmp_path: Path) -> None:
        class Slow:
            def __init__(self, path: Path) -> None:
                self.ran: list[int] = []
                (path / "began").touch()
                while not (path / "go").exists():
                    time.sleep(0.001)

            async def run(self, number: int) -> int:
                self.ran.append(number)
                return number

            @actor.method(concurrency_group="side")
            async def run_aside(self, number: int) -> int:
                return number

            async def list_ran(self) -> list[int]:
                return self.ran

        slow = api.remote(concurrency_groups={"side": 1})(Slow).remote(tmp_path)
        first, cancelled, last = [slow.run.remote(number) for number in range(3)]
        aside = slow.run_aside.remote(7)
        programs.wait_until((tmp_path / "began").exists)
        api.cancel(cancelled)
        (tmp_path / "go").touch()
        assert api.get([first, last, aside]) == [0, 2, 7]
        with pytest.raises(exceptions.TaskCancelledError, match="was cancelled"):
            api.get(cancelled)
        assert 1 not in api.get(slow.list_ran.remote())

    def test_what_a_cancelled_coroutine_returns_is_dropped(self, tmp_path: Path) -> None:
        class Stubborn:
            def begin(self, path: Path) -> None:
                path.touch()

            async def run(self, path: Path) -> str:
                try:
                    self.begin(path)
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    return "caught"
                return "not cancelled"

        began = tmp_path / "began"
        call = api.remote(Stubborn).remote().run.remote(began)
        programs.wait_until(began.exists)
        api.cancel(call)
        with pytest.raises(exceptions.TaskCancelledError):
            api.get(call)

    @pytest.mark.parametrize("method", ["run", "run_aside"])
    @pytest.mark.parametrize("size", [1, 50])
    def test_cancelled_coroutine_that_never_started_did_not_run(self, method: str, size: int) -> None:
        for number in range(self.race_rounds):
            recorder = api.remote(max_concurrency=size, concurrency_groups={"side": size})(_Recorder).remote()
            unstarted = _cancel_every_second(recorder, method, 400, self.race_losses)
            assert not unstarted & api.get(recorder.list_ran.remote()), f"in round {number}"
            if method == "run":  # in a group, another thread may learn of it just as the call begins
                assert api.get(recorder.list_too_late.remote()) == []

    @pytest.mark.parametrize("size", [1, 4])
    def test_cancelled_call_that_never_started_did_not_run(self, size: int) -> None:
        recorder = api.remote(max_concurrency=size)(_ThreadRecorder).remote()
        unstarted = _cancel_every_second(recorder, "run", self.race_calls, self.race_losses)
        assert not unstarted & api.get(recorder.list_ran.remote())

    @pytest.mark.parametrize("kind", [_Recorder, _ThreadRecorder])
    def test_cancelled_direct_call_that_never_started_did_not_run(self, kind: type) -> None:
        groups = {"side": 1} if kind is _Recorder else {}
        recorder = api.remote(max_concurrency=2, concurrency_groups=groups)(kind).remote()

        losses = self.race_losses

        @api.remote(num_cpus=0)
        def call(recorder: Any) -> tuple[set[int], set[int]]:
            unstarted = _cancel_every_second(recorder, "run", 500, losses)
            return unstarted, api.get(recorder.list_ran.remote())

        unstarted, ran = api.get(call.remote(recorder))
        assert not unstarted & ran

    @pytest.mark.slow
    def test_handle_that_is_dropped_while_the_driver_computes_ends_its_actor(self) -> None:
        assert _drop_after_silence(api.remote(_Held))

    @pytest.mark.slow
    def test_handle_that_a_task_drops_ends_its_actor_while_the_task_goes_on(self) -> None:
        assert api.get(api.remote(_drop_after_silence).remote(api.remote(_Held)))

    @pytest.mark.slow
    def test_handle_that_a_thread_drops_while_the_driver_waits_ends_its_actor(self) -> None:
        box = [api.remote(_Held).remote()]
        pid = api.get(box[0].get_pid.remote())
        timer = threading.Timer(SLEEP_SECONDS, box.clear)
        timer.start()
        assert api.get(api.remote(_wait_for_end).remote(pid))
        timer.join()

    @pytest.mark.slow
    def test_handle_that_a_thread_of_an_idle_actor_drops_ends_the_actor(self) -> None:
        dropper = api.remote(_Dropper).remote()
        assert _wait_for_end(api.get(dropper.drop_in_thread.remote(api.remote(_Held))))

    @pytest.mark.slow
    def test_handle_that_a_coroutine_drops_ends_its_actor(self) -> None:
        dropper = api.remote(_AsyncDropper).remote()
        assert _wait_for_end(api.get(dropper.drop_in_task.remote(api.remote(_Held))))

    # --- generators without a reader ---

    @pytest.mark.needs("abandoned_generators")
    @pytest.mark.parametrize("limit", [None, 2])
    def test_abandoned_generator_gives_its_cpu_back(self, limit: int | None) -> None:
        count = api.remote(_count_for_ever)
        if limit:
            count = count.options(_generator_backpressure_num_objects=limit)
        sources = [count.remote() for _ in range(3)]  # one for each CPU, and another that waits for a CPU
        assert api.get([next(sources[0]), next(sources[1])]) == [0, 0]
        sources.clear()
        assert api.get(api.remote(programs.get_pid).remote(), timeout=20) > 0

    @pytest.mark.needs("abandoned_generators")
    @pytest.mark.parametrize("limit", [-1, 2])
    @pytest.mark.parametrize(
        ("kind", "method", "size"),
        [(_Source, "count", 1), (_Source, "count", 2), (_AsyncSource, "count", 2), (_AsyncSource, "count_apart", 2)],
    )
    def test_abandoned_generator_of_an_actor_ends(self, kind: type, method: str, size: int, limit: int) -> None:
        source = api.remote(max_concurrency=size)(kind).remote()
        items = getattr(source, method).options(_generator_backpressure_num_objects=limit).remote()
        assert api.get(next(items)) == 0
        del items
        programs.wait_until(lambda: api.get(source.get_ended.remote()) == 1)

    @pytest.mark.needs("abandoned_generators")
    def test_generator_that_a_task_read_ends_with_its_reader(self) -> None:
        source = api.remote(_Source).remote()

        @api.remote(max_retries=0)
        def read(source: Any, dies: bool) -> int:
            items = source.count.options(_generator_backpressure_num_objects=2).remote()
            read = [int(api.get(next(items))) for _ in range(5)]
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            return read[-1]

        assert api.get(read.remote(source, False)) == 4
        programs.wait_until(lambda: api.get(source.get_ended.remote()) == 1)
        with pytest.raises(exceptions.WorkerCrashedError, match=r"signal 9|died"):
            api.get(read.remote(source, True))
        programs.wait_until(lambda: api.get(source.get_ended.remote()) == 2)

    def test_generator_whose_end_is_awaited_goes_on(self) -> None:
        @api.remote
        def count(n: int) -> Iterator[int]:
            yield from range(n)

        end = count.remote(100).completed()
        assert api.get(end) is None

    @pytest.mark.needs("lent_cpus_of_generators")
    def test_generator_that_waits_for_its_reader_lends_its_cpu(self) -> None:
        count = api.remote(_generator_backpressure_num_objects=2)(_count_for_ever)
        sources = [count.remote() for _ in range(2)]
        double = api.remote(lambda x: 2 * x)
        for number in range(10):
            assert api.get([double.remote(next(source)) for source in sources], timeout=20) == [2 * number] * 2

    @pytest.mark.parametrize("limit", [1, 2])
    def test_generator_that_is_tried_again_waits_for_its_reader_again(self, tmp_path: Path, limit: int) -> None:
        def count(path: Path) -> Iterator[int]:
            for number in range(20):
                if number == 10 and not path.exists():
                    path.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield number

        items = api.remote(_generator_backpressure_num_objects=limit)(count).remote(tmp_path / "died")
        assert [api.get(item) for item in items] == list(range(20))

    # --- actors that hold each other ---

    @pytest.mark.needs("unreachable_actors")
    def test_actor_that_holds_its_own_handle_ends(self) -> None:
        pids = []
        for give in (False, True):
            node = api.remote(_Node).remote()
            pids.append(api.get(node.get_pid.remote()))
            api.get(node.hold.remote([node]) if give else node.hold_itself.remote())
            del node
        programs.wait_until(lambda: not any(map(_is_alive, pids)))

    @pytest.mark.needs("unreachable_actors")
    @pytest.mark.parametrize("is_direct", [False, True])
    def test_ring_of_actors_ends(self, tmp_path: Path, is_direct: bool) -> None:
        nodes = [api.remote(max_restarts=0 if is_direct else 2)(_Node).remote() for _ in range(3)]
        pids = api.get([node.get_pid.remote() for node in nodes])
        for node, other in zip(nodes, nodes[1:] + nodes[:1], strict=True):
            api.get(node.hold.remote(api.put([other])))
        assert [api.get(node.ask_often.remote(10)) for node in nodes] == pids[1:] + pids[:1]
        del node, other
        while nodes:
            assert all(map(_is_alive, pids))
            nodes.pop()
        programs.wait_until(lambda: not any(map(_is_alive, pids)))

    @pytest.mark.needs("unreachable_actors")
    def test_ring_that_somebody_can_reach_stays(self) -> None:
        first, second, third = [api.remote(_Node).remote() for _ in range(3)]
        api.get([first.hold.remote([second]), second.hold.remote([first, second]), third.hold.remote([third])])
        gone = api.get(third.get_pid.remote())
        kept = api.put({"inside": [second]})
        del first, second, third
        programs.wait_until(lambda: not _is_alive(gone))  # there was a search, and it did not find the others
        assert api.get(api.get(kept)["inside"][0].ask_often.remote(3)) > 0

    @pytest.mark.needs("unreachable_actors")
    def test_ring_that_works_stays_until_it_has_ended_its_work(self, tmp_path: Path) -> None:
        first, second, other = [api.remote(_Node).remote() for _ in range(3)]
        pids = api.get([first.get_pid.remote(), second.get_pid.remote()])
        gone = api.get(other.get_pid.remote())
        api.get([first.hold.remote([second]), second.hold.remote([first]), other.hold.remote([other])])
        api.get(first.ask_often.remote(10))  # from now on it calls directly
        first.have_wait.remote(tmp_path / "go", tmp_path / "went")
        del first, second, other
        programs.wait_until(lambda: not _is_alive(gone))
        assert all(map(_is_alive, pids))
        (tmp_path / "go").touch()
        programs.wait_until(lambda: not any(map(_is_alive, pids)))
        assert (tmp_path / "went").exists()
