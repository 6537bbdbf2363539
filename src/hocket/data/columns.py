"""Columns: what a block is made of.

A column is a numpy array whose first axis is the rows, or an Arrow array (`hocket.data.arrow` says when). Whoever has
one calls the functions here, and does not ask which it is. Nobody writes into a column: it may be shared memory, or the
array that a user has given.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hocket.data import arrow

Column: TypeAlias = Any
"""A numpy array or an Arrow array. Arrow has no types to check against, and may be missing."""

Type: TypeAlias = Any
"""What a column holds: numpy's type and the shape of a row, or Arrow's type."""


def build(values: object) -> Column:
    """Return what a user's function has returned for a column, as a column."""
    if isinstance(values, np.ma.MaskedArray):
        return build(_unmask(values))
    if isinstance(values, np.ndarray):
        if not values.ndim:
            raise TypeError(f"a single value, {values!r}, where each column needs one value for each row")
        return _pack(values) if values.dtype.kind in "OUS" else values
    pa = sys.modules.get("pyarrow")
    if pa is not None and isinstance(values, pa.Array | pa.ChunkedArray):
        return arrow.read_column(arrow.flatten(values) if isinstance(values, pa.ChunkedArray) else values)
    if isinstance(values, list | tuple):
        return build_from_values(values)
    if hasattr(values, "__array__") and hasattr(values, "__len__"):  # a tensor of some framework, a pandas Series
        return build(np.asarray(values))
    raise TypeError(
        f"a value of type {type(values).__name__}, {values!r:.80}, where each column needs an array or a list with "
        "one value for each row"
    )


def _unmask(values: np.ma.MaskedArray[Any, Any]) -> object:
    """Return a masked array's values, with missing ones where they are masked."""
    if values.ndim == 1:
        return values.tolist()
    if not np.ma.is_masked(values):
        return values.data
    if values.dtype.kind != "f":
        raise TypeError(
            f"a masked array of {values.dtype} with {values.ndim} axes, but only floats can be missing within a row: "
            "write values.astype(float), or values.filled(...)"
        )
    return values.filled(np.nan)


def build_from_values(values: Sequence[Any]) -> Column:
    """Return one Python value for each row as a column. Lists stay lists; arrays of one shape, and tensors of a
    framework, become an array with an axis more."""
    values = [_open_tensor(value) for value in values]
    times = {type(value) for value in values if value is not None}
    if len(times) == 1 and times <= {np.datetime64, np.timedelta64}:
        return _build_times(values)
    if values and all(isinstance(value, np.ndarray) for value in values):
        first = values[0]
        if all(value.shape == first.shape and value.dtype == first.dtype for value in values):
            return np.stack(values)
        return _hold(values)
    if values and all(isinstance(value, bool | int | float | np.number | np.bool_) for value in values):
        found = np.array(values)
        is_lost = found.dtype.kind == "f" and not any(isinstance(value, float | np.floating) for value in values)
        if found.dtype.kind in "biuf" and not is_lost:  # whole numbers of more than 64 bits are objects
            return found
    packed = None if any(isinstance(value, np.ndarray) for value in values) else arrow.get_optional_array(values)
    return _hold(values) if packed is None else packed


def _build_times(values: Sequence[Any]) -> Column:
    """Return numpy's times, and None where one is missing, as a column."""
    kind = np.result_type(*(value for value in values if value is not None))
    unit, count = np.datetime_data(kind)
    if unit not in ("D", "s", "ms", "us", "ns") or count > 1 or (kind.kind == "m" and unit == "D"):  # Arrow's units
        kind = np.dtype("M8[D]" if kind.kind == "M" and unit in "YMW" else f"{kind.kind}8[s]")
    found = np.array([np.array("NaT" if value is None else value, kind) for value in values])
    packed = arrow.get_optional_array(found)
    return found if packed is None else packed


def _open_tensor(value: object) -> object:
    """Return the tensor of a framework as an array, and everything else as it is."""
    is_tensor = hasattr(value, "__array__") and hasattr(value, "shape") and hasattr(value, "dtype")
    return np.asarray(value) if is_tensor and not isinstance(value, np.ndarray | np.generic) else value


def _hold(values: Sequence[object]) -> npt.NDArray[Any]:
    """Return values as an array of objects, whatever they are: numpy alone would look into lists."""
    found = np.empty(len(values), object)
    for at, value in enumerate(values):
        found[at] = value
    return found


def _pack(values: npt.NDArray[Any]) -> Column:
    if values.ndim > 1:
        return values
    plain = values.tolist()
    if values.dtype.kind == "O":
        return build_from_values(plain)
    packed = arrow.get_optional_array(plain)
    return _hold(plain) if packed is None else packed


def length(column: Column) -> int:
    """Return how many rows there are."""
    return len(column)


def count_bytes(column: Column) -> int:
    """Return how much memory the values take; of objects, a guess."""
    if isinstance(column, np.ndarray) and column.dtype.hasobject:
        return sum(getattr(value, "nbytes", 0) or sys.getsizeof(value) for value in column.flat)
    return int(column.nbytes)


def cut(column: Column, start: int, stop: int) -> Column:
    """Return rows that follow one another, without a copy."""
    return column[start:stop] if isinstance(column, np.ndarray) else column.slice(start, stop - start)


def pick(column: Column, rows: npt.NDArray[np.int64]) -> Column:
    """Return a copy of some rows, in the order in which they are given."""
    return (
        column.take(rows, axis=0) if isinstance(column, np.ndarray) else column.take(arrow.load("A column").array(rows))
    )


def join(name: str, parts: Sequence[Column]) -> Column:
    """Return a copy of columns one behind the other."""
    if gone := [at for at, part in enumerate(parts) if _is_gone(part)]:
        known = [part for at, part in enumerate(parts) if at not in gone]
        if known:
            return _insert_missing(join(name, known) if len(known) > 1 else known[0], parts, gone)
    if all(isinstance(part, np.ndarray) for part in parts):
        return _join_arrays(name, parts)
    if not any(isinstance(part, np.ndarray) for part in parts):
        joined = arrow.join(parts)
        if joined is not None:
            return joined
    # Such as numbers, some of which are missing in one block.
    values = [value for part in parts for value in to_values(part)]
    packed = arrow.get_optional_array(values)
    if packed is not None:
        return packed
    if any(isinstance(part, np.ndarray) and part.dtype.kind == "O" for part in parts):
        return _hold(values)
    raise _build_mismatch(name, parts)


def _is_gone(column: Column) -> bool:
    """Return whether there is no value at all."""
    return isinstance(column, np.ndarray) and column.dtype.kind == "O" and all(value is None for value in column)


def _insert_missing(known: Column, parts: Sequence[Column], gone: Sequence[int]) -> Column:
    """Return a column with missing values where parts have none."""
    places = np.full(sum(map(len, parts)), -1)
    at = start = 0
    for number, part in enumerate(parts):
        if number not in gone:
            places[at : at + len(part)] = np.arange(start, start + len(part))
            start += len(part)
        at += len(part)
    is_plain = not isinstance(known, np.ndarray) or (known.ndim == 1 and known.dtype.kind in "biuf")
    if is_plain and arrow.get_optional() is not None:
        return arrow.spread(known, places)
    values = to_values(known)
    return build_from_values([None if place < 0 else values[place] for place in places])


def _join_arrays(name: str, parts: Sequence[npt.NDArray[Any]]) -> Column:
    if len({part.shape[1:] for part in parts}) > 1:
        return _hold([row for part in parts for row in part])
    kinds = {"number" if part.dtype.kind in "biufc" else part.dtype.kind for part in parts}
    joined = np.concatenate(parts) if len(kinds) == 1 or "O" in kinds else None
    if joined is None or (joined.dtype.kind == "f" and all(part.dtype.kind in "biu" for part in parts)):
        raise _build_mismatch(name, parts)  # of uint64 and int64 numpy makes floats
    return joined


def _build_mismatch(name: str, parts: Sequence[Column]) -> TypeError:
    found = list(dict.fromkeys(describe(part) for part in parts))
    return TypeError(
        f"Column {name!r} is {' in some blocks and '.join(found)} in others, which cannot stand in one batch. Make it "
        "one type with map_batches(), or name the type where the files are read."
    )


def copy(column: Column) -> Column:
    """Return a column that holds its own values and no others'."""
    return column.copy() if isinstance(column, np.ndarray) else arrow.compact(column)


def protect(column: Column) -> Column:
    """Return a column that nobody can write into by mistake."""
    if not isinstance(column, np.ndarray) or not column.flags.writeable:
        return column
    view = column.view()
    view.flags.writeable = False
    return view


def own(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array that can be written to."""
    return array if array.flags.writeable else array.copy()


def to_numpy(column: Column) -> npt.NDArray[Any]:
    """Return a column as numpy has it, without a copy where that can be."""
    if not isinstance(column, np.ndarray):
        return arrow.to_numpy(column)
    if (
        column.dtype.kind == "O"
        and len(column)
        and all(isinstance(value, list | tuple | np.ndarray) for value in column)
    ):
        return _stack(column)
    return column


def _stack(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return lists of equal length as an array with an axis more; others as they are."""
    arrays = (
        [np.asarray(value) for value in column]
        if len({len(value) if np.ndim(value) else -1 for value in column}) == 1
        else []
    )
    if arrays and len({array.shape for array in arrays}) == 1 and all(array.dtype.kind in "biuf" for array in arrays):
        return np.stack(arrays)
    return column


def to_values(column: Column) -> list[object]:
    """Return one Python value for each row: numbers as Python's, longer axes as arrays of the row's own."""
    if not isinstance(column, np.ndarray):
        values: list[Any] = arrow.list_tensors(column) if arrow.is_tensor(column) else column.to_pylist()
        return values
    return column.tolist() if column.ndim == 1 else [row.copy() for row in column]


def check_numbers(name: str, array: npt.NDArray[Any], aim: str, remedy: str) -> None:
    """Raise if a column holds no numbers."""
    if array.dtype.kind in "biufc":
        return
    shapes = {np.shape(value) for value in array} if array.dtype.kind == "O" else set()
    if len(shapes) > 1 and () not in shapes:
        raise ValueError(
            f"Column {name!r} has rows of different shapes, {sorted(shapes)[:4]}, so they make no array. Make them "
            f"equally long with map_batches(), or pass {remedy}."
        )
    example = f", such as {array[0]!r:.40}" if len(array) else ""
    raise TypeError(
        f"Column {name!r} holds values of type {array.dtype}{example}, which cannot be {aim}. Leave it out with "
        f"drop_columns([{name!r}]), make numbers of it with map_batches(), or pass {remedy}."
    )


def find_type(column: Column) -> Type:
    """Return what a column holds."""
    return (column.dtype, column.shape[1:]) if isinstance(column, np.ndarray) else column.type


def repeat(value: object, count: int) -> Column:
    """Return a column of one value."""
    return build_from_values([value] * count)


def find_changes(column: Column) -> npt.NDArray[np.bool_]:
    """Return of each row but the first whether it has another value than the one before. Missing values are equal."""
    if not isinstance(column, np.ndarray):
        return arrow.find_changes(column)
    last, this = column[:-1], column[1:]
    if column.dtype.kind == "O":
        return np.array([one is not other and one != other for one, other in zip(last, this, strict=True)], bool)
    changed = last != this
    if column.dtype.kind in "fcmM":
        gone = np.isnan(column) if column.dtype.kind in "fc" else np.isnat(column)
        changed &= ~(gone[:-1] & gone[1:])
    found: npt.NDArray[np.bool_] = changed.reshape(len(changed), -1).any(axis=1) if column.ndim > 1 else changed
    return found


def is_missing(value: object) -> bool:
    """Tell whether a value is None or NaN, of whatever kind."""
    return value is None or bool(value != value)  # noqa: PLR0124 (NaN alone differs from itself)


def is_number(kind: str) -> bool:
    """Return whether a type, by the name that `describe` gives it, is one of numbers."""
    return kind.startswith(("int", "uint", "float", "double", "halffloat", "decimal")) and not kind.endswith("]")


def describe(column: Column) -> str:
    """Return a column's type, such as ``float32[28, 28]`` or ``string``."""
    if not isinstance(column, np.ndarray):
        return str(column.type)
    inner = ", ".join(map(str, column.shape[1:]))
    return f"{column.dtype}[{inner}]" if inner else str(column.dtype)
