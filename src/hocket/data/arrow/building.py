"""Columns as Arrow arrays: built from Python's and numpy's values, and converted to other types without a change.

A column may hold each different value once, in a dictionary. pandas' categories arrive in this form. Categories say
more than the values: which values are possible, and in which order. So they stay with a column, also those that no row
has. A join of columns has the categories of all columns, each in the place where it comes first. If categories are
ordered, the order of the join agrees with the orders of all columns; if there is no such order, that is an error. The
numbers of the categories get a wider type if there are too many for the old one.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import graphlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hocket.data.arrow import kinds, tensors


def get_optional_array(values: Sequence[object] | kinds.Array, kind: object = None) -> object:
    """Return Python objects as an Arrow array, of the given type or of the type that Arrow infers. Return None without
    Arrow, or if no type of Arrow's keeps each object unchanged."""
    pa = kinds.get_optional()
    if pa is None:
        return None
    try:
        try:
            found = pa.array(values, kind)
        except OverflowError:
            found = pa.array(values, pa.uint64())  # Arrow tries int64 alone
        # Arrow takes pandas' times for Python's, which have microseconds.
        if kind is None and _holds(found.type, _is_moment) and "pandas" in sys.modules:
            finer = {unit for value in values for unit in _list_units(value)}
            found = pa.array(values, _refine(found.type)) if "ns" in finer else found
    except _list_refusals(pa):
        return None
    is_other = kind is None and not isinstance(values, np.ndarray) and _is_changed(found, values)
    return None if is_other or _loses_zones(found, values) or pa.types.is_null(found.type) else found


def _list_refusals(pa: Any) -> tuple[type[Exception], ...]:
    """Return Arrow's errors for values without an Arrow type. TypeError is Python's own, too, for infinite decimals."""
    return TypeError, pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError, UnicodeEncodeError


def _is_changed(found: Any, values: Sequence[object]) -> bool:
    """Return whether Arrow has changed the kind of a value: a time into a date, a text into bytes."""
    types = kinds.load("A column").types
    if types.is_timestamp(found.type):
        # Beside a time with a zone, Arrow takes one without a zone for UTC.
        zones = {getattr(value, "tzinfo", None) is None for value in values if value is not None}
        return len(zones) > 1
    if types.is_date(found.type):
        return any(isinstance(value, dt.datetime) for value in values)
    return types.is_binary(found.type) and any(isinstance(value, str) for value in values)


def _is_moment(kind: Any) -> bool:
    types = kinds.load("A column").types
    return bool(types.is_timestamp(kind) or types.is_duration(kind))


def _holds(kind: Any, is_wanted: Callable[[Any], bool]) -> bool:
    """Return whether a type of Arrow's is of the wanted kind, or contains such a type."""
    return is_wanted(kind) or any(_holds(kind.field(at).type, is_wanted) for at in range(kind.num_fields))


def _loses_zones(found: Any, values: Iterable[object]) -> bool:
    """Return whether values are, or contain, times of day with a zone, which Arrow drops."""
    return _holds(found.type, kinds.load("A column").types.is_time) and any(map(_has_zone, values))


def _has_zone(value: object) -> bool:
    """Return whether a value is, or contains, a time of day with a zone."""
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return any(map(_has_zone, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, dt.time) and value.tzinfo is not None


def _list_units(value: object) -> Iterator[str]:
    """Yield the units of pandas' times in a value."""
    if isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _list_units(inner)
    elif isinstance(value, dt.datetime | dt.timedelta):
        yield getattr(value, "unit", "us")


def _refine(kind: Any) -> Any:
    """Return a type with nanoseconds in the place of microseconds."""
    pa = kinds.load("A column")
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ns", kind.tz)
    return pa.duration("ns") if pa.types.is_duration(kind) else kinds.rebuild_type(kind, _refine)


def build_array(name: str, column: object) -> Any:
    """Return a column as an Arrow array."""
    pa = kinds.load("An Arrow column")
    if not isinstance(column, np.ndarray):
        return column
    if column.ndim > 1:
        return tensors.build_tensors(pa, name, column)
    try:
        is_time = column.dtype.kind in "mM"
        column = kinds.convert_times(column) if is_time else column.astype(column.dtype.newbyteorder("="), copy=False)
        is_packed = column.dtype.kind == "O" and {np.ndarray} == set(map(type, column)) - {type(None)}
        packed = tensors.pack_arrays(column.tolist()) if is_packed else None
        found = pa.array(column) if packed is None else packed
        if column.dtype.kind == "O" and _loses_zones(found, column):
            raise TypeError("Arrow's times of day have no zone")
        return found
    except _list_refusals(pa) as error:
        raise ValueError(
            f"Column {name!r} cannot be an Arrow column: {error}. Use batch_format='numpy', or convert its values to "
            "one type with map_batches()."
        ) from error


def convert(name: str, column: Any, kind: Any) -> Any:
    """Return a column as an Arrow array of a type that `unify` has found for it.

    Raises:
        TypeError: A value would change, such as a whole number that no float equals.
    """
    pa = kinds.load("A column")
    found = build_array(name, column)
    if found.type == kind:
        return found
    # Nothing can be lost, also where Arrow knows no cast.
    if found.null_count == len(found):
        return pa.nulls(len(found), kind)
    try:
        if kinds.is_tensor_type(kind):
            return _convert_tensors(pa, tensors.list_tensors(found), kind)
        if is_categorical(kind):
            return (
                _convert_categories(found, kind)
                if pa.types.is_dictionary(found.type)
                else encode_categories(found, kind)
            )
        return kinds.decode_dictionary(found).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise TypeError(
            f"Column {name!r} is {found.type} in some blocks and must become {kind} to join the others, but this "
            f"would change a value: {error}. Convert it to one type with map_batches()."
        ) from error


def _convert_tensors(pa: Any, arrays: Sequence[kinds.Array | None], kind: Any) -> Any:
    inner = tensors.to_dtype(getattr(kind, "kind", None) or kind.value_type)
    arrays = [None if one is None or inner.kind in "US" else one.astype(inner) for one in arrays]
    packed = tensors.pack_arrays(arrays)
    if not hasattr(kind, "permutation"):
        return packed
    values = [None if one is None else one.ravel() for one in arrays]
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


def refine_arrays(table: Any) -> Any:
    """Return a table whose arrays have no times in seconds, which Parquet lacks."""
    pa = kinds.load("A table")
    for at, field in enumerate(table.schema):
        if getattr(field.type, "kind", None) == pa.timestamp("s"):
            finer = convert(
                field.name,
                flatten(table.column(at), field.name),
                kinds.build_arrays_type(pa.timestamp("ms")),
            )
            table = table.set_column(at, field.name, finer)
    return table


def _is_empty(column: Any) -> bool:
    """Return whether an Arrow array has only missing values."""
    return bool(getattr(column, "null_count", -1) == len(column))


def recast(column: Any, original: Any, *, keeps_zones: bool) -> Any:
    """Return a column in the type of the original Arrow array, if both types are of one family and each value fits;
    else the column unchanged. Values of Python's or numpy's do not show this type. Categories are the original's."""
    pa = kinds.load("A column")
    kind = original.type
    if not pa.types.is_dictionary(kind):
        return _recast(column, kind, keeps_zones=keeps_zones)
    if isinstance(column, pa.DictionaryArray):  # the function has chosen the categories itself
        is_own = _recast(column.dictionary, kind.value_type, keeps_zones=keeps_zones).type == kind.value_type
        wanted = pa.dictionary(kind.index_type, kind.value_type, column.type.ordered)
        return _convert_categories(column, wanted) if is_own else column
    found = _recast(column, kind.value_type, keeps_zones=keeps_zones)
    if isinstance(found, np.ndarray) and kinds.find_type(found.dtype, found.shape[1:]) == kind.value_type:
        found = build_array("", found)
    if getattr(found, "type", None) != kind.value_type or not is_categorical(kind):
        return column
    is_other = kind.ordered and not _has_all(found, original.dictionary)  # a new value has no place in the order
    return column if is_other else encode_categories(found, kind, original.dictionary)


def _recast(column: Any, kind: Any, *, keeps_zones: bool) -> Any:
    pa = kinds.load("A column")
    types = pa.types
    if isinstance(column, np.ndarray) and column.dtype.kind == "O":
        held = get_optional_array(column.tolist(), kind)
        return column if held is None else held
    own = kinds.find_type(column.dtype, column.shape[1:]) if isinstance(column, np.ndarray) else column.type
    if own is None or own == kind or kinds.is_tensor_type(own):
        return column
    if types.is_timestamp(own) and types.is_date64(kind):
        return _read_dates(column, kind)
    if types.is_timestamp(own):
        if not types.is_timestamp(kind) or (keeps_zones and own.tz != kind.tz):
            return column
        kind = pa.timestamp(max(own.unit, kind.unit, key=kinds.UNITS.index), kind.tz)
    elif types.is_struct(own):
        if not types.is_struct(kind) or {field.name for field in own} != {field.name for field in kind}:
            return column
    elif not any(
        is_kind(own) and is_kind(kind)
        for is_kind in (kinds.is_text, kinds.is_bytes, types.is_decimal, types.is_date, types.is_time)
    ):
        return column
    try:
        return build_array("", column).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return column


def _read_dates(column: Any, kind: Any) -> Any:
    """Return times as dates of milliseconds, which numpy holds as times, if all are at midnight; else unchanged."""
    times = build_array("", column)
    dates = times.cast(kind)
    return dates if dates.cast(times.type).equals(times) else column


def join(name: str, columns: Sequence[Any], types: Sequence[Any]) -> Any:
    """Return one column after the other as an Arrow array of a type that holds each value unchanged; None if there is
    no such type.

    Args:
        name: Name of the columns, for the error.
        columns: Numpy columns, or Arrow arrays.
        types: Types of the columns; None for a column that is only known to have missing values.
    """
    pa = kinds.load("A column")
    known = [kind for kind in types if kind is not None]
    filled = [kind for kind, one in zip(types, columns, strict=True) if kind is not None and not _is_empty(one)]
    found = kinds.unify(known) if known else None
    if found is None and filled:  # a column without values fits any type
        found = kinds.unify(filled)
    if found is None:
        return None
    parts = [
        pa.nulls(len(one), found) if own is None or _is_empty(one) else convert(name, one, found)
        for one, own in zip(columns, types, strict=True)
    ]
    joined = join_arrays(name, parts)
    return narrow(joined) if pa.types.is_decimal(found) and all(map(pa.types.is_integer, known)) else joined


def narrow(column: Any) -> Any:
    """Return whole numbers that are decimals as 64-bit numbers, if they all fit; else unchanged."""
    pa = kinds.load("A column")
    for kind in (pa.int64(), pa.uint64()):
        with contextlib.suppress(pa.ArrowInvalid):
            return column.cast(kind)
    return column


# --- categories -------------------------------------------------------------------------------------------------------


def merge_categories(name: str, dictionaries: Sequence[Any], *, ordered: bool) -> Any:
    """Return the common categories of columns that are joined.

    Args:
        name: Name of the columns, for the error.
        dictionaries: The categories of each column.
        ordered: Whether the categories' order has a meaning.

    Raises:
        TypeError: Two columns have opposite orders.
    """
    pa = kinds.load("A column")
    different = [one for at, one in enumerate(dictionaries) if not at or not one.equals(dictionaries[at - 1])]
    if len(different) == 1:
        return different[0]
    found = pa.concat_arrays(different).unique().drop_null()
    if not ordered:
        return found
    places = [find_categories(one, found).drop_null().to_pylist() for one in different]
    if all(one == sorted(one) for one in places):
        return found
    try:
        return found.take(pa.array(_order_categories(len(found), places)))
    except graphlib.CycleError as error:
        at, other, *_ = error.args[1]
        raise TypeError(
            f"Column {name!r} has ordered categories, but {found[other].as_py()!r:.40} comes before "
            f"{found[at].as_py()!r:.40} in some blocks and after it in others. Give all blocks one order with "
            "map_batches(), such as batch['x'].cat.set_categories([...], ordered=True)."
        ) from None


def _order_categories(count: int, places: Sequence[Sequence[int]]) -> list[int]:
    # Each column's order is a chain; the sorter finds one order that has them all.
    sorter: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter(dict.fromkeys(range(count), ()))
    for one in places:
        for before, after in itertools.pairwise(one):
            sorter.add(after, before)
    return list(sorter.static_order())


def find_categories(values: Any, categories: Any) -> Any:
    """Return the number of each value's category; missing for a value without one."""
    return kinds.load("A column", "pyarrow.compute").index_in(values, categories)


def encode_categories(values: Any, kind: Any, known: Any = None) -> Any:
    """Return values as a column of categories.

    Args:
        values: The values, as an Arrow array.
        kind: Arrow's dictionary type.
        known: The categories. Further values come after them. None: all values in the order in which they come first.
    """
    pa = kinds.load("A column")
    values = values if values.type == kind.value_type else values.cast(kind.value_type)
    if known is None:
        own = values.dictionary_encode()
        return _build_categories(own.indices, own.dictionary, kind)
    places = find_categories(values, known)
    if places.null_count > values.null_count:
        known = pa.concat_arrays([known, values]).unique().drop_null()
        places = find_categories(values, known)
    return _build_categories(places, known, kind)


def _has_all(values: Any, known: Any) -> bool:
    """Return whether each value has a category."""
    return bool(find_categories(values.cast(known.type), known).null_count == values.null_count)


def _build_categories(places: Any, categories: Any, kind: Any) -> Any:
    pa = kinds.load("A column")
    places = places.cast(_fit_numbers(kind.index_type, len(categories)))
    return pa.DictionaryArray.from_arrays(places, categories, ordered=kind.ordered)


def _fit_numbers(kind: Any, count: int) -> Any:
    """Return a type of whole numbers that can number all categories: the given type if it can."""
    pa = kinds.load("A column")
    wider = (one for one in (kind, pa.int16(), pa.int32()) if count - 1 <= np.iinfo(one.to_pandas_dtype()).max)
    return next(wider, pa.int64())


def tidy_categories(column: Any) -> Any:
    """Return a column without a missing category. The rows of such a category get a missing value."""
    if not column.dictionary.null_count:
        return column
    return encode_categories(column.dictionary_decode(), column.type, column.dictionary.drop_null())


def _convert_categories(column: Any, kind: Any) -> Any:
    """Return a column of categories with numbers, or categories, of another type."""
    pa = kinds.load("A column")
    index = _fit_numbers(kind.index_type, len(column.dictionary))
    values = column.dictionary if column.type.value_type == kind.value_type else column.dictionary.cast(kind.value_type)
    return pa.DictionaryArray.from_arrays(column.indices.cast(index), values, ordered=kind.ordered)


def join_arrays(name: str, columns: Sequence[Any]) -> Any:
    """Return one column after the other. Their types may differ only in the width of the categories' numbers."""
    pa = kinds.load("A column")
    kind = columns[0].type
    if not is_categorical(kind):
        try:
            return pa.concat_arrays(columns)
        except pa.ArrowInvalid as error:
            raise TypeError(
                f"The parts of column {name!r}, from several blocks or chunks, cannot be joined as {kind}: {error} "
                "Convert the column to another type with map_batches(), or make smaller blocks with repartition()."
            ) from error
    # Arrow joins dictionaries only if they are equal.
    if all(one.type == kind and one.dictionary.equals(columns[0].dictionary) for one in columns):
        return pa.concat_arrays(columns)
    known = merge_categories(name, [one.dictionary for one in columns if len(one.dictionary)], ordered=kind.ordered)
    places = [find_categories(one.dictionary, known).take(one.indices) for one in columns]
    return _build_categories(pa.concat_arrays(places), known, kind)


def flatten(chunked: Any, name: str = "") -> Any:
    """Return a column of a table, or of a batch of a table, as one array."""
    pa = kinds.load("A column")
    if isinstance(chunked, pa.Array):
        return chunked
    if chunked.num_chunks == 1:
        return chunked.chunk(0)
    return join_arrays(name, chunked.chunks) if chunked.num_chunks else pa.array([], chunked.type)


def is_categorical(kind: object) -> bool:
    """Return whether a type is one of categories whose values Arrow can compare."""
    pa = kinds.load("A column")
    types = pa.types
    if not isinstance(kind, pa.DictionaryType):
        return False
    value = kind.value_type
    is_known = types.is_primitive(value) and not types.is_float16(value) and not types.is_interval(value)
    is_decimal = types.is_decimal128(value) or types.is_decimal256(value)
    return bool(is_known or is_decimal or kinds.is_text(value) or kinds.is_bytes(value)) and not (
        types.is_string_view(value) or types.is_binary_view(value)
    )
