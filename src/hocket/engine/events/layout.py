"""Where what stands in the memory of a session's events.

Each process that has something to tell owns a *slot*:

- a head of `HEAD_BYTES`: the words below;
- `NAME_BYTES` for names, each with its length before it, in the order in which they were first used. The number of a
  name is its place in that order, from 1 on; 0 stands for the names that no longer fitted;
- a ring of `RECORDS` records of `RECORD_BYTES` each. Record *n* stands at *n* modulo `RECORDS`.

Only pages that are used take memory. A slot has one writer. It writes a record, and then counts it in `COUNT`; a reader
that finds the count raised by more than `RECORDS` since it looked knows how many it has missed.
"""

from __future__ import annotations

import enum
import mmap
import struct

HEAD_BYTES = 64
NAME_BYTES = mmap.PAGESIZE * 4 - HEAD_BYTES
"""Some 500 names of 30 letters."""

RECORD = struct.Struct("<ddQQ")
"""When it started, by `time.perf_counter`; seconds; the subject, which is the id of a task or an amount; and a word
with the name's number (32 bits), the `Kind` (8), the `State` (8) and the attempt (16)."""

RECORD_BYTES = RECORD.size
RECORDS = 1 << 15
"""A power of two. A megabyte a process, if it uses them all."""

RECORDS_AT = HEAD_BYTES + NAME_BYTES
SLOT_BYTES = RECORDS_AT + RECORDS * RECORD_BYTES

WORKER_SLOTS = 4096
"""A worker has the slot of its id modulo this, behind the driver's; so many at once are out of reach of one machine."""

FILE_BYTES = (1 + WORKER_SLOTS) * SLOT_BYTES
"""What all slots would take."""

SHORT_SECONDS = 1e-4
"""A run that is shorter may share a record with those that follow it."""

MERGED_SECONDS = 1e-3
"""Runs that begin within so long share one. So the ring holds half a minute at least, whatever runs."""

SINGLES = 1000
"""So many short runs of each name have records of their own before any are merged."""

MOST_MERGED = 0xFFFF
"""What fits into the place of the attempt; no processor runs as many in `MERGED_SECONDS`."""

# Words of the head, 8 bytes each.
WORKER = 0
"""The id of the worker whose slot it is."""
PID = 1
"""Its pid; 0 as long as the slot is nobody's."""
COUNT = 2
"""How many records have ever been written."""
FIRST = 3
"""The first that is this worker's, if the slot had another owner before."""
NAMES_END = 4
"""How many bytes of the names count."""
SLOTS = 5
"""In the driver's slot: how many slots have been given out."""

LENGTH = struct.Struct("<H")
"""What stands before a name."""

MAX_NAME_BYTES = 1000
"""What is longer is cut."""

CACHED_NAMES = 4096
"""Programs may name each of their tasks; so many are kept in a writer's memory."""

KIND_SHIFT = 32
STATE_SHIFT = 40
ATTEMPT_SHIFT = 48


class Kind(enum.IntEnum):
    """The subject of a record."""

    TASK = 1
    CALL = 2
    CONSTRUCTOR = 3
    GET = 4
    """A wait in `get` that took `MERGED_SECONDS` at least; the subject is the number of references."""
    PUT = 5
    """A large value that was put; the subject is its bytes."""
    DEATH = 6
    """A worker died that was not to; the subject is its pid."""
    SPILL = 7
    """A value was copied from memory to a file; the subject is its bytes."""
    STEP = 8
    """What a rank of a training did between two reports."""
    REPORT = 9
    """A rank's report, until it could go on."""
    PUSH = 10
    """A push to parameter servers that took `SHORT_SECONDS` at least; the subject is how stale it was."""
    PULL = 11
    """A pull that took as long; it waits for those that are behind."""


class State(enum.IntEnum):
    """How it ended."""

    FINISHED = 0
    FAILED = 1
    MERGED = 2
    """Several short runs, which all finished: their number stands in the place of the attempt, the seconds are theirs
    together, the subject is the id of the first."""


def find_slot(worker_id: int) -> int:
    """Return the slot of a worker; that of 0, the driver, is nobody else's."""
    return worker_id and 1 + (worker_id - 1) % WORKER_SLOTS


def parse_names(data: bytes, end: int) -> list[str]:
    """Return the names that stand in so many bytes. What does not fit together ends them: their writer may be dead."""
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
