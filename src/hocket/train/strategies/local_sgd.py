"""Local SGD: the ranks step on their own, and meet every few steps.

Between two meetings nothing travels. At a meeting the ranks compute the mean of their parameters, and take an *outer*
step with it:

- Without an outer optimizer, all ranks go on with the mean: local SGD (Stich, "Local SGD Converges Fast and
  Communicates Little", 2018). With `LocalSGD.begin_after`, gradients are averaged in the first steps, as with
  all-reduce: post-local SGD (Lin, Stich, Patel and Jaggi, "Don't Use Large Mini-Batches, Use Local SGD", 2018).
- With an outer optimizer, the *anchor* (the parameters of all ranks after the last meeting) minus the mean serves as
  the anchor's gradient, and the outer optimizer steps with it: DiLoCo (Douillard et al., "DiLoCo: Distributed
  Low-Communication Training of Language Models", 2023), with Nesterov's method as the outer optimizer.

The state of the inner optimizer (momentum, Adam's moments) stays the rank's own, as in those papers.

A rank that takes a different number of steps from the others comes to a meeting alone; the backend's error then names
it. An optimizer step inside another one (a `closure`) counts once.
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
    """The learning rate. The default is the paper's; 1 without momentum is the plain mean."""
    momentum: float = 0.9
    """The momentum, between 0 and 1. The default is the paper's."""

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
    """A strategy with which ranks step on their own, and meet and average every `sync_every` steps.

    It is for slow networks, and sends hundreds of times fewer bytes.

    The training function must pass its optimizer to `prepare_optimizer`. Between two meetings the ranks' weights
    differ, so call the adapter's ``synchronize`` (`hocket.train.torch.synchronize`) before a checkpoint or an
    evaluation.

    Raises:
        ValueError: A number is too small.
        TypeError: `outer` cannot be called.

    Example:
        >>> from hocket.train.strategies import LocalSGD
        >>> LocalSGD(8, begin_after=100)
        LocalSGD(sync_every=8, outer=None, begin_after=100)
    """

    sync_every: int
    """The number of steps between two meetings. 1 averages after each step."""
    _: KW_ONLY
    outer: Nesterov | Callable[[list[Any]], Any] | None = None
    """The optimizer of the outer step: `Nesterov`, or in PyTorch a function that makes an optimizer from a list of
    tensors. Default: the ranks go on with the plain mean."""
    begin_after: int = 0
    """The number of first steps with the mean gradient of all ranks. Default: none.

    The first meeting comes `sync_every` steps later. PyTorch's ``PeriodicModelAverager`` first averages right after its
    ``warmup_steps``; with ``warmup_steps=begin_after + sync_every - 1`` it does the same as this strategy.
    """

    def __post_init__(self) -> None:
        if self.sync_every < 1:
            raise ValueError(
                f"sync_every must be 1 or more steps, but received {self.sync_every!r}. Write 1 to average after each "
                "step."
            )
        if self.begin_after < 0:
            raise ValueError(
                f"begin_after must be 0 or more steps, but received {self.begin_after!r}. Leave it out to begin at "
                "once."
            )
        if not (self.outer is None or isinstance(self.outer, Nesterov) or callable(self.outer)):
            raise TypeError(
                "outer must be a Nesterov, or a function that makes an optimizer from a list of tensors, but received "
                f"{self.outer!r}. Write outer=Nesterov(), or functools.partial(torch.optim.SGD, lr=0.7)."
            )

    def open(self, ranks: strategy.Ranks) -> strategy.StrategyRuntime:
        """Return the strategy's runtime on host arrays.

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
    """The runtime of local SGD, on one flat array.

    A framework's own loop evaluates, reports and saves at the end of an epoch, before the user can call anything. So
    the ranks also meet there (`synchronize`).
    """

    def __init__(self, settings: LocalSGD, outer: Nesterov | None, joined: strategy.Collectives) -> None:
        self._settings = settings
        self._world = joined
        self._outer_settings = outer
        self._outer = None if outer is None else OuterSteps(outer)
        self._names: list[str] | None = None
        self.averages_gradients = settings.begin_after > 0 and joined.size > 1
        #: The number of steps with seen gradients, and of steps that were taken.
        self._seen = 0
        self._taken = 0
        #: The number of steps since the last meeting.
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
                f"LocalSGD averages the weights of the ranks, but {model.own_average} would put each rank's own "
                "average into the model when fit() ends. Leave it out, or use the strategy AllReduce."
            )
        if self._outer is not None and not self._apart:
            names = model.names
            if self._outer_settings is not None and self._names not in (None, names):
                self._outer = OuterSteps(self._outer_settings)  # layers were frozen or thawed
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
        settings: The learning rate and the momentum.
    """

    def __init__(self, settings: Nesterov) -> None:
        self._settings = settings
        self._anchor: strategy.Array | None = None
        self._momentum: strategy.Array | None = None

    def drop_anchor(self, flat: strategy.Array) -> None:
        """Make the ranks' present parameters the anchor."""
        self._anchor = flat

    def step(self, mean: strategy.Array) -> strategy.Array:
        """Take an outer step with the ranks' mean, and return the new parameters."""
        assert self._anchor is not None, "there is where the ranks began"
        gradient = self._anchor - mean
        lr, momentum = self._settings.lr, self._settings.momentum
        self._momentum = gradient if self._momentum is None else momentum * self._momentum + gradient
        self._anchor = self._anchor - lr * (gradient + momentum * self._momentum)
        return np.array(self._anchor)
