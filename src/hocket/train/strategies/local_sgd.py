"""Local SGD: the ranks step on their own, and meet now and then.

Between two meetings nothing travels. At a meeting the ranks compute the mean of their parameters. What becomes of it is the *outer* step:

- Without an outer optimizer the mean is what all go on with: local SGD (Stich, "Local SGD Converges Fast and Communicates Little", 2018). With
  `LocalSGD.begin_after` the gradients are averaged in the first steps instead, as with all-reduce: post-local SGD (Lin, Stich, Patel and Jaggi, "Don't
  Use Large Mini-Batches, Use Local SGD", 2018).
- With one, the *anchor* (what all had after the last meeting) minus the mean is taken as a gradient of the anchor, and the outer
  optimizer steps with it: DiLoCo (Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023), where the outer
  optimizer is Nesterov's.

What the inner optimizer keeps (momentum, Adam's moments) stays the rank's own, as in those papers.

A rank that takes another number of steps than the others comes to a meeting alone; the backend then names it. An optimizer that is stepped inside another (a
`closure`) counts once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, final

from hocket.train.strategies import strategy


@final
@dataclass(frozen=True, kw_only=True)
class Nesterov:
    """DiLoCo's outer optimizer: SGD with Nesterov momentum.

    Raises:
        ValueError: A number is out of range.

    Example:
        >>> from hocket.train.strategies import LocalSGD, Nesterov
        >>> LocalSGD(500, outer=Nesterov())
        LocalSGD(sync_every=500, outer=Nesterov(lr=0.7, momentum=0.9), begin_after=0)
    """

    lr: float = 0.7
    """Its learning rate. The paper's; 1 without momentum is the plain mean."""
    momentum: float = 0.9
    """Its momentum, below 1. The paper's."""

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ValueError(f"Nesterov's lr must be more than 0, but received {self.lr!r}. DiLoCo uses 0.7.")
        if not 0 < self.momentum < 1:
            raise ValueError(
                f"Nesterov's momentum must lie between 0 and 1, but received {self.momentum!r}. DiLoCo uses 0.9."
            )


@final
@dataclass(frozen=True)
class LocalSGD(strategy.Strategy):
    """Ranks step on their own; every `sync_every` steps they meet and average. For slow networks: hundreds of times fewer bytes.

    The training function must give its optimizer to `prepare_optimizer`. Between two meetings the ranks' weights differ: call the adapter's
    ``synchronize`` (`hocket.train.torch.synchronize`) before a checkpoint or an evaluation.

    Raises:
        ValueError: A number is too small.
        TypeError: `outer` cannot be called.

    Example:
        >>> from hocket.train.strategies import LocalSGD
        >>> LocalSGD(8, begin_after=100)
        LocalSGD(sync_every=8, outer=None, begin_after=100)
    """

    sync_every: int
    """How many steps lie between two meetings. 1 averages after each step."""
    _: KW_ONLY
    outer: Nesterov | Callable[[list[Any]], Any] | None = None
    """The optimizer that takes the outer step: `Nesterov`, or in PyTorch what makes one, given the tensors that it steps. Default: the mean is taken as
    it is."""
    begin_after: int = 0
    """How many first steps are taken with the mean gradient of all ranks. Default: none."""

    def __post_init__(self) -> None:
        if self.sync_every < 1:
            raise ValueError(
                f"sync_every must be 1 or more steps, but received {self.sync_every!r}. For an average after each step write 1."
            )
        if self.begin_after < 0:
            raise ValueError(
                f"begin_after must be 0 or more steps, but received {self.begin_after!r}. Leave it out to begin at once."
            )
        if not (self.outer is None or isinstance(self.outer, Nesterov) or callable(self.outer)):
            raise TypeError(
                f"outer must be a Nesterov, or make an optimizer from a list of tensors, but received {self.outer!r}. Write outer=Nesterov(), or "
                "functools.partial(torch.optim.SGD, lr=0.7)."
            )
