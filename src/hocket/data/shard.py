"""A rank's part of a dataset, by the sample ledger.

The rows are in blocks that any rank can read (`Source`). `hocket.data.Ledger` computes the rows that a rank takes at a
step. So no rank waits for another: there is no central stream in which ranks could be out of step. A rank fetches the
blocks in which it has rows, and reads them in the engine's memory. A batch is a copy of its rows.

*Shuffling in a buffer* usually means to fill a buffer and draw from it. The order of the rows that were read then has
no description, and the position in the middle of an epoch cannot be saved. Here the rows are cut into windows of the
buffer's size. Each window has an order of its own, and another one in each epoch. So the row at a position can be
computed, a row moves as far as in a buffer, and the ledger's guarantees hold as without windows. A window spans rows of
the whole dataset, and each rank has a share of it. Otherwise the order would depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, final

import numpy as np

from hocket import keywords
from hocket._base import missing
from hocket.data import blocks, cursor, dataset, execution, ledger, loader, order, reading
from hocket.data.methods import batches
from hocket.data.methods.contract import Batching

T = TypeVar("T")

_READ_BYTES = 1 << 20
"""Bytes that are gathered at once from small batches: a gathering costs some 20 us besides its rows. A guess: a group
of batches is still made in less than a millisecond."""

_CACHE_BYTES = 1 << 30
"""Bytes of blocks that a rank keeps open. Open blocks are shared memory where the engine has it, and cannot be spilled.
A guess."""

_WINDOW, _WINDOW_SEED = "window", "window_seed"
"""Keys of a shard's state that its cursor's state lacks."""


@final
class Windows:
    """An order in which each row stays within its window.

    Args:
        num_rows: Number of rows.
        size: Number of rows of a window.
        seed: Selects the orders.

    Example:
        >>> import numpy as np
        >>> from hocket.data.shard import Windows
        >>> Windows(7, 4, seed=1).rows(0, np.arange(7)).tolist()
        [0, 2, 1, 3, 6, 4, 5]
    """

    def __init__(self, num_rows: int, size: int, *, seed: int) -> None:
        self.num_rows = num_rows
        self.size = size
        self.seed = seed

    def rows(self, epoch: int, positions: order.Rows) -> order.Rows:
        """Return the rows at positions in an epoch."""
        if self.size == 1:
            return positions
        found = np.empty_like(positions)
        numbers = positions // self.size
        for number in np.unique(numbers).tolist():
            chosen = numbers == number
            start = number * self.size
            # Each window has its own seed. The constant spreads the seeds as far as possible.
            seed = (self.seed + 0x9E3779B97F4A7C15 * (number + 1)) % (order.MAX_SEED + 1)
            inner = order.Order(min(self.size, self.num_rows - start), seed=seed, epoch=epoch)
            found[chosen] = start + inner.rows(positions[chosen] - start)
        return found


@final
@missing.explain_attributes
@keywords.guard_methods
class DataIterator(loader.WeighedLoader):
    """A rank's part of a dataset. Made by `hocket.train.get_dataset_shard`.

    Each loop over its batches is an epoch. All ranks take the same number of steps. Each row comes once in an epoch, to
    one rank, whatever the number of rows, blocks and ranks. `batch_size` is the number of rows of one rank; all ranks
    together take that many times their number in a step.

    *The end of an epoch.* With ``drop_last=True`` the rows that do not fill a batch of all ranks are left out.
    Otherwise the ranks' last batches are shorter, and differ by at most one row. A rank without a row gets one of
    another rank, to take the step with the others. This row has weight 0; no other row is ever repeated. ``loss_scale``
    turns the mean loss of a rank into its share of the mean over the batch of all ranks; `weights` has a number for
    each row. A dataset with fewer rows than ranks works alike: one step, in which some ranks have such a row.

    *Going on.* Each checkpoint that is reported contains the position. After a restart, with any number of ranks, the
    first loop goes on with the rows that were not handed out. A batch counts as done when the loop has it. A loop that
    counts epochs begins at `epoch`.

    Args:
        source: The rows.
        name: The dataset's name.
        rank: The rank.
        world_size: Number of ranks.
        start: The position of an earlier run, a result of `state_dict`.
        use_gpu: Whether tensors go to a GPU if the loop does not name a device.
        announce: Receives `state_dict` when the first loop begins, for the code that saves positions. A shard that is
            never read has no position.

    Example:
        >>> import tempfile
        >>> from hocket import data, train
        >>> def loop():
        ...     shard = train.get_dataset_shard("train")
        ...     for epoch in range(shard.epoch, 2):
        ...         for batch in shard.iter_batches(batch_size=2):
        ...             train.report({"epoch": epoch, "rows": batch["id"].tolist()})
        >>> result = train.DataParallelTrainer(
        ...     loop,
        ...     datasets={"train": data.range(3)},
        ...     scaling_config=train.ScalingConfig(num_workers=0),  # in this process
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... ).fit()
        >>> [(metrics["epoch"], metrics["rows"]) for metrics in result.metrics_history]
        [(0, [0, 1]), (0, [2]), (1, [0, 1]), (1, [2])]
    """

    def __init__(
        self,
        source: execution.Source,
        name: str,
        rank: int,
        world_size: int,
        start: Mapping[str, object] | None = None,
        *,
        use_gpu: bool = False,
        announce: Callable[[Callable[[], Mapping[str, Any]]], object] | None = None,
    ) -> None:
        self._source = source
        self._name = name
        self._rank = rank
        self._world_size = world_size
        self._use_gpu = use_gpu
        self._announce = announce
        #: The position of the next loop, until a loop has begun.
        self._start: dict[str, Any] = dict(start or {})
        self._cursor: cursor.Cursor | None = None
        self._key: tuple[int, bool, int, int] | None = None
        self._rows_described = f"the data set {name!r}"
        self._cache: dict[int, blocks.Block] = {}
        self._row_bytes = max(1, sum(part.num_bytes for part in source.parts) // max(1, source.num_rows))

    def __repr__(self) -> str:
        return (
            f"DataIterator({self._name!r}, rank {self._rank} of {self._world_size}, {self._source.num_rows} rows "
            "in all)"
        )

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            "A shard cannot be iterated directly, because it has both rows and batches. Write iter_batches(), "
            "iter_torch_batches() or iter_rows()."
        )

    _may_lack_size = False
    _described = "shard"
    _row_batch_size: int | None = 1

    iter_batches = batches.iter_batches
    iter_torch_batches = batches.iter_torch_batches
    iter_jax_batches = batches.iter_jax_batches
    iter_tf_batches = batches.iter_tf_batches
    to_tf = batches.to_tf
    iter_rows = batches.iter_rows

    # --- position -----------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch of the running loop, or else the epoch that the next loop begins, counted from 0."""
        if self._cursor is not None:
            return self._cursor.epoch
        return int(self._start["epoch"]) - bool(self._start.get("ending", False)) if self._start else 0

    def state_dict(self) -> dict[str, Any]:
        """Return the shard's position, as plain numbers, equal on all ranks; empty before the first loop.

        Checkpoints contain it automatically.
        """
        if self._cursor is None or self._key is None:
            return dict(self._start)
        return {**self._cursor.state_dict(), _WINDOW: self._key[2], _WINDOW_SEED: self._key[3]}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Let the next loop go on from another shard's position, with any number of ranks and any batch size.

        Args:
            state: The result of `state_dict` on any rank. All ranks must load the same state. It is checked when the
                loop begins.
        """
        if self._cursor is not None:
            self._cursor.close()
        self._start, self._cursor, self._key = dict(state), None, None

    # --- loops --------------------------------------------------------------------------------------------------------

    def _loop(self, convert: Callable[[blocks.Block], T], batching: Batching) -> Iterable[T]:
        assert batching.batch_size is not None, "checked"
        window = seed = 0
        # If the ledger shuffles all rows, windows need no shuffle.
        if batching.shuffle_buffer is not None and self._source.shuffle_seed is None:
            window = min(int(batching.shuffle_buffer), self._source.num_rows)
            seed = int(batching.shuffle_seed or 0) if window else 0
        key = (int(batching.batch_size), bool(batching.drop_last), window, seed)

        def begin() -> loader.Loop[T]:
            return self._begin_loop(key, convert, batching.prefetch_batches)

        return reading.Restartable(lambda: self._hand_out(begin))

    def _begin_loop(
        self, key: tuple[int, bool, int, int], convert: Callable[[blocks.Block], T], prefetch_batches: int
    ) -> loader.Loop[T]:
        moved = self._open(key)
        loop, parts = moved.begin()
        windows = Windows(self._source.num_rows, key[2], seed=key[3]) if key[2] else None
        batches = reading.read_ahead(self._read(parts, windows, convert), prefetch_batches)
        return loader.Loop(moved, loop, batches)

    def _open(self, key: tuple[int, bool, int, int]) -> cursor.Cursor:
        """Return the loop's cursor: the current one, or a new one at the same place for batches of another kind."""
        if self._cursor is not None and key == self._key:
            return self._cursor
        made = self._build_cursor(*key[:2])
        if self._cursor is not None:
            before = self._cursor.state_dict()
            made.set_epoch(before["epoch"] + (before["position"] > 0))  # a new loop begins an epoch
            self._cursor.close()
        elif self._start:
            self._go_on(made, key)
        self._cursor, self._key, self._start = made, key, {}
        if self._announce is not None:
            self._announce(self.state_dict)
            self._announce = None
        return made

    def _build_cursor(self, batch_size: int, drop_last: bool) -> cursor.Cursor:
        source = self._source
        return loader.build_cursor(
            f"The data set {self._name!r}",
            source.num_rows,
            batch_size,
            self._rank,
            self._world_size,
            seed=source.shuffle_seed or 0,
            shuffle=source.shuffle_seed is not None,
            drop_last=drop_last,
            where_empty="Check with count() how many rows filter() or the files leave.",
        )

    def _go_on(self, made: cursor.Cursor, key: tuple[int, bool, int, int]) -> None:
        state = self._start
        try:
            made.load_state_dict(state)
        except ValueError as error:
            raise ValueError(
                f"The checkpoint's position in the data set {self._name!r} does not fit that data set: {error}"
            ) from error
        saved = (state.get(_WINDOW, 0), state.get(_WINDOW_SEED, 0))
        if saved != key[2:] and made.ledger.position:
            raise ValueError(
                f"The checkpoint's position in the data set {self._name!r} was saved with "
                f"local_shuffle_buffer_size={saved[0] or None} and local_shuffle_seed={saved[1]}, but the loop has "
                f"{key[2] or None} and {key[3]}, so rows would be repeated or lost. Use the saved values, or begin "
                "the epoch anew with load_state_dict({})."
            )

    def _read(
        self, parts: Iterator[ledger.Slice], windows: Windows | None, convert: Callable[[blocks.Block], T]
    ) -> Iterator[tuple[ledger.Slice, T]]:
        """Yield batches. Small ones are gathered together."""
        most = max(1, _READ_BYTES // self._row_bytes)
        group: list[ledger.Slice] = []
        count = 0
        for part in parts:
            group.append(part)
            count += len(part.indices) or 1
            if count >= most:
                yield from self._gather(group, windows, convert)
                group, count = [], 0
        if group:
            yield from self._gather(group, windows, convert)

    def _gather(
        self, group: list[ledger.Slice], windows: Windows | None, convert: Callable[[blocks.Block], T]
    ) -> Iterator[tuple[ledger.Slice, T]]:
        found = [part.indices if len(part.indices) else np.array([part.filler]) for part in group]
        rows = np.concatenate(found)
        if windows is not None:
            rows = windows.rows(group[0].epoch, rows)
        block = blocks.gather(rows, self._source.starts, self._fetch)
        at = 0
        for part, own in zip(group, found, strict=True):
            yield part, convert(block.cut(at, at + len(own)))
            at += len(own)

    def _fetch(self, number: int) -> blocks.Block:
        """Return a block, and keep it open until the space is needed for others."""
        block = self._cache.pop(number, None)  # after a loop was broken off, two threads may be here for a moment
        if block is None:
            block = execution.fetch(self._source.parts[number])
        self._cache[number] = block
        kept = sum(self._source.parts[other].num_bytes for other in list(self._cache))
        while kept > _CACHE_BYTES and len(self._cache) > 1:
            oldest = next(iter(self._cache))
            self._cache.pop(oldest, None)
            kept -= self._source.parts[oldest].num_bytes
        return block

    def _peek(self) -> blocks.Block:
        return self._fetch(0) if self._source.parts else blocks.Block({}, 0)

    def count(self) -> int:
        """Return the number of rows, on all ranks together."""
        return self._source.num_rows

    def schema(self) -> blocks.Schema | None:
        """Return the names and types of the columns; None if there are no rows."""
        return self._peek().read_schema() if self._source.parts else None

    def materialize(self) -> dataset.Dataset:
        """Return this rank's share of the rows as a dataset: consecutive rows, without a position.

        The shares of all ranks together have each row once, and differ by at most one row.
        """
        start, stop = ledger.cut(self._source.num_rows, self._rank, self._world_size)
        return dataset.Dataset(execution.cut_parts(self._source.parts, start, stop))
