"""Own serializers, and finding what cannot travel."""

from __future__ import annotations

import io
import threading
from typing import Any

import pytest

import hocket
from hocket.util import deregister_serializer, inspect_serializability, register_serializer


class Guarded:
    def __init__(self, value: int) -> None:
        self.value = value
        self.lock = threading.Lock()


class Child(Guarded):
    pass


def test_registered_instances_travel(any_session: hocket.SessionContext) -> None:
    register_serializer(Guarded, serializer=lambda guarded: guarded.value, deserializer=Guarded)
    try:
        assert hocket.get(hocket.put(Guarded(3))).value == 3
        assert hocket.get(hocket.remote(lambda guarded: guarded.value).remote(Guarded(4))) == 4
        held = Guarded(5)
        assert hocket.get(hocket.remote(lambda: held.value).remote()) == 5
        assert hocket.get(hocket.put([{"inner": Guarded(6)}]))[0]["inner"].value == 6
        with pytest.raises(hocket.exceptions.SerializationError, match=r"lock is a _thread\.lock"):
            hocket.put(Child(1))
    finally:
        deregister_serializer(Guarded)
    with pytest.raises(hocket.exceptions.SerializationError, match=r"lock is a _thread\.lock"):
        hocket.put(Guarded(3))
    deregister_serializer(Guarded)


def test_bad_registrations() -> None:
    with pytest.raises(TypeError, match="register_serializer takes a class, but received 3"):
        register_serializer(3, serializer=str, deserializer=int)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="serializer must be a function of one argument, but received 1"):
        register_serializer(Guarded, serializer=1, deserializer=Guarded)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="deserializer must be a function of one argument, but received 2"):
        register_serializer(Guarded, serializer=str, deserializer=2)  # type: ignore[arg-type]


def inspect(value: Any, **options: Any) -> tuple[bool, dict[str, Any], str]:
    stream = io.StringIO()
    can_travel, failures = inspect_serializability(value, print_file=stream, **options)
    return can_travel, {failure.path: failure for failure in failures}, stream.getvalue()


def test_what_can_travel() -> None:
    assert inspect([1, 2], name="numbers") == (True, {}, "numbers can be sent to another process.\n")
    assert inspect(test_bad_registrations)[2].startswith("test_bad_registrations can be sent")


def test_each_culprit_is_found() -> None:
    lock, other = threading.Lock(), threading.RLock()

    def use() -> Any:
        return lock, other

    can_travel, failures, text = inspect(use)
    assert not can_travel
    assert set(failures) == {"use -> closure variable 'lock'", "use -> closure variable 'other'"}
    found = failures["use -> closure variable 'lock'"]
    assert (found.obj, found.name, found.parent) == (lock, "lock", use)
    assert repr(found).startswith("FailTuple(lock [path=use -> closure variable 'lock', obj=<unlocked _thread.lock")
    assert "use cannot be sent to another process" in text
    assert "'lock' is a _thread.lock. Remedy: create the lock inside the function" in text


def test_attributes_and_containers() -> None:
    guarded = Guarded(1)
    _, failures, _ = inspect({"list": [guarded]}, name="state")
    assert list(failures) == ["state['list'][0].lock"]
    assert failures["state['list'][0].lock"].name == "lock"
    assert failures["state['list'][0].lock"].parent is guarded


def test_depth() -> None:
    nested = [[[[threading.Lock()]]]]
    assert list(inspect(nested, name="n", depth=0)[1]) == ["n"]
    assert list(inspect(nested, name="n", depth=2)[1]) == ["n[0][0]"]
    assert list(inspect(nested, name="n", depth=9)[1]) == ["n[0][0][0][0]"]
    with pytest.raises(ValueError, match="depth must be 0 or more steps, but received -1"):
        inspect_serializability(1, depth=-1)


def test_the_thing_itself(capsys: pytest.CaptureFixture[str]) -> None:
    lock = threading.Lock()
    can_travel, failures = inspect_serializability(lock, name="it")
    assert not can_travel
    (found,) = failures
    assert (found.obj, found.name, found.parent, found.path) == (lock, "it", None, "it")
    assert "it is a _thread.lock" in capsys.readouterr().out
