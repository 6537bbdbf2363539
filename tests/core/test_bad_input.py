"""Every message has the value, the rule and the remedy."""

from __future__ import annotations

import functools
import inspect
import operator
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.core import placement
from hocket.exceptions import SerializationError, SessionClosedError, WorkerCrashedError


def add(x: int, y: int = 1) -> int:
    return x + y


class Thing:
    def __init__(self, size: int) -> None:
        self.size = size

    def grow(self, by: int) -> int:
        self.size += by
        return self.size


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_cpu": 1}, ValueError, "Invalid option keyword 'num_cpu' .*Did you mean 'num_cpus'.*Valid ones are"),
        ({"num_cpus": -1}, ValueError, "'num_cpus' must be 0 or more, but received -1"),
        (
            {"num_cpus": "two"},
            TypeError,
            "type of keyword 'num_cpus' must be int or float, but received type str: 'two'",
        ),
        ({"num_cpus": True}, TypeError, "type of keyword 'num_cpus' must be int or float, but received type bool"),
        ({"num_gpus": -0.5}, ValueError, "'num_gpus' must be 0 or more, but received -0.5"),
        ({"resources": {"CPU": 1}}, ValueError, "Use the 'num_cpus' keyword instead of 'CPU'"),
        ({"resources": {"GPU": 2}}, ValueError, "Use the 'num_gpus' keyword instead of 'GPU'"),
        ({"resources": {"camera": -1}}, ValueError, "amount of resource 'camera' must be 0 or more, but received -1"),
        ({"resources": {"camera": "one"}}, ValueError, "amount of resource 'camera' must be a number"),
        ({"num_returns": -1}, ValueError, "'num_returns' must be from 0 to 1,000,000, but received -1"),
        ({"max_retries": -2}, ValueError, r"'max_retries' must be -1 \(without end\), 0 or more, but received -2"),
        ({"retry_exceptions": [3]}, ValueError, "a list of exception classes, but it holds 3"),
        ({"name": ""}, ValueError, "'name' must not be empty"),
        ({"scheduling_strategy": "FAR"}, ValueError, "must be 'DEFAULT', 'SPREAD' or a Placement.*received 'FAR'"),
    ],
)
def test_task_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        hocket.remote(**options)(add)
    with pytest.raises(error, match=message):
        hocket.remote(add).options(**options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_retries": 1}, ValueError, "Invalid option keyword 'max_retries' for actor class `Thing`"),
        ({"max_concurrency": 0}, ValueError, "'max_concurrency' must be from 1 to 1,000,000, but received 0"),
        (
            {"lifetime": "long"},
            ValueError,
            "'lifetime' must be 'detached', 'non_detached' or None, but received 'long'",
        ),
        ({"name": 5}, TypeError, "type of keyword 'name' must be str, but received type int"),
    ],
)
def test_actor_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        hocket.remote(**options)(Thing)


def test_decorator_with_empty_parentheses() -> None:
    with pytest.raises(AssertionError, match="without parentheses or with keywords"):
        hocket.remote()


@pytest.mark.parametrize("target", [3, "name", None])
def test_decorating_what_cannot_be_called(target: Any) -> None:
    with pytest.raises(TypeError, match="takes a function or a class, but received"):
        hocket.remote(target)


def test_decorating_twice() -> None:
    with pytest.raises(TypeError, match="`add` is remote already"):
        hocket.remote(hocket.remote(add))  # type: ignore[call-overload]


def test_direct_calls() -> None:
    with pytest.raises(TypeError, match=r"Instead of add\(\.\.\.\) write hocket\.get\(add\.remote\(\.\.\.\)\)"):
        hocket.remote(add)(1)  # type: ignore[operator]
    with pytest.raises(TypeError, match=r"Instead of Thing\(\) write Thing\.remote\(\)"):
        hocket.remote(Thing)(1)


def test_direct_call_of_a_method(session: hocket.SessionContext) -> None:
    thing = hocket.remote(Thing).remote(1)
    with pytest.raises(TypeError, match=r"Instead of actor\.grow\(\.\.\.\) write actor\.grow\.remote\(\.\.\.\)"):
        thing.grow(1)


def test_inheriting_from_an_actor_class() -> None:
    remote_thing: Any = hocket.remote(Thing)
    with pytest.raises(TypeError, match="Inherit from the plain class"):

        class Derived(remote_thing):  # type: ignore[misc]
            pass


def test_arguments_are_checked_at_the_call(session: hocket.SessionContext) -> None:
    with pytest.raises(TypeError, match=r"does not fit add\(x: .*missing a required argument: 'x'"):
        hocket.remote(add).remote()  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        hocket.remote(add).remote(1, z=2)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="missing a required argument: 'size'"):
        hocket.remote(Thing).remote()
    thing = hocket.remote(Thing).remote(1)
    with pytest.raises(TypeError, match="too many positional arguments"):
        thing.grow.remote(1, 2)
    with pytest.raises(AttributeError, match=r"`Thing` has no method 'shrink'. It has \['grow'\]"):
        thing.shrink.remote()


def test_get_if_exists_needs_a_name(session: hocket.SessionContext) -> None:
    with pytest.raises(ValueError, match="get_if_exists=True needs a name"):
        hocket.remote(get_if_exists=True)(Thing).remote(1)


def test_namespace_is_text() -> None:
    with pytest.raises(TypeError, match=r"namespace must be a str, such as 'team', but received \['team'\]"):
        hocket.init(namespace=["team"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"namespace must not be empty\. Leave it out"):
        hocket.init(namespace="")
    assert not hocket.is_initialized()


@pytest.mark.about_local("what its workers are started with")
@pytest.mark.parametrize("interpreter", [None, "", "/nowhere/python"])
def test_interpreter_that_does_not_exist(monkeypatch: pytest.MonkeyPatch, interpreter: str | None) -> None:
    monkeypatch.setattr("sys.executable", interpreter)
    with (
        hocket.init(num_cpus=1),
        pytest.raises(RuntimeError, match=r"sys.executable is .*, with which .*: .* Set sys.executable"),
    ):
        hocket.get(hocket.remote(add).remote(1))


def test_generator_cannot_be_sent(session: hocket.SessionContext) -> None:
    @hocket.remote
    def count() -> Any:
        yield 1

    with pytest.raises(
        SerializationError, match=r"argument 0 is a .*ObjectRefGenerator, which.*Remedy: take the references"
    ):
        hocket.remote(add).remote(count.remote())


@pytest.mark.parametrize("refs", [(), {}, 3, "ref"])
def test_get_of_what_is_no_reference(session: hocket.SessionContext, refs: Any) -> None:
    with pytest.raises(ValueError, match="takes an ObjectRef or a list of them, but received"):
        hocket.get(refs)


def test_get_of_a_list_with_something_else(session: hocket.SessionContext) -> None:
    with pytest.raises(ValueError, match="the list holds 3 of the type int"):
        hocket.get([hocket.put(1), 3])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout must be 0 or more seconds"):
        hocket.get(hocket.put(1), timeout=-1)


def test_put_of_a_reference(session: hocket.SessionContext) -> None:
    with pytest.raises(TypeError, match="takes a value, but received the reference ObjectRef"):
        hocket.put(hocket.put(1))


def test_wait(session: hocket.SessionContext) -> None:
    ref = hocket.put(1)
    with pytest.raises(
        TypeError, match=r"takes a list of ObjectRefs, but received an ObjectRef. Write hocket.wait\(\[ref\]\)"
    ):
        hocket.wait(ref)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="but the list holds 3"):
        hocket.wait([ref, 3])  # type: ignore[type-var]
    with pytest.raises(ValueError, match="takes distinct ObjectRefs, but 1 of the 2 are repetitions"):
        hocket.wait([ref, ref])
    for count in (0, 2):
        with pytest.raises(ValueError, match=rf"must lie between 1 and the number of refs \(1\), but received {count}"):
            hocket.wait([ref], num_returns=count)
    with pytest.raises(ValueError, match="timeout must be 0 or more"):
        hocket.wait([ref], timeout=-1)
    assert hocket.wait([]) == ([], [])


def test_cancel_kill_and_get_actor(session: hocket.SessionContext) -> None:
    with pytest.raises(TypeError, match="takes an ObjectRef, but received 3"):
        hocket.cancel(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="takes an actor handle, but received 3"):
        hocket.kill(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="non-empty value to get_actor"):
        hocket.get_actor("")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda function, ref: (ref, ref), r"of the type tuple\. Write hocket\.get\(list\(refs\)\)"),
        (lambda function, ref: {"a": ref}, r"Write hocket\.get\(list\(refs\.values\(\)\)\) for the values of a dict"),
        (lambda function, ref: function, r"Call it first: hocket\.get\(name\.remote\(\.\.\.\)\)"),
        (lambda function, ref: function.remote, r"Call it first: \.remote\(\.\.\.\), with parentheses"),
        (lambda function, ref: [[ref]], r"Flatten the list: hocket\.get\(\[ref for part in refs for ref in part\]\)"),
        (lambda function, ref: [function], r"Call it first: hocket\.get\(name\.remote\(\.\.\.\)\)"),
        (
            lambda function, ref: hocket.remote(Thing).remote(1),
            r"Call a method of the actor: hocket\.get\(actor\.method\.remote\(\.\.\.\)\)",
        ),
        (
            lambda function, ref: hocket.remote(Thing).grow,
            r"Build an actor first: t = Thing\.remote\(\.\.\.\); t\.grow\.remote\(\.\.\.\)",
        ),
        (
            lambda function, ref: 3,
            r"received 3 of the type int\. Pass only references that \.remote\(\) or put\(\) returned",
        ),
        (lambda function, ref: "ab", r"Pass only references that \.remote\(\) or put\(\) returned"),
    ],
)
def test_what_get_is_given_instead_of_references(make: Any, message: str, session: object) -> None:
    given = make(hocket.remote(add), hocket.put(1))
    with pytest.raises(ValueError, match=message):
        hocket.get(given)


def test_get_of_an_argument_inside_a_task(session: hocket.SessionContext) -> None:
    def use(value: Any) -> Any:
        return hocket.get(value)

    for value in (3, [1, 2], {"a": 1}):
        with pytest.raises(ValueError, match="an argument that was passed as a reference is already the value"):
            hocket.get(hocket.remote(use).remote(hocket.put(value)))
    with pytest.raises(ValueError, match=r"Write hocket\.get\(list\(refs\)\)"):
        hocket.get(hocket.remote(use).remote((hocket.put(1),)))


def test_wait_for_another_container(session: hocket.SessionContext) -> None:
    with pytest.raises(TypeError, match=r"received a tuple. Write hocket\.wait\(list\(refs\)\)"):
        hocket.wait((hocket.put(1),))  # type: ignore[arg-type]


def test_keywords_of_get_and_wait(session: hocket.SessionContext) -> None:
    ref: Any = hocket.put(1)
    get: Any = hocket.get
    wait: Any = hocket.wait
    for call, message in (
        (lambda: get(ref, 0.1), r"takes one argument .* received 2\. Write hocket\.get\(refs, timeout=0\.1\)"),
        (lambda: get(ref, ref), r"as one list\. Write hocket\.get\(\[first, second, \.\.\.\]\)"),
        (lambda: get(ref, timeot=1), r"get\(\) has no keyword 'timeot'\. Did you mean 'timeout'\?"),
        (lambda: get(ref, wrong=1), r"has no keyword 'wrong'\. It has 'timeout'\."),
        (lambda: wait([ref], num_return=1), r"wait\(\) has no keyword 'num_return'\. Did you mean 'num_returns'\?"),
        (lambda: wait([ref], 1, 0.5), r"Write hocket\.wait\(refs, num_returns=1, timeout=0\.5\)"),
    ):
        with pytest.raises(TypeError, match=message):
            call()
    assert list(inspect.signature(get).parameters) == ["object_refs", "timeout"]
    assert "surplus" not in str(inspect.signature(wait))


def test_get_and_kill_take_keywords_as_in_ray(session: hocket.SessionContext) -> None:
    class Counter:
        def count(self) -> int:
            return 1

    counter: Any = hocket.remote(Counter).remote()
    assert hocket.get(object_refs=[counter.count.remote()], timeout=60) == [1]
    hocket.kill(actor=counter, no_restart=True)
    with pytest.raises(hocket.exceptions.ActorDiedError):
        hocket.get(object_refs=counter.count.remote())


def test_remote_method_of_a_remote_class() -> None:
    class Base:
        @hocket.remote
        def grow(self) -> None: ...

    class Derived(Base):
        task = hocket.remote(add)  # no method, and allowed

    message = (
        r"method `Base\.grow` is decorated .* its class `Derived`.*Remove @hocket\.remote from the method; .*@hock"
    )
    with pytest.raises(TypeError, match=message):
        hocket.remote(Derived)


def test_method_of_an_actor_class_called_without_an_actor(session: hocket.SessionContext) -> None:
    actor_class: Any = hocket.remote(Thing)
    build = r"Build an actor first: t = Thing\.remote\(\.\.\.\); t\.grow\.remote\(\.\.\.\)"
    with pytest.raises(AttributeError, match=rf"`Thing\.grow` is a method\. {build}"):
        actor_class.grow.remote(1)
    with pytest.raises(TypeError, match=rf"takes a function or a class, but received .*grow.*{build}"):
        hocket.remote(actor_class.grow)
    with pytest.raises(TypeError, match=r"are remote already: write actor\.grow\.remote\(\.\.\.\)"):
        hocket.remote(actor_class.remote(1).grow)
    thing = Thing(1)
    assert (actor_class.grow(thing, 2), actor_class.grow.__name__) == (3, "grow")
    assert hocket.get(hocket.remote(lambda grow: grow(Thing(1), 4)).remote(actor_class.grow)) == 5


class Measured:
    unit = "cm"

    def __init__(self) -> None:
        self.total = 0

    @property
    def length(self) -> int:
        return self.total

    def increase(self) -> None: ...


def test_attributes_of_actors(session: hocket.SessionContext) -> None:
    measured = hocket.remote(Measured).remote()
    for name in ("total", "length", "unit"):
        with pytest.raises(AttributeError, match=rf"no method '{name}'.*cannot be read from outside: write a method"):
            getattr(measured, name)
    with pytest.raises(AttributeError, match=r"no method 'incraese'.*Did you mean 'increase'\?$"):
        measured.incraese.remote()
    with pytest.raises(AttributeError, match=r"no method 'weight'.*To read an attribute of an actor, write a method"):
        hocket.get(hocket.remote(lambda actor: actor.weight).remote(measured))


def test_attributes_of_references(session: hocket.SessionContext) -> None:
    ref: Any = hocket.put([1])
    with pytest.raises(AttributeError, match=r"An ObjectRef has no attribute 'result'.*Write hocket\.get\(ref\)"):
        ref.result()


def test_a_misspelt_name_of_the_package_is_known_to_python() -> None:
    """What Python needs for its "Did you mean"."""
    with pytest.raises(AttributeError, match="module 'hocket' has no attribute 'remot'") as caught:
        hocket.remot  # type: ignore[attr-defined]  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("remot", hocket)


def test_init() -> None:
    with pytest.raises(ValueError, match="num_cpus must be 0 or more, but received -1"):
        hocket.init(num_cpus=-1)
    with pytest.raises(ValueError, match=r"engine must be one of \['local', 'inprocess', 'ray'\], but received 'fast'"):
        hocket.init(engine="fast")
    with pytest.raises(RuntimeError, match=r"Unknown keyword argument\(s\): num_cpu\. Did you mean num_cpus\?"):
        hocket.init(num_cpu=1)
    with pytest.raises(RuntimeError, match="engine='inprocess'"):
        hocket.init(local_mode=True)
    with pytest.raises(ValueError, match=r"runtime_env\['pip'\] needs a cluster: .* run on Ray"):
        hocket.init(engine="local", runtime_env={"pip": ["x"]})
    assert not hocket.is_initialized()


@pytest.mark.parametrize(
    ("name", "keyword"),
    [("CPU", "num_cpus"), ("GPU", "num_gpus"), ("memory", "_memory"), ("object_store_memory", "object_store_memory")],
)
def test_resources_with_a_keyword_of_their_own(name: str, keyword: str) -> None:
    with pytest.raises(ValueError, match=rf"must not name '{name}', .*Write hocket\.init\({keyword}=100\)"):
        hocket.init(resources={name: 100})
    with pytest.raises(TypeError, match="_memory must be a number, but received 'much'"):
        hocket.init(_memory="much")
    assert not hocket.is_initialized()


@pytest.mark.parametrize("engine", ["local", "inprocess"])
def test_memory_of_a_session(engine: str) -> None:
    with hocket.init(num_cpus=1, engine=engine, _memory=2e15):
        assert hocket.get(hocket.remote(memory=1e15)(add).remote(1)) == 2
        with pytest.raises(
            hocket.exceptions.TaskUnschedulableError, match=r"start with hocket\.init\(_memory=\.\.\.\)"
        ):
            hocket.remote(memory=3e15)(add).remote(1)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "inprocess"])
@pytest.mark.parametrize("num_cpus", [0, 0.5])
def test_session_with_less_than_one_cpu_refuses_what_needs_one(engine: str, num_cpus: float) -> None:
    def submit(index: int) -> str:
        try:
            hocket.remote(add).remote(index) if index < 2 else hocket.remote(Thing).remote(index)
        except hocket.exceptions.InfeasibleResourcesError as error:
            return f"{type(error).__name__}: {error}"
        return "taken"

    refused = r"asks for .*CPU: 1.* but this session has .*hocket\.init\(num_cpus=\.\.\.\)"
    with hocket.init(num_cpus=num_cpus, engine=engine):
        with pytest.raises(hocket.exceptions.TaskUnschedulableError, match=f"Task `add` {refused}"):
            hocket.remote(add).remote(1)
        with pytest.raises(hocket.exceptions.ActorUnschedulableError, match=f"Actor `Thing` {refused}"):
            hocket.remote(Thing).remote(1)
        inside = hocket.get([hocket.remote(num_cpus=0)(submit).remote(index) for index in (1, 2)])
        assert [text.partition(" asks")[0] for text in inside] == [
            "TaskUnschedulableError: Task `add`",
            "ActorUnschedulableError: Actor `Thing`",
        ]
        assert hocket.get(hocket.remote(num_cpus=0)(add).remote(1)) == 2


@pytest.mark.about_local("its workers, which ask the driver what can be had")
def test_task_of_a_task_that_no_bundle_holds_is_refused(session: hocket.SessionContext) -> None:
    strategy = placement.PlacementGroupSchedulingStrategy(hocket.util.placement_group([{"CPU": 0.5}]))

    def submit() -> None:
        hocket.remote(scheduling_strategy=strategy)(add).remote(1)

    with pytest.raises(hocket.exceptions.TaskUnschedulableError, match="no bundle of its placement group"):
        hocket.get(hocket.remote(submit).remote(), timeout=20)


def test_init_twice(session: hocket.SessionContext) -> None:
    with pytest.raises(RuntimeError, match="ignore_reinit_error=True"):
        hocket.init()
    assert hocket.init(ignore_reinit_error=True)["session"] == session["session"]


def test_looking_without_a_session() -> None:
    for look in (hocket.nodes, hocket.cluster_resources, hocket.available_resources):
        with pytest.raises(SessionClosedError, match=r"Call hocket\.init\(\) first"):
            look()
    assert hocket.error_info() == []  # nothing has failed


def test_references_of_an_earlier_session(session: hocket.SessionContext) -> None:
    ref = hocket.put(1)
    hocket.shutdown()
    with pytest.raises(hocket.exceptions.SessionClosedError, match="shut down are gone: make them again"):
        hocket.get(ref)
    hocket.init(num_cpus=2)
    with pytest.raises(hocket.exceptions.ObjectLostError, match="session that is closed"):
        hocket.get(ref)


@pytest.mark.parametrize(
    ("bundles", "strategy", "error", "message"),
    [
        ([], "PACK", ValueError, "list of at least one dict"),
        ([{}], "PACK", ValueError, "Bundle 0 must have an amount above 0"),
        ([{"CPU": -1}], "PACK", ValueError, "of bundle 0 must be 0 or more, but received -1"),
        ([3], "PACK", TypeError, "Bundle 0 must be a dict"),
        ([{"CPU": 1}], "NEAR", ValueError, "Invalid placement group strategy 'NEAR'"),
        ([{"GPU": 1}], "PACK", hocket.exceptions.InfeasibleResourcesError, r"hocket\.init\(num_gpus=\.\.\.\)"),
        (
            [{"CPU": 99, "lidar": 1, "memory": 1e15}],
            "PACK",
            hocket.exceptions.InfeasibleResourcesError,
            r"hocket\.init\(num_cpus=\.\.\., _memory=\.\.\., resources=\{'lidar': \.\.\.\}\)",
        ),
        ([{"CPU": 1, "cpu": 1}], "PACK", hocket.exceptions.InfeasibleResourcesError, r"Did you mean 'CPU' by 'cpu'\?$"),
        ([{"GPU": 99}], "PACK", hocket.exceptions.InfeasibleResourcesError, r"hocket\.init\(num_gpus=\.\.\.\)\.$"),
        ([{"CPU": 1}] * 2, "STRICT_SPREAD", hocket.exceptions.InfeasibleResourcesError, "asks for 2 nodes.*has 1"),
    ],
)
def test_placement_groups(
    session: hocket.SessionContext, bundles: Any, strategy: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        hocket.util.placement_group(bundles, strategy)


def test_bundle_index(session: hocket.SessionContext) -> None:
    from hocket.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = hocket.util.placement_group([{"CPU": 1}])
    with pytest.raises(ValueError, match=r"between -1 \(any\) and 0, but received 1"):
        PlacementGroupSchedulingStrategy(group, 1)
    with pytest.raises(TypeError, match="must be a PlacementGroup, but received 3"):
        PlacementGroupSchedulingStrategy(3)  # type: ignore[arg-type]


class Holder:
    def __init__(self) -> None:
        self.lock = threading.Lock()


def _make_closure() -> Any:
    lock = threading.Lock()
    return lambda: lock.acquire()  # noqa: PLW0108 (the closure is what is tested)


def _make_default() -> Any:
    def use(lock: Any = threading.Lock()) -> None:  # noqa: B008 (the mistake that is tested)
        lock.acquire()

    return use


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_make_closure(), "closure variable 'lock' is a _thread.lock"),
        (_make_default(), "default value 0 is a _thread.lock"),
    ],
)
def test_functions_that_cannot_travel(session: hocket.SessionContext, function: Any, message: str) -> None:
    with pytest.raises(SerializationError, match=f"{message}.*Remedy: create the lock inside the function"):
        hocket.remote(function).remote()


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (threading.Lock(), "is a _thread.lock"),
        ([1, threading.Lock()], r"\[1\] is a _thread.lock"),
        ({"a": {"b": threading.RLock()}}, r"\['a'\]\['b'\] is a _thread.RLock"),
        (Holder(), r"\.lock is a _thread.lock"),
        ((x for x in [1]), "is a builtins.generator"),
    ],
)
def test_values_that_cannot_travel(session: hocket.SessionContext, value: Any, path: str) -> None:
    with pytest.raises(SerializationError, match=f"{path}.*Remedy"):
        hocket.put(value)


def test_wait_counts_whole_objects(session: hocket.SessionContext) -> None:
    ref = hocket.put(1)
    with pytest.raises(TypeError, match=r"num_returns must be a whole number, but received 1.5 \(float\)"):
        hocket.wait([ref], num_returns=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"timeout must be a number of seconds, .*received '1' \(str\)"):
        hocket.get(ref, timeout="1")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="timeout must be 0 or more seconds"):
        hocket.wait([ref], timeout=float("nan"))


_BINARY = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and_",
    "or_",
    "xor",
    "lt",
    "le",
    "gt",
    "ge",
)


def test_a_reference_used_as_its_value_says_what_to_write(session: hocket.SessionContext) -> None:
    ref = hocket.put([1])
    uses: list[Callable[[Any], Any]] = [len, list, int, float, range, abs, round, "{:.2f}".format]
    uses += [operator.neg, operator.pos, operator.invert, lambda one: one[0], lambda one: 3 in one]
    uses += [lambda one: divmod(one, 2), lambda one: divmod(2, one)]
    binary: list[Callable[[Any, Any], Any]] = [getattr(operator, name) for name in _BINARY]
    uses += [functools.partial(apply, 1) for apply in binary]
    uses += [functools.partial(lambda apply, one: apply(one, 1), apply) for apply in binary]
    for use in uses:
        with pytest.raises(TypeError, match=r"An ObjectRef is not a value, .* Write hocket\.get\(ref\) for the value"):
            use(ref)
    with pytest.raises(TypeError, match=r"An ObjectRef is not a value, .* Write hocket\.get\(ref\) for the value"):
        ref[0] = 1  # type: ignore[index]
    assert f"{ref}" == str(ref)
    assert not isinstance(ref, Iterable)


def test_the_truth_of_a_reference_is_that_it_is_there_and_said_so(session: hocket.SessionContext) -> None:
    ref = hocket.put(0)
    with pytest.warns(
        UserWarning, match=r"Write hocket\.get\(ref\) for the value; an ObjectRef is always true"
    ) as caught:
        assert ref or None  # type: ignore[truthy-bool]  # as in Ray, whatever its value is
    assert caught[0].filename == __file__


def test_arguments_that_do_not_fit_are_shown(session: hocket.SessionContext) -> None:
    @hocket.remote
    def f(x: object) -> object:
        return x

    with pytest.raises(TypeError, match=r"f\(1, 'a'\) does not fit f\(x: 'object'\) -> 'object': too many"):
        f.remote(1, "a")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"f\(1, y='b{10,40}\.\.\.\) does not fit f\(x"):
        f.remote(1, y="b" * 1000)  # type: ignore[call-overload]


@pytest.mark.about_local("the messages between its processes")
def test_call_with_more_values_than_a_message_holds_is_refused_and_the_rest_goes_on(
    session: hocket.SessionContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hocket.engine.local.channel.MAX_MESSAGE_BYTES", 200_000)
    values = [hocket.put(bytes([number]) * 50_000) for number in range(10)]
    large = hocket.put(np.ones(200_000))

    @hocket.remote(max_retries=0)
    def count(*values: Any) -> int:
        return len(values)

    @hocket.remote(max_retries=0)
    def end() -> None:
        os._exit(3)

    before = [count.remote() for _ in range(5)]
    refused = count.remote(*values, large)
    after = [count.remote(large) for _ in range(5)]
    dying = end.remote()
    with pytest.raises(SerializationError, match=r"message 3 has 50\d,\d\d\d bytes; the limit is 200,000"):
        hocket.get(refused, timeout=20)
    with pytest.raises(WorkerCrashedError, match="`end` exited with code 3"):
        hocket.get(dying, timeout=20)
    assert hocket.get(before + after, timeout=20) == [0] * 5 + [1] * 5
    actor = hocket.remote(max_restarts=1)(type("Counter", (), {"count": lambda self, *values: len(values)})).remote()
    with pytest.raises(SerializationError, match="Put the references into a list and pass the list"):
        hocket.get(actor.count.remote(*values), timeout=20)
    assert hocket.get(actor.count.remote(*values[:3]), timeout=20) == 3
