"""Looks at a dataset: its size, its first rows, all its rows, and a report of its execution."""

from __future__ import annotations

from typing import Any

from hocket.data import block_reads, blocks, plan, reading
from hocket.data.arrow import frames
from hocket.data.methods import batches
from hocket.data.methods.contract import Planned


def count(self: Planned) -> int:
    """Return the number of rows. The plan is executed only if the number is unknown."""
    known = self._plan.get_optional_count()
    return sum(found.num_rows for found in self._stream()) if known is None else known


def show(self: Planned, limit: int = 20) -> None:
    """Print the first rows."""
    for row in take(self, limit):
        print(row)


def explain(self: Planned) -> str:
    """Print and return the operations in their order, and whether they are known to give the same rows each time.

    Training that goes on after a failure, and a block that is made again, rely on that. All of a dataset's own
    operations make the same rows each time, with the seeds that are shown. A user's function is unknown: if it draws
    random numbers, it should seed them by the contents of the row.

    Example:
        >>> from hocket import data
        >>> text = data.range(10).map_batches(max).random_shuffle(seed=3).explain()
        1. read 1 blocks
        2. map_batches(max)
        3. shuffle(seed=3)
        The same rows in the same order each time, if these return the same for the same rows: map_batches(max).
    """
    names = [plan.describe(op) for op in self._plan.ops]
    lines = [f"{number}. {line}" for number, line in enumerate([f"read {len(self._plan.reads)} blocks", *names], 1)]
    unknown = [name for name, op in zip(names, self._plan.ops, strict=True) if not plan.is_exact(op)]
    said = f", if these return the same for the same rows: {', '.join(unknown)}" if unknown else ""
    text = "\n".join([*lines, f"The same rows in the same order each time{said}."])
    print(text)
    return text


def stats(self: Planned) -> str:
    """Return a table of the last execution's stages.

    For each stage it has the number of blocks, rows and bytes, how long the next stage waited for this one, and how
    long this stage was held up because its next block was not requested.

    Example:
        >>> from hocket import data
        >>> rows = data.range(1000).map_batches(lambda batch: batch)
        >>> total = sum(len(batch["id"]) for batch in rows.iter_batches())
        >>> print(rows.stats().splitlines()[1].split()[:5])
        ['read', '->', 'map_batches(<lambda>)', '1', '1,000']
    """
    return self._record.describe()


def num_blocks(self: Planned) -> int:
    """Return the number of blocks. The plan is executed only if the number is unknown.

    For files and sources whose tasks read several blocks each, it is the number of tasks.

    Example:
        >>> from hocket import data
        >>> data.range(10).repartition(3).num_blocks()
        3
    """
    known = self._plan.get_optional_sizes()
    return sum(1 for _ in self._stream()) if known is None else len(known)


def schema(self: Planned, fetch_if_missing: bool = True) -> blocks.Schema | None:
    """Return the names and types of the columns in the first block with rows; None if no block has columns.

    Args:
        fetch_if_missing: Whether to make a block if the columns are not known yet; if not, the result is None.
    """
    if not fetch_if_missing and (
        self._plan.ops or not all(isinstance(one, block_reads.Held) for one in self._plan.reads)
    ):
        return None
    block = self._peek()
    return block.read_schema() if block.columns else None


def columns(self: Planned, fetch_if_missing: bool = True) -> list[str] | None:
    """Return the names of the columns. See `schema`."""
    found = schema(self, fetch_if_missing)
    return None if found is None else found.names


def take(self: Planned, limit: int = 20) -> list[blocks.Row]:
    """Return the first rows.

    Raises:
        ValueError: `limit` is negative.
    """
    reading.check_count("limit", limit, 0, "take_all()")
    rows: list[blocks.Row] = []
    for block in self._stream_first(limit) if limit else ():
        rows += block.cut(0, limit - len(rows)).list_rows()
        if len(rows) >= limit:
            break
    return rows


def take_all(self: Planned, limit: int | None = None) -> list[blocks.Row]:
    """Return all rows.

    Args:
        limit: The largest allowed number of rows.

    Raises:
        ValueError: There are more rows.
    """
    reading.check_count("limit", limit, 0)
    if limit is None:
        return list(batches.iter_rows(self))
    rows = take(self, limit + 1)
    if len(rows) > limit:
        raise ValueError(
            f"take_all(limit={limit}) was called, but the data set has more than {limit} rows. Use take({limit}), "
            "or a larger limit."
        )
    return rows


def take_batch(self: Planned, batch_size: int = 20, *, batch_format: str | None = "default") -> blocks.Batch:
    """Return the first rows as a batch. See `iter_batches`.

    Raises:
        ValueError: There are no rows.
    """
    for batch in batches.iter_batches(self, batch_size=batch_size, batch_format=batch_format, prefetch_batches=0):
        return batch
    raise ValueError(
        "take_batch() was called, but the data set has no rows. Check with count() how many rows filter() or the "
        "files leave."
    )


def to_pandas(self: Planned, limit: int | None = None) -> Any:
    """Return all rows as a data frame.

    Args:
        limit: The largest allowed number of rows.

    Raises:
        ValueError: There are more rows.
        MissingExtraError: pandas is not installed.
    """
    reading.check_count("limit", limit, 0)
    if limit is not None and count(self) > limit:
        raise ValueError(
            f"to_pandas(limit={limit}) was called, but the data set has {count(self)} rows. Use a larger limit, "
            f"or take_batch({limit})."
        )
    frames.load("to_pandas()", "use to_arrow(), or take_batch() for arrays")
    found = list(self._stream_blocks())
    return blocks.join(found or [blocks.Block({}, 0)]).to_batch("pandas")


def to_arrow(self: Planned) -> Any:
    """Return all rows as an Arrow table.

    Raises:
        ValueError: A column holds objects without an Arrow type.
        MissingExtraError: pyarrow is not installed.
    """
    found = list(self._stream_blocks())
    return blocks.join(found or [blocks.Block({}, 0)]).to_batch("pyarrow")


def input_files(self: Planned) -> list[str]:
    """Return the files that are read, each once, in order. Files of datasets that are joined to this one count too."""
    reads = list(self._plan.list_reads())
    files = [file for read in reads for file in getattr(read, "files", ())]
    files += [read.file for read in reads if hasattr(read, "file")]
    return list(dict.fromkeys(file.path for file in files))


def size_bytes(self: Planned) -> int:
    """Return the approximate size of the rows in bytes. The plan is executed, unless it has no steps."""
    sizes = [read.num_bytes for read in self._plan.reads]
    if not self._plan.ops and None not in sizes:
        return sum(size or 0 for size in sizes)
    return sum(found.num_bytes for found in self._stream())
