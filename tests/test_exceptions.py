"""Errors travel, and say what they should."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from hocket import exceptions
from hocket.engine import pickling

DEATH = exceptions.Death(pid=7, signal_number=11, peak_rss_bytes=2**20, stderr_tail="last\nlines", stack="in crash")


@pytest.mark.parametrize(
    "error",
    [
        exceptions.TaskError("f", "trace", ValueError("x")),
        exceptions.TaskError("f", "trace", ValueError("x")).as_instanceof_cause(),
        exceptions.WorkerCrashedError("gone", DEATH),
        exceptions.ActorDiedError("dead", actor_id="ff", actor_init_failed=True, death=DEATH),
        exceptions.GetTimeoutError("late"),
        exceptions.VersionMismatchError("other"),
        exceptions.MissingExtraError("not there"),
    ],
)
def test_errors_travel(error: Any) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert type(copy) is type(error)
    assert getattr(copy, "death", None) == getattr(error, "death", None)


class QuietError(Exception):
    """An exception with a constructor of its own and an attribute."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code

    def __reduce__(self) -> Any:
        return _rebuild_quiet, (self.code,)


def _rebuild_quiet(code: int) -> QuietError:
    return QuietError(code=code)


def test_dual_error_forwards_attributes_of_the_cause() -> None:
    error: Any = exceptions.TaskError("f", "trace", QuietError(code=5)).as_instanceof_cause()
    assert isinstance(error, QuietError)
    assert isinstance(error, exceptions.TaskError)
    assert error.code == 5
    assert type(error).__name__ == "TaskError(QuietError)"
    assert pickle.loads(pickle.dumps(error)).code == 5


class ValueOSError(ValueError, OSError):
    """Its memory is OSError's, and the first `__new__` that it finds is ValueError's."""


class KeyImportError(KeyError, ImportError):
    pass


class OSValueError(OSError, ValueError):
    pass


class SyntaxRuntimeError(RuntimeError, SyntaxError):
    pass


@pytest.mark.parametrize("kind", [ValueOSError, KeyImportError, OSValueError, SyntaxRuntimeError])
def test_a_cause_of_two_built_in_classes_is_caught_as_each(kind: type[Exception]) -> None:
    error = exceptions.TaskError("f", "trace", kind("text")).as_instanceof_cause()
    kinds: tuple[type, ...] = (exceptions.TaskError, kind, *kind.__bases__)
    for one in kinds:
        assert isinstance(error, one)
    assert error.args == ("text",)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy).__name__ == type(error).__name__
    assert str(copy) == str(error) == "f raised an exception:\ntrace"
    rebuilt = pickling._rebuild_error(kind, ("text",))
    assert type(rebuilt) is kind
    assert rebuilt.args == ("text",)


def test_cause_that_cannot_be_inherited_from_gives_a_plain_task_error() -> None:
    group = BaseExceptionGroup("several", [KeyboardInterrupt()])
    assert type(exceptions.TaskError("f", "trace", group).as_instanceof_cause()) is exceptions.TaskError


def test_groups_stay_groups_and_can_be_taken_apart() -> None:
    group = ExceptionGroup("several", [ValueError("one"), KeyError("two")])
    error = pickle.loads(pickle.dumps(exceptions.TaskError("f", "trace", group).as_instanceof_cause()))
    assert isinstance(error, exceptions.TaskError)
    caught: list[BaseException] = []
    try:
        try:
            raise error
        except* ValueError as part:
            caught += part.exceptions
    except* KeyError as part:
        caught += part.exceptions
    assert [str(one) for one in caught] == ["one", "'two'"]


def test_death_is_described_with_its_evidence() -> None:
    text = DEATH.describe()
    assert "killed by signal 11 (SIGSEGV); peak memory 1 MiB." in text
    assert "    in crash" in text
    assert "    last\n    lines" in text
    assert exceptions.Death(pid=1, exit_code=3).reason() == "exited with code 3"
    assert "out-of-memory killer" in exceptions.Death(pid=1, signal_number=9, out_of_memory=True).describe()


def test_ray_names_are_the_same_classes() -> None:
    assert exceptions.RayError is exceptions.HocketError
    assert exceptions.RayTaskError is exceptions.TaskError
    assert exceptions.RayActorError is exceptions.ActorError


def test_connections_fail_as_connections_do() -> None:
    assert issubclass(exceptions.ConnectionFailedError, ConnectionError)
    assert issubclass(exceptions.VersionMismatchError, exceptions.ConnectionFailedError)
    assert issubclass(exceptions.VersionMismatchError, RuntimeError)  # as Ray's
    assert issubclass(exceptions.MissingExtraError, ImportError)


def test_memory_error_is_dual_too() -> None:
    error = exceptions.TaskError("f", "Traceback ...", MemoryError("no room")).as_instanceof_cause()
    assert isinstance(error, MemoryError)
    assert isinstance(error, exceptions.TaskError)
    assert error.args == ("no room",)
