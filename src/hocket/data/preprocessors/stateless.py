"""Preprocessors of numbers that learn nothing: norms, powers, and columns joined into vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from hocket.data import blocks, columns, dataset, reading
from hocket.data.preprocessors import base, inputs, single

_NORMS: Final[Mapping[str, Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]]] = {
    "l1": lambda rows: np.abs(rows).sum(axis=1),
    "l2": lambda rows: np.sqrt((rows * rows).sum(axis=1)),
    "max": lambda rows: np.abs(rows).max(axis=1),
}


class Stateless(single.Single):
    """A preprocessor that learns nothing."""

    def _can_be_fitted(self) -> bool:
        return False

    def _fit(self, ds: dataset.Dataset) -> base.Stats:
        return {}


class StatelessPerColumn(Stateless, single.PerColumn):
    """A preprocessor that learns nothing, and makes one output column from each input column."""


@final
@dataclass(repr=False, eq=False)
class Normalizer(StatelessPerColumn):
    """Divide the numbers of each row by their norm.

    A row of zeros stays unchanged. If one number of a row is missing, all of them become missing.

    Args:
        columns: The columns with the numbers of the vector.
        norm: ``"l1"``, the sum of the absolute values; ``"l2"``, the root of the sum of squares; ``"max"``, the
            greatest absolute value.
        output_columns: Names of the results. Default: the results replace the columns.

    Raises:
        ValueError: The norm is unknown, no column is named, or `output_columns` has another length.

    Example:
        >>> from hocket.data.preprocessors import Normalizer
        >>> Normalizer(["x", "y"]).transform_row({"x": 3, "y": 4})
        {'x': 0.6, 'y': 0.8}
    """

    columns: Sequence[str]
    norm: str = "l2"
    output_columns: Sequence[str] | None = field(default=None, kw_only=True)

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.norm not in _NORMS:
            raise ValueError(f"norm must be one of {', '.join(map(repr, _NORMS))}, but received {self.norm!r}.")

    def _compute(self, block: blocks.Block) -> Mapping[str, object]:
        rows = np.stack([inputs.get_numbers(block, name, "Normalizer") for name in self.columns], axis=1)
        norms = _NORMS[self.norm](rows)
        norms[norms == 0] = 1.0
        return dict(zip(self.get_output_columns(), (rows / norms[:, None]).T, strict=True))


@final
@dataclass(repr=False, eq=False)
class PowerTransformer(StatelessPerColumn):
    """Bring numbers closer to a normal distribution, with a power that you choose.

    Missing values stay missing.

    Args:
        columns: The columns, which hold numbers.
        power: The power, called lambda in the papers.
        method: ``"yeo-johnson"``, for all numbers (Yeo and Johnson, "A New Family of Power Transformations", 2000); or
            ``"box-cox"``, for positive numbers (Box and Cox, "An Analysis of Transformations", 1964).
        output_columns: Names of the results. Default: the results replace the columns.

    Raises:
        ValueError: The method is unknown, no column is named, `output_columns` has another length, or the power is no
            number.

    Example:
        >>> from hocket.data.preprocessors import PowerTransformer
        >>> PowerTransformer(["x"], power=0.5, method="box-cox").transform_row({"x": 4.0})
        {'x': 2.0}
    """

    columns: Sequence[str]
    power: float
    method: str = "yeo-johnson"
    output_columns: Sequence[str] | None = field(default=None, kw_only=True)

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.method not in ("yeo-johnson", "box-cox"):
            raise ValueError(f"method must be 'yeo-johnson' or 'box-cox', but received {self.method!r}.")
        if not reading.is_number(self.power, -1e300, 1e300):
            raise ValueError(f"power must be a number, but received {self.power!r}. Write power=0.5 for a square root.")

    def _compute(self, block: blocks.Block) -> Mapping[str, object]:
        made = {}
        for column, output in self._list_pairs():
            numbers = inputs.get_numbers(block, column, "PowerTransformer")
            if self.method == "yeo-johnson":
                positive = numbers >= 0
                grown = _raise(np.log1p(np.abs(numbers)), np.where(positive, self.power, 2 - self.power))
                made[output] = np.where(positive, grown, -grown)
                continue
            if (numbers <= 0).any():
                raise ValueError(
                    f"method='box-cox' needs positive numbers, but column {column!r} holds {np.nanmin(numbers):g}. "
                    "Write method='yeo-johnson'."
                )
            made[output] = _raise(np.log(numbers), np.full(len(numbers), self.power))
        return made


def _raise(logs: npt.NDArray[np.float64], powers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return ``(x ** power - 1) / power`` for numbers with the given logarithms; for power 0, the limit."""
    divisor = np.where(powers == 0, 1.0, powers)
    return np.where(powers == 0, logs, np.expm1(powers * logs) / divisor)


@final
@dataclass(repr=False, eq=False)
class Concatenator(Stateless):
    """Join columns of numbers into one column, with a vector for each row, as models take it.

    The result lacks the joined columns.

    Args:
        columns: The columns, in the order of the vector.
        output_column_name: The name of the result.
        dtype: The type of the vector's numbers. Default: a type that holds the numbers of all columns.
        raise_if_missing: For programs written for Ray: has no effect, a missing column is an error.
        flatten: Whether columns may also hold vectors or arrays, which are flattened into the vector.

    Raises:
        ValueError: No column is named.

    Example:
        >>> import numpy as np
        >>> from hocket.data.preprocessors import Concatenator
        >>> batch = {"x": np.array([1, 2]), "y": np.array([0.5, 1.5]), "label": np.array([0, 1])}
        >>> Concatenator(["x", "y"], "features").transform_batch(batch)["features"].tolist()
        [[1.0, 0.5], [2.0, 1.5]]
    """

    columns: Sequence[str]
    output_column_name: str = "concat_out"
    dtype: Any = None
    raise_if_missing: bool = False
    flatten: bool = False

    def _check_arguments(self) -> None:
        self.columns = single.check_names(self, "columns", self.columns)
        single.check_names(self, "output_column_name", [self.output_column_name])
        if self.dtype is not None:
            self.dtype = np.dtype(self.dtype)

    def get_input_columns(self) -> list[str]:
        return list(self.columns)

    def get_output_columns(self) -> list[str]:
        return [self.output_column_name]

    def _list_dropped(self) -> Sequence[str]:
        return self.columns

    def _compute(self, block: blocks.Block) -> Mapping[str, object]:
        parts = [self._read(block, name) for name in self.columns]
        if any(isinstance(part, list) for part in parts):
            rows = [np.concatenate([np.atleast_1d(value).ravel() for value in row]) for row in zip(*parts, strict=True)]
            return {self.output_column_name: [self._convert(row) for row in rows]}
        return {self.output_column_name: self._convert(np.concatenate(parts, axis=1))}

    def _read(self, block: blocks.Block, name: str) -> Any:
        """Return the numbers of a column: an array with one row for each row, or a list of arrays."""
        array = columns.to_numpy(block.columns[name])
        if array.ndim > 1 and not self.flatten:
            raise inputs.build_mismatch(block, name, "Concatenator needs one number for each row, unless flatten=True")
        if array.dtype.kind in "biuf":
            return array.reshape(len(array), math.prod(array.shape[1:]))
        if self.flatten and all(isinstance(value, np.ndarray) and value.dtype.kind in "biuf" for value in array):
            return list(array)
        return inputs.get_numbers(block, name, "Concatenator")[:, None]

    def _convert(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self.dtype is None:
            return numbers
        if self.dtype.kind in "iu" and numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
            raise ValueError(
                f"dtype={self.dtype.name!r} cannot hold missing values, but columns {self.columns} hold NaN or "
                "infinity. Fill them with SimpleImputer first, or write dtype='float32'."
            )
        if self.dtype.kind in "iu" and numbers.size:
            limits, least, most = np.iinfo(self.dtype), int(numbers.min()), int(numbers.max())
            if least < limits.min or most > limits.max:
                raise ValueError(
                    f"dtype={self.dtype.name!r} holds numbers from {limits.min} to {limits.max}, but columns "
                    f"{self.columns} have numbers from {least} to {most}. Write a larger dtype, or 'float64'."
                )
        return numbers.astype(self.dtype)
