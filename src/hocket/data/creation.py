"""Datasets of values that the program holds."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from hocket import keywords
from hocket._base import texts
from hocket.data import arrow, block_reads, blocks, calls, columns, dataset, plan, reading, settings, steps
from hocket.data.arrow import frames
from hocket.data.execution import references
from hocket.data.sources import custom, programs
from hocket.data.spark import receiving

MOST_ROWS: Final = 1 << 50
"""Largest number of rows of `range`. The limit keeps the number of blocks countable."""


def _plan(reads: Sequence[block_reads.Read]) -> dataset.Dataset:
    """Return a dataset of reads. For functions in which the name ``dataset`` is an argument."""
    return dataset.Dataset(reads)


def _build(block: blocks.Block, num_blocks: int | None) -> dataset.Dataset:
    reading.check_count("override_num_blocks", num_blocks, 1)
    return dataset.Dataset(
        block_reads.cut_block(block, settings.DataContext.get_current().get_block_bytes(), num_blocks)
    )


def _build_parts(parts: Sequence[blocks.Block], num_blocks: int | None) -> dataset.Dataset:
    """Return a dataset of blocks: joined and cut anew; or, if types differ and no number is given, each cut alone."""
    kinds = [{name: columns.find_kind(column) for name, column in part.columns.items()} for part in parts]
    several = any(one.keys() == kinds[0].keys() and one != kinds[0] for one in kinds)
    if num_blocks is not None or not several or any(None in one.values() for one in kinds):
        return _build(blocks.join(parts), num_blocks)
    most = settings.DataContext.get_current().get_block_bytes()
    return dataset.Dataset([held for part in parts for held in block_reads.cut_block(part, most)])


def _build_joined(
    given: object, is_one: Callable[[object], bool], words: tuple[str, str, str], num_blocks: int | None
) -> dataset.Dataset:
    """Return a dataset of a table or a list of tables. `words` are the caller, the wanted kind, and the remedy."""
    caller, kind, remedy = words
    parts = given if isinstance(given, list | tuple) else [given]
    if not parts:
        return _build(blocks.Block({}, 0), num_blocks)
    for part in parts:
        if not is_one(part):
            raise TypeError(
                f"{caller} takes {kind} or a list of them, but received {texts.name_kind(part)}: {part!r:.80}. Write "
                f"{remedy}."
            )
    return _build_parts([blocks.build_from_batch(part, caller) for part in parts], num_blocks)


def from_items(items: Sequence[object], *, override_num_blocks: int | None = None) -> dataset.Dataset:
    """Return a dataset of rows that the program holds.

    Args:
        items: Dicts of values by column; or other values, which become a column named ``item``. Arrays of one shape
            become one array.
        override_num_blocks: Number of blocks. Default: chosen by size.

    Raises:
        TypeError: `items` is not a list, or some items are dicts and others are not.
        ValueError: The rows have no column.

    Example:
        >>> from hocket import data
        >>> data.from_items([{"x": [1.0], "y": 2}, {"x": [3.0], "y": 4}]).take(1)
        [{'x': [1.0], 'y': 2}]
    """
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Sequence | np.ndarray):
        raise TypeError(
            f"from_items() takes a list of rows, but received {texts.name_kind(items)}: {items!r:.80}. Write "
            "from_items([{'x': 1}, {'x': 2}])."
        )
    rows = list(items)
    if not any(isinstance(row, Mapping) for row in rows):
        rows = [{"item": row} for row in rows]
    return _build(blocks.build_from_rows(rows, "from_items()"), override_num_blocks)


def from_numpy(
    ndarrays: arrow.Array | Sequence[arrow.Array] | Mapping[str, arrow.Array],
    *,
    override_num_blocks: int | None = None,
) -> dataset.Dataset:
    """Return a dataset of arrays, whose first axis is the rows.

    The arrays are not copied: do not change them while the dataset is in use.

    Args:
        ndarrays: One array, which becomes a column named ``data``; a list of arrays, one after the other; or a dict of
            columns, which Ray does not accept.
        override_num_blocks: Number of blocks. Default: chosen by size.

    Raises:
        TypeError: A value is not an array.
        ValueError: Columns have different lengths.

    Example:
        >>> import numpy as np
        >>> from hocket import data
        >>> data.from_numpy(np.zeros((3, 28, 28))).schema()
        Schema(names=['data'], types=['float64[28, 28]'])
    """
    given: Any = ndarrays
    if isinstance(given, list | tuple) and given and all(isinstance(one, np.ndarray) for one in given):
        return _build_parts([blocks.build({"data": one}, "from_numpy()") for one in given], override_num_blocks)
    found = dict(given) if isinstance(given, Mapping) else {"data": given}
    for name, array in found.items():
        if not isinstance(array, np.ndarray):
            raise TypeError(
                f"from_numpy() takes arrays, but {name!r} is {texts.name_kind(array)}: {array!r:.80}. Write "
                "from_numpy(np.array(...))."
            )
    return _build(blocks.build(found, "from_numpy()"), override_num_blocks)


def from_pandas(dfs: object, override_num_blocks: int | None = None) -> dataset.Dataset:
    """Return a dataset of a pandas DataFrame, or of a list of them. The index is dropped.

    Raises:
        TypeError: A value is not a DataFrame.
        ValueError: Two columns of a DataFrame have the same name.
    """
    return _build_joined(
        dfs, frames.is_frame, ("from_pandas()", "a DataFrame", "from_pandas(pd.DataFrame(...))"), override_num_blocks
    )


def from_arrow(tables: object, *, override_num_blocks: int | None = None) -> dataset.Dataset:
    """Return a dataset of an Arrow table, or of a list of tables.

    Raises:
        TypeError: A value is not a table.
        ValueError: Two columns of a table have the same name.
    """
    pa = arrow.load("from_arrow()")
    words = ("from_arrow()", "an Arrow table", "from_arrow(pa.table(...))")
    return _build_joined(tables, lambda table: isinstance(table, pa.Table | pa.RecordBatch), words, override_num_blocks)


def from_blocks(blocks: Sequence[object]) -> dataset.Dataset:
    """Return a dataset of Arrow tables, data frames or dicts of arrays. Each becomes a block.

    Raises:
        TypeError: A value is none of these.
    """
    return dataset.Dataset(
        [block_reads.Held(_read_block(one)) for one in blocks] or [block_reads.Held(_read_block(None))]
    )


def _read_block(given: object) -> blocks.Block:
    return blocks.Block({}, 0) if given is None else blocks.build_from_batch(given, "A block of from_blocks()")


def from_arrow_refs(tables: object) -> dataset.Dataset:
    """Return a dataset of references to Arrow tables. Each table becomes a block. See `Dataset.to_arrow_refs`.

    Raises:
        TypeError: A value is not a reference. An object that is not a table raises when rows are read.
    """
    return dataset.Dataset(references.list_reads(tables, "from_arrow_refs()"))


def from_pandas_refs(dfs: object) -> dataset.Dataset:
    """Return a dataset of references to data frames. See `from_arrow_refs`."""
    return dataset.Dataset(references.list_reads(dfs, "from_pandas_refs()"))


def from_numpy_refs(ndarrays: object) -> dataset.Dataset:
    """Return a dataset of references to arrays, whose first axis is the rows, in the column ``data``; or of references
    to dicts of arrays. See `from_arrow_refs`."""
    return dataset.Dataset(references.list_reads(ndarrays, "from_numpy_refs()"))


def range(n: int, *, override_num_blocks: int | None = None) -> dataset.Dataset:
    """Return a dataset of the numbers from 0 to ``n - 1``, in a column named ``id``.

    Raises:
        ValueError: `n` is not a whole number, is negative, or is larger than 2**50.

    Example:
        >>> from hocket import data
        >>> data.range(3).take_all()
        [{'id': 0}, {'id': 1}, {'id': 2}]
    """
    reading.check_count("n", n, 0, "range(1000)")
    if n > MOST_ROWS:
        raise ValueError(f"n must be at most {MOST_ROWS}, but received {n}. Use a smaller number.")
    reading.check_count("override_num_blocks", override_num_blocks, 1)
    most = settings.DataContext.get_current().get_block_bytes()
    count = override_num_blocks or max(1, -(-8 * n // most), min(8, n >> 12))
    if count == 1:
        return dataset.Dataset([block_reads.Held(block_reads.RangeRead(0, n)())])
    return dataset.Dataset([block_reads.RangeRead(start, stop) for start, stop in block_reads.cut_evenly(n, count)])


def range_tensor(n: int, *, shape: tuple[int, ...] = (1,), override_num_blocks: int | None = None) -> dataset.Dataset:
    """Return a dataset of the numbers from 0 to ``n - 1``, each spread over an array, in a column named ``data``.

    Args:
        n: Number of rows.
        shape: The shape of a row's array.
        override_num_blocks: Number of blocks. Default: chosen by size.

    Raises:
        ValueError: `n` or a size in `shape` is not a whole number, or is negative.

    Example:
        >>> from hocket import data
        >>> data.range_tensor(2, shape=(2,)).schema()
        Schema(names=['data'], types=['int64[2]'])
    """
    given: object = shape
    if not isinstance(given, Sequence) or not all(isinstance(size, int | np.integer) and size >= 0 for size in given):
        raise ValueError(
            f"shape must be a tuple of whole numbers from 0, but received {texts.safe_repr(given)}. Write shape=(2,)."
        )
    found = range(n, override_num_blocks=override_num_blocks)
    spread = functools.partial(_spread, tuple(shape))
    return found._then(plan.Step(work=steps.EachBlock(spread, keeps_rows=True), name="range_tensor"))


def _spread(shape: tuple[int, ...], block: blocks.Block) -> blocks.Block:
    numbers = block.columns["id"].reshape(-1, *(1 for _ in shape))
    return blocks.Block({"data": np.broadcast_to(numbers, (block.num_rows, *shape)).copy()}, block.num_rows)


def from_generators(generators: Sequence[Callable[[], Iterable[object]]]) -> dataset.Dataset:
    """Return a dataset of the values that functions yield, one function after the other. Each runs in its own task.

    Args:
        generators: Functions without arguments, such as ``functools.partial(read, "file")``. They yield rows, which are
            dicts of values, or batches.

    Raises:
        TypeError: A value is not a function.

    Example:
        >>> from hocket import data
        >>> def count(start):
        ...     for number in (start, start + 1):
        ...         yield {"x": number}
        >>> data.from_generators([lambda: count(0), lambda: count(5)]).take_all()
        [{'x': 0}, {'x': 1}, {'x': 5}, {'x': 6}]
    """
    for one in generators:
        if not callable(one):
            raise TypeError(
                f"from_generators() takes functions without arguments, but received {one!r:.80}. Write "
                "from_generators([lambda: generate(...)])."
            )
    return dataset.Dataset([programs.GeneratorRead(one, "a function of from_generators()") for one in generators])


def read_datasource(
    datasource: custom.Datasource,
    *,
    parallelism: int = -1,
    override_num_blocks: int | None = None,
    ray_remote_args: object = None,
    concurrency: int | None = None,
    compute: object = None,
) -> dataset.Dataset:
    """Return a dataset of a user's own source.

    Args:
        datasource: The source. It lists its read tasks now. Each read task runs in a task when rows are requested.
        parallelism: Ray's older word for `override_num_blocks`.
        override_num_blocks: Number of read tasks that the source should make. Default: 8.
        ray_remote_args: For programs written for Ray: has no effect.
        concurrency: For programs written for Ray: has no effect.
        compute: For programs written for Ray: has no effect.

    Raises:
        TypeError: The value is not a source.

    Example:
        >>> from hocket import data
        >>> class Squares(data.Datasource):
        ...     def get_read_tasks(self, parallelism, per_task_row_limit=None, data_context=None):
        ...         return [data.ReadTask(lambda: [{"x": [0, 1]}]), data.ReadTask(lambda: [{"x": [4, 9]}])]
        >>> data.read_datasource(Squares()).sum("x")
        14
    """
    reading.check_count("override_num_blocks", override_num_blocks, 1)
    return dataset.Dataset(
        custom.list_reads(datasource, override_num_blocks or (parallelism if parallelism > 0 else 8))
    )


def read_sql(
    sql: str,
    connection_factory: Callable[[], object],
    *,
    sql_params: object = None,
    override_num_blocks: int | None = None,
    **of_ray: object,
) -> dataset.Dataset:
    """Return a dataset of the rows of a query. One task sends the query when rows are read.

    Args:
        sql: The query.
        connection_factory: Returns a connection that follows Python's database interface (PEP 249).
        sql_params: Parameters of the query, in the database's own form.
        override_num_blocks: For programs written for Ray: has no effect. One task reads the query.
        **of_ray: Ray's keywords that choose the tasks. They have no effect.

    Raises:
        TypeError: `connection_factory` is not a function.

    Example:
        >>> import hocket, sqlite3, tempfile
        >>> from hocket import data
        >>> path = tempfile.mkdtemp() + "/rows.db"
        >>> with sqlite3.connect(path) as connection:
        ...     _ = connection.execute("CREATE TABLE t AS SELECT 1 AS x, 'one' AS y")
        >>> data.read_sql("SELECT * FROM t", lambda: sqlite3.connect(path)).take_all()
        [{'x': 1, 'y': 'one'}]
    """
    own = ("sql_params", "override_num_blocks")
    keywords.check("read_sql()", of_ray, own, others=[*calls.SCHEDULING, "shard_keys", "shard_hash_fn"])
    given: Any = connection_factory
    if not callable(given) or hasattr(given, "cursor"):
        raise TypeError(
            f"connection_factory must be a function, but received {connection_factory!r:.80}: a connection cannot be "
            "sent to a task. Write lambda: sqlite3.connect(path)."
        )
    return dataset.Dataset([programs.QueryRead(sql, connection_factory, sql_params)])


def from_torch(dataset: object, local_read: bool = False, *, override_num_blocks: int | None = None) -> dataset.Dataset:
    """Return a dataset of a PyTorch dataset. Tasks make its items. Items that are not dicts fill the column ``item``.

    Args:
        dataset: An object with a length and items, or one to loop over.
        local_read: For programs written for Ray: has no effect.
        override_num_blocks: Number of blocks.

    Raises:
        TypeError: `dataset` is neither.

    Example:
        >>> from hocket import data
        >>> data.from_torch([{"x": 1}, {"x": 2}]).take_all()
        [{'x': 1}, {'x': 2}]
    """
    reading.check_count("override_num_blocks", override_num_blocks, 1)
    loops = any(kind.__name__ == "IterableDataset" for kind in type(dataset).__mro__)  # PyTorch's, which has no items
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and not loops:
        count = override_num_blocks or max(1, min(8, len(dataset) >> 8))
        cuts = block_reads.cut_evenly(len(dataset), count)
        return _plan([programs.ItemsRead(dataset, start, stop) for start, stop in cuts])
    if not isinstance(dataset, Iterable):
        raise TypeError(f"from_torch() takes a PyTorch dataset, but received {dataset!r:.80}.")
    return _plan([programs.GeneratorRead(functools.partial(_loop_items, dataset), "the dataset", True)])


def _loop_items(source: Iterable[object]) -> Iterator[object]:
    for item in source:
        yield item if isinstance(item, dict) else {"item": item}


def from_spark(df: object, *, path: str | os.PathLike[str] | None = None) -> dataset.Dataset:
    """Let Spark write a data frame as Parquet files now, and return a dataset that reads these files.

    Spark's executors write the files. Only files of tasks that Spark has committed count, so a task that runs again, or
    twice, adds its rows once. The files must have as many rows as Spark has counted. Their digests are noted in the
    folder. A file that is changed or missing later is named when it is read.

    Args:
        df: The ``DataFrame``.
        path: A folder, empty or new, that Spark's machines and this one can reach: ``s3a://bucket/rows``. It stays, and
            `hocket.spark.read` reads it again. Default, if Spark runs on this machine alone: a temporary folder, which
            is removed when this process ends.

    Raises:
        TypeError: `df` is not a data frame of Spark's, or files cannot keep a column's type, such as an interval.
        ValueError: Spark runs on other machines, and no path is given.
        FileExistsError: The folder has files.
        OSError: Some files of Spark's are not in the folder: its machines see another folder.
        MissingExtraError: PySpark is not installed.
    """
    return dataset.Dataset(receiving.receive(df, path))


def from_tf(dataset: object) -> dataset.Dataset:
    """Return a dataset of a ``tf.data.Dataset``, which is read here and now.

    Dict elements become columns of these names. Tuples become the columns ``item_0``, ``item_1`` and so on, and other
    elements the column ``item``.

    Raises:
        TypeError: `dataset` is not a ``tf.data.Dataset``.
    """
    if not hasattr(dataset, "as_numpy_iterator"):
        raise TypeError(f"from_tf() takes a tf.data.Dataset, but received {dataset!r:.80}.")
    rows = []
    for element in dataset.as_numpy_iterator():
        if isinstance(element, tuple):
            rows.append({f"item_{at}": part for at, part in enumerate(element)})
        else:
            rows.append(element if isinstance(element, dict) else {"item": element})
    return from_items(rows)


def from_huggingface(dataset: Any, *, override_num_blocks: int | None = None) -> dataset.Dataset:
    """Return a dataset of a Hugging Face dataset.

    Args:
        dataset: A ``datasets.Dataset``, whose rows are read as Arrow tables, or an ``IterableDataset``, which a task
            reads.
        override_num_blocks: Number of blocks.

    Raises:
        TypeError: `dataset` is neither. For a ``DatasetDict``, choose a split.
    """
    reading.check_count("override_num_blocks", override_num_blocks, 1)
    if isinstance(dataset, Mapping):
        raise TypeError(
            f"from_huggingface() takes one split, but received a dict of splits: {sorted(dataset)}. Write ds['train']."
        )
    if hasattr(dataset, "with_format") and hasattr(dataset, "__len__"):
        table = dataset.with_format("arrow")[:]
        return from_arrow(table, override_num_blocks=override_num_blocks)
    if hasattr(dataset, "with_format"):
        return _plan([programs.GeneratorRead(functools.partial(_loop_items, dataset), "the dataset", True)])
    raise TypeError(f"from_huggingface() takes a Hugging Face dataset, but received {dataset!r:.80}.")


keywords.guard_functions(__name__)
