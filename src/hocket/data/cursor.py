"""A loop's place in a ledger. The loader of each framework has a cursor between the ledger and the loop.

A loop over batches is a Python ``for``. It asks for the next batch, works on it, and asks again. After the last batch
it asks once more, and learns that there is none. It may break off, or be killed, at any point. A state that was saved
in between must let another loop go on as if nothing had happened. So:

- A batch counts as done when it is handed to the loop. Batches that were read ahead do not count.
- After the last batch, and until the loop has asked for another one, the epoch is *ending*. A loop that goes on from
  there gets no batch, does its work between two epochs, and begins the next epoch. If the state said "the next epoch
  begins" instead, a loop that counts its epochs would run one too many.
- A new loop begins an epoch. Rows that an earlier loop has skipped by `break` are not made up for, as everywhere in
  Python. Only the first loop after `load_state_dict` goes on in the middle.
- There is one loop at a time. After a newer loop has begun, an older one raises at its next batch, because both would
  move the same ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import final

from hocket.data import ledger as ledger_module

_ENDING = "ending"
"""A key of a cursor's state that a ledger's state lacks: whether all batches of the epoch before the ledger's epoch are
handed out, and their loop is not over."""


@final
class Cursor:
    """One rank's way through a ledger. All ranks move their cursors alike.

    Args:
        rows: The ledger. It belongs to the cursor from now on.
        rank: The rank whose slices to take.
        world_size: Number of slices of each batch.

    Raises:
        ValueError: The rank or the world size is out of range.

    Example:
        >>> from hocket.data import Ledger
        >>> from hocket.data.cursor import Cursor
        >>> cursor = Cursor(Ledger(5, batch_size=2, shuffle=False), rank=0, world_size=1)
        >>> loop, parts = cursor.begin()
        >>> for part in parts:
        ...     cursor.take(loop)
        ...     print(part.indices.tolist(), cursor.epoch, cursor.steps_left)
        [0, 1] 0 2
        [2, 3] 0 1
        [4] 0 0
        >>> cursor.leave(loop)
        >>> cursor.epoch, cursor.steps_left
        (1, 3)
    """

    def __init__(self, rows: ledger_module.Ledger, rank: int, world_size: int) -> None:
        rows.slices(rank, world_size)  # checks them
        self._ledger = rows
        self.rank = rank
        self.world_size = world_size
        self._is_ending = False
        #: Whether the next loop goes on from a loaded state, instead of beginning an epoch.
        self._is_resumed = False
        #: Number of the latest loop.
        self._loop = 0

    @property
    def ledger(self) -> ledger_module.Ledger:
        """The ledger. Only the cursor moves it."""
        return self._ledger

    @property
    def epoch(self) -> int:
        """The epoch of the running loop, or else the epoch that the next loop begins."""
        return self._ledger.epoch - self._is_ending

    @property
    def steps_left(self) -> int:
        """Number of batches of that epoch that are not handed out yet."""
        return 0 if self._is_ending else self._ledger.steps_left

    def read(self) -> Iterator[ledger_module.Slice]:
        """Return an iterator over the slices that are left of the epoch. The cursor stays where it is."""
        return iter(()) if self._is_ending else self._ledger.slices(self.rank, self.world_size)

    def begin(self) -> tuple[int, Iterator[ledger_module.Slice]]:
        """Begin a loop, and return its number and its slices."""
        if not self._is_resumed:
            self._go_to_next_epoch()
        self._loop += 1
        return self._loop, self.read()

    def take(self, loop: int) -> None:
        """Note that the next batch is handed to a loop."""
        if loop != self._loop:
            raise RuntimeError(
                "This loop over the loader cannot go on: another loop, load_state_dict() or set_epoch() moved the "
                "loader, which hands out each row only once. Prepare a separate loader for each loop that runs at the "
                "same time, or pass the data set to the trainer under a second name."
            )
        epoch = self._ledger.epoch
        self._ledger.advance()
        self._is_resumed = False
        self._is_ending = self._ledger.epoch != epoch

    def leave(self, loop: int) -> None:
        """Note that a loop is over: it has reached the end, or was broken off."""
        if loop == self._loop:
            self._is_resumed = False
            self._go_to_next_epoch()

    def close(self) -> None:
        """Note that another cursor replaces this one. A loop that still runs is overtaken."""
        self._loop += 1

    def _go_to_next_epoch(self) -> None:
        if self._is_ending:  # the ledger is in the next epoch already
            self._is_ending = False
        elif self._ledger.position:
            self._ledger.set_epoch(self._ledger.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Let the next loop begin this epoch; or go on in it, if a state of this epoch has just been loaded."""
        if epoch == self.epoch and (self._is_resumed or not (self._is_ending or self._ledger.position)):
            return
        self._ledger.set_epoch(epoch)
        if self._ledger.position:  # `Ledger.set_epoch` keeps the position within its own epoch
            self._ledger.set_epoch(epoch + 1)
            self._ledger.set_epoch(epoch)
        self._is_ending = self._is_resumed = False
        self._loop += 1

    def state_dict(self) -> dict[str, int]:
        """Return the ledger's state, and whether the last batch of an epoch has just been handed out."""
        return {**self._ledger.state_dict(), _ENDING: self._is_ending}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Let the next loop go on from a state of any number of ranks. If the batch size is another, the rest of the
        epoch is cut anew.

        Args:
            state: The result of `state_dict`, or of a ledger's.
        """
        self._ledger.load_state_dict(state, rebatch=True)
        # With drop_last, the rest of the epoch may not fill a batch of this group.
        self._is_ending = bool(state.get(_ENDING, False)) or self._ledger.epoch != state["epoch"]
        self._is_resumed = True
        self._loop += 1
