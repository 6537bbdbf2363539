"""Memory for large values: anonymous files, passed on as descriptors and pooled while warm.

A *segment* is a memfd: it has no name, is not in /dev/shm, is not bounded by the size of that mount, and is gone with
its last descriptor and mapping, however its users die. The process that creates a value writes the segment. Each reader
maps it privately (copy-on-write), so a reader may write to its array and no other process sees that.

A *spill file* is the same on disk: same layout, no name either (see `spill`). A reader maps it exactly as it maps a
segment, and cannot see the difference.

A segment of a freed object goes back to the pool of its creator. That is worth the trouble. Measured on a 2-core
x86-64 box, 800 MB, in GB/s: first touch through a mapping 1.7, with ``MAP_POPULATE`` 2.3, by ``pwrite`` 4.3; into warm
pages through a mapping 12.7 (memcpy: 13.8), with two threads 22, by ``pwrite`` 5.8. So a new segment is written by
``pwrite`` and mapped when it is used again.

Reuse is safe because a private mapping holds a count on its object for as long as any array refers to it.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Sequence

from hocket.engine.local import spill

ALIGNMENT = 64
"""Buffers start on cache lines, which suits numpy and torch."""

POOL_BYTES = 2 << 30
"""Warm memory kept for reuse in one process; more is given back to the system. A guess: two copies of a large
model's gradients."""

PARALLEL_BYTES = 32 << 20
"""From this size on a copy runs in two threads and without the interpreter lock; it takes some 3 ms, a thread 0.1."""

Layout = tuple[tuple[int, int], ...]
"""Offset and length of each buffer."""

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
_MAP_POPULATE = getattr(mmap, "MAP_POPULATE", 0x8000)


class Segment:
    """A memfd, and from its second use on the shared mapping of the process that created it.

    Raises:
        OSError: No memory, or no descriptor.
    """

    __slots__ = ("_is_written", "_lost", "_mapping", "capacity", "fd")

    is_file = False

    def __init__(self, capacity: int, lost: deque[int]) -> None:
        """Make a segment.

        Args:
            capacity: The size in bytes.
            lost: Receives the capacity if the segment is collected without having been closed: an interrupt (Ctrl-C)
                may hit the few instructions in which only a local variable holds the segment.
        """
        self.fd = -1
        self.capacity = capacity
        self._lost = lost
        self._mapping: mmap.mmap | None = None
        self._is_written = False
        self.fd = os.memfd_create("hocket", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.fd, capacity)
        except OSError:
            self.close()
            raise

    def write(self, buffers: Sequence[memoryview], layout: Layout) -> None:
        """Copy the buffers in."""
        if not self._is_written:
            self._is_written = True
            write_all(self.fd, buffers, layout)
            return
        if self._mapping is None:
            self._mapping = mmap.mmap(self.fd, self.capacity, mmap.MAP_SHARED | _MAP_POPULATE)
        with memoryview(self._mapping) as target:
            for buffer, (offset, size) in zip(buffers, layout, strict=True):
                with target[offset : offset + size] as part:
                    _copy(part, buffer)

    def close(self) -> None:
        """Give the memory back."""
        if self._mapping is not None:
            self._mapping.close()
        os.close(self.fd)
        self.fd = -1

    def __del__(self) -> None:
        if self.fd >= 0:
            self.close()
            self._lost.append(self.capacity)


class SegmentPool:
    """Segments of this process: segments in use, by object, and free, warm segments.

    The owner's lock guards it.
    """

    def __init__(self) -> None:
        #: The files of the living objects that this process made: segments, and spill files.
        self.used: dict[int, Segment | SpillFile] = {}
        #: The bytes of all segments that were not lost.
        self.bytes = 0
        self.free_bytes = 0
        self._free: dict[int, list[Segment]] = {}
        self._lost: deque[int] = deque()

    def take_new(self, capacity: int) -> Segment:
        """Return a new segment, which counts from now on."""
        segment = Segment(capacity, self._lost)
        self.bytes += capacity
        return segment

    def count_bytes(self) -> int:
        """Return the bytes of all segments, free and warm ones included; spill files are not memory."""
        while self._lost:
            self.bytes -= self._lost.popleft()
        return self.bytes

    def take_warm(self, capacity: int) -> Segment | None:
        """Return a free segment of that capacity, which is in use from now on."""
        free = self._free.get(capacity)
        if not free:
            return None
        self.free_bytes -= capacity
        return free.pop()

    def put_back(self, segment: Segment) -> None:
        """Keep an unused segment warm, or give it back to the system."""
        if self.free_bytes + segment.capacity > POOL_BYTES:
            self.discard(segment)
        else:
            self.free_bytes += segment.capacity
            self._free.setdefault(segment.capacity, []).append(segment)

    def recycle(self, object_id: int) -> None:
        """Put a freed object's segment back into the pool, or close its spill file."""
        held = self.used.pop(object_id, None)
        if isinstance(held, Segment):
            self.put_back(held)
        elif held is not None:
            held.close()

    def discard(self, segment: Segment) -> None:
        """Give the segment back to the system."""
        self.bytes -= segment.capacity
        segment.close()

    def trim(self, wanted: int | None = None) -> None:
        """Give free segments back to the system until so many bytes are given; without a number, all."""
        given = 0
        for capacity in sorted(self._free, reverse=True):
            free = self._free[capacity]
            while free and (wanted is None or given < wanted):
                given += capacity
                self.free_bytes -= capacity
                self.discard(free.pop())

    def close(self) -> None:
        """Give everything back."""
        self.trim()
        for held in self.used.values():
            held.close()
        self.used.clear()


class SpillFile:
    """A value on disk, which takes over a descriptor."""

    __slots__ = ("capacity", "fd")

    is_file = True

    def __init__(self, fd: int, capacity: int) -> None:
        self.fd = fd
        self.capacity = capacity

    def write(self, buffers: Sequence[memoryview], layout: Layout) -> None:
        """Write the buffers."""
        os.ftruncate(self.fd, self.capacity)
        write_all(self.fd, buffers, layout)
        writable, self.fd = self.fd, spill.reopen_read_only(self.fd)
        os.close(writable)

    def close(self) -> None:
        """Give the space back."""
        os.close(self.fd)
        self.fd = -1

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def plan_layout(buffers: Sequence[memoryview]) -> tuple[int, Layout]:
    """Return how many bytes the buffers take together, and the place of each."""
    layout = []
    offset = 0
    for buffer in buffers:
        layout.append((offset, buffer.nbytes))
        offset = align(offset + buffer.nbytes, ALIGNMENT)
    return offset, tuple(layout)


def choose_capacity(size: int) -> int:
    """Return the capacity for a size: whole pages, in steps of an eighth, as similar sizes then share segments."""
    step = max(mmap.PAGESIZE, 1 << max(0, size.bit_length() - 4))
    return max(step, align(size, step))


def align(size: int, alignment: int) -> int:
    """Round a size up to a multiple of the alignment."""
    return -(-size // alignment) * alignment


def map_private(fd: int, size: int, layout: Layout, on_unmapped: Callable[[], None]) -> list[memoryview]:
    """Map a segment or file copy-on-write; `on_unmapped` is called when the last of the returned buffers is gone."""
    mapping = mmap.mmap(fd, size, mmap.MAP_PRIVATE | _MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE)
    weakref.finalize(mapping, on_unmapped).atexit = False
    view = memoryview(mapping)
    return [view[offset : offset + length] for offset, length in layout]


def digest(buffers: Sequence[memoryview]) -> int:
    """Return a checksum of the buffers' bytes."""
    value = 0
    for buffer in buffers:
        value = zlib.crc32(buffer, value)
    return value


def write_all(fd: int, buffers: Sequence[memoryview], layout: Layout) -> None:
    """Write each buffer at its place; the interpreter lock is free meanwhile."""
    for buffer, (offset, size) in zip(buffers, layout, strict=True):
        with _as_bytes(buffer) as view:
            written = 0
            while written < size:
                with view[written:] as rest:
                    written += os.pwrite(fd, rest, offset + written)


def _copy(target: memoryview, source: memoryview) -> None:
    with _as_bytes(source) as view:
        # A slice assignment holds the interpreter lock and uses one core; numpy's copy does neither. A program with
        # large buffers usually has numpy loaded.
        numpy = sys.modules.get("numpy")
        if target.nbytes < PARALLEL_BYTES or numpy is None:
            target[:] = view
            return
        into, of = numpy.frombuffer(target, numpy.uint8), numpy.frombuffer(view, numpy.uint8)
        middle = align(target.nbytes // 2, mmap.PAGESIZE)
        helper = threading.Thread(
            target=numpy.copyto, args=(into[:middle], of[:middle]), name="hocket-copy", daemon=True
        )
        helper.start()
        try:
            numpy.copyto(into[middle:], of[middle:])
        finally:
            helper.join()
            del into, of, helper


def _as_bytes(buffer: memoryview) -> memoryview:
    return buffer.cast("B") if buffer.format != "B" or buffer.ndim != 1 else buffer[:]
