"""Datasets: rows in blocks, and what shall be done to them."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, final

import numpy as np

from hocket.data import blocks, execution, feed, order, plan, reading, settings

T = TypeVar("T")


@final
class Dataset(feed.Feed):
    """Rows in blocks, and what shall be done to them. Made by `from_items`, `read_parquet` and their like.

    A data set is a plan. It never changes: each method returns another one, and nothing is done before rows are asked for. Then blocks stream
    through tasks of the session, in their order, as many at a time as `ExecutionOptions` allow; each time anew, unless it was materialised.

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
        self._reads = tuple(reads)
        self._ops = tuple(ops)

    def __repr__(self) -> str:
        steps = "".join(
            f" -> {op.name if isinstance(op, plan.Step) else type(op).__name__.lower()}" for op in self._ops
        )
        count = self._get_optional_count()
        return f"Dataset({len(self._reads)} blocks, {'?' if count is None else count} rows{steps})"

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("A Dataset has rows and batches, so say which: write iter_rows() or iter_batches().")

    def _then(self, op: plan.Op) -> Dataset:
        return Dataset(self._reads, (*self._ops, op))

    # --- what is done to rows -----------------------------------------------------------------------------------------

    def map_batches(
        self,
        fn: Callable[..., blocks.Batch | Iterator[blocks.Batch]],
        *,
        batch_size: int | None = None,
        batch_format: str | None = "default",
        zero_copy_batch: bool = True,
        fn_args: Iterable[Any] = (),
        fn_kwargs: Mapping[str, Any] | None = None,
        num_cpus: float = 1,
    ) -> Dataset:
        """Call a function with batches; what it returns are the rows.

        Args:
            fn: Takes a batch and returns one, in any format and of any length; or yields several.
            batch_size: How many rows a batch has at most: blocks are cut, not joined. Default: whole blocks.
            batch_format: What `fn` is given: ``"default"`` or ``"numpy"`` for a dict of arrays, ``"pandas"`` or ``"pyarrow"``.
            zero_copy_batch: Whether arrays are read-only, because they look into shared memory. False gives copies.
            fn_args: More arguments for `fn`.
            fn_kwargs: The same, by name.
            num_cpus: How many CPUs a task holds.

        Raises:
            TypeError: `fn` is no function.
            ValueError: The batch size is less than 1, or there is no such format.

        Example:
            >>> import hocket
            >>> from hocket import data
            >>> context = hocket.init(num_cpus=2, engine="inprocess")
            >>> data.range(3).map_batches(lambda batch, by: {"id": batch["id"] * by}, fn_kwargs={"by": 10}).take_all()
            [{'id': 0}, {'id': 10}, {'id': 20}]
            >>> hocket.shutdown()
        """
        _check_function("map_batches", fn)
        reading.check_batch_size(batch_size, may_be_none=True)
        step = plan.MapBatches(
            function=fn,
            batch_size=batch_size,
            batch_format=blocks.check_format(batch_format),
            is_shared=zero_copy_batch,
            args=tuple(fn_args),
            kwargs=dict(fn_kwargs or {}),
        )
        return self._then(_build_step("map_batches", step, fn, num_cpus=num_cpus))

    def map(self, fn: Callable[[blocks.Row], blocks.Row], *, num_cpus: float = 1) -> Dataset:
        """Call a function with each row, a dict of Python values; what it returns is the row. `map_batches` is many times faster.

        Raises:
            TypeError: `fn` is no function.
        """
        _check_function("map", fn)
        return self._then(_build_step("map", plan.MapRows(fn), fn, keeps_rows=True, num_cpus=num_cpus))

    def flat_map(self, fn: Callable[[blocks.Row], list[blocks.Row]], *, num_cpus: float = 1) -> Dataset:
        """Call a function with each row; what it returns is a list of rows.

        Raises:
            TypeError: `fn` is no function.
        """
        _check_function("flat_map", fn)
        return self._then(_build_step("flat_map", plan.FlatMapRows(fn), fn, num_cpus=num_cpus))

    def filter(self, fn: Callable[[blocks.Row], bool], *, num_cpus: float = 1) -> Dataset:
        """Keep the rows of which a function says True.

        Raises:
            TypeError: `fn` is no function.
        """
        _check_function("filter", fn)
        return self._then(_build_step("filter", plan.FilterRows(fn), fn, num_cpus=num_cpus))

    def select_columns(self, cols: str | Sequence[str]) -> Dataset:
        """Keep some columns, in the order in which they are named.

        Raises:
            KeyError: There is no such column. Raised here if the columns are known, and else when rows are asked for.
            ValueError: No column is named, or one twice.
        """
        names = _check_names("select_columns", cols)
        step = plan.SelectColumns(names)
        return self._try(plan.Step(apply=step, name="select_columns", keeps_rows=True))

    def drop_columns(self, cols: str | Sequence[str]) -> Dataset:
        """Leave some columns out.

        Raises:
            KeyError: There is no such column. Raised here if the columns are known, and else when rows are asked for.
            ValueError: No column is named, or one twice, or none is left.
        """
        names = _check_names("drop_columns", cols)
        return self._try(plan.Step(apply=plan.DropColumns(names), name="drop_columns", keeps_rows=True))

    def rename_columns(self, names: Mapping[str, str]) -> Dataset:
        """Give columns other names.

        Raises:
            KeyError: There is no such column. Raised here if the columns are known, and else when rows are asked for.
            ValueError: Two columns would have one name.
        """
        return self._try(plan.Step(apply=plan.RenameColumns(dict(names)), name="rename_columns", keeps_rows=True))

    def add_column(self, col: str, fn: Callable[[Any], Any], *, batch_format: str | None = "pandas") -> Dataset:
        """Add a column, or replace it: what a function makes of each block.

        Args:
            col: Its name.
            fn: Takes a block, and returns a value for each of its rows.
            batch_format: What it is given; see `map_batches`.

        Raises:
            TypeError: `fn` is no function.
            ValueError: There is no such format.
        """
        _check_function("add_column", fn)
        step = plan.AddColumn(name=col, function=fn, batch_format=blocks.check_format(batch_format))
        return self._then(plan.Step(apply=step, name=f"add_column({col})", keeps_rows=True))

    def _try(self, step: plan.Step) -> Dataset:
        """Add a step that looks at columns only; take it once, if that costs nothing, so that a mistake is found where it is made."""
        if not self._ops and self._reads and isinstance(self._reads[0], plan.Held):
            step.apply(self._reads[0].block.cut(0, 0))
        return self._then(step)

    # --- the order and the number of blocks ---------------------------------------------------------------------------

    def random_shuffle(self, *, seed: int | None = None) -> Dataset:
        """Put all rows into another order.

        Where it comes last, training moves no row for it: the ledger computes another order for each epoch. A batch is then of rows from all over
        the data.

        Args:
            seed: Which order. Default: a random one, chosen now, so that this data set has the same order each time.

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
        reading.check_count("seed", seed, 0)
        return self._then(plan.Shuffle(secrets.randbelow(1 << 31) if seed is None else min(int(seed), order.MAX_SEED)))

    def repartition(self, num_blocks: int) -> Dataset:
        """Cut the same rows, in the same order, into another number of blocks.

        Raises:
            ValueError: The number is less than 1.
        """
        if num_blocks is None:
            raise ValueError("num_blocks must be a whole number from 1, but received None. Write repartition(8).")
        reading.check_count("num_blocks", num_blocks, 1)
        return self._then(plan.Repartition(int(num_blocks)))

    def split(self, n: int, *, equal: bool = False) -> list[Dataset]:
        """Execute the plan, and return parts of rows that follow one another. They differ by one row at most.

        Args:
            n: How many parts.
            equal: Whether to leave out up to ``n - 1`` rows at the end, so that they do not differ.

        Raises:
            ValueError: The number is less than 1.
        """
        if n is None:
            raise ValueError("n must be a whole number from 1, but received None. Write split(2).")
        reading.check_count("n", n, 1)
        found = self.materialize()
        total = found.count()
        total -= total % n if equal else 0
        ends = [total * number // n for number in range(n + 1)]
        return [Dataset(cut_reads(found._reads, start, stop)) for start, stop in itertools.pairwise(ends)]

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
        return Dataset(execution.store(self._reads, self._ops, settings.DataContext.get_current().execution_options))

    # --- what there is ------------------------------------------------------------------------------------------------

    def count(self) -> int:
        """Return how many rows there are. The plan is executed if that cannot be known without."""
        known = self._get_optional_count()
        return sum(found.num_rows for found in self._stream()) if known is None else known

    def _get_optional_count(self) -> int | None:
        sizes = [read.num_rows for read in self._reads]
        changes = any(isinstance(op, plan.Step) and not op.keeps_rows for op in self._ops)
        return None if changes or None in sizes else sum(size or 0 for size in sizes)

    def num_blocks(self) -> int:
        """Return how many blocks the source has."""
        return len(self._reads)

    def schema(self) -> blocks.Schema | None:
        """Return the names and types of the columns, as the first block with rows has them; None if there are no rows.

        Of a plan, that block is made to see.
        """
        block = self._find_block()
        return block.read_schema() if block.columns else None

    def columns(self) -> list[str] | None:
        """Return the names of the columns; see `schema`."""
        schema = self.schema()
        return None if schema is None else schema.names

    def _find_block(self) -> blocks.Block:
        reads = (
            self._reads[:1]
            if self._get_optional_count() and not any(isinstance(op, plan.Shuffle) for op in self._ops)
            else self._reads
        )
        for found in Dataset(reads, self._ops)._stream():
            if found.num_rows:
                return execution.fetch(found)
        return blocks.Block({}, 0)

    def take(self, limit: int = 20) -> list[blocks.Row]:
        """Return the first rows.

        Raises:
            ValueError: The number is negative.
        """
        if limit is None:
            raise ValueError("limit must be a whole number from 0, but received None. Write take_all().")
        reading.check_count("limit", limit, 0)
        rows: list[blocks.Row] = []
        options = settings.DataContext.get_current().execution_options
        found = execution.stream(self._reads, plan.limit_rows(self._ops, limit), options) if limit else ()
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
                f"take_all(limit={limit}) was called, but the data set has more than {limit} rows. Use take({limit}), or a larger limit."
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
            "take_batch() was called, but the data set has no rows. Look at what filter() or the files leave with count()."
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
                f"to_pandas(limit={limit}) was called, but the data set has {self.count()} rows. Use a larger limit, or take_batch({limit})."
            )
        found = list(self._stream_blocks())
        return blocks.join(found or [blocks.Block({}, 0)]).to_batch("pandas")

    # --- reading ------------------------------------------------------------------------------------------------------

    def _stream(self) -> Iterator[plan.Held | plan.Stored]:
        return execution.stream(self._reads, self._ops, settings.DataContext.get_current().execution_options)

    def _stream_blocks(self) -> Iterator[blocks.Block]:
        return map(execution.fetch, self._stream())

    def _peek(self) -> blocks.Block:
        return self._find_block()

    def _loop(
        self,
        convert: Callable[[blocks.Block], T],
        *,
        batch_size: int | None,
        drop_last: bool,
        shuffle_buffer: int | None,
        shuffle_seed: int | None,
        prefetch_batches: int,
    ) -> Iterable[T]:
        def begin() -> Iterator[T]:
            stream = self._stream_blocks()
            if shuffle_buffer is not None:
                stream = reading.mix(stream, max(shuffle_buffer, 1), shuffle_seed or 0)
            cut = reading.cut_batches(stream, batch_size, drop_last=drop_last)
            return reading.read_ahead((convert(blocks.join([block])) for block in cut), prefetch_batches)

        return reading.Restartable(begin)

    def build_source(self, options: settings.ExecutionOptions | None = None, *, stays_here: bool = False) -> Source:
        """Execute the plan, and return its rows so that ranks can read them in any order. For trainers.

        Args:
            options: How much is worked on at a time.
            stays_here: Whether only this process will read them, so that blocks which it holds need not go to the engine.
        """
        options = options or settings.DataContext.get_current().execution_options
        ops = self._ops
        seed = None
        if ops and isinstance(ops[-1], plan.Shuffle):
            seed, ops = ops[-1].seed, ops[:-1]
        if stays_here:
            return Source([found for found in execution.stream(self._reads, ops, options) if found.num_rows], seed)
        return Source(execution.store(self._reads, ops, options), seed)


@final
class Source:
    """Rows that are there, in blocks that can be read in any order.

    Args:
        parts: The blocks.
        shuffle_seed: Which orders the epochs have; None: that of the blocks.
    """

    def __init__(self, parts: Sequence[plan.Held | plan.Stored], shuffle_seed: int | None) -> None:
        self.parts = tuple(parts)
        self.shuffle_seed = shuffle_seed
        ends = np.cumsum([0, *(part.num_rows for part in parts)])
        self.starts = ends[:-1]
        self.num_rows = int(ends[-1])


def _build_step(
    verb: str,
    apply: Callable[[blocks.Block], blocks.Block],
    fn: Callable[..., Any],
    *,
    keeps_rows: bool = False,
    num_cpus: Any,
) -> plan.Step:
    if isinstance(num_cpus, bool) or not isinstance(num_cpus, int | float) or num_cpus < 0:
        raise ValueError(f"num_cpus must be a number from 0, but received {num_cpus!r}. Leave it out for 1.")
    return plan.Step(apply=apply, name=f"{verb}({plan.name_function(fn)})", keeps_rows=keeps_rows, num_cpus=num_cpus)


def _check_function(verb: str, fn: object) -> None:
    if isinstance(fn, type):
        raise TypeError(
            f"{verb}() takes a function, but received the class {fn.__name__}. Make what it needs in a function, with functools.cache to make it once in each worker."
        )
    if not callable(fn):
        raise TypeError(f"{verb}() takes a function, but received {fn!r}. Write {verb}(function), without calling it.")


def _check_names(verb: str, given: str | Sequence[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    if not names or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"{verb}() takes the names of columns, each once, but received {given!r}. Write {verb}(['x', 'y'])."
        )
    return names


def cut_reads(reads: Sequence[plan.Read], start: int, stop: int) -> list[plan.Held | plan.Stored]:
    """Return the part of materialised blocks that begins and ends at rows."""
    found: list[plan.Held | plan.Stored] = []
    at = 0
    for read in reads:
        assert isinstance(read, plan.Held | plan.Stored), read
        low, high = max(start - at, 0), min(stop - at, read.num_rows)
        if high > low and isinstance(read, plan.Held):
            found.append(plan.Held(read.block.cut(low, high)))
        elif high > low:
            assert isinstance(read, plan.Stored), read
            num_bytes = read.num_bytes * (high - low) // read.num_rows
            found.append(plan.Stored(read.ref, num_bytes, read.start + low, read.start + high))
        at += read.num_rows
    return found
