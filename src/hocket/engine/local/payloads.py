"""Encoded values as they stand in messages and in the driver's table.

A payload is a tuple of plain data that starts with its kind. A small value is the pickle itself. A value with large
buffers keeps them in a segment, and the segment's descriptor travels with the message.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from hocket import exceptions
from hocket.engine import contract, pickling, values
from hocket.engine.local import segments

INLINE = 0
"""``(INLINE, pickle)``"""
BUFFERS = 1
"""``(BUFFERS, pickle, (bytes, ...))``: some buffers, too small together for a segment."""
SEGMENT = 2
"""``(SEGMENT, pickle, object_id, size, layout, where, digest)``: buffers in shared memory or in a spill file; a
descriptor comes with the payload. A large pickle is the first buffer, and then `pickle` is empty. `where`: the source
line that made the value. `digest`: a checksum, or None without ``HOCKET_DEBUG=1``.

In a worker, the descriptor is added as the last part when it has arrived: ``payload[-1]``."""
ERROR = 3
"""``(ERROR, pickle)``: an exception instead of a value. On its way from a worker it may have a third part: whether the
task's `retry_exceptions` names the exception."""
END = 4
"""``(END, pickle)``: no value, but the end of a stream; opening it raises the error that says so."""

Payload = tuple[Any, ...]

SEGMENT_BYTES = 256 * 1024
"""From this size on, buffers go to a segment. Below, a copy through the socket (some 30 us for 100 KiB) costs less than
making, sending and mapping a segment. It also needs no descriptor, of which a process may have only 1,024."""

NONE: Payload = (INLINE, pickle.dumps(None, pickling.PROTOCOL))


def build_small(encoded: values.Encoded) -> Payload | None:
    """Return the payload of a value that needs no segment; None if it needs one, as each large pickle does."""
    buffers = encoded.buffers
    if not buffers:
        return (INLINE, encoded.data)
    if sum([buffer.nbytes for buffer in buffers]) < SEGMENT_BYTES:
        return (BUFFERS, encoded.data, tuple([bytes(buffer) for buffer in buffers]))
    return None


def open_payload(payload: Payload, refs: list[contract.ObjectRef[object]] | None = None) -> object:
    """Return the value of a payload that is no `SEGMENT`; raise the exception of an error."""
    kind = payload[0]
    if kind == BUFFERS:
        # Each reader gets writable memory of its own, as with a private mapping.
        return values.decode(payload[1], [bytearray(buffer) for buffer in payload[2]], refs)
    if kind >= ERROR:
        exceptions.raise_stored(values.decode(payload[1]))
    return values.decode(payload[1], (), refs)


def open_segment(
    payload: Payload, fd: int, on_unmapped: Callable[[], None], refs: list[contract.ObjectRef[object]] | None
) -> object:
    """Return the value of a `SEGMENT`."""
    return values.decode(payload[1], map_segment(payload, fd, on_unmapped), refs)


def map_segment(payload: Payload, fd: int, on_unmapped: Callable[[], None]) -> list[memoryview]:
    """Return the mapped buffers of a `SEGMENT`; `on_unmapped` is called when no object refers to them any more."""
    buffers = segments.map_private(fd, payload[3], payload[4], on_unmapped)
    if payload[6] is not None:
        _check_digest(payload, buffers)
    return buffers


def _check_digest(payload: Payload, buffers: list[memoryview]) -> None:
    found = segments.digest(buffers)
    if found != payload[6]:
        raise exceptions.ObjectLostError(
            f"ObjectRef({payload[2]:016x}), made at {payload[5]}, does not hold what was stored: its checksum is "
            f"{found:08x} and was {payload[6]:08x}. Something wrote to its memory or its file: look for native code "
            "that writes past the end of an array, and for a faulty disk."
        )


def get_source_line(payload: Payload) -> str:
    """Return the source line that made the value, such as ``train.py:12``; empty for small values."""
    return str(payload[5]) if payload[0] == SEGMENT else ""


def measure(payload: Payload) -> int:
    """Return how many bytes the value takes."""
    kind = payload[0]
    size: int = len(payload[1])
    if kind == BUFFERS:
        size += sum(map(len, payload[2]))
    elif kind == SEGMENT:
        size += payload[3]
    return size


def encode_error(error: BaseException) -> Payload:
    """Return the payload of an exception."""
    return (ERROR, values.encode_error(error))


_END_ERROR = exceptions.ObjectRefStreamEndOfStreamError("The generator has ended: there is no further item.")

STREAM_END: Payload = (END, pickle.dumps(_END_ERROR, pickling.PROTOCOL))
