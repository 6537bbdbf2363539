"""Arrow, which enters here: columns that are no plain numbers, tables, and the files that Arrow reads.

A column of strings, lists, times or missing values is an Arrow array, because numpy could hold it as Python objects
only: these are pickled one by one, where an Arrow array travels as a few buffers and is read in place. Where Arrow is
not installed such columns are numpy arrays of objects, and do the same more slowly; only what is asked of Arrow itself
(files, tables) needs it.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hocket import extras

Array: TypeAlias = npt.NDArray[Any]

_ARRAYS: Final = "datasets.features.features.Array"
"""What the names of Hugging Face's types of arrays begin with."""


def load(caller: str, module: str = "pyarrow") -> Any:
    """Return pyarrow, or one of its modules.

    Raises:
        MissingExtraError: It is not installed.
    """
    remedy = "Run pip install 'hocket[data]'; from_items(), from_numpy() and range() do without it."
    return extras.load(module, caller, "pyarrow", remedy)


def get_optional() -> Any:
    """Return pyarrow, or None if it is not installed."""
    try:
        return importlib.import_module("pyarrow")
    except ImportError:
        return None


def get_optional_array(values: Sequence[object] | Array) -> object:
    """Return Python objects as an Arrow array; None without Arrow, or if they are of no type that Arrow has."""
    pa = get_optional()
    if pa is None:
        return None
    try:
        found = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return None
    return None if pa.types.is_null(found.type) else found


def build_missing(count: int, kind: object) -> object:
    """Return an Arrow array without values, of a type."""
    return load("A column").nulls(count, kind)


def spread(column: object, places: npt.NDArray[np.int64]) -> object:
    """Return the values at some places of a column as an Arrow array; missing ones where the place is below 0."""
    pa = load("A column")
    return build_array("", column).take(pa.array(places, mask=places < 0))


def compact(column: object) -> object:
    """Return an Arrow array that holds its own values only: a part of a larger one would travel with all of it."""
    return load("A column").concat_arrays([column])


def decode_dictionary(column: Any) -> Any:
    """Return the values of an Arrow array that has each different one once; others as they are."""
    return column.dictionary_decode() if load("A column").types.is_dictionary(column.type) else column


def join(columns: Sequence[Any]) -> Any:
    """Return Arrow arrays one behind the other; None if they are of different types."""
    same = all(column.type == columns[0].type for column in columns)
    return load("A column").concat_arrays(columns) if same else None


def flatten(chunked: Any) -> Any:
    """Return a column of a table, or of a batch of one, as one array."""
    pa = load("A column")
    if isinstance(chunked, pa.Array):
        return chunked
    if chunked.num_chunks == 1:
        return chunked.chunk(0)
    return pa.concat_arrays(chunked.chunks) if chunked.num_chunks else pa.array([], chunked.type)


def to_numpy(column: Any) -> Array:
    """Return an Arrow array as numpy has it: missing numbers are NaN, strings are objects, lists of one length are
    an array with an axis more."""
    pa = load("A column")
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        if is_tensor(column) and column.null_count:
            rows = np.empty(len(column), object)
            rows[:] = list_tensors(column)
            return rows
        if is_tensor(column):
            tensor: Array = column.to_numpy_ndarray()
            return tensor
        column, kind = column.storage, column.storage.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists_to_numpy(column)
    array: Array = column.to_numpy(zero_copy_only=False)
    return array


def is_tensor(column: object) -> bool:
    """Return whether each value of an Arrow array is itself an array, all of one shape."""
    return hasattr(column, "to_numpy_ndarray")


def list_tensors(column: Any) -> list[Array | None]:
    """Return the arrays of an Arrow array whose values are arrays, and None where one is missing."""
    there = column.is_valid().to_pylist()
    arrays = iter(column.drop_null().to_numpy_ndarray()) if any(there) else iter(())
    return [next(arrays).copy() if is_there else None for is_there in there]


def _lists_to_numpy(column: Any) -> Array:
    pa = load("A column")
    count = len(column)
    inner = column.flatten()
    primitive = pa.types.is_integer(inner.type) or pa.types.is_floating(inner.type) or pa.types.is_boolean(inner.type)
    if count and primitive and not column.null_count and not inner.null_count:
        lengths = column.value_lengths().to_numpy() if not pa.types.is_fixed_size_list(column.type) else None
        if lengths is None or (lengths == lengths[0]).all():
            rows: Array = inner.to_numpy(zero_copy_only=False).reshape(count, -1)
            return rows
    found = np.empty(count, object)
    for at, value in enumerate(column):
        found[at] = None if not value.is_valid else (to_numpy(value.values) if primitive else value.as_py())
    return found


def find_changes(column: Any) -> npt.NDArray[np.bool_]:
    """Return of each row but the first whether it has another value than the one before. Missing values are equal."""
    pa, compute = load("A column"), load("A column", "pyarrow.compute")
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    last, this = column.slice(0, len(column) - 1), column.slice(1)
    gone: Array = np.asarray(column.is_null(nan_is_null=pa.types.is_floating(column.type)))
    try:
        changed: Array = compute.fill_null(compute.not_equal(last, this), False).to_numpy(zero_copy_only=False)
    except pa.ArrowNotImplementedError:  # nested values
        values = column.to_pylist()
        changed = np.array([one != other for one, other in itertools.pairwise(values)], bool)
    return np.where(gone[1:] & gone[:-1], False, changed | (gone[1:] != gone[:-1]))


def read_column(column: Any) -> object:
    """Return an Arrow array as the kind of column that it becomes: numpy's where numpy can hold it as it is, without
    a copy."""
    pa = load("A column")
    kind = column.type
    if not column.null_count:
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            return column.to_numpy(zero_copy_only=False)
        if is_tensor(column):
            return column.to_numpy_ndarray()
        if pa.types.is_fixed_size_list(kind) and pa.types.is_primitive(kind.value_type):
            return _lists_to_numpy(column)
    if pa.types.is_null(kind):  # nothing is known of it: it joins with every other
        return np.full(len(column), None, object)
    return column


def read_table(table: Any) -> dict[str, object]:
    """Return the columns of a table."""
    names = table.column_names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"A table's columns must have different names, but {twice} come twice. Rename them.")
    columns = {name: read_column(flatten(table.column(at))) for at, name in enumerate(names)}
    return {**columns, **{name: _stack(columns[name], shape) for name, shape in _list_shapes(table.schema)}}


def _list_shapes(schema: Any) -> Iterator[tuple[str, Sequence[int | None]]]:
    """Give the columns that Hugging Face's datasets have as arrays, also in files, and the shape of a row."""
    for field in schema:
        known = field.metadata or {}
        if getattr(field.type, "extension_name", "").startswith(_ARRAYS):
            yield field.name, field.type.shape
        elif known.get(b"ARROW:extension:name", b"").startswith(_ARRAYS.encode()):
            with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):  # then they stay lists
                shape = json.loads(known[b"ARROW:extension:metadata"])[0]
                if all(length is None or type(length) is int for length in shape):
                    yield field.name, shape


def _stack(column: Any, shape: Sequence[int | None]) -> object:
    """Return lists of lists as an array, if none is missing and all have the shape; else as they are."""
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
    """Raise if a text of a table is none, as in a damaged file: nobody could read it."""
    types = load("A table").types
    for column in table.columns:
        if types.is_string(column.type) or types.is_large_string(column.type):
            column.validate(full=True)


def build_table(columns: Mapping[str, object]) -> object:
    """Return columns as an Arrow table."""
    pa = load("An Arrow table")
    return pa.table({name: build_array(name, column) for name, column in columns.items()})


def build_array(name: str, column: object) -> Any:
    """Return a column as an Arrow array."""
    pa = load("An Arrow column")
    if not isinstance(column, np.ndarray):
        return column
    if column.ndim > 1:
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(column))
    try:
        return pa.array(column)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise ValueError(
            f"Column {name!r} cannot be an Arrow column: {error}. Use batch_format='numpy', or make its values of one "
            "type with map_batches()."
        ) from error
