"""Preprocessors as JSON that people can read.

Numbers, texts, lists and dicts stay as they are. A value that JSON lacks is a dict with one key that begins with ``$``,
such as ``{"$date": "2026-01-01"}``. Floats keep each digit. A function is ``{"$function": "module:name"}``. Reading it
imports the module, so the reader must allow that.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import importlib
import json
import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from hocket._base import texts
from hocket.data.arrow import frames
from hocket.data.preprocessors import categories

_FORMAT = 1
"""The version of the format. A reader refuses other versions."""


class Saved(Protocol):
    """A preprocessor that can be saved."""

    stats_: dict[str, Any]

    def _list_arguments(self) -> dict[str, object]: ...


_KNOWN: dict[str, Any] = {}


def register(kind: type) -> None:
    """Make a class known to `read` by its name."""
    _KNOWN[kind.__name__] = kind


def write(preprocessor: Saved) -> str:
    """Return a preprocessor as JSON."""
    text: str = json.dumps({"hocket_preprocessor": _FORMAT, **_list_parts(preprocessor)}, indent=1, ensure_ascii=False)
    return text


def read(text: str, *, allow_functions: bool) -> object:
    """Return the preprocessor that JSON describes.

    Raises:
        ValueError: The JSON describes no preprocessor, or names functions that may not be imported.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"This is not a saved preprocessor, because it is not JSON: {error}. Pass what save() wrote."
        ) from None
    version = found.get("hocket_preprocessor") if isinstance(found, dict) else None
    if version != _FORMAT:
        raise ValueError(
            f'A saved preprocessor begins with "hocket_preprocessor": {_FORMAT}, but this text has {version!r} there. '
            "Pass what save() of this version of Hocket wrote."
        )
    try:
        return _build(found, allow_functions)
    except (TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(
            f"This saved preprocessor is damaged: {texts.describe(error, 200)}. Pass what save() wrote."
        ) from error


def _list_parts(preprocessor: Saved) -> dict[str, object]:
    arguments = {name: _encode(name, value) for name, value in preprocessor._list_arguments().items()}
    stats = {name: _encode(name, value) for name, value in getattr(preprocessor, "stats_", {}).items()}
    return {"name": type(preprocessor).__name__, "arguments": arguments, "stats": stats}


def _build(found: Mapping[str, Any], allow_functions: bool) -> object:
    kind = _KNOWN.get(found.get("name", ""))
    if kind is None:
        raise ValueError(
            f"No preprocessor has the name {found.get('name')!r}: the known names are {', '.join(sorted(_KNOWN))}. "
            "Import the module that defines it."
        )
    arguments = {name: _decode(value, allow_functions) for name, value in found.get("arguments", {}).items()}
    stats = {name: _decode(value, allow_functions) for name, value in found.get("stats", {}).items()}
    return kind._build(arguments, stats)


# --- values -----------------------------------------------------------------------------------------------------------


def describe(value: object) -> str:
    """Return the text of a value as in `repr`, but a function's name for a function."""
    if isinstance(value, list | tuple) and any(hasattr(one, "_list_arguments") for one in value):
        return f"[{', '.join(map(repr, value))}]"
    if isinstance(value, np.dtype):
        return repr(value.name)
    return getattr(value, "__qualname__", None) or repr(value)


def _encode(where: str, value: object) -> object:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, list):
        return [_encode(where, one) for one in value]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _encode(where, one) for key, one in value.items()}
        return {"$map": [[_encode(where, key), _encode(where, one)] for key, one in value.items()]}
    word, plain = _tag(where, value)
    return {f"${word}": plain}


def _tag(where: str, value: Any) -> tuple[str, object]:
    if isinstance(value, tuple):
        return "tuple", [_encode(where, one) for one in value]
    if isinstance(value, bytes):
        return "bytes", base64.b64encode(value).decode()
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):  # only pandas' times have nanoseconds
        return "timestamp" if isinstance(value, dt.datetime) else "timespan", value.isoformat()
    if isinstance(value, dt.datetime):
        return "datetime", value.isoformat()
    if isinstance(value, dt.date):
        return "date", value.isoformat()
    if isinstance(value, dt.time):
        return "time", value.isoformat()
    if isinstance(value, dt.timedelta):
        return "timedelta", [value.days, value.seconds, value.microseconds]
    if isinstance(value, decimal.Decimal):
        return "decimal", str(value)
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return "dtype", np.dtype(value).name
    if isinstance(value, categories.Categories):
        return "categories", [_encode(where, list(value.values)), value.ordered]
    if hasattr(value, "_list_arguments"):
        return "preprocessor", _list_parts(value)
    return "function", _name(where, value)


def _name(where: str, value: object) -> str:
    owner = getattr(value, "__objclass__", value)  # for a method of a built-in class, such as str.split
    module, name = getattr(owner, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__" or "<" in name:
        raise TypeError(
            f"{where} is {value!r:.80}, which cannot be saved as JSON. Only plain values, and functions of an "
            "importable module, can be saved. Move the function into a module, or use pickle."
        )
    return f"{module}:{name}"


def _decode(value: object, allow_functions: bool) -> object:
    if isinstance(value, list):
        return [_decode(one, allow_functions) for one in value]
    if not isinstance(value, dict):
        return value
    tags = [key for key in value if key.startswith("$")]
    if not tags:
        return {key: _decode(one, allow_functions) for key, one in value.items()}
    word, plain = tags[0][1:], value[tags[0]]
    if word == "function":
        return _import(plain, allow_functions)
    if word == "preprocessor":
        return _build(plain, allow_functions)
    if word not in _READERS:
        raise ValueError(
            f"A saved preprocessor has a value of the unknown kind {word!r}. Use a newer version of Hocket."
        )
    return _READERS[word](_decode(plain, allow_functions))


_READERS: dict[str, Any] = {
    "map": dict,
    "tuple": tuple,
    "float": float,
    "bytes": base64.b64decode,
    "datetime": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "time": dt.time.fromisoformat,
    "timedelta": lambda parts: dt.timedelta(*parts),
    "decimal": decimal.Decimal,
    "dtype": np.dtype,
    "timestamp": lambda text: frames.load("A preprocessor with nanoseconds", "leave them out").Timestamp(text),
    "timespan": lambda text: frames.load("A preprocessor with nanoseconds", "leave them out").Timedelta(text),
    "categories": lambda parts: categories.Categories(tuple(parts[0]), parts[1]),
}


def _import(name: str, allow_functions: bool) -> object:
    if not allow_functions:
        raise ValueError(
            f"This preprocessor calls the function {name!r}, which load() would import. If you trust the author, "
            "write load(path, allow_functions=True)."
        )
    module, _, path = name.partition(":")
    found: object = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found
