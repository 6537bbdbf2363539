"""Means over the rows of all ranks, as one process would have computed them: to the last digit."""

from __future__ import annotations

from typing import final

from hocket.train.frameworks import global_mean
from hocket.train.frameworks.torch import framework


@final
class GlobalMean(global_mean.GlobalMean):
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
        >>> accuracy.add(guesses == labels)  # over a prepared loader: accuracy.add(guesses == labels, loader.weights)
        >>> accuracy.compute()
        0.75
    """

    _framework = framework.FRAMEWORK
    _remedy = ": reduction='none' in PyTorch"
