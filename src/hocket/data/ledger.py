"""The sample ledger: which rows each rank takes at each step.

*Problem.* Usually each rank shuffles a list of all rows, takes every n-th, and counts on the others to do the same. The
order then depends on the world size, and the last rows are repeated or dropped to make the counts agree. To go on in
the middle of an epoch, a run has to read everything before that place, or repeat it.

*Solution.* An epoch is one sequence of batches for the whole group: the order of the epoch (`hocket.data.order`), cut
into global batches. A rank's slice is a part of a global batch. The place in an epoch is one number, how many rows are
done. So:

- Ranks take the same number of steps, because steps are counted in global batches, and every rank has a slice of each.
- Each row is in one batch, and in one rank's slice of it, because all ranks cut a batch at the same places.
- No state holds the world size. A run that goes on with other ranks cuts the same global batches at other places.
- Going on costs nothing, because the rows at a position are computed, not searched for.

*Padding.* The last batch may be short, and a batch may not divide evenly. A rank then has fewer rows than others, or
none. A slice shows this: its ``indices`` are the rank's own rows. Programs that need the same shape everywhere take
``padded_indices`` together with ``weights``, which are zero for padding.

*Assumptions.* The dataset is the same, in the same order, for every rank and after every start; only its length can be
checked. All ranks move their ledgers alike: a ledger is pure, and sends nothing.
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
"""About how many rows `Ledger.slices` computes at once. Measured: a call costs 50 to 70 us for up to 1,024 rows. So a
batch of 64 alone would cost ten times its 5 us within a larger call; and 4,096 rows are 32 KiB."""

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
    """Number of rows of the epoch before the global batch. Epoch and position together identify the batch, on all
    ranks."""
    batch_rows: int
    """Number of rows of the global batch, on all ranks together."""
    rank: int
    world_size: int
    width: int
    """Number of rows of the longest slice of a full batch, equal for all ranks and steps."""
    indices: order.Rows
    """The rows of this rank. The ranks' rows, in the order of the ranks, make up the global batch."""
    filler: int
    """The row that pads `padded_indices`: the first row of the global batch, which every rank can read."""

    @property
    def padded_indices(self) -> order.Rows:
        """The rows of this rank, padded to `width`. Use `weights` with them, because the padding repeats a row."""
        padded = np.full(self.width, self.filler, np.int64)
        padded[: len(self.indices)] = self.indices
        return padded

    @property
    def weights(self) -> Weights:
        """For each of `padded_indices`, 1 for a row of this rank and 0 for padding."""
        weights = np.zeros(self.width, np.float32)
        weights[: len(self.indices)] = 1
        return weights

    @property
    def loss_scale(self) -> float:
        """The factor for the *sum* of this rank's losses that makes the ranks' average the mean over the global batch.

        Data-parallel training averages the ranks' means instead, which gives the rows of a shorter slice more weight.

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
    """The batches of an epoch, the progress within it, and each rank's rows.

    Every rank has its own ledger, made with the same arguments and advanced alike. A ledger costs a few hundred bytes,
    whatever the number of rows.

    Args:
        num_rows: Number of rows of the dataset.
        batch_size: Number of rows of a *global* batch, on all ranks together.
        seed: Selects the orders. Every epoch has another order.
        shuffle: Whether to shuffle. False takes the rows as they stand.
        drop_last: Whether to leave out the rows at the end of an epoch that do not fill a batch. They change from epoch
            to epoch. Otherwise the last batch is short, and ranks may have no row in it.

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
                f"With drop_last=True, {num_rows} rows do not fill a batch of {batch_size}, so an epoch would have no "
                f"step. Pass drop_last=False, or a batch_size of {num_rows} or less; batch_size counts the rows of "
                "all ranks together."
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
        """Number of rows of the dataset."""
        return self._num_rows

    @property
    def batch_size(self) -> int:
        """Number of rows of a global batch."""
        return self._batch_size

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, counted from 0."""
        return self._epoch

    @property
    def position(self) -> int:
        """Number of rows of the epoch that are done, on all ranks together."""
        return self._position

    @property
    def steps_per_epoch(self) -> int:
        """Number of global batches of a whole epoch."""
        return self._count_steps(self._num_rows)

    @property
    def steps_left(self) -> int:
        """Number of global batches that the epoch still has. At least 1, since the last batch begins the next epoch."""
        return self._count_steps(self._num_rows - self._position)

    def _count_steps(self, rows: int) -> int:
        return rows // self._batch_size if self._drop_last else -(-rows // self._batch_size)

    def advance(self, steps: int = 1) -> None:
        """Note that global batches are done. The last batch of an epoch begins the next epoch.

        Args:
            steps: Number of batches. They may reach into later epochs.

        Raises:
            ValueError: `steps` is negative.

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
        """Go to the start of an epoch. Within the current epoch, stay at the position.

        So a loop that calls this before each epoch, as with torch's DistributedSampler, can go on in the middle of one.

        Raises:
            ValueError: `epoch` is negative.

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

        Slices differ by at most one row. The first ranks have the longer ones.

        Args:
            rank: The rank.
            world_size: Number of slices of the batch.

        Raises:
            ValueError: The rank or the world size is out of range.

        Example:
            >>> from hocket.data import Ledger
            >>> ledger = Ledger(100, batch_size=10, seed=7)
            >>> [ledger.slice_for(rank, 3).indices.tolist() for rank in range(3)]
            [[33, 83, 99, 14], [35, 68, 55], [38, 86, 12]]
        """
        return next(self.slices(rank, world_size, stop=1))

    def slices(self, rank: int, world_size: int, *, stop: int | None = None) -> Iterator[Slice]:
        """Return an iterator over a rank's part of each global batch left in the epoch. The ledger stays where it is.

        It is made for reading ahead. `advance` is called when a batch is done, so a saved state does not count batches
        that were read and not used. The slices depend only on the ledger's place at the call of `slices`.

        Args:
            rank: The rank.
            world_size: Number of slices of each batch.
            stop: Largest number of batches. Default: all that the epoch still has.

        Raises:
            ValueError: The rank or the world size is out of range.

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
            # Full batches are cut at the same places, so one call of `Order.rows` computes several.
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
        """Return the ledger's place, as plain numbers. The number of ranks is not among them.

        The position counts the batches that `advance` has counted. `load_state_dict` compares the values
        other than epoch and position.

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
        """Go to the place of another ledger, with any number of ranks. The middle of an epoch takes no longer.

        The order of rows and the cuts between batches must be the same, otherwise rows would be seen twice or never. A
        ledger with another ``drop_last`` may go on: only the end of the epoch differs.

        Args:
            state: The result of `state_dict`.
            rebatch: Whether the state may have another batch size. The rest of the epoch is then cut anew, with each
                row still in one batch. For groups whose global batch grows and shrinks with their number of ranks.

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
                f"The ledger's state has version {state['version']!r}, but this release of Hocket shuffles by version "
                f"{order.VERSION}, so rows would be repeated or lost. Use the release that saved the state until the "
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
                f"The ledger's state has position {position}, which must be below num_rows={self._num_rows}. The "
                "state was changed after state_dict() returned it. Pass it unchanged, or start the epoch anew with "
                "set_epoch()."
            )
        self._epoch, self._position = epoch, position
        if not self.steps_left:  # with drop_last, the rest may not fill a batch
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
"""The entries of a state that must equal the ledger's own, and the remedy where they differ."""


def cut(num_rows: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return the begin and end of a rank's part of some rows. Parts differ by at most one row, longer ones first."""
    size, longer = divmod(num_rows, world_size)
    first = rank * size + min(rank, longer)
    return first, first + size + (rank < longer)


def _check_whole(name: str, value: SupportsIndex, least: int, most: int | None) -> int:
    """Return a whole number of any type, numpy's included, as an int."""
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
            f"A ledger's state must have the keys {', '.join(_STATE_KEYS)}, but {state!r} lacks {', '.join(missing)}. "
            "Pass the result of state_dict()."
        )
    for name in ("epoch", "position"):
        _check_whole(f"The ledger's state: {name}", state[name], 0, None)
