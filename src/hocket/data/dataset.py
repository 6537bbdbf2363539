"""Datasets: rows in blocks, and the plan of the operations on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, final

from hocket import keywords
from hocket._base import markup, missing, texts
from hocket.core import session
from hocket.data import block_reads, blocks, execution, plan, reading, settings
from hocket.data.methods import batches, columns, conversions, looking, rows, splits, tables, writers
from hocket.data.methods.contract import Batching

T = TypeVar("T")


@missing.explain_attributes
@keywords.guard_methods
@final
class Dataset:
    """Rows in blocks, and the plan of the operations on them. Made by `from_items`, `read_parquet` and the like.

    A dataset is a plan. It never changes: each method returns another dataset, and no step runs before rows are
    requested. Then blocks stream through tasks of the session, in their order, as many at a time as `ExecutionOptions`
    allow. Each request executes the plan anew, unless the dataset was materialised.

    Args:
        reads: The sources of the blocks.
        ops: The operations on them.

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
        schema = self.schema(fetch_if_missing=False)  # showing a dataset must not execute it
        if schema is not None:
            facts["columns"] = ", ".join(
                f"{name}: {kind}" for name, kind in zip(schema.names, schema.types, strict=True)
            )
        return markup.write_facts("Dataset", facts)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            "A Dataset cannot be iterated directly, because it has both rows and batches. Write iter_rows() or "
            "iter_batches()."
        )

    def __bool__(self) -> bool:
        raise TypeError(
            "A Dataset is neither true nor false before it is executed. Write count() > 0, or `is not None`."
        )

    def __contains__(self, value: object) -> bool:
        raise TypeError(
            "A Dataset does not support `in`, because its rows exist only when it is executed. Write "
            "filter(...).count() > 0."
        )

    def __len__(self) -> int:
        raise TypeError("A Dataset has no length before it is executed. Write count(), which executes it.")

    def __getitem__(self, index: object) -> Any:
        raise TypeError(
            f"A Dataset cannot be indexed, but received [{texts.safe_repr(index, 40)}]. Write take(n) for the first "
            "rows, limit(n) for a data set of them, or select_columns([...]) for columns."
        )

    def _build(self, reads: Sequence[block_reads.Read]) -> Dataset:
        return Dataset(reads)

    def _then(self, op: plan.Op) -> Dataset:
        return Dataset(self._plan.reads, (*self._plan.ops, op))

    _use_gpu = False
    _may_lack_size = True
    _row_batch_size: int | None = None

    # --- steps of the plan --------------------------------------------------------------------------------------------

    map_batches = rows.map_batches
    map = rows.map_rows
    flat_map = rows.flat_map
    filter = rows.filter_rows
    limit = rows.limit
    random_sample = rows.random_sample
    select_columns = columns.select_columns
    drop_columns = columns.drop_columns
    rename_columns = columns.rename_columns
    add_column = columns.add_column
    with_column = columns.with_column
    with_columns = columns.with_columns
    random_shuffle = rows.random_shuffle
    randomize_block_order = rows.randomize_block_order
    repartition = rows.repartition
    sort = tables.sort
    groupby = tables.groupby
    join = tables.join
    union = tables.union
    zip = tables.zip_columns

    # --- execution ----------------------------------------------------------------------------------------------------

    iter_batches = batches.iter_batches
    iter_torch_batches = batches.iter_torch_batches
    iter_jax_batches = batches.iter_jax_batches
    iter_tf_batches = batches.iter_tf_batches
    to_tf = batches.to_tf
    iter_rows = batches.iter_rows
    count = looking.count
    show = looking.show
    explain = looking.explain
    stats = looking.stats
    num_blocks = looking.num_blocks
    schema = looking.schema
    columns = looking.columns
    take = looking.take
    take_all = looking.take_all
    take_batch = looking.take_batch
    to_pandas = looking.to_pandas
    to_arrow = looking.to_arrow
    input_files = looking.input_files
    size_bytes = looking.size_bytes
    aggregate = tables.aggregate
    unique = tables.unique
    sum = tables.add_up
    min = tables.find_least
    max = tables.find_greatest
    mean = tables.compute_mean
    std = tables.compute_std
    summary = conversions.summary
    to_arrow_refs = conversions.to_arrow_refs
    to_pandas_refs = conversions.to_pandas_refs
    to_numpy_refs = conversions.to_numpy_refs
    to_spark = conversions.to_spark
    streaming_train_test_split = splits.streaming_train_test_split
    split = splits.split
    streaming_split = splits.streaming_split
    split_at_indices = splits.split_at_indices
    split_proportionately = splits.split_proportionately
    train_test_split = splits.train_test_split
    write_parquet = writers.write_parquet
    write_csv = writers.write_csv
    write_orc = writers.write_orc
    write_json = writers.write_json
    write_numpy = writers.write_numpy
    write_tfrecords = writers.write_tfrecords
    write_images = writers.write_images
    write_webdataset = writers.write_webdataset
    write_sql = writers.write_sql
    write_datasink = writers.write_datasink

    def iterator(self) -> Dataset:
        """Return the dataset itself, which has `iter_batches`. For programs written for Ray."""
        return self

    def materialize(self) -> Dataset:
        """Execute the plan, and return a dataset whose rows are in the session's memory.

        Example:
            >>> from hocket import data
            >>> data.range(10).map_batches(lambda batch: batch).materialize()
            Dataset(1 blocks, 10 rows)
        """
        kept = Dataset(self._store())
        kept._record = self._record
        return kept

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

    def _loop(self, convert: Callable[[blocks.Block], T], batching: Batching) -> Iterable[T]:
        def begin() -> Iterator[T]:
            executed = self._stream()
            stream: Iterator[blocks.Block] = map(execution.fetch, executed)
            if batching.shuffle_buffer is not None:
                stream = reading.mix(stream, batching.shuffle_buffer, batching.shuffle_seed or 0)
            cut = reading.cut_batches(stream, batching.batch_size, drop_last=batching.drop_last)
            # Where one thread at a time does all the work, a thread ahead could wait for a task that waits for it.
            ahead = 0 if "parallelism" in session.get_limits() else batching.prefetch_batches
            batches = (convert(blocks.join([block])) for block in cut)
            return reading.hide_frames(reading.read_ahead(batches, ahead, executed.close))

        return reading.Restartable(begin)

    def build_source(
        self, options: settings.ExecutionOptions | None = None, *, stays_here: bool = False
    ) -> execution.Source:
        """Execute the plan, and return its rows for reads in any order by ranks. For trainers.

        Args:
            options: The limits of the execution.
            stays_here: Whether only this process will read the rows. Blocks that it holds then need not go to the
                engine.
        """
        return execution.build_source(self._plan, options or _get_options(), stays_here=stays_here)


def _get_options() -> settings.ExecutionOptions:
    return settings.DataContext.get_current().execution_options
