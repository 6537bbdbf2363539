"""Means over the rows of all ranks, equal to the last digit to the mean that one process would compute."""

from __future__ import annotations

from typing import final

from hocket.train.frameworks import global_mean
from hocket.train.frameworks.torch import framework


@final
class GlobalMean(global_mean.GlobalMean):
    """A mean over the rows of all ranks. It does not depend on the number of ranks.

    Each rank adds values of its rows. `compute` merges the ranks' sums, which are exact (`hocket.data.ExactMean`), and
    returns the same number in every rank: the correctly rounded mean. The mean is that of one process if the values
    are. The last digits of a matrix product may depend on the shape of the batch.

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
    _remedy = " (reduction='none' in PyTorch)"
