"""Relayouts on JAX: each step of a plan is one of JAX's collectives, inside `shard_map`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp

from hocket.mesh import layouts, meshes, relayouts
from hocket.mesh.backends.jax import devices
from hocket.mesh.relayouts import Kind


@functools.lru_cache(maxsize=1024)
def compile_plan(
    source: layouts.Layout, target: layouts.Layout, shape: tuple[int, ...], itemsize: int
) -> Callable[[Any], Any]:
    """Return a compiled function that takes an array from `source` to `target` by exactly the steps of the plan."""
    plan = relayouts.plan_relayout(source, target, shape, itemsize)
    mesh = devices.get_mesh(source.mesh)

    def run(local: Any) -> Any:
        local = local.reshape(local.shape[len(source.partial) :])
        layout = source
        for step in plan.steps:
            local = _STEPS[step.kind](local, step, layout)
            layout = step.target
        return local.reshape((1,) * len(target.partial) + local.shape)

    mapped = jax.shard_map(
        run, mesh=mesh, in_specs=devices.find_spec(source), out_specs=devices.find_spec(target), check_vma=False
    )
    compiled: Callable[[Any], object] = jax.jit(mapped)
    return compiled


def _split(local: Any, step: relayouts.Step, layout: layouts.Layout) -> object:
    size = local.shape[step.dim] // layout.mesh.dim_size(step.axis)
    return jax.lax.dynamic_slice_in_dim(local, jax.lax.axis_index(step.axis) * size, size, step.dim)


def _spread(local: object, step: relayouts.Step, layout: layouts.Layout) -> object:
    return jnp.where(jax.lax.axis_index(step.axis) == 0, local, jnp.zeros_like(local))


def _gather(local: object, step: relayouts.Step, layout: layouts.Layout) -> object:
    return jax.lax.all_gather(local, step.axis, axis=step.dim, tiled=True)


def _exchange(local: object, step: relayouts.Step, layout: layouts.Layout) -> object:
    return jax.lax.all_to_all(local, step.axis, split_axis=step.dim, concat_axis=step.from_dim, tiled=True)


def _sum(local: object, step: relayouts.Step, layout: layouts.Layout) -> object:
    return jax.lax.psum(local, step.axis)


def _sum_parts(local: object, step: relayouts.Step, layout: layouts.Layout) -> object:
    return jax.lax.psum_scatter(local, step.axis, scatter_dimension=step.dim, tiled=True)


def _permute(local: object, step: relayouts.Step, layout: layouts.Layout) -> object:
    """Send each part to its device under the new order of axes."""
    old, new = layout.axes[step.dim], step.target.axes[step.dim]
    mesh = layout.mesh
    names = tuple(sorted(old, key=mesh.dim_names.index))  # JAX numbers devices in this order, whatever the argument
    places = mesh.unravel_index()
    holders = {_number(place, old, mesh): _number(place, names, mesh) for place in places}
    pairs = {(holders[_number(place, new, mesh)], _number(place, names, mesh)) for place in places}
    return jax.lax.ppermute(local, names, sorted(pairs))


def _number(place: dict[str, int], axes: Sequence[str], mesh: meshes.Mesh) -> int:
    number = 0
    for name in axes:
        number = number * mesh.dim_size(name) + place[name]
    return number


_STEPS: Final = {
    Kind.SPLIT: _split,
    Kind.SPREAD: _spread,
    Kind.ALL_GATHER: _gather,
    Kind.ALL_TO_ALL: _exchange,
    Kind.ALL_REDUCE: _sum,
    Kind.REDUCE_SCATTER: _sum_parts,
    Kind.PERMUTE: _permute,
}
