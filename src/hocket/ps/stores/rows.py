"""A table's shard in memory: a row is made when it is first looked up.

An update touches few rows, so it changes them in place, after it has put a *before-image* of them beside. The update
gathers the rows anyway, so the image costs one copy of them. A writer that is killed in the middle leaves the image,
and the next process that gets the mutex puts the image back.

**Rows.** If ids are row numbers, row and id are the same. If ids are hashed, each new id gets the next row, and an
index finds the row again (`HashIndex`). A row's numbers before its first update depend on its id only (`initializers`),
so the order of requests does not matter.

**Reading** takes the mutex only to make rows that no process has looked up before. Otherwise rows are copied while
other processes may write: a reader can see a row that is half written, as in any asynchronous training (Hogwild: Niu,
Recht, Re and Wright, 2011).

All other operations happen under the server's mutex (`store`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from hocket.collective import futex
from hocket.ps import errors
from hocket.ps.stores import memory, records
from hocket.ps.stores.memory import Array

COUNT, UPDATES, GRADIENTS, UNDO, UNDO_UPDATES, UNDO_GRADIENTS, IS_INDEX_BROKEN, MADE, EVICTED, MOVES, SNAPSHOT = range(
    11
)
"""Words of the header: rows given away (hashed); updates applied; gradients among them, which is the optimizer's step;
number of rows with a before-image, plus one (0: no image); updates and gradients before the update; whether the index
is being changed; rows made; rows evicted; how often rows began or ended to change places (odd while they do); the
process that takes a snapshot."""

_FREE: Final = -1

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio, odd, for Knuth's multiplicative hashing."""

_SNAPSHOT_ROWS: Final = 8192
"""Number of rows of a snapshot that are copied at once. A guess: some megabytes."""


def _count_places(rows: int) -> int:
    """Return the number of places in the index of `rows` rows."""
    return 1 << int(rows * 3 // 2).bit_length()


@final
class HashIndex:
    """The index of a table of hashed ids, in the table's memory.

    `keys` has the id of each row; `places` has 1 + row at a taken place, and 0 at a free one. The method is open
    addressing with linear probing (Knuth, The Art of Computer Programming, volume 3, 6.4, algorithm L), at most two
    thirds full. It handles all ids of a request at once.
    """

    def __init__(self, keys: Array, places: Array) -> None:
        self.keys: Final = keys
        self._places = places
        self._shift = np.uint64(64 - len(places).bit_length() + 1)

    def look_up(self, ids: Array) -> Array:
        """Return the rows of hashed ids, -1 for ids without a row."""
        mask = len(self._places) - 1
        place = self._hash(ids)
        rows = np.take(self._places, place, mode="clip") - 1
        left = np.flatnonzero((np.take(self.keys, rows, mode="clip") != ids) & (rows >= 0))  # usually few
        place = place[left]
        while len(left):
            place = (place + 1) & mask
            found = self._places[place] - 1
            rows[left] = found
            goes_on = (self.keys[found] != ids[left]) & (found >= 0)
            left, place = left[goes_on], place[goes_on]
        return rows

    def _hash(self, ids: Array) -> Array:
        return ((ids.view(np.uint64) * _GOLDEN) >> self._shift).astype(np.int64)

    def enter(self, ids: Array, rows: Array) -> None:
        """Put new ids into the index, all different."""
        mask = len(self._places) - 1
        place = self._hash(ids)
        while len(ids):
            free = np.flatnonzero(self._places[place] == 0)
            _, first = np.unique(place[free], return_index=True)  # one id gets each place
            winners = free[first]
            self._places[place[winners]] = rows[winners] + 1
            left = np.ones(len(ids), np.bool_)
            left[winners] = False
            ids, rows, place = ids[left], rows[left], (place[left] + 1) & mask

    def rebuild(self, used: int) -> None:
        """Build the index again from the ids of the first `used` rows."""
        self._places.fill(0)
        self.enter(self.keys[:used], np.arange(used))


@final
class TableSnapshot:
    """A snapshot of a table's shard, in the shard's memory, taken while others change the table: copy on write.

    After the snapshot begins, the first change of a row saves its old numbers. There is room for one snapshot at a
    time.

    Args:
        flag: One word: the process that takes a snapshot; 0: no process does.
        is_saved: Whether each row was changed since the snapshot began.
        saved: The old numbers of those rows.
        values: The table's rows.
    """

    def __init__(self, flag: Array, is_saved: Array, saved: Array, values: Array) -> None:
        self._flag, self._is_saved, self._saved, self._values = flag, is_saved, saved, values

    @property
    def is_on(self) -> bool:
        """Whether a snapshot is being taken."""
        return bool(self._flag[0])

    def begin(self) -> bool:
        """Begin a snapshot: later changes of a row save the row first. Called under the mutex.

        Returns whether it has begun. False: another process is taking a snapshot, which needs the saved rows.
        """
        # A flag left by a dead process does not block the next snapshot.
        if self.is_on and Path(f"/proc/{self._flag[0]}").exists():
            return False
        self._is_saved.fill(False)
        futex.fence()
        self._flag[0] = os.getpid()
        return True

    def save(self, rows: Array, values: Array) -> None:
        """Save the old numbers of rows that are about to change. Called under the mutex."""
        fresh = ~self._is_saved[rows]
        which = rows[fresh]
        self._saved[which] = values[fresh]
        futex.fence()
        self._is_saved[which] = True

    def finish(self, rows: Array) -> Array:
        """Return the rows as they were when the snapshot began. Called without the mutex: pushes go on meanwhile."""
        result = np.empty((len(rows), self._values.shape[1]), self._values.dtype)
        for start in range(0, len(rows), _SNAPSHOT_ROWS):
            some = rows[start : start + _SNAPSHOT_ROWS]
            # A push saves a row before it changes the row. So copying first and looking at `is_saved` later is safe.
            copies = self._values[some]
            futex.fence()
            is_saved = self._is_saved[some]
            copies[is_saved] = self._saved[some[is_saved]]
            result[start : start + len(some)] = copies
        self._flag[0] = 0
        return result


def plan(spec: records.TableSpec) -> memory.SegmentPlan:
    """Return the layout of a shard's memory."""
    layout = memory.SegmentPlan()
    layout.add("header", (16,), np.int64)
    layout.add("is_made", (spec.rows,), np.uint8)
    layout.add("last_steps", (spec.rows,), np.int64)
    layout.add("hits", (spec.rows,), np.int64)
    parts = 1 + len(spec.slots)
    for part in range(parts):
        layout.add(f"rows{part}", (spec.rows, spec.dim), spec.dtype)
    layout.add("is_saved", (spec.rows,), np.uint8)
    layout.add("saved", (spec.rows, spec.dim), spec.dtype)
    layout.add("undo_rows", (spec.rows,), np.int64)
    for part in range(parts):
        layout.add(f"undo{part}", (spec.rows, spec.dim), spec.dtype)
    if spec.is_hashed:
        layout.add("keys", (spec.rows,), np.int64)
        layout.add("index", (_count_places(spec.rows),), np.int64)
    return layout


@final
class TableShard:
    """A table's shard, as this process sees it."""

    def __init__(self, spec: records.TableSpec, kept: memory.Memory) -> None:
        self.spec: Final = spec
        arrays = plan(spec).view(kept)
        self._header = arrays["header"]
        self._is_made = arrays["is_made"].view(np.bool_)
        self._last_steps = arrays["last_steps"]
        self._hits = arrays["hits"]
        parts = range(1 + len(spec.slots))
        self._parts = [arrays[f"rows{part}"] for part in parts]
        self.snapshot: Final = TableSnapshot(
            self._header[SNAPSHOT : SNAPSHOT + 1], arrays["is_saved"].view(np.bool_), arrays["saved"], self._parts[0]
        )
        self._undo_rows = arrays["undo_rows"]
        self._undo_parts = [arrays[f"undo{part}"] for part in parts]
        self._work: list[Array] = []
        if spec.is_hashed:
            self._index = HashIndex(arrays["keys"], arrays["index"])

    # -- reading, without the mutex --

    def read(self, ids: Array, out: Array | None = None) -> Array | None:
        """Return copies of rows; None if rows are not made or are changing places: then `make` them, and read again.

        Args:
            ids: This shard's row numbers, or hashed ids; int64.
            out: Receives the rows. Default: a new array.
        """
        moves = int(self._header[MOVES])
        futex.order()
        is_hashed = self.spec.is_hashed
        rows = self._index.look_up(ids) if is_hashed else ids
        if (is_hashed and (rows < 0).any()) or not self._is_made[rows].all():
            return None
        futex.order()
        result = np.take(self._parts[0], rows, axis=0, out=out, mode="clip")
        futex.fence()
        # Copies are of the wrong ids if an eviction moved rows between the two reads of MOVES.
        return result if self._header[MOVES] == moves and not moves & 1 else None

    # -- changing, under the mutex --

    def make(self, ids: Array) -> Array:
        """Make the rows of ids that have none yet; return the rows' numbers."""
        rows = self._place(ids) if self.spec.is_hashed else ids
        fresh = ~self._is_made[rows]
        if not fresh.any():
            return rows
        which, first = np.unique(rows[fresh], return_index=True)
        optimizer = self.spec.optimizer
        for part, name in zip(self._parts[1:], self.spec.slots, strict=True):
            assert optimizer is not None, "slots are an optimizer's"
            part[which] = optimizer.slot_initial(name)
        start = np.empty((len(which), self.spec.dim), self.spec.dtype)
        self.spec.initializer.fill(self._name(ids[fresh][first]), start)
        self._parts[0][which] = start
        self._hits[which] = 0
        self._last_steps[which] = self._header[UPDATES]
        self._header[MADE] += len(which)
        # Readers test `is_made` without the mutex, so it is set last.
        futex.fence()
        self._is_made[which] = True
        return rows

    def prepare(self, operation: records.Operation) -> None:
        """Change rows, after putting a before-image of them beside."""
        if operation.kind == "restore":
            self._restore(operation.value)
            return
        rows = self.make(operation.ids)
        header, count = self._header, len(rows)
        updates = int(header[UPDATES]) + 1
        header[UNDO_UPDATES], header[UNDO_GRADIENTS] = updates - 1, header[GRADIENTS]
        self._undo_rows[:count] = rows
        images = [image[:count] for image in self._undo_parts]
        for part, image in zip(self._parts, images, strict=True):
            np.take(part, rows, axis=0, out=image, mode="clip")
        # Recovery trusts the image only once UNDO counts it.
        futex.fence()
        header[UNDO] = 1 + count
        if header[SNAPSHOT]:
            self.snapshot.save(rows, self._undo_parts[0][:count])
        if operation.kind == "rows_gradient":
            optimizer = self.spec.optimizer
            assert optimizer is not None, "checked by who sends it"
            gradient = np.ascontiguousarray(operation.value, self.spec.dtype).reshape(-1)
            old = [image.reshape(-1) for image in images]
            new = self._get_work(count)
            flat = [values.reshape(-1) for values in new]
            step = int(header[GRADIENTS]) + 1
            optimizer.apply(old[0], old[1:], gradient, step, flat[0], flat[1:], operation.scale)
            header[GRADIENTS] = step
            for part, values in zip(self._parts, new, strict=True):
                part[rows] = values
        elif operation.kind == "rows_add":
            (work, *_) = self._get_work(count)
            self._parts[0][rows] = np.add(images[0], operation.value, out=work, casting="same_kind")
        else:
            self._parts[0][rows] = operation.value
        self._hits[rows] += 1
        self._last_steps[rows] = updates
        header[UPDATES] = updates

    def commit(self) -> None:
        """Drop the before-image. A second call does no harm."""
        futex.fence()
        self._header[UNDO] = 0

    def undo(self) -> None:
        """Put the before-image back. A second call does no harm."""
        if not self._header[UNDO]:
            return
        count = int(self._header[UNDO]) - 1
        rows = self._undo_rows[:count]
        for part, image in zip(self._parts, self._undo_parts, strict=True):
            part[rows] = image[:count]
        self._header[UPDATES], self._header[GRADIENTS] = self._header[UNDO_UPDATES], self._header[UNDO_GRADIENTS]
        futex.fence()
        self._header[UNDO] = 0

    def mend(self) -> None:
        """Rebuild the index if its writer died."""
        if self.spec.is_hashed and self._header[IS_INDEX_BROKEN]:
            # An odd MOVES, left by a dead writer, would stop all reads without the mutex.
            self._header[MOVES] += int(self._header[MOVES]) & 1
            self._rebuild_index()

    def evict(self, count: int, by: str, stay: Array | None = None) -> int:
        """Give up `count` rows of a hashed table, the rows in `stay` last; return their number. See `Eviction`."""
        used = int(self._header[COUNT])
        count = min(count, used)
        if not count:
            return 0
        order = (self._last_steps if by == "age" else self._hits)[:used].copy()
        if stay is not None:
            order[stay] = np.iinfo(np.int64).max
        gone = np.zeros(used, np.bool_)
        gone[np.argpartition(order, count - 1)[:count]] = True
        return self._drop(gone)

    def evict_idle(self, updates: int) -> int:
        """Give up the rows of a hashed table that the last `updates` updates did not touch; return their number."""
        used = int(self._header[COUNT])
        return self._drop(self._last_steps[:used] <= int(self._header[UPDATES]) - updates)

    # -- the whole --

    def export(self) -> dict[str, Any]:
        """Return all rows that are made: ids, values, slots, hits and last updates; the optimizer's step, and the
        number of updates. Called under the mutex."""
        rows = self._list_made()
        return {
            "ids": self._get_ids(rows),
            "value": self._parts[0][rows],
            "slots": [part[rows] for part in self._parts[1:]],
            "hits": self._hits[rows],
            "last_steps": self._last_steps[rows],
            "step": int(self._header[GRADIENTS]),
            "updates": int(self._header[UPDATES]),
        }

    # -- snapshots --

    def begin_snapshot(self) -> tuple[Array, Array, Array | None]:
        """Begin a snapshot: later changes of a row save the row first. Called under the mutex.

        Returns:
            The rows that are made, their ids, and None: `TableSnapshot.finish` returns the values. While another
            snapshot is being taken, the third item is the values, copied at once, and this snapshot is complete.
        """
        rows = self._list_made()
        return rows, self._get_ids(rows), None if self.snapshot.begin() else self._parts[0][rows]

    def statistics(self) -> dict[str, int]:
        """Return the numbers of rows made, rows evicted, and updates applied."""
        return {
            "rows": int(np.count_nonzero(self._is_made[: self._count_used()])),
            "evicted": int(self._header[EVICTED]),
            "updates": int(self._header[UPDATES]),
        }

    # -- inside --

    def _list_made(self) -> Array:
        return np.flatnonzero(self._is_made[: self._count_used()])

    def _get_ids(self, rows: Array) -> Array:
        return self._index.keys[rows] if self.spec.is_hashed else self._name(rows)

    def _count_used(self) -> int:
        return int(self._header[COUNT]) if self.spec.is_hashed else self.spec.rows

    def _name(self, rows: Array) -> Array:
        """Return the table's ids of this shard's rows or hashed ids. Initial values depend on them."""
        return rows if self.spec.is_hashed else rows * self.spec.stride + self.spec.offset

    def _restore(self, state: dict[str, Any]) -> None:
        """Replace everything. An interrupted restore is not undone: it precedes training, and can be repeated."""
        self._is_made[: self._count_used()] = False
        if self.spec.is_hashed:
            self._header[IS_INDEX_BROKEN] = 1
            self._header[COUNT] = 0
            self._rebuild_index()
            rows = self._place(state["ids"])
        else:
            rows = (state["ids"] - self.spec.offset) // self.spec.stride
        self._parts[0][rows] = state["value"]
        for part, given in zip(self._parts[1:], state["slots"], strict=True):
            part[rows] = given
        self._hits[rows] = state["hits"]
        self._last_steps[rows] = state["last_steps"]
        self._header[GRADIENTS], self._header[UPDATES] = state["step"], state["updates"]
        self._is_made[rows] = True

    def _get_work(self, count: int) -> list[Array]:
        """Return scratch arrays for the new values of `count` rows and of their slots.

        The arrays are kept between updates, because fresh memory would cost as much as the update. The mutex gives
        them to one thread at a time."""
        if not self._work or len(self._work[0]) < count:
            self._work = [np.empty((count + count // 4, self.spec.dim), self.spec.dtype) for _ in self._parts]
        return [work[:count] for work in self._work]

    def _place(self, ids: Array) -> Array:
        """Return the rows of hashed ids; give rows to new ids."""
        rows = self._index.look_up(ids)
        new = np.unique(ids[rows < 0])
        if not len(new):
            return rows
        if int(self._header[COUNT]) + len(new) > self.spec.rows:
            self._make_room(len(new), rows[rows >= 0])
            rows = self._index.look_up(ids)  # rows have changed places
        used = int(self._header[COUNT])
        given = np.arange(used, used + len(new))
        self._is_made[given] = False
        self._index.keys[given] = new
        # A death between here and the reset leaves keys without places: `mend` rebuilds the index.
        self._header[IS_INDEX_BROKEN] = 1
        futex.fence()
        self._header[COUNT] = used + len(new)
        self._index.enter(new, given)
        futex.fence()
        self._header[IS_INDEX_BROKEN] = 0
        return self._index.look_up(ids)

    def _rebuild_index(self) -> None:
        self._index.rebuild(int(self._header[COUNT]))
        futex.fence()
        self._header[IS_INDEX_BROKEN] = 0

    def _make_room(self, count: int, stay: Array) -> None:
        """Give up rows to make room for `count` new ones, but not the rows in `stay`."""
        policy, capacity = self.spec.eviction, self.spec.rows
        if policy is None or count + len(np.unique(stay)) > capacity:
            raise errors.CapacityError(
                f"The table `{self.spec.name}` has room for {capacity} ids on server {self.spec.server} and holds "
                f"{int(self._header[COUNT])}, but received {count} new ones. Use a larger capacity, or Embedding(..., "
                "eviction=Eviction(by='age'))."
            )
        missing = count - (capacity - int(self._header[COUNT]))
        most = int(self._header[COUNT]) - len(np.unique(stay))
        self.evict(min(max(missing, int(capacity * policy.fraction)), most), policy.by, stay)

    def _drop(self, gone: Array) -> int:
        """Give up rows. The last rows move into their places, so that rows stay without gaps."""
        used, count = len(gone), int(gone.sum())
        if not count:
            return 0
        kept = used - count
        holes = np.flatnonzero(gone[:kept])
        movers = kept + np.flatnonzero(~gone[kept:])
        # A death after this line costs rows, not the table: the index is rebuilt from the keys.
        self._header[IS_INDEX_BROKEN] = 1
        if self.snapshot.is_on:
            self.snapshot.save(np.arange(used), self._parts[0][:used])
        self._header[MOVES] += 1
        futex.fence()
        for array in (*self._parts, self._index.keys, self._hits, self._last_steps, self._is_made):
            array[holes] = array[movers]
        self._is_made[kept:used] = False
        self._header[COUNT] = kept
        self._header[EVICTED] += count
        self._rebuild_index()
        self._header[MOVES] += 1
        return count
