"""A strategy of a user: elastic averaging. Written once, on host arrays; tests run it in every framework."""

from __future__ import annotations

from dataclasses import dataclass

from hocket.train import strategies
from hocket.train.strategies import HostModel, Ranks, Strategy, StrategyRuntime


@dataclass(frozen=True)
class ElasticAveraging(Strategy):
    """Ranks step on their own, and are pulled to a common center every few steps, as the center is to them.

    After Zhang, Choromanska and LeCun, "Deep learning with Elastic Averaging SGD" (2015), with all ranks meeting at
    once.
    """

    every: int
    """How many steps lie between two meetings."""
    pull: float = 0.5
    """How far a rank goes to the center."""

    def open(self, ranks: Ranks) -> StrategyRuntime:
        return _Runtime(self, ranks)


class _Runtime(StrategyRuntime):
    averages_gradients = False

    def __init__(self, settings: ElasticAveraging, ranks: Ranks) -> None:
        self._settings = settings
        self._world = ranks.world
        self._center: strategies.Array | None = None
        self._taken = 0

    def open_next(self) -> StrategyRuntime:
        return _Runtime(self._settings, Ranks(self._world.rank, self._world.size, self._world))

    def begin(self, model: HostModel) -> None:
        if self._center is None:
            self._center = model.read_flat()

    def after_steps(self, model: HostModel, count: int) -> None:
        self._taken += count
        if self._taken % self._settings.every == 0:
            self._meet(model)

    def _meet(self, model: HostModel) -> None:
        assert self._center is not None, "begin comes first"
        mine = model.read_flat()
        mean = mine.copy()
        self._world.all_reduce(mean)
        mean /= self._world.size
        model.write_flat(mine - self._settings.pull * (mine - self._center))
        self._center = self._center + self._settings.pull * (mean - self._center)

    def synchronize(self, model: HostModel) -> None:
        assert self._center is not None, "begin comes first"
        model.write_flat(self._center)
