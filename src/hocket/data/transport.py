"""Columns on their way to the engine for tables (DuckDB) and back.

The engine knows fewer types than Arrow, and some otherwise: it has no half floats, no zones of nanoseconds, and no
dictionaries of one's own. A type that it does not know travels in two steps, also inside of lists and dicts: as a type
of the same values (`_simplify`, a cast), and then as one of the same bytes (`_lay_out`, a view), in which values are in
the same order. Back, both are undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from hocket.data import arrow, blocks, columns

T = TypeVar("T")

ArrowType = Any
"""A type of Arrow's; None where nothing is known of a column but that its values are missing."""


def list_different(values: Iterable[T]) -> list[T]:
    """Return each value once, in their order. They are types, or have types, of which a program's own may have no
    hash."""
    values = list(values)
    try:
        return list(dict.fromkeys(values))
    except TypeError:
        return [one for at, one in enumerate(values) if one not in values[:at]]


def unify(tables: Sequence[blocks.Types], what: str) -> dict[str, ArrowType]:
    """Return the columns of a table and their types, of those of its blocks.

    Args:
        tables: The columns of each block.
        what: Whose they are, for the error.

    A column that a block lacks is missing in its rows.
    """
    found: dict[str, list[ArrowType]] = {}
    for one in list_different(tables):
        for name, kind in one:
            found.setdefault(name, []).append(kind)
    return {name: _unify_column(name, kinds, what) for name, kinds in found.items()}


def list_mixed(tables: Sequence[blocks.Types], table: Mapping[str, ArrowType]) -> frozenset[str]:
    """Return the columns that travel as decimals because some blocks have whole numbers without signs, others with."""
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
            f"{what}: column {name!r} is {listed} in others. Make it one type with map_batches(), or name the type "
            "where the files are read."
        )
    return found


def encode_type(kind: ArrowType) -> Any:
    """Return the type as which a column travels to the engine."""
    pa = arrow.load("A relation")
    if kind is None or pa.types.is_null(kind):
        return pa.int32()
    return pa.float32() if pa.types.is_float16(kind) else _lay_out(_simplify(kind))


def _simplify(kind: Any) -> Any:
    """Return a type that the engine knows, or whose bytes it can take, of the same values."""
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
    """Return a type that the engine knows, of the same bytes."""
    pa = arrow.load("A relation")
    types = pa.types
    if types.is_map(kind):  # the engine's have each key once
        return pa.list_(pa.struct([("f0", _lay_out(kind.key_type)), ("f1", _lay_out(kind.item_type))]))
    if types.is_struct(kind):  # the engine does not tell x from X
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
    """Raise if the engine would put values of a type in another order, or not know equal ones."""
    types = arrow.load("A relation").types
    if kind is not None and (types.is_interval(kind) or (types.is_decimal(kind) and kind.precision > 38)):
        raise TypeError(f"{what}: column {name!r} is {kind}, which cannot be a key. Choose another column, or cast it.")


def encode(name: str, column: Any, kind: ArrowType, count: int = 0) -> Any:
    """Return a column as it travels.

    Args:
        name: The column's, for the error.
        column: A column of a block; None if it lacks it.
        kind: The type of all of the table's blocks.
        count: How many rows the block has.

    Raises:
        TypeError: It holds objects that Arrow has no type for, or a value that the type has not.
    """
    pa = arrow.load("A relation")
    if column is None:
        return pa.nulls(count, encode_type(kind))
    is_object = isinstance(column, np.ndarray) and (column.dtype.hasobject or arrow.find_type(column.dtype) is None)
    held = next((value for value in column if value is not None), None) if is_object else None
    if held is not None:
        raise TypeError(
            f"Column {name!r} holds Python objects, which cannot be sorted, joined or grouped, or stand beside what "
            f"is: one is {held!r:.40}. Leave it out with drop_columns([{name!r}]), or make numbers or texts of it with "
            "map_batches()."
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
    """Return a column that comes from the engine as what it was.

    Args:
        column: The engine's.
        kind: What it was; None if there were only missing values.
        known: Its categories, if it had such; None: those of its values.
    """
    pa = arrow.load("A relation")
    if kind is None or pa.types.is_null(kind):
        return pa.nulls(len(column))
    travelled = encode_type(kind)
    if not column.type.equals(travelled, check_metadata=True):  # also the names inside of lists
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
