"""The contract of every engine on calls: finding the method, return values, cancellation, ends of actors.

The classes are parts of `EngineContract` and `ProcessEngineContract`.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from hocket import exceptions
from hocket.core import actor, api
from hocket.testing.suites import programs


class _Verb(enum.StrEnum):
    DOUBLE = "double"


class _Gauge:
    """An actor with methods that its attributes hide in Python."""

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
        return api.remote(programs.square).remote(x)

    def start_plainly(self, x: int) -> object:
        return api.remote(programs.square).remote(x)


class _Leaver:
    """An actor that ends itself, and catches the exception of that."""

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
    """The calls of every engine. Part of `EngineContract`."""

    def test_options_may_be_of_enumerations(self) -> None:
        class Name(enum.StrEnum):
            TASK = "task"
            ACTOR = "actor"
            SIDE = "side"
            NAMESPACE = "namespace"

        class Size(enum.IntEnum):
            TWO = 2

        class Sided:
            @actor.method(concurrency_group=Name.SIDE)
            async def double(self, number: int) -> int:
                return 2 * number

        task = api.remote(name=Name.TASK, num_returns=Size.TWO, max_retries=Size.TWO, num_cpus=np.float64(0.5))
        assert api.get(task(lambda: (1, 2)).remote()) == [1, 2]
        sided = api.remote(concurrency_groups={Name.SIDE: Size.TWO})(Sided)
        made = sided.options(name=Name.ACTOR, namespace=Name.NAMESPACE, max_restarts=Size.TWO).remote()
        assert api.get(made.double.options(name=np.str_("calls")).remote(4)) == 8
        assert api.get(getattr(made, _Verb.DOUBLE).remote(6)) == 12
        found = api.get_actor("actor", namespace="namespace")
        assert api.get(found.double.options(concurrency_group=Name.SIDE).remote(5)) == 10

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
        programs.wait_until(lambda: _count_farewells(tmp_path) > 0)
        assert _count_farewells(tmp_path) == 1

    def test_reference_becomes_a_future_before_its_loop_runs(self) -> None:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            asyncio.set_event_loop(loop)
            try:
                there, later = api.put(1), api.remote(programs.square).remote(3)
                futures = [there.as_future(), later.as_future()]
                assert [loop.run_until_complete(future) for future in futures] == [1, 9]
            finally:
                asyncio.set_event_loop(None)


def _give(count: int, *, fails: bool = False) -> Iterator[int]:
    yield from range(count)
    if fails:
        raise ValueError("no more")


def _give_for_ever() -> Iterator[int]:
    yield from itertools.count()


class _Giver:
    """An actor with plain generators."""

    def give(self, count: int, *, fails: bool = False) -> Iterator[int]:
        yield from _give(count, fails=fails)

    def give_for_ever(self) -> Iterator[int]:
        yield from _give_for_ever()

    @actor.method(num_returns="dynamic")
    def give_together(self, count: int) -> Iterator[int]:
        yield from range(count)

    @classmethod
    def give_from_class(cls, count: int) -> Iterator[int]:
        yield from range(count)


class _AsyncGiver:
    """An actor with the generators of `_Giver`, asynchronous."""

    async def give(self, count: int, *, fails: bool = False) -> AsyncIterator[int]:
        for item in _give(count, fails=fails):
            yield item

    async def give_for_ever(self) -> AsyncIterator[int]:
        for item in _give_for_ever():
            await asyncio.sleep(0)
            yield item

    @actor.method(num_returns="dynamic")
    async def give_together(self, count: int) -> AsyncIterator[int]:
        for item in range(count):
            yield item


def _build_givers(kind: str) -> tuple[Any, Any]:
    """Return two remote generators: one yields a given number of items, the other never ends."""
    if kind == "task":
        return api.remote(_give), api.remote(_give_for_ever)
    giver = api.remote(_Giver if kind == "actor" else _AsyncGiver).remote()
    return giver.give, giver.give_for_ever


_COUNTED = pytest.param("asynchronous actor", marks=pytest.mark.needs("counted_async_generators"))


class CountedGeneratorContract:
    """The generators with a number of returns, or ``"dynamic"``, of every engine. Part of `EngineContract`."""

    @pytest.mark.parametrize("kind", ["task", "actor", _COUNTED])
    def test_generator_that_raises_keeps_the_results_that_it_has(self, kind: str) -> None:
        give, _ = _build_givers(kind)
        refs = give.options(num_returns=3).remote(1, fails=True)
        assert api.get(refs[0]) == 0
        for ref in refs[1:]:
            with pytest.raises(ValueError, match="no more") as caught:
                api.get(ref)
            assert isinstance(caught.value, exceptions.TaskError)
        with pytest.raises(ValueError, match="no more"):
            api.get(give.options(num_returns=2).remote(0, fails=True)[0])
        fed = api.remote(programs.square).remote(refs[1])
        with pytest.raises(ValueError, match="no more"):
            api.get(fed)

    @pytest.mark.parametrize("kind", ["task", "actor", _COUNTED])
    def test_generator_that_ends_too_soon_keeps_the_results_that_it_has(self, kind: str) -> None:
        give, _ = _build_givers(kind)
        first, second = give.options(num_returns=2).remote(1)
        assert api.get(first) == 0
        with pytest.raises(ValueError, match="num_returns=2"):
            api.get(second)
        with pytest.raises(ValueError, match="num_returns=1"):
            api.get(give.options(num_returns=1).remote(0))

    @pytest.mark.parametrize("kind", ["task", "actor", _COUNTED])
    def test_generator_is_asked_for_no_more_than_its_results(self, kind: str) -> None:
        give, give_for_ever = _build_givers(kind)
        assert api.get(give.options(num_returns=2).remote(3)) == [0, 1]
        assert api.get(give.options(num_returns=2).remote(2, fails=True)) == [0, 1]
        assert api.get(give.options(num_returns=1).remote(3)) == 0
        assert api.get(give_for_ever.options(num_returns=3).remote(), timeout=30) == [0, 1, 2]

    @pytest.mark.parametrize("kind", ["task", "actor", "asynchronous actor"])
    def test_dynamic_generator_that_raises_keeps_what_it_has(self, kind: str) -> None:
        give, _ = _build_givers(kind)
        found = api.get(give.options(num_returns="dynamic").remote(2, fails=True))
        refs = list(found)
        assert len(refs) == len(found) == 3
        assert api.get(refs[:2]) == [0, 1]
        with pytest.raises(ValueError, match="no more") as caught:
            api.get(refs[2])
        assert isinstance(caught.value, exceptions.TaskError)

    def test_dynamic_methods_return_all_at_once(self) -> None:
        for cls in (_Giver, _AsyncGiver):
            giver = api.remote(cls).remote()
            assert [api.get(ref) for ref in api.get(giver.give_together.remote(3))] == [0, 1, 2]
            assert [api.get(ref) for ref in api.get(giver.give.options(num_returns="dynamic").remote(2))] == [0, 1]
            assert [api.get(item) for item in giver.give.remote(2)] == [0, 1]
            with pytest.raises(TypeError, match="missing a required argument: 'count'"):
                giver.give_together.remote()
        giver = api.remote(_Giver).remote()
        assert [api.get(ref) for ref in api.get(giver.give_from_class.options(num_returns="dynamic").remote(2))] == [
            0,
            1,
        ]

    def test_generator_that_is_to_be_retried_is(self, tmp_path: Path) -> None:
        def give(path: Path) -> Iterator[int]:
            yield 1
            if not path.exists():
                path.touch()
                raise ValueError("once")
            yield 2

        for position, returns in enumerate((2, "dynamic")):
            task = api.remote(max_retries=1, retry_exceptions=[ValueError], num_returns=returns)(give)
            found: Any = task.remote(tmp_path / str(position))
            refs = api.get(found) if returns == "dynamic" else found
            assert api.get(list(refs)) == [1, 2]


class _Patient:
    """An actor that works until its call is cancelled."""

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

    def pass_on(self) -> object:
        return api.get(self.inner.work.remote())


class ProcessCallContract:
    """The calls of engines with processes of their own. Part of `ProcessEngineContract`."""

    @pytest.mark.parametrize("cls", [_Leaver, _AsyncLeaver])
    @pytest.mark.needs("background_exit")
    def test_actor_ends_itself_from_the_background(self, cls: type, tmp_path: Path, capfd: Any) -> None:
        leaver = api.remote(cls).remote(tmp_path)
        assert api.get(leaver.leave_in_background.remote()) == "soon"
        programs.wait_until(lambda: _count_farewells(tmp_path) > 0)
        with pytest.raises(exceptions.ActorDiedError, match="ended itself with `exit_actor`"):
            api.get(leaver.ping.remote())
        assert _count_farewells(tmp_path) == 1
        assert "never retrieved" not in capfd.readouterr().err

    @pytest.mark.parametrize("calls_before", [0, 5])
    def test_generator_with_several_returns_is_the_same_when_a_task_calls_it(self, calls_before: int) -> None:
        giver = api.remote(_Giver).remote()

        @api.remote
        def use(giver: Any) -> list[Any]:
            for _ in range(calls_before):
                api.get(giver.give.options(num_returns=1).remote(1))
            refs = giver.give.options(num_returns=2).remote(1, fails=True)
            with pytest.raises(ValueError, match="no more"):
                api.get(refs[1])
            return [*refs, api.get(refs[0])]

        first, second, value = api.get(use.remote(giver))
        assert api.get(first) == value == 0
        with pytest.raises(ValueError, match="no more"):
            api.get(second)

    @pytest.mark.parametrize("max_concurrency", [1, 2])
    @pytest.mark.parametrize(("method", "error"), [("work", exceptions.TaskCancelledError), ("fail", ValueError)])
    def test_running_call_of_a_plain_actor_is_told(
        self, tmp_path: Path, method: str, error: type[Exception], max_concurrency: int
    ) -> None:
        """The call's result is dropped, but its exception is raised."""
        patient = api.remote(_Patient).options(max_concurrency=max_concurrency).remote(tmp_path)
        ref = getattr(patient, method).remote()
        programs.wait_until((tmp_path / "started").exists)
        api.cancel(ref)
        with pytest.raises(error):
            api.get(ref)
        programs.wait_until((tmp_path / "heard").exists)
        assert api.get(patient.ping.remote()) == "pong"

    @pytest.mark.needs("told_cancellation")
    def test_cancelled_call_of_a_plain_actor_is_over_when_it_has_returned(self, tmp_path: Path) -> None:
        ref = api.remote(_Patient).remote(tmp_path).work.remote()
        programs.wait_until((tmp_path / "started").exists)
        api.cancel(ref)
        with pytest.raises(exceptions.TaskError, match=r"^Call `_Patient.work` was cancelled while it ran") as caught:
            api.get(ref)
        assert isinstance(caught.value, exceptions.TaskCancelledError)
        assert (tmp_path / "heard").exists()

    @pytest.mark.parametrize("calls_before", [0, 5])
    def test_recursive_cancellation_reaches_calls_on_actors(self, tmp_path: Path, calls_before: int) -> None:
        """The cancellation also reaches calls that a worker makes directly, after earlier calls on the actor."""
        patient = api.remote(_Patient).remote(tmp_path)

        @api.remote
        def use(patient: Any) -> object:
            api.get([patient.ping.remote() for _ in range(calls_before)])
            return api.get(patient.work.remote())

        ref = use.remote(patient)
        programs.wait_until((tmp_path / "started").exists)
        api.cancel(ref)
        programs.wait_until((tmp_path / "heard").exists)
        with pytest.raises(exceptions.TaskCancelledError):
            api.get(ref)

    @pytest.mark.parametrize("calls_before", [0, 5])
    def test_recursive_cancellation_goes_on_from_actor_to_actor(self, tmp_path: Path, calls_before: int) -> None:
        patient = api.remote(_Patient).remote(tmp_path)
        middle = api.remote(_Patient).remote(tmp_path, patient)

        @api.remote
        def use(middle: Any) -> object:
            api.get([middle.ping.remote() for _ in range(calls_before)])
            return api.get(middle.pass_on.remote())

        ref = use.remote(middle)
        programs.wait_until((tmp_path / "started").exists)
        api.cancel(ref)
        programs.wait_until((tmp_path / "heard").exists)

    def test_cancellation_that_is_not_recursive_does_not_reach_them(self, tmp_path: Path) -> None:
        patient = api.remote(_Patient).remote(tmp_path)

        @api.remote
        def use(patient: Any) -> object:
            return api.get(patient.work.remote())

        ref = use.remote(patient)
        programs.wait_until((tmp_path / "started").exists)
        api.cancel(ref, recursive=False)
        with pytest.raises(exceptions.TaskCancelledError):
            api.get(ref)
        assert not (tmp_path / "heard").exists()
        api.kill(patient)
