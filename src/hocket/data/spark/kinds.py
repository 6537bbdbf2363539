"""Which types a Parquet file keeps, on the way from Spark and to it. What would change is refused by name."""

from __future__ import annotations

import functools
from typing import Any, Final

_LOST: Final = {
    "DayTimeIntervalType": "cast it to a number: CAST({name} AS BIGINT), or EXTRACT(SECOND FROM {name})",
    "YearMonthIntervalType": "cast it to a number: EXTRACT(MONTH FROM {name})",
    "CalendarIntervalType": "leave it out, or cast it to a text: CAST({name} AS STRING)",
    "VariantType": "make a text of it: to_json({name})",
    "NullType": "give it a type: CAST({name} AS STRING)",
    "TimeType": "make a text of it: CAST({name} AS STRING)",
}
"""Spark's types that a file has in another form or not at all, and what to do about them."""


def check_frame(caller: str, schema: Any) -> None:
    """Raise if rows of a data frame would not arrive as they are.

    Args:
        caller: For the message.
        schema: Spark's, a ``StructType``.

    Raises:
        TypeError: A column would not.
    """
    for field in schema.fields:
        found = _find_lost(field.dataType)
        if found is None:
            continue
        kind, remedy = found
        raise TypeError(
            f"{caller}: the column {field.name!r} holds {kind}, which a Parquet file does not keep. Before that, "
            f"{remedy.format(name=field.name)}."
        )


def _find_lost(kind: Any) -> tuple[str, str] | None:
    name = type(kind).__name__
    if name in _LOST:
        return kind.simpleString(), _LOST[name]
    if hasattr(kind, "sqlType"):  # what a user, or Spark's library for learning, has made
        return name, "use pyspark.ml.functions.vector_to_array({name}) for a vector, or leave it out"
    inner = [getattr(kind, part) for part in ("elementType", "keyType", "valueType") if hasattr(kind, part)]
    inner += [field.dataType for field in getattr(kind, "fields", ())]
    return next((found for found in map(_find_lost, inner) if found is not None), None)


def choose_for_spark(pa: Any, kind: Any, name: str) -> Any:
    """Return which type of Arrow's is written for Spark, of one that a column has.

    Args:
        pa: pyarrow.
        kind: The column's.
        name: The column, for the message.

    Raises:
        TypeError: Spark has none that would keep the values.
    """
    types = pa.types
    if types.is_duration(kind) or types.is_time(kind):
        raise TypeError(
            f"to_spark(): the column {name!r} holds {kind}, which Spark cannot read from a file. Before that, make "
            "a number or a text of it with map_batches()."
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
