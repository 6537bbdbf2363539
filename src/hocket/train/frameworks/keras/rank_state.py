"""The strategy at work in one rank, from the start of its training function to the end.

See `hocket.train.frameworks.contract`.
"""

from __future__ import annotations

from typing import Any, final

from hocket.collective.world import World
from hocket.train import strategies
from hocket.train.frameworks import rank_states


@final
class RankState(rank_states.RuntimeState):
    """A rank's strategy, at work, and its prepared models.

    Args:
        joined: The ranks.
        strategy: How updates travel.

    Raises:
        TypeError: The strategy is for another framework.
    """

    def __init__(self, joined: World, strategy: strategies.Strategy) -> None:
        self.world = joined
        self.prepared: list[Any] = []
        """What `prepare_model` has made of the rank's models."""
        super().__init__(joined, strategy)

    def close(self) -> None:
        """Give back what the strategy holds."""
        for runtime in dict.fromkeys([self.runtime, *(one.runtime for one in self.prepared)]):
            runtime.close()
