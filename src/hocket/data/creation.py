"""Where datasets come from: values that the program has, and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hocket.data import arrow, blocks, dataset, files, frames, plan, reading, settings


def _build(block: blocks.Block, num_blocks: int | None) -> dataset.Dataset:
    reading.check_count("override_num_blocks", num_blocks, 1)
    return dataset.Dataset(plan.cut_block(block, settings.DataContext.get_current().target_max_block_size, num_blocks))


def _build_joined(
    given: object, is_one: Callable[[object], bool], words: tuple[str, str, str], num_blocks: int | None
) -> dataset.Dataset:
    """Return a data set of a table, or a list of them. The words are the caller, what it takes, and what to write."""
    caller, kind, remedy = words
    parts = given if isinstance(given, list | tuple) else [given]
    for part in parts:
        if not is_one(part):
            raise TypeError(
                f"{caller} takes {kind} or a list of them, but received a {type(part).__name__}: {part!r:.80}. Write "
                f"{remedy}."
            )
    return _build(blocks.join([blocks.build_from_batch(part, caller) for part in parts]), num_blocks)


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
            f"from_items() takes a list of rows, but received a {type(items).__name__}: {items!r:.80}. Write "
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
        given = np.concatenate(given)
    columns = dict(given) if isinstance(given, Mapping) else {"data": given}
    for name, array in columns.items():
        if not isinstance(array, np.ndarray):
            raise TypeError(
                f"from_numpy() takes arrays, but received for {name!r} a {type(array).__name__}: {array!r:.80}. Write "
                "from_numpy(np.array(...))."
            )
    return _build(blocks.build(columns, "from_numpy()"), override_num_blocks)


def from_pandas(dfs: object, *, override_num_blocks: int | None = None) -> dataset.Dataset:
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
    return _build_joined(tables, lambda table: isinstance(table, pa.Table), words, override_num_blocks)


def range(n: int, *, override_num_blocks: int | None = None) -> dataset.Dataset:  # noqa: A001 (Ray's name)
    """Return a data set of the numbers from 0 to ``n - 1``, in a column named ``id``.

    Raises:
        ValueError: `n` is no whole number, or negative.

    Example:
        >>> from hocket import data
        >>> data.range(3).take_all()
        [{'id': 0}, {'id': 1}, {'id': 2}]
    """
    reading.check_count("n", n, 0, "range(1000)")
    reading.check_count("override_num_blocks", override_num_blocks, 1)
    most = settings.DataContext.get_current().target_max_block_size
    count = override_num_blocks or max(1, -(-8 * n // most), min(8, n >> 12))
    if count == 1:
        return dataset.Dataset([plan.Held(plan.RangeRead(0, n)())])
    return dataset.Dataset([plan.RangeRead(start, stop) for start, stop in plan.cut_evenly(n, count)])


def read_parquet(paths: str | Sequence[str], *, columns: Sequence[str] | None = None) -> dataset.Dataset:
    """Return a data set of Parquet files. Their footers are read now; the rows when they are asked for.

    Args:
        paths: Files, or folders, of which all files are taken whose names end in ``.parquet``, in the order of the
            names.
        columns: Which columns are read. Default: all.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A file is no Parquet file. It is named.
        KeyError: A file has no such column.
        MissingExtraError: pyarrow is not installed.

    Example:
        >>> import os, tempfile
        >>> import pyarrow as pa, pyarrow.parquet as pq
        >>> from hocket import data
        >>> path = os.path.join(tempfile.mkdtemp(), "rows.parquet")
        >>> pq.write_table(pa.table({"x": [1, 2, 3]}), path)
        >>> data.read_parquet(path).count()
        3
    """
    return dataset.Dataset(files.plan_parquet(paths, columns))


def read_csv(paths: str | Sequence[str], **arrow_csv_args: object) -> dataset.Dataset:
    """Return a data set of CSV files with a line of names at the top. Each file is one block.

    Args:
        paths: Files, or folders, of which all files are taken whose names end in ``.csv``, in the order of the names.
        **arrow_csv_args: For ``pyarrow.csv.read_csv``: ``read_options``, ``parse_options``, ``convert_options``.

    Raises:
        FileNotFoundError: There is no such file.
        MissingExtraError: pyarrow is not installed.

    Example:
        >>> import hocket, pathlib, tempfile
        >>> from hocket import data
        >>> context = hocket.init(num_cpus=2, engine="inprocess")
        >>> path = pathlib.Path(tempfile.mkdtemp(), "rows.csv")
        >>> _ = path.write_text("x,y\\n1,one\\n2,two\\n")
        >>> data.read_csv(str(path)).take(1)
        [{'x': 1, 'y': 'one'}]
        >>> hocket.shutdown()
    """
    return dataset.Dataset(files.plan_text("read_csv", paths, ("csv", "read_csv"), (".csv",), arrow_csv_args))


def read_json(paths: str | Sequence[str], **arrow_json_args: object) -> dataset.Dataset:
    """Return a data set of files with a JSON object in each line. Each file is one block.

    Args:
        paths: Files, or folders, of which all files are taken whose names end in ``.json`` or ``.jsonl``, in the order
            of the names.
        **arrow_json_args: For ``pyarrow.json.read_json``: ``read_options``, ``parse_options``.

    Raises:
        FileNotFoundError: There is no such file.
        MissingExtraError: pyarrow is not installed.
    """
    return dataset.Dataset(
        files.plan_text("read_json", paths, ("json", "read_json"), (".json", ".jsonl"), arrow_json_args)
    )
