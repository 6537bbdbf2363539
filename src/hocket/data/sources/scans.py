"""Tables that the table engine (DuckDB) reads from files itself, so that their rows pass through no block before it.

A `Scan` expresses the beginning of a plan, up to a relation, in SQL: the files, the columns and the conditions. It
starts with reads that know their file and their rows in it (`ScanRead`), and grows with each step that has an
equivalent in SQL (`plan.Step.extend`). A step whose result could differ there for a missing value, NaN or the last bit
has none. Then blocks are made as for any other plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, final, runtime_checkable

from hocket.data import arrow, blocks
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
"""Floats represent all whole numbers up to this one exactly."""


@runtime_checkable
class ScanRead(Protocol):
    """A read of rows of a file."""

    num_bytes: int | None
    """Size of the block, if known."""

    def __call__(self) -> blocks.Block:
        """Return the rows in a block."""

    def locate_rows(self) -> file_rows.FileRows | None:
        """Return the file and its rows; None if the table engine cannot read exactly these."""


class ScanStep(Protocol):
    """A step that can be a part of a scan."""

    def take(self, block: blocks.Block, number: int) -> blocks.Block:
        """Return the step's result for a block."""


@final
@dataclass(frozen=True, kw_only=True)
class Scan:
    """A table of rows of files."""

    reads: tuple[ScanRead, ...]
    files: tuple[file_rows.FileRows, ...]
    types: Mapping[str, Any]
    """The columns, and their types."""
    conditions: tuple[str, ...] = ()
    """Conditions in SQL that each row meets."""
    steps: tuple[ScanStep, ...] = ()
    """The steps that make the same rows from the blocks of the reads."""

    @property
    def num_rows(self) -> int:
        """Number of rows of the reads, before the conditions."""
        return sum(file.stop - file.start for file in self.files)

    def select(self, names: Sequence[str]) -> Scan | None:
        """Return a scan of some of the columns, in this order; None if one is missing or occurs twice."""
        if not names or not set(names) <= set(self.types) or len(set(names)) < len(names):
            return None
        return dataclasses.replace(self, types={name: self.types[name] for name in names})

    def filter(self, expression: object) -> Scan | None:
        """Return a scan of the rows that meet a condition; None if SQL has no equivalent."""
        condition = _write_condition(expression, self.types) if isinstance(expression, tree.Expr) else None
        return None if condition is None else dataclasses.replace(self, conditions=(*self.conditions, condition))

    def then(self, step: ScanStep) -> Scan:
        """Return the same scan, with a step that makes its rows from blocks."""
        return dataclasses.replace(self, steps=(*self.steps, step))

    def build(self) -> str:
        """Return the query. It names columns by their position (`c0`), and numbers the rows (`n`)."""
        columns = {
            f"c{at}": f"CAST({_quote(name)} AS {file_rows.SQL_TYPES[str(kind)]})"
            for at, (name, kind) in enumerate(self.types.items())
        }
        queries = []
        before = 0
        for file in self.files:
            queries.append(file.build(columns, self.conditions, before))
            before += file.stop - file.start
        return " UNION ALL ".join(queries)

    def is_unchanged(self) -> bool:
        """Return whether the files still have the columns and the number of rows that the plan was made for."""
        return all(file.is_unchanged() for file in self.files)

    def read(self) -> Iterator[blocks.Block]:
        """Yield the same rows in blocks, read by Arrow."""
        for number, read in enumerate(self.reads):
            block = read()
            for step in self.steps:
                block = step.take(block, number)
            yield block


def open_scan(reads: Sequence[object]) -> Scan | None:
    """Return the scan of some reads; None if the table engine cannot read all of them alike."""
    found: list[ScanRead] = []
    files: list[file_rows.FileRows] = []
    for read in reads:
        if not isinstance(read, ScanRead):
            return None
        rows = read.locate_rows()
        if rows is None or not rows.is_readable() or (files and rows.types != files[0].types):
            return None
        found.append(read)
        files.append(rows)
    return Scan(reads=tuple(found), files=tuple(files), types=files[0].types) if files else None


def _quote(name: str) -> str:
    """Return a name in SQL."""
    return '"' + name.replace('"', '""') + '"'


# --- conditions -------------------------------------------------------------------------------------------------------


def _write_condition(expression: tree.Expr, types: Mapping[str, Any]) -> str | None:
    """Return a condition in SQL; None if it could hold for other rows there."""
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
    column = _quote(name)
    condition = f"{column} {_COMPARISONS[expression.function]} {literal}"
    if expression.function in ("greater", "greater_equal") and arrow.load("A relation").types.is_floating(types[name]):
        return f"({condition} AND NOT isnan({column}))"  # DuckDB orders NaN above all numbers
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
