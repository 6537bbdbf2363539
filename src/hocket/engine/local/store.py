"""The memory side of the engine: where large values lie, how much memory they may take, and which go to disk.

Each process writes its values into segments of its own pool (`Store`). The driver (`driver_store.DriverStore`) knows
all of them, holds a descriptor of each, and keeps the sum under a limit. A worker (`WorkerStore`) asks the driver for
room before it takes new memory, and not when it reuses a warm segment.

**The limit** counts the segments of all processes, in use or warm. Memory is freed in this order: first warm segments,
then the least recently used segments, which are copied to files (`spill`). If all the rest is pinned, or the new value
is larger than the limit, the new value is written to a file at once. So a put fails only when the disk is full.

**Pins.** A segment that a process maps, or will map when its descriptor arrives, is pinned: copying it to a file would
free nothing before the last mapping is gone. Pins are counted per process, and the pins of a dead worker are dropped.

**Accounting.** A worker's memory is the amount in its last report (`POOL`, `ROOM`), and the grants that it had not
received then. Memory that a worker owes counts until the worker reports that it has given the memory back. A grant that
is just being used looks like warm memory to the driver, and a first version that deducted it at once went over the
limit.

**Locks.** The driver's lock guards everything here. It is not held while bytes are copied, in memory or to disk.
`_spill_lock` lets one thread at a time spill, and is always taken before the driver's lock.
"""

from __future__ import annotations

import abc
import os
import threading
from collections.abc import Callable

from hocket import exceptions
from hocket.engine import callers, values
from hocket.engine.local import payloads, segments, spill


class Store(abc.ABC):
    """The large values of one process.

    Args:
        lock: Guards the pool. A caller of `build_payload` must not hold it.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self.lock = lock
        self.pool = segments.SegmentPool()
        self._is_checked = os.environ.get("HOCKET_DEBUG") == "1"

    def build_payload(
        self,
        encoded: values.Encoded,
        object_id: int,
        find_maker: Callable[[], str] = callers.find_line,
        announce: Callable[[payloads.Payload], None] | None = None,
    ) -> payloads.Payload:
        """Return the payload of a value; large buffers are copied to a segment, which the pool holds for the object.

        Args:
            encoded: The value.
            object_id: The object for which the pool holds a segment.
            find_maker: Returns the source line that made the value; called for segments only.
            announce: Called with the payload of a segment, under the lock, when the pool has taken the segment: no
                interrupt can come between.

        Raises:
            ObjectStoreFullError: There is no room in memory, and none on disk.
        """
        small = payloads.build_small(encoded)
        if small is not None:
            return small
        buffers = encoded.buffers
        size, layout = segments.plan_layout(buffers)
        held = self._take(size)
        try:
            held.write(buffers, layout)
        except BaseException as error:
            self._give_back(held)
            if isinstance(error, OSError):
                raise self._build_error(size, error, is_disk=held.is_file) from error
            raise
        digest = segments.digest(buffers) if self._is_checked else None
        payload = (payloads.SEGMENT, encoded.data, object_id, size, layout, find_maker(), digest)
        with self.lock:
            self._register(payload, held)
            if announce is not None:
                announce(payload)
        return payload

    def _register(self, payload: payloads.Payload, held: segments.Segment | segments.SpillFile) -> None:
        self.pool.used[payload[2]] = held

    def _take(self, size: int) -> segments.Segment | segments.SpillFile:
        """Return a segment to write to: a warm one, a new one if there is room, or else a file."""
        capacity = segments.choose_capacity(size)
        with self.lock:
            warm = self.pool.take_warm(capacity)
        if warm is not None:
            return warm
        try:
            segment = self._take_new(capacity)
        except OSError as error:
            raise self._build_error(size, error, is_disk=False) from error
        if segment is not None:
            return segment
        try:
            return segments.SpillFile(spill.open_file(self._get_folder()), size)
        except OSError as error:
            raise self._build_error(size, error, is_disk=True) from error

    def _give_back(self, held: segments.Segment | segments.SpillFile) -> None:
        """Discard the segment or file of a failed write: half-written, it is of no use."""
        with self.lock:
            if isinstance(held, segments.Segment):
                self.pool.discard(held)
            else:
                held.close()

    @abc.abstractmethod
    def _take_new(self, capacity: int) -> segments.Segment | None:
        """Return a new segment if there is room for it, or if room can be made; else None."""

    @abc.abstractmethod
    def _get_folder(self) -> str:
        """Return the folder for spill files."""

    @abc.abstractmethod
    def explain_full(self, size: int, reason: str, *, is_disk: bool) -> str:
        """Return the message for a value that finds no room."""

    def _build_error(self, size: int, error: OSError, *, is_disk: bool) -> exceptions.ObjectStoreFullError:
        kind = exceptions.OutOfDiskError if is_disk else exceptions.ObjectStoreFullError
        return kind(self.explain_full(size, error.strerror or str(error), is_disk=is_disk))


# --- the worker's store -----------------------------------------------------------------------------------------------


class WorkerStore(Store):
    """The store of a worker.

    Args:
        lock: The worker's lock.
        ask_room: Asks the driver to grant so many bytes through `credit`; returns False if there is no room.
        explain_full: Asks the driver for the message of an error.
    """

    def __init__(
        self,
        lock: threading.RLock,
        *,
        ask_room: Callable[[int], bool],
        explain_full: Callable[[int, str, bool], str],
    ) -> None:
        super().__init__(lock)
        self._ask_room = ask_room
        self._explain_full = explain_full
        self._allowance = 0
        self._granted = 0
        self._folder = ""

    def get_account(self) -> tuple[int, int]:
        """Return the bytes that the pool takes or may take, and the bytes granted in all. Called with the lock held."""
        return self.pool.count_bytes() + self._allowance, self._granted

    def credit(self, granted: int, folder: str) -> None:
        """Take a grant of room from the driver, or the folder to write to instead. Called with the lock held."""
        self._allowance += granted
        self._granted += granted
        self._folder = folder

    def obey(self, object_id: int, is_kept: bool) -> bool:
        """Carry out a `RECYCLE`; return whether the driver waits for a report of the pool's size. Called with the lock
        held."""
        if is_kept:
            self.pool.recycle(object_id)
        elif object_id == 0:
            self.pool.trim()
            self._allowance = 0
        elif object_id in self.pool.used:  # else it was given back already: a generator had made its item again
            self._give_back(self.pool.used.pop(object_id))
        return not is_kept

    def _take_new(self, capacity: int) -> segments.Segment | None:
        while True:
            with self.lock:
                if self._allowance >= capacity:
                    segment = self.pool.take_new(capacity)
                    self._allowance -= capacity
                    return segment
            if not self._ask_room(capacity):
                return None

    def _get_folder(self) -> str:
        return self._folder

    def explain_full(self, size: int, reason: str, *, is_disk: bool) -> str:
        return self._explain_full(size, reason, is_disk)
