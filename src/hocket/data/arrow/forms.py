"""Arrow arrays as numpy arrays, pandas Series and tables, and back."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hocket.data.arrow import building, kinds, tensors

_ARRAYS: Final = "datasets.features.features.Array"
"""Common start of the names of Hugging Face's array types."""


def build_missing(count: int, kind: object) -> object:
    """Return an Arrow array of a type that has only missing values."""
    return kinds.load("A column").nulls(count, kind)


def compact(column: object) -> object:
    """Return an Arrow array that holds only its own values. A part of a larger array would be sent with all of it."""
    return kinds.load("A column").concat_arrays([column])


def to_numpy(column: Any) -> kinds.Array:
    """Return an Arrow array as a numpy array. Missing numbers are NaN, times are in UTC, and lists of one length are an
    array with one more axis. Values that numpy has no type for, such as texts and dicts, are objects."""
    pa = kinds.load("A column")
    kind = column.type
    types = pa.types
    if kinds.is_tensor_type(kind):
        stacked = tensors.stack_tensors(column)
        return hold(tensors.list_tensors(column)) if stacked is None else stacked
    if kinds.is_list(kind):
        return _lists_to_numpy(column)
    if types.is_time64(kind) and kind.unit == "ns":  # Python's times of day have only microseconds
        column = column.cast(pa.time64("us"), safe=False)
    is_odd = types.is_dictionary(kind) and not building.is_categorical(kind)
    if is_odd or types.is_nested(kind) or types.is_interval(kind) or isinstance(kind, pa.BaseExtensionType):
        return hold(column.to_pylist())
    array: kinds.Array = column.to_numpy(zero_copy_only=False)
    return array


def to_series(column: Any) -> Any:
    """Return an Arrow array as pandas holds it, like Arrow's own `to_pandas`. But lists become arrays, and dicts keep
    the types of their values."""
    pa = kinds.load("A column")
    types = pa.types
    kind = column.type
    is_odd = types.is_dictionary(kind) and not building.is_categorical(kind)  # pandas cannot hash its categories
    is_plain = not (
        is_odd or types.is_nested(kind) or types.is_interval(kind) or types.is_time(kind) or kinds.is_tensor_type(kind)
    )
    if is_plain and not isinstance(kind, pa.BaseExtensionType):
        found = column.to_pandas()
        if types.is_dictionary(kind) and getattr(kind.value_type, "tz", None):  # Arrow drops the zone
            return found.cat.rename_categories(column.dictionary.to_pandas().array)
        return found
    array = to_numpy(column)
    return list(array) if kinds.is_list(kind) or kinds.is_tensor_type(kind) else array


def hold(values: Sequence[object]) -> kinds.Array:
    """Return any values as an array of objects. Numpy alone would turn lists into axes."""
    found = np.empty(len(values), object)
    for at, value in enumerate(values):
        found[at] = value
    return found


def _lists_to_numpy(column: Any) -> kinds.Array:
    pa = kinds.load("A column")
    count = len(column)
    inner = column.flatten()
    primitive = pa.types.is_integer(inner.type) or pa.types.is_floating(inner.type) or pa.types.is_boolean(inner.type)
    if count and primitive and not column.null_count and not inner.null_count:
        lengths = column.value_lengths().to_numpy() if not pa.types.is_fixed_size_list(column.type) else None
        if lengths is None or (lengths == lengths[0]).all():
            rows: kinds.Array = inner.to_numpy(zero_copy_only=False).reshape(count, -1)
            return rows
    return hold([None if not one.is_valid else to_numpy(one.values) if primitive else one.as_py() for one in column])


def find_changes(column: Any) -> npt.NDArray[np.bool_]:
    """Return, for each row but the first, whether its value differs from the one before. Missing values are equal."""
    pa, compute = kinds.load("A column"), kinds.load("A column", "pyarrow.compute")
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    last, this = column.slice(0, len(column) - 1), column.slice(1)
    gone: kinds.Array = np.asarray(column.is_null(nan_is_null=pa.types.is_floating(column.type)))
    try:
        changed: kinds.Array = compute.fill_null(compute.not_equal(last, this), False).to_numpy(zero_copy_only=False)
    except pa.ArrowNotImplementedError:  # nested values
        values = column.to_pylist()
        changed = np.array([one != other for one, other in itertools.pairwise(values)], bool)
    return np.where(gone[1:] & gone[:-1], False, changed | (gone[1:] != gone[:-1]))


def read_column(column: Any) -> object:
    """Return an Arrow array as a column: a numpy array, without a copy, if numpy can hold it unchanged."""
    pa = kinds.load("A column")
    kind = column.type
    if not column.null_count:
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            return column.to_numpy(zero_copy_only=False)
        if kinds.is_tensor_type(kind) and (stacked := tensors.stack_tensors(column)) is not None:
            return stacked
    plain = _decode(column) if _is_encoded(kind) or _holds_views(kind) else column
    if plain is not column:
        return read_column(plain)
    if pa.types.is_null(kind):  # its type is unknown, so it joins with any other column
        return np.full(len(column), None, object)
    return building.tidy_categories(column) if building.is_categorical(kind) else column


_LAST_32: Final = (1 << 31) - 1
"""The greatest offset of a list of Arrow's. A large list has 64-bit offsets."""


def _is_encoded(kind: Any) -> bool:
    """Return whether Arrow itself has few operations for a type. It cannot pick rows of it, for example."""
    types = kinds.load("A column").types
    return bool(types.is_run_end_encoded(kind) or types.is_string_view(kind) or types.is_binary_view(kind))


def _is_view(kind: Any) -> bool:
    """Return whether a type is a list view. Each of its lists says where its values are, so rows may share values."""
    types = kinds.load("A column").types
    return bool(types.is_list_view(kind) or types.is_large_list_view(kind))


def _holds_views(kind: Any) -> bool:
    """Return whether a type is, or contains, a list view. Arrow's casts of list views give wrong values."""
    return _is_view(kind) or any(_holds_views(kind.field(at).type) for at in range(kind.num_fields))


def _decode(column: Any) -> Any:
    """Return an Arrow array of the same values, in types with all of Arrow's operations, also within the values."""
    pa = kinds.load("A column")
    kind, types = column.type, pa.types
    if types.is_run_end_encoded(kind):
        return _decode(kinds.load("A column", "pyarrow.compute").run_end_decode(column))
    if _is_encoded(kind):
        return column.cast(pa.string() if types.is_string_view(kind) else pa.binary())
    if types.is_struct(kind):
        parts = list(map(_decode, column.flatten()))
        fields = [field.with_type(part.type) for field, part in zip(kind, parts, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=column.is_null())
    if types.is_map(kind):
        pairs = pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])
        lists = _decode_lists(pa, column.cast(pa.list_(pairs)))
        ends = pa.array(np.asarray(lists.offsets), mask=np.append(np.asarray(lists.is_null()), False))
        return pa.MapArray.from_arrays(ends, *lists.values.flatten())
    return _decode_lists(pa, column) if kinds.is_list(kind) or _is_view(kind) else column


def _decode_lists(pa: Any, column: Any) -> Any:
    kind, gone = column.type, np.asarray(column.is_null())
    if pa.types.is_fixed_size_list(kind):  # `flatten` leaves out the values of missing rows
        size = kind.list_size
        places = np.arange(len(column) * size) - np.repeat(np.cumsum(gone) * size, size)
        values = _decode(column.flatten()).take(pa.array(places, mask=np.repeat(gone, size)))
        built = pa.list_(kind.value_field.with_type(values.type), size)
        return pa.FixedSizeListArray.from_arrays(values, type=built, mask=pa.array(gone))
    lengths = np.asarray(column.value_lengths().fill_null(0)).astype(np.int64)
    ends = np.cumsum(lengths)
    if _is_view(kind):
        starts = np.repeat(np.asarray(column.offsets) - (ends - lengths), lengths)
        values = _decode(column.values).take(pa.array(starts + np.arange(len(starts))))
    else:
        values = _decode(column.flatten())
    is_large = pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind) or len(values) > _LAST_32
    make, lists, width = (
        (pa.large_list, pa.LargeListArray, np.int64) if is_large else (pa.list_, pa.ListArray, np.int32)
    )
    built = make(kind.value_field.with_type(values.type))
    offsets = np.concatenate([[0], ends]).astype(width)
    return lists.from_arrays(pa.array(offsets), values, type=built, mask=pa.array(gone))


def read_table(table: Any) -> dict[str, object]:
    """Return the columns of a table, by name."""
    names = table.column_names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"A table's columns must have different names, but these names occur more than once: {twice}. Rename the "
            "columns."
        )
    columns = {name: read_column(building.flatten(table.column(at), name)) for at, name in enumerate(names)}
    return {**columns, **{name: _stack(columns[name], shape) for name, shape in _list_shapes(table.schema)}}


def _list_shapes(schema: Any) -> Iterator[tuple[str, Sequence[int | None]]]:
    """Yield the columns that Hugging Face's datasets hold as arrays, also in files, with the shape of a row."""
    for field in schema:
        known = field.metadata or {}
        if getattr(field.type, "extension_name", "").startswith(_ARRAYS):
            yield field.name, field.type.shape
        elif known.get(b"ARROW:extension:name", b"").startswith(_ARRAYS.encode()):
            with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):  # they stay lists then
                shape = json.loads(known[b"ARROW:extension:metadata"])[0]
                if all(length is None or type(length) is int for length in shape):
                    yield field.name, shape


def _stack(column: Any, shape: Sequence[int | None]) -> object:
    """Return lists of lists as an array if no value is missing and all have the shape; else unchanged."""
    if isinstance(column, np.ndarray):
        return column
    values = column.storage if hasattr(column, "storage") else column
    count = len(values)
    for _ in shape:
        if values.null_count or not hasattr(values, "flatten"):
            return column
        values = values.flatten()
    known = [length for length in shape if length is not None]
    has_shape = len(known) == len(shape) and not values.null_count and len(values) == count * math.prod(known)
    return values.to_numpy(zero_copy_only=False).reshape(count, *shape) if has_shape else column


def check_texts(table: Any) -> None:
    """Raise if a text of a table is not valid UTF-8, as in a damaged file."""
    types = kinds.load("A table").types
    for column in table.columns:
        if types.is_string(column.type) or types.is_large_string(column.type):
            column.validate(full=True)


def build_table(columns: Mapping[str, object]) -> object:
    """Return columns as an Arrow table."""
    pa = kinds.load("An Arrow table")
    return pa.table({name: building.build_array(name, column) for name, column in columns.items()})
