"""Errors of values that have come but cannot be unpickled in this process."""

from __future__ import annotations

from typing import Final

from hocket import exceptions
from hocket._base import texts

NOTE: Final = (
    "This was raised while this process unpickled a function with its variables, arguments or a value. "
    "An object that cannot be rebuilt from its pickle must be made where it is used."
)
"""The note on an error that was raised during decoding."""


def is_from_decoding(error: Exception) -> bool:
    """Return whether an error was raised during decoding."""
    try:
        return NOTE in getattr(error, "__notes__", ())
    except Exception:  # the error is a user's object, and its attributes may raise
        return False


def build_error(what: str, reason: Exception | str) -> exceptions.SerializationError:
    """Return the error for a value that cannot be unpickled in this process; `what` is its name."""
    told = reason if isinstance(reason, str) else texts.describe(reason)
    return exceptions.SerializationError(
        f"{what} could not be rebuilt here: {told}. An object that cannot be rebuilt from its pickle must "
        "be made where it is used: return plain data, or give its class a __reduce__ method whose arguments its "
        "constructor takes."
    )


def explain(what: str, error: Exception) -> exceptions.SerializationError:
    """Return the error for a value that cannot be decoded. The original error is its cause if user code raised that."""
    explained = build_error(what, error)
    texts.drop_own_frames(error)
    explained.__cause__ = error if texts.passed_user(error) else None
    return explained
