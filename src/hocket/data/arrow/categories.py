"""Columns that have each different value once (Arrow's dictionaries), which is how pandas' categories come.

The categories say more than the values: which there could be, and in which order. So they stay with a column, also
those that no row has. Columns that become one have the categories of all, each in the place where it comes first. If
they are ordered, the order is one that agrees with all of theirs; where there is none, that is an error. The numbers of
the categories become wider if there are too many for them.
"""

from __future__ import annotations

import graphlib
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.data.arrow import kinds


def merge(name: str, dictionaries: Sequence[Any], *, ordered: bool) -> Any:
    """Return the categories of columns that become one.

    Args:
        name: The name of the columns, for the error.
        dictionaries: The categories of each.
        ordered: Whether their order has a meaning.

    Raises:
        TypeError: Two are in opposite orders.
    """
    pa = kinds.load("A column")
    different = [one for at, one in enumerate(dictionaries) if not at or not one.equals(dictionaries[at - 1])]
    if len(different) == 1:
        return different[0]
    found = pa.concat_arrays(different).unique().drop_null()
    if not ordered:
        return found
    places = [find(one, found).drop_null().to_pylist() for one in different]
    if all(one == sorted(one) for one in places):
        return found
    try:
        return found.take(pa.array(_order(len(found), places)))
    except graphlib.CycleError as error:
        at, other, *_ = error.args[1]
        raise TypeError(
            f"Column {name!r} has ordered categories, and {found[other].as_py()!r:.40} stands before "
            f"{found[at].as_py()!r:.40} in some blocks and behind it in others. Give all blocks one order with "
            "map_batches(), such as batch['x'].cat.set_categories([...], ordered=True)."
        ) from None


def _order(count: int, places: Sequence[Sequence[int]]) -> list[int]:
    sorter: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter(dict.fromkeys(range(count), ()))
    for one in places:
        for before, after in itertools.pairwise(one):
            sorter.add(after, before)
    return list(sorter.static_order())


def find(values: Any, categories: Any) -> Any:
    """Return the number of the category of each value; missing where it is none of them."""
    return kinds.load("A column", "pyarrow.compute").index_in(values, categories)


def encode(values: Any, kind: Any, known: Any = None) -> Any:
    """Return values as a column of categories.

    Args:
        values: The values, as an Arrow array.
        kind: Arrow's type of a dictionary.
        known: The categories. Others that values have come behind these; None: all are in the order in which they come.
    """
    pa = kinds.load("A column")
    values = values if values.type == kind.value_type else values.cast(kind.value_type)
    if known is None:
        own = values.dictionary_encode()
        return _build(own.indices, own.dictionary, kind)
    places = find(values, known)
    if places.null_count > values.null_count:
        known = pa.concat_arrays([known, values]).unique().drop_null()
        places = find(values, known)
    return _build(places, known, kind)


def has_all(values: Any, known: Any) -> bool:
    """Return whether each value is one of the categories."""
    return bool(find(values.cast(known.type), known).null_count == values.null_count)


def _build(places: Any, categories: Any, kind: Any) -> Any:
    pa = kinds.load("A column")
    places = places.cast(_fit(kind.index_type, len(categories)))
    return pa.DictionaryArray.from_arrays(places, categories, ordered=kind.ordered)


def _fit(kind: Any, count: int) -> Any:
    """Return a type of whole numbers that has one for each category: the given one if it has."""
    pa = kinds.load("A column")
    wider = (one for one in (kind, pa.int16(), pa.int32()) if count - 1 <= np.iinfo(one.to_pandas_dtype()).max)
    return next(wider, pa.int64())


def tidy(column: Any) -> Any:
    """Return a column of categories of which none is missing: where a row has such a one, its value is missing."""
    if not column.dictionary.null_count:
        return column
    return encode(column.dictionary_decode(), column.type, column.dictionary.drop_null())


def convert(column: Any, kind: Any) -> Any:
    """Return a column of categories with numbers, or categories, of another type."""
    pa = kinds.load("A column")
    index = _fit(kind.index_type, len(column.dictionary))
    values = column.dictionary if column.type.value_type == kind.value_type else column.dictionary.cast(kind.value_type)
    return pa.DictionaryArray.from_arrays(column.indices.cast(index), values, ordered=kind.ordered)


def join(name: str, columns: Sequence[Any]) -> Any:
    """Return columns of one type, but for the width of the numbers of categories, one behind the other."""
    pa = kinds.load("A column")
    kind = columns[0].type
    if not can_find(kind):
        try:
            return pa.concat_arrays(columns)
        except pa.ArrowInvalid as error:
            raise TypeError(
                f"Column {name!r} of several blocks or chunks cannot be one of {kind}: {error} Make it another type "
                "with map_batches(), or smaller blocks with repartition()."
            ) from error
    if all(one.type == kind and one.dictionary.equals(columns[0].dictionary) for one in columns):
        return pa.concat_arrays(columns)
    known = merge(name, [one.dictionary for one in columns if len(one.dictionary)], ordered=kind.ordered)
    places = [find(one.dictionary, known).take(one.indices) for one in columns]
    return _build(pa.concat_arrays(places), known, kind)


def flatten(chunked: Any, name: str = "") -> Any:
    """Return a column of a table, or of a batch of one, as one array."""
    pa = kinds.load("A column")
    if isinstance(chunked, pa.Array):
        return chunked
    if chunked.num_chunks == 1:
        return chunked.chunk(0)
    return join(name, chunked.chunks) if chunked.num_chunks else pa.array([], chunked.type)


def can_find(kind: object) -> bool:
    """Return whether a type is one of categories of which Arrow knows equal ones."""
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
