"""Datasets of values that the program has."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from hocket import keywords
from hocket._base import texts
from hocket.data import arrow, block_reads, blocks, calls, columns, dataset, plan, reading, settings
from hocket.data.arrow import frames
from hocket.data.execution import references
from hocket.data.sources import custom, programs
from hocket.data.spark import receiving

MOST_ROWS: Final = 1 << 50
"""How many numbers `range` gives at most: their blocks have to be counted."""


def _plan(reads: Sequence[block_reads.Read]) -> dataset.Dataset:
    """Return a data set of what is read later, in functions that call something else ``dataset``."""
    return dataset.Dataset(reads)


def _build(block: blocks.Block, num_blocks: int | None) -> dataset.Dataset:
    reading.check_count("override_num_blocks", num_blocks, 1)
    return dataset.Dataset(
        block_reads.cut_block(block, settings.DataContext.get_current().get_block_bytes(), num_blocks)
    )


def _build_parts(parts: Sequence[blocks.Block], num_blocks: int | None) -> dataset.Dataset:
    """Return a data set of blocks: as one, which is cut; or, if their columns are of several types, each as it is."""
    kinds = [{name: columns.find_kind(column) for name, column in part.columns.items()} for part in parts]
    several = any(one.keys() == kinds[0].keys() and one != kinds[0] for one in kinds)
    if num_blocks is not None or not several or any(None in one.values() for one in kinds):
        return _build(blocks.join(parts), num_blocks)
    most = settings.DataContext.get_current().get_block_bytes()
    return dataset.Dataset([held for part in parts for held in block_reads.cut_block(part, most)])


def _build_joined(
    given: object, is_one: Callable[[object], bool], words: tuple[str, str, str], num_blocks: int | None
) -> dataset.Dataset:
    """Return a data set of a table, or a list of them. The words are the caller, what it takes, and what to write."""
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
    """Return a data set of rows that the program has.

    Args:
        items: Each a dict of values by column; or other values, which make a column named ``item``. Arrays of one shape
            become one array.
        override_num_blocks: Into how many blocks they are cut. Default: by their size.

    Raises:
        TypeError: It is no list, or some items are dicts and others are not.
        ValueError: Two rows have different columns.

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
    """Return a data set of arrays, whose first axis is the rows.

    The arrays are not copied: leave them as they are while the data set is in use.

    Args:
        ndarrays: One array, which makes a column named ``data``; a list of them, one behind the other; or a dict of
            columns, which Ray does not take.
        override_num_blocks: Into how many blocks they are cut. Default: by their size.

    Raises:
        TypeError: It is no array.
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
                f"from_numpy() takes arrays, but received for {name!r} {texts.name_kind(array)}: {array!r:.80}. Write "
                "from_numpy(np.array(...))."
            )
    return _build(blocks.build(found, "from_numpy()"), override_num_blocks)


def from_pandas(dfs: object, override_num_blocks: int | None = None) -> dataset.Dataset:
    """Return a data set of a pandas DataFrame, or a list of them. The index is left behind.

    Raises:
        TypeError: It is no DataFrame.
        ValueError: Two have different columns.
    """
    return _build_joined(
        dfs, frames.is_frame, ("from_pandas()", "a DataFrame", "from_pandas(pd.DataFrame(...))"), override_num_blocks
    )


def from_arrow(tables: object, *, override_num_blocks: int | None = None) -> dataset.Dataset:
    """Return a data set of an Arrow table, or a list of them.

    Raises:
        TypeError: It is no table.
        ValueError: Two have different columns.
    """
    pa = arrow.load("from_arrow()")
    words = ("from_arrow()", "an Arrow table", "from_arrow(pa.table(...))")
    return _build_joined(tables, lambda table: isinstance(table, pa.Table | pa.RecordBatch), words, override_num_blocks)


def from_blocks(blocks: Sequence[object]) -> dataset.Dataset:
    """Return a data set of Arrow tables, data frames, or dicts of arrays, each of which is a block.

    Raises:
        TypeError: One is none of these.
    """
    return dataset.Dataset(
        [block_reads.Held(_read_block(one)) for one in blocks] or [block_reads.Held(_read_block(None))]
    )


def _read_block(given: object) -> blocks.Block:
    return blocks.Block({}, 0) if given is None else blocks.build_from_batch(given, "A block of from_blocks()")


def from_arrow_refs(tables: object) -> dataset.Dataset:
    """Return a data set of references on Arrow tables; each is a block. See `Dataset.to_arrow_refs`.

    Raises:
        TypeError: One is no reference. An object that is no table raises when rows are read.
    """
    return dataset.Dataset(references.list_reads(tables, "from_arrow_refs()"))


def from_pandas_refs(dfs: object) -> dataset.Dataset:
    """Return a data set of references on data frames; see `from_arrow_refs`."""
    return dataset.Dataset(references.list_reads(dfs, "from_pandas_refs()"))


def from_numpy_refs(ndarrays: object) -> dataset.Dataset:
    """Return a data set of references on arrays, whose first axis is the rows, as the column ``data``; or on dicts of
    them. See `from_arrow_refs`."""
    return dataset.Dataset(references.list_reads(ndarrays, "from_numpy_refs()"))


def range(n: int, *, override_num_blocks: int | None = None) -> dataset.Dataset:
    """Return a data set of the numbers from 0 to ``n - 1``, in a column named ``id``.

    Raises:
        ValueError: `n` is no whole number, or negative.

    Example:
        >>> from hocket import data
        >>> data.range(3).take_all()
        [{'id': 0}, {'id': 1}, {'id': 2}]
    """
    reading.check_count("n", n, 0, "range(1000)")
    if n > MOST_ROWS:
        raise ValueError(f"n must be {MOST_ROWS} at most, but received {n}.")
    reading.check_count("override_num_blocks", override_num_blocks, 1)
    most = settings.DataContext.get_current().get_block_bytes()
    count = override_num_blocks or max(1, -(-8 * n // most), min(8, n >> 12))
    if count == 1:
        return dataset.Dataset([block_reads.Held(block_reads.RangeRead(0, n)())])
    return dataset.Dataset([block_reads.RangeRead(start, stop) for start, stop in block_reads.cut_evenly(n, count)])


def range_tensor(n: int, *, shape: tuple[int, ...] = (1,), override_num_blocks: int | None = None) -> dataset.Dataset:
    """Return a data set of whole numbers from 0, each in an array, as the column ``data``.

    Args:
        n: How many.
        shape: The shape of a row's array.
        override_num_blocks: Into how many blocks they are cut. Default: by their size.

    Raises:
        ValueError: `n` or a size of the shape is no whole number, or negative.

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
    step = functools.partial(_spread, tuple(shape))
    return found._then(plan.Step(apply=step, name="range_tensor", keeps_rows=True))


def _spread(shape: tuple[int, ...], block: blocks.Block) -> blocks.Block:
    numbers = block.columns["id"].reshape(-1, *(1 for _ in shape))
    return blocks.Block({"data": np.broadcast_to(numbers, (block.num_rows, *shape)).copy()}, block.num_rows)


def from_generators(generators: Sequence[Callable[[], Iterable[object]]]) -> dataset.Dataset:
    """Return a data set of what functions yield, one after the other. Each runs in a task of its own.

    Args:
        generators: Functions without arguments, such as ``functools.partial(read, "file")``. They yield rows, which are
            dicts of values, or batches.

    Raises:
        TypeError: One is no function.

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
    """Return a data set of a source that a user has written.

    Args:
        datasource: Its tasks are asked for now, and each is read when rows are asked for, in a task.
        parallelism: Ray's older word for `override_num_blocks`.
        override_num_blocks: How many tasks the source is asked for. Default: 8.
        ray_remote_args: For programs written for Ray: has no effect.
        concurrency: The same.
        compute: The same.

    Raises:
        TypeError: It is no source.

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
    """Return a data set of the rows of a query. A task sends it when rows are read.

    Args:
        sql: The query.
        connection_factory: Returns a connection, as Python's interface of databases has it (PEP 249).
        sql_params: Its parameters, in the database's own form.
        override_num_blocks: For programs written for Ray: has no effect. One task reads the query.
        **of_ray: Keywords of Ray's that say which tasks read it: they have no effect.

    Raises:
        TypeError: The factory is no function.

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
    """Return a data set of one of PyTorch's. Its items are made in tasks; those that are no dicts are the column
    ``item``.

    Args:
        dataset: Something with a length and items, or something to loop over.
        local_read: For programs written for Ray: has no effect.
        override_num_blocks: Into how many blocks it is cut.

    Raises:
        TypeError: It is neither.

    Example:
        >>> from hocket import data
        >>> data.from_torch([{"x": 1}, {"x": 2}]).take_all()
        [{'x': 1}, {'x': 2}]
    """
    reading.check_count("override_num_blocks", override_num_blocks, 1)
    loops = any(kind.__name__ == "IterableDataset" for kind in type(dataset).__mro__)  # of PyTorch: it has no items
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and not loops:
        count = override_num_blocks or max(1, min(8, len(dataset) >> 8))
        cuts = block_reads.cut_evenly(len(dataset), count)
        return _plan([programs.ItemsRead(dataset, start, stop) for start, stop in cuts])
    if not isinstance(dataset, Iterable):
        raise TypeError(f"from_torch() takes a dataset of PyTorch's, but received {dataset!r:.80}.")
    return _plan([programs.GeneratorRead(functools.partial(_loop_items, dataset), "the dataset", True)])


def _loop_items(source: Iterable[object]) -> Iterator[object]:
    for item in source:
        yield item if isinstance(item, dict) else {"item": item}


def from_spark(df: object, *, path: str | os.PathLike[str] | None = None) -> dataset.Dataset:
    """Have Spark write a data frame as Parquet files now, and return a data set that reads them.

    Its executors write, and only files of tasks that Spark has committed count: a task that is done again, or twice,
    gives its rows once. They must have as many rows as Spark has counted. Their digests are noted in the folder, and a
    file that is changed or gone later is named when it is read.

    Args:
        df: The ``DataFrame``.
        path: A folder, empty or not there, that Spark's machines and this one see: ``s3a://bucket/rows``. It stays;
            `hocket.spark.read` reads it again. Default, if Spark runs on this machine alone: one among its temporary
            files, removed when this process ends.

    Raises:
        TypeError: It is no data frame of Spark's, or a column is of a type that files do not keep, such as an interval.
        ValueError: No path is given, and Spark runs on other machines.
        FileExistsError: The folder has files.
        OSError: Not all that Spark has written is there: its machines see another folder.
        MissingExtraError: PySpark is not installed.
    """
    return dataset.Dataset(receiving.receive(df, path))


def from_tf(dataset: object) -> dataset.Dataset:
    """Return a data set of a ``tf.data.Dataset``, which is read here and now.

    Elements that are dicts become columns of these names, others the column ``item``, or ``item_0`` and so on.

    Raises:
        TypeError: It is none.
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
    """Return a data set of one of Hugging Face's.

    Args:
        dataset: A ``datasets.Dataset``, whose rows are read as Arrow has them, or an ``IterableDataset``, which is
            read in a task.
        override_num_blocks: Into how many blocks it is cut.

    Raises:
        TypeError: It is neither; of a ``DatasetDict``, choose a split.
    """
    reading.check_count("override_num_blocks", override_num_blocks, 1)
    if isinstance(dataset, Mapping):
        raise TypeError(f"from_huggingface() takes one split, but received {sorted(dataset)}. Write ds['train'].")
    if hasattr(dataset, "with_format") and hasattr(dataset, "__len__"):
        table = dataset.with_format("arrow")[:]
        return from_arrow(table, override_num_blocks=override_num_blocks)
    if hasattr(dataset, "with_format"):
        return _plan([programs.GeneratorRead(functools.partial(_loop_items, dataset), "the dataset", True)])
    raise TypeError(f"from_huggingface() takes a dataset of Hugging Face's, but received {dataset!r:.80}.")


keywords.guard_functions(__name__)
