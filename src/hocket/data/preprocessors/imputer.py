"""Values in place of missing ones."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, final

import numpy as np

from hocket.data import aggregate as aggregates
from hocket.data import blocks, dataset
from hocket.data.preprocessors import base, inputs, learning, scalers, single

_STRATEGIES: Final = ("mean", "most_frequent", "constant")


@final
@dataclass(repr=False, eq=False)
class SimpleImputer(single.PerColumn):
    """Replace missing values: None, NaN, and all values of a column that does not exist.

    Args:
        columns: The columns.
        strategy: The replacement: ``"mean"`` of the numbers, which become floats; ``"most_frequent"``, the least of
            equally frequent values; ``"constant"``, the `fill_value`.
        fill_value: The value for ``"constant"``.
        output_columns: Names of the results. Default: the results replace the columns.

    Raises:
        ValueError: The strategy is unknown, `fill_value` is missing or does not fit the strategy, no column is named,
            or `output_columns` has another length.

    Example:
        >>> from hocket import data
        >>> from hocket.data.preprocessors import SimpleImputer
        >>> SimpleImputer(["x"]).fit_transform(data.from_items([{"x": 1.0}, {"x": None}, {"x": 4.0}])).take_all()
        [{'x': 1.0}, {'x': 2.5}, {'x': 4.0}]
        >>> SimpleImputer(["y"], "constant", fill_value="?").transform_row({"y": None})
        {'y': '?'}
    """

    columns: Sequence[str]
    strategy: str = "mean"
    fill_value: Any = None
    output_columns: Sequence[str] | None = field(default=None, kw_only=True)

    _may_lack_inputs: ClassVar[bool] = True

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.strategy not in _STRATEGIES:
            raise ValueError(
                f"strategy must be one of {', '.join(map(repr, _STRATEGIES))}, but received {self.strategy!r}."
            )
        if self.strategy == "constant" and self.fill_value is None:
            raise ValueError("strategy='constant' needs a value to fill in. Write fill_value=0, for example.")
        if self.strategy != "constant" and self.fill_value is not None:
            raise ValueError(
                f"fill_value={self.fill_value!r} is for strategy='constant', but strategy is {self.strategy!r}. Leave "
                "it out, or write strategy='constant'."
            )

    def _can_be_fitted(self) -> bool:
        return self.strategy != "constant"

    def _fit(self, ds: dataset.Dataset) -> base.Stats:
        if self.strategy == "mean":
            stats = scalers.aggregate(self, ds, self.columns, [aggregates.Mean(name) for name in self.columns])
        else:
            stats = {f"most_frequent({name})": self._find_most_frequent(ds, name) for name in self.columns}
        for name in self.columns:
            if stats[f"{self.strategy}({name})"] is None:
                raise ValueError(
                    f"strategy={self.strategy!r} needs a value to learn from, but all values of column {name!r} are "
                    "missing. Write strategy='constant' for this column, or leave it out with drop_columns()."
                )
        return stats

    def _find_most_frequent(self, ds: dataset.Dataset, name: str) -> object:
        counts = learning.count_values(self, ds, name)
        counts.pop(None, None)
        return next(iter(learning.keep_most(counts, 1)), None)

    def _compute(self, block: blocks.Block) -> Mapping[str, object]:
        made: dict[str, object] = {}
        for column, output in self._list_pairs():
            fill = self.stats_.get(f"{self.strategy}({column})", self.fill_value)
            fill = list(fill) if isinstance(fill, tuple) else fill
            if column not in block.columns:
                made[output] = [fill] * block.num_rows
            elif self.strategy == "mean":
                numbers = inputs.get_numbers(block, column, "SimpleImputer")
                made[output] = np.where(np.isnan(numbers), fill, numbers)
            else:
                values = inputs.get_values(block, column)
                gaps = any(value is None for value in values)
                if any(isinstance(value, dt.datetime) and value.tzinfo is None for value in values):
                    fill = inputs.take_from_zone(fill)
                filled = [fill if value is None else value for value in values]
                made[output] = filled if gaps else block.columns[column]
        return made
