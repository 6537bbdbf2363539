"""Parts of the engine on Ray by themselves, without a running Ray."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import subprocess
import sys
import types
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from ray.core.generated import gcs_pb2

from hocket import exceptions
from hocket._base.internals import ray as ray_internals
from hocket.core import engines
from hocket.engine import contract
from hocket.engine.ray import (
    adapter,
    base,
    connection,
    errors,
    listing,
    natives,
    notes,
    origins,
    outside,
    runner,
    views,
)
from hocket.kernel import records
from tests.engine.ray.odd_errors import KeptOpenError, LastOfItsKindError

ray = adapter.ray


# --- how a session gets its Ray ---------------------------------------------------------------------------------------


class _BegunError(Exception):
    pass


def test_no_cpu_is_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def begin(**keywords: object) -> None:
        asked.update(keywords)
        raise _BegunError

    monkeypatch.setattr(ray, "init", begin)
    monkeypatch.setattr(connection, "_leave", lambda: None)
    with pytest.raises(_BegunError):
        connection.connect(connection.Request(address="local", num_cpus=0, num_gpus=0, resources={"camera": 1}))
    assert (asked["num_cpus"], asked["num_gpus"], asked["resources"]) == (0, 0, {"camera": 1})
    assert not {"labels", "object_store_memory"} & asked.keys()


@pytest.mark.parametrize(("given", "found"), [("stall", "stall"), ("", "theirs")])
def test_a_ray_that_is_there_gives_the_namespace_that_is_asked_for(
    given: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = types.SimpleNamespace(namespace="theirs", gcs_address="127.0.0.1:1", runtime_env={})
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(ray, "cluster_resources", dict)
    monkeypatch.setattr(connection, "_check_package_on_nodes", lambda where: None)
    assert connection.connect(connection.Request(namespace=given)).namespace == found


@pytest.mark.parametrize("is_attached", [True, False])
def test_a_ray_that_is_there_gives_the_environment_that_is_asked_for(
    is_attached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = types.SimpleNamespace(is_attached=is_attached, namespace="here")
    inherited: list[contract.Inherited] = []
    engine = types.SimpleNamespace(inherit=inherited.append)
    monkeypatch.setattr(connection, "connect", lambda request: opened)
    monkeypatch.setattr(engines, "_load", lambda kind: types.SimpleNamespace(RayEngine=lambda *_, **__: engine))
    engines.open_ray(environment={"env_vars": {"SHELF": "top"}})
    assert inherited == [contract.Inherited('{"env_vars": {"SHELF": "top"}}')] * is_attached


def test_a_detached_group_does_not_end_with_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    made = iter(["lasting", "passing"])
    session: Any = types.SimpleNamespace(check_open=lambda: None)
    handles: Any = types.SimpleNamespace(wrap_known=lambda native: types.SimpleNamespace(_id=native))
    monkeypatch.setattr(listing, "check_bundles", lambda *_: None)
    monkeypatch.setattr(ray.util, "placement_group", lambda *_: next(made))
    groups = base.Groups()
    resources = views.RayResources(session, handles, groups)
    resources.reserve([], "PACK", "", is_detached=True)
    resources.reserve([], "PACK", "")
    assert list(groups.made.values()) == ["passing"]


# --- what leaves a task -----------------------------------------------------------------------------------------------


def leave(error: Exception) -> BaseException:
    """Return what leaves a task that raises an error."""
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 (it is what is asked about)
        try:
            runner.raise_for_caller("work", caught)
        except exceptions.TaskError as left:
            return left


LOAD = """
import pickle, sys
error, retried, other = pickle.loads(sys.stdin.buffer.read())
assert isinstance(error, retried) and issubclass(type(error), retried) and not isinstance(error, other)
"""


@pytest.mark.parametrize("kind", [KeptOpenError, LastOfItsKindError, FileNotFoundError])
def test_what_was_raised_decides_on_another_try(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "note_failure", lambda *_: None)
    left = leave(kind("once more"))
    assert isinstance(left, runner.build_retried((KeyError, kind)))
    assert isinstance(left, runner.build_retried((OSError,))) == (kind is FileNotFoundError)
    assert "once more" in str(ray.cloudpickle.loads(ray.cloudpickle.dumps(left)))


def test_the_class_for_another_try_travels() -> None:
    found = (ValueError("once more"), runner.build_retried((ValueError,)), runner.build_retried((OSError,)))
    blob = ray.cloudpickle.dumps(found)
    subprocess.run([sys.executable, "-c", LOAD], input=blob, check=True)


class Giver:
    def give(self) -> Iterator[int]:
        return (6 // (2 - at) for at in range(3))

    def count(self, n: int) -> Iterator[int]:
        yield from range(n)

    def give_all(self) -> list[int]:
        return [1, 2]

    async def give_soon(self) -> Iterator[int]:
        return self.give()

    async def count_soon(self, n: int) -> AsyncIterator[int]:
        for at in range(n):
            yield at


def call(name: str, *args: object, **keywords: object) -> Any:
    """Call a method as Ray does, in an actor."""
    method = runner._build_method(name, vars(Giver)[name], f"Giver.{name}")
    return method(types.SimpleNamespace(__hocket_instance__=Giver()), *args, **keywords)


def test_a_method_that_returns_a_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "note_failure", lambda *_: None)
    streaming: dict[str, object] = {runner.RETURNS: records.STREAMING}
    with pytest.raises(exceptions.SerializationError, match=r"the result of `Giver\.give` is a builtins\.generator"):
        call("give")
    with pytest.raises(exceptions.SerializationError, match=r"the result of `Giver\.give_soon`"):
        asyncio.run(call("give_soon"))
    assert inspect.isgenerator(call("give", **{runner.RETURNS: 2}))  # Ray takes as many of its items
    for items in (call("give", **streaming), asyncio.run(call("give_soon", **streaming))):
        assert [next(items), next(items)] == [3, 6]
        with pytest.raises(exceptions.TaskError, match=r"^Giver\.give(_soon)? raised an exception") as caught:
            next(items)
        assert isinstance(caught.value, ZeroDivisionError)
    assert list(call("give_all", **streaming)) == call("give_all") == [1, 2]


def test_a_generator_has_the_arguments_of_its_caller() -> None:
    async def collect() -> list[int]:
        return [item async for item in call("count_soon", n=2, **{runner.RETURNS: records.STREAMING})]

    assert list(call("count", n=2, **{runner.RETURNS: records.STREAMING})) == asyncio.run(collect()) == [0, 1]


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_task_s_time_out_is_not_that_of_a_get() -> None:
    timeout = ray.exceptions.GetTimeoutError("in vain")
    failure = ray.exceptions.RayTaskError("work", "", timeout).as_instanceof_cause()
    assert isinstance(failure, ray.exceptions.GetTimeoutError)
    assert [errors.is_timeout(timeout), errors.is_timeout(failure)] == [True, False]


class Reference:
    """In the place of a reference."""

    def __init__(self, *, has_failed: bool = False) -> None:
        self.has_failed = has_failed


def test_who_was_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origins, "contract", types.SimpleNamespace(ObjectRef=Reference))
    monkeypatch.setattr(origins, "_has_failed", lambda ref: ref.has_failed)
    room: Any = None
    known = origins.Origins(room)

    def submit(name: str, *given: object, has_failed: bool = True) -> Any:
        ref: Any = Reference(has_failed=has_failed)
        known.note([ref], records.TaskOptions(name=name), given)
        return ref

    def tell(ref: Any) -> str:
        (text,) = {known.find([ref], error).describe() for error in (passed_on, cancelled)}
        return text

    cancelled = ray.exceptions.TaskCancelledError()
    passed_on = ray.exceptions.RayTaskError("work", "", cancelled)
    done = submit("echo", has_failed=False)
    waiting = [submit("wait"), submit("wait", done), submit("wait", submit("echo", has_failed=False))]
    assert list(map(tell, waiting)) == ["task `wait`"] * 3
    assert tell(submit("after", waiting[0])) == "task `wait`"
    after = submit("last", submit("after", waiting[0]))
    assert known.find([after], passed_on).describe() == "a task that `last` depends on (`after`, `wait`)"


# --- actors -----------------------------------------------------------------------------------------------------------


def test_an_actor_is_found_before_its_options_are(monkeypatch: pytest.MonkeyPatch) -> None:
    options = records.ActorOptions(
        class_name="Counter",
        creation=records.TaskOptions(name="Counter.__init__"),
        lifetime_shape=records.DEFAULT_SHAPE,
    )
    told: list[bytes | None] = [None, None, pickle.dumps(options)]
    described: tuple[str, list[str]] = ("mod.Counter", [runner.CALL_FUNCTION, "add"])
    monkeypatch.setattr(natives, "format_id", lambda native: "ab")
    monkeypatch.setattr(outside, "ask", lambda *_: described)
    monkeypatch.setattr(ray_internals, "get_value", lambda *_: told.pop(0))
    assert listing.look_up_actor(None, "early", "shop") == options
    told[:] = [None]
    described = ("mod.Counter", ["add"])  # one of plain Ray
    assert listing.look_up_actor(None, "theirs", "shop").methods == (("add", records.MethodOptions()),)


def test_actors_of_one_name_in_several_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    table = [
        gcs_pb2.ActorTableData(actor_id=bytes([number]), name="twin", ray_namespace=where).SerializeToString()
        for number, where in enumerate(("left", "right"))
    ]
    accessor = types.SimpleNamespace(get_actor_table=lambda job, state: table)
    monkeypatch.setattr(ray._private.state.state, "_connect_and_get_accessor", lambda: accessor)
    assert ray_internals.list_namespaces() == {"00": "left", "01": "right"}
