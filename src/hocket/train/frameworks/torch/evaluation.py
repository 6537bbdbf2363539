"""Means over the rows of all ranks, as one process would have computed them: to the last digit."""

from __future__ import annotations

from typing import Any, final

import numpy.typing as npt
import torch
import torch.distributed as dist

from hocket.data import exact


@final
class GlobalMean:
    """A mean over the rows of all ranks, that does not depend on how many there are.

    Each rank adds what it computed of its rows. `compute` brings the sums together, which are exact
    (`hocket.data.ExactMean`), and returns the same number in every rank: the correctly rounded mean. It is one
    process's as long as the values are: those of a matrix product may depend, in their last digits, on the shape of the
    batch.

    Example:
        >>> import torch
        >>> from hocket.train.torch import GlobalMean
        >>> accuracy = GlobalMean()
        >>> guesses, labels = torch.tensor([3, 1, 4, 1]), torch.tensor([3, 1, 4, 2])
        >>> accuracy.add(guesses == labels)  # in a loop over a prepared loader: accuracy.add(guesses == labels, loader.weights)
        >>> accuracy.compute()
        0.75
    """

    def __init__(self) -> None:
        self._mean = exact.ExactMean()

    def add(self, values: torch.Tensor, weights: torch.Tensor | None = None) -> None:
        """Add values, one for each row of a batch.

        Args:
            values: Numbers or bools, of any device and type.
            weights: The loader's ``weights``: 0 for what shall not count. All count if there are none.

        Raises:
            TypeError: It is no tensor.
            ValueError: The values are not one for each row, a weight is neither 0 nor 1, or a value that counts is not
                finite.
        """
        if not isinstance(values, torch.Tensor):
            raise TypeError(
                f"GlobalMean.add() takes a tensor with a value for each row, but received {values!r}. Write torch.tensor(values)."
            )
        if values.dim() != 1:
            raise ValueError(
                f"GlobalMean.add() takes one value for each row, a tensor with one dimension, but received one of shape {tuple(values.shape)}. Pass "
                "the loss of each row, not their mean: reduction='none' in PyTorch; and average over other dimensions."
            )
        self._mean.add(_to_numpy(values), None if weights is None else _to_numpy(weights))

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


def _to_numpy(values: torch.Tensor) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = values.detach().to("cpu", torch.float64).numpy()
    return found


def _gather(mean: exact.ExactMean) -> list[exact.ExactMean]:
    """Return the means of all ranks."""
    if not dist.is_initialized():
        return [mean]
    found: list[exact.ExactMean | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mean)
    return [other for other in found if other is not None]
