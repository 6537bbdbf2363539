"""The file that a pickler writes to, which puts large `bytes` beside the pickle, as picklers do with buffers.

A pickler asks ``buffer_callback`` about the buffers of arrays only. It hands `bytes` and `bytearray` objects of 64 KiB
or more to its file as they are, in a call of ``write`` of their own, and their header is the end of the call before
(CPython's pickler in C; PEP 3154 has the frames). So the file can keep the object itself, and replace its header by the
opcodes that make the object from the next buffer. Whatever a pickler writes in another way stays in the pickle.
"""

from __future__ import annotations

import pickle
from typing import Final, final

_TAKE_BUFFER: Final = pickle.NEXT_BUFFER + pickle.TUPLE1 + pickle.REDUCE


@final
class PickleStream:
    """A file for one pickle.

    Args:
        buffers: Takes the memory of large objects; the pickler's ``buffer_callback`` must append to the same list,
            since a pickle takes its buffers in order. None: all objects stay in the pickle.
        beside_bytes: The size from which an object is large, 64 KiB or more.
    """

    __slots__ = ("_beside_bytes", "_buffers", "_chunks", "size")

    def __init__(self, buffers: list[memoryview] | None, beside_bytes: int) -> None:
        self._buffers = buffers
        self._beside_bytes = beside_bytes
        self._chunks: list[bytes] = []
        self.size = 0
        """The size of the pickle in bytes."""

    def write(self, data: bytes | bytearray | pickle.PickleBuffer) -> int:
        """Take the next part of the pickle. Called by the pickler."""
        if isinstance(data, pickle.PickleBuffer):  # that is to stay in the pickle
            data = bytes(data)
        size = len(data)
        if self._buffers is not None and size >= self._beside_bytes and self._begin_beside(data):
            self._buffers.append(memoryview(data))
            return size
        self._chunks.append(data if type(data) is bytes else bytes(data))
        self.size += size
        return size

    def _begin_beside(self, data: bytes | bytearray) -> bool:
        """Replace the header of an object; return False if the last part does not end with a header of this object."""
        if not self._chunks or _is_frame(data):
            return False
        last, size = self._chunks[-1], len(data)
        if type(data) is bytes:
            header, rebuild = pickle.BINBYTES + size.to_bytes(4, "little") if size < 1 << 32 else b"", b"bytes"
            header = header or pickle.BINBYTES8 + size.to_bytes(8, "little")
        else:
            header, rebuild = pickle.BYTEARRAY8 + size.to_bytes(8, "little"), b"bytearray"
        if not last.endswith(header):
            return False
        self._chunks[-1] = last[: -len(header)] + pickle.GLOBAL + b"builtins\n" + rebuild + b"\n" + _TAKE_BUFFER
        self.size += len(self._chunks[-1]) - len(last)
        return True

    def getvalue(self) -> bytes:
        """Return the pickle."""
        return b"".join(self._chunks)


def _is_frame(data: bytes | bytearray) -> bool:
    """Return whether data may be a part of a pickle, and no object of the user's: such parts begin with a frame."""
    return data[:1] == pickle.FRAME and int.from_bytes(data[1:9], "little") <= len(data) - 9
