"""Values as lines of JSON, and back: what the log of a search is made of.

Numbers, texts, lists and dicts stand there as JSON has them, so that anyone can read the log. What JSON cannot hold
(tuples, classes, arrays, dicts with other keys) is pickled, and comes back as it was. Beside a number or text of
another class stands Python's own, for viewers, which open no pickle.
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
    """Return a record as one line, with its end.

    Raises:
        TuneError: It has something that cannot be pickled.
    """
    return json.dumps({name: _simplify(value) for name, value in record.items()}).encode() + b"\n"


def decode(line: bytes, opener: trust.Opener | None = None) -> dict[str, Any]:
    """Return a record.

    Args:
        line: The line.
        opener: Opens what is pickled in it. Default: that stays as it is in the line, and no code runs.
    """
    decoder = _PLAINLY
    if opener is not None and _MARK in line:
        decoder = json.JSONDecoder(object_hook=functools.partial(_restore, opener.load))
    record: object = decoder.decode(line.decode())
    if isinstance(record, dict) and isinstance(record.get("event"), str):
        return record
    raise ValueError("it is no record of a search")


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
            f"{texts.safe_repr(value)} cannot be kept in the log of a search: {blob}. Have the space and metrics hold "
            "what can be pickled, and make the rest in the trial's function."
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
        except TypeError as error:  # it is no text, or no pickle that can be opened
            raise ValueError(str(error).rstrip(".")) from error
    return found


_MARK: Final = json.dumps(_PICKLED).encode()
_PLAINLY: Final = json.JSONDecoder()


def make_portable(error: BaseException) -> BaseException:
    """Return an error that can be pickled: another one with its text, if it cannot."""
    try:
        pickle.loads(cloudpickle.dumps(error))
    except Exception:
        return errors.TuneError(f"{texts.name_class(type(error))}: {texts.safe_text(error)}")
    return error


def try_pickle(value: object) -> bytes | str:
    """Return a value pickled, or why it cannot be."""
    try:
        blob: bytes = cloudpickle.dumps(value)
    except Exception as error:
        return f"{texts.name_class(type(error))}: {texts.safe_text(error)}"
    return blob


def read_error(blob: bytes | str, text: str) -> BaseException:
    """Return an error that `try_pickle` was given; one with its text if that cannot be had."""
    if isinstance(blob, bytes):
        try:
            found = pickle.loads(blob)
        except Exception:
            found = None
        if isinstance(found, BaseException):
            return found
    return errors.TuneError(text)
