"""Means over the rows of all ranks, as one process would have computed them: to the last digit."""

from __future__ import annotations

from typing import Any, ClassVar

from hocket.data import exact
from hocket.train import strategies
from hocket.train.frameworks import contract


class GlobalMean:
    """A mean over the rows of all ranks, that does not depend on how many there are.

    Each framework has one, which says how its users write it.
    """

    _framework: ClassVar[contract.Framework[Any]]
    _remedy: ClassVar[str] = ""
    """How the framework is asked for the loss of each row."""

    def __init__(self) -> None:
        self._mean = exact.ExactMean()

    def add(self, values: object, weights: object = None) -> None:
        """Add values, one for each row of a batch; outside of a compiled step.

        Args:
            values: Numbers or bools: an array or a tensor of the framework, of any device and type.
            weights: The loader's: 0 for a row that does not count. Default: all rows count.

        Raises:
            TypeError: It is no array, or is only being traced.
            ValueError: The values are not one for each row, there is not one weight for each, or a value that counts is
                not finite.
        """
        numbers = self._framework.to_host(values, "GlobalMean.add()")
        if numbers.ndim != 1:
            raise ValueError(
                "GlobalMean.add() takes one value for each row, with one dimension, but received one of shape "
                f"{numbers.shape}. Pass the loss of each row, not their mean{self._remedy}; and average over other "
                "dimensions."
            )
        self._mean.add(numbers, None if weights is None else self._read_weights(weights))

    def _read_weights(self, weights: object) -> strategies.Array:
        return self._framework.to_host(weights, "GlobalMean.add()")

    def compute(self) -> float:
        """Return the mean over all ranks' rows.

        Every rank must call it, since it waits for the others; what was added stays.

        Raises:
            ValueError: No rank has added a value that counts.
        """
        total = exact.ExactMean()
        for mean in self._framework.get_collectives("GlobalMean.compute").all_gather_object(self._mean):
            total.merge(mean)
        return total.compute()
