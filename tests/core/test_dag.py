"""Graphs of calls: what runs, how often, in which order, and with what."""

from __future__ import annotations

import uuid
from typing import Any

import cloudpickle
import pytest

import hocket
from hocket.dag import ClassMethodNode, ClassNode, FunctionNode, InputAttributeNode, InputNode, MultiOutputNode

pytestmark = pytest.mark.usefixtures("any_session")


@hocket.remote
def add(x: Any, y: Any = 0) -> Any:
    return x + y


@hocket.remote
def echo(value: Any) -> Any:
    return value


@hocket.remote
def make_id() -> str:
    return uuid.uuid4().hex


class PlainCounter:
    def __init__(self, start: int = 0) -> None:
        self.value = start

    def add(self, amount: int = 1) -> int:
        self.value += amount
        return self.value

    @hocket.method(num_returns=2)
    def split(self, x: int) -> tuple[int, int]:
        return x, -x

    def get_name(self) -> str | None:
        return hocket.get_runtime_context().get_task_name()


Counter: Any = hocket.remote(PlainCounter)


class Point:
    def __init__(self, x: int, y: int) -> None:
        self.x = x
        self.y = y


# --- functions --------------------------------------------------------------------------------------------------------


def test_a_node_runs_when_it_is_executed() -> None:
    node = add.bind(1, y=2)
    assert isinstance(node, FunctionNode)
    assert hocket.get(node.execute()) == 3
    assert node.get_args() == (1,)
    assert node.get_kwargs() == {"y": 2}


def test_a_shared_node_runs_once_for_each_execute() -> None:
    shared = make_id.bind()
    both = MultiOutputNode([echo.bind(shared), echo.bind(shared), shared])
    first, second = hocket.get(both.execute()), hocket.get(both.execute())
    assert len(set(first)) == 1
    assert len(set(second)) == 1
    assert first != second


def test_nodes_in_containers_become_references() -> None:
    one = add.bind(1)
    value = hocket.get(echo.bind([one, {"key": (one, 5)}, {7}]).execute())
    assert type(value[0]) is hocket.ObjectRef
    assert value[1] == {"key": (value[0], 5)}
    assert value[2] == {7}
    assert hocket.get(value[0]) == 1


def test_a_deep_graph() -> None:
    node = add.bind(0, 1)
    for _ in range(3000):
        node = add.bind(node, 1)
    assert hocket.get(node.execute()) == 3001


def test_options_are_kept() -> None:
    node = echo.options(num_returns=2, name="pair").bind((1, 2))
    assert node.get_options() == {"num_returns": 2, "name": "pair"}
    assert hocket.get(node.execute()) == [1, 2]
    name = hocket.remote(lambda: hocket.get_runtime_context().get_task_name()).options(name="special")
    assert hocket.get(name.bind().execute()) == "special"


def test_an_error_reaches_those_who_need_the_value() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        hocket.get(add.bind(add.bind(1, "x"), 1).execute())


def test_a_node_can_travel() -> None:
    node = add.bind(add.bind(1, 2), 3)
    assert hocket.get(cloudpickle.loads(cloudpickle.dumps(node)).execute()) == 6
    assert hocket.get(hocket.remote(lambda node: hocket.get(node.execute())).remote(node)) == 6


# --- actors -----------------------------------------------------------------------------------------------------------


def test_calls_on_an_actor_run_in_the_order_in_which_they_were_bound() -> None:
    counter = Counter.bind(10)
    first = counter.add.bind(1)
    second = counter.add.bind(first)
    assert isinstance(counter, ClassNode)
    assert isinstance(first, ClassMethodNode)
    assert first.get_method_name() == "add"
    assert hocket.get(second.execute()) == 22
    assert hocket.get(counter.add.bind(100).execute()) == 122  # the other two are before it


def test_each_execute_has_an_actor_of_its_own() -> None:
    node = Counter.bind(10).add.bind(1)
    assert [hocket.get(node.execute()) for _ in range(3)] == [11, 11, 11]


def test_one_execute_has_one_actor_for_all_its_calls() -> None:
    counter = Counter.bind()
    calls = [counter.add.bind() for _ in range(4)]
    assert hocket.get(MultiOutputNode(calls).execute()) == [1, 2, 3, 4]


def test_a_class_node_executes_to_a_handle() -> None:
    handle = Counter.bind(add.bind(1, 2)).execute()
    assert hocket.get(handle.add.remote()) == 4


def test_an_actor_that_lives_keeps_its_state() -> None:
    handle = Counter.remote()
    node = handle.add.bind(add.bind(2, 3))
    assert [hocket.get(node.execute()) for _ in range(2)] == [5, 10]


def test_several_returns_of_a_living_actor_are_nodes() -> None:
    plus, minus = Counter.remote().split.bind(5)
    assert hocket.get(add.bind(plus, add.bind(plus, minus)).execute()) == 5
    assert hocket.get(MultiOutputNode([minus, plus]).execute()) == [-5, 5]
    assert hocket.get(Counter.bind().split.bind(5).execute()) == [5, -5]


def test_options_of_actors_and_methods() -> None:
    counter = Counter.options(name="named").bind()
    assert hocket.get(counter.get_name.options(name="asked").bind().execute()) == "asked"
    assert counter.get_options() == {"name": "named"}
    assert hocket.get(Counter.remote().get_name.options(name="asked").bind().execute()) == "asked"


# --- inputs and outputs -----------------------------------------------------------------------------------------------


def test_one_input() -> None:
    with InputNode() as given:
        node = add.bind(given, given)
    assert hocket.get(node.execute(4)) == 8
    assert hocket.get(node.execute("ab")) == "abab"
    assert hocket.get(node.execute(hocket.put(3))) == 6
    assert given.execute("itself") == "itself"


def test_parts_of_the_input() -> None:
    with InputNode() as given:
        by_position = add.bind(given[0], given[1])
        by_name = add.bind(given.x, given["y"])
        mixed = add.bind(given[0], given.y)
    assert isinstance(given.x, InputAttributeNode)
    assert given[1].key == 1
    assert hocket.get(by_position.execute(1, 2)) == 3
    assert hocket.get(by_position.execute([3, 4])) == 7
    assert hocket.get(by_name.execute(x=1, y=2)) == 3
    assert hocket.get(mixed.execute(1, y=5)) == 6
    with InputNode() as given:
        of_object = add.bind(given.x, given.y)
        of_dict = add.bind(given["x"], given["y"])
    assert hocket.get(of_object.execute(Point(1, 2))) == 3
    assert hocket.get(of_dict.execute({"x": 1, "y": 2})) == 3


def test_several_outputs() -> None:
    with InputNode() as given:
        node = MultiOutputNode((add.bind(given, 1), add.bind(given, 2)))
    refs = node.execute(10)
    assert hocket.get(refs) == [11, 12]
    handle = Counter.remote()
    with InputNode() as given:
        node = MultiOutputNode([handle.add.bind(given), echo.bind(given)])
    assert hocket.get(node.execute(2)) == [2, 2]


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_remote_on_a_node() -> None:
    with InputNode() as given:
        counter = Counter.bind()
        nodes: tuple[Any, ...] = (
            add.bind(1),
            counter,
            counter.add,
            counter.add.bind(),
            given,
            given[0],
            MultiOutputNode([given]),
        )
        for node in nodes:
            with pytest.raises(AttributeError, match=r"\.remote\(\) cannot be used on .*use \.execute\(\)"):
                node.remote()
    with pytest.raises(AttributeError, match="FunctionNode has no attribute 'foo'"):
        add.bind(1).foo()
    with pytest.raises(AttributeError, match="Actor class `PlainCounter` has no attribute 'subtract'"):
        counter.subtract.bind()


def test_an_input_in_a_constructor() -> None:
    with InputNode() as given:
        for arguments in ((given,), ([given],), ({"a": (given,)},)):
            with pytest.raises(ValueError, match=r"cannot be used as args, .*Pass the input to a method"):
                Counter.bind(*arguments)
        with pytest.raises(ValueError, match="cannot be used as args, kwargs"):
            Counter.bind(start=given)


def test_an_input_outside_of_with() -> None:
    for node in (add.bind(InputNode(), 1), add.bind(InputNode()[0]), InputNode()):
        with pytest.raises(AssertionError, match=r"only used in context manager.*with InputNode\(\) as input_node"):
            node.execute(1)
    with pytest.raises(ValueError, match=r"should not take any args or kwargs, but received \(3,\)"):
        InputNode(3)
    with pytest.raises(AssertionError, match=r"only use int index or str as first-level key.*received 1\.5"):
        InputNode()[1.5]  # type: ignore[index]
    with pytest.raises(AttributeError, match="InputNode has no attribute '_private'"):
        InputNode()._private  # noqa: B018


def test_execute_with_the_wrong_arguments() -> None:
    with InputNode() as given:
        whole, parts = echo.bind(given), add.bind(given[1], given.y)
    with pytest.raises(TypeError, match="received 2 positional and 0 keyword arguments"):
        whole.execute(1, 2)
    with pytest.raises(TypeError, match="received 0 positional and 1 keyword arguments"):
        whole.execute(x=1)
    with pytest.raises(IndexError, match=r"received \('int', y=...\), but the graph uses input_node\[1\]"):
        parts.execute(1, y=2)
    with pytest.raises(KeyError, match=r"the graph uses input_node\.y"):
        parts.execute(1, 2)
    with pytest.raises(TypeError, match=r"uses input_node\[1\]"):
        parts.execute(1)


def test_arguments_that_do_not_fit_are_found_when_they_are_bound() -> None:
    with pytest.raises(TypeError, match=r"does not fit add\(x.*too many positional arguments"):
        add.bind(1, 2, 3)
    with pytest.raises(TypeError, match=r"does not fit PlainCounter\(start"):
        Counter.bind(1, 2)
    with pytest.raises(TypeError, match=r"does not fit PlainCounter\.add\(amount"):
        Counter.remote().add.bind(1, 2)


def test_outputs_that_are_no_list() -> None:
    with pytest.raises(ValueError, match=r"Invalid input type for `args`, .*Write MultiOutputNode\(\[node\]\)"):
        MultiOutputNode(add.bind(1))


def test_compiled_graphs() -> None:
    with pytest.raises(NotImplementedError, match=r"experimental_compile\) are not supported. Call node.execute"):
        add.bind(1).experimental_compile(_buffer_size_bytes=1)


def test_a_graph_has_one_input() -> None:
    with InputNode() as first, InputNode() as second:
        graphs = [add.bind(first, second), add.bind(first.x, add.bind(1, second[0])), MultiOutputNode([first, second])]
    for graph in graphs:
        with pytest.raises(AssertionError, match="Each DAG should only have one unique InputNode, but this one has 2"):
            graph.execute(1, 2)
    with InputNode() as given:
        assert hocket.get(add.bind(given[0], add.bind(given[0], given[1])).execute(1, 2)) == 4
