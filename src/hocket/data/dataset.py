"""Datasets: rows in blocks, and the plan of what is done to them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, final

from hocket import keywords
from hocket._base import markup, missing, texts
from hocket.core import session
from hocket.data import (
    block_reads,
    blocks,
    calls,
    conversions,
    execution,
    feed,
    looking,
    operations,
    plan,
    reading,
    settings,
    splits,
    writers,
)
from hocket.data.spark import sending

T = TypeVar("T")


@missing.explain_attributes
@keywords.guard_methods
@final
class Dataset(looking.Looking, operations.RowOperations, splits.Splits, conversions.Conversions, writers.Writers):
    """Rows in blocks, and the plan of what is done to them. Made by `from_items`, `read_parquet` and their like.

    A data set is a plan. It never changes: each method returns another one, and no step runs before rows are requested.
    Then blocks stream through tasks of the session, in their order, as many at a time as `ExecutionOptions` allow; each
    time anew, unless it was materialised.

    Args:
        reads: Where the blocks come from.
        ops: What is done to them.

    Example:
        >>> from hocket import data
        >>> squares = data.range(1000).map_batches(lambda batch: {"square": batch["id"] ** 2})
        >>> squares.filter(lambda row: row["square"] % 7 == 1).take(3)
        [{'square': 1}, {'square': 36}, {'square': 64}]
    """

    def __init__(self, reads: Sequence[block_reads.Read], ops: Sequence[plan.Op] = ()) -> None:
        self._plan = plan.Plan(tuple(reads), tuple(ops))
        self._record = execution.Record()

    def __repr__(self) -> str:
        steps = "".join(f" -> {plan.describe(op)}" for op in self._plan.ops)
        count = self._plan.get_optional_count()
        sizes = self._plan.get_optional_sizes()
        num_blocks = "?" if sizes is None else len(sizes)
        return f"Dataset({num_blocks} blocks, {'?' if count is None else count} rows{steps})"

    def _repr_html_(self) -> str:
        count = self._plan.get_optional_count()
        facts = {"rows": "not known before they are read" if count is None else f"{count:,}"}
        sizes = self._plan.get_optional_sizes()
        facts["blocks"] = "not known before they are made" if sizes is None else f"{len(sizes):,}"
        if self._plan.ops:
            facts["steps"] = ", ".join(plan.describe(op) for op in self._plan.ops)
        schema = self.schema(fetch_if_missing=False)  # nothing is executed to be shown
        if schema is not None:
            facts["columns"] = ", ".join(
                f"{name}: {kind}" for name, kind in zip(schema.names, schema.types, strict=True)
            )
        return markup.write_facts("Dataset", facts)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("A Dataset has rows and batches, so say which: write iter_rows() or iter_batches().")

    def __bool__(self) -> bool:
        raise TypeError("A Dataset is not true or false before it is executed: write count() > 0, or `is not None`.")

    def __contains__(self, value: object) -> bool:
        raise TypeError("A Dataset is searched when it is executed: write filter(...).count() > 0.")

    def __len__(self) -> int:
        raise TypeError("A Dataset has no length before it is executed: write count(), which executes it.")

    def __getitem__(self, index: object) -> Any:
        raise TypeError(
            f"A Dataset has no index, but received [{texts.safe_repr(index, 40)}]. Write take(n) for the first rows, "
            "limit(n) for a data set of them, or select_columns([...]) for columns."
        )

    def _build(self, reads: Sequence[block_reads.Read]) -> Dataset:
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
            TypeError: There is no such keyword.

        Example:
            >>> from hocket import data
            >>> [row["id"] for row in data.range(6).random_shuffle(seed=1).take_all()]
            [2, 3, 0, 4, 1, 5]
        """
        calls.read_options("random_shuffle", None, of_ray, ("seed", "num_blocks"))
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

    def iterator(self) -> Dataset:
        """Return what has `iter_batches`: the data set itself. Here for programs written for Ray."""
        return self

    def materialize(self) -> Dataset:
        """Execute the plan and return its rows as a data set that has them, in the session's memory.

        Example:
            >>> from hocket import data
            >>> data.range(10).map_batches(lambda batch: batch).materialize()
            Dataset(1 blocks, 10 rows)
        """
        kept = Dataset(self._store())
        kept._record = self._record
        return kept

    def to_spark(self, spark: object, *, path: str | os.PathLike[str] | None = None) -> Any:
        """Execute the plan, write Parquet files, and return a DataFrame of Spark's that reads them.

        It has as many rows, in no order. Texts, numbers, times, decimals, lists, structs and missing values stay what
        they are, but for unsigned numbers and halves, for which Spark has the next larger type.

        Args:
            spark: The ``SparkSession``.
            path: A folder, empty or not there, that Spark's machines and this one see: ``s3a://bucket/rows``. Default,
                if Spark runs on this machine alone: one among its temporary files, removed when this process ends.

        Raises:
            TypeError: It is no session of Spark's, or a column is of no type that Spark reads.
            ValueError: A time has nanoseconds; or no path is given, and Spark runs on other machines.
            FileExistsError: The folder has files.
            MissingExtraError: PySpark is not installed.
        """
        with sending.open_target(spark, path) as folder:
            place = folder.place
            how = {"filesystem": place.filesystem, "mode": "error"}
            self._write(sending.CALLER, place.path, sending.SparkParquet(), how)
            return sending.build_frame(spark, folder)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _stream(self) -> execution.Stream:
        self._record = execution.Record(self._plan.get_optional_count())
        return execution.stream(self._plan, _get_options(), self._record)

    def _stream_first(self, limit: int) -> Iterator[blocks.Block]:
        return map(execution.fetch, execution.stream(self._plan.limit_rows(limit), _get_options()))

    def _stream_blocks(self) -> Iterator[blocks.Block]:
        return map(execution.fetch, self._stream())

    def _store(self) -> list[block_reads.Stored]:
        self._record = execution.Record(self._plan.get_optional_count())
        return execution.store(self._plan, _get_options(), self._record)

    def _peek(self) -> blocks.Block:
        return execution.find_block(self._plan, _get_options())

    def _loop(self, convert: Callable[[blocks.Block], T], batching: feed.Batching) -> Iterable[T]:
        def begin() -> Iterator[T]:
            executed = self._stream()
            stream: Iterator[blocks.Block] = map(execution.fetch, executed)
            if batching.shuffle_buffer is not None:
                stream = reading.mix(stream, batching.shuffle_buffer, batching.shuffle_seed or 0)
            cut = reading.cut_batches(stream, batching.batch_size, drop_last=batching.drop_last)
            # Where all is done in one thread at a time, another one could wait for a task that waits for it.
            ahead = 0 if "parallelism" in session.get_limits() else batching.prefetch_batches
            batches = (convert(blocks.join([block])) for block in cut)
            return reading.hide_frames(reading.read_ahead(batches, ahead, executed.close))

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
