"""Devices as arrays in a list, and the steps of a plan done to them by definition: what a backend must compute."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from hocket.mesh import Layout, Mesh, relayouts
from hocket.mesh.relayouts import Kind, Step

Array = npt.NDArray[np.float64]

MESHES = [Mesh({"x": 1}), Mesh({"x": 2}), Mesh({"x": 4}), Mesh({"x": 2, "y": 2}), Mesh({"x": 2, "y": 4})]


def list_layouts(mesh: Mesh, rank: int, *, partial: bool) -> list[Layout]:
    """Every layout of a tensor of so many dims: each axis cuts one dim, none, or leaves terms of a sum."""
    places = [*range(rank), None, *(["partial"] if partial else [])]
    found = dict[Layout, None]()
    for names in itertools.permutations(mesh.dim_names):
        for chosen in itertools.product(places, repeat=mesh.rank):
            axes: list[list[str]] = [[] for _ in range(rank)]
            sums = [name for name, place in zip(names, chosen, strict=True) if place == "partial"]
            for name, place in zip(names, chosen, strict=True):
                if isinstance(place, int):
                    axes[place].append(name)
            found[Layout(axes, mesh, partial=sums)] = None
    return list(found)


def scatter(value: Array, layout: Layout, seed: int = 0) -> list[Array]:
    """What the devices have if the whole tensor is `value`; of a sum that nobody has taken, terms drawn at random."""
    random = np.random.default_rng(seed)
    terms = dict[tuple[int, ...], Array]()
    sizes = [layout.mesh.dim_size(name) for name in layout.partial]
    places = list(itertools.product(*map(range, sizes)))
    for place in places[:-1]:
        terms[place] = random.integers(-9, 9, value.shape).astype(np.float64)
    terms[places[-1]] = value - sum(terms.values(), np.zeros_like(value))
    return [
        terms[tuple([device[name] for name in layout.partial])][part].copy()
        for device, part in zip(layout.mesh.unravel_index(), layout.slices(value.shape), strict=True)
    ]


def gather(parts: Sequence[Array], layout: Layout) -> Array:
    """The whole tensor; replicas must be the same."""
    shape = layout.global_shape_from_local_shape(parts[0].shape)
    value = np.zeros(shape)
    seen = dict[tuple[object, ...], Array]()
    for device, part, where in zip(layout.mesh.unravel_index(), parts, layout.slices(shape), strict=True):
        key = (*((one.start, one.stop) for one in where), *(device[name] for name in layout.partial))
        if key in seen:
            np.testing.assert_array_equal(seen[key], part)
        else:
            seen[key] = part
            value[where] += part
    return value


def take(step: Step, source: Layout, parts: Sequence[Array]) -> list[Array]:
    """Do a step."""
    layout, mesh = step.target, source.mesh
    if step.kind is Kind.PERMUTE:
        by_part = dict(zip(source.offset_to_shard(), parts, strict=True))
        if source.partial:  # each term has its own
            keys = [tuple([device[name] for name in source.partial]) for device in mesh.unravel_index()]
            by_part = {(*a, *b): part for a, b, part in zip(source.offset_to_shard(), keys, parts, strict=True)}
            return [by_part[*a, *b] for a, b in zip(layout.offset_to_shard(), keys, strict=True)]
        return [by_part[where] for where in layout.offset_to_shard()]
    after: list[Array] = [np.empty(0)] * mesh.size
    for group in list_groups(mesh, step.axis):
        held = [parts[device] for device in group]
        for index, device in enumerate(group):
            after[device] = _compute(step, held, index, len(group))
    return after


def _compute(step: Step, held: Sequence[Array], index: int, size: int) -> Array:
    def cut(array: Array, dim: int) -> Array:
        return np.split(array, size, dim)[index]

    match step.kind:
        case Kind.SPLIT:
            return cut(held[index], step.dim)
        case Kind.SPREAD:
            return held[index] if index == 0 else np.zeros_like(held[index])
        case Kind.ALL_GATHER:
            return np.concatenate(held, step.dim)
        case Kind.ALL_TO_ALL:
            return np.concatenate([cut(array, step.dim) for array in held], step.from_dim)
        case Kind.ALL_REDUCE:
            return sum(held[1:], held[0])
        case Kind.REDUCE_SCATTER:
            return cut(sum(held[1:], held[0]), step.dim)
    raise AssertionError(step.kind)


def list_groups(mesh: Mesh, axis: str) -> Iterator[list[int]]:
    """Devices that differ along one axis only, in its order."""
    groups = dict[tuple[int, ...], list[int]]()
    for device, place in enumerate(mesh.unravel_index()):
        groups.setdefault(tuple([at for name, at in place.items() if name != axis]), []).append(device)
    yield from groups.values()


def run(plan: relayouts.Plan, source: Layout, parts: Sequence[Array]) -> tuple[list[Array], Layout]:
    """Do a whole plan."""
    layout, held = source, list(parts)
    for step in plan.steps:
        held, layout = take(step, layout, held), step.target
    return held, layout
