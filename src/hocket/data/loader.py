"""Loaders of a rank's rows: a position in the sample ledger, and a loop that moves it.

Each framework's loader reads batches in the framework's way. `build_cursor` makes its position, `Positioned` shows the
position to programs, and a `LedgerLoader` hands batches to a loop.
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
    where_empty: str = "Check the data.",
) -> cursor_module.Cursor:
    """Return a rank's place at the beginning of its rows.

    Args:
        owner: Name of the rows' owner, for messages: ``"The arrays"``.
        num_rows: Number of rows, for all ranks together.
        batch_size: Number of rows that a rank takes in a step; None: one row, not as a batch.
        rank: The rank.
        world_size: Number of slices of each step's rows.
        seed: Selects the orders.
        shuffle: Whether each epoch has another order.
        drop_last: Whether rows that do not fill a step of all ranks are left out.
        where_empty: The advice if there are no rows at all.
    """
    together = (batch_size or 1) * world_size
    least = together if drop_last else 1
    if num_rows < least:
        remedy = "Pass drop_last=False or a smaller batch_size, or use fewer ranks." if num_rows else where_empty
        raise ValueError(
            f"{owner} {'have' if owner.endswith('s') else 'has'} {num_rows} rows, but a step of {world_size} ranks "
            f"with batch_size={batch_size} and drop_last={drop_last} needs {least} or more, so an epoch would have no "
            f"step. {remedy}"
        )
    rows = ledger.Ledger(num_rows, together, seed=seed, shuffle=shuffle, drop_last=drop_last)
    return cursor_module.Cursor(rows, rank, world_size)


class Positioned:
    """A loader that knows its position. All ranks move their loaders alike."""

    _cursor: cursor_module.Cursor | None

    def _get_cursor(self, asker: str) -> cursor_module.Cursor:
        """Return the loader's position.

        Args:
            asker: The caller, for the message of a loader without a position.
        """
        assert self._cursor is not None, f"{asker}: this loader always has a position"
        return self._cursor

    @property
    def epoch(self) -> int:
        """The epoch of the running loop, or else the epoch that the next loop begins, counted from 0."""
        return self._get_cursor("epoch").epoch

    @property
    def steps_left(self) -> int:
        """Number of batches of that epoch that are not handed out yet."""
        return self._get_cursor("steps_left").steps_left

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's position, as plain numbers, equal on all ranks.

        With ``resume=True`` checkpoints contain it automatically.
        """
        return self._get_cursor("state_dict").state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Let the next loop go on from another loader's position, with any number of ranks and any batch size.

        Args:
            state: The result of `state_dict` on any rank. All ranks must load the same state.

        Raises:
            ValueError: The state is of other data or another order, or not a loader's. The loader stays where it was.
        """
        self._get_cursor("load_state_dict").load_state_dict(state)


class Loop(NamedTuple, Generic[T]):
    """A loop that has begun."""

    cursor: cursor_module.Cursor
    """The position that the loop moves."""
    number: int
    """The loop's number at the cursor."""
    batches: Generator[tuple[ledger.Slice, T]]
    """The slices in the order of the ledger, each with its batch."""


class LedgerLoader(Positioned):
    """A loader whose batches are handed to a Python loop."""

    _part: ledger.Slice | None = None
    """The slice of the latest batch."""

    def _hand_out(self, begin: Callable[[], Loop[T]]) -> Iterator[T]:
        """Yield batches to a loop, and move the position with each.

        Args:
            begin: Begins the loop. Called when the loop asks for its first batch.
        """
        cursor, number, batches = begin()
        try:
            for part, batch in spending.OWN.time_batches(batches):
                cursor.take(number)
                self._part = part
                yield batch
                self._end_batch(part)
        except GeneratorExit:  # the loop was broken off; an error in this code leaves the position as it is
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
        """Handle the loop's request for the batch after this one. For subclasses."""

    def _end_epoch(self) -> None:
        """Handle the end of an epoch, after its last batch. For subclasses."""


class WeighedLoader(LedgerLoader):
    """A loader of batches that may be short, with weights beside them.

    A rank without rows gets one row of another rank, which must not count.
    """

    _described = "loader"
    """The loader's name in the user's loop, for messages."""
    _rows_described = "the epoch"
    """The rows whose last batch may be short, for messages."""
    _weighed: ledger.Slice | None = None
    """The latest batch whose weights the loop has read."""

    @property
    def weights(self) -> Any:
        """For each row of the latest batch 1, or 0 if the row is only padding.

        Raises:
            RuntimeError: There is no batch yet.
        """
        part = self._get_part("weights")
        return np.full(len(part.indices) or 1, float(len(part.indices) > 0), np.float32)

    @property
    def loss_scale(self) -> float:
        """The factor for the *mean* loss of the latest batch that makes the ranks' average the mean over all ranks'
        batches.

        It is 1.0 if all ranks have equally many rows, and 0.0 if this rank has none.

        Raises:
            RuntimeError: There is no batch yet.
        """
        part = self._get_part("loss_scale")
        return len(part.indices) * part.world_size / part.batch_rows

    def _get_part(self, asker: str) -> ledger.Slice:
        if self._part is None:
            raise RuntimeError(
                f"{self._described}.{asker} belongs to the latest batch, but no batch was handed out yet. Read it "
                "inside the loop."
            )
        self._weighed = self._part
        return self._part

    def _end_batch(self, part: ledger.Slice) -> None:
        if len(part.indices) or self._weighed is part:
            return
        warnings.warn(
            f"The last batch of {self._rows_described} has {part.batch_rows} rows for {part.world_size} ranks, so "
            f"rank {part.rank} got a row of another rank, which counts there and has weight 0 here, but the loop of "
            f"rank {part.rank} did not read the weight. Multiply the mean loss by {self._described}.loss_scale, and "
            f"use {self._described}.weights in metrics and counts; or pass drop_last=True.",
            stacklevel=3,
        )
