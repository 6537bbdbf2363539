"""The reader's side: the records since its last read, and the number of those that were overwritten before."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from hocket.engine.events import layout
from hocket.engine.events.layout import Kind, State

_HEAD = struct.Struct("<6Q")


class Event(NamedTuple):
    """One record."""

    kind: Kind
    name: str
    started: float
    """The start by `time.perf_counter`, which all processes of a machine share."""
    seconds: float
    subject: int
    state: State
    attempt: int
    runs: int = 1
    """How many runs the record stands for; more than 1 if they were `MERGED`."""


@dataclass
class Batch:
    """The new records of one process since the last read."""

    worker_id: int
    pid: int
    names: list[str]
    """The process's names by number; the list grows from read to read."""
    records: bytes
    """The records as in the memory, oldest first."""
    missed: int
    """How many records were overwritten before this read."""

    def __iter__(self) -> Iterator[Event]:
        for started, seconds, subject, word in layout.RECORD.iter_unpack(self.records):
            kind = layout.KINDS.get(word >> layout.KIND_SHIFT & 0xFF)
            if kind is None:  # a later version wrote the record, or other code has damaged it
                continue
            number = word & 0xFFFFFFFF
            name = self.names[number] if number < len(self.names) else self.names[0]
            state = layout.STATES.get(word >> layout.STATE_SHIFT & 0xFF, State.FAILED)
            last = word >> layout.ATTEMPT_SHIFT
            attempt, runs = (0, last) if state == State.MERGED else (last, 1)
            yield Event(kind, name, started, seconds, subject, state, attempt, runs)


@dataclass
class _Place:
    """The reader's position in one slot."""

    next: int = 0
    names_end: int = 0
    names: list[str] = field(default_factory=lambda: ["…"])
    owner: tuple[int, int] = (0, 0)


class EventReader:
    """A reader of a session's events. Each keeps its own positions, so there may be any number of readers."""

    def __init__(self, fd: int, offset: int) -> None:
        """Read from a descriptor, which still belongs to the caller; the slots begin at `offset`."""
        self._fd = fd
        self._offset = offset
        self._places: dict[int, _Place] = {}

    def read(self) -> list[Batch]:
        """Return a batch for each process with new records."""
        count = min(self._read_head(0)[layout.SLOTS], 1 + layout.WORKER_SLOTS)
        found = (self._read_slot(slot) for slot in range(count))
        return [batch for batch in found if batch is not None]

    def _read_head(self, slot: int) -> tuple[int, ...]:
        data = os.pread(self._fd, _HEAD.size, self._offset + slot * layout.SLOT_BYTES)
        return _HEAD.unpack(data.ljust(_HEAD.size, b"\0"))

    def _read_slot(self, slot: int) -> Batch | None:
        head = self._read_head(slot)
        place = self._places.setdefault(slot, _Place())
        owner = head[layout.WORKER], head[layout.PID]
        if owner != place.owner:
            missed = max(0, head[layout.FIRST] - place.next) if place.owner[1] else 0
            place = self._places[slot] = _Place(next=head[layout.FIRST], owner=owner)
        else:
            missed = 0
        count = head[layout.COUNT]
        if count <= place.next and not missed:
            return None
        self._read_names(slot, head[layout.NAMES_END], place)
        first = max(place.next, count - layout.RECORDS + 1)
        records = self._read_records(slot, first, count)
        # The writer may meanwhile have overwritten the first of the records that were read.
        after = self._read_head(slot)[layout.COUNT]
        torn = max(0, min(count, after - layout.RECORDS + 1) - first)
        missed += first - place.next + torn
        place.next = count
        return Batch(*owner, place.names, records[torn * layout.RECORD_BYTES :], missed)

    def _read_records(self, slot: int, first: int, end: int) -> bytes:
        at = self._offset + slot * layout.SLOT_BYTES + layout.RECORDS_AT
        low, high = first & layout.RECORDS - 1, end & layout.RECORDS - 1
        size = layout.RECORD_BYTES
        if low < high or first == end:
            return os.pread(self._fd, (high - low) * size, at + low * size)
        return os.pread(self._fd, (layout.RECORDS - low) * size, at + low * size) + os.pread(self._fd, high * size, at)

    def _read_names(self, slot: int, end: int, place: _Place) -> None:
        end = min(end, layout.NAME_BYTES)  # a damaged process may have written anything
        if end <= place.names_end:
            return
        at = self._offset + slot * layout.SLOT_BYTES + layout.HEAD_BYTES + place.names_end
        data = os.pread(self._fd, end - place.names_end, at)
        place.names += layout.parse_names(data, len(data))
        place.names_end = end
