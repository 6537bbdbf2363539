"""Columns on their way to the table engine (DuckDB) and back.

The engine has fewer types than Arrow, and some differ: it has no half floats, no nanoseconds with a zone, and no
user-defined dictionaries. A type that it lacks travels in two steps, also within lists and dicts. First a cast turns it
into a type of the same values (`_simplify`). Then a view turns that into a type of the same bytes (`_lay_out`), whose
values are in the same order. On the way back, both steps are undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from hocket.data import arrow, blocks, columns

T = TypeVar("T")

ArrowType = Any
"""A type of Arrow's; None for a column that is only known to have missing values."""


def list_different(values: Iterable[T]) -> list[T]:
    """Return each value once, in order. For types, and values that contain types: a user's type may lack a hash."""
    values = list(values)
    try:
        return list(dict.fromkeys(values))
    except TypeError:
        return [one for at, one in enumerate(values) if one not in values[:at]]


def unify(tables: Sequence[blocks.Types], what: str) -> dict[str, ArrowType]:
    """Return the columns of a table and their types, from the columns of its blocks.

    Rows of a block that lacks a column have missing values there.

    Args:
        tables: The columns of each block.
        what: The source of the blocks, for the error.
    """
    found: dict[str, list[ArrowType]] = {}
    for one in list_different(tables):
        for name, kind in one:
            found.setdefault(name, []).append(kind)
    return {name: _unify_column(name, kinds, what) for name, kinds in found.items()}


def list_mixed(tables: Sequence[blocks.Types], table: Mapping[str, ArrowType]) -> frozenset[str]:
    """Return the columns that travel as decimals because they are unsigned in some blocks and signed in others."""
    types = arrow.load("A relation").types
    kinds = [(name, _find_arrow_type(getattr(kind, "kind", kind))) for one in tables for name, kind in one]
    return frozenset(
        name for name, kind in kinds if kind is not None and types.is_integer(kind) and types.is_decimal(table[name])
    )


def _find_arrow_type(kind: object) -> ArrowType:
    if not isinstance(kind, tuple):
        return kind
    return None if kind[0].hasobject else arrow.find_type(*kind)


def _unify_column(name: str, kinds: Sequence[ArrowType], what: str) -> ArrowType:
    pa = arrow.load("A relation")
    filled = [_find_arrow_type(kind) for kind in kinds if not isinstance(kind, columns.Unfilled)]
    empty = [_find_arrow_type(kind.kind) for kind in kinds if isinstance(kind, columns.Unfilled)]
    known, unfilled = (
        list_different(kind for kind in some if kind is not None and not pa.types.is_null(kind))
        for some in (filled, empty)
    )
    found = arrow.unify([*known, *unfilled]) if known or unfilled else None
    if known and found is None:
        found = arrow.unify(known)
    if known and found is None:
        listed = " in some blocks and ".join(map(str, known))
        raise TypeError(
            f"{what}: column {name!r} is {listed} in others. Convert it to one type with map_batches(), or set its "
            "type where the files are read."
        )
    return found


def encode_type(kind: ArrowType) -> Any:
    """Return the type in which a column travels to the engine."""
    pa = arrow.load("A relation")
    if kind is None or pa.types.is_null(kind):
        return pa.int32()
    return pa.float32() if pa.types.is_float16(kind) else _lay_out(_simplify(kind))


def _simplify(kind: Any) -> Any:
    """Return a type of the same values that the engine has, or whose bytes it can take."""
    pa = arrow.load("A relation")
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _simplify(kind.storage_type)
    if types.is_dictionary(kind):
        return _simplify(kind.value_type)
    if types.is_decimal(kind) and kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return pa.string() if types.is_string_view(kind) else pa.binary()
    if types.is_fixed_size_list(kind) and not kind.list_size:  # the engine divides by the size
        return pa.list_(kind.value_field.with_type(_simplify(kind.value_type)))
    return arrow.rebuild_type(kind, _simplify)


def _lay_out(kind: Any) -> Any:
    """Return a type of the same bytes that the engine has."""
    pa = arrow.load("A relation")
    types = pa.types
    if types.is_map(kind):  # a map of the engine's has each key once
        return pa.list_(pa.struct([("f0", _lay_out(kind.key_type)), ("f1", _lay_out(kind.item_type))]))
    if types.is_struct(kind):  # the engine does not distinguish x from X
        return pa.struct([(f"f{at}", _lay_out(kind.field(at).type)) for at in range(kind.num_fields)])
    if types.is_time32(kind) or types.is_date32(kind):
        return pa.int32()
    if types.is_timestamp(kind) or types.is_duration(kind) or types.is_time64(kind) or types.is_date64(kind):
        return pa.int64()
    if types.is_float16(kind):
        return pa.uint16()
    if types.is_interval(kind) or types.is_decimal(kind):
        return kind if types.is_decimal128(kind) else pa.binary(kind.bit_width // 8)
    return arrow.rebuild_type(kind, _lay_out)


def check_key(name: str, kind: ArrowType, what: str) -> None:
    """Raise if the engine would order values of a type differently, or miss equal ones."""
    types = arrow.load("A relation").types
    if kind is not None and (types.is_interval(kind) or (types.is_decimal(kind) and kind.precision > 38)):
        raise TypeError(f"{what}: column {name!r} is {kind}, which cannot be a key. Choose another column, or cast it.")


def encode(name: str, column: Any, kind: ArrowType, count: int = 0) -> Any:
    """Return a column in the form in which it travels.

    Args:
        name: The column's name, for the error.
        column: A column of a block; None if the block lacks it.
        kind: The column's type in the whole table.
        count: Number of rows of the block.

    Raises:
        TypeError: The column holds objects without an Arrow type, or a value that does not fit the type.
    """
    pa = arrow.load("A relation")
    if column is None:
        return pa.nulls(count, encode_type(kind))
    is_object = isinstance(column, np.ndarray) and (column.dtype.hasobject or arrow.find_type(column.dtype) is None)
    held = next((value for value in column if value is not None), None) if is_object else None
    if held is not None:
        raise TypeError(
            f"Column {name!r} holds Python objects, such as {held!r:.40}. Sorting, joining and grouping cannot handle "
            f"these, not even beside the keys. Leave the column out with drop_columns([{name!r}]), or convert it to "
            "numbers or texts with map_batches()."
        )
    if kind is None or is_object:
        return pa.nulls(len(column), encode_type(kind))
    column = arrow.convert(name, column, kind)
    if pa.types.is_float16(kind):
        return column.cast(pa.float32())
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    simple = _simplify(kind)
    return (column if column.type == simple else column.cast(simple)).view(_lay_out(simple))


def decode(column: Any, kind: ArrowType, known: Any = None) -> Any:
    """Return a column from the engine in its original type.

    Args:
        column: The engine's column.
        kind: The original type; None if all values were missing.
        known: The original categories; None: taken from the values.
    """
    pa = arrow.load("A relation")
    if kind is None or pa.types.is_null(kind):
        return pa.nulls(len(column))
    travelled = encode_type(kind)
    if not column.type.equals(travelled, check_metadata=True):  # also the names within lists
        column = column.cast(travelled)
    if pa.types.is_float16(kind):
        return column.cast(kind)
    column = column.view(_simplify(kind))
    if isinstance(kind, pa.BaseExtensionType):
        storage = column if column.type == kind.storage_type else column.cast(kind.storage_type)
        return pa.ExtensionArray.from_storage(kind, storage)
    if pa.types.is_dictionary(kind):
        values = column if column.type == kind.value_type else column.cast(kind.value_type)
        return arrow.encode_categories(values, kind, known) if arrow.is_categorical(kind) else values
    return column if column.type == kind else column.cast(kind)
