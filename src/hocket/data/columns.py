"""Columns: the parts of a block.

A column is a numpy array whose first axis is the rows, or an Arrow array (`hocket.data.arrow` says when). The functions
here take either kind. Columns are never written to: their memory may be shared, or may belong to an array of the user.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from hocket.data import arrow
from hocket.data.arrow import frames

Column: TypeAlias = Any
"""A numpy array or an Arrow array. Arrow has no types for a type checker, and may not be installed."""

Type: TypeAlias = Any
"""The type of a column: numpy's type and the shape of a row, or Arrow's type."""


def build(values: object) -> Column:
    """Return a column of the values that a user's function has returned for it."""
    if isinstance(values, np.ma.MaskedArray):
        return build(_unmask(values))
    if isinstance(values, np.ndarray):
        if not values.ndim:
            raise TypeError(f"a single value, {values!r}, but a column needs one value for each row")
        return _pack(values) if values.dtype.kind in "OUS" else _check_times(values)
    pa = sys.modules.get("pyarrow")
    if pa is not None and isinstance(values, pa.Array | pa.ChunkedArray):
        return arrow.read_column(arrow.flatten(values) if isinstance(values, pa.ChunkedArray) else values)
    if isinstance(values, list | tuple):
        return build_from_values(values)
    if frames.is_series(values):
        return build(frames.read_series(values))
    if hasattr(values, "__array__") and hasattr(values, "__len__"):  # a tensor of some framework, an index of pandas
        return build(np.asarray(values))
    raise TypeError(
        f"a value of type {type(values).__name__}, {values!r:.80}, but a column needs an array or a list with one "
        "value for each row"
    )


def _check_times(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array, after a check that Arrow can hold its times: a later step could not name the array's source."""
    if values.dtype.kind in "mM" and arrow.get_optional() is not None:
        try:
            arrow.convert_times(values)
        except OverflowError as error:
            raise TypeError(
                f"a time that Arrow cannot hold: {error}. Convert the times to numbers with astype(np.int64), or use "
                "another unit"
            ) from None
    return values


def _unmask(values: np.ma.MaskedArray[Any, Any]) -> object:
    """Return a masked array's values. Masked values become missing ones."""
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
    """Return a column with one Python value for each row. Lists stay lists. Arrays of one shape, and tensors of a
    framework, become an array with one more axis."""
    values = [_open_tensor(value) for value in values]
    if (pandas := sys.modules.get("pandas")) is not None and hasattr(pandas, "NaT"):
        values = [None if value is pandas.NaT or value is pandas.NA else value for value in values]
    kinds = set(map(type, values)) - {type(None)}
    if len(kinds) == 1 and kinds <= {np.datetime64, np.timedelta64}:
        return _build_times(values)
    if kinds == {np.ndarray}:
        for value in values:
            _check_times(np.empty(0) if value is None else value)
        first = values[0]
        if all(value is not None and value.shape == first.shape and value.dtype == first.dtype for value in values):
            return np.stack(values)
        packed = arrow.pack_arrays(values)
        return arrow.hold(values) if packed is None else packed
    if values and all(issubclass(kind, bool | int | float | np.number | np.bool_) for kind in map(type, values)):
        found = _build_numbers(values)
        return arrow.hold(values) if found is None else found
    packed = None if np.ndarray in kinds else arrow.get_optional_array(values)
    return arrow.hold(values) if packed is None else packed


def _build_numbers(values: Sequence[Any]) -> npt.NDArray[Any] | None:
    """Return numbers as an array; None if no type of numpy's holds each number exactly."""
    found = np.array(values)
    # numpy makes floats of whole numbers that int64 lacks.
    if found.dtype.kind == "f" and not any(isinstance(value, float | np.floating) for value in values):
        if not 0 <= min(values) <= max(values) < 1 << 64:
            return None
        found = np.array(values, np.uint64)
    if found.dtype.kind == "f" and bool((np.abs(found) >= _EXACT).any()):
        whole = [at for at, value in enumerate(values) if not isinstance(value, float | np.floating)]
        if any(int(values[at]) != int(found[at]) for at in whole):
            return None
    return found if found.dtype.kind in "biuf" else None


_EXACT: Final = 1 << 53
"""Up to this number, a float holds each whole number exactly."""


def _build_times(values: Sequence[Any]) -> Column:
    """Return a column of numpy's times, with None for a missing one."""
    there = [value for value in values if value is not None and not np.isnat(value)]
    try:
        unit = np.result_type(*(value for value in values if value is not None))
        found = np.array([np.array("NaT" if value is None else value, unit) for value in values])
        changed = [value for value in there if value.astype(unit).astype(value.dtype) != value]
    except OverflowError:  # numpy has no common unit for them
        changed = there
    if changed:
        raise TypeError(f"times for which numpy has no common unit: {changed[0]!r} beside {there[0]!r} or others")
    found = arrow.convert_times(_check_times(found))
    packed = arrow.get_optional_array(found)
    return found if packed is None else packed


def _open_tensor(value: object) -> object:
    """Return a framework's tensor as an array, and any other value unchanged."""
    is_tensor = hasattr(value, "__array__") and hasattr(value, "shape") and hasattr(value, "dtype")
    return np.asarray(value) if is_tensor and not isinstance(value, np.ndarray | np.generic) else value


def _pack(values: npt.NDArray[Any]) -> Column:
    if values.ndim > 1:
        return values
    plain = values.tolist()
    if values.dtype.kind == "O":
        return build_from_values(plain)
    packed = arrow.get_optional_array(plain)
    return arrow.hold(plain) if packed is None else packed


def length(column: Column) -> int:
    """Return the number of rows."""
    return len(column)


def count_bytes(column: Column) -> int:
    """Return the memory of the values in bytes. For objects it is a guess."""
    if isinstance(column, np.ndarray) and column.dtype.hasobject:
        return sum(getattr(value, "nbytes", 0) or sys.getsizeof(value) for value in column.flat)
    return int(column.nbytes)


def cut(column: Column, start: int, stop: int) -> Column:
    """Return consecutive rows, without a copy."""
    return column[start:stop] if isinstance(column, np.ndarray) else column.slice(start, stop - start)


def pick(column: Column, rows: npt.NDArray[np.int64]) -> Column:
    """Return a copy of the rows with these numbers, in this order."""
    return (
        column.take(rows, axis=0) if isinstance(column, np.ndarray) else column.take(arrow.load("A column").array(rows))
    )


def join(name: str, parts: Sequence[Column]) -> Column:
    """Return a copy of several columns, one after the other."""
    if all(isinstance(part, np.ndarray) for part in parts):
        joined = _join_arrays(parts)
        if joined is not None:
            return joined
    if arrow.get_optional() is not None:
        kinds = [find_kind(part) for part in parts]
        # A part that Arrow cannot hold keeps all of them as Python's values.
        if not any(kind is None and not _is_gone(part) for kind, part in zip(kinds, parts, strict=True)):
            found = arrow.join(name, parts, kinds)
            if found is None:
                raise _build_mismatch(name, parts)
            return arrow.read_column(found)
    values = [value for part in parts for value in to_values(part)]
    if any(isinstance(part, np.ndarray) and part.dtype.kind == "O" for part in parts):
        return build_from_values(values)
    raise _build_mismatch(name, parts)


def find_kind(column: Column) -> Type:
    """Return Arrow's type of a column; None if Arrow has no type for it."""
    return arrow.find_type(column.dtype, column.shape[1:]) if isinstance(column, np.ndarray) else column.type


def _is_gone(column: Column) -> bool:
    """Return whether all values of a column are missing."""
    return isinstance(column, np.ndarray) and column.dtype.kind == "O" and all(value is None for value in column)


def _join_arrays(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any] | None:
    """Return a single array of several, one after the other; None if Arrow has to find the common type."""
    same = len({part.shape[1:] for part in parts}) == 1 and len({part.dtype.kind for part in parts}) == 1
    # numpy would take the finer unit of several, and wrap around where a time does not fit.
    is_plain = same and (parts[0].dtype.kind not in "mM" or len({part.dtype for part in parts}) == 1)
    return np.concatenate(parts) if is_plain else None


def _build_mismatch(name: str, parts: Sequence[Column]) -> TypeError:
    found = list(dict.fromkeys(describe(part) for part in parts if not _is_gone(part)))
    return TypeError(
        f"Column {name!r} is {' in some blocks and '.join(found)} in others, so one batch cannot hold it. Convert it "
        "to one type with map_batches(), or set its type where the files are read."
    )


def copy(column: Column) -> Column:
    """Return a copy of a column that shares no memory with others."""
    return column.copy() if isinstance(column, np.ndarray) else arrow.compact(column)


def protect(column: Column) -> Column:
    """Return a read-only view of a column, to guard against accidental writes."""
    if not isinstance(column, np.ndarray) or not column.flags.writeable:
        return column
    view = column.view()
    view.flags.writeable = False
    return view


def own(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a writable array: the same array, or a copy of a read-only one."""
    return array if array.flags.writeable else array.copy()


def to_numpy(column: Column) -> npt.NDArray[Any]:
    """Return a column as a numpy array, without a copy where possible."""
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
    """Return lists of equal length as one array with one more axis; other values unchanged."""
    arrays = (
        [np.asarray(value) for value in column]
        if len({len(value) if np.ndim(value) else -1 for value in column}) == 1
        else []
    )
    # Numbers alone: of a mixture numpy would make texts.
    if arrays and len({array.shape for array in arrays}) == 1 and all(array.dtype.kind in "biuf" for array in arrays):
        return np.stack(arrays)
    return column


def to_values(column: Column) -> list[object]:
    """Return one Python value for each row: a Python number, or an array of its own for a row with axes."""
    if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "mM":
        held: Any = arrow.get_optional_array(arrow.convert_times(column))
        if held is None:
            return [None if np.isnat(value) else value for value in column]
        column = held
    if not isinstance(column, np.ndarray):
        try:
            values: list[Any] = arrow.list_tensors(column) if arrow.is_tensor(column) else column.to_pylist()
        except OverflowError:  # a time whose year Python's types cannot hold
            values = [None if np.isnat(value) else value for value in arrow.to_numpy(column)]
        return values
    return column.tolist() if column.ndim == 1 else [row.copy() for row in column]


def restore(found: Column, original: Column, view: Callable[[Column], object], *, keeps_zones: bool) -> Column:
    """Return the original column if a function has returned it unchanged; else the returned one, in the original's type
    where possible.

    A batch format cannot hold all that a column does: numpy has no whole numbers beside missing ones, no time zones, no
    decimals of a width. If the returned values equal the original as seen through the format, the original is returned.
    Other values, such as a part of the rows, get the original's type if each of them fits. This is done only for texts,
    bytes, decimals, dates, times of day, categories and the zones of times, whose values do not show how they are kept.

    Args:
        found: The column, built from the returned values.
        original: The column that the function received under this name, or in this memory.
        view: Returns a column as the batch format shows it.
        keeps_zones: Whether times have their zones in the format. If not, they are in UTC.
    """
    if arrow.get_optional() is None or find_type(found) == find_type(original):
        return found
    if len(found) == len(original) and is_same(found, build(view(original))):
        return original
    return found if isinstance(original, np.ndarray) else arrow.recast(found, original, keeps_zones=keeps_zones)


def is_same(one: Any, other: Any) -> bool:
    """Return whether two columns or values have the same type and equal bits. A NaN equals a NaN."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        if one.dtype.hasobject:
            return all(map(is_same, one.flat, other.flat))
        # By bits: 0.0 is not -0.0, and a NaN is itself.
        return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(is_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if hasattr(one, "null_count"):
        if one.type != other.type:
            return False
        # For Arrow, a NaN differs from itself.
        return bool(one.equals(other)) or is_same(to_values(one), to_values(other))
    return one is other or bool(one == other) or bool(one != one and other != other)  # noqa: PLR0124 (NaN)


def is_mutable(column: Column) -> bool:
    """Return whether the values of a row are lists, dicts or arrays, which a user may change."""
    if isinstance(column, np.ndarray):
        return column.ndim > 1 or column.dtype.hasobject
    return arrow.is_tensor(column) or arrow.load("A column").types.is_nested(column.type)


def check_numbers(name: str, array: npt.NDArray[Any], aim: str, remedy: str) -> None:
    """Raise if a column does not hold numbers."""
    if array.dtype.kind in "biufc":
        return
    shapes = {np.shape(value) for value in array} if array.dtype.kind == "O" else set()
    if len(shapes) > 1 and () not in shapes:
        raise ValueError(
            f"Column {name!r} has rows of different shapes, {sorted(shapes)[:4]}, so they cannot form one array. Give "
            f"them one shape with map_batches(), or {remedy}."
        )
    example = f", such as {array[0]!r:.40}" if len(array) else ""
    raise TypeError(
        f"Column {name!r} holds values of type {array.dtype}{example}, which cannot be {aim}. Leave it out with "
        f"drop_columns([{name!r}]), convert it to numbers with map_batches(), or {remedy}."
    )


def find_type(column: Column) -> Type:
    """Return the type of a column."""
    return (column.dtype, column.shape[1:]) if isinstance(column, np.ndarray) else column.type


@final
@dataclass(frozen=True)
class Unfilled:
    """The type of a column that has only missing values. Such a column joins with a column of any type."""

    kind: Type


def find_filling(column: Column) -> Type | Unfilled:
    """Return the type of a column, as `Unfilled` if the column has no value."""
    kind = find_type(column)
    return Unfilled(kind) if getattr(column, "null_count", 0) == len(column) else kind


def repeat(value: object, count: int) -> Column:
    """Return a column that repeats one value."""
    return build_from_values([value] * count)


def find_changes(column: Column) -> npt.NDArray[np.bool_]:
    """Return, for each row but the first, whether its value differs from the one before. Missing values are equal."""
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
    """Return whether a value is missing: None, or NaN of any type."""
    return value is None or bool(value != value)  # noqa: PLR0124 (NaN alone differs from itself)


def is_number(kind: str) -> bool:
    """Return whether a type's name, as `describe` returns it, is that of a type of numbers."""
    return kind.startswith(("int", "uint", "float", "double", "halffloat", "decimal")) and not kind.endswith("]")


def describe(column: Column) -> str:
    """Return the name of a column's type, such as ``float32[28, 28]`` or ``string``."""
    if not isinstance(column, np.ndarray):
        return str(column.type)
    inner = ", ".join(map(str, column.shape[1:]))
    return f"{column.dtype}[{inner}]" if inner else str(column.dtype)
