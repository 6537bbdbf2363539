"""Numbers, texts and other values, read from a block's columns."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hocket.data import blocks, columns

Floats: TypeAlias = npt.NDArray[np.float64]


def get_numbers(block: blocks.Block, name: str, who: str) -> Floats:
    """Return a column as floats, with NaN for missing values.

    Args:
        block: The rows.
        name: The column.
        who: The name of the preprocessor, for the error.
    """
    array = columns.to_numpy(block.columns[name])
    if array.ndim == 1 and array.dtype.kind in "biuf":
        return array.astype(np.float64)
    if array.ndim == 1 and array.dtype.kind == "O":
        values = array.tolist()
        if all(value is None or isinstance(value, int | float | decimal.Decimal | np.number) for value in values):
            return np.array([np.nan if value is None else float(value) for value in values], np.float64)
    raise build_mismatch(block, name, f"{who} needs one number for each row")


def get_values(block: blocks.Block, name: str) -> list[Any]:
    """Return a column as Python values: None for missing values, lists for arrays."""
    return [_simplify(value) for value in columns.to_values(block.columns[name])]


def _simplify(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return None if isinstance(value, float) and math.isnan(value) else value


def put_into_utc(value: object) -> object:
    """Return a time without a zone as a time in UTC, and any other value unchanged."""
    return value.replace(tzinfo=dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo is None else value


def take_from_zone(value: object) -> object:
    """Return a time with a zone in numpy's form, which is UTC without a zone, and any other value unchanged."""
    return value.astimezone(dt.UTC).replace(tzinfo=None) if isinstance(value, dt.datetime) and value.tzinfo else value


def get_texts(block: blocks.Block, name: str, who: str) -> list[str | None]:
    """Return a column as texts, with None for missing values."""
    values = get_values(block, name)
    if not all(value is None or isinstance(value, str) for value in values):
        raise build_mismatch(block, name, f"{who} needs texts")
    return values


def check_present(values: Sequence[object], name: str, who: str) -> None:
    """Raise if a value is missing."""
    gaps = sum(value is None for value in values)
    if gaps:
        raise ValueError(
            f"{who} cannot encode missing values, but {gaps} of {len(values)} values of column {name!r} are None or "
            f"NaN. Fill them first: SimpleImputer([{name!r}], strategy='most_frequent')."
        )


def build_mismatch(block: blocks.Block, name: str, rule: str) -> TypeError:
    """Return the error for a column of the wrong kind."""
    column = block.columns[name]
    example = next((value for value in get_values(block, name) if value is not None), None)
    return TypeError(
        f"{rule}, but column {name!r} holds {columns.describe(column)}, such as {example!r:.40}. Choose another "
        "column, or change it with map_batches()."
    )
