"""The driver's part of the object store: every object, the limit, and the values that go to disk.

`store` explains how the parts fit together.
"""

from __future__ import annotations

import functools
import os
import pickle
import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TypeVar

from hocket import exceptions
from hocket.engine import events
from hocket.engine.local import messages, payloads, segments, spill, store
from hocket.kernel.records import DRIVER

T = TypeVar("T")

GRANT_BYTES = 4 << 20
"""The smallest grant to a worker, which then asks once for many small segments. Touching so much new memory takes 1 ms,
a question 0.1 ms."""

GIVE_SECONDS = 1.0
"""How long a worker may take to give memory back. It takes milliseconds unless native code holds the interpreter lock
there; then more is spilled than was needed."""

SHOWN_HOLDERS = 5
"""Source lines in an error message. A user can do something about the largest few."""


class Entry:
    """A living object that has a segment or a file."""

    __slots__ = ("capacity", "fd", "is_file", "object_id", "payload", "pins", "size", "where", "worker_id")

    def __init__(self, payload: payloads.Payload, fd: int, worker_id: int, capacity: int, *, is_file: bool) -> None:
        self.payload = payload
        self.object_id: int = payload[2]
        self.size: int = payload[3]
        #: The source line that made the object.
        self.where: str = payload[5]
        #: The pool's descriptor if the driver made the object, else the entry's own.
        self.fd = fd
        self.worker_id = worker_id
        #: The bytes that the object takes, of memory or of disk.
        self.capacity = capacity
        self.is_file = is_file
        #: How many mappings each process has, or will have when messages arrive.
        self.pins: dict[int, int] = {}


class WorkerMemory:
    """The memory of a worker's pool, as far as the driver knows."""

    __slots__ = ("granted", "total", "used", "waited_for")

    def __init__(self) -> None:
        #: The bytes of its last report, and the grants since then.
        self.total = 0
        #: The bytes granted in all.
        self.granted = 0
        #: The bytes in segments of its living objects; the only field that outlives a dead worker.
        self.used = 0
        #: How many demands to give memory back it has not answered.
        self.waited_for = 0

    def count(self) -> int:
        """Return the bytes that the pool takes."""
        return max(self.total, self.used)


class ObjectTable(store.Store):
    """Every object that has a segment or a file, and the processes that map it. Called with the lock held.

    Args:
        lock: The driver's lock.
        tell: Puts a message into a worker's outbox; returns False if the worker is dead. Called with the lock held.
    """

    def __init__(self, lock: threading.RLock, tell: Callable[[int, tuple[object, ...]], bool]) -> None:
        super().__init__(lock)
        self.entries: dict[int, Entry] = {}
        #: Objects whose mapping in this process is gone; a finalizer may append at any moment.
        self.unmapped: deque[int] = deque()
        self._tell = tell
        #: Candidates for spilling: entries in memory that no process maps, the least recently used first.
        self._idle: OrderedDict[int, Entry] = OrderedDict()
        self._idle_bytes = 0
        self._workers: dict[int, WorkerMemory] = {}
        self._is_closed = False

    def _register(self, payload: payloads.Payload, held: segments.Segment | segments.SpillFile) -> None:
        if self._is_closed:
            held.close()
            raise exceptions.SessionClosedError("The session was shut down while a value was stored.")
        super()._register(payload, held)
        self._add(Entry(payload, held.fd, DRIVER, held.capacity, is_file=held.is_file))

    def take(self, payload: payloads.Payload, fd: int, worker_id: int) -> None:
        """Take over the descriptor of a segment or file that a worker made."""
        if payload[2] in self.entries:  # a generator that runs again makes its items again: the second copy goes back
            os.close(fd)
            self._tell(worker_id, (messages.RECYCLE, payload[2], True))
            return
        found = os.fstat(fd)
        is_file = found.st_dev != _get_memory_device()
        if not is_file:
            self._get_worker(worker_id).used += found.st_size
        self._add(Entry(payload, fd, worker_id, found.st_size, is_file=is_file))

    def _add(self, entry: Entry) -> None:
        self.entries[entry.object_id] = entry
        self._park(entry)

    def _park(self, entry: Entry) -> None:
        """Let an entry that no process maps be spilled, after entries that have been idle for longer."""
        if not entry.is_file:
            self._idle[entry.object_id] = entry
            self._idle_bytes += entry.capacity

    def _unpark(self, entry: Entry) -> None:
        if self._idle.pop(entry.object_id, None) is not None:
            self._idle_bytes -= entry.capacity

    def lend(self, object_id: int, worker_id: int = DRIVER) -> int:
        """Return an object's descriptor for a mapping in a process, and pin the object until `unpin`."""
        entry = self.entries[object_id]
        entry.pins[worker_id] = entry.pins.get(worker_id, 0) + 1
        self._unpark(entry)
        return entry.fd

    def unpin(self, object_id: int, worker_id: int) -> None:
        """Note that one mapping of a process is gone."""
        entry = self.entries.get(object_id)
        if entry is not None and worker_id in entry.pins:
            entry.pins[worker_id] -= 1
            if not entry.pins[worker_id]:
                self._drop_pins(entry, worker_id)

    def _drop_pins(self, entry: Entry, worker_id: int) -> None:
        del entry.pins[worker_id]
        if not entry.pins:
            self._park(entry)

    def drain_unmapped(self) -> None:
        """Unpin the objects that this process no longer maps."""
        while self.unmapped:
            self.unpin(self.unmapped.popleft(), DRIVER)

    def free(self, payload: payloads.Payload) -> None:
        """Free an object: its segment goes back to its maker, or its file is closed."""
        object_id = payload[2]
        entry = self.entries.get(object_id)
        if entry is None or entry.payload is not payload:  # a second copy, which `take` sent back
            return
        del self.entries[object_id]
        self._unpark(entry)
        if entry.worker_id == DRIVER:
            self.pool.recycle(object_id)
            return
        os.close(entry.fd)
        if not entry.is_file:
            self._forget_used(entry)
        self._tell(entry.worker_id, (messages.RECYCLE, object_id, True))

    def _forget_used(self, entry: Entry) -> None:
        memory = self._workers[entry.worker_id]
        memory.used -= entry.capacity
        if not memory.used and not memory.total:
            del self._workers[entry.worker_id]

    def _get_worker(self, worker_id: int) -> WorkerMemory:
        return self._workers.setdefault(worker_id, WorkerMemory())

    def list_holders(self) -> list[tuple[str, int, int]]:
        """Return the makers of the living objects: source line, bytes and number of objects; the largest first."""
        found: dict[str, tuple[int, int]] = {}
        for entry in self.entries.values():
            taken, count = found.get(entry.where, (0, 0))
            found[entry.where] = (taken + entry.capacity, count + 1)
        holders = [(where, taken, count) for where, (taken, count) in found.items()]
        return sorted(holders, key=lambda holder: -holder[1])


class DriverStore(ObjectTable):
    """The store of the driver, which knows the objects of all processes.

    Args:
        lock: The driver's lock.
        limit: How many bytes the segments of all processes may take.
        folder: The folder for spill files; empty finds one when the first file is made.
        tell: See `ObjectTable`.
        send: Sends the messages in all outboxes. Called with the lock held.
        wait: Handles messages until a condition (called with the lock held) is true or the time is over.
    """

    def __init__(
        self,
        lock: threading.RLock,
        *,
        limit: int,
        folder: str,
        tell: Callable[[int, tuple[object, ...]], bool],
        send: Callable[[], None],
        wait: Callable[[Callable[[], bool], float], bool],
    ) -> None:
        super().__init__(lock, tell)
        self.limit = limit
        self._folder = folder
        self._send = send
        self._wait = wait
        self._spill_lock = threading.Lock()
        self._requests: queue.SimpleQueue[tuple[int, int, int] | None] = queue.SimpleQueue()
        self._spiller: threading.Thread | None = None

    # --- workers; called with the lock held ---------------------------------------------------------------------------

    def note_pool(self, worker_id: int, has: int, granted: int, *, is_answer: bool = False) -> None:
        """Note a worker's report: the size of its pool, and the sum of the grants that it has received."""
        memory = self._get_worker(worker_id)
        memory.total = has + memory.granted - granted
        memory.waited_for = max(0, memory.waited_for - is_answer)  # a late answer is no longer waited for

    def _tell_to_give(self, worker_id: int, object_id: int) -> None:
        """Have a worker give back a segment, or with 0 all its warm segments."""
        if self._tell(worker_id, (messages.RECYCLE, object_id, False)):
            self._get_worker(worker_id).waited_for += 1

    def _have_given(self) -> bool:
        return not any(memory.waited_for for memory in self._workers.values())

    def lose_worker(self, worker_id: int) -> None:
        """Forget a dead worker's warm memory and mappings; the objects that it made live on."""
        memory = self._workers.get(worker_id)
        if memory is not None:
            memory.total = memory.waited_for = 0
            if not memory.used:
                del self._workers[worker_id]
        for entry in self.entries.values():
            if worker_id in entry.pins:
                self._drop_pins(entry, worker_id)

    def answer_room(self, worker_id: int, question_id: int, needed: int) -> None:
        """Grant a worker the room that it asks for, or have the spiller make room."""
        for wanted in (max(needed, GRANT_BYTES), needed):
            if self._fits(wanted):
                self._grant(worker_id, question_id, wanted)
                return
        if self._spiller is None:
            self._spiller = threading.Thread(target=self._run_spiller, name="hocket-spill", daemon=True)
            self._spiller.start()
        self._requests.put((worker_id, question_id, needed))

    def _grant(self, worker_id: int, question_id: int, granted: int) -> int:
        data = pickle.dumps((granted, self._get_folder()))
        if self._tell(worker_id, (messages.ANSWER, question_id, True, data, ())) and granted:
            memory = self._get_worker(worker_id)
            memory.total += granted
            memory.granted += granted
        return granted

    def _run_spiller(self) -> None:
        while (request := self._requests.get()) is not None:
            if self._make(request[2], functools.partial(self._grant, *request)) is None:
                with self.lock:
                    self._grant(*request[:2], 0)
                    self._send()

    # --- room ---------------------------------------------------------------------------------------------------------

    def count_bytes(self) -> int:
        """Return the bytes that the segments of all processes take."""
        return self.pool.count_bytes() + sum([memory.count() for memory in self._workers.values()])

    def _fits(self, needed: int) -> bool:
        return self.count_bytes() + needed <= self.limit

    def _take_new(self, capacity: int) -> segments.Segment | None:
        return self._make(capacity, lambda: self.pool.take_new(capacity))

    def _make(self, needed: int, take: Callable[[], T]) -> T | None:
        """Make room and return the result of `take`, which runs before the lock is released; None without room."""
        with self.lock:
            if self._fits(needed):
                return take()
        with self._spill_lock:
            with self.lock:
                self.drain_unmapped()
                self._trim(needed)
            while not self._is_closed:
                self._wait_given()
                with self.lock:
                    if self._fits(needed):
                        taken = take()
                        self._send()
                        return taken
                    victim = self._find_victim(needed)
                    if victim is None:
                        return None
                    copy_of = os.dup(victim.fd)
                if not self._spill(victim, copy_of):
                    return None
        return None

    def _wait_given(self) -> None:
        """Wait until the workers have given back the memory that they owe, at most `GIVE_SECONDS`."""
        with self.lock:
            self._send()
            if self._have_given():
                return
        if not self._wait(self._have_given, GIVE_SECONDS):
            with self.lock:
                for memory in self._workers.values():
                    memory.waited_for = 0

    def _trim(self, needed: int) -> None:
        """Give warm segments back as far as needed, the driver's own first."""
        self.pool.trim(self.count_bytes() + needed - self.limit)
        if self._fits(needed):
            return
        for worker_id, memory in self._workers.items():
            if memory.total > memory.used:
                self._tell_to_give(worker_id, 0)

    def _find_victim(self, needed: int) -> Entry | None:
        """Return the least recently used idle segment; None if spilling all idle segments would not be enough."""
        if self.count_bytes() - self._idle_bytes + needed > self.limit:
            return None
        return next(iter(self._idle.values()), None)

    def _spill(self, entry: Entry, fd: int) -> bool:
        """Copy a segment to a file and give its memory back; return False if the disk does not take it. Called without
        the lock."""
        begun = time.perf_counter()
        try:
            copied = spill.copy_segment(fd, entry.size, self._get_folder())
        except OSError:
            return False
        finally:
            os.close(fd)
        with self.lock:
            if self.entries.get(entry.object_id) is not entry or entry.pins:  # freed or mapped in the meantime
                os.close(copied)
                return True
            self._unpark(entry)
            if entry.worker_id == DRIVER:
                held = self.pool.used[entry.object_id]
                assert isinstance(held, segments.Segment)
                self.pool.discard(held)
                self.pool.used[entry.object_id] = segments.SpillFile(copied, entry.size)
            else:
                os.close(entry.fd)
                self._forget_used(entry)
                self._tell_to_give(entry.worker_id, entry.object_id)
            entry.fd, entry.capacity, entry.is_file = copied, entry.size, True
        events.note(events.Kind.SPILL, "spill", begun, time.perf_counter() - begun, entry.size)
        return True

    def _get_folder(self) -> str:
        if not self._folder:
            self._folder = spill.choose_folder()
        return self._folder

    # --- inspection ---------------------------------------------------------------------------------------------------

    def statistics(self) -> dict[str, object]:
        """Return the bytes in the store by kind, and the makers of the objects. Called with the lock held."""
        in_memory = sum(entry.capacity for entry in self.entries.values() if not entry.is_file)
        return {
            "shared_bytes": in_memory,
            "warm_bytes": self.count_bytes() - in_memory,
            "spilled_bytes": sum(entry.capacity for entry in self.entries.values() if entry.is_file),
            "limit_bytes": self.limit,
            "holders": self.list_holders(),
        }

    def explain_full(self, size: int, reason: str, *, is_disk: bool) -> str:
        with self.lock:
            free, holders = max(0, self.limit - self.count_bytes()), self.list_holders()
            spilled = sum(entry.capacity for entry in self.entries.values() if entry.is_file)
        lines = [f"  {where}: {taken:,} bytes in {count} objects" for where, taken, count in holders[:SHOWN_HOLDERS]]
        if not is_disk:
            why = f"but the system refuses the memory ({reason})"
        else:
            folder = self._get_folder()
            why = (
                f"and {folder} cannot hold the object ({reason}; "
                f"{spill.find_free_bytes(folder):,} bytes free, {spilled:,} in use for objects)"
            )
        text = f"No room for an object of {size:,} bytes: {free:,} of {self.limit:,} bytes of memory are free, {why}."
        if lines:
            text += "\nThe largest holders, by the source line that made them:\n" + "\n".join(lines)
        return text + (
            "\nFree objects by dropping references to them, or give more room: hocket.init(object_store_memory=..., "
            "object_spilling_directory=...)."
        )

    # --- the end ------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Refuse further values. Called without the lock."""
        self._is_closed = True
        self._requests.put(None)
        if self._spiller is not None:
            self._spiller.join()

    def close(self) -> None:
        """Give everything back. Called without the lock, when no thread uses the session any more."""
        with self._spill_lock, self.lock:
            for entry in self.entries.values():
                if entry.worker_id != DRIVER:
                    os.close(entry.fd)
            self.entries.clear()
            self._idle.clear()
            self.pool.close()


@functools.cache
def _get_memory_device() -> int:
    """Return the device number of memfds, which distinguishes a worker's segments from its files."""
    fd = os.memfd_create("hocket-probe", os.MFD_CLOEXEC)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)
