"""A table's shard in memory: rows that come into being when they are first asked for.

An update touches few rows, so they are changed in place, after a *before-image* of them was put beside: gathering the
rows is needed anyway, so what it costs is one copy of them. A writer that is killed in the middle leaves the image, and
whoever gets the mutex next puts it back.

**Rows.** With ids that are row numbers, row and id are the same. With hashed ids a row is given to each new id in turn,
and found again through an index (`HashIndex`). A row's numbers before its first update depend on its id only
(`initializers`), so it does not matter who asks first.

**Reading** takes the mutex only to make rows that nobody has asked for before. Otherwise rows are copied while others
may write: a row can be read between two of its numbers being written, as in any asynchronous training (Hogwild: Niu,
Recht, Re and Wright, 2011).

All else happens under the server's mutex (`store`).
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
"""Words of the header: rows given away (hashed), updates applied, those of them that were gradients, which is the
optimizer's step, one more than the rows with a before-image (0: there is none), updates and gradients before, whether
the index is being changed, rows brought into being, rows evicted, how often rows began and ended to change places, the
process that takes a snapshot."""

_FREE: Final = -1

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio, odd: Knuth's multiplicative hashing."""

_SNAPSHOT_ROWS: Final = 8192
"""How many rows of a snapshot are copied at once. A guess: some megabytes."""


def _count_places(rows: int) -> int:
    """Return how many places the index of so many rows has."""
    return 1 << int(rows * 3 // 2).bit_length()


@final
class HashIndex:
    """The index of a table of hashed ids, in its memory: the id of each row; and places, 0 where one is free, else 1 +
    row.

    Open addressing with linear probing (Knuth, The Art of Computer Programming, volume 3, 6.4, algorithm L), at most
    two thirds full, for all ids of a request at once.
    """

    def __init__(self, keys: Array, places: Array) -> None:
        self.keys: Final = keys
        self._places = places
        self._shift = np.uint64(64 - len(places).bit_length() + 1)

    def look_up(self, ids: Array) -> Array:
        """Return the rows of hashed ids, -1 for those that have none."""
        mask = len(self._places) - 1
        place = self._hash(ids)
        rows = np.take(self._places, place, mode="clip") - 1
        left = np.flatnonzero((np.take(self.keys, rows, mode="clip") != ids) & (rows >= 0))  # most are found at once
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
        """Put ids into the index that are not in it, all different."""
        mask = len(self._places) - 1
        place = self._hash(ids)
        while len(ids):
            free = np.flatnonzero(self._places[place] == 0)
            _, first = np.unique(place[free], return_index=True)  # of several that want a place, one gets it
            winners = free[first]
            self._places[place[winners]] = rows[winners] + 1
            left = np.ones(len(ids), np.bool_)
            left[winners] = False
            ids, rows, place = ids[left], rows[left], (place[left] + 1) & mask

    def rebuild(self, used: int) -> None:
        """Make the index again from the ids of the first rows."""
        self._places.fill(0)
        self.enter(self.keys[:used], np.arange(used))


@final
class TableSnapshot:
    """A snapshot of a table's shard, in its memory, that is taken while others change the table: copy on write.

    From the moment when it begins, whoever changes a row saves what the row was first, once. There is room for one
    snapshot at a time.

    Args:
        flag: One word: the process that takes a snapshot; 0: nobody does.
        is_saved: Which rows were changed since it began.
        saved: What they were before.
        values: The table's rows.
    """

    def __init__(self, flag: Array, is_saved: Array, saved: Array, values: Array) -> None:
        self._flag, self._is_saved, self._saved, self._values = flag, is_saved, saved, values

    @property
    def is_on(self) -> bool:
        """Whether a snapshot is being taken."""
        return bool(self._flag[0])

    def begin(self) -> bool:
        """Have each row that is changed from now on be saved before. Called under the mutex.

        Returns whether it has begun: False if another one is being taken, which needs what is saved.
        """
        if self.is_on and Path(f"/proc/{self._flag[0]}").exists():
            return False
        self._is_saved.fill(False)
        futex.fence()
        self._flag[0] = os.getpid()
        return True

    def save(self, rows: Array, values: Array) -> None:
        """Keep what rows were, that are about to be changed. Called under the mutex."""
        fresh = ~self._is_saved[rows]
        which = rows[fresh]
        self._saved[which] = values[fresh]
        futex.fence()
        self._is_saved[which] = True

    def finish(self, rows: Array) -> Array:
        """Return the rows as they were when the snapshot began. Called without the mutex: others go on meanwhile. A row
        is copied first, and then looked up among the saved ones: a push saves a row before it changes the row."""
        result = np.empty((len(rows), self._values.shape[1]), self._values.dtype)
        for start in range(0, len(rows), _SNAPSHOT_ROWS):
            some = rows[start : start + _SNAPSHOT_ROWS]
            copies = self._values[some]
            futex.fence()
            is_saved = self._is_saved[some]
            copies[is_saved] = self._saved[some[is_saved]]
            result[start : start + len(some)] = copies
        self._flag[0] = 0
        return result


def plan(spec: records.TableSpec) -> memory.Plan:
    """Lay out a shard."""
    layout = memory.Plan()
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
    """A shard, as this process sees it."""

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
        """Return copies of rows; None if one of them was never made, or rows are changing places: then call `make`
        under the mutex, and read again.

        Args:
            ids: Of this shard (row numbers), or any (hashed). int64.
            out: Where to put them. Default: a new array.
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
        return result if self._header[MOVES] == moves and not moves & 1 else None

    # -- changing, under the mutex --

    def make(self, ids: Array) -> Array:
        """Bring the rows of ids into being that are not yet; return which rows they are."""
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
        futex.fence()
        self._is_made[which] = True
        return rows

    def prepare(self, operation: records.Operation) -> None:
        """Change rows, after a before-image of them was put beside."""
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
        """Drop the before-image. Doing it twice does no harm."""
        futex.fence()
        self._header[UNDO] = 0

    def undo(self) -> None:
        """Put the before-image back. Doing it twice does no harm."""
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
        """Make the index again if its writer died."""
        if self.spec.is_hashed and self._header[IS_INDEX_BROKEN]:
            self._header[MOVES] += int(self._header[MOVES]) & 1
            self._rebuild_index()

    def evict(self, count: int, by: str, stay: Array | None = None) -> int:
        """Give up so many rows of a hashed table, those that stay last; return how many. See `Eviction`."""
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
        """Give up rows of a hashed table that none of the last updates has touched; return how many."""
        used = int(self._header[COUNT])
        return self._drop(self._last_steps[:used] <= int(self._header[UPDATES]) - updates)

    # -- the whole --

    def export(self) -> dict[str, Any]:
        """Return all rows that are made: ids, values, slots, the optimizer's step, how many updates there were. Called
        under the mutex."""
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
        """Have each row that is changed from now on be saved before. Called under the mutex.

        Returns:
            The rows that there are, their ids, and None: the values come from `TableSnapshot.finish`. While another
            snapshot is being taken the values are copied at once, and this one is over.
        """
        rows = self._list_made()
        return rows, self._get_ids(rows), None if self.snapshot.begin() else self._parts[0][rows]

    def statistics(self) -> dict[str, int]:
        """Return how many rows are made, were evicted, and how many updates were applied."""
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
        """Return the table's ids of this shard's: what initial values depend on."""
        return rows if self.spec.is_hashed else rows * self.spec.stride + self.spec.offset

    def _restore(self, state: dict[str, Any]) -> None:
        """Replace everything. Not undone if it is interrupted: who restores does so before anybody trains, and may do
        it again."""
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
        """Return room for the new values of so many rows, and of their slots. It is kept: fresh memory would cost as
        much as the update. The mutex makes it one thread's at a time."""
        if not self._work or len(self._work[0]) < count:
            self._work = [np.empty((count + count // 4, self.spec.dim), self.spec.dtype) for _ in self._parts]
        return [work[:count] for work in self._work]

    def _place(self, ids: Array) -> Array:
        """Return the rows of hashed ids, giving rows to new ones."""
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
        """Give up rows, so that there is room for so many new ones beside those that stay."""
        policy, capacity = self.spec.eviction, self.spec.rows
        if policy is None or count + len(np.unique(stay)) > capacity:
            raise errors.CapacityError(
                f"The table `{self.spec.name}` has room for {capacity} ids on server {self.spec.server}, and {count} "
                f"new ones were asked for when {int(self._header[COUNT])} were there. Use a larger capacity, or "
                "Embedding(..., eviction=Eviction(by='age'))."
            )
        missing = count - (capacity - int(self._header[COUNT]))
        most = int(self._header[COUNT]) - len(np.unique(stay))
        self.evict(min(max(missing, int(capacity * policy.fraction)), most), policy.by, stay)

    def _drop(self, gone: Array) -> int:
        """Give up rows: the last ones move into their places, so that rows stay without gaps."""
        used, count = len(gone), int(gone.sum())
        if not count:
            return 0
        kept = used - count
        holes = np.flatnonzero(gone[:kept])
        movers = kept + np.flatnonzero(~gone[kept:])
        # A death from here on costs rows, not the table: the index is made again from the keys.
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
