"""What every engine must do about beginnings and ends: constructors on event loops, cancelled calls, and whatever nobody can reach any more.

Parts of `EngineContract` and `ProcessEngineContract`.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hocket import exceptions
from hocket.core import actor, api


def wait_until(is_done: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Wait for what no reference tells of; fails after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not is_done():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


class _Ticker:
    """Starts tasks in its constructor, each in another way."""

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


class _Recorder:
    """Remembers which of its calls ran, and which of these began although their cancellation was known."""

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


def _cancel_every_second(recorder: Any, method: str, count: int) -> set[int]:
    """Make calls and cancel half of them while they run; return those that were reported as never started."""
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
    return unstarted


class _Held:
    """An actor that is to end; says where it lives."""

    def get_pid(self) -> int:
        return os.getpid()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _wait_for_end(pid: int) -> bool:
    """Tell whether a process ends soon, while this one asks nothing of the engine."""
    wait_until(lambda: not _is_alive(pid))
    return True


SLEEP_SECONDS = 1.2
"""After so long without a call everything in the engine that can go to sleep has done so. That much longer than that is needed: it is no
wait for something to happen, but for nothing to happen."""


def _drop_after_silence(held: Any) -> bool:
    """Create an actor, let the engine fall asleep, drop the handle, and wait for the actor's end."""
    handle = held.remote()
    pid = api.get(handle.get_pid.remote())
    time.sleep(SLEEP_SECONDS)
    del handle
    return _wait_for_end(pid)


class _Dropper:
    """Drops a handle while nothing is asked of it."""

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


class EndsContract:
    """What every engine must do. Part of `EngineContract`."""

    def test_constructor_of_an_asynchronous_actor_runs_on_its_loop(self) -> None:
        ticker = api.remote(_Ticker).remote()
        wait_until(lambda: bool(api.get(ticker.look.remote())[2] >= 3))
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
    """What engines with processes of their own must also do. Part of `ProcessEngineContract`."""

    def test_asynchronous_actor_that_is_built_again_has_its_tasks_again(self) -> None:
        ticker = api.remote(max_restarts=1, max_task_retries=-1)(_Ticker).remote()
        wait_until(lambda: bool(api.get(ticker.look.remote())[2] >= 20))
        api.kill(ticker, no_restart=False)
        wait_until(lambda: bool(api.get(ticker.look.remote())[2] < 20))
        wait_until(lambda: bool(api.get(ticker.look.remote())[2] >= 20))

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
        wait_until((tmp_path / "began").exists)
        api.cancel(cancelled)
        (tmp_path / "go").touch()
        assert api.get([first, last, aside]) == [0, 2, 7]
        with pytest.raises(exceptions.TaskCancelledError, match="was cancelled"):
            api.get(cancelled)
        assert api.get(slow.list_ran.remote()) == [0, 2]

    @pytest.mark.parametrize("method", ["run", "run_aside"])
    @pytest.mark.parametrize("size", [1, 50])
    def test_cancelled_coroutine_that_never_started_did_not_run(self, method: str, size: int) -> None:
        for number in range(5):
            recorder = api.remote(max_concurrency=size, concurrency_groups={"side": size})(_Recorder).remote()
            unstarted = _cancel_every_second(recorder, method, 400)
            assert not unstarted & api.get(recorder.list_ran.remote()), f"in round {number}"
            if method == "run":  # another thread may learn of it in the moment in which the call begins
                assert api.get(recorder.list_too_late.remote()) == []

    @pytest.mark.parametrize("size", [1, 4])
    def test_cancelled_call_that_never_started_did_not_run(self, size: int) -> None:
        recorder = api.remote(max_concurrency=size)(_ThreadRecorder).remote()
        unstarted = _cancel_every_second(recorder, "run", 500)
        assert not unstarted & api.get(recorder.list_ran.remote())

    @pytest.mark.parametrize("kind", [_Recorder, _ThreadRecorder])
    def test_cancelled_direct_call_that_never_started_did_not_run(self, kind: type) -> None:
        groups = {"side": 1} if kind is _Recorder else {}
        recorder = api.remote(max_concurrency=2, concurrency_groups=groups)(kind).remote()

        @api.remote(num_cpus=0)
        def call(recorder: Any) -> tuple[set[int], set[int]]:
            unstarted = _cancel_every_second(recorder, "run", 500)
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
