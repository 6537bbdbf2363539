"""A loop's place in a ledger: a loader of any framework has it between the ledger and the loop.

A loop over batches is a Python ``for``: it asks for the next batch, works on it, asks again, and after the last batch
it asks once more to learn that there is none. It may break off, or be killed at any point. What is saved in between
must let another loop go on as if nothing had happened. So:

- A batch counts as done when it is handed to the loop. What was read ahead does not count.
- After the last batch, and until the loop has asked for another one, the epoch is *ending*: a loop that goes on from
  there gets no batch, then does what it does between two epochs, and begins the next. If the state said "the next epoch
  begins" instead, a loop that counts its epochs would take one too many.
- A loop that begins anew begins an epoch: rows that a loop has left behind by `break` are not made up for, as
  everywhere in Python. Only the first loop after `load_state_dict` goes on in the middle.
- There is one loop at a time. An older one raises at its next batch after a newer one has begun, because both
  would move the same ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import final

from hocket.data import ledger as ledger_module

_ENDING = "ending"
"""The key of a cursor's state that a ledger's has not: whether all batches of the epoch before the ledger's are handed
out, and its loop is not over."""


@final
class Cursor:
    """One rank's way through a ledger. All ranks move theirs alike.

    Args:
        rows: The ledger. It belongs to the cursor from now on.
        rank: Which slices to take.
        world_size: Into how many each batch is cut.

    Raises:
        ValueError: The rank is not one of the group.

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
        #: Whether the next loop goes on where the state says, instead of beginning an epoch.
        self._is_resumed = False
        #: The number of the latest loop.
        self._loop = 0

    @property
    def ledger(self) -> ledger_module.Ledger:
        """The ledger. It is moved by the cursor only."""
        return self._ledger

    @property
    def epoch(self) -> int:
        """The epoch that a loop is in, or else the one that the next loop begins."""
        return self._ledger.epoch - self._is_ending

    @property
    def steps_left(self) -> int:
        """How many batches of that epoch are not handed out."""
        return 0 if self._is_ending else self._ledger.steps_left

    def read(self) -> Iterator[ledger_module.Slice]:
        """Give the slices that are left of the epoch. The cursor stays where it is."""
        return iter(()) if self._is_ending else self._ledger.slices(self.rank, self.world_size)

    def begin(self) -> tuple[int, Iterator[ledger_module.Slice]]:
        """Begin a loop; return its number, and its slices."""
        if not self._is_resumed:
            self._go_to_next_epoch()
        self._loop += 1
        return self._loop, self.read()

    def take(self, loop: int) -> None:
        """Note that the next batch is handed to a loop."""
        if loop != self._loop:
            raise RuntimeError(
                "This loop over the loader was overtaken: another loop, load_state_dict() or set_epoch() has moved "
                "the loader, whose rows can be handed out only once. Prepare one loader for each loop that shall run "
                "at the same time, or pass the data set to the trainer under a second name."
            )
        epoch = self._ledger.epoch
        self._ledger.advance()
        self._is_resumed = False
        self._is_ending = self._ledger.epoch != epoch

    def leave(self, loop: int) -> None:
        """Note that a loop is over, because it has seen the end or was broken off."""
        if loop == self._loop:
            self._is_resumed = False
            self._go_to_next_epoch()

    def close(self) -> None:
        """Note that another cursor stands where this one is from now on: a loop that still runs is overtaken."""
        self._loop += 1

    def _go_to_next_epoch(self) -> None:
        if self._is_ending:  # the ledger is there already
            self._is_ending = False
        elif self._ledger.position:
            self._ledger.set_epoch(self._ledger.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Have the next loop begin an epoch; or, right after `load_state_dict`, go on in it if it is the state's."""
        if epoch == self.epoch and (self._is_resumed or not (self._is_ending or self._ledger.position)):
            return
        self._ledger.set_epoch(epoch)
        if self._ledger.position:  # a ledger stays where it is in an epoch
            self._ledger.set_epoch(epoch + 1)
            self._ledger.set_epoch(epoch)
        self._is_ending = self._is_resumed = False
        self._loop += 1

    def state_dict(self) -> dict[str, int]:
        """Return the ledger's state, and whether its epoch has only just been handed out."""
        return {**self._ledger.state_dict(), _ENDING: self._is_ending}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Have the next loop go on from a state, of any number of ranks: what the epoch still has is cut anew if the
        batch size is another.

        Args:
            state: What `state_dict` returned, or a ledger's.
        """
        self._ledger.load_state_dict(state, rebatch=True)
        # With drop_last, what the state has left may not fill a batch of this group.
        self._is_ending = bool(state.get(_ENDING, False)) or self._ledger.epoch != state["epoch"]
        self._is_resumed = True
        self._loop += 1
