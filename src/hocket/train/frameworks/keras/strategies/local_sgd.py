"""Local SGD in Keras: the ranks step on their own, and meet now and then. `hocket.train.strategies.local_sgd` says what happens at a meeting.

``fit`` evaluates, reports and saves at the end of an epoch, where no call of the user's can come before it. So the ranks meet there too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from hocket.collective.world import World
from hocket.train import strategies
from hocket.train.frameworks.keras import bridges, variables
from hocket.train.frameworks.keras.strategies import all_reduce, strategy


@strategy.open_exchange.register
def _(settings: strategies.LocalSGD, joined: World) -> strategy.Exchange:
    if settings.outer is not None and not isinstance(settings.outer, strategies.Nesterov):
        raise TypeError(
            f"hocket.train.keras does not have outer={settings.outer!r}: it steps numpy arrays. Use outer=Nesterov(), or leave it out."
        )
    return _Exchange(settings, settings.outer, joined)


@final
class _Exchange(strategy.Exchange):
    def __init__(self, settings: strategies.LocalSGD, outer: strategies.Nesterov | None, joined: World) -> None:
        self._settings = settings
        self._world = joined
        self._outer_settings = outer
        self._outer = None if outer is None else _Outer(outer)
        self.averages_gradients = settings.begin_after > 0 and joined.size > 1
        #: Steps whose gradients were seen, and steps that were taken.
        self._seen = 0
        self._taken = 0
        #: Steps since the last meeting.
        self._apart = 0

    def follow_model(self) -> strategy.Exchange:
        return _Exchange(self._settings, self._outer_settings, self._world)  # each model has its own steps and anchor

    def average(self, flat: npt.NDArray[Any], rows: float) -> None:
        self._seen += 1
        if self._seen <= self._settings.begin_after:
            all_reduce.average_rows(self._world, flat, rows)

    def gather(self, slices: Sequence[bridges.Slices], rows: float) -> Sequence[bridges.Slices]:
        if self._seen < self._settings.begin_after:
            return all_reduce.gather_slices(self._world, slices, rows)
        return slices

    def choose(self, numbers: Sequence[int]) -> None: ...

    def begin(self, model: Any) -> None:
        if self._world.size > 1 and getattr(model.optimizer, "use_ema", False):
            raise ValueError(
                f"LocalSGD averages the weights of the ranks, and {type(model.optimizer).__name__}(use_ema=True) puts each rank's own average of them into the model when fit() ends. "
                "Leave use_ema out, or use the strategy AllReduce."
            )
        if self._outer is not None and not self._apart:
            self._outer.drop_anchor(_read(model))

    def begin_epoch(self, model: Any) -> None: ...

    def after_steps(self, model: Any, count: int) -> None:
        before = self._taken
        self._taken += count
        first = self._settings.begin_after
        if self._outer is not None and before < first <= self._taken:
            self._outer.drop_anchor(_read(model))
        self._apart += max(0, self._taken - max(before, first))
        if self._apart >= self._settings.sync_every:
            self._meet(model)

    def close(self) -> None: ...

    def synchronize(self, model: Any) -> None:
        if self._apart:
            self._meet(model)

    def _meet(self, model: Any) -> None:
        flat = _read(model)
        self._world.all_reduce(flat)
        flat /= self._world.size
        if self._outer is not None:
            flat = self._outer.step(flat)
        variables.write_flat(model.trainable_variables, flat)
        self._apart = 0


def _read(model: Any) -> npt.NDArray[Any]:
    variables.attach(model)
    return variables.read_flat(model.trainable_variables)


@final
class _Outer:
    """DiLoCo's outer optimizer, on one flat array: SGD with Nesterov's momentum, as PyTorch computes it."""

    def __init__(self, settings: strategies.Nesterov) -> None:
        self._settings = settings
        self._anchor: npt.NDArray[Any] | None = None
        self._momentum: npt.NDArray[Any] | None = None

    def drop_anchor(self, flat: npt.NDArray[Any]) -> None:
        self._anchor = flat

    def step(self, mean: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return where to go on, after the ranks' mean has come to be `mean`."""
        assert self._anchor is not None, "there is where the ranks began"
        gradient = self._anchor - mean
        lr, momentum = self._settings.lr, self._settings.momentum
        self._momentum = gradient if self._momentum is None else momentum * self._momentum + gradient
        self._anchor = self._anchor - lr * (gradient + momentum * self._momentum)
        return np.array(self._anchor)
