"""Memory that processes of one machine share, without a name in the file system.

It is a memfd of the process that made it, the *owner*: the driver, or an actor on another machine that does nothing
else. The other processes open it below ``/proc``. All state that must outlive a server or a worker lies in such memory,
so a killed process takes no number with it. The memory ends only with the owner and all processes that opened it.

Untouched pages take no memory, so a store reserves generously: a table has room for a before-image of all of its rows.
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
"""Bytes of a processor's cache line. Each array begins on a line of its own."""


@final
@dataclass(frozen=True, slots=True)
class MemoryRef:
    """The location of a memory. It can be pickled."""

    path: str
    """The owner's descriptor, below ``/proc``."""
    identity: str
    """The file's identity among all files of all machines."""
    nbytes: int


@final
class Memory:
    """A memory, as this process sees it. Made by `create` or `open_memory`; it ends with its last array.

    The object closes the memfd `descriptor`.
    """

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self._bytes: Array = _map(descriptor, nbytes)
        self.ref: Final = MemoryRef(f"/proc/{os.getpid()}/fd/{descriptor}", segment.identify(descriptor), nbytes)
        self._end = weakref.finalize(self, os.close, descriptor)
        self._end.atexit = False

    @property
    def address(self) -> int:
        """The address of the first byte in this process."""
        return int(self._bytes.ctypes.data)

    def view(self, offset: int, shape: Sequence[int], dtype: Any) -> Array:
        """Return a part of the memory as an array that shares its bytes."""
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        part: Array = self._bytes[offset : offset + count].view(kind).reshape(tuple(shape))
        return part

    def close(self) -> None:
        """Close the descriptor: no process can open the memory here any more. Existing arrays stay valid."""
        self._end()


def _map(descriptor: int, nbytes: int) -> Array:
    """Return a file's bytes as an array that shares them. The `mmap` module would keep a descriptor for each mapping,
    and models have hundreds of variables."""
    address = _library.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    if address == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"{os.strerror(code)} (mapping {nbytes:,} bytes)")
    block = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(block, _library.munmap, address, nbytes).atexit = False
    mapped: Array = np.frombuffer(memoryview(block).cast("B"), np.uint8)
    return mapped


def create(nbytes: int, purpose: str) -> Memory:
    """Make a memory full of zeros. It takes no physical memory until it is touched."""
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
        opened.close()  # the mapping is enough: other processes open the owner's descriptor
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
class SegmentPlan:
    """A layout of arrays one behind the other: `add` each, create a memory of `nbytes`, then `view` the arrays in it.

    Example:
        >>> from hocket.ps.stores import memory
        >>> plan = memory.SegmentPlan()
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
