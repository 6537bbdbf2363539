"""Loaders of a rank's rows share a position in the sample ledger, and a loop that moves it.

A framework's loader reads batches in the framework's way. `build_cursor` says where it stands, `Positioned` is what a
program asks it, and a `LedgerLoader` hands its batches to a loop.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from hocket import exceptions
from hocket._base import spending
from hocket.data import cursor as cursor_module
from hocket.data import ledger

T = TypeVar("T")


def build_cursor(
    owner: str,
    num_rows: int,
    batch_size: int | None,
    rank: int,
    world_size: int,
    *,
    seed: int = 0,
    shuffle: bool = False,
    drop_last: bool = False,
    where_empty: str = "Look at the data.",
) -> cursor_module.Cursor:
    """Return a rank's place at the begin of its rows.

    Args:
        owner: What has the rows, for messages: ``"The arrays"``.
        num_rows: How many there are, for all ranks together.
        batch_size: How many a rank takes in a step; None for one that is no batch.
        rank: Whose part.
        world_size: Into how many parts each step is cut.
        seed: Which orders.
        shuffle: Whether each epoch has another order.
        drop_last: Whether rows that fill no step of all ranks are left out.
        where_empty: What to do if there are no rows at all.
    """
    together = (batch_size or 1) * world_size
    least = together if drop_last else 1
    if num_rows < least:
        remedy = "Pass drop_last=False, a smaller batch_size, or use fewer ranks." if num_rows else where_empty
        raise ValueError(
            f"{owner} {'have' if owner.endswith('s') else 'has'} {num_rows} rows, but a step of {world_size} ranks "
            f"with batch_size={batch_size} and drop_last={drop_last} needs {least} or more, so an epoch would have no "
            f"step. {remedy}"
        )
    rows = ledger.Ledger(num_rows, together, seed=seed, shuffle=shuffle, drop_last=drop_last)
    return cursor_module.Cursor(rows, rank, world_size)


class Positioned:
    """A loader that knows where it is. All ranks move theirs alike."""

    _cursor: cursor_module.Cursor | None

    def _get_cursor(self, asker: str) -> cursor_module.Cursor:
        """Return where the loader is.

        Args:
            asker: Who asks, for the message of a loader that does not know.
        """
        assert self._cursor is not None, f"{asker}: this loader always has a position"
        return self._cursor

    @property
    def epoch(self) -> int:
        """The epoch that a loop is in, or else the one that the next loop begins, counted from 0."""
        return self._get_cursor("epoch").epoch

    @property
    def steps_left(self) -> int:
        """How many batches of that epoch are not handed out."""
        return self._get_cursor("steps_left").steps_left

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is, as plain numbers, the same in all ranks.

        With ``resume=True`` it goes into checkpoints by itself.
        """
        return self._get_cursor("state_dict").state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Have the next loop go on where another loader was, with any number of ranks and any batch size.

        Args:
            state: What `state_dict` returned, in any rank. All ranks must load the same.

        Raises:
            ValueError: It is of other data or another order, or it is no such state. The loader stays where it was.
        """
        self._get_cursor("load_state_dict").load_state_dict(state)


class Loop(NamedTuple, Generic[T]):
    """A loop that has begun."""

    cursor: cursor_module.Cursor
    """The position that it moves."""
    number: int
    """Its number there."""
    batches: Generator[tuple[ledger.Slice, T]]
    """Which rows, and what becomes of them; in the order of the ledger."""


class LedgerLoader(Positioned):
    """A loader whose batches are handed to a Python loop."""

    _part: ledger.Slice | None = None
    """Which rows the latest batch has."""

    def _hand_out(self, begin: Callable[[], Loop[T]]) -> Iterator[T]:
        """Give batches to a loop, and move the position with each.

        Args:
            begin: Begins the loop. Called when it asks for its first batch.
        """
        cursor, number, batches = begin()
        try:
            for part, batch in spending.OWN.time_batches(batches):
                cursor.take(number)
                self._part = part
                yield batch
                self._end_batch(part)
        except GeneratorExit:  # the loop was broken off; an error in here leaves the position as it is
            cursor.leave(number)
            raise
        except exceptions.HocketError as error:
            exceptions.hide_frames(error)
            raise
        finally:
            batches.close()
        cursor.leave(number)
        self._end_epoch()

    def _end_batch(self, part: ledger.Slice) -> None:
        """Called when the loop asks for the batch after this one."""

    def _end_epoch(self) -> None:
        """Called when the loop has had the last batch of an epoch."""


class WeighedLoader(LedgerLoader):
    """A loader of batches that may be short, with their weights beside them.

    A rank without rows gets one of another rank, which must not count.
    """

    _described = "loader"
    """What its loop calls it, for messages."""
    _rows_described = "the epoch"
    """Whose last batch may be short, for messages."""
    _weighed: ledger.Slice | None = None
    """The latest batch of which the loop knows the weights."""

    @property
    def weights(self) -> Any:
        """For each row of the latest batch 1, or 0 if it was only filled in.

        Raises:
            RuntimeError: There is no batch yet.
        """
        part = self._get_part("weights")
        return np.full(len(part.indices) or 1, float(len(part.indices) > 0), np.float32)

    @property
    def loss_scale(self) -> float:
        """By what to multiply the *mean* of the losses of the latest batch, so that the ranks' average is the mean over
        the batch of all ranks.

        It is 1.0 if all ranks have equally many rows, and 0.0 if this one has none.

        Raises:
            RuntimeError: There is no batch yet.
        """
        part = self._get_part("loss_scale")
        return len(part.indices) * part.world_size / part.batch_rows

    def _get_part(self, asker: str) -> ledger.Slice:
        if self._part is None:
            raise RuntimeError(
                f"{self._described}.{asker} is of the latest batch, but no batch was handed out yet. Ask for it "
                "inside the loop."
            )
        self._weighed = self._part
        return self._part

    def _end_batch(self, part: ledger.Slice) -> None:
        if len(part.indices) or self._weighed is part:
            return
        warnings.warn(
            f"The last batch of {self._rows_described} has {part.batch_rows} rows for {part.world_size} ranks, so "
            f"rank {part.rank} got a row that counts already in another rank, and its loop did not ask for its "
            f"weight, which is 0. Multiply the mean loss with {self._described}.loss_scale, and use "
            f"{self._described}.weights in what you count; or pass drop_last=True.",
            stacklevel=3,
        )
