"""Conversions of datasets into references to tables, frames and arrays, and into summaries."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, final

from hocket.data import aggregate as aggregates
from hocket.data import arrow, blocks, columns
from hocket.data.arrow import frames
from hocket.data.execution import references
from hocket.data.methods import looking, tables, writers
from hocket.data.methods.contract import Planned
from hocket.data.spark import sending
from hocket.engine import contract


@final
@dataclass(frozen=True)
class DatasetSummary:
    """Numbers that summarise the columns of a dataset. Made by `Dataset.summary`.

    Args:
        dataset_schema: Names and types of all columns of the dataset.
        columns: The columns of the summary.
        statistics: The numbers of each column, by their names.
    """

    dataset_schema: blocks.Schema | None
    columns: list[str]
    _: KW_ONLY
    statistics: Mapping[str, Mapping[str, Any]]

    def to_pandas(self) -> Any:
        """Return the numbers as a data frame: a row for each number, with its name in the column ``statistic``.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        names = sorted({name for found in self.statistics.values() for name in found})
        data = {column: [self.statistics[column].get(name) for name in names] for column in self.columns}
        return frames.load("summary().to_pandas()").DataFrame({"statistic": names, **data}, dtype=object)

    def get_column_stats(self, column: str) -> Any:
        """Return the numbers of a column as a data frame with the columns ``statistic`` and ``value``.

        Raises:
            KeyError: The summary does not have the column.
        """
        blocks.check_columns([column], self.columns)
        found = dict(sorted(self.statistics[column].items()))
        pandas = frames.load("summary().get_column_stats()")
        return pandas.DataFrame({"statistic": list(found), "value": list(found.values())}, dtype=object)


def to_arrow_refs(self: Planned) -> list[contract.ObjectRef[Any]]:
    """Execute the plan, and return references to Arrow tables, one for each block.

    Example:
        >>> import hocket
        >>> from hocket import data
        >>> [hocket.get(ref).num_rows for ref in data.range(10, override_num_blocks=2).to_arrow_refs()]
        [5, 5]
    """
    arrow.load("to_arrow_refs()")
    return references.convert(self._store(), "pyarrow")


def to_pandas_refs(self: Planned) -> list[contract.ObjectRef[Any]]:
    """Execute the plan, and return references to data frames, one for each block."""
    frames.load("to_pandas_refs()")
    return references.convert(self._store(), "pandas")


def to_numpy_refs(self: Planned, *, column: str | None = None) -> list[contract.ObjectRef[Any]]:
    """Execute the plan, and return references to dicts of arrays, or to arrays of one column, one for each block."""
    return references.convert(self._store(), "numpy", column)


def to_spark(self: Planned, spark: object, *, path: str | os.PathLike[str] | None = None) -> Any:
    """Execute the plan, write Parquet files, and return a Spark DataFrame that reads them.

    The DataFrame has as many rows, in no order. Texts, numbers, times, decimals, lists, structs and missing values keep
    their types. Only unsigned numbers and halves get the next larger type of Spark's.

    Args:
        spark: The ``SparkSession``.
        path: A folder, empty or new, that Spark's machines and this one can reach: ``s3a://bucket/rows``. Default, if
            Spark runs on this machine alone: a temporary folder, which is removed when this process ends.

    Raises:
        TypeError: `spark` is not a session of Spark's, or Spark cannot read a column's type.
        ValueError: A time has nanoseconds; or Spark runs on other machines, and no path is given.
        FileExistsError: The folder has files.
        MissingExtraError: PySpark is not installed.
    """
    with sending.open_target(spark, path) as folder:
        place = folder.place
        how = {"filesystem": place.filesystem, "mode": "error"}
        writers.write_files(self, sending.CALLER, place.path, sending.SparkParquet(), how)
        return sending.build_frame(spark, folder)


def summary(self: Planned, columns: Sequence[str] | None = None) -> DatasetSummary:
    """Execute the plan, and return numbers that summarise columns.

    For each column these are ``count`` and ``missing_pct``. A column of numbers also has ``mean``, ``std``, ``min``,
    ``max``, ``zero_pct`` and the median, as ``approx_quantile[0]``. Another column has its ten most frequent values, as
    ``approx_topk[0]`` and so on.

    Args:
        columns: The columns. Default: all that hold numbers, texts, times, True or False.

    Raises:
        KeyError: A column does not exist.

    Example:
        >>> from hocket import data
        >>> data.range(5).summary().statistics["id"]["mean"]
        2.0
    """
    whole = self._build(self._store())
    schema = looking.schema(whole)
    types = {} if schema is None else dict(zip(schema.names, schema.types, strict=True))
    blocks.check_columns(columns or (), list(types))
    names = [name for name, kind in types.items() if _can_be_summed_up(kind)] if columns is None else list(columns)
    aggs = [one for name in names for one in _list_aggregates(name, types[name])]
    found = tables.aggregate(whole, *aggs) if aggs else {}
    statistics: dict[str, dict[str, Any]] = {name: {} for name in names}
    for name in names:
        for one in _list_aggregates(name, types[name]):
            statistics[name].update(_name_values(one, found[one.name]))
    return DatasetSummary(columns=names, dataset_schema=schema, statistics=statistics)


def _can_be_summed_up(kind: str) -> bool:
    return not kind.endswith("]") and not kind.startswith(("list", "struct", "large_list", "map", "object"))


def _list_aggregates(name: str, kind: str) -> list[tables.Aggregate]:
    found: list[tables.Aggregate] = [
        aggregates.Count(name, ignore_nulls=False),
        aggregates.MissingValuePercentage(name),
    ]
    if not columns.is_number(kind):
        return [*found, aggregates.ApproximateTopK(name, k=10)]
    kinds = (aggregates.Mean, aggregates.Min, aggregates.Max, aggregates.Std, aggregates.ZeroPercentage)
    return [*found, *(one(name) for one in kinds), aggregates.ApproximateQuantile(name, [0.5])]


def _name_values(one: tables.Aggregate, value: Any) -> dict[str, Any]:
    word = one.name.partition("(")[0]
    if not isinstance(one, aggregates.ApproximateTopK | aggregates.ApproximateQuantile):
        return {word: value}
    return {f"{word}[{at}]": part for at, part in enumerate(value or ())}
