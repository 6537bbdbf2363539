"""Payloads: encoded values in the kernel's tables, ``(is_error, pickle, buffers)``. All parts are copies."""

from __future__ import annotations

from typing import Any

from hocket.engine import contract, unsendable, values

Payload = tuple[Any, ...]
"""An encoded value: ``(is_error, pickle, buffers)``."""


def encode(value: object) -> tuple[Payload, tuple[int, ...]]:
    """Return a value's payload, and the ids of the references inside it."""
    encoded = values.encode(value, by_index=True)
    return build(encoded), tuple([ref._id for ref in encoded.refs])


def encode_result(value: object, what: str) -> tuple[Payload, tuple[int, ...]]:
    """Return the payload of a result or an item, and the ids of the references inside it; `what` names it in errors."""
    encoded = values.encode(value, what, unsendable.explain_result, by_index=True)
    return build(encoded), tuple([ref._id for ref in encoded.refs])


def build(encoded: values.Encoded) -> Payload:
    """Return the payload of an encoded value."""
    pickled, arrays = encoded.split()
    return (False, pickled, [bytes(array) for array in arrays])


def encode_error(error: BaseException) -> Payload:
    """Return the payload of an exception."""
    return (True, values.encode_error(error), [])


def decode(payload: Payload, refs: list[contract.AnyRef] | None = None) -> Any:
    """Return a new value; `refs` are handles for the references inside."""
    return values.decode(payload[1], [bytearray(buffer) for buffer in payload[2]], refs)


def measure(payload: Payload) -> int:
    """Return the bytes that a payload takes."""
    return len(payload[1]) + sum(map(len, payload[2]))
