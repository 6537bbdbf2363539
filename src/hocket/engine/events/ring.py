"""The writer's side of a slot."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import final

from hocket.engine.events import layout
from hocket.engine.events.layout import Kind, State

Note = Callable[[Kind, str, float, float, int], object]
"""A function that records an event other than a run: its kind, name, start by `time.perf_counter`, seconds, subject."""

_note: Note | None = None


@final
class EventRing:
    """The events of this process. Callers must ensure that only one thread writes at a time."""

    __slots__ = (
        "_buffer",
        "_count",
        "_merged_count",
        "_merged_id",
        "_merged_name",
        "_merged_seconds",
        "_merged_started",
        "_merged_until",
        "_merged_word",
        "_names",
        "_numbers",
        "_pack",
        "_runs",
        "_singles",
        "_words",
    )

    def __init__(self, worker_id: int, pid: int, buffer: mmap.mmap | None = None) -> None:
        """Take a slot, or continue a slot that this owner already has.

        Args:
            worker_id: The owner, 0 for the driver.
            pid: The owner's pid.
            buffer: The slot's memory. Default: memory that no other process sees.
        """
        self._buffer = mmap.mmap(-1, layout.SLOT_BYTES) if buffer is None else buffer
        words = self._words = memoryview(self._buffer)[: layout.HEAD_BYTES].cast("Q")
        #: The numbers of the names in the slot.
        self._numbers: dict[str, int] = {}
        self._count = words[layout.COUNT]
        if (words[layout.WORKER], words[layout.PID]) == (worker_id, pid):
            names = layout.parse_names(
                bytes(self._buffer[layout.HEAD_BYTES : layout.RECORDS_AT]), words[layout.NAMES_END]
            )
            self._numbers = {name: number for number, name in enumerate(names, 1)}
        else:  # the slot is new, or had another owner before
            words[layout.NAMES_END] = 0
            words[layout.WORKER] = worker_id
            words[layout.FIRST] = self._count
            words[layout.PID] = pid
        self._names = len(self._numbers)
        self._pack = layout.RECORD.pack_into
        #: By name, the last word of the record of a run that finishes at the first attempt, as most do.
        self._runs: dict[str, int] = {}
        #: How many short runs of each name had a record each.
        self._singles: dict[str, int] = {}
        #: The name of the short runs that are merged and not written yet; the next lines hold their other fields.
        self._merged_name: str | None = None
        self._merged_word = self._merged_count = self._merged_id = 0
        self._merged_started = self._merged_until = self._merged_seconds = 0.0

    @classmethod
    def open(cls, fd: int, offset: int, worker_id: int, pid: int) -> EventRing:
        """Take a slot in a session's memory. If the file is too short for it, no other process will see the events.

        Args:
            fd: The descriptor of the memory.
            offset: The offset of the first slot, in bytes.
            worker_id: The owner, 0 for the driver.
            pid: The owner's pid.
        """
        at = offset + layout.find_slot(worker_id) * layout.SLOT_BYTES
        if os.fstat(fd).st_size < at + layout.SLOT_BYTES:
            return cls(worker_id, pid)
        return cls(worker_id, pid, mmap.mmap(fd, layout.SLOT_BYTES, offset=at))

    def note_slot(self, worker_id: int) -> None:
        """Note in the driver's slot that readers have to read a new worker's slot, too."""
        self._words[layout.SLOTS] = max(self._words[layout.SLOTS], 1 + layout.find_slot(worker_id))

    def record_run(self, kind: Kind, name: str, started: float, seconds: float, task_id: int) -> None:
        """Record a run of a task, call or constructor that finished at its first attempt.

        In one process, all runs of a name have one kind. After the first `layout.SINGLES` of a name, short runs that
        follow each other share a record. A record for each would lower the rate of tasks by a twentieth, and push all
        other records out within a second.
        """
        if name == self._merged_name and seconds < layout.SHORT_SECONDS and started < self._merged_until:
            self._merged_count += 1
            self._merged_seconds += seconds
            return
        self._begin_run(kind, name, started, seconds, task_id)

    def _begin_run(self, kind: Kind, name: str, started: float, seconds: float, task_id: int) -> None:
        self.flush()
        word = self._runs.get(name)
        if word is None:
            if len(self._runs) >= layout.CACHED_NAMES:
                self._runs.clear()
                self._singles.clear()
            word = self._runs[name] = self._find_word(kind, name)
        if seconds < layout.SHORT_SECONDS:
            singles = self._singles[name] = self._singles.get(name, 0) + 1
            if singles > layout.SINGLES:
                self._merged_name, self._merged_word = name, word
                self._merged_started, self._merged_until = started, started + layout.MERGED_SECONDS
                self._merged_count, self._merged_seconds, self._merged_id = 1, seconds, task_id
                return
        self._write(started, seconds, task_id, word)

    def flush(self) -> None:
        """Write the record of the merged short runs."""
        count = self._merged_count
        if not count:
            return
        word = self._merged_word
        if count > 1:
            word |= State.MERGED << layout.STATE_SHIFT | min(count, layout.MOST_MERGED) << layout.ATTEMPT_SHIFT
        self._write(self._merged_started, self._merged_seconds, self._merged_id, word)
        self._merged_count = 0
        self._merged_name = None

    def record(
        self,
        kind: Kind,
        name: str,
        started: float,
        seconds: float,
        subject: int = 0,
        *,
        state: State = State.FINISHED,
        attempt: int = 0,
    ) -> None:
        """Record an event."""
        if self._merged_count:
            self.flush()
        number = self._numbers.get(name)
        word = kind << layout.KIND_SHIFT | state << layout.STATE_SHIFT
        word |= self._find_number(name) if number is None else number
        if attempt:
            word |= min(attempt, 0xFFFF) << layout.ATTEMPT_SHIFT
        self._write(started, seconds, subject, word)

    def _write(self, started: float, seconds: float, subject: int, word: int) -> None:
        count = self._count
        at = layout.RECORDS_AT + (count & layout.RECORDS - 1) * layout.RECORD_BYTES
        self._pack(self._buffer, at, started, seconds, subject, word)
        self._count = self._words[layout.COUNT] = count + 1

    def _find_word(self, kind: Kind, name: str) -> int:
        return self._find_number(name) | kind << layout.KIND_SHIFT

    def _find_number(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._write_name(name)
            if number:
                self._numbers[name] = number
        return number

    def _write_name(self, name: str) -> int:
        """Write a name into the slot; return its number, 0 if there is no room for it."""
        data = name.encode("utf-8", "backslashreplace")[: layout.MAX_NAME_BYTES]
        end = self._words[layout.NAMES_END]
        if end + layout.LENGTH.size + len(data) > layout.NAME_BYTES:
            return 0
        at = layout.HEAD_BYTES + end
        layout.LENGTH.pack_into(self._buffer, at, len(data))
        self._buffer[at + layout.LENGTH.size : at + layout.LENGTH.size + len(data)] = data
        self._words[layout.NAMES_END] = end + layout.LENGTH.size + len(data)
        self._names += 1
        return self._names

    def close(self) -> None:
        """Write the merged runs, and release the memory."""
        self.flush()
        self._words.release()
        self._buffer.close()


def open_notes(write: Note | None) -> None:
    """Set the function that records notes, from any thread; None if there is none any more."""
    global _note  # noqa: PLW0603 (a process has one engine)
    _note = write


def note(kind: Kind, name: str, started: float, seconds: float, subject: int = 0) -> None:
    """Record an event of this process other than a run (a step of a training, a push), if its engine records events."""
    write = _note
    if write is not None:
        write(kind, name, started, seconds, subject)
