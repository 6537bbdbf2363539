"""The index of a table of hashed ids: which row an id has.

Open addressing with linear probing (Knuth, The Art of Computer Programming, volume 3, 6.4, algorithm L), at most two
thirds full, for all ids of a request at once.
"""

from __future__ import annotations

from typing import Final, final

import numpy as np

from hocket.ps.memory import Array

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio, odd: Knuth's multiplicative hashing."""


def count_places(rows: int) -> int:
    """Return how many places the index of so many rows has."""
    return 1 << int(rows * 3 // 2).bit_length()


@final
class HashIndex:
    """The index, in the table's memory: the id of each row; and places, with 0 where one is free, else 1 + the row."""

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
