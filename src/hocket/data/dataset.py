"""Datasets: rows in blocks, and what shall be done to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, final

from hocket.data import blocks, conversions, execution, feed, operations, plan, reading, settings, splits, writers
from hocket.engine import contract

T = TypeVar("T")


@final
class Dataset(operations.RowOperations, splits.Splits, conversions.Conversions, writers.Writers, feed.Feed):
    """Rows in blocks, and what shall be done to them. Made by `from_items`, `read_parquet` and their like.

    A data set is a plan. It never changes: each method returns another one, and nothing is done before rows are asked
    for. Then blocks stream through tasks of the session, in their order, as many at a time as `ExecutionOptions` allow;
    each time anew, unless it was materialised.

    Args:
        reads: Where the blocks come from.
        ops: What is done to them.

    Example:
        >>> import hocket
        >>> from hocket import data
        >>> context = hocket.init(num_cpus=2, engine="inprocess")
        >>> squares = data.range(1000).map_batches(lambda batch: {"square": batch["id"] ** 2})
        >>> squares.filter(lambda row: row["square"] % 7 == 1).take(3)
        [{'square': 1}, {'square': 36}, {'square': 64}]
        >>> hocket.shutdown()
    """

    def __init__(self, reads: Sequence[plan.Read], ops: Sequence[plan.Op] = ()) -> None:
        self._plan = plan.Plan(tuple(reads), tuple(ops))
        self._record = execution.Record()

    def __repr__(self) -> str:
        steps = "".join(f" -> {plan.describe(op)}" for op in self._plan.ops)
        count = self._plan.get_optional_count()
        return f"Dataset({self.num_blocks()} blocks, {'?' if count is None else count} rows{steps})"

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("A Dataset has rows and batches, so say which: write iter_rows() or iter_batches().")

    def _build(self, reads: Sequence[plan.Read]) -> Dataset:
        return Dataset(reads)

    def _then(self, op: plan.Op) -> Dataset:
        return Dataset(self._plan.reads, (*self._plan.ops, op))

    # --- the order and the number of blocks ---------------------------------------------------------------------------

    def random_shuffle(
        self, *, seed: operations.Seed = None, num_blocks: int | None = None, **of_ray: object
    ) -> Dataset:
        """Put all rows into another order.

        Where it comes last, training moves no row for it: the ledger computes another order for each epoch. A batch is
        then of rows from all over the data.

        Args:
            seed: Which order. Default: a random one, chosen now, so that this data set has the same order each time.
            num_blocks: Into how many blocks they are cut then. Default: as before.
            **of_ray: ``num_cpus`` and others of Ray's that say how it is scheduled: they have no effect.

        Raises:
            ValueError: The seed is no whole number, or negative.

        Example:
            >>> import hocket
            >>> from hocket import data
            >>> context = hocket.init(num_cpus=2, engine="inprocess")
            >>> [row["id"] for row in data.range(6).random_shuffle(seed=1).take_all()]
            [2, 3, 0, 4, 1, 5]
            >>> hocket.shutdown()
        """
        shuffled = self._then(plan.Shuffle(operations.choose_seed(seed)))
        return shuffled if num_blocks is None else shuffled.repartition(num_blocks)

    def randomize_block_order(self, *, seed: operations.Seed = None) -> Dataset:
        """Put the blocks into another order, and leave the rows of each where they are: cheaper than a shuffle.

        Args:
            seed: Which order. Default: a random one, chosen now, so that this data set has the same order each time.

        Raises:
            ValueError: The seed is no whole number, or negative.
        """
        return self._then(plan.BlockOrder(operations.choose_seed(seed)))

    def repartition(
        self, num_blocks: int | None = None, target_num_rows_per_block: int | None = None, *, shuffle: bool = False
    ) -> Dataset:
        """Cut the same rows, in the same order, into another number of blocks.

        Args:
            num_blocks: How many blocks.
            target_num_rows_per_block: How many rows a block has, but for the last; in the place of `num_blocks`.
            shuffle: Whether the rows are shuffled first; see `random_shuffle`.

        Raises:
            ValueError: A number is less than 1, or both are given, or neither.
        """
        if (num_blocks is None) == (target_num_rows_per_block is None):
            raise ValueError(
                "repartition() takes num_blocks or target_num_rows_per_block, and one of them. Write repartition(8)."
            )
        reading.check_count("num_blocks", num_blocks, 1)
        reading.check_count("target_num_rows_per_block", target_num_rows_per_block, 1)
        rows = self.random_shuffle() if shuffle else self
        return rows._then(plan.Repartition(num_blocks, target_num_rows_per_block))

    def input_files(self) -> list[str]:
        """Return the files that are read, each once, in their order."""
        files = [file for read in self._plan.reads for file in getattr(read, "files", ())]
        files += [read.file for read in self._plan.reads if hasattr(read, "file")]
        return list(dict.fromkeys(file.path for file in files))

    def size_bytes(self) -> int:
        """Return about how many bytes the rows take. The plan is executed, unless it has no steps."""
        sizes = [read.num_bytes for read in self._plan.reads]
        if not self._plan.ops and None not in sizes:
            return sum(size or 0 for size in sizes)
        return sum(found.num_bytes for found in self._stream())

    def iterator(self) -> Dataset:
        """Return what has `iter_batches`: the data set itself. Here for programs written for Ray."""
        return self

    def materialize(self) -> Dataset:
        """Execute the plan and return its rows as a data set that has them, in the session's memory.

        Example:
            >>> import hocket
            >>> from hocket import data
            >>> context = hocket.init(num_cpus=2, engine="inprocess")
            >>> data.range(10).map_batches(lambda batch: batch).materialize()
            Dataset(1 blocks, 10 rows)
            >>> hocket.shutdown()
        """
        kept = Dataset(self._store())
        kept._record = self._record
        return kept

    # --- what there is ------------------------------------------------------------------------------------------------

    def count(self) -> int:
        """Return how many rows there are. The plan is executed if that cannot be known without."""
        known = self._plan.get_optional_count()
        return sum(found.num_rows for found in self._stream()) if known is None else known

    def show(self, limit: int = 20) -> None:
        """Print the first rows."""
        for row in self.take(limit):
            print(row)

    def explain(self) -> str:
        """Print and return what will be done, in which order, and whether it is known to give the same rows each time.

        Training that goes on after a failure, and a block that is made again, count on that. All that data sets do
        themselves is the same each time, with the seeds that are shown. Of the program's own functions nobody knows:
        one that draws random numbers should seed them by what is in the row.

        Example:
            >>> import hocket
            >>> from hocket import data
            >>> context = hocket.init(num_cpus=2, engine="inprocess")
            >>> text = data.range(10).map_batches(max).random_shuffle(seed=3).explain()
            1. read 1 blocks
            2. map_batches(max)
            3. shuffle(seed=3)
            The same rows in the same order each time, if this gives the same for the same rows: map_batches(max).
            >>> hocket.shutdown()
        """
        names = [plan.describe(op) for op in self._plan.ops]
        lines = [f"{number}. {line}" for number, line in enumerate([f"read {len(self._plan.reads)} blocks", *names], 1)]
        unknown = [name for name, op in zip(names, self._plan.ops, strict=True) if not plan.is_exact(op)]
        said = f", if this gives the same for the same rows: {', '.join(unknown)}" if unknown else ""
        text = "\n".join([*lines, f"The same rows in the same order each time{said}."])
        print(text)
        return text

    def stats(self) -> str:
        """Return a table of what the last execution did.

        Of each stage: how many blocks, rows and bytes it gave, how long what follows waited for it, and how long it was
        held up because nobody asked for its next block.

        Example:
            >>> import hocket
            >>> from hocket import data
            >>> context = hocket.init(num_cpus=2, engine="inprocess")
            >>> rows = data.range(1000).map_batches(lambda batch: batch)
            >>> total = sum(len(batch["id"]) for batch in rows.iter_batches())
            >>> print(rows.stats().splitlines()[1].split()[:5])
            ['read', '->', 'map_batches(<lambda>)', '1', '1,000']
            >>> hocket.shutdown()
        """
        return self._record.describe()

    def num_blocks(self) -> int:
        """Return how many blocks the source has."""
        return len(self._plan.reads)

    def schema(self, fetch_if_missing: bool = True) -> blocks.Schema | None:
        """Return the names and types of the columns, as the first block with rows has them; None if no block has any.

        Args:
            fetch_if_missing: Whether a block is made to see, where nothing is known; if not, it is None then.
        """
        if not fetch_if_missing and (self._plan.ops or not all(isinstance(one, plan.Held) for one in self._plan.reads)):
            return None
        block = self._peek()
        return block.read_schema() if block.columns else None

    def columns(self, fetch_if_missing: bool = True) -> list[str] | None:
        """Return the names of the columns; see `schema`."""
        schema = self.schema(fetch_if_missing)
        return None if schema is None else schema.names

    def take(self, limit: int = 20) -> list[blocks.Row]:
        """Return the first rows.

        Raises:
            ValueError: The number is negative.
        """
        reading.check_count("limit", limit, 0, "take_all()")
        rows: list[blocks.Row] = []
        found = execution.stream(self._plan.limit_rows(limit), _get_options()) if limit else ()
        for block in map(execution.fetch, found):
            rows += block.cut(0, limit - len(rows)).list_rows()
            if len(rows) >= limit:
                break
        return rows

    def take_all(self, limit: int | None = None) -> list[blocks.Row]:
        """Return all rows.

        Args:
            limit: The most that there may be.

        Raises:
            ValueError: There are more.
        """
        reading.check_count("limit", limit, 0)
        if limit is None:
            return list(self.iter_rows())
        rows = self.take(limit + 1)
        if len(rows) > limit:
            raise ValueError(
                f"take_all(limit={limit}) was called, but the data set has more than {limit} rows. Use take({limit}), "
                "or a larger limit."
            )
        return rows

    def take_batch(self, batch_size: int = 20, *, batch_format: str | None = "default") -> blocks.Batch:
        """Return the first rows as a batch; see `iter_batches`.

        Raises:
            ValueError: There are no rows.
        """
        for batch in self.iter_batches(batch_size=batch_size, batch_format=batch_format, prefetch_batches=0):
            return batch
        raise ValueError(
            "take_batch() was called, but the data set has no rows. Look at what filter() or the files leave with "
            "count()."
        )

    def to_pandas(self, limit: int | None = None) -> Any:
        """Return all rows as a data frame.

        Args:
            limit: The most rows that there may be.

        Raises:
            ValueError: There are more.
            MissingExtraError: pandas is not installed.
        """
        reading.check_count("limit", limit, 0)
        if limit is not None and self.count() > limit:
            raise ValueError(
                f"to_pandas(limit={limit}) was called, but the data set has {self.count()} rows. Use a larger limit, "
                f"or take_batch({limit})."
            )
        found = list(self._stream_blocks())
        return blocks.join(found or [blocks.Block({}, 0)]).to_batch("pandas")

    def to_arrow(self) -> Any:
        """Return all rows as an Arrow table.

        Raises:
            ValueError: A column holds objects that Arrow has no type for.
            MissingExtraError: pyarrow is not installed.
        """
        found = list(self._stream_blocks())
        return blocks.join(found or [blocks.Block({}, 0)]).to_batch("pyarrow")

    # --- reading ------------------------------------------------------------------------------------------------------

    def _stream(self) -> Iterator[plan.Held | plan.Stored]:
        self._record = execution.Record(self._plan.get_optional_count())
        return execution.stream(self._plan, _get_options(), self._record)

    def _stream_blocks(self) -> Iterator[blocks.Block]:
        return map(execution.fetch, self._stream())

    def _store(self) -> list[plan.Stored]:
        self._record = execution.Record(self._plan.get_optional_count())
        return execution.store(self._plan, _get_options(), self._record)

    def _peek(self) -> blocks.Block:
        return execution.find_block(self._plan, _get_options())

    def _loop(self, convert: Callable[[blocks.Block], T], batching: feed.Batching) -> Iterable[T]:
        def begin() -> Iterator[T]:
            stream = self._stream_blocks()
            if batching.shuffle_buffer is not None:
                stream = reading.mix(stream, batching.shuffle_buffer, batching.shuffle_seed or 0)
            cut = reading.cut_batches(stream, batching.batch_size, drop_last=batching.drop_last)
            engine = contract.get_optional_current_engine()
            # Where all is done in one thread at a time, another one could wait for a task that waits for it.
            ahead = 0 if engine is not None and "parallelism" in engine.limits else batching.prefetch_batches
            return reading.read_ahead((convert(blocks.join([block])) for block in cut), ahead)

        return reading.Restartable(begin)

    def build_source(
        self, options: settings.ExecutionOptions | None = None, *, stays_here: bool = False
    ) -> execution.Source:
        """Execute the plan, and return its rows so that ranks can read them in any order. For trainers.

        Args:
            options: How much is worked on at a time.
            stays_here: Whether only this process will read them, so that blocks which it holds need not go to the
                engine.
        """
        return execution.build_source(self._plan, options or _get_options(), stays_here=stays_here)


def _get_options() -> settings.ExecutionOptions:
    return settings.DataContext.get_current().execution_options
