"""The store: one server's memory, as one process sees it, and the transactions on it.

**The book** is the server's control memory: a mutex, a version, the state of the update in progress, the pushes that
were applied, and the list of the server's variables. A process that pushes takes the mutex and does the update itself;
it sends no request. An update has four steps:

1. If the push's ticket was applied before, drop the push.
2. ``STATE = APPLYING``. For each shard: write its number into the book, then `prepare` it (the new value beside the old
   one; for a table, the old rows beside the new ones).
3. Write the ticket and ``STATE = COMMITTED``: one word, and the update has happened.
4. `commit` each shard, note the ticket, count the version, ``STATE = IDLE``.

A process that is killed in the middle still holds the mutex, which is robust: the next owner learns of the death, and
finds the book's state. APPLYING: it undoes each shard that was begun. COMMITTED: it repeats step 4, which may be done
twice. So an update happens wholly or not at all, and once, whichever process dies at any point. That is the journal: it
lies in memory, takes a few words and one cache-warm copy of rows, and never touches a disk.

**The list of variables** lies in the book too, so that a process which recovers an update knows all shards, including
shards that it never used.

The store does not protect against the loss of the machine (restore a checkpoint), or against stray writes.
"""

from __future__ import annotations

import pickle
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, final

import numpy as np

from hocket._base import showing
from hocket.collective import futex
from hocket.ps.stores import dense, gradient_accumulator, memory, mutex, records, rows
from hocket.ps.stores.memory import Array

ASKABLE: Final = frozenset(
    {
        *("read", "read_rows", "push", "deposit", "close_round", "export", "begin_snapshot", "finish_snapshot"),
        *("evict", "get_statistics", "list_specs"),
    }
)
"""The names in `Store` that a process on another machine may use, through the server."""

MAX_WORKERS: Final = 1024
"""Number of workers that can have tickets. A guess above any real number of workers."""

ROUND_HOLDER: Final = MAX_WORKERS - 1
"""The holder of the tickets of synchronous steps."""

_MAX_SHARDS: Final = 1 << 16
_LIST_BYTES: Final = 256 << 20
"""Room for the descriptions of all shards; the unused part takes no memory."""

VERSION, STATE, TOUCHED, HOLDER, CLOSURE, TURN, NEXT_VERSION, SHARDS, LIST_END, RECOVERIES = range(10)
"""Words of the book: pushes applied; state of the update; shards that the update has begun; its ticket (holder,
closure, turn); the next version; number of shards; end of their list; number of recoveries after a process died in an
update."""

IDLE, APPLYING, COMMITTED = range(3)

Shard: TypeAlias = dense.DenseShard | rows.TableShard
Spec: TypeAlias = records.DenseSpec | records.TableSpec

Hook: TypeAlias = Callable[[str], None]
"""Called with the name of a point in an update; tests end the process there."""


def _plan() -> memory.SegmentPlan:
    layout = memory.SegmentPlan()
    layout.add("mutex", (mutex.MUTEX_BYTES,), np.uint8)
    layout.add("words", (16,), np.int64)
    layout.add("tickets", (MAX_WORKERS, 2), np.int64)
    layout.add("touched", (_MAX_SHARDS,), np.int64)
    layout.add("ends", (_MAX_SHARDS,), np.int64)
    layout.add("list", (_LIST_BYTES,), np.uint8)
    return layout


def build_book(kept: memory.Memory) -> None:
    """Initialise a book in new memory. The process that made the memory calls this once."""
    arrays = _plan().view(kept)
    mutex.build(int(arrays["mutex"].ctypes.data))
    arrays["tickets"][:, 0] = -1


def count_book_bytes() -> int:
    """Return the size of a book; most of it is never touched."""
    return _plan().nbytes


@final
class Store:
    """A server's variables, reached through its book. All threads of a process may share one store.

    A push waits at most `timeout_s` seconds for the mutex.

    Raises:
        OSError: This process does not share memory with the memory's owner.
    """

    def __init__(self, book: memory.MemoryRef, server: int, timeout_s: float) -> None:
        self.server: Final = server
        self._book = memory.open_memory(book)
        arrays = _plan().view(self._book)
        self._words = arrays["words"]
        self._tickets = arrays["tickets"]
        self._touched = arrays["touched"]
        self._ends = arrays["ends"]
        self._list = arrays["list"]
        recover = weakref.WeakMethod(self._recover)  # a strong reference would keep the memory until a collection
        self._mutex = mutex.Mutex(int(arrays["mutex"].ctypes.data), f"server {server}", timeout_s, recover)
        self._shards: list[Shard] = []
        self._specs: list[Spec] = []
        self._accumulators: dict[int, gradient_accumulator.GradientAccumulator] = {}
        self._growing = threading.Lock()
        self.on_point: Hook | None = None

    # -- variables --

    def add(self, spec: Spec) -> None:
        """Enter a new shard, which `build_shard` has filled. Its number must be the next free one."""
        data = np.frombuffer(pickle.dumps(spec, protocol=5), np.uint8)
        with self._mutex:
            number, start = int(self._words[SHARDS]), int(self._words[LIST_END])
            assert spec.number == number, f"the next shard is {number}, not {spec.number}"
            self._list[start : start + len(data)] = data
            self._ends[number] = start + len(data)
            self._words[LIST_END] = start + len(data)
            # Readers take no mutex: the entry must be complete before SHARDS counts it.
            futex.fence()
            self._words[SHARDS] = number + 1

    def get_shard(self, number: int) -> Shard:
        """Return a shard; the first call opens it."""
        if number >= len(self._shards):
            self._catch_up()
        return self._shards[number]

    def list_specs(self) -> list[Spec]:
        """Return the specs of all shards, by number."""
        self._catch_up()
        return list(self._specs)

    def _catch_up(self) -> None:
        with self._growing:
            count = int(self._words[SHARDS])
            futex.order()
            for number in range(len(self._shards), count):
                start = int(self._ends[number - 1]) if number else 0
                spec: Spec = pickle.loads(self._list[start : int(self._ends[number])].tobytes())
                self._shards.append(_open(spec))
                self._specs.append(spec)

    # -- reading --

    @property
    def version(self) -> int:
        """Number of pushes applied."""
        return int(self._words[VERSION])

    @property
    def recoveries(self) -> int:
        """Number of updates that were recovered after their process died."""
        return int(self._words[RECOVERIES])

    def read(self, number: int, out: Array | None = None) -> Array:
        """Return a copy of a dense shard's value.

        Args:
            number: The shard's number.
            out: Receives the copy. Default: a new array.
        """
        shard = self.get_shard(number)
        assert isinstance(shard, dense.DenseShard), "a table is read by rows"
        value = shard.read(out)
        if value is None:
            with self._mutex:
                value = shard.read(out)
        assert value is not None, "nobody writes without the mutex"
        return value

    def read_rows(self, number: int, ids: Array, out: Array | None = None) -> Array:
        """Return copies of rows of a table or of a dense shard. New rows of a table are made.

        Args:
            number: The shard's number.
            ids: Local ids, int64.
            out: Receives the rows. Default: a new array.
        """
        shard = self.get_shard(number)
        if isinstance(shard, dense.DenseShard):
            value = shard.read_rows(ids, out)
            if value is None:
                with self._mutex:
                    value = shard.read_rows(ids, out)
            assert value is not None, "nobody writes without the mutex"
            return value
        value = shard.read(ids, out)
        if value is None:
            with self._mutex:
                shard.make(ids)
                value = shard.read(ids, out)
        assert value is not None, "just made"
        return value

    # -- updating --

    def push(self, ticket: records.Ticket | None, operations: Sequence[records.Operation]) -> bool:
        """Do all operations, or none.

        Args:
            ticket: Identifies this push. None: the push is never sent twice.
            operations: The operations, each on another shard.

        Returns:
            Whether the push was applied now. False: it had been applied before.
        """
        words = self._words
        with self._mutex:
            if ticket is not None and self._is_applied(ticket):
                return False
            words[TOUCHED] = 0
            words[HOLDER] = -1
            words[STATE] = APPLYING
            try:
                for place, operation in enumerate(operations):
                    shard = self.get_shard(operation.number)
                    # The number comes before the work, so that recovery undoes every shard that was touched.
                    self._touched[place] = operation.number
                    words[TOUCHED] = place + 1
                    if self.on_point is not None:
                        self.on_point("begun")
                    shard.prepare(operation)
                    if self.on_point is not None:
                        self.on_point("prepared")
            except BaseException:
                self._undo()
                raise
            if ticket is not None:
                words[HOLDER], words[CLOSURE], words[TURN] = ticket.holder, ticket.closure, ticket.turn
            words[NEXT_VERSION] = words[VERSION] + 1
            futex.fence()
            words[STATE] = COMMITTED
            if self.on_point is not None:
                self.on_point("committed")
            self._finish()
            return True

    def deposit(self, worker: int, round_number: int, operations: Sequence[records.Operation]) -> None:
        """Put a worker's gradients of a synchronous step into its boxes, where they wait for the other workers'."""
        for operation in operations:
            self._get_accumulator(operation.number).put(worker, round_number, operation)

    def close_round(self, round_number: int, workers: list[int]) -> bool:
        """Apply the mean of the workers' gradients of a synchronous step; return whether it was applied now.

        Args:
            round_number: The step's number.
            workers: The workers whose gradients count, rising.
        """
        operations = []
        for spec in self.list_specs():
            if spec.accumulator is not None:
                operation = self._get_accumulator(spec.number).take_mean(spec.number, round_number, workers)
                if operation is not None:
                    operations.append(operation)
        return self.push(records.Ticket(ROUND_HOLDER, round_number, 0), operations)

    def export(self, number: int) -> dict[str, object]:
        """Return a shard's value, slots and step, and a table's ids, all of one moment."""
        with self._mutex:
            return self.get_shard(number).export()

    def begin_snapshot(self, number: int) -> tuple[Array, Array, Array | None]:
        """Begin a snapshot of a table; return its rows, their ids, and their values if they are copied already. See
        `rows.TableShard.begin_snapshot`."""
        table = self._get_table(number)
        with self._mutex:
            return table.begin_snapshot()

    def finish_snapshot(self, number: int, which: Array) -> Array:
        """Return the rows `which`, as they were when the snapshot began."""
        return self._get_table(number).snapshot.finish(which)

    def evict(self, number: int, idle_updates: int) -> int:
        """Give up the rows of a table that its last `idle_updates` updates did not touch; return their number."""
        table = self._get_table(number)
        with self._mutex:
            return table.evict_idle(idle_updates)

    def get_statistics(self) -> dict[str, int]:
        """Return the number of pushes applied, and of updates recovered after their process died."""
        return {"version": self.version, "recoveries": self.recoveries}

    def describe(self) -> showing.Facts:
        """Return the facts that viewers show, read without the mutex."""
        return {
            "server": self.server,
            "updates": self.version,
            "recoveries": self.recoveries,
            "shards": [spec.describe() for spec in self.list_specs()],
        }

    def _get_table(self, number: int) -> rows.TableShard:
        shard = self.get_shard(number)
        assert isinstance(shard, rows.TableShard), "a dense variable has no rows to give up, and is exported"
        return shard

    def _get_accumulator(self, number: int) -> gradient_accumulator.GradientAccumulator:
        found = self._accumulators.get(number)
        if found is None:
            spec = self.get_shard(number).spec
            assert spec.accumulator is not None, "the strategy is synchronous"
            found = self._accumulators[number] = gradient_accumulator.GradientAccumulator(
                spec, memory.open_memory(spec.accumulator)
            )
        return found

    def count_applied(self, holder: int, closure: int) -> int:
        """Return the number of a closure's pushes that were applied."""
        known, turn = self._tickets[holder]
        return int(turn) + 1 if known == closure else 0

    def locked(self) -> mutex.Mutex:
        """Return the mutex, for a caller that reads several shards at one version."""
        return self._mutex

    def _is_applied(self, ticket: records.Ticket) -> bool:
        closure, turn = self._tickets[ticket.holder]
        return bool(ticket.closure < closure or (ticket.closure == closure and ticket.turn <= turn))

    def _finish(self) -> None:
        """Do step 4 of an update. A second call does no harm."""
        words = self._words
        for number in self._touched[: int(words[TOUCHED])]:
            self.get_shard(int(number)).commit()
        holder = int(words[HOLDER])
        if holder >= 0:
            # The turn comes first: a smaller closure still drops the push if this process dies in between.
            self._tickets[holder, 1] = words[TURN]
            self._tickets[holder, 0] = words[CLOSURE]
        if self.on_point is not None:
            self.on_point("finished")
        words[VERSION] = words[NEXT_VERSION]
        futex.fence()
        words[STATE] = IDLE

    def _undo(self) -> None:
        words = self._words
        for number in self._touched[: int(words[TOUCHED])]:
            self.get_shard(int(number)).undo()
        futex.fence()
        words[STATE] = IDLE

    def _recover(self) -> None:
        """Finish or undo a dead process's update. Called with the mutex held."""
        self._words[RECOVERIES] += 1
        state = int(self._words[STATE])
        if state == APPLYING:
            self._undo()
        elif state == COMMITTED:
            self._finish()
        for number in range(int(self._words[SHARDS])):
            self.get_shard(number).mend()


def build_shard(spec: Spec, value: Any = None) -> None:
    """Initialise a shard in new memory. The process that made the memory calls this once, before `Store.add`.

    Args:
        spec: The shard's spec.
        value: The initial value of a dense shard. Of a table: its first rows; None leaves all rows to the initializer.
    """
    shard = _open(spec)
    if spec.accumulator is not None:
        gradient_accumulator.build(memory.open_memory(spec.accumulator), spec)
    if isinstance(shard, dense.DenseShard):
        shard.build(value)
    elif value is not None:
        shard.prepare(records.Operation(spec.number, "rows_assign", value, np.arange(len(value))))
        shard.commit()


def _open(spec: Spec) -> Shard:
    kept = memory.open_memory(spec.ref)
    if isinstance(spec, records.DenseSpec):
        return dense.DenseShard(spec, kept)
    return rows.TableShard(spec, kept)
