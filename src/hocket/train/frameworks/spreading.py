"""Layouts of parameters for `hocket.train.strategies.Sharded`, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hocket import mesh as meshes
from hocket.mesh import relayouts
from hocket.train import strategies

_NAMED = 8
"""The most names that an error lists."""


def plan(
    settings: strategies.Sharded, mesh: meshes.Mesh, shapes: Mapping[str, Sequence[int]], *, is_first: bool = True
) -> dict[str, meshes.Layout]:
    """Return the layout of each parameter.

    Args:
        settings: The rules, and the axes that cut every parameter.
        mesh: The mesh that `settings` describes.
        shapes: The parameters' shapes, by name.
        is_first: Whether each rule must match a parameter.
    """
    rules = meshes.LayoutMap(mesh, settings.layout)
    idle = [rule for rule in rules if not any(rules.matches(rule, name) for name in shapes)]
    if idle and is_first:
        raise ValueError(
            f"The rule {idle[0]!r} of Sharded(layout=...) matches no parameter, so the parameters that it was meant "
            "for would be replicated. Write a rule for the model's parameters: "
            f"{', '.join([*shapes][:_NAMED])}{' ...' if len(shapes) > _NAMED else ''}."
        )
    return {name: shard_along(rules.find(name, shape), shape, settings.shard_along) for name, shape in shapes.items()}


def shard_along(layout: meshes.Layout, shape: Sequence[int], names: Sequence[str]) -> meshes.Layout:
    """Return a layout cut along more axes, each in the first dim that is whole and that the axis divides."""
    for name in names:
        if any(name in axes for axes in layout.axes):
            continue
        size = layout.mesh.dim_size(name)
        dim = next((dim for dim, axes in enumerate(layout.axes) if not axes and shape[dim] % size == 0), None)
        if dim is not None and shape[dim]:
            specs: list[Any] = [list(axes) or meshes.UNSHARDED for axes in layout.axes]
            specs[dim] = name
            layout = meshes.Layout(specs, layout.mesh)
    return layout


def find_used(stored: meshes.Layout, batch_dims: Sequence[str]) -> meshes.Layout:
    """Return the layout in which layers use a stored parameter: whole along the batch's axes."""
    kept = [[axis for axis in axes if axis not in batch_dims] or meshes.UNSHARDED for axes in stored.axes]
    return meshes.Layout(kept, stored.mesh)


def plan_traffic(
    stored: meshes.Layout, batch_dims: Sequence[str], shape: Sequence[int], itemsize: int
) -> tuple[relayouts.Plan, relayouts.Plan]:
    """Return the plan that puts a parameter together for its layers, and the plan that adds up its gradient."""
    used = find_used(stored, batch_dims)
    gather = relayouts.plan_relayout(stored, used, shape, itemsize)
    return gather, relayouts.plan_relayout(used.with_partial(batch_dims), stored, shape, itemsize)


def list_batch_dims(settings: strategies.Sharded) -> list[str]:
    """Return the axes that cut the batch, major first."""
    return [name for name in settings.mesh if name in settings.batch_dims]
