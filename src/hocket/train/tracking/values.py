"""Metrics as flat numbers, and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from hocket._base import texts


def flatten(metrics: Mapping[Any, object], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value that is not a dict, with its path: ``"val/loss"``.

    Example:
        >>> dict(flatten({"loss": 0.5, "val": {"loss": 0.7}}))
        {'loss': 0.5, 'val/loss': 0.7}
    """
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def list_numbers(metrics: Mapping[Any, object]) -> dict[str, float]:
    """Return the values that are numbers, by path, including those of numpy and torch."""
    found = {key: get_optional_number(value) for key, value in flatten(metrics)}
    return {key: number for key, number in found.items() if number is not None}


def get_optional_number(value: object) -> float | None:
    """Return a value as a float; None if it is not a number."""
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        value = value.item()
    if not isinstance(value, bool | int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def encode(value: object, indent: int | None = None) -> str:
    """Return a value as JSON: null for NaN and infinities, numbers for numpy's, ``repr`` for unsupported types."""
    return json.dumps(_make_plain(value), indent=indent)


def _make_plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _make_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_make_plain(inner) for inner in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    number = get_optional_number(value)
    if number is None:
        return texts.safe_repr(value)
    if not math.isfinite(number):
        return None
    return value.item() if hasattr(value, "item") else number
