"""What the tests of DTensor's semantics run, with each framework: on 2 x 2 devices, in one process or in four."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket import mesh
from hocket.mesh import MATCH, UNSHARDED, Layout, LayoutMap
from tests.mesh.simulated import list_layouts

_WHOLE = np.arange(32.0, dtype="float32").reshape(4, 8)


def make_grid(framework: str) -> mesh.Mesh:
    if framework == "jax":
        mesh.create_mesh({"all": 8}, framework="jax")  # so that there are as many
    return mesh.create_mesh({"left": 2, "right": 2}, framework=framework)


def check_packing(grid: mesh.Mesh) -> None:
    for layout in _list_layouts(grid):
        value = mesh.copy_to_mesh(_WHOLE, layout)
        parts = mesh.unpack(value)
        assert len(parts) == (4 if grid.framework == "jax" else 1)
        assert all(part.ndim == value.ndim for part in parts)
        packed = mesh.pack(parts, layout)
        assert packed.layout == layout
        np.testing.assert_array_equal(packed.gather(), _WHOLE)
        for one, other in zip(mesh.unpack(packed), parts, strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
        _check_memory(layout)
    assert mesh.copy_to_mesh(np.float32(1), Layout([], grid)).layout.is_fully_replicated
    with pytest.raises(ValueError, match="does not fit a tensor of shape"):
        mesh.copy_to_mesh(np.float32(1), Layout(["left"], grid))


def _check_memory(layout: Layout) -> None:
    """A value has memory of its own: neither whoever gave an array changes it, nor whoever reads it."""
    given = np.array(_WHOLE)
    value, variable = mesh.copy_to_mesh(given, layout), mesh.DVariable(np.zeros_like(given), layout)
    variable.assign(given)
    parts = [np.array(part) for part in mesh.unpack(value)]
    packed = mesh.pack(parts, layout)
    for changed in (given, *parts):
        changed[...] = -1
    for one in (value, variable, packed):
        read = one.gather()
        np.testing.assert_array_equal(read, _WHOLE)
        if read.flags.writeable:
            read[...] = -1
        np.testing.assert_array_equal(one.gather(), _WHOLE)


def check_documented_layouts(grid: mesh.Mesh) -> None:
    def list_shapes(shape: tuple[int, ...], specs: list[Any]) -> set[tuple[int, ...]]:
        return {tuple(part.shape) for part in mesh.unpack(mesh.copy_to_mesh(np.ones(shape), Layout(specs, grid)))}

    assert list_shapes((128,), ["left"]) == {(64,)}
    assert list_shapes((2, 2), ["left", "right"]) == {(1, 1)}
    assert list_shapes((2, 3, 4), ["left", UNSHARDED, UNSHARDED]) == {(1, 3, 4)}


def check_operations(grid: mesh.Mesh) -> None:
    """All of the list: `test_operations_for_every_pair_of_layouts` of both frameworks."""
    layouts = _list_layouts(grid)
    for one, other in list(itertools.product(layouts, layouts))[::11]:
        a, b = mesh.copy_to_mesh(_WHOLE, one), mesh.copy_to_mesh(_WHOLE + 1, other)
        np.testing.assert_allclose((a @ b.T).gather(), _WHOLE @ (_WHOLE + 1).T, rtol=1e-6)


def check_reading(grid: mesh.Mesh) -> None:
    value = mesh.copy_to_mesh(_WHOLE, Layout(["left", UNSHARDED], grid))
    for read in (np.asarray, lambda one: one.numpy()):
        with pytest.raises(TypeError, match=r"is spread over devices\. To move all of it here, call its gather\(\)"):
            read(value)
    assert np.asarray(mesh.relayout(value, [UNSHARDED, UNSHARDED])).tolist() == _WHOLE.tolist()


def check_relayouts(grid: mesh.Mesh) -> None:
    def plan(source: list[str], target: list[str]) -> str:
        return mesh.plan_relayout(Layout(source, grid), Layout(target, grid), (4, 8), 4).describe()

    assert plan([UNSHARDED, UNSHARDED], ["left", UNSHARDED]) == "split of dim 0 along left (0 B)"
    assert plan(["left", UNSHARDED], [UNSHARDED, UNSHARDED]) == "all-gather of dim 0 along left (64 B)"
    value = mesh.copy_to_mesh(_WHOLE, Layout(["left", UNSHARDED], grid))
    assert mesh.relayout(value, [MATCH, "right"]).layout.sharding_specs == ["left", "right"]
    turned = mesh.relayout(value, ["right", UNSHARDED])  # which TensorFlow does not do at once
    np.testing.assert_array_equal(turned.gather(), _WHOLE)
    assert mesh.relayout_like(value, turned).layout == turned.layout
    weights = mesh.DVariable(value)
    columns = Layout([UNSHARDED, "right"], grid)
    _, (slope,) = mesh.value_and_gradients(lambda: 1 * (mesh.relayout(weights, columns) ** 2).sum(), [weights])
    np.testing.assert_allclose(slope.gather(), 2 * _WHOLE)


def check_assigning(grid: mesh.Mesh) -> None:
    layout, other = Layout(["left", UNSHARDED], grid), Layout(["right", UNSHARDED], grid)
    variable = mesh.DVariable(_WHOLE, layout, name="weights")
    with pytest.raises(ValueError, match=r"'weights' always has the layout .*, but the value has"):
        variable.assign(mesh.copy_to_mesh(_WHOLE, other))
    assert variable.assign(mesh.copy_to_mesh(_WHOLE * 2, layout)).layout == layout
    with pytest.raises(ValueError, match="The value has the layout"):
        mesh.DVariable(variable.value, layout=other)


def check_indivisible(grid: mesh.Mesh) -> None:
    odd, axes = np.ones((3, 4)), Layout(["left", UNSHARDED], grid)
    for call, match in [
        (
            lambda: mesh.copy_to_mesh(odd, axes),
            "has length 3, which the mesh axis 'left' cannot cut into 2 equal parts",
        ),
        (lambda: mesh.relayout(mesh.copy_to_mesh(odd, Layout.replicated(grid, 2)), axes), "has length 3"),
        (lambda: mesh.copy_to_mesh(odd, Layout(["left"], grid)), "does not fit a tensor of shape"),
        (lambda: Layout(["left", "left"], grid), "The mesh axis 'left' occurs twice in a layout"),
        (lambda: Layout(["up"], grid), r"has the axes \['left', 'right'\], but a layout names 'up'"),
        (lambda: mesh.create_mesh({"x": 64}, framework=grid.framework), "needs 64 devices"),
        (
            lambda: mesh.relayout(mesh.copy_to_mesh(np.ones(4), Layout(["left"], grid)), _elsewhere(grid)),
            "needs one mesh",
        ),
    ]:
        refused: Callable[[], Any] = call
        with pytest.raises(ValueError, match=match):
            refused()


def _elsewhere(grid: mesh.Mesh) -> Layout:
    return Layout(["row"], mesh.Mesh({"row": 4}, devices=grid.devices, framework=grid.framework))


def check_errors(grid: mesh.Mesh) -> None:
    """An operation that fails raises where it is called, not when its value is read; and values stay as they are."""
    value = mesh.copy_to_mesh(_WHOLE, Layout(["left", "right"], grid))
    for _ in range(20):  # more than TensorFlow lets a device have in flight
        with pytest.raises((TypeError, RuntimeError)):
            value @ value
        value = value + 1
    np.testing.assert_array_equal(value.gather(), _WHOLE + 20)


def check_checkpoints(grid: mesh.Mesh, folder: str) -> None:
    row = mesh.create_mesh({"row": 4}, framework=grid.framework)
    saved = LayoutMap(grid, {"a": ["left", "right"], "half": ["right"]})
    model = {"a": _WHOLE, "half": mesh.copy_to_mesh(_make_half(grid.framework), Layout(["left"], grid))}
    path = mesh.save(mesh.distribute(model, saved), Path(folder, "saved"))
    loaded = mesh.load(path, LayoutMap(row, {"a": ["row", UNSHARDED], "half": ["row"]}))
    assert loaded["a"].layout.sharding_specs == ["row", UNSHARDED]
    np.testing.assert_array_equal(loaded["a"].gather(), _WHOLE)
    assert loaded["half"].gather().dtype.name == "bfloat16"
    assert loaded["half"].gather().astype("float32").tolist() == [1.0] * 8


def _make_half(framework: str) -> Any:
    if framework == "jax":
        import jax.numpy as jnp

        return jnp.ones(8, "bfloat16")
    import torch

    return torch.ones(8, dtype=torch.bfloat16)


def check_making(grid: mesh.Mesh) -> None:
    """All processes make a mesh together, and the same."""
    if grid.framework == "torch":
        from torch import distributed

        dims = {"x": 4} if distributed.get_rank() == 2 else {"x": 2, "y": 2}
        with pytest.raises(
            ValueError, match=r"rank 0 makes \(\('x', 2\), \('y', 2\)\) and rank 2 makes \(\('x', 4\),\)"
        ):
            mesh.create_mesh(dims, framework="torch")
    mesh.barrier(grid)
    assert make_grid(grid.framework) == grid


def _list_layouts(grid: mesh.Mesh) -> list[Layout]:
    order = grid.dim_names.index
    return [
        layout
        for layout in list_layouts(grid, 2, partial=False)
        if all(list(axes) == sorted(axes, key=order) for axes in layout.axes)
    ]


CHECKS: dict[str, Callable[..., None]] = {
    "1. unpack(pack(parts)) is parts, and pack(unpack(value)) the value": check_packing,
    "2. layouts are those of the documentation's examples": check_documented_layouts,
    "3. operations give what one device gives": check_operations,
    "4. a spread value is not read as numpy's": check_reading,
    "5. relayouts go axis by axis; MATCH keeps; the gradient is the relayout back": check_relayouts,
    "6. a variable's layout is for good": check_assigning,
    "7. dims that an axis does not divide are refused, as are other layouts that do not fit": check_indivisible,
    "8. errors come with the call": check_errors,
    "9. checkpoints are loaded onto another mesh; bfloat16 stays": check_checkpoints,
    "10. making a mesh is done by all, alike": check_making,
}
"""The ten semantics of TensorFlow's DTensor, and what checks them."""


def check(name: str, framework: str, folder: str) -> None:
    grid = make_grid(framework)
    function = CHECKS[name]
    function(grid, *([folder] if function is check_checkpoints else []))
