"""Encoders: categories as numbers, and as vectors."""

from __future__ import annotations

import collections
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from hocket.data import blocks, dataset
from hocket.data.preprocessors import base, categories, inputs, learning, single


class _Encoder(single.PerColumn):
    """Base class of the encoders of several columns."""

    def _get_index(self, column: str) -> categories.Index:
        found: categories.Index = self.stats_[f"unique_values({column})"]
        return found

    def _read(self, block: blocks.Block, column: str) -> list[Any]:
        values = inputs.get_values(block, column)
        inputs.check_present(values, column, type(self).__name__)
        return values


@final
@dataclass(repr=False, eq=False)
class OrdinalEncoder(_Encoder):
    """Replace categories by whole numbers: 0 for the least category, 1 for the next.

    An unknown value becomes NaN, so the numbers of its block are floats. In a list it becomes None.

    Args:
        columns: The columns. Each holds values, or lists of values.
        encode_lists: Whether the elements of lists are the categories, and not whole lists.
        output_columns: Names of the results. Default: the results replace the columns.

    Raises:
        ValueError: No column is named, or `output_columns` has another length.

    Example:
        >>> from hocket import data
        >>> from hocket.data.preprocessors import OrdinalEncoder
        >>> encoder = OrdinalEncoder(["level"])
        >>> encoder.fit_transform(data.from_items([{"level": "L4"}, {"level": "L3"}, {"level": "L4"}])).take_all()
        [{'level': 1}, {'level': 0}, {'level': 1}]
        >>> encoder.transform_row({"level": "L9"})
        {'level': nan}
    """

    columns: Sequence[str]
    encode_lists: bool = field(default=True, kw_only=True)
    output_columns: Sequence[str] | None = field(default=None, kw_only=True)

    def _fit(self, ds: dataset.Dataset) -> base.Stats:
        return {
            f"unique_values({name})": learning.learn_index(self, ds, name, splits_lists=self.encode_lists)
            for name in self.columns
        }

    def _compute(self, block: blocks.Block) -> Mapping[str, object]:
        made: dict[str, object] = {}
        for column, output in self._list_pairs():
            index, values = self._get_index(column), self._read(block, column)
            if self.encode_lists and any(isinstance(value, list) for value in values):
                made[output] = [categories.find_codes(value, index) for value in values]
            else:
                made[output] = categories.build_numbers(categories.find_codes(values, index))
        return made


@final
@dataclass(repr=False, eq=False)
class OneHotEncoder(_Encoder):
    """Replace each category by a vector that is 1 at the category's place, and 0 elsewhere.

    The vector of an unknown value is all 0. A list is one category.

    Args:
        columns: The columns.
        max_categories: The greatest length of each column's vector; the most frequent values have places. Default: all
            values have places.
        output_columns: Names of the results. Default: the results replace the columns.

    Raises:
        ValueError: No column is named, `output_columns` has another length, or a number of categories is invalid.

    Example:
        >>> from hocket import data
        >>> from hocket.data.preprocessors import OneHotEncoder
        >>> rows = data.from_items([{"color": "red"}, {"color": "blue"}, {"color": "red"}])
        >>> OneHotEncoder(["color"]).fit_transform(rows).take_batch()["color"].tolist()
        [[0, 1], [1, 0], [0, 1]]
    """

    columns: Sequence[str]
    max_categories: Mapping[str, int] | None = field(default=None, kw_only=True)
    output_columns: Sequence[str] | None = field(default=None, kw_only=True)

    def _check_arguments(self) -> None:
        super()._check_arguments()
        learning.check_limits("max_categories", self.max_categories, self.columns)

    def _fit(self, ds: dataset.Dataset) -> base.Stats:
        limits = dict(self.max_categories or {})
        return {
            f"unique_values({name})": learning.learn_index(self, ds, name, most=limits.get(name))
            for name in self.columns
        }

    def _compute(self, block: blocks.Block) -> Mapping[str, object]:
        made: dict[str, object] = {}
        for column, output in self._list_pairs():
            index = self._get_index(column)
            codes = categories.find_codes(self._read(block, column), index)
            places = np.array([-1 if code is None else code for code in codes], np.int64)
            made[output] = (places[:, None] == np.arange(len(index))).astype(np.uint8)
        return made


@final
@dataclass(repr=False, eq=False)
class MultiHotEncoder(_Encoder):
    """Replace a list of categories by a vector that counts each category in the list.

    Unknown values are not counted.

    Args:
        columns: The columns, which hold lists. A value that is no list counts as a list of one value.
        max_categories: The greatest length of each column's vector; the most frequent values have places. Default: all
            values have places.
        output_columns: Names of the results. Default: the results replace the columns.

    Raises:
        ValueError: No column is named, `output_columns` has another length, or a number of categories is invalid.

    Example:
        >>> from hocket import data
        >>> from hocket.data.preprocessors import MultiHotEncoder
        >>> rows = data.from_items([{"genre": ["war", "art"]}, {"genre": ["sea"]}])
        >>> MultiHotEncoder(["genre"]).fit_transform(rows).take_batch()["genre"].tolist()
        [[1, 0, 1], [0, 1, 0]]
    """

    columns: Sequence[str]
    max_categories: Mapping[str, int] | None = field(default=None, kw_only=True)
    output_columns: Sequence[str] | None = field(default=None, kw_only=True)

    def _check_arguments(self) -> None:
        super()._check_arguments()
        learning.check_limits("max_categories", self.max_categories, self.columns)

    def _fit(self, ds: dataset.Dataset) -> base.Stats:
        limits = dict(self.max_categories or {})
        return {
            f"unique_values({name})": learning.learn_index(self, ds, name, splits_lists=True, most=limits.get(name))
            for name in self.columns
        }

    def _compute(self, block: blocks.Block) -> Mapping[str, object]:
        made: dict[str, object] = {}
        for column, output in self._list_pairs():
            index, values = self._get_index(column), self._read(block, column)
            counts = np.zeros((len(values), len(index)), np.int64)
            for row, value in enumerate(values):
                codes = categories.find_codes(value if isinstance(value, list) else [value], index)
                for code, count in collections.Counter(codes).items():
                    if code is not None:
                        counts[row, code] = count
            made[output] = counts
        return made


@final
@dataclass(repr=False, eq=False)
class LabelEncoder(single.Single):
    """Replace labels by whole numbers: 0 for the least label, 1 for the next.

    An unknown label becomes NaN, so the numbers of its block are floats.

    Args:
        label_column: The column with the labels.
        output_column: The name of the result. Default: the result replaces the column.

    Raises:
        TypeError: A name is no text.

    Example:
        >>> from hocket import data
        >>> from hocket.data.preprocessors import LabelEncoder
        >>> encoder = LabelEncoder("species")
        >>> encoded = encoder.fit_transform(data.from_items([{"species": "setosa"}, {"species": "iris"}]))
        >>> encoded.take_all()
        [{'species': 1}, {'species': 0}]
        >>> encoder.inverse_transform(encoded).take_all()
        [{'species': 'setosa'}, {'species': 'iris'}]
    """

    label_column: str
    output_column: str | None = field(default=None, kw_only=True)

    def _check_arguments(self) -> None:
        single.check_names(self, "label_column", [self.label_column])
        if self.output_column is not None:
            single.check_names(self, "output_column", [self.output_column])

    def get_input_columns(self) -> list[str]:
        return [self.label_column]

    def get_output_columns(self) -> list[str]:
        return [self.output_column or self.label_column]

    def inverse_transform(self, ds: dataset.Dataset) -> dataset.Dataset:
        """Return a data set with labels in place of numbers, in the label column. A number without a label becomes
        None.

        Raises:
            PreprocessorNotFittedException: `fit` was not called.
            TypeError: `ds` is no data set.
            KeyError: There is no column of numbers. Raised when rows are read.
        """
        base.check_dataset("LabelEncoder.inverse_transform", ds)
        base.check_fitted(self, "inverse_transform")
        labels = {number: label for label, number in self.stats_[f"unique_values({self.label_column})"].items()}
        decode = functools.partial(_decode, self.get_output_columns()[0], self.label_column, labels)
        return base.add_step(ds, "inverse_transform", base.NamedStep(repr(self), decode))

    def _fit(self, ds: dataset.Dataset) -> base.Stats:
        return {f"unique_values({self.label_column})": learning.learn_index(self, ds, self.label_column)}

    def _compute(self, block: blocks.Block) -> Mapping[str, object]:
        values = inputs.get_values(block, self.label_column)
        inputs.check_present(values, self.label_column, "LabelEncoder")
        codes = categories.find_codes(values, self.stats_[f"unique_values({self.label_column})"])
        return {self.get_output_columns()[0]: categories.build_numbers(codes)}


def _decode(encoded: str, decoded: str, labels: Mapping[int, object], block: blocks.Block) -> blocks.Block:
    if not block.num_rows:
        return blocks.Block({}, 0)
    blocks.check_columns([encoded], list(block.columns))
    found = [labels.get(number) for number in inputs.get_values(block, encoded)]
    made = blocks.build({decoded: [list(one) if isinstance(one, tuple) else one for one in found]}, "Labels")
    return blocks.Block({**block.columns, **made.columns}, block.num_rows)
