"""Arrow, which enters here: columns that are no plain numbers, their types, tables, and the files that Arrow reads.

A column of strings, lists, times or missing values is an Arrow array, because numpy could hold it as Python objects
only: these are pickled one by one, where an Arrow array travels as a few buffers and is read in place. Where Arrow is
not installed such columns are numpy arrays of objects, and do the same more slowly; only what is asked of Arrow itself
(files, tables) needs it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import importlib
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hocket import extras

Array: TypeAlias = npt.NDArray[Any]

_ARRAYS: Final = "datasets.features.features.Array"
"""What the names of Hugging Face's types of arrays begin with."""


def load(caller: str, module: str = "pyarrow") -> Any:
    """Return pyarrow, or one of its modules. It knows `Arrays` then.

    Raises:
        MissingExtraError: It is not installed.
    """
    remedy = "Run pip install 'hocket[data]'; from_items(), from_numpy() and range() do without it."
    found = extras.load(module, caller, "pyarrow", remedy)
    _teach_arrays()
    return found


def get_optional() -> Any:
    """Return pyarrow, or None if it is not installed."""
    try:
        _teach_arrays()
    except ImportError:
        return None
    return sys.modules["pyarrow"]


# --- arrays of any dtype and shape ------------------------------------------------------------------------------------


@functools.cache
def _teach_arrays() -> Any:
    """Teach Arrow the type of columns whose values are arrays, each of its own shape; return the type's class.

    Arrow's own type of tensors holds numbers alone, of one shape and not empty, and its files of bools cannot be read.
    A reader that does not know this type has a struct: the shape, and the values in rows.
    """
    pa: Any = importlib.import_module("pyarrow")

    class Arrays(pa.ExtensionType):  # type: ignore[misc]  # Arrow has no types to check against
        def __init__(self, kind: object) -> None:
            parts = [("shape", pa.list_(pa.int64())), ("values", pa.large_list(kind))]
            super().__init__(pa.struct(parts), "hocket.array")

        @property
        def kind(self) -> Any:
            return self.storage_type.field("values").type.value_type

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> object:
            return cls(storage_type.field("values").type.value_type)

        def __hash__(self) -> int:
            return hash((self.extension_name, self.kind))

        def __reduce__(self) -> tuple[object, ...]:
            return _build_arrays_type, (self.kind,)

        def __str__(self) -> str:
            return f"arrays<{self.kind}>"

    with contextlib.suppress(pa.ArrowKeyError):  # a module that was imported twice has taught it
        pa.register_extension_type(Arrays(pa.null()))
    return Arrays


def _build_arrays_type(kind: object) -> Any:
    return _teach_arrays()(kind)


def is_tensor(column: object) -> bool:
    """Return whether each value of an Arrow array is itself an array."""
    return is_tensor_type(getattr(column, "type", None))


def is_tensor_type(kind: object) -> bool:
    """Return whether values of a type of Arrow's are arrays, of one shape or of several."""
    return hasattr(kind, "permutation") or getattr(kind, "extension_name", "") == "hocket.array"


def find_type(dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> Any:
    """Return Arrow's type of a numpy column, of which each row has this shape; None if it has none."""
    pa = load("A column")
    if dtype.kind in "mM":
        dtype = fit_times(dtype)
    texts = {"U": pa.string(), "S": pa.binary()}
    try:
        inner = texts.get(dtype.kind) or pa.from_numpy_dtype(dtype.newbyteorder("="))
    except pa.ArrowNotImplementedError:
        return None
    if not shape:
        return inner
    is_plain = dtype.kind in "iuf" and 0 not in shape
    return pa.fixed_shape_tensor(inner, shape) if is_plain else _build_arrays_type(inner)


def fit_times(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return numpy's type of times in a unit that Arrow has."""
    unit, count = np.datetime_data(dtype)
    if unit in ("s", "ms", "us", "ns") and count == 1:
        return dtype
    is_days = dtype.kind == "M" and (unit in "YMW" or (unit == "D" and count >= 1))
    return np.dtype("M8[D]" if is_days else f"{dtype.kind}8[s]")


def pack_arrays(arrays: Sequence[Array | None]) -> object:
    """Return arrays of any shapes, and None where one is missing, as an Arrow array; None without Arrow, or if Arrow
    has no type for what they hold."""
    there = [one for one in arrays if one is not None]
    kinds = {one.dtype.kind if one.dtype.kind in "US" else one.dtype.newbyteorder("=") for one in there}
    if get_optional() is None or len(kinds) != 1 or (kind := find_type(there[0].dtype)) is None:
        return None
    sizes = np.array([0 if one is None else one.size for one in arrays])
    shapes = [() if one is None else one.shape for one in arrays]
    mask = np.array([one is None for one in arrays])
    return _assemble(np.concatenate([one.ravel() for one in there]), kind, sizes, shapes, mask)


def _assemble(flat: Array, kind: object, sizes: Array, shapes: Sequence[tuple[int, ...]], mask: Array | None) -> object:
    """Return a column of `Arrays`, of all their values and of how many each has, in which shape."""
    pa = load("A column")
    try:
        values = pa.array(flat.tolist() if flat.dtype.kind in "US" else flat.astype(_to_dtype(kind)), kind)
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
    return pa.ExtensionArray.from_storage(_build_arrays_type(kind), found)


def list_tensors(column: Any) -> list[Array | None]:
    """Return the arrays of an Arrow array whose values are arrays, and None where one is missing."""
    there = column.is_valid().to_pylist()
    known = column.drop_null()
    arrays: Iterator[Array]
    if hasattr(column.type, "permutation"):
        arrays = iter(_read_tensor(known)) if len(known) else iter(())
    else:
        flat, shapes = _take_apart(known)
        ends = np.cumsum([math.prod(shape) for shape in shapes], dtype=np.int64)
        arrays = (flat[end - math.prod(shape) : end].reshape(shape) for shape, end in zip(shapes, ends, strict=True))
    return [next(arrays).copy() if is_there else None for is_there in there]


def _take_apart(column: Any) -> tuple[Array, list[list[int]]]:
    """Return all values of a column of `Arrays` of which none is missing, and their shapes."""
    shapes, values = column.storage.flatten()
    inner = values.flatten()
    dtype = _to_dtype(inner.type)
    flat = np.array(inner.to_pylist(), dtype) if dtype.kind in "US" else inner.to_numpy(zero_copy_only=False)
    return flat, shapes.to_pylist()


def _to_dtype(kind: Any) -> np.dtype[Any]:
    types = load("A column").types
    named = "U" if types.is_string(kind) else "S" if types.is_binary(kind) else kind.to_pandas_dtype()
    return np.dtype("M8[D]" if types.is_date32(kind) else named)


def _read_tensor(column: Any) -> Array:
    """Return arrays of one shape as one, without a copy."""
    shape = column.type.shape
    if len(column):
        found: Array = column.to_numpy_ndarray()
        return found
    return np.empty((0, *shape), column.type.value_type.to_pandas_dtype())


def _stack_tensors(column: Any) -> Array | None:
    """Return a column of arrays of which none is missing as one array; None if they are of several shapes."""
    if column.null_count:
        return None
    if hasattr(column.type, "permutation"):
        return _read_tensor(column)
    flat, shapes = _take_apart(column)
    same = bool(shapes) and all(shape == shapes[0] for shape in shapes)
    return flat.reshape(len(column), *shapes[0]) if same else None


# --- Python objects ---------------------------------------------------------------------------------------------------


def get_optional_array(values: Sequence[object] | Array, kind: object = None) -> object:
    """Return Python objects as an Arrow array, of a type or of the one that Arrow finds for them. None without Arrow,
    or where Arrow has no type that keeps each as it is."""
    pa = get_optional()
    if pa is None:
        return None
    try:
        try:
            found = pa.array(values, kind)
        except OverflowError:
            found = pa.array(values, pa.uint64())
        if kind is None and _holds_times(found.type) and "pandas" in sys.modules:
            finer = {unit for value in values for unit in _list_units(value)}
            found = pa.array(values, _refine(found.type)) if "ns" in finer else found
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, UnicodeEncodeError):
        return None
    is_other = kind is None and not isinstance(values, np.ndarray) and _is_changed(found, values)
    return None if is_other or pa.types.is_null(found.type) else found


def _is_changed(found: Any, values: Sequence[object]) -> bool:
    """Return whether Arrow has made values of one kind of those of another: dates of times, bytes of texts."""
    types = load("A column").types
    if types.is_timestamp(found.type):
        zones = {getattr(value, "tzinfo", None) is None for value in values if value is not None}
        return len(zones) > 1
    if types.is_date(found.type):
        return any(isinstance(value, dt.datetime) for value in values)
    return types.is_binary(found.type) and any(isinstance(value, str) for value in values)


def _holds_times(kind: Any) -> bool:
    types = load("A column").types
    is_time = types.is_timestamp(kind) or types.is_duration(kind)
    return is_time or any(_holds_times(kind.field(at).type) for at in range(kind.num_fields))


def _list_units(value: object) -> Iterator[str]:
    """Give the units of pandas' times in a value."""
    if isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _list_units(inner)
    elif isinstance(value, dt.datetime | dt.timedelta):
        yield getattr(value, "unit", "us")


def _refine(kind: Any) -> Any:
    """Return a type with nanoseconds in the place of microseconds."""
    pa = load("A column")
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ns", kind.tz)
    return pa.duration("ns") if pa.types.is_duration(kind) else rebuild_type(kind, _refine)


def rebuild_type(kind: Any, change: Callable[[Any], Any]) -> Any:
    """Return a type of Arrow's with other types inside of it; one that has none inside as it is."""
    pa = load("A column")
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([field.with_type(change(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(change(kind.key_type), change(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(change(kind.value_type)), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(change(kind.value_type)))
    return pa.list_(kind.value_field.with_type(change(kind.value_type))) if types.is_list(kind) else kind


# --- types that hold the values of two --------------------------------------------------------------------------------


def unify(kinds: Sequence[Any]) -> Any:
    """Return the type that holds each value of columns of some types as it is; None if there is none. Whole numbers
    beside fractions become fractions: `convert` refuses those that would change."""
    found = kinds[0]
    for kind in kinds[1:]:
        found = None if found is None else _unify(load("A column"), found, kind)
    return found


_UNITS: Final = ("s", "ms", "us", "ns")


def _is_text(kind: Any) -> bool:
    types = load("A column").types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: Any) -> bool:
    types = load("A column").types
    is_any = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return bool(is_any or types.is_fixed_size_binary(kind))


def _is_list(kind: Any) -> bool:
    types = load("A column").types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _unify(pa: Any, one: Any, other: Any) -> Any:
    types = pa.types
    pair = (one, other)
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if any(map(types.is_dictionary, pair)):
        return _unify(pa, *(kind.value_type if types.is_dictionary(kind) else kind for kind in pair))
    if any(map(is_tensor_type, pair)):
        return _unify_tensors(pa, one, other) if all(map(is_tensor_type, pair)) else None
    for is_kind, plain, large in (
        (_is_text, pa.string(), pa.large_string()),
        (_is_bytes, pa.binary(), pa.large_binary()),
    ):
        if all(map(is_kind, pair)):
            return large if large in pair else plain
    for is_time, build in (
        (types.is_timestamp, lambda unit: pa.timestamp(unit, one.tz)),
        (types.is_duration, pa.duration),
        (types.is_time, lambda unit: pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)),
    ):
        if all(map(is_time, pair)):
            has_zone = getattr(one, "tz", None) == getattr(other, "tz", None)
            return build(max(one.unit, other.unit, key=_UNITS.index)) if has_zone else None
    if all(map(types.is_date, pair)):
        return pa.date64()
    if any(map(types.is_nested, pair)):
        return _unify_nested(pa, one, other)
    return _unify_numbers(pa, one, other)


def _unify_numbers(pa: Any, one: Any, other: Any) -> Any:
    types = pa.types
    pair = (one, other)
    if any(map(types.is_boolean, pair)):
        rest = other if types.is_boolean(one) else one
        return rest if types.is_integer(rest) or types.is_floating(rest) else None
    if any(map(types.is_decimal, pair)):
        if not all(types.is_decimal(kind) or types.is_integer(kind) for kind in pair):
            return None
        scale = max(getattr(kind, "scale", 0) for kind in pair)
        digits = [
            kind.precision - kind.scale if types.is_decimal(kind) else len(str(1 << kind.bit_width)) for kind in pair
        ]
        width = max(digits) + scale
        return pa.decimal128(width, scale) if width <= 38 else pa.decimal256(width, scale) if width <= 76 else None
    if not all(types.is_integer(kind) or types.is_floating(kind) for kind in pair):
        return None
    if all(map(types.is_floating, pair)):
        return max(pair, key=lambda kind: kind.bit_width)
    if any(map(types.is_floating, pair)):
        return pa.float64()
    wide = max(pair, key=lambda kind: kind.bit_width)
    if types.is_signed_integer(one) == types.is_signed_integer(other):
        return wide
    (unsigned,) = filter(types.is_unsigned_integer, pair)
    bits = max(wide.bit_width, 2 * unsigned.bit_width)
    return pa.decimal128(20, 0) if bits > 64 else getattr(pa, f"int{bits}")()


def _unify_tensors(pa: Any, one: Any, other: Any) -> Any:
    inner = _unify(pa, *(getattr(kind, "kind", None) or kind.value_type for kind in (one, other)))
    if inner is None or pa.types.is_decimal(inner):
        return None
    shapes = [tuple(getattr(kind, "shape", ())) for kind in (one, other)]
    return (
        pa.fixed_shape_tensor(inner, shapes[0]) if shapes[0] and shapes[0] == shapes[1] else _build_arrays_type(inner)
    )


def _unify_nested(pa: Any, one: Any, other: Any) -> Any:
    types = pa.types
    pair = (one, other)
    if all(map(types.is_struct, pair)):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = _unify(pa, fields.get(field.name, field.type), field.type)
        return None if None in fields.values() else pa.struct(list(fields.items()))
    if all(map(types.is_map, pair)):
        inner = [_unify(pa, one.key_type, other.key_type), _unify(pa, one.item_type, other.item_type)]
        return None if None in inner else pa.map_(*inner)
    if not all(map(_is_list, pair)):
        return None
    inner = _unify(pa, one.value_type, other.value_type)
    if inner is None:
        return None
    sizes = {getattr(kind, "list_size", None) for kind in pair}
    if len(sizes) == 1 and None not in sizes:
        return pa.list_(inner, *sizes)
    return pa.large_list(inner) if any(map(types.is_large_list, pair)) else pa.list_(inner)


def convert(name: str, column: Any, kind: Any) -> Any:
    """Return a column as an Arrow array of a type that `unify` has found for it.

    Raises:
        TypeError: A value would change, such as a whole number that no float is equal to.
    """
    pa = load("A column")
    found = build_array(name, column)
    if found.type == kind:
        return found
    if found.null_count == len(found):
        return pa.nulls(len(found), kind)
    try:
        if is_tensor_type(kind):
            return _convert_tensors(pa, list_tensors(found), kind)
        return decode_dictionary(found).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise TypeError(
            f"Column {name!r} is {found.type} in some blocks and has to be {kind} beside others, which changes a "
            f"value: {error}. Make it one type with map_batches()."
        ) from error


def refine_arrays(table: Any) -> Any:
    """Return a table whose arrays have no times in seconds, which Parquet has not."""
    pa = load("A table")
    for at, field in enumerate(table.schema):
        if getattr(field.type, "kind", None) == pa.timestamp("s"):
            finer = convert(field.name, flatten(table.column(at)), _build_arrays_type(pa.timestamp("ms")))
            table = table.set_column(at, field.name, finer)
    return table


def nest(column: Any) -> Any:
    """Return a column of arrays as lists of lists; None if they have not all as many axes."""
    pa = load("A column")
    arrays = list_tensors(column)
    axes = {one.ndim for one in arrays if one is not None}
    if len(axes) > 1:
        return None
    kind = functools.reduce(lambda inner, _: pa.list_(inner), range(max(axes, default=1)), column.type.kind)
    return pa.array([None if one is None else one.tolist() for one in arrays], kind)


def _convert_tensors(pa: Any, arrays: Sequence[Array | None], kind: Any) -> Any:
    inner = _to_dtype(getattr(kind, "kind", None) or kind.value_type)
    arrays = [None if one is None or inner.kind in "US" else one.astype(inner) for one in arrays]
    packed = pack_arrays(arrays)
    if not hasattr(kind, "permutation"):
        return packed
    values = [None if one is None else one.ravel() for one in arrays]
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


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


def join(name: str, columns: Sequence[Any], kinds: Sequence[Any]) -> Any:
    """Return columns one behind the other as an Arrow array of a type that holds each value as it is; None if there is
    no such type.

    Args:
        name: Their name, for the error.
        columns: Numpy columns, or Arrow arrays.
        kinds: Their types; None where nothing is known of one but that its values are missing.
    """
    pa = load("A column")
    known = [kind for kind in kinds if kind is not None]
    if not known:
        return None
    found = unify(known)
    if found is None:  # a column without values fits to each type
        held = [kind for kind, column in zip(kinds, columns, strict=True) if kind is not None and not _is_empty(column)]
        found = unify(held) if held else None
    if found is None:
        return None

    def build(kind: object) -> Any:
        return pa.concat_arrays(
            [
                pa.nulls(len(column), kind) if own is None or _is_empty(column) else convert(name, column, kind)
                for column, own in zip(columns, kinds, strict=True)
            ]
        )

    if pa.types.is_decimal(found) and all(map(pa.types.is_integer, known)):
        for kind in (pa.int64(), pa.uint64()):
            with contextlib.suppress(TypeError):
                return build(kind)
    return build(found)


def recast(column: Any, kind: Any, *, keeps_zones: bool) -> Any:
    """Return values as a type that Python's values, or numpy's, do not tell, if they are of its family and each fits;
    else as they are."""
    pa = load("A column")
    types = pa.types
    if isinstance(column, np.ndarray) and column.dtype.kind == "O":
        held = get_optional_array(column.tolist(), kind)
        return column if held is None else held
    own = find_type(column.dtype, column.shape[1:]) if isinstance(column, np.ndarray) else column.type
    if own is None or is_tensor_type(own):
        return column
    if types.is_dictionary(own):
        return recast(column.dictionary_decode(), kind, keeps_zones=keeps_zones) if own != kind else column
    wanted = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_timestamp(own):
        if not types.is_timestamp(wanted) or (keeps_zones and own.tz != wanted.tz):
            return column
        kind = pa.timestamp(max(own.unit, wanted.unit, key=_UNITS.index), wanted.tz)
    elif types.is_struct(own):
        if not types.is_struct(wanted) or {field.name for field in own} != {field.name for field in wanted}:
            return column
    elif not (
        any(
            is_kind(own) and is_kind(wanted)
            for is_kind in (_is_text, _is_bytes, types.is_decimal, types.is_date, types.is_time)
        )
        or (types.is_dictionary(kind) and own == wanted)
    ):
        return column
    try:
        found = build_array("", column)
        return (found.dictionary_encode() if types.is_dictionary(kind) else found).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return column


def _is_empty(column: Any) -> bool:
    """Return whether an Arrow array has only missing values."""
    return bool(getattr(column, "null_count", -1) == len(column))


def flatten(chunked: Any) -> Any:
    """Return a column of a table, or of a batch of one, as one array."""
    pa = load("A column")
    if isinstance(chunked, pa.Array):
        return chunked
    if chunked.num_chunks == 1:
        return chunked.chunk(0)
    return pa.concat_arrays(chunked.chunks) if chunked.num_chunks else pa.array([], chunked.type)


def to_numpy(column: Any) -> Array:
    """Return an Arrow array as numpy has it: missing numbers are NaN, times are in UTC, lists of one length are an
    array with an axis more, and what numpy has no type for, such as texts and dicts, are objects."""
    pa = load("A column")
    kind = column.type
    types = pa.types
    if is_tensor_type(kind):
        stacked = _stack_tensors(column)
        return hold(list_tensors(column)) if stacked is None else stacked
    if _is_list(kind):
        return _lists_to_numpy(column)
    if types.is_time64(kind) and kind.unit == "ns":  # Python's have microseconds
        column = column.cast(pa.time64("us"), safe=False)
    if types.is_nested(kind) or types.is_interval(kind) or isinstance(kind, pa.BaseExtensionType):
        return hold(column.to_pylist())
    array: Array = column.to_numpy(zero_copy_only=False)
    return array


def to_series(column: Any) -> Any:
    """Return an Arrow array as pandas has it, as its own `to_pandas` does; lists are arrays, and dicts keep the types
    of what is in them."""
    pa = load("A column")
    types = pa.types
    kind = column.type
    is_plain = not (types.is_nested(kind) or types.is_interval(kind) or types.is_time(kind) or is_tensor_type(kind))
    if is_plain and not isinstance(kind, pa.BaseExtensionType):
        return column.to_pandas()
    array = to_numpy(column)
    return list(array) if _is_list(kind) or is_tensor_type(kind) else array


def hold(values: Sequence[object]) -> Array:
    """Return values as an array of objects, whatever they are: numpy alone would look into lists."""
    found = np.empty(len(values), object)
    for at, value in enumerate(values):
        found[at] = value
    return found


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
    return hold([None if not one.is_valid else to_numpy(one.values) if primitive else one.as_py() for one in column])


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
        if is_tensor_type(kind) and (stacked := _stack_tensors(column)) is not None:
            return stacked
    plain = _decode_type(kind)
    if plain is not None:
        is_run = pa.types.is_run_end_encoded(kind)
        return read_column(load("A column", "pyarrow.compute").run_end_decode(column) if is_run else column.cast(plain))
    if pa.types.is_null(kind):  # nothing is known of it: it joins with every other
        return np.full(len(column), None, object)
    return column


def _decode_type(kind: Any) -> Any:
    """Return the type of the same values as one by which Arrow itself can do little: nothing can be picked of it. None
    for all others."""
    pa = load("A column")
    types = pa.types
    if types.is_run_end_encoded(kind):
        return kind.value_type
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return pa.string() if types.is_string_view(kind) else pa.binary()
    return pa.list_(kind.value_type) if types.is_list_view(kind) or types.is_large_list_view(kind) else None


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
        return _build_tensors(pa, name, column)
    try:
        if column.dtype.kind in "mM":
            column = column.astype(fit_times(column.dtype))
        packed = pack_arrays(column.tolist()) if column.dtype.kind == "O" and _has_arrays(column) else None
        return pa.array(column) if packed is None else packed
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        pa.ArrowNotImplementedError,
        OverflowError,
        UnicodeEncodeError,
    ) as error:
        raise ValueError(
            f"Column {name!r} cannot be an Arrow column: {error}. Use batch_format='numpy', or make its values of one "
            "type with map_batches()."
        ) from error


def _has_arrays(column: Array) -> bool:
    return any(isinstance(value, np.ndarray) for value in column)


def _build_tensors(pa: Any, name: str, column: Array) -> object:
    kind = find_type(column.dtype, column.shape[1:])
    if kind is None:
        raise ValueError(
            f"Column {name!r} has arrays of {column.dtype}, for which Arrow has no type. Use batch_format='numpy', or "
            "make them numbers, texts or times with map_batches()."
        )
    count, size = len(column), math.prod(column.shape[1:])
    flat = np.ascontiguousarray(column).reshape(-1)
    if not hasattr(kind, "permutation"):
        found = _assemble(flat, kind.kind, np.full(count, size), [column.shape[1:]] * count, None)
        if found is None:
            raise ValueError(f"Column {name!r} has texts that are no Unicode. Make bytes of them with map_batches().")
        return found
    if count and column.dtype.isnative:
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(column))
    values = pa.array(flat.astype(column.dtype.newbyteorder("=")))
    return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(values, size))
