"""Local SGD: the ranks step on their own, and meet now and then.

Between two meetings nothing travels. At a meeting the ranks compute the mean of their parameters. What becomes of it is
the *outer* step:

- Without an outer optimizer the mean is what all go on with: local SGD (Stich, "Local SGD Converges Fast and
  Communicates Little", 2018). With `LocalSGD.begin_after` the gradients are averaged in the first steps instead, as
  with all-reduce: post-local SGD (Lin, Stich, Patel and Jaggi, "Don't Use Large Mini-Batches, Use Local SGD", 2018).
- With one, the *anchor* (what all had after the last meeting) minus the mean is taken as a gradient of the anchor, and
  the outer optimizer steps with it: DiLoCo (Douillard et al., "DiLoCo: Distributed Low-Communication Training of
  Language Models", 2023), where the outer optimizer is Nesterov's.

What the inner optimizer keeps (momentum, Adam's moments) stays the rank's own, as in those papers.

A rank that takes another number of steps than the others comes to a meeting alone; the backend then names it. An
optimizer that is stepped inside another (a `closure`) counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, final

import numpy as np

from hocket import keywords
from hocket.train.strategies import all_reduce, strategy


@final
@keywords.explained()
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
@keywords.explained()
@dataclass(frozen=True)
class LocalSGD(strategy.Strategy):
    """Ranks step on their own; every `sync_every` steps they meet and average.

    For slow networks: hundreds of times fewer bytes.

    The training function must give its optimizer to `prepare_optimizer`. Between two meetings the ranks' weights
    differ: call the adapter's ``synchronize`` (`hocket.train.torch.synchronize`) before a checkpoint or an evaluation.

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
    """The optimizer that takes the outer step: `Nesterov`, or in PyTorch what makes one, given the tensors that it
    steps. Default: the mean is taken as it is."""
    begin_after: int = 0
    """How many first steps are taken with the mean gradient of all ranks. Default: none.

    The first meeting comes `sync_every` steps after them. PyTorch's ``PeriodicModelAverager`` averages right after its
    ``warmup_steps`` for the first time; with ``begin_after + sync_every - 1`` of those it does what this does.
    """

    def __post_init__(self) -> None:
        if self.sync_every < 1:
            raise ValueError(
                f"sync_every must be 1 or more steps, but received {self.sync_every!r}. For an average after each "
                "step write 1."
            )
        if self.begin_after < 0:
            raise ValueError(
                f"begin_after must be 0 or more steps, but received {self.begin_after!r}. Leave it out to begin at "
                "once."
            )
        if not (self.outer is None or isinstance(self.outer, Nesterov) or callable(self.outer)):
            raise TypeError(
                f"outer must be a Nesterov, or make an optimizer from a list of tensors, but received {self.outer!r}. "
                "Write outer=Nesterov(), or functools.partial(torch.optim.SGD, lr=0.7)."
            )

    def open(self, ranks: strategy.Ranks) -> strategy.StrategyRuntime:
        """Begin on host arrays.

        Raises:
            TypeError: The outer optimizer is PyTorch's.
        """
        if not (self.outer is None or isinstance(self.outer, Nesterov)):
            raise TypeError(
                "LocalSGD's outer optimizer steps numpy arrays here, so it must be a Nesterov, but received "
                f"outer={self.outer!r}. Use outer=Nesterov(), or leave it out."
            )
        return _Runtime(self, self.outer, ranks.world)


@final
class _Runtime(strategy.StrategyRuntime):
    """Ranks step on their own, and meet on one flat array.

    A framework's loop evaluates, reports and saves at the end of an epoch, where no call of the user's can come before
    it. So the ranks meet there too (`synchronize`).
    """

    def __init__(self, settings: LocalSGD, outer: Nesterov | None, joined: strategy.Collectives) -> None:
        self._settings = settings
        self._world = joined
        self._outer_settings = outer
        self._outer = None if outer is None else OuterSteps(outer)
        self._names: list[str] | None = None
        self.averages_gradients = settings.begin_after > 0 and joined.size > 1
        #: Steps whose gradients were seen, and steps that were taken.
        self._seen = 0
        self._taken = 0
        #: Steps since the last meeting.
        self._apart = 0

    @property
    def alike(self) -> strategy.Alike:
        return strategy.Alike.NOTHING if self._apart else strategy.Alike.PARAMETERS

    @property
    def steps_alone(self) -> bool:
        return self._taken >= self._settings.begin_after

    def open_next(self) -> strategy.StrategyRuntime:
        return _Runtime(self._settings, self._outer_settings, self._world)  # each model has its own steps and anchor

    def average(self, flat: strategy.Array, rows: float) -> None:
        self._seen += 1
        if self._seen <= self._settings.begin_after:
            all_reduce.average_rows(self._world, flat, rows)

    def gather(self, slices: Sequence[strategy.Slices], rows: float) -> Sequence[strategy.Slices]:
        if self._seen < self._settings.begin_after:
            return all_reduce.gather_slices(self._world, slices, rows)
        return slices

    def begin(self, model: strategy.HostModel) -> None:
        if self._world.size > 1 and model.own_average:
            raise ValueError(
                f"LocalSGD averages the weights of the ranks, and {model.own_average} puts each rank's own average of "
                "them into the model when fit() ends. Leave it out, or use the strategy AllReduce."
            )
        if self._outer is not None and not self._apart:
            names = model.names
            if self._outer_settings is not None and self._names not in (None, names):
                self._outer = OuterSteps(self._outer_settings)  # layers were frozen, or thawed
            self._names = names
            self._outer.drop_anchor(model.read_flat())

    def after_steps(self, model: strategy.HostModel, count: int) -> None:
        before = self._taken
        self._taken += count
        first = self._settings.begin_after
        if self._outer is not None and before < first <= self._taken:
            self._outer.drop_anchor(model.read_flat())
        self._apart += max(0, self._taken - max(before, first))
        if self._apart >= self._settings.sync_every:
            self._meet(model)

    def synchronize(self, model: strategy.HostModel) -> None:
        if self._apart:
            self._meet(model)

    def _meet(self, model: strategy.HostModel) -> None:
        flat = model.read_flat()
        self._world.all_reduce(flat)
        flat /= self._world.size
        if self._outer is not None:
            flat = self._outer.step(flat)
        model.write_flat(flat)
        self._apart = 0


@final
class OuterSteps:
    """DiLoCo's outer optimizer, on one flat array: SGD with Nesterov's momentum, as PyTorch computes it.

    Args:
        settings: Its learning rate and momentum.
    """

    def __init__(self, settings: Nesterov) -> None:
        self._settings = settings
        self._anchor: strategy.Array | None = None
        self._momentum: strategy.Array | None = None

    def drop_anchor(self, flat: strategy.Array) -> None:
        """Note what all ranks have now."""
        self._anchor = flat

    def step(self, mean: strategy.Array) -> strategy.Array:
        """Return where to go on, after the ranks' mean has come to be `mean`."""
        assert self._anchor is not None, "there is where the ranks began"
        gradient = self._anchor - mean
        lr, momentum = self._settings.lr, self._settings.momentum
        self._momentum = gradient if self._momentum is None else momentum * self._momentum + gradient
        self._anchor = self._anchor - lr * (gradient + momentum * self._momentum)
        return np.array(self._anchor)
