"""Rows of Parquet files that the table engine (DuckDB) reads itself: see `hocket.data.sources.scans`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from hocket.data import arrow

NUMBER: Final = "file_row_number"
"""DuckDB's name for the number of a row in its file."""

SQL_TYPES: Final = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "uint8": "UTINYINT",
    "uint16": "USMALLINT",
    "uint32": "UINTEGER",
    "uint64": "UBIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "large_string": "VARCHAR",
}
"""Arrow's types, by name, that DuckDB reads to the same values, with its names for them."""


@final
@dataclass(frozen=True, kw_only=True)
class FileRows:
    """Rows of a Parquet file of this machine."""

    path: str
    start: int
    stop: int
    """The numbers, in the file, of the first row and after the last."""
    file_num_rows: int
    """Number of rows of the file."""
    all_types: Mapping[str, Any]
    """The file's columns and their Arrow types."""
    names: tuple[str, ...]
    """The columns to read."""

    @property
    def types(self) -> dict[str, Any]:
        """The columns to read and their types."""
        return {name: self.all_types[name] for name in self.names}

    def is_readable(self) -> bool:
        """Return whether DuckDB reads the same values as Arrow. It confuses `x` with `X`, takes some characters of a
        path for a pattern, and has fewer types."""
        folded = [name.casefold() for name in self.all_types]
        return (
            bool(self.names)
            and not set("*?[{") & set(self.path)
            and len(set(folded)) == len(folded)
            and NUMBER not in folded
            and all(str(kind) in SQL_TYPES for kind in self.types.values())
        )

    def is_unchanged(self) -> bool:
        """Return whether the file still has these columns and this number of rows."""
        try:
            footer = arrow.load("A relation", "pyarrow.parquet").read_metadata(self.path)
            schema = footer.schema.to_arrow_schema()
        except (OSError, ValueError):  # the read raises a better error
            return False
        found = dict(zip(schema.names, schema.types, strict=True))
        return footer.num_rows == self.file_num_rows and found == self.all_types

    def build(self, columns: Mapping[str, str], conditions: Sequence[str], before: int) -> str:
        """Return the query of these rows.

        Args:
            columns: Their expressions, by name in the query.
            conditions: The conditions that a row must meet.
            before: Number of rows of the files before this one.
        """
        where = list(conditions)
        if self.start or self.stop < self.file_num_rows:
            where.append(f"{NUMBER} >= {self.start} AND {NUMBER} < {self.stop}")
        shown = [f"{value} AS {name}" for name, value in columns.items()]
        kind = "UINTEGER" if before + self.stop - self.start <= 1 << 32 else "BIGINT"  # DuckDB sorts short keys faster
        number = f"CAST({NUMBER} + {before - self.start} AS {kind}) AS n"
        path = self.path.replace("'", "''")
        options = f"{NUMBER} = true, hive_partitioning = false"
        query = f"SELECT {', '.join([*shown, number])} FROM read_parquet('{path}', {options})"
        return f"{query} WHERE {' AND '.join(where)}" if where else query
