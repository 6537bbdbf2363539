"""The contract of every engine on errors of a user's code, even hostile ones."""

from __future__ import annotations

import traceback
from typing import Any, NoReturn

import pytest

from hocket import exceptions
from hocket.core import actor, api

CHAIN = 30_000
"""The number of exceptions in a very long chain."""


def _refuse(*_: object) -> NoReturn:
    raise RuntimeError("this exception does not want to be looked at")


class _WithoutTextError(Exception):
    __str__ = __repr__ = _refuse


class _WithoutAttributesError(Exception):
    __getattribute__ = _refuse


class _FixedArgsError(Exception):
    args = property(lambda self: ("fixed",))


class _WithoutArgsError(Exception):
    args = property(_refuse)


class _WithoutPickleError(Exception):
    __reduce__ = _refuse


class _WithoutReturnError(Exception):
    def __setstate__(self, state: object) -> None:
        _refuse()

    def __init__(self) -> None:
        self.anything = 1


class _ExitingError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class _WithoutHeirsError(Exception):
    def __init_subclass__(cls) -> None:
        _refuse()


class _EndlessError(Exception):
    def __str__(self) -> str:
        return "x" * 10_000_000


HOSTILE = (
    _WithoutTextError,
    _WithoutAttributesError,
    _FixedArgsError,
    _WithoutArgsError,
    _WithoutPickleError,
    _WithoutReturnError,
    _ExitingError,
    _WithoutHeirsError,
    _EndlessError,
)


class _Unborn:
    def __init__(self, depth: int = 2) -> None:
        self._build(depth)

    def _build(self, depth: int) -> None:
        if depth:
            self._build(depth - 1)
        raise ValueError("no such table")

    def use(self) -> None: ...


class _Raiser:
    def fail(self, kind: type[Exception]) -> None:
        raise kind

    async def fail_later(self, kind: type[Exception]) -> None:
        raise kind


class _PlainRaiser:
    def fail(self, kind: type[Exception]) -> None:
        raise kind


def _print(error: BaseException) -> str:
    """Return the text that Python prints for an uncaught error."""
    return "".join(traceback.format_exception(error))


class ErrorContract:
    """The errors of a user's code in every engine. Part of `EngineContract`."""

    @pytest.mark.parametrize("kind", HOSTILE, ids=lambda kind: kind.__name__)
    def test_error_that_cannot_be_described_is_told_all_the_same(self, kind: type[Exception]) -> None:
        @api.remote
        def fail() -> None:
            raise kind

        with pytest.raises(exceptions.TaskError, match=kind.__name__) as caught:
            api.get(fail.remote())
        text = _print(caught.value)
        assert "in fail" in text
        assert len(text) < 100_000
        repr(caught.value)

    @pytest.mark.parametrize("options", [{}, {"max_concurrency": 2}], ids=["plain", "threads"])
    @pytest.mark.parametrize("kind", HOSTILE[:2] + HOSTILE[6:7], ids=lambda kind: kind.__name__)
    def test_actor_outlives_an_error_that_cannot_be_described(
        self, kind: type[Exception], options: dict[str, Any]
    ) -> None:
        raiser = api.remote(_PlainRaiser).options(**options).remote()
        for _ in range(2):
            with pytest.raises(exceptions.TaskError, match=kind.__name__):
                api.get(raiser.fail.remote(kind))

    @pytest.mark.parametrize("method", ["fail", "fail_later"])
    def test_asynchronous_actor_outlives_an_error_that_cannot_be_described(self, method: str) -> None:
        raiser = api.remote(_Raiser).remote()
        for kind in (_WithoutTextError, _WithoutAttributesError, _ExitingError):
            with pytest.raises(exceptions.TaskError, match=kind.__name__):
                api.get(getattr(raiser, method).remote(kind))

    @pytest.mark.needs("long_chains")
    def test_very_long_chain_of_exceptions_is_cut(self) -> None:
        @api.remote
        def fail() -> None:
            error = ValueError("link 0")
            for number in range(1, CHAIN):
                following = ValueError(f"link {number}")
                following.__cause__, error = error, following
            raise error

        with pytest.raises(ValueError, match=f"link {CHAIN - 1}") as caught:
            api.get(fail.remote())
        text = str(caught.value)
        assert f"{CHAIN - 10:,} exceptions of this chain left out" in text
        assert "link 0\n" in text

    def test_error_is_printed_once_and_with_the_users_frames_only(self) -> None:
        def check(x: int) -> None:
            raise ValueError("told " + "once")

        @api.remote
        def fail() -> None:
            check(1)

        with pytest.raises(ValueError, match="told once") as caught:
            api.get(fail.remote())
        text = _print(caught.value)
        assert text.count("told once") == 1
        assert text.index("in fail") < text.index("in check")
        for ours in ("hocket/core", "hocket/engine", "hocket/kernel", "direct cause"):
            assert ours not in text

    def test_error_of_an_inner_task_names_the_outer_one_too(self) -> None:
        @api.remote
        def inner() -> None:
            raise LookupError("deep " + "down")

        @api.remote
        def outer() -> None:
            api.get(inner.remote())

        with pytest.raises(LookupError, match="deep down") as caught:
            api.get(outer.remote())
        error: Any = caught.value
        assert error.function_name.endswith("outer")
        assert type(error.cause) is LookupError
        text = _print(error)
        assert text.index("in outer") < text.index("in inner")
        assert text.count("deep down") == 1

    def test_error_of_the_engine_that_comes_through_a_task_is_that_tasks(self) -> None:
        unborn = api.remote(_Unborn).remote()

        @api.remote
        def use(handle: Any) -> None:
            api.get(handle.use.remote())

        with pytest.raises(exceptions.TaskError, match="use raised an exception") as caught:
            api.get(use.remote(unborn))
        assert isinstance(caught.value, exceptions.ActorDiedError)
        assert isinstance(caught.value.cause, exceptions.ActorDiedError)
        assert caught.value.actor_id == unborn._ref.hex()
        assert "no such table" in str(caught.value)

    def test_keyboard_interrupt_of_a_task_does_not_end_the_program(self) -> None:
        @api.remote
        def fail() -> None:
            raise KeyboardInterrupt

        with pytest.raises(exceptions.TaskCancelledError, match=r"KeyboardInterrupt|was cancelled"):
            api.get(fail.remote())

    def test_class_that_is_no_exception_is_not_raised_in_the_caller(self) -> None:
        @api.remote
        def fail() -> None:
            raise GeneratorExit("from a task")

        with pytest.raises(exceptions.HocketError, match="GeneratorExit") as caught:
            api.get(fail.remote())
        assert not isinstance(caught.value, GeneratorExit)

    def test_stop_iteration_does_not_end_a_loop_of_the_caller(self) -> None:
        @api.remote
        def fail() -> None:
            raise StopIteration("from a task")

        with pytest.raises(exceptions.TaskError, match="StopIteration: from a task") as caught:
            list(map(api.get, [fail.remote()]))
        assert not isinstance(caught.value, StopIteration)

    def test_stop_iteration_reaches_who_awaits_it(self) -> None:
        @api.remote
        def fail() -> None:
            raise StopIteration

        with pytest.raises(exceptions.TaskError, match="StopIteration"):
            fail.remote().future().result(60)

    # --- constructors ---

    @pytest.mark.parametrize("by_name", [False, True], ids=["handle", "name"])
    def test_call_on_an_actor_whose_constructor_raised_tells_its_error(self, by_name: bool) -> None:
        options: dict[str, Any] = {"name": "unborn"} if by_name else {}
        unborn = api.remote(_Unborn).options(**options).remote()
        for _ in range(2):  # a call from before the constructor raised, and a call from after that
            with pytest.raises(exceptions.ActorDiedError, match="constructor raised an exception") as caught:
                api.get(unborn.use.remote())
            error = caught.value
            assert error.actor_init_failed
            assert error.actor_id == unborn._ref.hex()
            assert "no such table" in str(error.cause)
            text = _print(error)
            assert text.count("ValueError: no such table") == 1
            assert text.index("in __init__") < text.index("in _build")
            for ours in ("hocket/core", "hocket/engine", "hocket/kernel"):
                assert ours not in text

    @pytest.mark.needs("constructor_causes")
    def test_cause_of_a_dead_actor_is_what_its_constructor_raised(self) -> None:
        unborn = api.remote(_Unborn).remote()
        with pytest.raises(exceptions.ActorDiedError, match="no such table") as caught:
            api.get(unborn.use.remote())
        assert type(caught.value.cause) is ValueError

    def test_handle_that_was_passed_on_tells_the_constructors_error(self) -> None:
        @api.remote
        def use(handle: actor.ActorHandle) -> str:
            try:
                api.get(handle.use.remote())
            except exceptions.ActorDiedError as error:
                return str(error)
            return ""

        assert "no such table" in api.get(use.remote(api.remote(_Unborn).remote()))
