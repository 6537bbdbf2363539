"""Means over the rows of all ranks, equal to the last digit to the mean that one process would compute."""

from __future__ import annotations

from typing import Any, ClassVar

from hocket.data import exact
from hocket.train import strategies
from hocket.train.frameworks import contract


class GlobalMean:
    """A mean over the rows of all ranks. It does not depend on the number of ranks.

    Each framework has a subclass, whose docstring shows users how to call it.
    """

    _framework: ClassVar[contract.Framework[Any]]
    _remedy: ClassVar[str] = ""
    """The framework's way to get the loss of each row, for an error message."""

    def __init__(self) -> None:
        self._mean = exact.ExactMean()

    def add(self, values: object, weights: object = None) -> None:
        """Add values, one for each row of a batch. Call it outside compiled steps.

        Args:
            values: Numbers or bools: an array or a tensor of the framework, of any device and type.
            weights: The loader's weights: 0 for a row that does not count. Default: all rows count.

        Raises:
            TypeError: An argument is no array, or is being traced.
            ValueError: There is not one value, or not one weight, for each row; or a value that counts is not finite.
        """
        numbers = self._framework.to_host(values, "GlobalMean.add()")
        if numbers.ndim != 1:
            raise ValueError(
                "GlobalMean.add() takes an array of one dimension, with one value for each row, but received one of "
                f"shape {numbers.shape}. Pass the loss of each row, not their mean{self._remedy}, and average over the "
                "other dimensions first."
            )
        self._mean.add(numbers, None if weights is None else self._read_weights(weights))

    def _read_weights(self, weights: object) -> strategies.Array:
        return self._framework.to_host(weights, "GlobalMean.add()")

    def compute(self) -> float:
        """Return the mean over all ranks' rows.

        Every rank must call it, since each waits for the others. The added values stay.

        Raises:
            ValueError: No rank has added a value that counts.
        """
        total = exact.ExactMean()
        for mean in self._framework.get_collectives("GlobalMean.compute").all_gather_object(self._mean):
            total.merge(mean)
        return total.compute()
