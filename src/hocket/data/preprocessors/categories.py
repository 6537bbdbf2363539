"""Categories: the different values of a column, and columns of the categories' numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from hocket.data import arrow
from hocket.data.preprocessors import inputs

Index: TypeAlias = dict[Any, int]
"""The number of each category."""


@final
@dataclass(frozen=True)
class Categories:
    """The values that a column may have.

    Args:
        values: The values.
        ordered: Whether the order of the values has a meaning.
    """

    values: tuple[Any, ...]
    ordered: bool = False


def read_categories(name: str, given: Any) -> Categories:
    """Return a user's list or `pandas.CategoricalDtype` as categories."""
    if isinstance(given, Categories):
        return given
    if isinstance(given, Sequence) and not isinstance(given, str):
        return Categories(tuple(given))
    if getattr(given, "categories", None) is not None and hasattr(given, "ordered"):
        return Categories(tuple(given.categories.tolist()), bool(given.ordered))
    raise TypeError(
        f"dtypes needs categories for column {name!r}, but received {given!r:.80}. Write {{{name!r}: "
        "pandas.CategoricalDtype(['a', 'b'])}, or a list."
    )


def freeze(value: object) -> object:
    """Return a value that can be a key of a dict: a list becomes a tuple."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return tuple(map(freeze, value)) if isinstance(value, list | tuple) else value


def find_codes(values: Sequence[object], index: Mapping[object, int]) -> list[int | None]:
    """Return the number of each value's category; None if it has none. If the categories have time zones, a time
    without one counts as UTC, because numpy's times have no zone."""
    have_zones = getattr(next(iter(index), None), "tzinfo", None) is not None
    found = []
    for value in values:
        try:
            found.append(index.get(inputs.put_into_utc(value) if have_zones else freeze(value)))
        except TypeError:  # a dict cannot be a key
            found.append(None)
    return found


def build_numbers(codes: Sequence[int | None]) -> npt.NDArray[Any]:
    """Return the numbers of categories as an array: whole numbers, or floats with NaN if a number is missing."""
    if None in codes:
        return np.array([np.nan if code is None else code for code in codes], np.float64)
    return np.array(codes, np.int64)


def build_column(codes: Sequence[int | None], known: Categories) -> object:
    """Return a column of categories: an Arrow dictionary, which pandas reads as categorical; without Arrow, objects."""
    values = arrow.get_optional_array(list(known.values))
    if values is None:
        return [None if code is None else known.values[code] for code in codes]
    pa = arrow.load("A column of categories")
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), values, ordered=known.ordered)
