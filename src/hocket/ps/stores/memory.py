"""Memory that processes of one machine share, without a name.

It is a memfd of whoever made it (the *owner*: the driver, or on another machine an actor that does nothing else), which
the others open below ``/proc``. All that must outlive a server or a worker lies in such memory, so a process can be
killed at any time without taking a number with it: the memory is gone only when the owner and all who opened it are.

Pages that nobody has touched cost nothing, so a store reserves memory generously: a table has room for a before-image
of all of its rows.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from hocket.collective import segment
from hocket.ps import errors

Array: TypeAlias = npt.NDArray[Any]

_library: Any = ctypes.CDLL(None, use_errno=True)
_library.mmap.restype = ctypes.c_void_p
_library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

_MAP_FAILED: Final = ctypes.c_void_p(-1).value

LINE: Final = 64
"""Bytes that processors hand to each other at once. Each array begins on a line of its own."""


@final
@dataclass(frozen=True, slots=True)
class MemoryRef:
    """Where to find a memory. It can travel."""

    path: str
    """Below ``/proc``: the owner's descriptor."""
    identity: str
    """What tells it from all other files of all machines."""
    nbytes: int


@final
class Memory:
    """A memory, as this process sees it. Made by `create` or `open_memory`; gone with its last array.

    It closes the memfd that it is given.
    """

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self._bytes: Array = _map(descriptor, nbytes)
        self.ref: Final = MemoryRef(f"/proc/{os.getpid()}/fd/{descriptor}", segment.identify(descriptor), nbytes)
        self._end = weakref.finalize(self, os.close, descriptor)
        self._end.atexit = False

    @property
    def address(self) -> int:
        """Where it begins in this process."""
        return int(self._bytes.ctypes.data)

    def view(self, offset: int, shape: Sequence[int], dtype: Any) -> Array:
        """Return a part as an array that is the memory."""
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        part: Array = self._bytes[offset : offset + count].view(kind).reshape(tuple(shape))
        return part

    def close(self) -> None:
        """Give up the descriptor: nobody can open it here any more. Arrays go on."""
        self._end()


def _map(descriptor: int, nbytes: int) -> Array:
    """Return a file's bytes as an array that is the file. The `mmap` module would keep a descriptor for each, and
    models have hundreds of variables."""
    address = _library.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    if address == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"{os.strerror(code)} (mapping {nbytes:,} bytes)")
    block = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(block, _library.munmap, address, nbytes).atexit = False
    mapped: Array = np.frombuffer(memoryview(block).cast("B"), np.uint8)
    return mapped


def create(nbytes: int, purpose: str) -> Memory:
    """Make a memory full of zeros, none of which costs anything yet."""
    descriptor = os.memfd_create(f"hocket-ps-{purpose}"[:200])
    try:
        os.ftruncate(descriptor, nbytes)
        return Memory(descriptor, nbytes)
    except BaseException:
        os.close(descriptor)
        raise


def open_memory(ref: MemoryRef) -> Memory:
    """Open a memory that another process keeps."""
    try:
        descriptor = os.open(ref.path, os.O_RDWR)
    except FileNotFoundError as error:
        raise errors.ServerLostError(
            f"{ref.path} is gone: the process that kept the variables has ended. Make a new ParameterServerStrategy "
            "and restore a checkpoint."
        ) from error
    try:
        if segment.identify(descriptor) != ref.identity:
            raise FileNotFoundError(f"{ref.path} is another file here.")
        opened = Memory(descriptor, ref.nbytes)
        opened.close()  # the mapping is enough: others come to the owner
        return opened
    except BaseException:
        os.close(descriptor)
        raise


def is_reachable(ref: MemoryRef) -> bool:
    """Tell whether this process shares memory with the owner."""
    with contextlib.suppress(OSError):
        found = Path(ref.path).stat()
        return ref.identity == f"{segment.identify_host()}/{found.st_dev}/{found.st_ino}"
    return False


@final
class Plan:
    """Lays out arrays one behind the other: `add` each, then make `nbytes` of memory, then `view` them.

    Example:
        >>> from hocket.ps.stores import memory
        >>> plan = memory.Plan()
        >>> plan.add("counts", (2,), "int64")
        >>> plan.add("values", (2, 3), "float32")
        >>> kept = memory.create(plan.nbytes, "example")
        >>> {name: array.shape for name, array in plan.view(kept).items()}
        {'counts': (2,), 'values': (2, 3)}
    """

    def __init__(self) -> None:
        self._parts: list[tuple[str, int, tuple[int, ...], object]] = []
        self.nbytes = 0

    def add(self, name: str, shape: Sequence[int], dtype: Any) -> None:
        """Reserve room for an array."""
        self._parts.append((name, self.nbytes, tuple(shape), dtype))
        count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        self.nbytes = -(-(self.nbytes + max(count, 1)) // LINE) * LINE

    def view(self, kept: Memory) -> dict[str, Array]:
        """Return the arrays, as parts of a memory."""
        return {name: kept.view(offset, shape, dtype) for name, offset, shape, dtype in self._parts}
