"""Batches spread over a mesh."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, final

import numpy as np

from hocket.mesh import layouts, meshes, operations

Structure: TypeAlias = Any
"""An array, or a tuple, list or dict of such structures."""


@final
class DTensorDataset:
    """An iterable of batches, each spread over a mesh.

    Args:
        dataset: An iterable of rows, or of whole batches, that can be iterated repeatedly. A row or batch is an array,
            or a tuple, list or dict of arrays.
        mesh: The mesh.
        layouts: The layout of a batch: a layout, or a structure of layouts like a batch.
        global_batch_size: The number of rows in a batch, over all devices.
        dataset_already_batched: Whether `dataset` yields batches, of any one size: they are cut or joined to
            `global_batch_size`. Default: it yields rows.
        batch_dim: The mesh axis that cuts the rows; used only to check the batch size. Default: no check.
        prefetch: The number of batches that are spread ahead of the current batch. Default: none.

    Rows at the end that fill no batch are left out.

    Raises:
        ValueError: The batch does not divide by the parts of `batch_dim`, or a layout is of another mesh.

    Example:
        >>> import numpy as np
        >>> from hocket import mesh
        >>> one = mesh.create_mesh({"data": 1})
        >>> rows = mesh.DTensorDataset(
        ...     np.arange(5.0), mesh=one, layouts=mesh.Layout(["data"], one), global_batch_size=2
        ... )
        >>> [batch.gather().tolist() for batch in rows]
        [[0.0, 1.0], [2.0, 3.0]]
    """

    def __init__(
        self,
        dataset: Iterable[object],
        *,
        mesh: meshes.Mesh,
        layouts: Structure,
        global_batch_size: int,
        dataset_already_batched: bool = False,
        batch_dim: str | None = None,
        prefetch: int | None = None,
    ) -> None:
        size: Any = global_batch_size
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"global_batch_size must be 1 row or more, but received {global_batch_size!r}.")
        if prefetch is not None and prefetch < 0:
            raise ValueError(f"prefetch must be 0 batches or more, but received {prefetch!r}.")
        parts = mesh.dim_size(batch_dim) if batch_dim is not None else 1
        if global_batch_size % parts:
            raise ValueError(
                f"global_batch_size={global_batch_size} cannot be cut into {parts} equal parts along {batch_dim!r}. "
                f"Use a multiple of {parts}."
            )
        for layout in _flatten(layouts):
            _check_layout(layout, mesh)
        self._dataset = dataset
        self._layouts = layouts
        self._size = global_batch_size
        self._is_batched = dataset_already_batched
        self._ahead = prefetch or 0

    def __iter__(self) -> Iterator[Structure]:
        ready: deque[Structure] = deque()
        for batch in self._cut():
            ready.append(_map(operations.copy_to_mesh, batch, self._layouts))
            if len(ready) > self._ahead:
                yield ready.popleft()
        yield from ready

    def _cut(self) -> Iterator[Structure]:
        """Yield batches of the right size."""
        held: list[Structure] = []
        count = 0
        for given in self._dataset:
            held.append(given if self._is_batched else _map(lambda array: np.asarray(array)[None], given))
            count += len(_flatten(held[-1])[0])
            while count >= self._size:
                whole = held[0] if len(held) == 1 else _map(lambda *arrays: np.concatenate(arrays), *held)
                yield _map(lambda array: array[: self._size], whole)
                count -= self._size
                held = [_map(lambda array: array[self._size :], whole)] if count else []


def _check_layout(layout: object, mesh: meshes.Mesh) -> None:
    if not isinstance(layout, layouts.Layout):
        raise TypeError(f"layouts must be a Layout, or a tuple, list or dict of them, but received {layout!r}.")
    if layout.mesh != mesh:
        raise ValueError(f"A layout is on {layout.mesh!r}, but the batches are for {mesh!r}. Use one mesh.")


def _map(function: Callable[..., object], one: Structure, *others: Structure) -> Structure:
    """Call a function with the arrays at each place of structures of the same form; return a structure of results."""
    if isinstance(one, Mapping):
        return {name: _map(function, part, *(other[name] for other in others)) for name, part in one.items()}
    if isinstance(one, (tuple, list)):
        return type(one)([_map(function, *parts) for parts in zip(one, *others, strict=True)])
    return function(one, *others)


def _flatten(structure: Structure) -> list[Any]:
    if isinstance(structure, Mapping):
        return [leaf for part in structure.values() for leaf in _flatten(part)]
    if isinstance(structure, (tuple, list)):
        return [leaf for part in structure for leaf in _flatten(part)]
    return [structure]
