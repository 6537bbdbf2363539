"""Values as lines of JSON, and back: the format of a search's log.

JSON holds numbers, texts, lists and dicts as they are, so anyone can read the log. Other values (tuples, classes,
arrays, dicts with other keys) are pickled, and come back unchanged. A pickled number or text, such as one of NumPy, has
its plain value beside it, for viewers, which open no pickle.
"""

from __future__ import annotations

import base64
import functools
import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any, Final

import cloudpickle
import numpy as np

from hocket._base import texts
from hocket.stores import trust
from hocket.tune import errors

_PICKLED: Final = "!pickle"
_SHOWN: Final = "!shown"
_PLAIN: Final = (str, int, float, bool, type(None))


def encode(record: Mapping[str, object]) -> bytes:
    """Return a record as one line, with its line end.

    Raises:
        TuneError: A value cannot be pickled.
    """
    return json.dumps({name: _simplify(value) for name, value in record.items()}).encode() + b"\n"


def decode(line: bytes, opener: trust.Opener | None = None) -> dict[str, Any]:
    """Return the record of a line.

    Args:
        line: The line.
        opener: Opens pickled values. Default: pickled values stay as text, and no code runs.
    """
    decoder = _PLAINLY
    if opener is not None and _MARK in line:
        decoder = json.JSONDecoder(object_hook=functools.partial(_restore, opener.load))
    record: object = decoder.decode(line.decode())
    if isinstance(record, dict) and isinstance(record.get("event"), str):
        return record
    raise ValueError("it is not a record of a search")


def _simplify(value: Any) -> object:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [_simplify(inner) for inner in value]
    if kind is dict and all(type(name) is str and name != _PICKLED for name in value):
        return {name: _simplify(inner) for name, inner in value.items()}
    blob = try_pickle(value)
    if isinstance(blob, str):
        raise errors.TuneError(
            f"{texts.safe_repr(value)} cannot be kept in the log of a search: {blob}. Put only values that can be "
            "pickled into the space and the metrics, and make the others in the trial's function."
        )
    sealed: dict[str, object] = {_PICKLED: base64.b85encode(trust.note(blob)).decode()}
    shown = value.item() if isinstance(value, np.generic) else value
    if isinstance(shown, _PLAIN):
        sealed[_SHOWN] = shown
    return sealed


def _restore(load: Callable[[bytes], object], found: dict[str, Any]) -> object:
    if _PICKLED in found and found.keys() <= {_PICKLED, _SHOWN}:
        try:
            return load(base64.b85decode(found[_PICKLED]))
        except TypeError as error:  # not a text, or not a pickle that may be opened
            raise ValueError(str(error).rstrip(".")) from error
    return found


_MARK: Final = json.dumps(_PICKLED).encode()
_PLAINLY: Final = json.JSONDecoder()


def make_portable(error: BaseException) -> BaseException:
    """Return an error that can be pickled: `error` itself, or else another error with its text."""
    try:
        pickle.loads(cloudpickle.dumps(error))
    except Exception:
        return errors.TuneError(f"{texts.name_class(type(error))}: {texts.safe_text(error)}")
    return error


def try_pickle(value: object) -> bytes | str:
    """Return the pickle of a value, or the reason why it cannot be pickled."""
    try:
        blob: bytes = cloudpickle.dumps(value)
    except Exception as error:
        return f"{texts.name_class(type(error))}: {texts.safe_text(error)}"
    return blob


def read_error(blob: bytes | str, text: str) -> BaseException:
    """Return the error in a result of `try_pickle`; an error with `text` if it cannot be unpickled."""
    if isinstance(blob, bytes):
        try:
            found = pickle.loads(blob)
        except Exception:
            found = None
        if isinstance(found, BaseException):
            return found
    return errors.TuneError(text)
