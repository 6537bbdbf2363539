"""The sample ledger: which rows each rank takes at each step.

*Problem.* Usually each rank shuffles a list of all rows, takes every n-th and counts on the others to do the same. Then
the world size is part of the order, the last rows are repeated or dropped so that the counts agree, and going on in the
middle of an epoch means reading everything before it, or repeating it.

*What this does.* An epoch is one row of batches for the whole group: the order of the epoch (`hocket.data.order`), cut
into global batches. A rank's slice is a part of a global batch, and what is left is one number, how many rows of the
epoch are done. So:

- Ranks take the same number of steps, because steps are counted in global batches and each of these is every rank's.
- Each row is in one batch, and in one rank's slice of it, because slices are cut from the batch at the same places by
  all.
- The world size is in no state. A run that goes on with other ranks cuts the same global batches at other places.
- Going on costs nothing, because the rows at a position are computed, not searched for.

*Padding.* The last batch may be short, and a batch may not divide evenly. A rank then has fewer rows than others, or
none. Slices do not hide it: ``indices`` are the rank's own rows. Who needs the same shape everywhere takes
``padded_indices`` together with ``weights``, which are zero for what was filled in.

*Assumptions.* The data set is the same, in the same order, for every rank and after every start; only its length can be
checked. All ranks move their ledgers alike: the ledger is pure, and sends nothing to anyone.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, SupportsIndex, TypeAlias, final

import numpy as np
import numpy.typing as npt

from hocket.data import order

Weights: TypeAlias = npt.NDArray[np.float32]

_BLOCK_ROWS = 4096
"""About how many rows `Ledger.slices` computes at once. Measured: a call costs 50 to 70 us for up to 1,024 rows, so
alone a batch of 64 would cost ten times what it does in company, 5 us; and 4,096 rows are 32 KiB."""

_STATE_KEYS: Final = ("version", "num_rows", "batch_size", "shuffle", "seed", "epoch", "position")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Slice:
    """One rank's part of one global batch. Made by `Ledger.slice_for` and `Ledger.slices`.

    Example:
        >>> from hocket.data import Ledger
        >>> ledger = Ledger(6, batch_size=4, shuffle=False)
        >>> ledger.advance()
        >>> part = ledger.slice_for(rank=0, world_size=1)  # the last batch has 2 rows of 4
        >>> part.indices.tolist(), part.padded_indices.tolist(), part.weights.tolist()
        ([4, 5], [4, 5, 4, 4], [1.0, 1.0, 0.0, 0.0])
    """

    epoch: int
    position: int
    """How many rows of the epoch come before the global batch. With the epoch it is the batch's name: equal on all
    ranks."""
    batch_rows: int
    """How many rows the global batch has, on all ranks together."""
    rank: int
    world_size: int
    width: int
    """How many rows the longest slice of a full batch has: equal for all ranks and steps."""
    indices: order.Rows
    """The rows of this rank. In the order of the ranks, they make up the global batch."""
    filler: int
    """The row that fills up `padded_indices`: the first one of the global batch, which every rank can read."""

    @property
    def padded_indices(self) -> order.Rows:
        """The rows of this rank, filled up to `width`.

        To be used with `weights` only: what is filled in is another row's double.
        """
        padded = np.full(self.width, self.filler, np.int64)
        padded[: len(self.indices)] = self.indices
        return padded

    @property
    def weights(self) -> Weights:
        """For each of `padded_indices`, 1 if it is a row of this rank and 0 if it was filled in."""
        weights = np.zeros(self.width, np.float32)
        weights[: len(self.indices)] = 1
        return weights

    @property
    def loss_scale(self) -> float:
        """By what to multiply the *sum* of this rank's losses, so that the ranks' average is the mean over the global
        batch.

        Averaging the ranks' means instead, as data-parallel training does, gives the rows of a shorter slice more
        weight.

        Example:
            >>> from hocket.data import Ledger
            >>> ledger = Ledger(3, batch_size=3, shuffle=False)
            >>> losses = [1.0, 2.0, 6.0]
            >>> parts = [ledger.slice_for(rank, 2) for rank in range(2)]
            >>> scaled = [sum(losses[row] for row in part.indices) * part.loss_scale for part in parts]
            >>> sum(scaled) / 2 == sum(losses) / 3
            True
        """
        return self.world_size / self.batch_rows


@final
class Ledger:
    """Which rows are in which batch of an epoch, how far the epoch is done, and what each rank takes.

    Every rank has a ledger of its own, made with the same arguments and advanced alike. One costs a few hundred bytes,
    whatever the number of rows.

    Args:
        num_rows: How many rows the data set has.
        batch_size: How many rows a *global* batch has: those of all ranks together.
        seed: Which orders to shuffle into. Every epoch has another one.
        shuffle: False takes the rows as they stand.
        drop_last: Whether to leave out the rows at the end of an epoch that do not fill a batch. Which these are
            changes from epoch to epoch. Otherwise the last batch is short, and ranks may have no row in it.

    Raises:
        TypeError: An argument is not a whole number, or not a bool.
        ValueError: A number is out of range, or an epoch would have no batch.

    Example:
        >>> from hocket.data import Ledger
        >>> ledger = Ledger(10, batch_size=4, shuffle=False)
        >>> for step in range(ledger.steps_per_epoch):
        ...     print([ledger.slice_for(rank, world_size=2).indices.tolist() for rank in range(2)])
        ...     ledger.advance()
        [[0, 1], [2, 3]]
        [[4, 5], [6, 7]]
        [[8], [9]]
        >>> ledger.epoch, ledger.position
        (1, 0)
    """

    def __init__(
        self, num_rows: int, batch_size: int, *, seed: int = 0, shuffle: bool = True, drop_last: bool = False
    ) -> None:
        self._num_rows = _check_whole("num_rows", num_rows, 1, order.MAX_ROWS)
        self._batch_size = _check_whole("batch_size", batch_size, 1, order.MAX_ROWS)
        self._seed = _check_whole("seed", seed, 0, order.MAX_SEED)
        self._shuffle = _check_bool("shuffle", shuffle)
        self._drop_last = _check_bool("drop_last", drop_last)
        if drop_last and num_rows < batch_size:
            raise ValueError(
                f"With drop_last=True, {num_rows} rows make no batch of {batch_size}, so an epoch would have no step. "
                f"Pass drop_last=False, or a batch_size of {num_rows} or less; it counts the rows of all ranks "
                "together."
            )
        self._epoch = 0
        self._position = 0

    def __repr__(self) -> str:
        return (
            f"Ledger({self._num_rows}, batch_size={self._batch_size}, seed={self._seed}, shuffle={self._shuffle}, "
            f"drop_last={self._drop_last}) at epoch {self._epoch}, position {self._position}"
        )

    @property
    def num_rows(self) -> int:
        """How many rows the data set has."""
        return self._num_rows

    @property
    def batch_size(self) -> int:
        """How many rows a global batch has."""
        return self._batch_size

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, counted from 0."""
        return self._epoch

    @property
    def position(self) -> int:
        """How many rows of the epoch are done, on all ranks together."""
        return self._position

    @property
    def steps_per_epoch(self) -> int:
        """How many global batches a whole epoch has."""
        return self._count_steps(self._num_rows)

    @property
    def steps_left(self) -> int:
        """How many global batches the epoch still has: at least one, since the last one begins the next epoch."""
        return self._count_steps(self._num_rows - self._position)

    def _count_steps(self, rows: int) -> int:
        return rows // self._batch_size if self._drop_last else -(-rows // self._batch_size)

    def advance(self, steps: int = 1) -> None:
        """Note that global batches are done. The last one of an epoch begins the next epoch.

        Args:
            steps: How many; they may reach into later epochs.

        Raises:
            ValueError: The number is negative.

        Example:
            >>> from hocket.data import Ledger
            >>> ledger = Ledger(10, batch_size=4)
            >>> ledger.advance(2)
            >>> ledger.epoch, ledger.position
            (0, 8)
            >>> ledger.advance(4)
            >>> ledger.epoch, ledger.position
            (2, 0)
        """
        steps = _check_whole("steps", steps, 0, None)
        left = self.steps_left
        if steps < left:
            self._position += steps * self._batch_size
            return
        epochs, steps = divmod(steps - left, self.steps_per_epoch)
        self._epoch += 1 + epochs
        self._position = steps * self._batch_size

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch. In the epoch itself, stay.

        So a loop that calls this before each epoch, as with torch's DistributedSampler, can go on in the middle of one.

        Raises:
            ValueError: The number is negative.

        Example:
            >>> from hocket.data import Ledger
            >>> ledger = Ledger(10, batch_size=4)
            >>> ledger.set_epoch(3)
            >>> ledger.advance()
            >>> ledger.set_epoch(3)
            >>> ledger.epoch, ledger.position
            (3, 4)
        """
        epoch = _check_whole("epoch", epoch, 0, None)
        if epoch != self._epoch:
            self._epoch, self._position = epoch, 0

    def slice_for(self, rank: int, world_size: int) -> Slice:
        """Return a rank's part of the next global batch. The ledger stays where it is.

        Slices differ by at most one row, the first ranks' being the longer ones.

        Args:
            rank: Which part.
            world_size: Into how many the batch is cut.

        Raises:
            ValueError: The rank is not one of the group.

        Example:
            >>> from hocket.data import Ledger
            >>> ledger = Ledger(100, batch_size=10, seed=7)
            >>> [ledger.slice_for(rank, 3).indices.tolist() for rank in range(3)]
            [[33, 83, 99, 14], [35, 68, 55], [38, 86, 12]]
        """
        return next(self.slices(rank, world_size, stop=1))

    def slices(self, rank: int, world_size: int, *, stop: int | None = None) -> Iterator[Slice]:
        """Give a rank's part of each global batch that the epoch still has. The ledger stays where it is.

        That is for whoever reads ahead: `advance` is called when a batch is done, so that a state that is saved knows
        nothing of batches that were read and not used. What `slices` gives depends only on where the ledger was when it
        was called.

        Args:
            rank: Which part.
            world_size: Into how many each batch is cut.
            stop: After how many batches to stop, if the epoch has as many.

        Raises:
            ValueError: The rank is not one of the group.

        Example:
            >>> from hocket.data import Ledger
            >>> ledger = Ledger(7, batch_size=3, shuffle=False)
            >>> for part in ledger.slices(rank=1, world_size=2):
            ...     ledger.advance()  # after the step
            ...     print(part.epoch, part.position, part.indices.tolist())
            0 0 [2]
            0 3 [5]
            0 6 []
        """
        world_size = _check_whole("world_size", world_size, 1, None)
        rank = _check_whole("rank", rank, 0, None)
        if rank >= world_size:
            raise ValueError(
                f"rank must be below world_size, but received rank {rank} of {world_size}. Ranks count from 0."
            )
        steps = self.steps_left if stop is None else min(self.steps_left, _check_whole("stop", stop, 0, None))
        return self._read(rank, world_size, self._epoch, self._position, steps)

    def _read(self, rank: int, world_size: int, epoch: int, position: int, steps: int) -> Iterator[Slice]:
        epoch_order = order.Order(self._num_rows, seed=self._seed, epoch=epoch, shuffle=self._shuffle)
        batch_size = self._batch_size
        width = -(-batch_size // world_size)
        build = functools.partial(Slice, epoch=epoch, rank=rank, world_size=world_size, width=width)
        last = position + steps * batch_size
        while position < last:
            # Full batches are cut at the same places, so several are computed in one go.
            batch_rows = min(batch_size, self._num_rows - position)
            first, end = cut(batch_rows, rank, world_size)
            columns = np.append(
                np.arange(first, end, dtype=np.int64), 0
            )  # and the batch's first row, which is the filler
            together = max(1, min(_BLOCK_ROWS // len(columns), (min(last, self._num_rows) - position) // batch_size))
            starts = position + batch_size * np.arange(together, dtype=np.int64)
            found = epoch_order.rows((starts[:, None] + columns).ravel()).reshape(together, len(columns))
            for rows in found:
                yield build(position=position, batch_rows=batch_rows, indices=rows[:-1].copy(), filler=int(rows[-1]))
                position += batch_size

    def state_dict(self) -> dict[str, int]:
        """Return where the ledger is, as plain numbers. The number of ranks is not among them.

        The position counts the batches that `advance` has counted. The rest of the state is there to be compared.

        Example:
            >>> from hocket.data import Ledger
            >>> ledger = Ledger(100, batch_size=10, seed=7)
            >>> ledger.advance(12)
            >>> ledger.state_dict() == {
            ...     "version": 1,
            ...     "num_rows": 100,
            ...     "batch_size": 10,
            ...     "shuffle": True,
            ...     "seed": 7,
            ...     "epoch": 1,
            ...     "position": 20,
            ... }
            True
        """
        return {
            "version": order.VERSION,
            "num_rows": self._num_rows,
            "batch_size": self._batch_size,
            "shuffle": self._shuffle,
            "seed": self._seed,
            "epoch": self._epoch,
            "position": self._position,
        }

    def load_state_dict(self, state: Mapping[str, Any], *, rebatch: bool = False) -> None:
        """Go to where another ledger was, with any number of ranks. Takes no longer in the middle of an epoch.

        The order of rows and the cuts between batches must be the same, otherwise rows would be seen twice or never. A
        ledger with another ``drop_last`` may go on: only the end of an epoch is another.

        Args:
            state: What `state_dict` returned.
            rebatch: Whether the state may be of another batch size. The rows that the epoch still has are then cut
                anew, each of them still in one batch. For groups whose global batch grows and shrinks with them.

        Raises:
            ValueError: The state is of other data, another order or another batch size; or it is not a ledger's state.
                The ledger stays where it was.

        Example:
            >>> from hocket.data import Ledger
            >>> ledger = Ledger(100, batch_size=10, seed=7)
            >>> ledger.advance(12)
            >>> state = ledger.state_dict()
            >>> resumed = Ledger(100, batch_size=10, seed=7)
            >>> resumed.load_state_dict(state)
            >>> resumed
            Ledger(100, batch_size=10, seed=7, shuffle=True, drop_last=False) at epoch 1, position 20
        """
        _check_state(state)
        if state["version"] != order.VERSION:
            raise ValueError(
                f"The ledger's state has version {state['version']!r}, and this release of Hocket shuffles by version "
                f"{order.VERSION}, so rows would be repeated or lost. Go on with the release that saved it until the "
                "epoch is over, or start the epoch anew with set_epoch()."
            )
        own = self.state_dict()
        for name, remedy in _REMEDIES.items():
            if state[name] != own[name] and not (name == "batch_size" and rebatch):
                raise ValueError(
                    f"The ledger's state was saved with {name}={state[name]!r}, but this ledger has "
                    f"{name}={own[name]!r}, so rows would be repeated or lost. "
                    f"{remedy.format(saved=state[name], own=own[name])}"
                )
        epoch, position = state["epoch"], state["position"]
        if position >= self._num_rows:
            raise ValueError(
                f"The ledger's state has position {position}, which must be below num_rows={self._num_rows}. It was "
                "changed after state_dict() made it; pass it as it was saved, or start the epoch anew with "
                "set_epoch()."
            )
        self._epoch, self._position = epoch, position
        if not self.steps_left:  # with drop_last, what is left may fill no batch
            self.set_epoch(epoch + 1)


_REMEDIES: Final = {
    "num_rows": "Use the same data set, or start the epoch anew with set_epoch().",
    "shuffle": "Make the ledger with shuffle={saved}, or start the epoch anew with set_epoch().",
    "seed": "Make the ledger with seed={saved}, or start the epoch anew with set_epoch().",
    "batch_size": (
        "Make the ledger with batch_size={saved}, or pass rebatch=True to cut the rows that are left into "
        "batches of {own}."
    ),
}
"""What of a state must be the ledger's own, and what to do if it is not."""


def cut(num_rows: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return where a rank's part of a number of rows begins and ends. Parts differ by one row at most, longer ones
    first."""
    size, longer = divmod(num_rows, world_size)
    first = rank * size + min(rank, longer)
    return first, first + size + (rank < longer)


def _check_whole(name: str, value: SupportsIndex, least: int, most: int | None) -> int:
    """Return a whole number of any kind, numpy's included, as an int."""
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be a whole number, but received {value!r}.")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name} must be a whole number, but received {value!r} of type {type(value).__name__}."
        ) from None
    if number < least or (most is not None and number > most):
        limits = f"{least} or more" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be {limits}, but received {number}.")
    return number


def _check_bool(name: str, value: bool) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, but received {value!r} of type {type(value).__name__}.")
    return bool(value)


def _check_state(state: Any) -> None:
    missing = [name for name in _STATE_KEYS if name not in state] if isinstance(state, Mapping) else list(_STATE_KEYS)
    if missing:
        raise ValueError(
            f"A ledger's state has the keys {', '.join(_STATE_KEYS)}, but in {state!r} {', '.join(missing)} is "
            "missing. Pass what state_dict() returned."
        )
    for name in ("epoch", "position"):
        _check_whole(f"The ledger's state: {name}", state[name], 0, None)
