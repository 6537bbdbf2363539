"""Checks of the numbers and arrays that users pass."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

import numpy as np


def require_number(
    name: str, value: object, rule: str, remedy: str, *, low: float = 0, high: float = math.inf, open_low: bool = False
) -> float:
    """Return a number as a float, if it lies in a range.

    Args:
        name: The name of the argument that the user passed.
        value: The argument's value.
        rule: The range in words: "must be ...".
        remedy: The advice at the end of the message, as a sentence.
        low: The least number allowed.
        high: The upper bound, which is not allowed itself.
        open_low: Whether `low` itself is not allowed.

    Example:
        >>> require_number("momentum", 0, "must be from 0 to less than 1", "Write 0.9.", low=0, high=1)
        0.0
    """
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        number = float(value)
        if (number > low if open_low else number >= low) and number < high:
            return number
    raise ValueError(f"{name} {rule}, but received {value!r}. {remedy}")


def require_finite(name: str, value: object, remedy: str) -> float:
    """Return a number as a float, if it is finite.

    Example:
        >>> require_finite("scale", -1, "Leave it out for 1.")
        -1.0
    """
    return require_number(name, value, "must be a finite number", remedy, low=-math.inf, open_low=True)


def require_count(name: str, value: object, remedy: str, *, least: int = 1) -> int:
    """Return a whole number as an int, if it is large enough.

    Example:
        >>> require_count("num_shards", 3, "Write 1 for no shards.")
        3
    """
    if not isinstance(value, bool):
        try:
            count = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
        else:
            if count >= least:
                return count
    raise ValueError(f"{name} must be a whole number from {least}, but received {value!r}. {remedy}")


def read_ids(given: object) -> np.ndarray[Any, Any]:
    """Return row numbers as an array. An empty list becomes an empty int64 array (numpy would make it floats).

    Example:
        >>> read_ids([]).dtype
        dtype('int64')
    """
    found = np.asarray(given)
    return found.astype(np.int64) if not found.size and isinstance(given, list | tuple) else found


def fit_into(name: str, value: object, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Convert a value to the type of the variable or table, if the conversion keeps the numbers.

    Example:
        >>> fit_into("counter", [1, 2], np.dtype(np.int8))
        array([1, 2], dtype=int8)
    """
    given = np.asarray(value)
    are_whole = given.dtype.kind in "iu" and dtype.kind in "iu"
    if not are_whole and not np.can_cast(given.dtype, dtype, "same_kind"):
        raise TypeError(
            f"`{name}` holds {dtype}, but received {given.dtype}, which cannot be converted safely. Write "
            f"value.astype({str(dtype)!r})."
        )
    found = given.astype(dtype, copy=False)
    if are_whole and not np.can_cast(given.dtype, dtype) and not np.array_equal(found, given):
        raise OverflowError(
            f"`{name}` holds {dtype}, which cannot hold {given[found != given].flat[0]}. Make it with a larger dtype."
        )
    return found
