"""Looking at a data set: how much there is of what, its first rows, all of them at once, and what execution did."""

from __future__ import annotations

from typing import Any

from hocket.data import block_reads, blocks, plan, reading
from hocket.data.arrow import frames
from hocket.data.methods import batches
from hocket.data.methods.contract import Planned


def count(self: Planned) -> int:
    """Return how many rows there are. The plan is executed if that cannot be known without."""
    known = self._plan.get_optional_count()
    return sum(found.num_rows for found in self._stream()) if known is None else known


def show(self: Planned, limit: int = 20) -> None:
    """Print the first rows."""
    for row in take(self, limit):
        print(row)


def explain(self: Planned) -> str:
    """Print and return what will be done, in which order, and whether it is known to give the same rows each time.

    Training that goes on after a failure, and a block that is made again, count on that. All that data sets do
    themselves is the same each time, with the seeds that are shown. Of the program's own functions nobody knows:
    one that draws random numbers should seed them by what is in the row.

    Example:
        >>> from hocket import data
        >>> text = data.range(10).map_batches(max).random_shuffle(seed=3).explain()
        1. read 1 blocks
        2. map_batches(max)
        3. shuffle(seed=3)
        The same rows in the same order each time, if this gives the same for the same rows: map_batches(max).
    """
    names = [plan.describe(op) for op in self._plan.ops]
    lines = [f"{number}. {line}" for number, line in enumerate([f"read {len(self._plan.reads)} blocks", *names], 1)]
    unknown = [name for name, op in zip(names, self._plan.ops, strict=True) if not plan.is_exact(op)]
    said = f", if this gives the same for the same rows: {', '.join(unknown)}" if unknown else ""
    text = "\n".join([*lines, f"The same rows in the same order each time{said}."])
    print(text)
    return text


def stats(self: Planned) -> str:
    """Return a table of what the last execution did.

    Of each stage: how many blocks, rows and bytes it gave, how long what follows waited for it, and how long it was
    held up because nobody asked for its next block.

    Example:
        >>> from hocket import data
        >>> rows = data.range(1000).map_batches(lambda batch: batch)
        >>> total = sum(len(batch["id"]) for batch in rows.iter_batches())
        >>> print(rows.stats().splitlines()[1].split()[:5])
        ['read', '->', 'map_batches(<lambda>)', '1', '1,000']
    """
    return self._record.describe()


def num_blocks(self: Planned) -> int:
    """Return how many blocks there are. The plan is executed if that cannot be known without.

    Of files and sources of which a task reads several blocks, it is how many tasks read.

    Example:
        >>> from hocket import data
        >>> data.range(10).repartition(3).num_blocks()
        3
    """
    known = self._plan.get_optional_sizes()
    return sum(1 for _ in self._stream()) if known is None else len(known)


def schema(self: Planned, fetch_if_missing: bool = True) -> blocks.Schema | None:
    """Return the names and types of the columns, as the first block with rows has them; None if no block has any.

    Args:
        fetch_if_missing: Whether a block is made to see, where nothing is known; if not, it is None then.
    """
    if not fetch_if_missing and (
        self._plan.ops or not all(isinstance(one, block_reads.Held) for one in self._plan.reads)
    ):
        return None
    block = self._peek()
    return block.read_schema() if block.columns else None


def columns(self: Planned, fetch_if_missing: bool = True) -> list[str] | None:
    """Return the names of the columns; see `schema`."""
    found = schema(self, fetch_if_missing)
    return None if found is None else found.names


def take(self: Planned, limit: int = 20) -> list[blocks.Row]:
    """Return the first rows.

    Raises:
        ValueError: The number is negative.
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
        limit: The most that there may be.

    Raises:
        ValueError: There are more.
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
    """Return the first rows as a batch; see `iter_batches`.

    Raises:
        ValueError: There are no rows.
    """
    for batch in batches.iter_batches(self, batch_size=batch_size, batch_format=batch_format, prefetch_batches=0):
        return batch
    raise ValueError(
        "take_batch() was called, but the data set has no rows. Look at what filter() or the files leave with count()."
    )


def to_pandas(self: Planned, limit: int | None = None) -> Any:
    """Return all rows as a data frame.

    Args:
        limit: The most rows that there may be.

    Raises:
        ValueError: There are more.
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
        ValueError: A column holds objects that Arrow has no type for.
        MissingExtraError: pyarrow is not installed.
    """
    found = list(self._stream_blocks())
    return blocks.join(found or [blocks.Block({}, 0)]).to_batch("pyarrow")


def input_files(self: Planned) -> list[str]:
    """Return the files that are read, each once, in their order; also those of data sets that are joined to it."""
    reads = list(self._plan.list_reads())
    files = [file for read in reads for file in getattr(read, "files", ())]
    files += [read.file for read in reads if hasattr(read, "file")]
    return list(dict.fromkeys(file.path for file in files))


def size_bytes(self: Planned) -> int:
    """Return about how many bytes the rows take. The plan is executed, unless it has no steps."""
    sizes = [read.num_bytes for read in self._plan.reads]
    if not self._plan.ops and None not in sizes:
        return sum(size or 0 for size in sizes)
    return sum(found.num_bytes for found in self._stream())
