"""Files for Spark: a file for each block, and in the end all with the same columns and types."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, final

from hocket.data import arrow, blocks
from hocket.data.sources import writing
from hocket.data.spark import access, kinds
from hocket.stores import places

CALLER: Final = "to_spark()"

_PATTERN: Final = re.compile(r"[][{}*?\\]")
"""Characters that Spark reads as a pattern in paths."""


@final
@dataclass(frozen=True)
class SparkParquet:
    """Parquet as Spark reads it: times have microseconds, and finer times are an error."""

    ending: str = ".parquet"

    def write(self, stream: object, block: blocks.Block) -> None:
        write_table(fit_table(block.to_batch("pyarrow")), stream)


def fit_table(table: Any) -> object:
    """Return a table with types that Spark has."""
    pa = arrow.load(CALLER)
    for at, name in enumerate(table.column_names):
        if hasattr(table.column(at).type, "kind"):
            nested = arrow.nest(arrow.flatten(table.column(at)))
            if nested is None:
                raise TypeError(
                    f"{CALLER}: the column {name!r} has arrays with different numbers of axes. Give all of them "
                    "equally many axes."
                )
            table = table.set_column(at, name, nested)
    fields = [field.with_type(kinds.choose_for_spark(pa, field.type, field.name)) for field in table.schema]
    return _cast(table, pa.schema(fields))


def _cast(table: Any, schema: Any) -> object:
    """Return a table with the columns and types of a schema. Columns that only the schema has get missing values."""
    pa = arrow.load(CALLER)
    columns = [
        kinds.strip(table.column(field.name)).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def write_table(table: object, stream: object) -> None:
    """Write a table as Parquet, with times in microseconds."""
    pa, parquet = arrow.load(CALLER), arrow.load(CALLER, "pyarrow.parquet")
    try:
        parquet.write_table(table, stream, coerce_timestamps="us", allow_truncated_timestamps=False)
    except pa.ArrowInvalid as error:
        if "lose data" not in str(error):
            raise
        raise ValueError(
            f"a column holds times in nanoseconds, but Spark's times are in microseconds ({error}). Round them with "
            "map_batches() before this call"
        ) from error


@contextmanager
def open_target(spark: object, path: str | os.PathLike[str] | None) -> Iterator[access.Folder]:
    """Yield the folder to write into; see `access.open_folder`."""
    session = access.check_session(CALLER, spark)
    with access.open_folder(CALLER, session, path) as folder:
        access.check_empty(CALLER, folder.place)
        yield folder


def build_frame(spark: access.Session, folder: access.Folder) -> access.Frame:
    """Return a Spark data frame of the written files."""
    place = folder.place
    with place.filesystem.open_input_stream(f"{place.path}/{writing.MANIFEST}", compression=None) as stream:
        names = [one["path"] for one in writing.parse_manifest(stream.read(), CALLER, place.shown)]
    if not names or not _unify(place, names):
        return spark.createDataFrame([], access.load(CALLER, "pyspark.sql.types").StructType([]))
    return spark.read.parquet(_PATTERN.sub(r"\\\g<0>", folder.address))


def _unify(place: places.Place, names: Sequence[str]) -> bool:
    """Give all files the same columns, and return whether there are any. A block in which all values of a column are
    missing has no type for the column.
    """
    pa, parquet = arrow.load(CALLER), arrow.load(CALLER, "pyarrow.parquet")
    found = {
        name: parquet.read_schema(f"{place.path}/{name}", filesystem=place.filesystem).remove_metadata()
        for name in names
    }
    try:
        joined = pa.unify_schemas(list(found.values()))
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise TypeError(
            f"{CALLER}: a column has different types in different blocks, but Spark needs one type ({error}). Cast "
            "the column with map_batches() before this call."
        ) from error
    fields = [field.with_type(_fill(pa, field.type)).with_nullable(True) for field in joined]
    whole = pa.schema(fields)
    for name, schema in found.items():
        if not schema.equals(whole):
            table = parquet.read_table(f"{place.path}/{name}", filesystem=place.filesystem, partitioning=None)
            _replace(place, name, _cast(table, whole))
    return bool(fields)


def _fill(pa: Any, kind: Any) -> object:
    """Return the type of texts in place of the type of missing values, and any other type unchanged."""
    return pa.string() if pa.types.is_null(kind) else kind


def _replace(place: places.Place, name: str, table: Any) -> None:
    path = f"{place.path}/{name}"
    written = f"{place.path}/_{secrets.token_hex(4)}.tmp"
    with place.filesystem.open_output_stream(written, compression=None) as stream:
        write_table(table, stream)
    place.filesystem.move(written, path)
