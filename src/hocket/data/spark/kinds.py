"""The types that a Parquet file keeps on the way from and to Spark. An error names any column that would change."""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np

from hocket.data import arrow

_LOST: Final = {
    "DayTimeIntervalType": "cast it to a number: CAST({name} AS BIGINT), or EXTRACT(SECOND FROM {name})",
    "YearMonthIntervalType": "cast it to a number: EXTRACT(MONTH FROM {name})",
    "CalendarIntervalType": "leave it out, or cast it to a text: CAST({name} AS STRING)",
    "VariantType": "convert it to a text: to_json({name})",
    "NullType": "give it a type: CAST({name} AS STRING)",
    "TimeType": "convert it to a text: CAST({name} AS STRING)",
}
"""Spark's types that a file changes or lacks, and a remedy for each."""


def check_frame(caller: str, schema: Any) -> None:
    """Raise if values of a data frame would change on their way.

    Args:
        caller: The name of the caller, for the message.
        schema: Spark's schema, a ``StructType``.
    """
    for field in schema.fields:
        found = _find_lost(field.dataType)
        if found is None:
            continue
        kind, remedy = found
        raise TypeError(
            f"{caller}: the column {field.name!r} holds {kind}, which a Parquet file cannot hold. Before this call, "
            f"{remedy.format(name=field.name)}."
        )


def _find_lost(kind: Any) -> tuple[str, str] | None:
    name = type(kind).__name__
    if name in _LOST:
        return kind.simpleString(), _LOST[name]
    if hasattr(kind, "sqlType"):  # a type of a user's, or of Spark's machine-learning library
        return name, "use pyspark.ml.functions.vector_to_array({name}) for a vector, or leave it out"
    inner = [getattr(kind, part) for part in ("elementType", "keyType", "valueType") if hasattr(kind, part)]
    inner += [field.dataType for field in getattr(kind, "fields", ())]
    return next((found for found in map(_find_lost, inner) if found is not None), None)


def choose_for_spark(pa: Any, kind: Any, name: str) -> object:
    """Return the Arrow type to write for Spark, in place of a column's type.

    Args:
        pa: pyarrow.
        kind: The column's type.
        name: The column, for the message.
    """
    types = pa.types
    if types.is_duration(kind) or types.is_time(kind):
        raise TypeError(
            f"to_spark(): the column {name!r} holds {kind}, which Spark cannot read from a file. Convert it to "
            "numbers or texts with map_batches() before this call."
        )
    if types.is_float16(kind):
        return pa.float32()
    if types.is_dictionary(kind):
        return choose_for_spark(pa, kind.value_type, name)
    if isinstance(kind, pa.FixedShapeTensorType):
        return functools.reduce(
            lambda inner, _: pa.list_(inner), kind.shape, choose_for_spark(pa, kind.value_type, name)
        )
    if isinstance(kind, pa.BaseExtensionType):
        return choose_for_spark(pa, kind.storage_type, name)
    if types.is_struct(kind):
        return pa.struct([field.with_type(choose_for_spark(pa, field.type, name)) for field in kind])
    if types.is_map(kind):
        return pa.map_(choose_for_spark(pa, kind.key_type, name), choose_for_spark(pa, kind.item_type, name))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(choose_for_spark(pa, kind.value_type, name))
    return kind


def strip(column: Any) -> Any:
    """Return the storage of an array with an Arrow extension type. Tensors become lists of lists."""
    pa = arrow.load("Spark")
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    if isinstance(column.type, pa.FixedShapeTensorType):
        return pa.chunked_array([_nest(chunk) for chunk in column.chunks] or [_nest(pa.array([], column.type))])
    return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)


def _nest(tensors: Any) -> Any:
    """Return an array of tensors as lists of lists."""
    pa = arrow.load("Spark")
    if tensors.type.permutation not in (None, list(range(len(tensors.type.shape)))):
        tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(tensors.to_numpy_ndarray()))
    storage, (first, *others) = tensors.storage, tensors.type.shape
    size = storage.type.list_size
    values = storage.values.slice(storage.offset * size, len(storage) * size)
    for length in reversed(others):
        values = pa.FixedSizeListArray.from_arrays(values, length)
    return pa.FixedSizeListArray.from_arrays(values, first, mask=storage.is_null())
