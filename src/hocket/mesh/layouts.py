"""Layouts: how a tensor is spread over a mesh.

A layout says for each dim of a tensor which mesh axis cuts it, as TensorFlow's DTensor does; several axes may cut one
dim, major first, as in JAX. What it says for no dim the devices along an axis all have: they are replicas. Along the
axes in `Layout.partial` each device has a tensor of its own, and the value is their sum, which nobody has taken yet:
PyTorch calls this placement ``Partial``.

Dims are cut into equal parts. A dim that an axis does not divide is refused, as in TensorFlow and JAX: padding would
be rows that nobody has asked for, in every sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from hocket.mesh import meshes

UNSHARDED = "unsharded"
"""What a layout says of a tensor's dim that no mesh axis cuts."""

MATCH = "match"
"""What the target of a relayout says of a dim that stays as it is."""

Spec: TypeAlias = str | Sequence[str]
"""Of one dim of a tensor: the name of a mesh axis, several names, major first, `UNSHARDED` or `MATCH`."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Devices along an axis have parts of a tensor's dim."""

    dim: int
    """Which one; 0 is the first."""


@dataclass(frozen=True, slots=True)
class Replicate:
    """Devices along an axis have the same."""


@dataclass(frozen=True, slots=True)
class Partial:
    """Devices along an axis have terms of a sum."""


Placement: TypeAlias = Shard | Replicate | Partial
"""What one mesh axis does to a tensor."""


@final
class Layout:
    """How a tensor is spread over a mesh. Immutable, hashable, and can be pickled.

    Args:
        sharding_specs: For each dim of the tensor the name of the mesh axis that cuts it, several names, major first,
            or `UNSHARDED`.
        mesh: The mesh.
        partial: The axes along which the devices have terms of a sum. None by default.

    Raises:
        TypeError: A spec is no name, or `mesh` is no `Mesh`.
        ValueError: The mesh has no axis of that name, or one is used twice.

    Example:
        >>> from hocket.mesh import UNSHARDED, Layout, Mesh
        >>> mesh = Mesh({"x": 2, "y": 3})
        >>> layout = Layout(["x", UNSHARDED], mesh)
        >>> layout.local_shape_from_global_shape((128, 8))
        (64, 8)
        >>> layout.placements
        (Shard(dim=0), Replicate())
    """

    __slots__ = ("_axes", "_mesh", "_partial")

    def __init__(self, sharding_specs: Sequence[Spec], mesh: meshes.Mesh, *, partial: Sequence[str] = ()) -> None:
        if not isinstance(mesh, meshes.Mesh):
            raise TypeError(f"A layout needs a Mesh, but received {mesh!r}. Write for example Mesh({{'data': 2}}).")
        if isinstance(sharding_specs, str):
            raise TypeError(
                f"The specs of a layout are a list with one for each dim, but received {sharding_specs!r}. Write "
                f"[{sharding_specs!r}]."
            )
        self._mesh = mesh
        self._axes = tuple([_read_spec(spec) for spec in sharding_specs])
        self._partial = tuple(sorted([partial] if isinstance(partial, str) else partial))
        used: set[str] = set()
        for name in (*(name for axes in self._axes for name in axes), *self._partial):
            if name not in mesh:
                raise ValueError(f"The mesh has the axes {list(mesh.dim_names)}, but a layout names {name!r}.")
            if name in used:
                raise ValueError(
                    f"The mesh axis {name!r} comes twice in a layout, but one axis can cut one dim only. Use "
                    f"{UNSHARDED!r}, or another axis."
                )
            used.add(name)

    # --- made by rule -------------------------------------------------------------------------------------------------

    @staticmethod
    def replicated(mesh: meshes.Mesh, rank: int) -> Layout:
        """Return the layout of a tensor of so many dims that each device has whole."""
        return Layout([UNSHARDED] * rank, mesh)

    @staticmethod
    def batch_sharded(mesh: meshes.Mesh, batch_dim: str, rank: int, axis: int = 0) -> Layout:
        """Return the layout of a tensor one dim of which is cut: the first by default.

        Raises:
            ValueError: The tensor has no such dim.
        """
        if not -rank <= axis < rank:
            raise ValueError(f"A tensor of {rank} dims has none of index {axis}. Write one from 0 to {rank - 1}.")
        specs = [UNSHARDED] * rank
        specs[axis] = batch_dim
        return Layout(specs, mesh)

    @staticmethod
    def inner_sharded(mesh: meshes.Mesh, inner_dim: str, rank: int) -> Layout:
        """Return the layout of a tensor the last dim of which is cut."""
        return Layout.batch_sharded(mesh, inner_dim, rank, axis=-1)

    def delete(self, dims: Sequence[int]) -> Layout:
        """Return the layout without these dims: that of a bias, from that of its weights.

        Raises:
            ValueError: The tensor has no such dim.
        """
        odd = [dim for dim in dims if not -self.rank <= dim < self.rank]
        if odd:
            raise ValueError(f"A tensor of {self.rank} dims has none of index {odd[0]}. Write 0 to {self.rank - 1}.")
        gone = {dim % self.rank for dim in dims}
        return Layout(
            [axes for dim, axes in enumerate(self._axes) if dim not in gone], self._mesh, partial=self._partial
        )

    def with_partial(self, partial: Sequence[str]) -> Layout:
        """Return the layout with these axes, and no others, along which devices have terms of a sum."""
        return Layout(self._axes, self._mesh, partial=partial)

    # --- what it says -------------------------------------------------------------------------------------------------

    @property
    def mesh(self) -> meshes.Mesh:
        """The mesh."""
        return self._mesh

    @property
    def rank(self) -> int:
        """How many dims the tensor has."""
        return len(self._axes)

    @property
    def axes(self) -> tuple[tuple[str, ...], ...]:
        """For each dim the names of the mesh axes that cut it, major first; none if it is whole."""
        return self._axes

    @property
    def partial(self) -> tuple[str, ...]:
        """The axes along which the devices have terms of a sum, by name."""
        return self._partial

    @property
    def sharding_specs(self) -> list[str]:
        """For each dim the axis that cuts it, or `UNSHARDED`; of several axes the names joined by commas."""
        return [",".join(axes) if axes else UNSHARDED for axes in self._axes]

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The effect of each mesh axis on the tensor, in the order of the mesh."""
        by_name: dict[str, Placement] = {name: Shard(dim) for dim, axes in enumerate(self._axes) for name in axes}
        by_name.update((name, Partial()) for name in self._partial)
        return tuple([by_name.get(name, Replicate()) for name in self._mesh.dim_names])

    @property
    def is_fully_replicated(self) -> bool:
        """Whether each device has the whole value."""
        return not self._partial and all(self.num_shards(dim) == 1 for dim in range(self.rank))

    @property
    def shape(self) -> tuple[int, ...]:
        """Into how many parts each dim is cut."""
        return tuple([self.num_shards(dim) for dim in range(self.rank)])

    def num_shards(self, dim: int) -> int:
        """Return into how many parts a dim is cut."""
        return math.prod([self._mesh.dim_size(name) for name in self._axes[dim]])

    def local_shape_from_global_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of what each device has.

        Raises:
            ValueError: The tensor has another number of dims, or a dim cannot be cut into equal parts.
        """
        self._check_rank(global_shape)
        for dim, (length, parts) in enumerate(zip(global_shape, self.shape, strict=True)):
            if length % parts:
                raise ValueError(
                    f"Dim {dim} of a tensor of shape {tuple(global_shape)} is {length} long, and the mesh axis "
                    f"{','.join(self._axes[dim])!r} would cut it into {parts} equal parts. Pad it to a multiple of "
                    f"{parts}, or say {UNSHARDED!r}."
                )
        return tuple([length // parts for length, parts in zip(global_shape, self.shape, strict=True)])

    def global_shape_from_local_shape(self, local_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the tensor whose parts have this shape.

        Raises:
            ValueError: It has another number of dims.
        """
        self._check_rank(local_shape)
        return tuple([length * parts for length, parts in zip(local_shape, self.shape, strict=True)])

    def get_part(self, dim: int, place: dict[str, int]) -> int:
        """Return the number of the part of a dim that the device at a place has."""
        part = 0
        for name in self._axes[dim]:
            part = part * self._mesh.dim_size(name) + place[name]
        return part

    def offset_to_shard(self) -> list[tuple[int, ...]]:
        """Return for each device which part of each dim it has."""
        return [tuple([self.get_part(dim, place) for dim in range(self.rank)]) for place in self._mesh.unravel_index()]

    def slices(self, global_shape: Sequence[int]) -> list[tuple[slice, ...]]:
        """Return for each device where its part lies in the whole tensor.

        Raises:
            ValueError: As `local_shape_from_global_shape`.
        """
        local = self.local_shape_from_global_shape(global_shape)
        return [
            tuple([slice(part * length, (part + 1) * length) for part, length in zip(parts, local, strict=True)])
            for parts in self.offset_to_shard()
        ]

    def _check_rank(self, shape: Sequence[int]) -> None:
        if len(shape) != self.rank:
            raise ValueError(
                f"A layout of {self.rank} dims, {self.sharding_specs}, does not fit a tensor of shape {tuple(shape)}. "
                f"Give one spec for each of its {len(shape)} dims."
            )

    # --- as a value ---------------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return (self._axes, self._partial, self._mesh) == (other._axes, other._partial, other._mesh)

    def __hash__(self) -> int:
        return hash((self._axes, self._partial, self._mesh))

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self._axes, self._mesh, self._partial)

    def __repr__(self) -> str:
        partial = f", partial={list(self._partial)}" if self._partial else ""
        return f"Layout({self.sharding_specs}, {self._mesh!r}{partial})"


def fill_matches(specs: Sequence[Spec], source: Layout) -> Layout:
    """Return the layout that these specs ask for where a tensor has the layout `source`: `MATCH` keeps a dim."""
    if isinstance(specs, str) or not isinstance(specs, Sequence):
        raise TypeError(
            f"A relayout takes a Layout, or a list with a spec for each dim, but received {specs!r}. Write for example "
            f"{[MATCH] * source.rank}."
        )
    if len(specs) != source.rank:
        raise ValueError(f"The tensor has {source.rank} dims, but received {len(specs)} specs, {list(specs)}.")
    kept = [axes if spec == MATCH else spec for spec, axes in zip(specs, source.axes, strict=True)]
    return Layout(kept, source.mesh)


def _rebuild(axes: Sequence[Spec], mesh: meshes.Mesh, partial: Sequence[str]) -> Layout:
    return Layout(axes, mesh, partial=partial)


def _read_spec(spec: object) -> tuple[str, ...]:
    if isinstance(spec, str):
        if spec == MATCH:
            raise ValueError(f"{MATCH!r} says how a relayout treats a dim; a layout says {UNSHARDED!r} or an axis.")
        return () if spec == UNSHARDED else tuple(spec.split(","))
    if isinstance(spec, Sequence) and all(isinstance(name, str) for name in spec):
        return tuple(spec)
    raise TypeError(
        f"A layout says of each dim the name of a mesh axis or {UNSHARDED!r}, but received {spec!r}. Write None as "
        f"{UNSHARDED!r}."
    )
