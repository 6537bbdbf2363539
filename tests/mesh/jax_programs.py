"""What the tests of meshes on JAX run in a worker."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hocket import mesh
from hocket.mesh import MATCH, UNSHARDED, Layout, plan_relayout
from hocket.mesh.relayouts import Kind
from tests.mesh import operations

MESHES = operations.SIZES

_SHAPE = (8, 16)


@functools.cache
def make_mesh(*dims: tuple[str, int]) -> mesh.Mesh:
    """A mesh of the first of 8 devices."""
    mesh.create_mesh({"all": 8})  # so that there are as many
    return mesh.create_mesh(dict(dims))


def _list_layouts(dims: dict[str, int], rank: int, *, partial: bool = False) -> list[Layout]:
    from tests.mesh.simulated import list_layouts

    return list_layouts(make_mesh(*dims.items()), rank, partial=partial)


def relayout_all(dims: dict[str, int], stride: int) -> int:
    """Go from layout to layout; of every so many targets one."""
    whole = np.arange(128.0, dtype="float32").reshape(_SHAPE)
    layouts = _list_layouts(dims, 2, partial=True)
    for source in layouts:
        value = mesh.copy_to_mesh(whole, source)
        assert value.layout == source
        for target in layouts[layouts.index(source) % stride :: stride]:
            moved = mesh.relayout(value, target)
            assert moved.layout == target
            np.testing.assert_array_equal(moved.gather(), whole)
            local = target.local_shape_from_global_shape(_SHAPE)
            assert [part.shape for part in mesh.unpack(moved)] == [local] * target.mesh.size
            if not target.partial:
                for part, where in zip(mesh.unpack(moved), target.slices(_SHAPE), strict=True):
                    np.testing.assert_array_equal(np.asarray(part), whole[where])
    return len(layouts)


def relayout_three_axes() -> int:
    """Go between all orders of three axes that cut one dim."""
    grid, whole = make_mesh(("a", 2), ("b", 2), ("c", 2)), np.arange(16.0, dtype="float32")
    specs = [",".join(axes) for count in (1, 2, 3) for axes in itertools.permutations("abc", count)]
    for source, target in itertools.product(specs, [*specs, UNSHARDED]):
        moved = mesh.relayout(mesh.copy_to_mesh(whole, Layout([source], grid)), Layout([target], grid))
        for part, where in zip(mesh.unpack(moved), moved.layout.slices(whole.shape), strict=True):
            np.testing.assert_array_equal(np.asarray(part), whole[where], f"{source} to {target}")
    return len(specs)


def relayout_nothing() -> None:
    """Move values without elements."""
    grid = make_mesh(("x", 2), ("y", 2))
    empty = mesh.copy_to_mesh(np.zeros((0, 4), "float32"), Layout(["x", UNSHARDED], grid))
    for specs, local in (([UNSHARDED, "y"], (0, 2)), ([UNSHARDED, UNSHARDED], (0, 4)), (["y", "x"], (0, 2))):
        moved = mesh.relayout(empty, Layout(specs, grid))
        assert [part.shape for part in mesh.unpack(moved)] == [local] * 4
        assert mesh.pack(mesh.unpack(moved), moved.layout).shape == (0, 4)


def pack_all(dims: dict[str, int]) -> None:
    whole = np.arange(128.0, dtype="float32").reshape(_SHAPE)
    for layout in _list_layouts(dims, 2, partial=True):
        value = mesh.copy_to_mesh(whole, layout)
        packed = mesh.pack(mesh.unpack(value), layout)
        mesh.check_layout(packed, layout)
        np.testing.assert_array_equal(packed.gather(), whole)
        again = mesh.unpack(packed)
        for one, other in zip(again, mesh.unpack(value), strict=True):
            np.testing.assert_array_equal(one, other)


# --- operations -------------------------------------------------------------------------------------------------------


def compare_operation(dims: dict[str, int], name: str, most: int) -> int:
    """Compute an operation and its gradients for so many choices of layouts."""
    from tests.mesh import jax_operations  # which imports JAX

    count: int = jax_operations.compare(make_mesh(*dims.items()), name, most)
    return count


# --- bytes ------------------------------------------------------------------------------------------------------------

_OPCODES = {
    Kind.ALL_GATHER: "all-gather",
    Kind.ALL_TO_ALL: "all-to-all",
    Kind.ALL_REDUCE: "all-reduce",
    Kind.REDUCE_SCATTER: "reduce-scatter",
    Kind.PERMUTE: "collective-permute",
}


def count_moved_bytes(stride: int) -> None:
    """The compiled relayout has the collectives of the plan and no others, each of the size that the plan counts."""
    from hocket.mesh.backends import jax as backend

    dims = {"x": 2, "y": 4}
    compile_plan: Any = backend.compile_plan
    for source, target in list(itertools.product(_list_layouts(dims, 2, partial=True), repeat=2))[::stride]:
        plan = plan_relayout(source, target, _SHAPE, 4)
        value = mesh.copy_to_mesh(np.zeros(_SHAPE, "float32"), source)
        text = compile_plan(source, target, _SHAPE, 4).lower(value.raw).compile().as_text()
        found = sorted(_list_moves(text))
        wanted = sorted((_OPCODES[step.kind], step.num_bytes) for step in plan.steps if step.kind in _OPCODES)
        assert found == wanted, (source, target, plan.describe(), found)
        received = dict.fromkeys(_OPCODES.values(), 0)
        for kind, num_bytes in wanted:
            received[kind] += num_bytes
        assert {kind: count for kind, count in backend.count_received(text).items() if count} == {
            kind: count for kind, count in received.items() if count
        }, (source, target, text)


def _list_moves(text: str) -> Iterator[tuple[str, int]]:
    """Give the collectives of a compiled program of float32, and how many bytes a device receives in each."""
    pattern = rf"= (\S+|\([^)]*\)) ({'|'.join(_OPCODES.values())})(?:-start)?\(.*"
    for line in re.finditer(pattern, text):
        dims = re.findall(r"f32\[([\d,]*)\]", line[1])
        result = 4 * sum(math.prod(map(int, filter(None, one.split(",")))) for one in dims)
        groups = re.search(r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\])", line[0])
        size = 1 if groups is None else int(groups[2] or len(groups[1].split(",")))
        received = {
            "all-gather": result * (size - 1) // size,
            "all-to-all": result * (size - 1) // size,
            "all-reduce": 2 * (result * (size - 1) // size),
            "reduce-scatter": result * (size - 1),
            "collective-permute": result,
        }
        yield line[2], received[line[2]]


# --- values -----------------------------------------------------------------------------------------------------------


def read_spread() -> None:
    small = make_mesh(("x", 2), ("y", 2))
    value = mesh.copy_to_mesh(np.ones((4, 4)), Layout(["x", UNSHARDED], small))
    for read in (np.asarray, lambda one: one.numpy(), lambda one: np.exp(np.asarray(one))):
        with pytest.raises(TypeError, match=r"layout \['x', 'unsharded'\] is spread over devices\. .*gather\(\)"):
            read(value)
    whole = mesh.relayout(value, [UNSHARDED, UNSHARDED])
    assert np.asarray(whole).tolist() == whole.numpy().tolist() == np.ones((4, 4)).tolist()
    partial = mesh.relayout(value, Layout([UNSHARDED, UNSHARDED], small, partial=["x"]))
    with pytest.raises(TypeError, match=r"and sums along \['x'\] is spread"):
        partial.numpy()
    assert partial.gather().tolist() == np.ones((4, 4)).tolist()
    assert float(whole.sum()) == 16.0
    assert len(value) == 4
    assert (value.ndim, value.size, value.nbytes) == (2, 16, 64)


def iterate_and_capture() -> None:
    """Go through the rows of a value, and take values into a function without giving them to it."""
    import jax
    import jax.numpy as jnp

    grid = make_mesh(("x", 4))
    value = mesh.copy_to_mesh(np.arange(8.0, dtype="float32").reshape(4, 2), Layout(["x", UNSHARDED], grid))
    assert [float(row.sum()) for row in value] == [1, 5, 9, 13]
    assert float(jax.jit(lambda: value.T.sum() * 5)()) == 140
    variable = mesh.DVariable(value)
    assert float(jnp.asarray(variable).sum()) == 28


def use_as_arrays() -> None:
    import jax
    import jax.numpy as jnp

    small = make_mesh(("x", 2), ("y", 2))
    given = np.arange(16.0, dtype="float32").reshape(4, 4)
    value = mesh.copy_to_mesh(given, Layout(["x", "y"], small))
    for found, wanted in [
        (value + 1, given + 1),
        (1 - value, 1 - given),
        (value @ value, given @ given),
        (given @ value, given @ given),
        (value**2 / 3, given**2 / 3),
        (-value, -given),
        (value[1:3, 0], given[1:3, 0]),
        (value > 3, given > 3),
        (value.T, given.T),
        (value.reshape(2, 8), given.reshape(2, 8)),
        (value.mean(axis=1), given.mean(axis=1)),
        (value.astype(jnp.int32), given.astype(np.int32)),
        (abs(value - 5), abs(given - 5)),
    ]:
        assert mesh.is_dtensor(found)
        np.testing.assert_allclose(found.gather(), wanted, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(jnp.tanh(value)), np.tanh(given), rtol=1e-6)
    doubled = jax.jit(lambda one: jax.tree.map(lambda array: 2 * array, one))(value)
    assert mesh.fetch_layout(doubled) == value.layout
    assert mesh.relayout(value, [MATCH, UNSHARDED]).layout.sharding_specs == ["x", UNSHARDED]
    turned = mesh.relayout(value, ["y", UNSHARDED])
    assert mesh.relayout_like(doubled, turned).layout == turned.layout
    inside = jax.jit(lambda one: mesh.relayout(one * 2, Layout(["y", UNSHARDED], small)))(value)
    assert inside.layout.sharding_specs == ["y", UNSHARDED]
    slope = jax.grad(lambda one: (mesh.relayout(one, Layout([UNSHARDED, "x"], small)) * 3).sum().native)(value)
    assert slope.gather().tolist() == np.full((4, 4), 3.0).tolist()
    made = mesh.call_with_layout(jnp.ones, Layout(["x", UNSHARDED], small), (4, 2))
    assert (made.layout.sharding_specs, made.gather().sum()) == (["x", UNSHARDED], 8.0)
    with mesh.default_mesh(small) as current:
        assert mesh.get_default_mesh() is current is small
    assert mesh.get_default_mesh() is None
    mesh.barrier(small)
    other = mesh.create_mesh({"z": 4})
    moved = mesh.copy_to_mesh(value, Layout(["z", UNSHARDED], other))
    np.testing.assert_array_equal(moved.gather(), given)


def refuse_bad_input() -> None:
    small = make_mesh(("x", 2), ("y", 2))
    value = mesh.copy_to_mesh(np.ones((4, 4)), Layout(["x", UNSHARDED], small))
    assert mesh.local_device_ids(small) == [0, 1, 2, 3]
    assert mesh.local_device_locations(small)[2] == {"x": 1, "y": 0}
    wrong: Any = "x"
    bad: Any = 2.0
    described = Layout(["x"], mesh.Mesh({"x": 2}))
    for call, error, match in [
        (lambda: mesh.create_mesh({"x": 64}), ValueError, "needs 64 devices, but there are 8 .* make the mesh before"),
        (lambda: mesh.create_mesh({"x": 2}, device_type="GPU"), ValueError, "no devices of the type 'GPU'"),
        (lambda: mesh.create_mesh({"x": 1}, devices=["CPU:99"]), ValueError, "has the device 'CPU:99', but JAX has"),
        (lambda: mesh.create_mesh({"x": 2}, framework="mxnet"), ValueError, "framework must be one of"),
        (lambda: mesh.local_device_ids(wrong), TypeError, "mesh must be a Mesh"),
        (lambda: mesh.copy_to_mesh(np.ones(2), described), ValueError, "only describes a mesh.* create_mesh"),
        (lambda: mesh.copy_to_mesh(np.ones(3), Layout(["x"], small)), ValueError, "has length 3, which the mesh axis"),
        (lambda: mesh.copy_to_mesh("text", Layout(["x"], small)), TypeError, "takes an array of numbers"),
        (lambda: mesh.relayout(value > 0, value.layout.with_partial("y")), TypeError, "type bool has no sum"),
        (lambda: mesh.relayout(value, "xy"), TypeError, "a list with a spec for each dim, but received 'xy'"),
        (lambda: value.layout.delete([2]), ValueError, "for a tensor of 2 dims, but received 2"),
        (lambda: mesh.create_mesh([("x", 2), ("x", 2)]), ValueError, "'x' occurs twice"),
        (lambda: mesh.create_mesh({"x": 2}, devices=["CPU:0", "CPU:0"]), ValueError, "several places have 'CPU:0'"),
        (lambda: mesh.create_mesh(wrong), TypeError, "a dict of names and sizes, but received 'x'"),
        (lambda: mesh.create_mesh({"x": bad}), TypeError, "a name and a whole number"),
        (lambda: mesh.copy_to_mesh(np.array([2**40]), Layout([UNSHARDED], small)), ValueError, "enable_x64"),
        (
            lambda: mesh.copy_to_mesh(np.array([1e300, np.inf]), Layout(["x"], small)),
            ValueError,
            "JAX would convert it to float32, which cannot hold them",
        ),
        (lambda: mesh.copy_to_mesh(np.ones(2), wrong), TypeError, "layout must be a Layout, but received"),
        (lambda: mesh.relayout(np.ones(2), Layout(["x"], small)), TypeError, r"relayout\(\) takes a DTensor, but"),
        (lambda: mesh.relayout(value, Layout(["x"], small)), ValueError, "1 dims, .* does not fit a tensor of shape"),
        (lambda: mesh.relayout(value, ["x"]), ValueError, "has 2 dims, but received 1 specs"),
        (lambda: mesh.relayout(value, [MATCH, "x"]), ValueError, "occurs twice in a layout"),
        (lambda: mesh.pack([np.ones(2)] * 3, Layout(["x"], small)), ValueError, "each of the 4 devices .* received 3"),
        (
            lambda: mesh.pack([np.ones(2)] * 3 + [np.ones(3)], Layout(["x"], small)),
            ValueError,
            "have the same shape and type",
        ),
        (lambda: mesh.check_layout(value, Layout(["y", UNSHARDED], small)), ValueError, "The value has the layout"),
        (lambda: mesh.unpack(3), TypeError, r"unpack\(\) takes a DTensor, but received an int"),
        (lambda: mesh.default_mesh(wrong).__enter__(), TypeError, "mesh must be a Mesh"),
    ]:
        with pytest.raises(error, match=match):
            call()


# --- variables and batches --------------------------------------------------------------------------------------------


def assign_variables() -> None:
    import jax.numpy as jnp

    small = make_mesh(("x", 2), ("y", 2))
    layout, other = Layout(["x", UNSHARDED], small), Layout(["y", UNSHARDED], small)
    variable = mesh.DVariable(np.ones((4, 2), "float32"), layout=layout, name="weights")
    before = variable.read_value()
    assert variable.assign_add(2).assign_sub(jnp.ones((4, 2))) is variable
    assert variable.gather().tolist() == np.full((4, 2), 2.0).tolist()
    assert before.gather().tolist() == np.ones((4, 2)).tolist()
    assert variable.layout == layout
    assert (variable @ variable.T).gather().tolist() == np.full((4, 4), 8.0).tolist()
    assert np.asarray(jnp.tanh(variable)).shape == (4, 2)
    assert "name='weights', shape=(4, 2), dtype=float32" in repr(variable)
    assert mesh.is_dtensor(variable)
    assert mesh.DVariable(lambda: variable.value).layout == layout
    for call, error, match in [
        (lambda: variable.assign(mesh.relayout(variable.value, other)), ValueError, "'weights' always has the layout"),
        (lambda: variable.assign(np.ones((2, 2), "float32")), ValueError, r"always is float32\[4, 2\], .*\[2, 2\]"),
        (lambda: variable.assign(np.ones((4, 2), "int32")), ValueError, "but the value is int32"),
        (lambda: variable.assign_add(np.ones((3, 4, 2))), ValueError, r"\[3, 4, 2\]"),
        (lambda: mesh.DVariable(np.ones(2)), TypeError, "received an ndarray and no layout"),
        (lambda: mesh.DVariable(variable.value, layout=other), ValueError, "The value has the layout"),
    ]:
        with pytest.raises(error, match=match):
            call()


_START = np.arange(32.0, dtype="float32").reshape(8, 4) / 32
_GOAL = np.linspace(1, 2, 32, dtype="float32").reshape(8, 4)


def take_steps(dims: dict[str, int]) -> None:
    """A step that reads and assigns variables is compiled, once, and descends as numpy does."""
    expected = _START.copy()
    for _ in range(3):
        expected = expected - 0.1 * 2 * (expected - _GOAL)
    for layout in _list_layouts(dims, 2):
        weights = mesh.DVariable(_START, layout=layout)
        count = mesh.DVariable(np.int32(0), layout=Layout([], layout.mesh))
        traces: list[int] = []
        step = _make_step(weights, count, traces, donate="y" in dims)
        losses = [float(step(_GOAL)["loss"]) for _ in range(3)]
        np.testing.assert_allclose(weights.gather(), expected, rtol=1e-6)
        assert losses[0] > losses[1] > losses[2]
        assert (int(count), weights.layout, weights.value.layout, len(traces)) == (3, layout, layout, 1)
        local = layout.local_shape_from_global_shape(_START.shape)
        assert [part.shape for part in mesh.unpack(weights)] == [local] * layout.mesh.size


def _make_step(weights: mesh.DVariable, count: mesh.DVariable, traces: list[int], *, donate: bool) -> Any:
    def compute_loss(target: Any) -> Any:
        return ((weights - target) ** 2).sum()

    @mesh.function(variables=[weights, count], donate=donate)
    def step(target: Any) -> dict[str, Any]:
        traces.append(1)
        loss, (slope,) = mesh.value_and_gradients(compute_loss, [weights], target)
        weights.assign_sub(0.1 * slope)
        count.assign_add(1)
        return {"loss": loss, "left": weights * 1}

    return step


def fail_in_steps() -> None:
    import jax

    weights = mesh.DVariable(_START, layout=Layout(["x", UNSHARDED], make_mesh(("x", 2))))
    value, slopes = mesh.value_and_gradients(lambda power: (weights**power).sum(), [weights], 2)
    np.testing.assert_allclose(slopes[0].gather(), 2 * _START, rtol=1e-6)
    assert mesh.is_dtensor(value)

    @mesh.function(variables=[weights])
    def fail() -> None:
        weights.assign(weights * 0)
        raise KeyError("in the trace")

    with pytest.raises(KeyError, match="in the trace"):
        fail()
    np.testing.assert_array_equal(weights.gather(), _START)
    not_one: Any = np.ones(3)
    with pytest.raises(TypeError, match=r"function\(\) takes variables, but received an ndarray"):
        mesh.function(variables=[not_one])
    with pytest.raises(ValueError, match=r"value_and_gradients\(\) received no variables"):
        mesh.value_and_gradients(lambda: 1, [])
    with pytest.raises(RuntimeError, match="layout of a value is not known while JAX traces"):
        jax.jit(lambda one: one.layout.rank)(weights.value)


def go_through_batches() -> None:
    small = make_mesh(("x", 2), ("y", 2))
    layouts = {"image": Layout(["x", "y"], small), "label": Layout(["x"], small)}
    rows: list[Any] = [{"image": np.full(4, number, "float32"), "label": np.int32(number)} for number in range(11)]
    given: dict[str, Any] = {"mesh": small, "layouts": layouts, "global_batch_size": 4, "batch_dim": "x"}
    for prefetch in (None, 0, 2, 9):
        given["prefetch"] = prefetch
        batches = mesh.DTensorDataset(rows, **given)
        for _ in range(2):
            found = list(batches)
            assert [batch["label"].gather().tolist() for batch in found] == [[0, 1, 2, 3], [4, 5, 6, 7]]
            assert all(batch["image"].layout == layouts["image"] for batch in found)
        parts: list[Any] = [
            {name: np.stack([row[name] for row in rows[at : at + 3]]) for name in layouts} for at in (0, 3, 6)
        ]
        found = list(mesh.DTensorDataset(parts, dataset_already_batched=True, **given))
        assert [batch["label"].gather().tolist() for batch in found] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    pair = (layouts["image"], layouts["label"])
    (batch,) = mesh.DTensorDataset([(np.ones(4), 1)] * 2, mesh=small, layouts=pair, global_batch_size=2)
    assert [one.layout for one in batch] == list(pair)
    changes: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"global_batch_size": 3}, ValueError, "global_batch_size=3 cannot be cut into 2 equal parts along 'x'"),
        ({"global_batch_size": 0}, ValueError, "must be 1 row or more, but received 0"),
        ({"prefetch": -1}, ValueError, "prefetch must be 0 batches or more"),
        ({"layouts": "x"}, TypeError, "layouts must be a Layout"),
        ({"mesh": make_mesh(("x", 4))}, ValueError, "Use one mesh"),
    ]
    for changed, error, match in changes:
        with pytest.raises(error, match=match):
            mesh.DTensorDataset(rows, **{**given, **changed})
