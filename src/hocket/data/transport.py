"""Columns on their way to the engine for tables (DuckDB) and back.

The engine knows fewer types than Arrow, and some otherwise: it has no half floats, no zones of nanoseconds, and no
dictionaries of one's own. What it does not know travels as something that it does, with the same order of values, and
is what it was when it comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.data import arrow, blocks

ArrowType = Any
"""A type of Arrow's; None where nothing is known of a column but that its values are missing."""


def unify(tables: Sequence[blocks.Types], what: str) -> dict[str, ArrowType]:
    """Return the columns of a table and their types, of those of its blocks.

    Args:
        tables: The columns of each block.
        what: Whose they are, for the error.

    A column that a block lacks is missing in its rows.
    """
    found: dict[str, list[ArrowType]] = {}
    for one in dict.fromkeys(tables):
        for name, kind in one:
            found.setdefault(name, []).append(_find_arrow_type(kind))
    return {name: _unify_column(name, kinds, what) for name, kinds in found.items()}


def _find_arrow_type(kind: object) -> ArrowType:
    if not isinstance(kind, tuple):
        return kind
    pa = arrow.load("A relation")
    dtype, shape = kind
    if dtype.hasobject:
        return None
    inner = pa.from_numpy_dtype(dtype)
    return pa.fixed_shape_tensor(inner, shape) if shape else inner


def _unify_column(name: str, kinds: Sequence[ArrowType], what: str) -> ArrowType:
    pa = arrow.load("A relation")
    known = list(dict.fromkeys(kind for kind in kinds if kind is not None and not pa.types.is_null(kind)))
    if len(known) < 2:
        return known[0] if known else None
    try:
        found = pa.unify_schemas([pa.schema([(name, kind)]) for kind in known], promote_options="permissive").types[0]
        if pa.types.is_floating(found) and all(map(pa.types.is_integer, known)):
            raise pa.ArrowTypeError("int64 and uint64 have no type in common")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        listed = " in some blocks and ".join(map(str, known))
        raise TypeError(
            f"{what}: column {name!r} is {listed} in others. Make it one type with map_batches(), or name the type "
            "where the files are read."
        ) from error
    return found


def encode_type(kind: ArrowType) -> object:
    """Return the type as which a column travels to the engine."""
    pa = arrow.load("A relation")
    if kind is None or pa.types.is_null(kind):
        return pa.int32()
    if isinstance(kind, pa.ExtensionType):
        return kind.storage_type
    if pa.types.is_dictionary(kind):
        return encode_type(kind.value_type)
    if (
        pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_time64(kind)
        or pa.types.is_date64(kind)
    ):
        return pa.int64()
    if pa.types.is_time32(kind) or pa.types.is_date32(kind):
        return pa.int32()
    return pa.float32() if pa.types.is_float16(kind) else kind


def encode(name: str, column: Any, kind: ArrowType, count: int = 0) -> Any:
    """Return a column as it travels.

    Args:
        name: The column's, for the error.
        column: A column of a block; None if it lacks it.
        kind: The type of all of the table's blocks.
        count: How many rows the block has.

    Raises:
        TypeError: It holds objects that Arrow has no type for.
    """
    pa = arrow.load("A relation")
    if column is None:
        return pa.nulls(count, encode_type(kind))
    if kind is None:
        held = next((value for value in column if value is not None), None) if isinstance(column, np.ndarray) else None
        if held is not None:
            raise TypeError(
                f"Column {name!r} holds Python objects, which cannot be sorted, joined or grouped, or stand beside "
                f"what is: one is {held!r:.40}. Leave it out with drop_columns([{name!r}]), or make numbers or texts "
                "of it with map_batches()."
            )
        return pa.nulls(len(column), pa.int32())
    if isinstance(column, np.ndarray):
        column = arrow.build_array(name, column)
    if column.type != kind:
        column = column.cast(kind) if not pa.types.is_null(column.type) else pa.nulls(len(column), kind)
    if isinstance(column, pa.ExtensionArray):
        return column.storage
    if pa.types.is_dictionary(column.type):
        decoded = column.dictionary_decode()
        return encode(name, decoded, decoded.type)
    wanted = encode_type(kind)
    if wanted == kind:
        return column
    return column.cast(wanted) if pa.types.is_floating(wanted) else column.view(wanted)


def decode(column: Any, kind: ArrowType) -> Any:
    """Return a column that comes from the engine as what it was.

    Args:
        column: The engine's.
        kind: What it was; None if there were only missing values.
    """
    pa = arrow.load("A relation")
    if kind is None or pa.types.is_null(kind):
        return pa.nulls(len(column))
    if isinstance(kind, pa.ExtensionType):
        storage = column if column.type == kind.storage_type else column.cast(kind.storage_type)
        return pa.ExtensionArray.from_storage(kind, storage)
    if pa.types.is_dictionary(kind):
        return decode(column, kind.value_type).dictionary_encode().cast(kind)
    travelled = encode_type(kind)
    if not column.type.equals(travelled, check_metadata=True):  # also the names inside of lists
        column = column.cast(travelled)
    if travelled == kind:
        return column
    return column.cast(kind) if pa.types.is_floating(travelled) else column.view(kind)
