"""The hashing trick: names at places of a vector that their hashes choose."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from hocket.data import blocks, columns, reading
from hocket.data.preprocessors import inputs, single, stateless


def find_place(name: str, size: int) -> int:
    """Return the place of a name in a vector. It is the same in each process, and in Ray."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest(), "big") % size


def check_size(num_features: int) -> None:
    """Raise if a vector cannot be so long."""
    if num_features is None:
        raise ValueError("num_features must be a whole number from 1, but received None. Write num_features=64.")
    reading.check_count("num_features", num_features, 1)


@final
@dataclass(repr=False, eq=False)
class FeatureHasher(stateless.Stateless):
    """Add up columns of numbers in a vector, at places which the hashes of their names choose.

    For tables with a column for each word, which says how often it comes. Several columns may share a place. A missing
    number makes the place NaN.

    Args:
        columns: The columns, which hold numbers.
        num_features: How long the vector is.
        output_column: What the result is called.

    Raises:
        ValueError: No column is named, or `num_features` is less than 1.

    Example:
        >>> from hocket.data.preprocessors import FeatureHasher
        >>> hasher = FeatureHasher(["cat", "dog"], num_features=4, output_column="words")
        >>> hasher.transform_row({"cat": 2, "dog": 1})["words"].sum()
        np.int64(3)
    """

    columns: Sequence[str]
    num_features: int
    output_column: str

    def _check_arguments(self) -> None:
        self.columns = single.check_names(self, "columns", self.columns)
        single.check_names(self, "output_column", [self.output_column])
        check_size(self.num_features)

    def get_input_columns(self) -> list[str]:
        return list(self.columns)

    def get_output_columns(self) -> list[str]:
        return [self.output_column]

    def _compute(self, block: blocks.Block) -> Mapping[str, object]:
        found = {name: inputs.get_numbers(block, name, "FeatureHasher") for name in self.columns}
        whole = all(columns.to_numpy(block.columns[name]).dtype.kind in "biu" for name in self.columns)
        sums = np.zeros((block.num_rows, self.num_features), np.int64 if whole else np.float64)
        for name, numbers in found.items():
            sums[:, find_place(name, self.num_features)] += numbers.astype(sums.dtype)
        return {self.output_column: sums}
