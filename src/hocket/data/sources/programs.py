"""Blocks of rows from other programs and libraries."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from hocket.data import blocks

ROWS_AT_ONCE: Final = 4096
"""How many rows of a generator or a query a block has at most. A guess."""


@final
@dataclass(frozen=True)
class GeneratorRead:
    """Rows or batches from a user's generator.

    Args:
        function: Returns an iterable of rows or batches.
        name: The name of the function, for messages.
        gives_rows: Whether all items are rows: then a dict of arrays is a row, too, and not a batch.
    """

    function: Callable[[], Iterable[object]]
    name: str
    gives_rows: bool = False

    num_rows: None = None
    num_bytes: None = None

    def iter_blocks(self) -> Iterator[blocks.Block]:
        """Yield the rows, in blocks."""
        what = f"An item of {self.name}"
        items = iter(self.function())
        for first in items:
            if self.gives_rows or _is_row(first):
                rows = [first, *itertools.islice(items, ROWS_AT_ONCE - 1)]
                yield blocks.build_from_rows(rows, what)
            else:
                yield blocks.build_from_batch(first, what)

    def __call__(self) -> blocks.Block:
        return blocks.join(list(self.iter_blocks()) or [blocks.Block({}, 0)])


def _is_row(item: object) -> bool:
    """Return whether an item is a row: a dict with a value that is no column."""
    return isinstance(item, dict) and any(
        isinstance(value, str | bytes | bytearray | Mapping | set | frozenset | None)
        or not hasattr(value, "__len__")
        or getattr(value, "ndim", 1) == 0  # an array or a tensor with a single value
        for value in item.values()
    )


@final
@dataclass(frozen=True)
class QueryRead:
    """The rows of a query of a database.

    Args:
        sql: The query.
        connect: Returns a connection, as defined by Python's database interface (PEP 249).
    """

    sql: str
    connect: Callable[[], Any]
    parameters: Any = None

    num_rows: None = None
    num_bytes: None = None

    def iter_blocks(self) -> Iterator[blocks.Block]:
        """Yield the rows, in blocks."""
        connection = self.connect()
        try:
            cursor = connection.cursor()
            cursor.execute(self.sql, *(() if self.parameters is None else (self.parameters,)))
            names = [one[0] for one in cursor.description or ()]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(
                    f"read_sql() received a query with more than one column {', '.join(map(repr, twice))}, but "
                    "columns must have different names. Write SELECT a.x AS a_x, b.x AS b_x."
                )
            is_empty = True
            while rows := cursor.fetchmany(ROWS_AT_ONCE):
                is_empty = False
                columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
                yield blocks.build(columns, "read_sql()")
            if is_empty and names:
                yield blocks.build({name: [] for name in names}, "read_sql()")
        finally:
            connection.close()

    def __call__(self) -> blocks.Block:
        return blocks.join(list(self.iter_blocks()) or [blocks.Block({}, 0)])


@final
@dataclass(frozen=True)
class ItemsRead:
    """A range of items from an indexed object, such as a PyTorch dataset.

    Args:
        source: The indexed object.
        start: The first index.
        stop: The index after the last.
    """

    source: Any
    start: int
    stop: int

    num_bytes: None = None

    @property
    def num_rows(self) -> int:
        return self.stop - self.start

    def __call__(self) -> blocks.Block:
        rows = [self.source[at] for at in range(self.start, self.stop)]
        made = [row if isinstance(row, dict) else {"item": row} for row in rows]
        return blocks.build_from_rows(made, "from_torch()")
