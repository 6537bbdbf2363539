"""Layouts: they describe how a tensor is spread over a mesh.

For each dim of a tensor, a layout names the mesh axis that cuts the dim, as in TensorFlow's DTensor. Several axes may
cut one dim, major first, as in JAX. Devices along an axis that cuts no dim are replicas: all have the same part. Along
the axes in `Layout.partial` each device has a tensor of its own; the value is the sum of these tensors, which has not
been computed yet. PyTorch calls this placement ``Partial``.

Dims are cut into equal parts. An axis that does not divide a dim is refused, as in TensorFlow and JAX: padding would
add unwanted rows to every sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from hocket.mesh import meshes

UNSHARDED = "unsharded"
"""The spec of a tensor's dim that no mesh axis cuts."""

MATCH = "match"
"""The spec, in the target of a relayout, of a dim whose layout stays as it is."""

Spec: TypeAlias = str | Sequence[str]
"""The spec of one dim: the name of a mesh axis, several names, major first, `UNSHARDED` or `MATCH`."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The placement of an axis whose devices have parts of one of the tensor's dims."""

    dim: int
    """The dim's index, from 0."""


@dataclass(frozen=True, slots=True)
class Replicate:
    """The placement of an axis whose devices all have the same part."""


@dataclass(frozen=True, slots=True)
class Partial:
    """The placement of an axis whose devices have terms of a sum."""


Placement: TypeAlias = Shard | Replicate | Partial
"""The effect of one mesh axis on a tensor."""


@final
class Layout:
    """A description of how a tensor is spread over a mesh. Immutable, hashable, and can be pickled.

    Args:
        sharding_specs: For each dim the name of the mesh axis that cuts it, several names, major first, or `UNSHARDED`.
        mesh: The mesh.
        partial: The axes along which the devices have terms of a sum. Default: none.

    Raises:
        TypeError: A spec is no name, or `mesh` is no `Mesh`.
        ValueError: The mesh has no axis of a name, or an axis is used twice.

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
                f"The specs of a layout must be a list with one spec for each dim, but received {sharding_specs!r}. "
                f"Write [{sharding_specs!r}]."
            )
        self._mesh = mesh
        self._axes = tuple([_read_spec(spec) for spec in sharding_specs])
        self._partial = tuple(sorted([partial] if isinstance(partial, str) else partial))
        used: set[str] = set()
        for name in (*(name for axes in self._axes for name in axes), *self._partial):
            if name not in mesh:
                raise ValueError(
                    f"The mesh has the axes {list(mesh.dim_names)}, but a layout names {name!r}. Name one of these."
                )
            if name in used:
                raise ValueError(
                    f"The mesh axis {name!r} occurs twice in a layout, but an axis can cut only one dim. Use "
                    f"{UNSHARDED!r}, or another axis."
                )
            used.add(name)

    # --- made by rule -------------------------------------------------------------------------------------------------

    @staticmethod
    def replicated(mesh: meshes.Mesh, rank: int) -> Layout:
        """Return the layout of a tensor of `rank` dims that each device has whole."""
        return Layout([UNSHARDED] * rank, mesh)

    @staticmethod
    def batch_sharded(mesh: meshes.Mesh, batch_dim: str, rank: int, axis: int = 0) -> Layout:
        """Return the layout of a tensor with one dim cut: by default the first.

        Raises:
            ValueError: The tensor has no such dim.
        """
        if not -rank <= axis < rank:
            raise ValueError(f"axis must be from 0 to {rank - 1} for a tensor of {rank} dims, but received {axis}.")
        specs = [UNSHARDED] * rank
        specs[axis] = batch_dim
        return Layout(specs, mesh)

    @staticmethod
    def inner_sharded(mesh: meshes.Mesh, inner_dim: str, rank: int) -> Layout:
        """Return the layout of a tensor whose last dim is cut."""
        return Layout.batch_sharded(mesh, inner_dim, rank, axis=-1)

    def delete(self, dims: Sequence[int]) -> Layout:
        """Return the layout without some dims: for example a bias's layout from that of its weights.

        Raises:
            ValueError: The tensor has no such dim.
        """
        odd = [dim for dim in dims if not -self.rank <= dim < self.rank]
        if odd:
            raise ValueError(
                f"dims must be from 0 to {self.rank - 1} for a tensor of {self.rank} dims, but received {odd[0]}."
            )
        gone = {dim % self.rank for dim in dims}
        return Layout(
            [axes for dim, axes in enumerate(self._axes) if dim not in gone], self._mesh, partial=self._partial
        )

    def with_partial(self, partial: Sequence[str]) -> Layout:
        """Return the same layout with exactly these partial axes, along which devices have terms of a sum."""
        return Layout(self._axes, self._mesh, partial=partial)

    # --- properties ---------------------------------------------------------------------------------------------------

    @property
    def mesh(self) -> meshes.Mesh:
        """The mesh."""
        return self._mesh

    @property
    def rank(self) -> int:
        """Number of dims of the tensor."""
        return len(self._axes)

    @property
    def axes(self) -> tuple[tuple[str, ...], ...]:
        """For each dim the names of the mesh axes that cut it, major first; empty if the dim is whole."""
        return self._axes

    @property
    def partial(self) -> tuple[str, ...]:
        """The axes along which the devices have terms of a sum, sorted by name."""
        return self._partial

    @property
    def sharding_specs(self) -> list[str]:
        """For each dim the axis that cuts it, or `UNSHARDED`; names of several axes are joined by commas."""
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
        """Number of parts that each dim is cut into."""
        return tuple([self.num_shards(dim) for dim in range(self.rank)])

    def num_shards(self, dim: int) -> int:
        """Return the number of parts that a dim is cut into."""
        return math.prod([self._mesh.dim_size(name) for name in self._axes[dim]])

    def local_shape_from_global_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of each device's part.

        Raises:
            ValueError: The tensor has another number of dims, or a dim cannot be cut into equal parts.
        """
        self._check_rank(global_shape)
        for dim, (length, parts) in enumerate(zip(global_shape, self.shape, strict=True)):
            if length % parts:
                raise ValueError(
                    f"Dim {dim} of a tensor of shape {tuple(global_shape)} has length {length}, which the mesh axis "
                    f"{','.join(self._axes[dim])!r} cannot cut into {parts} equal parts. Pad it to a multiple of "
                    f"{parts}, or write {UNSHARDED!r}."
                )
        return tuple([length // parts for length, parts in zip(global_shape, self.shape, strict=True)])

    def global_shape_from_local_shape(self, local_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the whole tensor from the shape of its parts.

        Raises:
            ValueError: The shape has another number of dims.
        """
        self._check_rank(local_shape)
        return tuple([length * parts for length, parts in zip(local_shape, self.shape, strict=True)])

    def get_part(self, dim: int, place: dict[str, int]) -> int:
        """Return the index of the part of a dim that the device at a place has."""
        part = 0
        for name in self._axes[dim]:
            part = part * self._mesh.dim_size(name) + place[name]
        return part

    def offset_to_shard(self) -> list[tuple[int, ...]]:
        """Return for each device the index of its part of each dim."""
        return [tuple([self.get_part(dim, place) for dim in range(self.rank)]) for place in self._mesh.unravel_index()]

    def slices(self, global_shape: Sequence[int]) -> list[tuple[slice, ...]]:
        """Return for each device the place of its part in the whole tensor.

        Raises:
            ValueError: See `local_shape_from_global_shape`.
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
    """Return the layout that specs describe for a tensor with the layout `source`: `MATCH` keeps a dim's axes."""
    if isinstance(specs, str) or not isinstance(specs, Sequence):
        raise TypeError(
            f"A relayout takes a Layout, or a list with a spec for each dim, but received {specs!r}. Write for example "
            f"{[MATCH] * source.rank}."
        )
    if len(specs) != source.rank:
        raise ValueError(
            f"The tensor has {source.rank} dims, but received {len(specs)} specs: {list(specs)}. Give one spec for "
            "each dim."
        )
    kept = [axes if spec == MATCH else spec for spec, axes in zip(specs, source.axes, strict=True)]
    return Layout(kept, source.mesh)


def _rebuild(axes: Sequence[Spec], mesh: meshes.Mesh, partial: Sequence[str]) -> Layout:
    return Layout(axes, mesh, partial=partial)


def _read_spec(spec: object) -> tuple[str, ...]:
    if isinstance(spec, str):
        if spec == MATCH:
            raise ValueError(
                f"{MATCH!r} is a spec for relayouts only, but a layout received it. Write {UNSHARDED!r} or an axis."
            )
        return () if spec == UNSHARDED else tuple(spec.split(","))
    if isinstance(spec, Sequence) and all(isinstance(name, str) for name in spec):
        return tuple(spec)
    raise TypeError(
        f"A spec of a layout must be the name of a mesh axis or {UNSHARDED!r}, but received {spec!r}. Write "
        f"{UNSHARDED!r} in place of None."
    )
