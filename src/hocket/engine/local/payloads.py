"""Encoded values as they stand in messages and in the driver's table.

A payload is a tuple of plain data that starts with its kind. Small values are the pickle itself. Values with large
buffers keep them in a segment, whose descriptor travels beside the message.
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
descriptor comes with it. The pickle is empty if it is large itself: then it is the first buffer. `where`: the source
line that made the value. `digest`: a checksum, or None without ``HOCKET_DEBUG=1``.

In a worker the descriptor stands behind the rest once it has arrived: ``payload[-1]``."""
ERROR = 3
"""``(ERROR, pickle)``: an exception instead of a value. On its way from a worker it may have a third part: whether it
is one of those that the task's `retry_exceptions` names."""
END = 4
"""``(END, pickle)``: no value, but the end of a stream; whoever opens it gets the error that says so."""

Payload = tuple[Any, ...]

SEGMENT_BYTES = 256 * 1024
"""From this size on, buffers go to a segment. Below, a copy through the socket (some 30 us for 100 KiB) costs less than
making, sending and mapping a segment, and no descriptor: a process may have only 1,024 of those."""

NONE: Payload = (INLINE, pickle.dumps(None, pickling.PROTOCOL))


def build_small(encoded: values.Encoded) -> Payload | None:
    """Return the payload of a value that needs no segment; None if it needs one, as a large pickle always does."""
    buffers = encoded.buffers
    if not buffers:
        return (INLINE, encoded.data)
    if sum([buffer.nbytes for buffer in buffers]) < SEGMENT_BYTES:
        return (BUFFERS, encoded.data, tuple([bytes(buffer) for buffer in buffers]))
    return None


def open_payload(payload: Payload, refs: list[contract.ObjectRef[object]] | None = None) -> object:
    """Return the value of a payload that is no `SEGMENT`; raise it if it is an error."""
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
    """Return the buffers of a `SEGMENT`, mapped; `on_unmapped` is called when nothing looks into them any more."""
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
    """Return where the value was made, such as ``train.py:12``; known of large values only."""
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
