"""The layout of the memory for a session's events.

Each process that records events owns a *slot*:

- a head of `HEAD_BYTES`: the words below;
- `NAME_BYTES` for names, each after its length, in the order of their first use. The number of a name is its position
  in that order, from 1 on; 0 stands for all names that no longer fitted;
- a ring of `RECORDS` records of `RECORD_BYTES` each. Record *n* is at index *n* modulo `RECORDS`.

Only used pages take memory. A slot has one writer, which writes a record and then counts it in `COUNT`. If the count
has grown by more than `RECORDS` since a reader's last read, the reader knows how many records it has missed.
"""

from __future__ import annotations

import enum
import mmap
import struct

HEAD_BYTES = 64
NAME_BYTES = mmap.PAGESIZE * 4 - HEAD_BYTES
"""The bytes for names: room for some 500 names of 30 letters."""

RECORD = struct.Struct("<ddQQ")
"""A record: its start by `time.perf_counter`; its seconds; its subject, which is a task's id or an amount; and a word
with the name's number (32 bits), the `Kind` (8), the `State` (8) and the attempt (16)."""

RECORD_BYTES = RECORD.size
RECORDS = 1 << 15
"""How many records a ring holds; a power of two. They take a megabyte for each process that uses all."""

RECORDS_AT = HEAD_BYTES + NAME_BYTES
SLOT_BYTES = RECORDS_AT + RECORDS * RECORD_BYTES

WORKER_SLOTS = 4096
"""How many slots workers have. A worker has the slot of its id modulo this number, after the driver's slot. No machine
runs so many workers at once."""

FILE_BYTES = (1 + WORKER_SLOTS) * SLOT_BYTES
"""The bytes of all slots."""

SHORT_SECONDS = 1e-4
"""A run shorter than this may share a record with the runs that follow it."""

MERGED_SECONDS = 1e-3
"""Short runs that begin within so many seconds share a record. So the ring holds at least half a minute of runs."""

SINGLES = 1000
"""How many short runs of each name have a record each before further ones are merged."""

MOST_MERGED = 0xFFFF
"""The largest number that fits into the bits of the attempt; no processor runs so many tasks in `MERGED_SECONDS`."""

# Words of the head, 8 bytes each.
WORKER = 0
"""The id of the worker that owns the slot."""
PID = 1
"""The owner's pid; 0 if the slot has no owner yet."""
COUNT = 2
"""How many records have ever been written into the slot."""
FIRST = 3
"""The number of the owner's first record; above 0 if the slot had another owner before."""
NAMES_END = 4
"""How many bytes of the names are in use."""
SLOTS = 5
"""In the driver's slot: how many slots are in use."""

LENGTH = struct.Struct("<H")
"""The length before each name."""

MAX_NAME_BYTES = 1000
"""The most bytes of a name; longer names are cut."""

CACHED_NAMES = 4096
"""How many names a writer keeps in its memory: a program may name each of its tasks."""

KIND_SHIFT = 32
STATE_SHIFT = 40
ATTEMPT_SHIFT = 48


class Kind(enum.IntEnum):
    """The kinds of records."""

    TASK = 1
    CALL = 2
    CONSTRUCTOR = 3
    GET = 4
    """A wait in `get` of `MERGED_SECONDS` or more; the subject is the number of references."""
    PUT = 5
    """A `put` of a large value; the subject is its bytes."""
    DEATH = 6
    """An unexpected death of a worker; the subject is its pid."""
    SPILL = 7
    """A copy of a value from memory to a file; the subject is its bytes."""
    STEP = 8
    """The work of a training's rank between two reports."""
    REPORT = 9
    """A rank's report, until the rank could go on."""
    PUSH = 10
    """A push to parameter servers of `SHORT_SECONDS` or more; the subject is its staleness."""
    PULL = 11
    """A pull of `SHORT_SECONDS` or more; it waits for processes that are behind."""


class State(enum.IntEnum):
    """The end of a run or another event."""

    FINISHED = 0
    FAILED = 1
    MERGED = 2
    """Several short runs, which all finished: the bits of the attempt hold their number, the seconds are their sum, and
    the subject is the id of the first."""


def find_slot(worker_id: int) -> int:
    """Return the slot of a worker, or of the driver (0), which shares its slot with no worker."""
    return worker_id and 1 + (worker_id - 1) % WORKER_SLOTS


def parse_names(data: bytes, end: int) -> list[str]:
    """Return the names in the first `end` bytes of `data`. The last may be incomplete, if its writer has died."""
    names = []
    position = 0
    while position + LENGTH.size <= min(end, len(data)):
        (length,) = LENGTH.unpack_from(data, position)
        position += LENGTH.size
        names.append(data[position : position + length].decode("utf-8", "replace"))
        position += length
    return names


KINDS = {int(kind): kind for kind in Kind}
STATES = {int(state): state for state in State}

RUNS = frozenset({Kind.TASK, Kind.CALL, Kind.CONSTRUCTOR})
"""Kinds that are runs of a user's code; the subject of such a record is the task's id."""
