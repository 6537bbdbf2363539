"""The strategy at work in one rank, from the start of its training function to the end.

See `hocket.train.frameworks.contract`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final, final

from hocket.collective.world import World
from hocket.train import strategies
from hocket.train.frameworks import rank_states
from hocket.train.rank import equality, worker_session

_CAUSES: Final = {
    "parameter": (
        "Likely causes: a callback set weights in one rank alone, or different weights in each rank (set the same "
        "weights in all ranks, or set them before fit()); or something other than an optimizer of Keras stepped them."
    ),
    "buffer": (
        "Likely causes: a layer counts in whole numbers, or one rank alone set the layer's weight. Say how the ranks' "
        "values are combined: add_weight(..., aggregation='sum') for counts, 'mean', or 'only_first_replica'."
    ),
    "optimizer": (
        "Likely causes: each rank sets the learning rate by its own numbers, such as the logs of a batch (use those of "
        "an epoch); or one rank alone loaded the optimizer's state."
    ),
}
"""Likely causes and remedies when ranks differ, by the kind of tensor that differs first."""


@final
class RankState(rank_states.RuntimeState):
    """A rank's strategy at work, and its prepared models.

    Args:
        session: The rank's session.
        joined: The ranks' collectives.
        strategy: How updates travel.

    Raises:
        TypeError: The strategy is for another framework.
    """

    def __init__(self, session: worker_session.WorkerSession, joined: World, strategy: strategies.Strategy) -> None:
        self.world = joined
        self.watch: Final = session.watch
        self.before_waiting: Final = session.before_waiting
        """Functions that the rank calls before it waits for the others outside a step."""
        self.prepared: list[Any] = []
        """The rank's prepared models."""
        super().__init__(joined, strategy)
        if joined.size > 1:
            self.watch.add(self._list_alike, _CAUSES)

    def _list_alike(self) -> Iterator[equality.Equal]:
        for number, prepared in enumerate(self.prepared):
            yield from prepared.list_alike(f"model {number}: " if number else "")

    def close(self) -> None:
        """Close the strategy. If the training function has ended well, compare the ranks' tensors first."""
        if sys.exception() is None:
            self.watch.end(is_counted=all(prepared.exchange.was_led for prepared in self.prepared))
        for runtime in dict.fromkeys([self.runtime, *(one.runtime for one in self.prepared)]):
            runtime.close()
