"""Metrics as plain data: callbacks, `Result` and later readers of a checkpoint get the values that a rank reported.

A manifest is JSON. Values that JSON would change are refused in the rank, where the traceback shows the line of the
report: keys that are not text, bytes, objects. Values with only one meaning are converted: numbers and small arrays of
numpy, JAX and TensorFlow, and tuples, which become lists.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from hocket._base import texts

MOST_ELEMENTS: Final = 1_000
"""The most elements of an array. It goes through the driver, to each callback and into the manifest. A guess."""

MOST_DEPTH: Final = 50
"""The most levels of nested dicts and lists. A guess; Python's json gives up at about a thousand."""

_LEAST_INT, _MOST_INT = -(1 << 63), (1 << 64) - 1
"""The range of integers of 64 bits, signed or unsigned. Others overflow when a logger makes floats of them, or have too
many digits to write."""


def convert(metrics: Mapping[object, object], what: str = "metrics") -> dict[str, object]:
    """Return metrics as new dicts and lists of texts, numbers, booleans and None.

    Args:
        metrics: The reported metrics.
        what: Their name in messages.

    Raises:
        TypeError: A key is not text, or a value has a type that cannot be kept.
        ValueError: A value is a torch tensor, is too large, is nested too deep, or contains itself.

    Example:
        >>> import numpy as np
        >>> from hocket.train.tracking import plain
        >>> plain.convert({"loss": np.float32(0.5), "range": (0, 1)})
        {'loss': 0.5, 'range': [0, 1]}
    """
    return _convert_dict(metrics, what, ())


def _convert(value: Any, where: str, outer: tuple[int, ...]) -> object:
    kind = type(value)
    if value is None or kind in (bool, float, str):
        return value
    if issubclass(kind, int):
        return _check_int(int.__int__(value), where)
    if issubclass(kind, float):
        return float.__float__(value)
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, Mapping):
        return _convert_dict(value, where, outer)
    if issubclass(kind, list | tuple):
        outer = _enter(value, where, outer)
        return [_convert(inner, f"{where}[{position}]", outer) for position, inner in enumerate(value)]
    if hasattr(kind, "__array__"):
        return _convert_array(value, where, outer)
    raise _build_refusal(value, where)


def _convert_dict(value: Mapping[object, object], where: str, outer: tuple[int, ...]) -> dict[str, object]:
    outer = _enter(value, where, outer)
    converted = {}
    for key, inner in value.items():
        if not issubclass(type(key), str):
            raise TypeError(
                f"Keys of metrics must be strings, but {where} has the key {texts.safe_repr(key)} "
                f"({texts.name_class(type(key))}). Write str(...) of it, or join parts of a name with '/'."
            )
        converted[str.__str__(key)] = _convert(inner, f"{where}[{texts.safe_repr(key)}]", outer)
    return converted


def _enter(value: object, where: str, outer: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ids of the dicts and lists around a value's contents, including the value itself."""
    if id(value) in outer:
        raise ValueError(f"{where} contains itself. Report plain numbers, strings, lists and dicts.")
    if len(outer) >= MOST_DEPTH:
        raise ValueError(f"{where} is nested too deep: metrics may have {MOST_DEPTH} levels. Join the keys with '/'.")
    return (*outer, id(value))


def _check_int(value: int, where: str) -> int:
    if not _LEAST_INT <= value <= _MOST_INT:
        raise ValueError(
            f"{where} is an int of {value.bit_length()} bits, but metrics take up to 64. Report float(...) or str(...) "
            "of it."
        )
    return value


def _convert_array(value: object, where: str, outer: tuple[int, ...]) -> object:
    torch = sys.modules.get("torch")  # without torch there can be no tensor, so torch is not imported for this
    if torch is not None and isinstance(value, torch.Tensor):
        raise ValueError(  # Ray's class, which programs catch
            f"{where} must be a plain value, but is a torch tensor of shape {tuple(value.shape)}. Pass its .item() for "
            "one number, or its .tolist() for several."
        )
    array = np.asarray(value)
    is_hidden = np.ma.getmaskarray(value) if isinstance(value, np.ma.MaskedArray) else None
    if (
        array.dtype.kind == "V" and "float" in array.dtype.name
    ):  # bfloat16 and the like, which numpy does not treat as numbers
        array = array.astype(np.float64)
    if array.dtype.kind not in "biufU":
        raise _build_refusal(value, where)
    if array.size > MOST_ELEMENTS:
        raise ValueError(
            f"{where} is an array of {array.size:,} elements, but metrics take up to {MOST_ELEMENTS:,}. Report its "
            "mean, or save it in the checkpoint."
        )
    if array.dtype.kind == "f":
        array = array.astype(np.float64)
    if is_hidden is not None:  # masked elements have no value
        array = array.astype(object)
        array[is_hidden] = None
    return _convert(array.tolist(), where, outer)


def _build_refusal(value: object, where: str) -> TypeError:
    return TypeError(
        f"{where} is {texts.safe_repr(value, 200)} ({texts.name_class(type(value))}), but metrics take numbers, "
        "strings, booleans, None, lists and dicts of these, and small arrays. Report a number or a string, or save it "
        "in the checkpoint."
    )


def get_metric(metrics: Mapping[str, object], name: str) -> Any:
    """Return a metric, None if it is missing; ``"a/b"`` looks into nested dicts if no key has that name.

    An integer beyond the range of floats becomes infinite.
    """
    value: Any = metrics
    for part in (name,) if name in metrics else name.split("/"):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    if isinstance(value, int) and value.bit_length() > sys.float_info.max_exp - 1:
        return math.inf if value > 0 else -math.inf
    return value
