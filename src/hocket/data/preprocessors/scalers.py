"""Scalers: numbers shifted and divided according to their column's numbers. The results are 64-bit floats."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from hocket.data import aggregate as aggregates
from hocket.data import blocks, dataset, reading
from hocket.data.preprocessors import base, inputs, single

_EPSILON = float(np.finfo(np.float64).eps)


class _Scaler(single.PerColumn):
    """``(x - offset) / scale``. Missing values are ignored, and stay missing."""

    _words: ClassVar[tuple[str, ...]]
    """Names of the results of learning: ``mean`` of column ``x`` is ``mean(x)``."""

    @abc.abstractmethod
    def _list_aggregates(self, column: str) -> Iterable[aggregates.Aggregation]:
        """Return the aggregates to learn from a column."""

    @abc.abstractmethod
    def _find_scale(self, column: str) -> tuple[float, float]:
        """Return the offset and the scale of a column that has numbers."""

    def _fit(self, ds: dataset.Dataset) -> base.Stats:
        asked = [one for column in self.columns for one in self._list_aggregates(column)]
        return aggregate(self, ds, self.columns, asked)

    def _compute(self, block: blocks.Block) -> Mapping[str, object]:
        made = {}
        for column, output in self._list_pairs():
            numbers = inputs.get_numbers(block, column, type(self).__name__)
            learnt = [self.stats_[f"{word}({column})"] for word in self._words]
            offset, scale = (np.nan, 1.0) if None in learnt else self._find_scale(column)
            made[output] = (numbers - offset) / scale
        return made


def aggregate(
    who: base.Preprocessor, ds: dataset.Dataset, columns: Sequence[str], asked: Iterable[aggregates.Aggregation]
) -> base.Stats:
    """Return aggregates of columns of numbers, by name; None if a column has no numbers.

    Raises:
        TypeError: A column holds other values.
        KeyError: A column does not exist.
        ValueError: There are no rows, or a number is infinite.
    """
    kind = type(who).__name__
    # Means make sure that columns hold numbers: the least value could be a text.
    means = [aggregates.Mean(column, alias_name=f"\0mean({column})") for column in columns]
    counts = [aggregates.Count(alias_name="\0rows")]
    found = ds.aggregate(*counts, *means, *asked)
    if not found.pop("\0rows"):
        raise build_empty(kind)
    for column in columns:
        mean = found.pop(f"\0mean({column})")
        if mean is not None and not math.isfinite(mean):
            raise ValueError(
                f"{kind} needs finite numbers, but column {column!r} holds infinity, or numbers too large to add up. "
                "Replace them with map_batches(), or leave such rows out with filter()."
            )
    return found


def build_empty(kind: str) -> ValueError:
    """Return the error for a data set without rows."""
    return ValueError(
        f"{kind}.fit() needs rows to learn from, but the data set has none. Check with count() how many rows filter() "
        "or the files leave."
    )


def _choose_scale(scale: float) -> float:
    """Return a scale, or 1 if it is only rounding error, as for a constant column. Follows scikit-learn."""
    return scale if scale >= 10 * _EPSILON else 1.0


@final
@dataclass(repr=False, eq=False)
class StandardScaler(_Scaler):
    """Subtract the mean of a column, and divide by its standard deviation (of the population, not a sample's).

    A constant column becomes 0. Missing values stay missing.

    Args:
        columns: The columns, which hold numbers.
        output_columns: Names of the results. Default: the results replace the columns.

    Raises:
        ValueError: No column is named, or `output_columns` has another length.

    Example:
        >>> from hocket import data
        >>> from hocket.data.preprocessors import StandardScaler
        >>> scaler = StandardScaler(["x"])
        >>> scaler.fit_transform(data.from_items([{"x": 1.0, "y": "a"}, {"x": 3.0, "y": "b"}])).take_all()
        [{'x': -1.0, 'y': 'a'}, {'x': 1.0, 'y': 'b'}]
        >>> scaler.stats_
        {'mean(x)': 2.0, 'std(x)': 1.0}
        >>> scaler.transform_row({"x": 4.0})
        {'x': 2.0}
    """

    columns: Sequence[str]
    output_columns: Sequence[str] | None = None

    _words: ClassVar[tuple[str, ...]] = ("mean", "std")

    def _list_aggregates(self, column: str) -> Iterable[aggregates.Aggregation]:
        return aggregates.Mean(column), aggregates.Std(column, ddof=0)

    def _fit(self, ds: dataset.Dataset) -> base.Stats:
        asked: list[aggregates.Aggregation] = []
        for column in self.columns:
            count = aggregates.Count(column, ignore_nulls=True, alias_name=f"\0count({column})")
            asked += [*self._list_aggregates(column), count]
        stats = aggregate(self, ds, self.columns, asked)
        for column in self.columns:
            count, mean, std = stats.pop(f"\0count({column})"), stats[f"mean({column})"], stats[f"std({column})"]
            if count and std**2 <= count * _EPSILON * std**2 + (count * mean * _EPSILON) ** 2:
                # Not above rounding: Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance" (1983).
                stats[f"std({column})"] = 0.0
        return stats

    def _find_scale(self, column: str) -> tuple[float, float]:
        return self.stats_[f"mean({column})"], self.stats_[f"std({column})"] or 1.0


@final
@dataclass(repr=False, eq=False)
class MinMaxScaler(_Scaler):
    """Scale a column to values from 0 (its least) to 1 (its greatest).

    A constant column becomes 0. Missing values stay missing.

    Args:
        columns: The columns, which hold numbers.
        output_columns: Names of the results. Default: the results replace the columns.

    Raises:
        ValueError: No column is named, or `output_columns` has another length.

    Example:
        >>> from hocket import data
        >>> from hocket.data.preprocessors import MinMaxScaler
        >>> rows = data.from_items([{"x": 2}, {"x": 3}, {"x": 6}])
        >>> MinMaxScaler(["x"], ["scaled"]).fit_transform(rows).take_all()
        [{'x': 2, 'scaled': 0.0}, {'x': 3, 'scaled': 0.25}, {'x': 6, 'scaled': 1.0}]
    """

    columns: Sequence[str]
    output_columns: Sequence[str] | None = None

    _words: ClassVar[tuple[str, ...]] = ("min", "max")

    def _list_aggregates(self, column: str) -> Iterable[aggregates.Aggregation]:
        return aggregates.Min(column), aggregates.Max(column)

    def _find_scale(self, column: str) -> tuple[float, float]:
        least, most = float(self.stats_[f"min({column})"]), float(self.stats_[f"max({column})"])
        return least, _choose_scale(most - least)


@final
@dataclass(repr=False, eq=False)
class MaxAbsScaler(_Scaler):
    """Divide a column by its greatest absolute value; zero stays zero.

    A column of zeros stays unchanged. Missing values stay missing.

    Args:
        columns: The columns, which hold numbers.
        output_columns: Names of the results. Default: the results replace the columns.

    Raises:
        ValueError: No column is named, or `output_columns` has another length.

    Example:
        >>> from hocket import data
        >>> from hocket.data.preprocessors import MaxAbsScaler
        >>> MaxAbsScaler(["x"]).fit_transform(data.from_items([{"x": -4}, {"x": 2}])).take_all()
        [{'x': -1.0}, {'x': 0.5}]
    """

    columns: Sequence[str]
    output_columns: Sequence[str] | None = None

    _words: ClassVar[tuple[str, ...]] = ("abs_max",)

    def _list_aggregates(self, column: str) -> Iterable[aggregates.Aggregation]:
        return aggregates.Min(column), aggregates.Max(column)

    def _fit(self, ds: dataset.Dataset) -> base.Stats:
        found = super()._fit(ds)
        ends = {column: (found[f"min({column})"], found[f"max({column})"]) for column in self.columns}
        return {
            f"abs_max({column})": None if least is None else max(abs(float(least)), abs(float(most)))
            for column, (least, most) in ends.items()
        }

    def _find_scale(self, column: str) -> tuple[float, float]:
        return 0.0, _choose_scale(self.stats_[f"abs_max({column})"])


@final
@dataclass(repr=False, eq=False)
class RobustScaler(_Scaler):
    """Subtract the median of a column, and divide by the distance between two quantiles. Outliers have little effect.

    The quantiles are exact. If they are equal, only the median is subtracted, as in scikit-learn. Missing values stay
    missing.

    Args:
        columns: The columns, which hold numbers.
        quantile_range: The lower and the upper quantile, from 0 to 1.
        output_columns: Names of the results. Default: the results replace the columns.
        quantile_precision: For programs written for Ray: has no effect.

    Raises:
        ValueError: No column is named, `output_columns` has another length, or the quantiles are invalid.

    Example:
        >>> from hocket import data
        >>> from hocket.data.preprocessors import RobustScaler
        >>> rows = data.from_items([{"x": x} for x in (1, 2, 3, 4, 1000)])
        >>> [row["x"] for row in RobustScaler(["x"]).fit_transform(rows).take_all()]
        [-1.0, -0.5, 0.0, 0.5, 498.5]
    """

    columns: Sequence[str]
    quantile_range: tuple[float, float] = (0.25, 0.75)
    output_columns: Sequence[str] | None = None
    quantile_precision: int = 800

    _words: ClassVar[tuple[str, ...]] = ("low_quantile", "median", "high_quantile")

    def _check_arguments(self) -> None:
        super()._check_arguments()
        given: object = self.quantile_range
        pair = tuple(given) if isinstance(given, tuple | list) else ()
        if len(pair) != 2 or not all(reading.is_number(one, 0, 1) for one in pair) or pair[0] > pair[1]:
            raise ValueError(
                f"quantile_range must be two numbers from 0 to 1, the lower one first, but received {given!r}. Write "
                "quantile_range=(0.25, 0.75)."
            )
        self.quantile_range = pair

    def _list_aggregates(self, column: str) -> Iterable[aggregates.Aggregation]:
        low, high = self.quantile_range
        return (
            aggregates.Quantile(column, q=low, alias_name=f"low_quantile({column})"),
            aggregates.Quantile(column, q=0.5, alias_name=f"median({column})"),
            aggregates.Quantile(column, q=high, alias_name=f"high_quantile({column})"),
        )

    def _find_scale(self, column: str) -> tuple[float, float]:
        low, median, high = (self.stats_[f"{word}({column})"] for word in ("low_quantile", "median", "high_quantile"))
        return median, _choose_scale(high - low)
