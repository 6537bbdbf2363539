"""Every option of tasks, actors and methods: its rule, and the message when the rule is broken."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest

import hocket
from hocket import exceptions
from hocket.core import placement
from hocket.util import scheduling_strategies


def add(x: int, y: int = 0) -> int:
    return x + y


def count(n: int) -> Iterator[int]:
    yield from range(n)


class Thing:
    def grow(self, by: int = 1) -> int:
        return by

    @hocket.method(concurrency_group="io")
    def read(self) -> int:
        return 1


class Plain:
    def grow(self, by: int = 1) -> int:
        return by


class Coroutines:
    async def wait(self) -> int:
        return 1


BOTH = [
    ({"memory": -1}, ValueError, "'memory' must be 0 or more, but received -1"),
    ({"memory": "1GB"}, TypeError, "type of keyword 'memory' must be int or float, but received type str"),
    ({"resources": {"memory": 1}}, ValueError, "Use the 'memory' keyword instead"),
    ({"resources": ["camera"]}, TypeError, "type of keyword 'resources' must be dict"),
    ({"accelerator_type": ""}, ValueError, "'accelerator_type' must not be empty"),
    ({"accelerator_type": 3}, TypeError, "type of keyword 'accelerator_type' must be str"),
    ({"scheduling_strategy": 3}, TypeError, "type of keyword 'scheduling_strategy' must be str or PlacementGroup"),
    ({"label_selector": {"disk": 3}}, ValueError, "must map text to text"),
    ({"label_selector": {"disk": "in(a, b"}}, ValueError, "lacks the closing bracket"),
    ({"label_selector": "disk"}, TypeError, "type of keyword 'label_selector' must be dict"),
    ({"fallback_strategy": [{"disk": "ssd"}]}, ValueError, "must be a list of dicts such as"),
    ({"runtime_env": {"envvars": {}}}, ValueError, r"runtime_env\['envvars'\] is unknown. Valid keys are"),
    ({"runtime_env": {"env_vars": {"A": 1}}}, ValueError, "must hold text only, but received 'A': 1. Write 'A': '1'"),
    ({"runtime_env": {"env_vars": ["A"]}}, ValueError, "must be a dict from name to text"),
    ({"runtime_env": {"working_dir": "/no/such/folder"}}, ValueError, "must be a folder on this machine"),
    ({"runtime_env": {"working_dir": 3}}, ValueError, "must be the path of a folder, but received 3"),
    ({"runtime_env": {"py_modules": "folder"}}, ValueError, "must be a list of folders or modules"),
    ({"runtime_env": "env"}, TypeError, "type of keyword 'runtime_env' must be dict"),
    ({"placement_group": "far"}, ValueError, "must be a PlacementGroup or 'default', but received 'far'"),
    ({"enable_tensor_transport": True}, ValueError, "not supported: values travel through shared memory"),
    ({"enable_task_events": "yes"}, TypeError, "type of keyword 'enable_task_events' must be bool"),
    ({"name": 3}, TypeError, "type of keyword 'name' must be str"),
]


@pytest.mark.parametrize(("options", "error", "message"), BOTH)
def test_options_of_both(options: dict[str, Any], error: type[Exception], message: str) -> None:
    for target in (add, Plain):
        with pytest.raises(error, match=message):
            hocket.remote(**options)(target)
        with pytest.raises(error, match=message):
            hocket.remote(target).options(**options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_returns": "many"}, ValueError, "must be a number, 'streaming' or 'dynamic', but received 'many'"),
        ({"num_returns": 1.5}, TypeError, "type of keyword 'num_returns' must be int or str"),
        ({"num_returns": "streaming"}, ValueError, "is for generators, but `add` is not a generator function"),
        ({"num_returns": "dynamic"}, ValueError, "is for generators, but `add` is not a generator function"),
        ({"max_calls": -1}, ValueError, "'max_calls' must be 0 or more, but received -1"),
        ({"max_restarts": 1}, ValueError, "Invalid option keyword 'max_restarts' for remote function `add`"),
        ({"retry_exceptions": ValueError}, TypeError, "type of keyword 'retry_exceptions' must be bool or list"),
        ({"_generator_backpressure_num_objects": 0}, ValueError, r"must be -1 \(without limit\), 1 or more"),
        ({"max_retries": 1.5}, TypeError, "type of keyword 'max_retries' must be int"),
    ],
)
def test_options_of_tasks(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        hocket.remote(**options)(add)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_restarts": -2}, ValueError, r"'max_restarts' must be -1 \(without end\), 0 or more, but received -2"),
        ({"max_task_retries": -2}, ValueError, "'max_task_retries' must be -1"),
        ({"max_pending_calls": 0}, ValueError, r"'max_pending_calls' must be -1 \(without limit\), 1 or more"),
        ({"max_concurrency": -1}, ValueError, "'max_concurrency' must be from 1 to"),
        ({"concurrency_groups": {"io": 0}}, ValueError, "size of concurrency group 'io' must be 1 or more"),
        ({"concurrency_groups": {"": 1}}, ValueError, "must name its groups with text"),
        ({"concurrency_groups": "io"}, TypeError, "type of keyword 'concurrency_groups' must be dict or list"),
        ({"namespace": ""}, ValueError, "'namespace' must not be empty"),
        ({"get_if_exists": 1}, TypeError, "type of keyword 'get_if_exists' must be bool"),
        ({"max_concurrency": 2, "allow_out_of_order_execution": False}, ValueError, "is not possible for actor class"),
        ({"num_returns": 2}, ValueError, "Invalid option keyword 'num_returns' for actor class"),
    ],
)
def test_options_of_actors(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        hocket.remote(**options)(Plain)


def test_coroutines_have_no_order() -> None:
    with pytest.raises(ValueError, match="is not possible for actor class `Coroutines`"):
        hocket.remote(allow_out_of_order_execution=False)(Coroutines)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_returns": -1}, ValueError, "'num_returns' must be from 0 to"),
        ({"num_cpus": 1}, ValueError, "Invalid option keyword 'num_cpus' for @hocket.method"),
        ({"concurrency_group": 3}, TypeError, "type of keyword 'concurrency_group' must be str"),
        ({"max_task_retries": -2}, ValueError, "'max_task_retries' must be -1"),
        ({"tensor_transport": "nccl"}, ValueError, "not supported: values travel through shared memory"),
    ],
)
def test_options_of_methods(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        hocket.method(**options)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"pip": ["x"]}, r"runtime_env\['pip'\] needs a cluster: .*'env_vars'"),
        ({"conda": "x"}, r"runtime_env\['conda'\] needs a cluster: .* run on Ray"),
        ({"working_dir": "s3://bucket/x.zip"}, r"runtime_env\['working_dir'\] must be a folder on this machine"),
        ({"py_modules": ["s3://bucket/x.zip"]}, r"runtime_env\['py_modules'\] must be a folder on this machine"),
    ],
)
@pytest.mark.parametrize("engine", ["local", "inprocess"], ids=["on the local engine", "in this process"])
def test_environments_that_need_a_cluster(engine: str, environment: dict[str, Any], message: str) -> None:
    with hocket.init(num_cpus=1, engine=engine):
        check_environment_is_refused(environment, message)


def check_environment_is_refused(environment: dict[str, Any], message: str) -> None:
    function = hocket.remote(runtime_env=environment)(add)  # on which engine it will run is not known here
    with pytest.raises(ValueError, match=message):
        function.remote(1, 2)
    with pytest.raises(ValueError, match=message):
        hocket.remote(add).options(runtime_env=environment).remote(1, 2)
    with pytest.raises(ValueError, match=message):
        hocket.remote(runtime_env=environment)(Plain).remote()


def test_runtime_env_class() -> None:
    with pytest.raises(ValueError, match=r"runtime_env\['uvx'\] is unknown. Valid keys are .* on Ray also .*'uv'"):
        hocket.runtime_env.RuntimeEnv(uvx=["x"])
    assert hocket.runtime_env.RuntimeEnv(uv=["x"]) == {"uv": ["x"]}
    environment = hocket.runtime_env.RuntimeEnv(env_vars={"HOCKET_A": "1"})
    assert hocket.remote(runtime_env=environment)(add) is not None


def test_method_without_options() -> None:
    with pytest.raises(ValueError, match="either without parentheses or with keywords"):
        hocket.method()


def test_decorator_only_options() -> None:
    with pytest.raises(ValueError, match=r"'max_calls' of remote function `add` cannot be changed with \.options"):
        hocket.remote(add).options(max_calls=3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"'concurrency_groups' of actor class `Plain` cannot be changed"):
        hocket.remote(Plain).options(concurrency_groups={"io": 1})  # type: ignore[call-arg]


def test_old_placement_group_keyword(session: hocket.SessionContext) -> None:
    group = hocket.util.placement_group([{"CPU": 1}])
    with pytest.warns(DeprecationWarning, match="scheduling_strategy=PlacementGroupSchedulingStrategy"):
        placed = hocket.remote(add).options(placement_group=group, placement_group_bundle_index=0)
    assert hocket.get(placed.remote(1)) == 1
    strategy = scheduling_strategies.PlacementGroupSchedulingStrategy(group)
    with pytest.raises(ValueError, match="exclude each other"):
        hocket.remote(add).options(placement_group=group, scheduling_strategy=strategy)


@pytest.mark.parametrize("text", ["0000000000000007", "08947cf7f2c9b9386bc076948de601000000"])
def test_ids_of_groups_keep_their_leading_zeros(text: str) -> None:
    ref: Any = types.SimpleNamespace(_id=int(text, 16))
    assert placement.PlacementGroup(ref, []).id == text


def test_strategies_check_what_they_are_given(session: hocket.SessionContext) -> None:
    group = hocket.util.placement_group([{"CPU": 1}])
    with pytest.raises(ValueError, match=r"must lie between -1 \(any\) and 0, but received 5"):
        scheduling_strategies.PlacementGroupSchedulingStrategy(group, 5)
    with pytest.raises(TypeError, match="must be a PlacementGroup, but received 'group'"):
        scheduling_strategies.PlacementGroupSchedulingStrategy("group")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="node_id must be a node's id, but received 3"):
        scheduling_strategies.NodeAffinitySchedulingStrategy(3, soft=True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs conditions"):
        scheduling_strategies.NodeLabelSchedulingStrategy({})
    with pytest.raises(ValueError, match="must be In, NotIn, Exists or DoesNotExist, but received 'ssd'"):
        scheduling_strategies.NodeLabelSchedulingStrategy({"disk": "ssd"})  # type: ignore[dict-item]


def test_placement_group_keywords(session: hocket.SessionContext) -> None:
    with pytest.raises(ValueError, match="lifetime must be None or 'detached', but received 'long'"):
        hocket.util.placement_group([{"CPU": 1}], lifetime="long")
    with pytest.raises(TypeError, match="has no keyword 'stratgy'"):
        hocket.util.placement_group([{"CPU": 1}], stratgy="PACK")


def test_unknown_concurrency_group(session: hocket.SessionContext) -> None:
    thing = hocket.remote(Thing).remote()
    with pytest.raises(ValueError, match=r"names the concurrency group 'io', but actor class `Thing` declares \[\]"):
        thing.read.remote()
    with pytest.raises(ValueError, match="names the concurrency group 'disk'"):
        thing.grow.options(concurrency_group="disk")


def test_options_leave_the_original_alone(session: hocket.SessionContext) -> None:
    remote_count = hocket.remote(count)
    assert hocket.get(remote_count.options(num_returns=2).remote(2)) == [0, 1]
    assert isinstance(remote_count.remote(2), hocket.ObjectRefGenerator)
    assert hocket.get(hocket.remote(add)._remote((1,), {"y": 2}, num_cpus=0.5)) == 3
    thing = hocket.remote(Plain).remote()
    assert hocket.get(thing.grow._remote((4,), name="grown")) == 4


def test_coroutine_functions_are_no_tasks() -> None:
    async def wait() -> None: ...

    with pytest.raises(ValueError, match="`wait` is a coroutine function"):
        hocket.remote(wait)


def test_generators_stay_with_their_reader(session: hocket.SessionContext) -> None:
    items = hocket.remote(count).remote(1)
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        hocket.put(items)
    assert hocket.get(items) is items


def test_impossible_memory_is_refused(session: hocket.SessionContext) -> None:
    with pytest.raises(exceptions.TaskUnschedulableError, match="memory"):
        hocket.remote(add).options(memory=1e18).remote(1)
    with pytest.raises(exceptions.TaskUnschedulableError, match="accelerator_type:T4"):
        hocket.remote(add).options(accelerator_type="T4").remote(1)


def test_options_of_a_method_add_up(session: hocket.SessionContext) -> None:
    class Pair:
        def get(self) -> tuple[int, int]:
            return 1, 2

    made: Any = hocket.remote(Pair)
    method = made.remote().get.options(num_returns=2)
    assert hocket.get(method.options(name="pair").remote()) == [1, 2]
    assert hocket.get(method.options(name="pair").options(num_returns=1).remote()) == (1, 2)


def test_arguments_may_have_any_name(session: hocket.SessionContext) -> None:
    names = {"self": 1, "actor": 2, "function": 3, "method": 4, "args": 5, "kwargs": 6, "name": 7}

    @hocket.remote
    def show(**given: int) -> dict[str, int]:
        return given

    class Shower:
        def __init__(this, **given: int) -> None:  # noqa: N805 (the name is what this is about)
            this.given = given

        def show(this, **given: int) -> tuple[dict[str, int], dict[str, int]]:  # noqa: N805
            return this.given, given

        def count(this, **given: int) -> Iterator[int]:  # noqa: N805
            yield from given.values()

    assert hocket.get(show.remote(**names)) == names
    assert hocket.get(show.bind(**names).execute()) == names
    made: Any = hocket.remote(Shower)
    shower = made.remote(**names)
    assert hocket.get(shower.show.remote(**names)) == (names, names)
    found = hocket.get(shower.count.options(num_returns="dynamic").remote(**names))
    assert hocket.get(list(found)) == list(names.values())
    assert hocket.get(made.bind(**names).show.bind(**names).execute()) == (names, names)
