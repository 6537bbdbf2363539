"""Blocks of rows that other programs and libraries hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, final

from hocket.data import blocks

ROWS_AT_ONCE: Final = 4096
"""How many rows of a generator or a query make a block at most. A guess."""


@final
@dataclass(frozen=True)
class GeneratorRead:
    """Rows or batches that a function yields.

    Args:
        function: Returns something to loop over.
        name: For messages.
    """

    function: Callable[[], Iterable[object]]
    name: str

    num_rows: None = None
    num_bytes: None = None

    def iter_blocks(self) -> Iterator[blocks.Block]:
        """Give the rows, in blocks."""
        what = f"What {self.name} yields"
        items = iter(self.function())
        for first in items:
            if _is_row(first):
                rows = [first, *itertools.islice(items, ROWS_AT_ONCE - 1)]
                yield blocks.build_from_rows(rows, what)
            else:
                yield blocks.build_from_batch(first, what)

    def __call__(self) -> blocks.Block:
        return blocks.join(list(self.iter_blocks()) or [blocks.Block({}, 0)])


def _is_row(item: object) -> bool:
    """Return whether something is a row: a dict of which a value is no column."""
    return isinstance(item, dict) and any(
        isinstance(value, str | bytes | None | int | float) or not hasattr(value, "__len__") for value in item.values()
    )


@final
@dataclass(frozen=True)
class QueryRead:
    """The rows of a query of a database.

    Args:
        sql: The query.
        connect: Returns a connection, as Python's interface of databases has it (PEP 249).
    """

    sql: str
    connect: Callable[[], Any]
    parameters: Any = None

    num_rows: None = None
    num_bytes: None = None

    def iter_blocks(self) -> Iterator[blocks.Block]:
        """Give the rows, in blocks."""
        connection = self.connect()
        try:
            cursor = connection.cursor()
            cursor.execute(self.sql, *(() if self.parameters is None else (self.parameters,)))
            names = [one[0] for one in cursor.description or ()]
            while rows := cursor.fetchmany(ROWS_AT_ONCE):
                columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
                yield blocks.build(columns, "read_sql()")
        finally:
            connection.close()

    def __call__(self) -> blocks.Block:
        return blocks.join(list(self.iter_blocks()) or [blocks.Block({}, 0)])


@final
@dataclass(frozen=True)
class ItemsRead:
    """Some items of something that is indexed, such as a dataset of PyTorch's.

    Args:
        source: What is indexed.
        start: The first.
        stop: The one after the last.
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
