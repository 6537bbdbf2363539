"""Meshes and layouts: what they say, what they refuse."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest

from hocket.mesh import MATCH, UNSHARDED, Layout, Mesh, Partial, Replicate, Shard, layouts
from tests.mesh import simulated

MESH = Mesh({"x": 2, "y": 3})


def test_mesh_numbers_devices_along_the_last_axis_first() -> None:
    assert (MESH.size, MESH.rank, MESH.shape(), MESH.strides, MESH.dim_names) == (6, 2, (2, 3), (3, 1), ("x", "y"))
    assert [MESH.coords(device) for device in range(6)] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert MESH.unravel_index()[4] == MESH.locate(4) == {"x": 1, "y": 1}
    assert "x" in MESH
    assert MESH.contains_dim("y")
    assert "z" not in MESH
    assert repr(Mesh([("x", 2)], name="one")) == "Mesh({'x': 2}, name='one')"
    assert Mesh({"x": 2}, devices=["CPU:0", "CPU:1"]).devices == ("CPU:0", "CPU:1")


@pytest.mark.parametrize(
    "value", [MESH, Mesh({"x": 2}, name="a", devices=["a", "b"]), Layout(["x", UNSHARDED], MESH, partial=["y"])]
)
def test_values_are_equal_hashed_and_pickled_by_what_they_say(value: Any) -> None:
    again = pickle.loads(pickle.dumps(value))
    assert again == value
    assert hash(again) == hash(value)
    assert value != Mesh({"q": 2})
    assert value != "x"


@pytest.mark.parametrize(
    ("dims", "options", "error", "message"),
    [
        ({}, {}, ValueError, "A mesh needs an axis"),
        ([("x", 2), ("x", 3)], {}, ValueError, "'x' occurs twice"),
        ([("x",)], {}, TypeError, "a name and a size"),
        (["xy"], {}, TypeError, "a name and a size"),
        ([(1, 2)], {}, TypeError, "The name of a mesh axis must be a str"),
        ({"": 2}, {}, ValueError, "cannot be called ''"),
        ({"unsharded": 2}, {}, ValueError, "have a meaning in layouts"),
        ({"x": 0}, {}, ValueError, "at least 1, but received 0"),
        ({"x": 2.0}, {}, TypeError, "a whole number for its size, but received 2.0"),
        ({"x": True}, {}, TypeError, "a whole number for its size, but received True"),
        ({"x": 2}, {"devices": ["a"]}, ValueError, "has 2 places, but received 1 devices"),
    ],
)
def test_mesh_refuses(dims: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Mesh(dims, **options)


def test_mesh_refuses_places_that_it_has_not() -> None:
    with pytest.raises(ValueError, match="has the axes \\['x', 'y'\\], but received 'z'"):
        MESH.dim_size("z")
    with pytest.raises(ValueError, match="the devices 0 to 5, but received 6"):
        MESH.coords(6)


def test_layouts_of_tensorflows_guide() -> None:
    vector = Layout(["x"], MESH)
    assert vector.local_shape_from_global_shape((128,)) == (64,)
    assert vector.slices((128,)) == [(slice(0, 64),)] * 3 + [(slice(64, 128),)] * 3
    both = Layout(["x", "y"], MESH)
    assert both.local_shape_from_global_shape((2, 3)) == (1, 1)
    assert both.offset_to_shard() == [MESH.coords(device) for device in range(6)]
    wide = Layout(["x", UNSHARDED, UNSHARDED], MESH)
    assert wide.shape == (2, 1, 1)
    assert wide.global_shape_from_local_shape((4, 5, 6)) == (8, 5, 6)


def test_layouts_made_by_rule() -> None:
    assert Layout.replicated(MESH, 2).is_fully_replicated
    assert Layout.batch_sharded(MESH, "x", 3).sharding_specs == ["x", UNSHARDED, UNSHARDED]
    assert Layout.batch_sharded(MESH, "x", 3, axis=1).sharding_specs == [UNSHARDED, "x", UNSHARDED]
    assert Layout.inner_sharded(MESH, "y", 2).sharding_specs == [UNSHARDED, "y"]
    assert Layout(["x", "y"], MESH).delete([0]) == Layout(["y"], MESH)
    assert Layout(["x", "y"], MESH).delete([-1]) == Layout(["x"], MESH)


def test_placements_are_seen_from_the_mesh() -> None:
    assert Layout([UNSHARDED, "y"], MESH).placements == (Replicate(), Shard(1))
    assert Layout([UNSHARDED], MESH, partial=["x"]).placements == (Partial(), Replicate())
    assert not Layout([UNSHARDED], MESH, partial=["x"]).is_fully_replicated
    assert Layout([("y", "x")], MESH).placements == (Shard(0), Shard(0))
    assert Layout([("y", "x")], MESH).sharding_specs == ["y,x"]
    assert Layout(["y,x"], MESH).axes == (("y", "x"),)
    assert Layout([("y", "x")], MESH).offset_to_shard() == [(0,), (2,), (4,), (1,), (3,), (5,)]


def test_match_keeps_what_there_is() -> None:
    source = Layout(["x", "y"], MESH)
    assert layouts.fill_matches([MATCH, UNSHARDED], source) == Layout(["x", UNSHARDED], MESH)
    with pytest.raises(ValueError, match="The tensor has 2 dims, but received 1 specs"):
        layouts.fill_matches([MATCH], source)
    with pytest.raises(ValueError, match="'x' occurs twice"):
        layouts.fill_matches([MATCH, "x"], source)


@pytest.mark.parametrize(
    ("specs", "options", "error", "message"),
    [
        (["z"], {}, ValueError, "the axes \\['x', 'y'\\], but a layout names 'z'"),
        (["x", "x"], {}, ValueError, "'x' occurs twice in a layout"),
        (["x"], {"partial": ["x"]}, ValueError, "'x' occurs twice in a layout"),
        (["x"], {"partial": ["z"]}, ValueError, "a layout names 'z'"),
        ("x", {}, TypeError, "Write \\['x'\\]"),
        ([None], {}, TypeError, "Write 'unsharded' in place of None"),
        ([MATCH], {}, ValueError, "is a spec for relayouts only"),
    ],
)
def test_layout_refuses(specs: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Layout(specs, MESH, **options)


def test_layout_refuses_what_is_no_mesh_and_shapes_that_do_not_fit() -> None:
    no_mesh: Any = {"x": 2}
    with pytest.raises(TypeError, match=r"A layout needs a Mesh, but received \{'x': 2\}"):
        Layout(["x"], no_mesh)
    with pytest.raises(ValueError, match="has length 7, which the mesh axis 'x' cannot cut into 2 equal parts"):
        Layout(["x"], MESH).local_shape_from_global_shape((7,))
    with pytest.raises(ValueError, match="A layout of 1 dims, \\['x'\\], does not fit a tensor of shape \\(2, 2\\)"):
        Layout(["x"], MESH).global_shape_from_local_shape((2, 2))
    with pytest.raises(ValueError, match="must be from 0 to 1 for a tensor of 2 dims, but received 2"):
        Layout.batch_sharded(MESH, "x", 2, axis=2)


@pytest.mark.parametrize("mesh", simulated.MESHES, ids=Mesh.describe)
def test_parts_cover_the_tensor_once_for_each_replica(mesh: Mesh) -> None:
    shape = (8, 16)
    for layout in simulated.list_layouts(mesh, 2, partial=False):
        rows = [0] * 128
        for where in layout.slices(shape):
            for row in range(where[0].start, where[0].stop):
                for column in range(where[1].start, where[1].stop):
                    rows[row * 16 + column] += 1
        assert set(rows) == {mesh.size // (layout.shape[0] * layout.shape[1])}


CHOOSE = """
import sys
for name in sys.argv[1:]:
    sys.modules[name] = None
from hocket.mesh.backends import contract
print(contract.choose_framework())
try:
    contract.get_backend("jax")
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (["jax"], "torch\nA mesh with framework='jax' needs jax, and 'jax' cannot be imported. Run pip install "),
        (
            ["jax", "torch"],
            "A mesh needs JAX or PyTorch, and 'torch' cannot be imported. Run pip install 'hocket[jax]' or pip",
        ),
    ],
)
def test_a_mesh_is_for_a_framework_that_is_installed(missing: list[str], said: str) -> None:
    done = subprocess.run([sys.executable, "-c", CHOOSE, *missing], capture_output=True, text=True, check=False)
    assert said in done.stdout + done.stderr
