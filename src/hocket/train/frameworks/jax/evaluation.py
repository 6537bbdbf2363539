"""Means over the rows of all ranks, equal to the last digit to the mean that one process would compute."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from hocket.train.frameworks import global_mean
from hocket.train.frameworks.jax import framework, trees


@final
class GlobalMean(global_mean.GlobalMean):
    """A mean over the rows of all ranks. It does not depend on the number of ranks.

    Each rank adds values of its rows, outside `jax.jit`. `compute` merges the ranks' sums, which are exact
    (`hocket.data.ExactMean`), and returns the same number in every rank: the correctly rounded mean. The mean is that
    of one process if the values are. The last digits of a matrix product may depend on the shape of the batch, and a
    loader of `prepare_arrays` has another batch with another number of ranks.

    Example:
        >>> import jax.numpy as jnp
        >>> from hocket.train.jax import GlobalMean
        >>> accuracy = GlobalMean()
        >>> guesses, labels = jnp.array([3, 1, 4, 1]), jnp.array([3, 1, 4, 2])
        >>> accuracy.add(guesses == labels)  # in a loop over prepared arrays: accuracy.add(guesses == labels, weights)
        >>> accuracy.compute()
        0.75
    """

    _framework = framework.FRAMEWORK

    def add(self, values: object, weights: object = None) -> None:
        if trees.is_global(values):
            exchange = framework.FRAMEWORK.get_state("GlobalMean.add")
            values, weights = exchange.read_rows(values), exchange.read_rows(weights)
        super().add(values, weights)

    def _read_weights(self, weights: object) -> Any:
        return super()._read_weights(np.asarray(weights)) != 0  # only whether a row counts
