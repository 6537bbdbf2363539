"""Discretizers: numbers replaced by the numbers of their intervals, called bins."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from hocket.data import aggregate as aggregates
from hocket.data import blocks, dataset, reading
from hocket.data.preprocessors import base, categories, categorizer, inputs, scalers, single, stateless


class _Discretizer(single.PerColumn):
    """Base class of the discretizers."""

    right: bool
    include_lowest: bool
    duplicates: str
    dtypes: Mapping[str, Any] | None

    @abc.abstractmethod
    def _get_edges(self, column: str) -> Sequence[float]:
        """Return the edges of a column's bins."""

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.duplicates not in ("raise", "drop"):
            raise ValueError(f"duplicates must be 'raise' or 'drop', but received {self.duplicates!r}.")
        if self.dtypes is not None:
            # Columns hold whole numbers by default, so a type of whole numbers is redundant.
            given = {name: kind for name, kind in self.dtypes.items() if not _is_integer(kind)}
            self.dtypes = categorizer.check_dtypes(given, self.columns) or None

    def _compute(self, block: blocks.Block) -> Mapping[str, object]:
        made: dict[str, object] = {}
        for column, output in self._list_pairs():
            numbers = inputs.get_numbers(block, column, type(self).__name__)
            edges = np.array(self._get_edges(column))
            places = np.searchsorted(edges, numbers, side="left" if self.right else "right") - 1
            if self.include_lowest:
                places[numbers == edges[0]] = 0
            inside = (places >= 0) & (places < len(edges) - 1) & ~np.isnan(numbers)
            codes = [place if one else None for place, one in zip(places.tolist(), inside.tolist(), strict=True)]
            labels: categories.Categories | None = (self.dtypes or {}).get(column)
            if labels is None:
                made[output] = categories.build_numbers(codes)
                continue
            if len(labels.values) != len(edges) - 1:
                raise ValueError(
                    f"dtypes has {len(labels.values)} categories for column {column!r}, which has {len(edges) - 1} "
                    "bins. Name one category for each bin."
                )
            made[output] = categories.build_column(codes, labels)
        return made


def _is_integer(kind: object) -> bool:
    return isinstance(kind, np.dtype) or (isinstance(kind, type) and issubclass(kind, int | np.integer))


def _check_bins(bins: object, names: Sequence[str]) -> None:
    """Raise if bins given by column lack a column."""
    lacking = [name for name in names if name not in bins] if isinstance(bins, Mapping) else []
    if lacking:
        raise ValueError(f"bins is a dict that lacks the columns {lacking}. Give the bins of each of {list(names)}.")


@final
@dataclass(repr=False, eq=False)
class CustomKBinsDiscretizer(_Discretizer, stateless.StatelessPerColumn):
    """Replace numbers by the numbers of their bins, for bins that you choose.

    A number outside of all bins becomes NaN, and so does a missing one; then all numbers of the block are floats.

    Args:
        columns: The columns, which hold numbers.
        bins: The edges of the bins, rising: ``[0, 1, 4]`` makes two. Or a dict of edges by column.
        right: Whether an edge belongs to the bin on its left.
        include_lowest: Whether the lowest edge belongs to the first bin. It always does with ``right=False``.
        duplicates: How to treat equal edges: ``"raise"``, or ``"drop"`` all but one.
        dtypes: Categories that replace the bins' numbers, by column: `pandas.CategoricalDtype` or a list.
        output_columns: Names of the results. Default: the results replace the columns.

    Raises:
        TypeError: The edges are no numbers.
        ValueError: There are fewer than two edges, they do not rise, or another argument is invalid.

    Example:
        >>> from hocket.data.preprocessors import CustomKBinsDiscretizer
        >>> ages = CustomKBinsDiscretizer(["age"], bins=[0, 12, 18, 120])
        >>> ages.transform_row({"age": 13})
        {'age': 1}
    """

    columns: Sequence[str]
    bins: Any
    right: bool = field(default=True, kw_only=True)
    include_lowest: bool = field(default=False, kw_only=True)
    duplicates: str = field(default="raise", kw_only=True)
    dtypes: Mapping[str, Any] | None = field(default=None, kw_only=True)
    output_columns: Sequence[str] | None = field(default=None, kw_only=True)

    def _check_arguments(self) -> None:
        super()._check_arguments()
        _check_bins(self.bins, self.columns)
        if isinstance(self.bins, Mapping):
            self.bins = {name: self._check_edges(edges) for name, edges in self.bins.items()}
        else:
            self.bins = self._check_edges(self.bins)

    def _check_edges(self, given: Any) -> list[float]:
        try:
            edges = [one for one in given if reading.is_number(one, -math.inf, math.inf)]
            whole = len(edges) == len(list(given))
        except TypeError:
            edges, whole = [], False
        if not whole:
            raise TypeError(f"bins must be a list of edges, but received {given!r:.80}. Write bins=[0, 1, 10].")
        edges = np.array(edges).tolist()
        if self.duplicates == "drop":
            edges = list(dict.fromkeys(edges))
        if len(edges) < 2 or edges != sorted(set(edges)):
            raise ValueError(
                f"bins must be two or more edges in rising order, but received {edges}. Write bins=[0, 1, 10], or "
                "duplicates='drop' to leave equal edges out."
            )
        return edges

    def _get_edges(self, column: str) -> Sequence[float]:
        found: Sequence[float] = self.bins[column] if isinstance(self.bins, Mapping) else self.bins
        return found


@final
@dataclass(repr=False, eq=False)
class UniformKBinsDiscretizer(_Discretizer):
    """Replace numbers by the numbers of their bins, for bins of equal width from the least to the greatest number.

    One outer edge would belong to no bin, so its bin is wider by 0.1 % of the range. A number outside of all bins
    becomes NaN, and so does a missing one; then all numbers of the block are floats.

    Args:
        columns: The columns, which hold numbers.
        bins: The number of bins, or a dict of such numbers by column.
        right: Whether an edge belongs to the bin on its left.
        include_lowest: Whether the lowest edge belongs to the first bin. It always does with ``right=False``.
        duplicates: As in `CustomKBinsDiscretizer`.
        dtypes: Categories that replace the bins' numbers, by column: `pandas.CategoricalDtype` or a list.
        output_columns: Names of the results. Default: the results replace the columns.

    Raises:
        ValueError: A number of bins is less than 1, or another argument is invalid.

    Example:
        >>> from hocket import data
        >>> from hocket.data.preprocessors import UniformKBinsDiscretizer
        >>> rows = data.from_items([{"x": x} for x in (0.0, 1.0, 7.0, 8.0)])
        >>> UniformKBinsDiscretizer(["x"], bins=4).fit_transform(rows).take_all()
        [{'x': 0}, {'x': 0}, {'x': 3}, {'x': 3}]
    """

    columns: Sequence[str]
    bins: int | Mapping[str, int]
    right: bool = field(default=True, kw_only=True)
    include_lowest: bool = field(default=False, kw_only=True)
    duplicates: str = field(default="raise", kw_only=True)
    dtypes: Mapping[str, Any] | None = field(default=None, kw_only=True)
    output_columns: Sequence[str] | None = field(default=None, kw_only=True)

    def _check_arguments(self) -> None:
        super()._check_arguments()
        _check_bins(self.bins, self.columns)
        given: Any = self.bins
        for number in given.values() if isinstance(given, Mapping) else [given]:
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ValueError(
                    f"bins must be the number of bins, a whole number from 1, but received {number!r}. Write bins=4."
                )

    def _fit(self, ds: dataset.Dataset) -> base.Stats:
        asked = [kind(name) for name in self.columns for kind in (aggregates.Min, aggregates.Max)]
        found = scalers.aggregate(self, ds, self.columns, asked)
        stats = {}
        for name in self.columns:
            least, most = found[f"min({name})"], found[f"max({name})"]
            if least is None:
                raise ValueError(
                    f"UniformKBinsDiscretizer needs numbers to learn from, but all values of column {name!r} are "
                    "missing. Leave it out, or use CustomKBinsDiscretizer."
                )
            number = self.bins[name] if isinstance(self.bins, Mapping) else self.bins
            stats[name] = _cut_range(float(least), float(most), number, is_right=self.right)
        return stats

    def _get_edges(self, column: str) -> Sequence[float]:
        found: Sequence[float] = self.stats_[column]
        return found


def _cut_range(least: float, most: float, number: int, *, is_right: bool) -> list[float]:
    """Return the edges of bins of equal width, as `pandas.cut` places them."""
    if least == most:
        room = abs(least) * 0.001 if least else 0.001
        evened: list[float] = np.linspace(least - room, most + room, number + 1).tolist()
        return evened
    edges = np.linspace(least, most, number + 1)
    room = (most - least) * 0.001
    edges[0 if is_right else -1] += -room if is_right else room
    found: list[float] = edges.tolist()
    return found
