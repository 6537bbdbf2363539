"""What every engine must do about calls on actors: which method is called, what it may return, how it is cancelled, how it ends its actor.

Parts of `EngineContract` and `ProcessEngineContract`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hocket import exceptions
from hocket.core import actor, api


def _wait_until(is_done: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not is_done():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def _square(x: int) -> int:
    return x * x


class _Gauge:
    """Has methods that its attributes hide in Python."""

    UNIT: ClassVar[str] = "mm"

    def __init__(self) -> None:
        vars(self).update(value=3, build=None, double=[1], items=iter(()))

    def value(self) -> int:
        return int(self.__dict__["value"])

    @classmethod
    def build(cls) -> str:
        return cls.__name__

    @staticmethod
    def double(x: int) -> int:
        return 2 * x

    def items(self) -> Any:
        yield self.__dict__["value"]


class _Passer:
    """An asynchronous actor that returns references."""

    async def start(self, x: int) -> Any:
        return api.remote(_square).remote(x)

    def start_plainly(self, x: int) -> Any:
        return api.remote(_square).remote(x)


class _Leaver:
    """Ends itself, and catches what that raises."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def leave(self, *, by_error: bool = False) -> str:
        try:
            actor.exit_actor()
        except BaseException as error:
            if by_error:
                raise ValueError("another one") from error
        return "still here"

    def leave_in_background(self) -> str:
        threading.Thread(target=self._leave).start()
        return "soon"

    def _leave(self) -> None:
        try:
            actor.exit_actor()
        finally:
            (self.path / "left").touch()

    def ping(self) -> str:
        return "pong"

    def __ray_shutdown__(self) -> None:
        (self.path / f"farewell-{time.monotonic_ns()}").touch()


class _AsyncLeaver(_Leaver):
    async def leave(self, *, by_error: bool = False) -> str:  # type: ignore[override]
        try:
            actor.exit_actor()
        except BaseException as error:
            if by_error:
                raise ValueError("another one") from error
            await asyncio.sleep(0.01)
        return "still here"

    async def leave_in_background(self) -> str:  # type: ignore[override]
        self.task = asyncio.create_task(self._leave_soon())
        return "soon"

    async def _leave_soon(self) -> None:
        await asyncio.sleep(0)
        self._leave()


def _count_farewells(path: Path) -> int:
    return len(list(path.glob("farewell-*")))


class CallContract:
    """Part of `EngineContract`."""

    def test_an_attribute_does_not_hide_the_method_of_its_name(self) -> None:
        gauge = api.remote(_Gauge).remote()
        assert api.get([gauge.value.remote(), gauge.build.remote(), gauge.double.remote(4)]) == [3, "_Gauge", 8]
        assert [api.get(item) for item in gauge.items.remote()] == [3]

    def test_what_belongs_to_the_class_is_found_under_the_decorated_name(self) -> None:
        remote_class: Any = api.remote(_Gauge)
        assert remote_class.UNIT == remote_class.options(num_cpus=1).UNIT == "mm"
        assert (remote_class.double(4), remote_class.build()) == (8, "_Gauge")
        with pytest.raises(AttributeError, match="no attribute 'SIZE'"):
            _ = remote_class.SIZE

    @pytest.mark.parametrize("name", ["start", "start_plainly"])
    def test_asynchronous_actor_returns_a_reference_as_it_is(self, name: str) -> None:
        passer = api.remote(_Passer).remote()
        inner = api.get(getattr(passer, name).remote(5))
        assert api.get(inner) == 25

    @pytest.mark.parametrize("by_error", [False, True])
    @pytest.mark.parametrize("cls", [_Leaver, _AsyncLeaver])
    def test_catching_the_exception_of_exit_actor_does_not_prevent_the_exit(
        self, cls: type, by_error: bool, tmp_path: Path
    ) -> None:
        leaver = api.remote(cls).remote(tmp_path)
        with pytest.raises(exceptions.ActorDiedError):
            api.get(leaver.leave.remote(by_error=by_error))
        with pytest.raises(exceptions.ActorDiedError):
            api.get(leaver.ping.remote())
        _wait_until(lambda: _count_farewells(tmp_path) > 0)
        assert _count_farewells(tmp_path) == 1

    def test_reference_becomes_a_future_before_its_loop_runs(self) -> None:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            asyncio.set_event_loop(loop)
            try:
                there, later = api.put(1), api.remote(_square).remote(3)
                futures = [there.as_future(), later.as_future()]
                assert [loop.run_until_complete(future) for future in futures] == [1, 9]
            finally:
                asyncio.set_event_loop(None)


class _Patient:
    """Works until it is told to stop."""

    def __init__(self, path: Path, inner: Any = None) -> None:
        self.path = path
        self.inner = inner

    def ping(self) -> str:
        return "pong"

    def work(self) -> str:
        (self.path / "started").touch()
        self._wait_for_word()
        return "heard"

    def fail(self) -> None:
        (self.path / "started").touch()
        self._wait_for_word()
        raise ValueError("stopped")

    def _wait_for_word(self) -> None:
        while not api.get_runtime_context().is_canceled():
            time.sleep(0.001)
        (self.path / "heard").touch()

    def pass_on(self) -> Any:
        return api.get(self.inner.work.remote())


class ProcessCallContract:
    """Part of `ProcessEngineContract`."""

    @pytest.mark.parametrize("cls", [_Leaver, _AsyncLeaver])
    @pytest.mark.needs("background_exit")
    def test_actor_ends_itself_from_the_background(self, cls: type, tmp_path: Path, capfd: Any) -> None:
        leaver = api.remote(cls).remote(tmp_path)
        assert api.get(leaver.leave_in_background.remote()) == "soon"
        _wait_until(lambda: _count_farewells(tmp_path) > 0)
        with pytest.raises(exceptions.ActorDiedError, match="ended itself with `exit_actor`"):
            api.get(leaver.ping.remote())
        assert _count_farewells(tmp_path) == 1
        assert "never retrieved" not in capfd.readouterr().err

    @pytest.mark.parametrize("max_concurrency", [1, 2])
    @pytest.mark.parametrize(("method", "error"), [("work", exceptions.TaskCancelledError), ("fail", ValueError)])
    def test_running_call_of_a_plain_actor_is_told(
        self, tmp_path: Path, method: str, error: type[Exception], max_concurrency: int
    ) -> None:
        """What it returns then does not count; what it raises does."""
        patient = api.remote(_Patient).options(max_concurrency=max_concurrency).remote(tmp_path)
        ref = getattr(patient, method).remote()
        _wait_until((tmp_path / "started").exists)
        api.cancel(ref)
        with pytest.raises(error):
            api.get(ref)
        _wait_until((tmp_path / "heard").exists)
        assert api.get(patient.ping.remote()) == "pong"

    @pytest.mark.needs("told_cancellation")
    def test_cancelled_call_of_a_plain_actor_is_over_when_it_has_returned(self, tmp_path: Path) -> None:
        ref = api.remote(_Patient).remote(tmp_path).work.remote()
        _wait_until((tmp_path / "started").exists)
        api.cancel(ref)
        with pytest.raises(exceptions.TaskCancelledError, match=r"Call `_Patient.work` was cancelled while it ran"):
            api.get(ref)
        assert (tmp_path / "heard").exists()

    @pytest.mark.parametrize("calls_before", [0, 5])
    def test_recursive_cancellation_reaches_calls_on_actors(self, tmp_path: Path, calls_before: int) -> None:
        """Also those that a worker makes directly, because it has called the actor before."""
        patient = api.remote(_Patient).remote(tmp_path)

        @api.remote
        def use(patient: Any) -> Any:
            api.get([patient.ping.remote() for _ in range(calls_before)])
            return api.get(patient.work.remote())

        ref = use.remote(patient)
        _wait_until((tmp_path / "started").exists)
        api.cancel(ref)
        _wait_until((tmp_path / "heard").exists)
        with pytest.raises(exceptions.TaskCancelledError):
            api.get(ref)

    @pytest.mark.parametrize("calls_before", [0, 5])
    def test_recursive_cancellation_goes_on_from_actor_to_actor(self, tmp_path: Path, calls_before: int) -> None:
        patient = api.remote(_Patient).remote(tmp_path)
        middle = api.remote(_Patient).remote(tmp_path, patient)

        @api.remote
        def use(middle: Any) -> Any:
            api.get([middle.ping.remote() for _ in range(calls_before)])
            return api.get(middle.pass_on.remote())

        ref = use.remote(middle)
        _wait_until((tmp_path / "started").exists)
        api.cancel(ref)
        _wait_until((tmp_path / "heard").exists)

    def test_cancellation_that_is_not_recursive_does_not_reach_them(self, tmp_path: Path) -> None:
        patient = api.remote(_Patient).remote(tmp_path)

        @api.remote
        def use(patient: Any) -> Any:
            return api.get(patient.work.remote())

        ref = use.remote(patient)
        _wait_until((tmp_path / "started").exists)
        api.cancel(ref, recursive=False)
        with pytest.raises(exceptions.TaskCancelledError):
            api.get(ref)
        assert not (tmp_path / "heard").exists()
        api.kill(patient)
