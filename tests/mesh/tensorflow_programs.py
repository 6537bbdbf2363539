"""What the tests of TensorFlow's own DTensor run in workers of their own: it is set up once in a process."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

from hocket import train
from hocket.mesh import UNSHARDED, Layout, Mesh
from hocket.mesh import tensorflow as adapter

DIMS = {"batch": 2, "model": 2}
RATE = 0.1


def make_rows() -> tuple[Any, Any]:
    """Return inputs and weights."""
    x = np.arange(32, dtype="float32").reshape(8, 4) / 32
    return x, np.linspace(-1, 1, 24, dtype="float32").reshape(4, 6)


def take_steps() -> tuple[list[float], list[str]]:
    """Train weights that are cut along one axis, on rows that are cut along the other."""
    grid = adapter.create_mesh(DIMS)
    x, start = make_rows()
    rows, columns = (Layout(specs, Mesh(DIMS)) for specs in (["batch", UNSHARDED], [UNSHARDED, "model"]))
    batch = spread(x, adapter.to_tensorflow(rows, grid))
    weights = dtensor.DVariable(spread(start, adapter.to_tensorflow(columns, grid)))

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((batch @ weights) ** 2)
        weights.assign_sub(RATE * tape.gradient(loss, weights))
        return loss

    losses = [float(step()) for _ in range(3)]
    dtensor.barrier(grid)
    return losses, adapter.from_tensorflow(dtensor.fetch_layout(weights)).sharding_specs


def spread(array: Any, layout: Any) -> Any:
    """Spread what every process has."""
    return dtensor.copy_to_mesh(tf.constant(array), layout)


def take_steps_alone() -> list[float]:
    """The same with numpy."""
    x, weights = make_rows()
    losses = []
    for _ in range(3):
        y = x @ weights
        losses.append(float((y**2).mean()))
        weights = weights - RATE * 2 * x.T @ y / y.size
    return losses


def use_one_process() -> None:
    """Make meshes of virtual devices, the largest first."""
    grid = adapter.create_mesh({"x": 2, "y": 4}, "large")
    assert (grid.name, grid.size, grid.dim_names) == ("large", 8, ["x", "y"])
    losses, specs = take_steps()
    assert losses == pytest.approx(take_steps_alone(), abs=1e-6)
    assert specs == [UNSHARDED, "model"]
    with pytest.raises(ValueError, match=r"x=16 needs 16 devices of the type 'CPU' in each process, but there are 8\."):
        adapter.create_mesh({"x": 16})
    with pytest.raises(ValueError, match="A mesh needs an axis"):
        adapter.create_mesh({})


def convert_layouts() -> None:
    """There and back, and what has no counterpart."""
    ours = Mesh({"x": 2, "y": 4})
    theirs = adapter.create_mesh(ours.dims)
    for specs in ([], ["x"], [UNSHARDED, "y"], ["y", UNSHARDED, "x"]):
        layout = Layout(specs, ours)
        there = adapter.to_tensorflow(layout, theirs)
        assert adapter.from_tensorflow(there) == layout
        assert [tuple(map(int, one)) for one in there.offset_to_shard()] == layout.offset_to_shard()
    with pytest.raises(ValueError, match=r"TensorFlow's mesh has the axes \{'x': 2, 'y': 4\}"):
        adapter.to_tensorflow(Layout(["x"], Mesh({"x": 8})), theirs)
    with pytest.raises(ValueError, match="which TensorFlow's layouts cannot describe"):
        adapter.to_tensorflow(Layout(["x"], ours, partial=["y"]), theirs)
    with pytest.raises(ValueError, match=r"but received \['x,y'\]\. Make a mesh with one axis"):
        adapter.to_tensorflow(Layout([("x", "y")], ours), theirs)


def refuse_clusters() -> None:
    """What TF_CONFIG may say that allows of no mesh, and where it comes too late."""
    cluster: dict[str, list[str]] = {"chief": ["a:1"], "worker": ["a:2", "a:3"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "evaluator", "index": 0}}))
        with pytest.raises(
            ValueError, match="This process is 'evaluator' in TF_CONFIG, but a mesh spans only chief and w"
        ):
            adapter.create_mesh(DIMS)
        with_servers = {"cluster": {**cluster, "ps": ["a:4"]}, "task": {"type": "chief", "index": 0}}
        patch.setenv("TF_CONFIG", json.dumps(with_servers))
        with pytest.raises(ValueError, match="TF_CONFIG names parameter servers"):
            adapter.create_mesh(DIMS)
        told = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}})
        assert adapter.parse_workers(told) == {
            "DTENSOR_JOBS": "a:1,a:2,a:3",
            "DTENSOR_CLIENT_ID": "2",
            "DTENSOR_JOB_NAME": "worker",
        }
        patch.setenv("TF_CONFIG", told)
        with pytest.raises(ValueError, match="4 places, which 3 processes cannot share equally"):
            adapter.create_mesh(DIMS)
        with pytest.raises(RuntimeError, match=r"could join the others that TF_CONFIG names\. Call create_mesh before"):
            adapter.create_mesh({"x": 3})
        assert "DTENSOR_JOBS" not in os.environ
    assert adapter.parse_workers("") == {}


def train_over_ranks() -> Any:
    """A training function: each rank has two devices of the mesh."""
    with pytest.raises(ValueError, match="3 places, which 2 processes cannot share equally"):
        adapter.create_mesh({"x": 3})
    found = take_steps()
    small = adapter.create_mesh([("batch", 2)])
    mine = dtensor.unpack(spread(np.arange(4.0), dtensor.Layout(["batch"], small)))
    rank = train.get_context().get_world_rank()
    assert [part.numpy().tolist() for part in mine] == [[2.0 * rank, 2.0 * rank + 1]]
    dtensor.barrier(small)
    return found, [dtensor.client_id(), dtensor.num_clients()]


def die_in_a_step() -> None:
    """A training function: rank 1 dies where rank 0 waits for its part."""
    grid = adapter.create_mesh({"batch": 2})
    dtensor.barrier(grid)
    if train.get_context().get_world_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dtensor.barrier(grid)
