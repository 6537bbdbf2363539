"""Columns of categories, for libraries that support such columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from hocket.data import blocks, dataset
from hocket.data.preprocessors import base, categories, inputs, learning, single


@final
@dataclass(repr=False, eq=False)
class Categorizer(single.PerColumn):
    """Give columns a type with their categories: Arrow's dictionary, which is ``CategoricalDtype`` in pandas.

    A missing value stays missing, and an unknown value becomes missing. Without Arrow, and in batches of numpy, the
    columns hold the values themselves.

    Args:
        columns: The columns.
        dtypes: The categories of some columns: `pandas.CategoricalDtype`, or a list. Other columns' are learnt.
        output_columns: Names of the results. Default: the results replace the columns.

    Raises:
        TypeError: The categories are in another form.
        ValueError: No column is named, `output_columns` has another length, or `dtypes` names another column.

    Example:
        >>> from hocket import data
        >>> from hocket.data.preprocessors import Categorizer
        >>> rows = data.from_items([{"level": "L4"}, {"level": "L3"}])
        >>> Categorizer(["level"]).fit_transform(rows).schema().types
        ['dictionary<values=string, indices=int32, ordered=0>']
    """

    columns: Sequence[str]
    dtypes: Mapping[str, Any] | None = None
    output_columns: Sequence[str] | None = None

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.dtypes is not None:
            self.dtypes = check_dtypes(self.dtypes, self.columns)

    def _fit(self, ds: dataset.Dataset) -> base.Stats:
        stats = {}
        for name in self.columns:
            found = (self.dtypes or {}).get(name)
            if found is None:
                counts = learning.count_values(self, ds, name)
                found = categories.Categories(tuple(value for value in counts if value is not None))
            stats[f"categories({name})"] = found
        return stats

    def _compute(self, block: blocks.Block) -> Mapping[str, object]:
        made = {}
        for column, output in self._list_pairs():
            known: categories.Categories = self.stats_[f"categories({column})"]
            index = {categories.freeze(value): number for number, value in enumerate(known.values)}
            values = inputs.get_values(block, column)
            made[output] = categories.build_column(categories.find_codes(values, index), known)
        return made


def check_dtypes(dtypes: Mapping[str, object], names: Sequence[str]) -> dict[str, categories.Categories]:
    """Return the categories of columns, checked."""
    if not isinstance(dtypes, Mapping):
        raise TypeError(f"dtypes must be a dict of categories by column, but received {dtypes!r:.80}.")
    for name in dtypes:
        if name not in names:
            raise ValueError(
                f"dtypes names the column {name!r}, which is not one of columns={list(names)}. Name one of these."
            )
    return {name: categories.read_categories(name, given) for name, given in dtypes.items()}
