"""A snapshot of a table that is taken while others change it: copy on write.

From the moment when it begins, whoever changes a row saves what the row was first, once.
"""

from __future__ import annotations

from typing import Final, final

import numpy as np

from hocket.collective import futex
from hocket.ps.memory import Array

_SNAPSHOT_ROWS: Final = 8192
"""How many rows of a snapshot are copied at once. A guess: some megabytes."""


@final
class TableSnapshot:
    """The snapshot of a table's shard, in its memory.

    Args:
        flag: One word: whether a snapshot is being taken.
        is_saved: Which rows were changed since it began.
        saved: What they were before.
        values: The table's rows.
    """

    def __init__(self, flag: Array, is_saved: Array, saved: Array, values: Array) -> None:
        self._flag = flag
        self._is_saved = is_saved
        self._saved = saved
        self._values = values

    @property
    def is_on(self) -> bool:
        """Whether a snapshot is being taken."""
        return bool(self._flag[0])

    def begin(self) -> None:
        """Have each row that is changed from now on be saved before. Called under the mutex."""
        self._is_saved.fill(False)
        futex.fence()
        self._flag[0] = 1

    def save(self, rows: Array, values: Array) -> None:
        """Keep what rows were, that are about to be changed. Called under the mutex."""
        fresh = ~self._is_saved[rows]
        which = rows[fresh]
        self._saved[which] = values[fresh]
        futex.fence()
        self._is_saved[which] = True

    def finish(self, rows: Array) -> Array:
        """Return the rows as they were when the snapshot began. Called without the mutex: others go on meanwhile.

        A row is copied first, and then looked up among the saved ones: whoever changes it saves it before.
        """
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
