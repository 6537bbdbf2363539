"""Columns whose values are arrays: numbers of one shape as Arrow's own tensors, and all others as `Arrays`."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hocket.data.arrow import kinds


def pack_arrays(arrays: Sequence[kinds.Array | None]) -> object:
    """Return arrays of any shapes, with None for a missing one, as an Arrow array. Return None without Arrow, or if
    Arrow has no type for their values."""
    there = [one for one in arrays if one is not None]
    dtypes = {one.dtype.kind if one.dtype.kind in "US" else one.dtype.newbyteorder("=") for one in there}
    if kinds.get_optional() is None or len(dtypes) != 1 or (kind := kinds.find_type(there[0].dtype)) is None:
        return None
    sizes = np.array([0 if one is None else one.size for one in arrays])
    shapes = [() if one is None else one.shape for one in arrays]
    mask = np.array([one is None for one in arrays])
    return _assemble(np.concatenate([one.ravel() for one in there]), kind, sizes, shapes, mask)


def _assemble(
    flat: kinds.Array, kind: object, sizes: kinds.Array, shapes: Sequence[tuple[int, ...]], mask: kinds.Array | None
) -> object:
    """Return a column of `Arrays` from all values, and from the size and shape of each array."""
    pa = kinds.load("A column")
    try:
        flat = kinds.convert_times(flat) if flat.dtype.kind in "mM" else flat
        values = pa.array(flat.tolist() if flat.dtype.kind in "US" else flat.astype(to_dtype(kind)), kind)
    except UnicodeEncodeError:
        return None
    ends = np.concatenate([[0], np.cumsum(sizes)])
    axes = np.concatenate([[0], np.cumsum([len(shape) for shape in shapes])])
    lengths = pa.array(np.array([length for shape in shapes for length in shape], np.int64))
    parts = [
        pa.ListArray.from_arrays(pa.array(axes, pa.int32()), lengths),
        pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), values),
    ]
    found = pa.StructArray.from_arrays(parts, ["shape", "values"], mask=None if mask is None else pa.array(mask))
    return pa.ExtensionArray.from_storage(kinds.build_arrays_type(kind), found)


def list_tensors(column: Any) -> list[kinds.Array | None]:
    """Return the arrays in an Arrow array, with None for a missing one."""
    there = column.is_valid().to_pylist()
    known = column.drop_null()
    arrays: Iterator[kinds.Array]
    if hasattr(column.type, "permutation"):
        arrays = iter(_read_tensor(known)) if len(known) else iter(())
    else:
        flat, shapes = _take_apart(known)
        ends = np.cumsum([math.prod(shape) for shape in shapes], dtype=np.int64)
        arrays = (flat[end - math.prod(shape) : end].reshape(shape) for shape, end in zip(shapes, ends, strict=True))
    return [next(arrays).copy() if is_there else None for is_there in there]


def _take_apart(column: Any) -> tuple[kinds.Array, list[list[int]]]:
    """Return all values of a column of `Arrays` without missing ones, and the shapes of its arrays."""
    shapes, values = column.storage.flatten()
    inner = values.flatten()
    dtype = to_dtype(inner.type)
    flat = np.array(inner.to_pylist(), dtype) if dtype.kind in "US" else inner.to_numpy(zero_copy_only=False)
    return flat, shapes.to_pylist()


def to_dtype(kind: Any) -> np.dtype[Any]:
    types = kinds.load("A column").types
    named = "U" if types.is_string(kind) else "S" if types.is_binary(kind) else kind.to_pandas_dtype()
    return np.dtype("M8[D]" if types.is_date32(kind) else named)


def _read_tensor(column: Any) -> kinds.Array:
    """Return arrays of one shape as one array, without a copy."""
    shape = column.type.shape
    if len(column):
        found: kinds.Array = column.to_numpy_ndarray()
        return found
    return np.empty((0, *shape), column.type.value_type.to_pandas_dtype())


def stack_tensors(column: Any) -> kinds.Array | None:
    """Return a column of arrays as one array; None if an array is missing, or if shapes differ."""
    if column.null_count:
        return None
    if hasattr(column.type, "permutation"):
        return _read_tensor(column)
    flat, shapes = _take_apart(column)
    same = bool(shapes) and all(shape == shapes[0] for shape in shapes)
    return flat.reshape(len(column), *shapes[0]) if same else None


def nest(column: Any) -> Any:
    """Return a column of arrays as lists of lists; None if the arrays have different numbers of axes."""
    pa = kinds.load("A column")
    arrays = list_tensors(column)
    axes = {one.ndim for one in arrays if one is not None}
    if len(axes) > 1:
        return None
    kind = functools.reduce(lambda inner, _: pa.list_(inner), range(max(axes, default=1)), column.type.kind)
    return pa.array([None if one is None else one.tolist() for one in arrays], kind)


def build_tensors(pa: Any, name: str, column: kinds.Array) -> object:
    kind = kinds.find_type(column.dtype, column.shape[1:])
    if kind is None:
        raise ValueError(
            f"Column {name!r} has arrays of {column.dtype}, for which Arrow has no type. Use batch_format='numpy', or "
            "convert them to numbers, texts or times with map_batches()."
        )
    count, size = len(column), math.prod(column.shape[1:])
    flat = np.ascontiguousarray(column).reshape(-1)
    if not hasattr(kind, "permutation"):
        found = _assemble(flat, kind.kind, np.full(count, size), [column.shape[1:]] * count, None)
        if found is None:
            raise ValueError(
                f"Column {name!r} has texts that are not valid Unicode. Convert them to bytes with map_batches()."
            )
        return found
    if count and column.dtype.isnative:
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(column))
    values = pa.array(flat.astype(column.dtype.newbyteorder("=")))
    return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(values, size))
