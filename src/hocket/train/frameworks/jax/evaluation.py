"""Means over the rows of all ranks, as one process would have computed them: to the last digit."""

from __future__ import annotations

from typing import Any, final

import jax
import numpy as np

from hocket.data import exact
from hocket.train.frameworks.jax import host_calls
from hocket.train.rank import worker_session, world


@final
class GlobalMean:
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

    def __init__(self) -> None:
        self._mean = exact.ExactMean()

    def add(self, values: Any, weights: Any = None) -> None:
        """Add values, one for each row of a batch.

        Args:
            values: Numbers or bools: an array of JAX or numpy.
            weights: The loader's: 0 for what shall not count, and anything else for what shall. All count if there are
                none.

        Raises:
            TypeError: It is no array, or is only being traced.
            ValueError: The values are not one for each row, there is not one weight for each, or a value that counts is
                not finite.
        """
        if isinstance(values, jax.core.Tracer):
            raise TypeError(
                "GlobalMean.add() was called inside jax.jit or another transformation of JAX, where there are no numbers yet. Return the values from the "
                "jitted function, and add them outside."
            )
        if not isinstance(values, jax.Array | np.ndarray):
            raise TypeError(
                f"GlobalMean.add() takes an array with a value for each row, but received {values!r}. Write jnp.array(values)."
            )
        if values.ndim != 1:
            raise ValueError(
                f"GlobalMean.add() takes one value for each row, an array with one dimension, but received one of shape {tuple(values.shape)}. Pass "
                "the loss of each row, not their mean; and average over other dimensions."
            )
        counts = None if weights is None else np.asarray(weights) != 0
        self._mean.add(np.asarray(values, np.float64), counts)

    def compute(self) -> float:
        """Return the mean over all ranks' rows.

        Every rank must call it, since it waits for the others; what was added stays.

        Raises:
            ValueError: No rank has added a value that counts.
        """
        total = exact.ExactMean()
        for mean in _gather(self._mean):
            total.merge(mean)
        return total.compute()


def _gather(mean: exact.ExactMean) -> list[exact.ExactMean]:
    """Return the means of all ranks."""
    if worker_session.get_optional_session() is None:
        return [mean]
    host_calls.wait_for_steps()
    return world.get_world("jax.GlobalMean.compute").all_gather_object(mean)
