"""Means over the rows of all ranks, as one process would have computed them: to the last digit."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from hocket.train.frameworks import global_mean
from hocket.train.frameworks.jax import framework, trees


@final
class GlobalMean(global_mean.GlobalMean):
    """A mean over the rows of all ranks, that does not depend on how many there are.

    Each rank adds what it computed of its rows, outside of `jax.jit`. `compute` brings the sums together, which are
    exact (`hocket.data.ExactMean`), and returns the same number in every rank: the correctly rounded mean. It is one
    process's as long as the values are: those of a matrix product may depend, in their last digits, on the shape of the
    batch; a loader of `prepare_arrays` with another number of ranks has another.

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
        return super()._read_weights(np.asarray(weights)) != 0  # a loader's weigh rows
