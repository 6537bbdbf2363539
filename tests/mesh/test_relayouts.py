"""The algebra of layouts: plans compute what they say, and no other way round is cheaper."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.mesh import UNSHARDED, Layout, Mesh, plan_relayout, relayouts
from tests.mesh import simulated

SHAPE = (8, 16)
ITEMSIZE = 8
VALUE = np.arange(128.0).reshape(SHAPE)

CASES = [(mesh, simulated.list_layouts(mesh, 2, partial=True)) for mesh in simulated.MESHES]


@pytest.mark.parametrize(("mesh", "layouts"), CASES, ids=lambda case: case.describe() if isinstance(case, Mesh) else "")
def test_relayout_of_every_pair_keeps_the_value(mesh: Mesh, layouts: list[Layout]) -> None:
    for source, target in itertools.product(layouts, repeat=2):
        plan = plan_relayout(source, target, SHAPE, ITEMSIZE)
        parts, layout = simulated.run(plan, source, simulated.scatter(VALUE, source))
        assert layout == target
        assert {part.shape for part in parts} == {target.local_shape_from_global_shape(SHAPE)}
        np.testing.assert_array_equal(simulated.gather(parts, target), VALUE)


@st.composite
def draw_layouts(draw: st.DrawFn, count: int) -> list[Layout]:
    _, layouts = draw(st.sampled_from(CASES))
    return [draw(st.sampled_from(layouts)) for _ in range(count)]


def cost(source: Layout, target: Layout) -> int:
    return plan_relayout(source, target, SHAPE, ITEMSIZE).num_bytes


@settings(max_examples=300)
@given(draw_layouts(3))
def test_costs_obey_the_triangle_inequality(layouts: list[Layout]) -> None:
    a, b, c = layouts
    assert cost(a, c) <= cost(a, b) + cost(b, c)
    assert cost(a, a) == 0


@settings(max_examples=300)
@given(draw_layouts(2))
def test_no_plan_is_cheaper_than_what_a_device_lacks(layouts: list[Layout]) -> None:
    a, b = (layout.with_partial([]) for layout in layouts)
    assert cost(a, b) >= relayouts.count_least(a, b, SHAPE, ITEMSIZE)


@settings(max_examples=200)
@given(draw_layouts(2))
def test_relayout_there_and_back_is_the_identity(layouts: list[Layout]) -> None:
    a, b = (layout.with_partial([]) for layout in layouts)
    parts = simulated.scatter(VALUE, a)
    there, _ = simulated.run(plan_relayout(a, b, SHAPE, ITEMSIZE), a, parts)
    back, _ = simulated.run(plan_relayout(b, a, SHAPE, ITEMSIZE), b, there)
    for one, other in zip(parts, back, strict=True):
        np.testing.assert_array_equal(one, other)


@st.composite
def draw_layouts_of_any_mesh(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Layout]]:
    """A shape of up to three dims, and three layouts of it on a mesh of up to three axes, also of odd sizes."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3))
    mesh = Mesh(dict(zip("xyz", sizes, strict=False)))
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 12]), max_size=3)))
    found = []
    for _ in range(3):
        axes: list[list[str]] = [[] for _ in shape]
        partial: list[str] = []
        for name in draw(st.permutations(mesh.dim_names)):
            places = [
                dim for dim, length in enumerate(shape) if not length // _count(axes[dim], mesh) % mesh.dim_size(name)
            ]
            place = draw(st.sampled_from([*places, None, "partial"]))
            if isinstance(place, int):
                axes[place].append(name)
            elif place is not None:
                partial.append(name)
        found.append(Layout(axes, mesh, partial=partial))
    return shape, found


def _count(axes: list[str], mesh: Mesh) -> int:
    return math.prod([mesh.dim_size(name) for name in axes])


@settings(max_examples=300, deadline=None)
@given(draw_layouts_of_any_mesh())
def test_on_any_mesh_values_are_kept_and_costs_are_distances(drawn: tuple[tuple[int, ...], list[Layout]]) -> None:
    shape, (a, b, c) = drawn
    value = np.arange(float(math.prod(shape))).reshape(shape)
    parts = simulated.scatter(value, a)
    for source, target in ((a, b), (b, a)):
        plan = plan_relayout(source, target, shape, ITEMSIZE)
        parts, layout = simulated.run(plan, source, parts)
        assert layout == target
        np.testing.assert_array_equal(simulated.gather(parts, target), value)
    direct, there, on = (plan_relayout(*ends, shape, ITEMSIZE).num_bytes for ends in ((a, c), (a, b), (b, c)))
    assert direct <= there + on


MESH = Mesh({"x": 2, "y": 4})
HELD = 8 * 16 * ITEMSIZE


@pytest.mark.parametrize(
    ("source", "target", "kinds", "num_bytes"),
    [
        (["x", UNSHARDED], [UNSHARDED, UNSHARDED], ["all-gather"], HELD // 2),
        ([UNSHARDED, UNSHARDED], ["x", "y"], ["split", "split"], 0),
        (["y", UNSHARDED], [UNSHARDED, "y"], ["all-to-all"], HELD // 4 * 3 // 4),
        # by x, then by both, then by y: half of what it takes to put it together and cut it again
        (["x", UNSHARDED], ["y", UNSHARDED], ["split", "permute", "all-gather"], HELD // 8 * 2),
    ],
)
def test_plans_that_everybody_knows(source: list[str], target: list[str], kinds: list[str], num_bytes: int) -> None:
    plan = plan_relayout(Layout(source, MESH), Layout(target, MESH), SHAPE, ITEMSIZE)
    assert ([step.kind.value for step in plan.steps], plan.num_bytes) == (kinds, num_bytes)


@pytest.mark.parametrize(
    ("axes", "target", "kinds", "num_bytes"),
    [
        (["x"], [UNSHARDED, UNSHARDED], ["all-reduce"], HELD),
        (["y"], ["y", "x"], ["split", "reduce-scatter"], HELD // 2 * 3 // 4),
        # replicas share the work: each sums its half
        (["y"], ["y", UNSHARDED], ["split", "reduce-scatter", "all-gather"], HELD // 2 * 3 // 4 + HELD // 8),
        # a sum over both axes: in parts, and put together again, less than one after the other
        (["x", "y"], [UNSHARDED, UNSHARDED], None, 2 * HELD * 7 // 8),
    ],
)
def test_sums_are_taken_in_parts(axes: list[str], target: list[str], kinds: list[str] | None, num_bytes: int) -> None:
    source = Layout([UNSHARDED, UNSHARDED], MESH, partial=axes)
    plan = plan_relayout(source, Layout(target, MESH), SHAPE, ITEMSIZE)
    assert plan.num_bytes == num_bytes
    assert kinds is None or [step.kind.value for step in plan.steps] == kinds


def test_plan_describes_itself() -> None:
    rows, columns = Layout(["x", UNSHARDED], MESH), Layout([UNSHARDED, "x"], MESH)
    assert plan_relayout(rows, rows, SHAPE, 4).describe() == "nothing to do"
    assert plan_relayout(rows, columns, SHAPE, 4).describe() == "all-to-all from dim 0 to dim 1 along x (128 B)"
    partial = Layout([UNSHARDED, UNSHARDED], MESH, partial=["x"])
    assert plan_relayout(partial, partial.with_partial([]), SHAPE, 4).describe() == "all-reduce along x (512 B)"


def test_refusals() -> None:
    rows = Layout(["x", UNSHARDED], MESH)
    with pytest.raises(ValueError, match="A relayout needs one mesh"):
        plan_relayout(rows, Layout(["x", UNSHARDED], Mesh({"x": 2})), SHAPE, 4)
    with pytest.raises(ValueError, match="Dim 0 of a tensor of shape \\(7, 16\\) has length 7"):
        plan_relayout(rows, rows, (7, 16), 4)
    with pytest.raises(ValueError, match="does not fit a tensor of shape \\(8,\\)"):
        plan_relayout(rows, rows, (8,), 4)
    with pytest.raises(ValueError, match="without `partial` axes"):
        relayouts.count_least(rows.with_partial(["y"]), rows, SHAPE, 4)
