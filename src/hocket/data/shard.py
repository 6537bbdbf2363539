"""A rank's part of a data set, by the sample ledger.

The rows are there, in blocks that any rank can read (`Source`), so which of them a rank takes at a step is computed, by
`hocket.data.Ledger`, and no rank waits for another one: nothing is streamed to all from one place, where ranks can be
out of step. A rank gets the blocks in which it has rows, and looks into the engine's memory; a batch is a copy of its
rows.

*Shuffling in a buffer* is usually done by filling one and drawing from it. What has been read is then in no order that
could be named, and the position in the middle of an epoch cannot be saved. Here the rows are cut into windows of the
buffer's size, and each window has an order of its own, in each epoch another one. So the row at a position can be
computed, a row goes as far as in a buffer, and the ledger's promises hold as they do without. A window is of the whole
data set's rows, of which each rank has its share, because otherwise the order would depend on how many ranks there are.
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
"""How much is gathered at once, if batches are small: a gathering costs some 20 us beside its rows. A guess: a group of
batches is still made in less than a millisecond."""

_CACHE_BYTES = 1 << 30
"""How many bytes of blocks a rank keeps open. Open blocks are shared memory where the engine has it, and cannot be
spilled. A guess."""

_WINDOW, _WINDOW_SEED = "window", "window_seed"
"""What a shard's state has beside its cursor's."""


@final
class Windows:
    """An order in which each row stays in the window where it is.

    Args:
        num_rows: How many rows there are.
        size: How many a window has.
        seed: Which orders.

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
        """Return the rows that stand at positions in an epoch."""
        if self.size == 1:
            return positions
        found = np.empty_like(positions)
        numbers = positions // self.size
        for number in np.unique(numbers).tolist():
            chosen = numbers == number
            start = number * self.size
            # Each window has a seed of its own; the constant spreads them as far as possible.
            seed = (self.seed + 0x9E3779B97F4A7C15 * (number + 1)) % (order.MAX_SEED + 1)
            inner = order.Order(min(self.size, self.num_rows - start), seed=seed, epoch=epoch)
            found[chosen] = start + inner.rows(positions[chosen] - start)
        return found


@final
@missing.explain_attributes
@keywords.guard_methods
class DataIterator(loader.WeighedLoader):
    """A rank's part of a data set. Made by `hocket.train.get_dataset_shard`.

    Each loop over one of its batches is an epoch. All ranks take the same number of steps, and each row comes once in
    an epoch, to one rank, whatever the number of rows, blocks and ranks. `batch_size` is a rank's; a step takes so many
    times the number of ranks.

    *The end of an epoch.* With ``drop_last=True`` the rows that fill no batch of all ranks are left out. Otherwise the
    last batches are shorter, by a row more or less, and a rank for which there is no row gets one that another rank has
    too, so that it takes the step with the others. That row's weight is 0; nothing else is ever repeated.
    ``loss_scale`` makes the mean loss of a rank its share of the mean over the batch of all ranks; `weights` has a
    number for each row. A data set with fewer rows than ranks is the same: one step, in which some ranks have such a
    row.

    *Going on.* The position goes into each checkpoint that is reported, and after a restart, with any number of ranks,
    the first loop goes on with the rows that were not handed out. A batch counts as done when the loop has it. A loop
    that counts epochs begins at `epoch`.

    Args:
        source: The rows.
        name: The data set's name.
        rank: Which part.
        world_size: How many parts there are.
        start: Where an earlier run was: what `state_dict` returned.
        use_gpu: Whether tensors go to a GPU if the loop does not say where.
        announce: Is given `state_dict` when the first loop begins, for who saves positions. A shard that nobody reads
            has none.

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
        #: The position from which the next loop goes on, as long as no loop has begun.
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
            "A shard has rows and batches, so say which: write iter_batches(), iter_torch_batches() or iter_rows()."
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

    # --- where it is --------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that a loop is in, or else the one that the next loop begins, counted from 0."""
        if self._cursor is not None:
            return self._cursor.epoch
        return int(self._start["epoch"]) - bool(self._start.get("ending", False)) if self._start else 0

    def state_dict(self) -> dict[str, Any]:
        """Return where the shard is, as plain numbers, the same in all ranks; empty before the first loop.

        It goes into checkpoints by itself.
        """
        if self._cursor is None or self._key is None:
            return dict(self._start)
        return {**self._cursor.state_dict(), _WINDOW: self._key[2], _WINDOW_SEED: self._key[3]}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Have the next loop go on where another shard was, with any number of ranks and any batch size.

        Args:
            state: What `state_dict` returned, in any rank. All ranks must load the same. It is checked when the loop
                begins.
        """
        if self._cursor is not None:
            self._cursor.close()
        self._start, self._cursor, self._key = dict(state), None, None

    # --- loops --------------------------------------------------------------------------------------------------------

    def _loop(self, convert: Callable[[blocks.Block], T], batching: Batching) -> Iterable[T]:
        assert batching.batch_size is not None, "checked"
        window = seed = 0
        # A loop that shuffles all rows need not shuffle windows.
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
        """Return the cursor for a loop: the one there is, or one for other batches that begins where that one is."""
        if self._cursor is not None and key == self._key:
            return self._cursor
        made = self._build_cursor(*key[:2])
        if self._cursor is not None:
            before = self._cursor.state_dict()
            made.set_epoch(before["epoch"] + (before["position"] > 0))  # a loop that begins anew begins an epoch
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
            where_empty="Look at what filter() or the files leave with count().",
        )

    def _go_on(self, made: cursor.Cursor, key: tuple[int, bool, int, int]) -> None:
        state = self._start
        try:
            made.load_state_dict(state)
        except ValueError as error:
            raise ValueError(
                f"The checkpoint has a position for the data set {self._name!r} that does not fit it: {error}"
            ) from error
        saved = (state.get(_WINDOW, 0), state.get(_WINDOW_SEED, 0))
        if saved != key[2:] and made.ledger.position:
            raise ValueError(
                f"The checkpoint has a position in the data set {self._name!r} shuffled with "
                f"local_shuffle_buffer_size={saved[0] or None} and local_shuffle_seed={saved[1]}, but the loop asks "
                f"for {key[2] or None} and {key[3]}, so rows would be repeated or lost. Use the same, or begin the "
                "epoch anew with load_state_dict({})."
            )

    def _read(
        self, parts: Iterator[ledger.Slice], windows: Windows | None, convert: Callable[[blocks.Block], T]
    ) -> Iterator[tuple[ledger.Slice, T]]:
        """Give batches. Small ones are gathered together."""
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
        """Return a block, and keep it as long as others are not needed more."""
        block = self._cache.pop(number, None)  # two threads may be here for a moment, when a loop is broken off
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
        """Return how many rows there are, on all ranks together."""
        return self._source.num_rows

    def schema(self) -> blocks.Schema | None:
        """Return the names and types of the columns; None if there are no rows."""
        return self._peek().read_schema() if self._source.parts else None

    def materialize(self) -> dataset.Dataset:
        """Return a part of the rows as a data set: those that follow one another from this rank's share on.

        No position is kept of it.

        The ranks' parts have all rows together, each once, and differ by a row at most.
        """
        start, stop = ledger.cut(self._source.num_rows, self._rank, self._world_size)
        return dataset.Dataset(execution.cut_parts(self._source.parts, start, stop))
