"""Modules in which programs for Ray look for names, and what is said of names that are not there."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import pickle
import runpy
from pathlib import Path
from typing import Any

import pytest

import hocket
import hocket.data


@pytest.mark.parametrize(
    ("module", "name", "home"),
    [
        ("hocket.dag.input_node", "InputNode", "hocket.dag"),
        ("hocket.dag.input_node", "InputAttributeNode", "hocket.dag"),
        ("hocket.dag.output_node", "MultiOutputNode", "hocket.dag"),
        ("hocket.dag.dag_node", "DAGNode", "hocket.dag"),
        ("hocket.dag.function_node", "FunctionNode", "hocket.dag"),
        ("hocket.dag.class_node", "ClassNode", "hocket.dag"),
        ("hocket.dag.class_node", "ClassMethodNode", "hocket.dag"),
        ("hocket.tune.execution.placement_groups", "PlacementGroupFactory", "hocket.tune"),
    ],
)
def test_second_place_of_a_name(module: str, name: str, home: str) -> None:
    assert getattr(importlib.import_module(module), name) is getattr(importlib.import_module(home), name)


@pytest.mark.parametrize("name", ["run", "run_elastic"])
def test_horovods_launcher_says_what_to_write(name: str) -> None:
    horovod = importlib.import_module("hocket.train.horovod")
    with pytest.raises(AttributeError, match=rf"no {name}\(\), which Horovod has.*TorchTrainer\(function"):
        getattr(horovod, name)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        horovod.nonsense  # noqa: B018


def test_table_of_placement_groups_has_the_nodes() -> None:
    with hocket.init(num_cpus=2):
        group = hocket.util.placement_group([{"CPU": 1}, {"CPU": 1}])
        hocket.get(group.ready())
        (node,) = hocket.nodes()
        described = hocket.util.placement_group_table(group)
        assert described["bundles_to_node_id"] == {0: node["NodeID"], 1: node["NodeID"]}
        hocket.util.remove_placement_group(group)


SCRIPT = """
import hocket

class Base:
    pass

@hocket.remote
class Counter:
    def count(self):
        return type(self).__name__

@hocket.remote
def make():
    return Base()

seen = hocket.get([Counter.remote().count.remote(), make.remote()])
"""


def test_script_that_runpy_runs(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    with hocket.init(num_cpus=2):
        for _ in range(2):
            assert runpy.run_path(str(path))["seen"][0] == "Counter"


def test_names_are_shown_short_and_harmless() -> None:
    def function() -> None: ...

    function.__name__ = "a\x1b[31m\n\ud800" + "x" * 10**6
    shown = repr(hocket.remote(function))
    assert shown.startswith("RemoteFunction(a\\x1b[31m\\n\\ud800xxx")
    assert len(shown) < 300
    kind = type("A\n" + "x" * 10**6, (), {})
    assert len(repr(hocket.remote(kind))) < 300
    with hocket.init(num_cpus=1, engine="inprocess"):
        assert len(repr(hocket.remote(kind).remote())) < 300


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_returns": 10**30}, "'num_returns' must be from 0 to 1,000,000, but received 10+. For more, write"),
        ({"num_returns": -1}, "'num_returns' must be from 0 to 1,000,000, but received -1"),
    ],
)
def test_numbers_that_no_machine_has(options: dict[str, int], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        hocket.remote(lambda: 1).options(**options)  # type: ignore[call-overload]


def test_more_threads_than_a_process_has() -> None:
    class Plain: ...

    with pytest.raises(ValueError, match=r"'max_concurrency' must be from 1 to 1,000,000, but received 10+"):
        hocket.remote(Plain).options(max_concurrency=10**30)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"num_cpus": "two"}, "num_cpus must be a number, but received 'two'. Write num_cpus=2"),
        ({"resources": [1]}, r"resources must be a dict, but received \[1\]"),
        ({"resources": {"camera": "one"}}, "camera must be a number, but received 'one'"),
        ({"runtime_env": 3}, "runtime_env must be a dict, but received 3"),
    ],
)
def test_wrong_kinds_at_the_beginning(given: dict[str, object], match: str) -> None:
    with pytest.raises(TypeError, match=match):
        hocket.init(**given)  # type: ignore[arg-type]
    assert not hocket.is_initialized()


class NoText:
    """Its text cannot be had."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda make: make.get_actor([None]), TypeError, r"name must be text, but received \[None\]"),
        (lambda make: make.timeline(3), TypeError, "filename must be a path, but received 3"),
        (lambda make: make.kill(NoText()), ValueError, "takes an actor handle, but received <NoText without a text"),
        (lambda make: make.cancel(NoText()), TypeError, "takes an ObjectRef, but received <NoText without a text"),
        (lambda make: make.util.ActorPool(None), TypeError, "takes a list of actor handles, but received None"),
        (lambda make: make.data.range_tensor(3, shape=-1), ValueError, "shape must be a tuple of whole numbers"),
        (lambda make: make.data.range(5).split(10**30), ValueError, "n must be a whole number from 1 to 100,000"),
    ],
)
def test_wrong_arguments_are_told(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call(hocket)


ANY_HOCKET: Any = hocket
"""Without types, which would refuse what is tried."""


@pytest.mark.parametrize(
    ("ask", "match"),
    [
        (
            lambda: ANY_HOCKET.data.range(1).set_name("x"),
            "Dataset has no set_name, which Ray has: names are for Ray's dashb",
        ),
        (
            lambda: ANY_HOCKET.data.range(1).write_delta("x"),
            "Dataset has no write_delta, .* use the library in a Datasink",
        ),
        (
            lambda: ANY_HOCKET.data.range(1).groupby("id").with_column,
            "GroupedData has no with_column, .* write map_groups",
        ),
        (lambda: ANY_HOCKET.train.Checkpoint.from_dict({}), "Checkpoint has no from_dict, .* a folder of files"),
        (lambda: ANY_HOCKET.train.Checkpoint("/tmp").to_dict(), "Checkpoint has no to_dict, .* a folder of files"),
        (lambda: ANY_HOCKET.data.range(1).nonsense, "^'Dataset' object has no attribute 'nonsense'$"),
        (lambda: ANY_HOCKET.train.Checkpoint.nonsense, "^type object 'Checkpoint' has no attribute 'nonsense'$"),
        (lambda: ANY_HOCKET.tune.nonsense, "^module 'hocket.tune' has no attribute 'nonsense'$"),
    ],
)
def test_attributes_of_rays_say_what_to_write(ask: Any, match: str) -> None:
    with pytest.raises(AttributeError, match=match):
        ask()


def test_names_that_are_nobodys_are_missing_as_ever() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'hocket\.nonsense'$"):
        importlib.import_module("hocket.nonsense")
    assert importlib.util.find_spec("hocket.nonsense") is None
    with pytest.raises(ImportError, match=r"^cannot import name 'nonsense' from 'hocket\.train'"):
        exec("from hocket.train import nonsense")
    data = hocket.data.range(3)
    assert pickle.loads(pickle.dumps(data)).count() == copy.copy(data).count() == 3
