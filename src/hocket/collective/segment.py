"""The segment that the ranks of one host share.

It is a memfd of the first rank, which the others open below ``/proc``. It has no name, and goes when all ranks are
gone, however they end. Its parts:

- headers, a cache line for each rank: its process, whether it sleeps, its operation;
- marks, `ROUNDS` cache lines for each rank: its progress;
- slots, `ROUNDS` chunks for each rank: its data for the other ranks;
- rings, a small ring for each ordered pair: messages from one rank to the other.

Untouched memory costs nothing, so a group that only adds small tensors stays small.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path
from typing import final

LINE = 64
"""Bytes of a processor's cache line. Words that different ranks write are on different lines."""

WORDS = LINE // 8

ROUNDS = 4
"""Number of slots of a rank, used in turn. `rounds` explains why four are enough."""

CHUNK_BYTES = 1024 * 1024
"""Bytes that are exchanged at once. Measured between two ranks, for 25 MB in three runs: 5.3 to 5.9 ms with 256 KiB,
4.3 to 4.8 with 1 MiB, 4.3 to 5.5 with 2 MiB. Data in another core's cache is slower to get than data outside it."""

RING_BYTES = 64 * 1024
"""Bytes of a message between two ranks that are in the ring at once, at most."""

RING_LINES = 2
"""The lines in front of a ring: the number of bytes put into it, and of bytes taken."""

_PAGE = 4096

# Words of a rank header.
PID, ASLEEP, BELL, DOING, AMOUNT, STATE, REPORT, ASK = range(8)


@final
class Segment:
    """The shared memory, as this rank sees it. Made by `create` or `open_segment`.

    Args:
        descriptor: The memfd's descriptor; the object closes it.
        size: The number of ranks.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self._descriptor = descriptor
        self._memory: mmap.mmap | None = mmap.mmap(descriptor, count_bytes(size))
        self.bytes = memoryview(self._memory)
        self.words = self.bytes.cast("Q")
        self.halves = self.bytes.cast("I")

    def close(self) -> None:
        """Close the segment. Arrays that share its memory keep the mapping alive."""
        memory, self._memory = self._memory, None
        if memory is None:
            return
        os.close(self._descriptor)
        self.words.release()
        self.halves.release()
        self.bytes.release()
        with contextlib.suppress(BufferError):  # an array still shares it, and keeps the mapping alive
            memory.close()

    @property
    def path(self) -> str:
        """The path for other processes of the same user, valid as long as this process lives."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    @property
    def identity(self) -> str:
        """A name that distinguishes this memory from all others."""
        return identify(self._descriptor)

    def view(self) -> mmap.mmap:
        """Return the whole memory as a buffer for arrays."""
        assert self._memory is not None, "the group is closed"
        return self._memory


def create(size: int) -> Segment:
    """Make a segment for `size` ranks."""
    descriptor = os.memfd_create("hocket-collective")
    try:
        os.ftruncate(descriptor, count_bytes(size))
        return Segment(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise


def open_segment(path: str, identity: str, size: int) -> Segment:
    """Open the segment that another rank has made."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        if identify(descriptor) != identity:
            raise FileNotFoundError(f"{path} is another file here.")
        return Segment(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise


def identify(descriptor: int) -> str:
    """Return a text that distinguishes an open file from all files of all machines."""
    found = os.fstat(descriptor)
    return f"{identify_host()}/{found.st_dev}/{found.st_ino}"


def identify_host() -> str:
    """Return a text that is equal in two processes that can see each other below ``/proc``."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return f"process/{os.getpid()}"


# --- where things are ------------------------------------------------------------------------------------------------


def find_header(rank: int) -> int:
    """Return the first word of a rank's header."""
    return rank * WORDS


def find_mark(size: int, turn: int, rank: int) -> int:
    """Return the word of a rank's mark for a turn."""
    return (size + turn * size + rank) * WORDS


def find_slot(size: int, turn: int, rank: int) -> int:
    """Return the byte where a rank's slot for a turn begins."""
    return _count_header(size) + (turn * size + rank) * CHUNK_BYTES


def find_ring(size: int, source: int, target: int) -> int:
    """Return the byte where the ring from one rank to another begins, with its two lines."""
    start = _count_header(size) + ROUNDS * size * CHUNK_BYTES
    return start + (source * size + target) * (RING_LINES * LINE + RING_BYTES)


def count_bytes(size: int) -> int:
    """Return the bytes of a segment for `size` ranks."""
    return _round_up(find_ring(size, size, 0))


def _count_header(size: int) -> int:
    return _round_up((1 + ROUNDS) * size * LINE)


def _round_up(count: int) -> int:
    return -(-count // _PAGE) * _PAGE
