"""Each public name is exported once, documented, and reachable."""

from __future__ import annotations

import inspect
import subprocess
import sys
import types

import pytest

import hocket
import hocket.dag
import hocket.data
import hocket.ps
import hocket.spark
import hocket.util
import hocket.util.multiprocessing
import hocket.util.scheduling_strategies

RAY_NAMES = [
    *("init", "shutdown", "is_initialized", "remote", "method", "get", "put", "wait", "cancel", "kill", "get_actor"),
    *(
        "get_runtime_context",
        "nodes",
        "cluster_resources",
        "available_resources",
        "get_gpu_ids",
        "ObjectRef",
        "ObjectID",
        "__version__",
    ),
]


SECOND_NAMES = {
    "ObjectID",
    *("ClusterSpec", "ClusterCoordinator", "FixedShardsPartitioner", "MinSizePartitioner", "MaxSizePartitioner"),
}
"""Ray's and TensorFlow's second names for something."""


def list_public(module: types.ModuleType) -> dict[str, object]:
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }


def test_names_of_ray_are_there() -> None:
    assert [name for name in RAY_NAMES if not hasattr(hocket, name)] == []


def test_each_name_is_exported_once() -> None:
    modules = [
        hocket,
        hocket.dag,
        hocket.data,
        hocket.ps,
        hocket.spark,
        hocket.util,
        hocket.util.multiprocessing,
        hocket.util.scheduling_strategies,
    ]
    seen: dict[int, str] = {}
    for module in modules:
        for name, value in list_public(module).items():
            if name in SECOND_NAMES:
                continue
            assert id(value) not in seen, f"{module.__name__}.{name} is also {seen[id(value)]}"
            seen[id(value)] = f"{module.__name__}.{name}"


def test_every_public_name_has_a_docstring() -> None:
    modules = [
        hocket,
        hocket.dag,
        hocket.data,
        hocket.ps,
        hocket.spark,
        hocket.util,
        hocket.util.multiprocessing,
        hocket.exceptions,
    ]
    missing = [
        f"{module.__name__}.{name}"
        for module in modules
        for name, value in list_public(module).items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and not inspect.getdoc(value)
    ]
    assert missing == []


def test_suites_of_engines_bring_no_other_room() -> None:
    code = (
        "import hocket.testing, sys; print([name for name in ('collective', 'data', 'ps', 'train') if "
        "f'hocket.{name}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_rooms_come_when_they_are_asked_for() -> None:
    code = (
        "import hocket, sys; print('hocket.data' in sys.modules, hocket.data.range(3).count(), "
        "hocket.train.ScalingConfig().num_workers)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False 3 1\n", "")
    with pytest.raises(AttributeError, match="module 'hocket' has no attribute 'dta'"):
        _ = hocket.dta  # type: ignore[attr-defined]
