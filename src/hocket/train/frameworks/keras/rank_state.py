"""The strategy at work in one rank, from the start of its training function to the end.

See `hocket.train.frameworks.contract`.
"""

from __future__ import annotations

from typing import Any, Final, final

from hocket.collective.world import World
from hocket.train import strategies


@final
class RankState:
    """A rank's strategy, at work.

    Args:
        joined: The ranks.
        strategy: How updates travel.

    Raises:
        TypeError: The strategy is for another framework.
    """

    def __init__(self, joined: World, strategy: strategies.Strategy) -> None:
        self.world = joined
        self.strategy = strategy
        opened = strategy.open(strategies.Ranks(joined.rank, joined.size, joined))
        if not isinstance(opened, strategies.StrategyRuntime):
            raise strategies.build_opened_error(strategy, opened)
        self.runtime: Final = opened
        self.prepared: list[Any] = []
        """What `prepare_model` has made of the rank's models."""

    def close(self) -> None:
        """Give back what the strategy holds."""
        for runtime in dict.fromkeys([self.runtime, *(one.runtime for one in self.prepared)]):
            runtime.close()
