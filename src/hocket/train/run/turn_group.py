"""A gang whose ranks are threads of this process, which take turns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, final

from hocket.collective import turns
from hocket.core import placement
from hocket.train import configs
from hocket.train.rank import rank_placement
from hocket.train.run import worker_group


@final
class TurnGroup(worker_group.WorkerGroup):
    """Ranks of this process, for backends that set up what they need in a `WorkerGroup`. `shutdown` must be called."""

    def __init__(
        self,
        scaling: configs.ScalingConfig,
        ranks_places: Sequence[rank_placement.RankPlacement],
        process_locals: Sequence[turns.Local],
    ) -> None:
        super().__init__(placement.PlacementGroup.empty(), (), ranks_places, scaling)
        self._turns = turns.Turns(len(ranks_places), process_locals)

    shares_process = True

    def __len__(self) -> int:
        return self._turns.size

    def run(self, bodies: Sequence[Callable[[], object]]) -> list[Any]:
        """Call one function in each rank; return what they return."""
        return self._turns.run(bodies)

    def execute(self, function: Callable[..., object], args_by_rank: Sequence[tuple[object, ...]]) -> list[Any]:
        """Call a function in all ranks; return what it returns, by rank."""
        return self.run([functools.partial(function, *args) for args in args_by_rank])

    def call(self, rank: int, function: Callable[..., object], *args: object) -> Any:
        """Call a function in one rank; return what it returns."""
        bodies: list[Callable[[], object]] = [_do_nothing] * len(self)
        bodies[rank] = functools.partial(function, *args)
        return self.run(bodies)[rank]

    def shutdown(self) -> None:
        """End the threads."""
        with self.resources:
            self._turns.close()


def _do_nothing() -> None: ...
