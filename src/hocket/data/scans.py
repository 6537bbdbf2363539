"""Tables that the engine for tables (DuckDB) reads from files itself: the rows do not pass through blocks before it.

A `Scan` says in SQL what stands in a plan before a relation: the files, the columns, and conditions. It begins with
reads that know which rows of which file they give (`ScanRead`), and grows by steps that say how they change it
(`plan.Step.scan`). Whatever SQL might do otherwise, for a missing value, NaN or the last bit, ends it: then the blocks
are made as always.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, final, runtime_checkable

from hocket.data import arrow, block_reads, blocks
from hocket.data.expressions import tree
from hocket.data.sources import file_rows

_COMPARISONS: Final = {
    "equal": "=",
    "not_equal": "<>",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}

_MOST_EXACT: Final = 1 << 53
"""Whole numbers up to here are floats without loss."""


@runtime_checkable
class ScanRead(block_reads.Read, Protocol):
    """A read of rows of a file."""

    def find_rows(self) -> file_rows.FileRows | None:
        """Return which; None if the engine for tables could not read just these."""


class ScanStep(Protocol):
    """A step that may be a part of a scan."""

    def take(self, block: blocks.Block, number: int) -> blocks.Block:
        """Return what becomes of a block."""


@final
@dataclass(frozen=True, kw_only=True)
class Scan:
    """A table of rows of files."""

    reads: tuple[block_reads.Read, ...]
    files: tuple[file_rows.FileRows, ...]
    types: Mapping[str, Any]
    """The columns, and their types."""
    conditions: tuple[str, ...] = ()
    """What is true of each row, in SQL."""
    steps: tuple[ScanStep, ...] = ()
    """What makes the rows, of the blocks of the reads."""

    @property
    def num_rows(self) -> int:
        """How many rows the files have together."""
        return sum(file.stop - file.start for file in self.files)

    def select(self, names: Sequence[str]) -> Scan | None:
        """Return the same rows with fewer columns, or in another order."""
        if not names or not set(names) <= set(self.types) or len(set(names)) < len(names):
            return None
        return dataclasses.replace(self, types={name: self.types[name] for name in names})

    def filter(self, expression: object) -> Scan | None:
        """Return the rows of which a condition is true."""
        condition = _write_condition(expression, self.types) if isinstance(expression, tree.Expr) else None
        return None if condition is None else dataclasses.replace(self, conditions=(*self.conditions, condition))

    def then(self, step: ScanStep) -> Scan:
        """Return the same scan, which a step has made."""
        return dataclasses.replace(self, steps=(*self.steps, step))

    def build(self) -> str:
        """Return the query of the table: its columns are called by their place, and each row has its number."""
        columns = {
            f"c{at}": f"CAST({quote(name)} AS {file_rows.SQL_TYPES[str(kind)]})"
            for at, (name, kind) in enumerate(self.types.items())
        }
        queries = []
        before = 0
        for file in self.files:
            queries.append(file.build(columns, self.conditions, before))
            before += file.stop - file.start
        return " UNION ALL ".join(queries)

    def is_unchanged(self) -> bool:
        """Return whether the files have the columns and as many rows as they had when the plan was made."""
        return all(file.is_unchanged() for file in self.files)

    def read(self) -> Iterator[blocks.Block]:
        """Give the same rows in blocks, without the engine."""
        for number, read in enumerate(self.reads):
            block = read()
            for step in self.steps:
                block = step.take(block, number)
            yield block


def open_scan(reads: Sequence[block_reads.Read]) -> Scan | None:
    """Return the table of some reads; None if the engine cannot read it."""
    files: list[file_rows.FileRows] = []
    for read in reads:
        rows = read.find_rows() if isinstance(read, ScanRead) else None
        if rows is None or not rows.is_readable() or (files and rows.types != files[0].types):
            return None
        files.append(rows)
    return Scan(reads=tuple(reads), files=tuple(files), types=files[0].types) if files else None


def quote(name: str) -> str:
    """Return a name in SQL."""
    return '"' + name.replace('"', '""') + '"'


# --- conditions -------------------------------------------------------------------------------------------------------


def _write_condition(expression: tree.Expr, types: Mapping[str, Any]) -> str | None:
    """Return a condition in SQL; None if it could be true of other rows there."""
    if expression.function in ("and", "or"):
        sides = [_write_condition(one, types) for one in expression.inputs]
        return None if None in sides else f"({f' {expression.function.upper()} '.join(map(str, sides))})"
    if expression.function not in _COMPARISONS:
        return None
    left, right = expression.inputs
    if (left.function, right.function) != ("column", "literal"):
        return None
    name, value = left.settings["name"], right.settings["value"]
    literal = _write_literal(value, types[name]) if name in types else None
    if literal is None:
        return None
    column = quote(name)
    condition = f"{column} {_COMPARISONS[expression.function]} {literal}"
    if expression.function in ("greater", "greater_equal") and arrow.load("A relation").types.is_floating(types[name]):
        return f"({condition} AND NOT isnan({column}))"  # which the engine takes for greater than all numbers
    return condition


def _write_literal(value: object, kind: Any) -> str | None:
    types = arrow.load("A relation").types
    match value:
        case bool():
            return None
        case int() if types.is_signed_integer(kind) and -(1 << 63) <= value < 1 << 63:
            return str(value)
        case int() | float() if types.is_floating(kind) and abs(value) <= _MOST_EXACT:
            return f"CAST({value!r} AS DOUBLE)"
        case str() if (types.is_string(kind) or types.is_large_string(kind)) and "\0" not in value:
            return "'" + value.replace("'", "''") + "'"
        case _:
            return None
