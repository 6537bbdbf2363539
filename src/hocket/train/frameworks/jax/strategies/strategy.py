"""What a strategy must do: to gradients, and to an optimizer.

A strategy is a description (`hocket.train.strategies`). It is made in the driver, says nothing of a run, and travels to the ranks. There `open_exchange` makes an
`Exchange`, which does the work for one rank from the start of its training function to the end.

JAX's programs are functions, so an exchange keeps nothing: what it must remember between steps is in the optimizer's state, which the program carries along, and
which is saved with it.
"""

from __future__ import annotations

import abc
import functools
from dataclasses import dataclass
from typing import Any

from hocket import ps
from hocket.train import strategies


@dataclass(frozen=True, slots=True)
class Ranks:
    """Who takes part. If there is more than one, they are joined: `hocket.train.rank.world.get_world` is theirs."""

    rank: int
    """The calling rank."""
    world_size: int
    """How many there are."""


class Exchange(abc.ABC):
    """A strategy at work in one rank. Made by `open_exchange`.

    Its methods are called while JAX traces a program, or outside of one, in all ranks in the same order.
    """

    @abc.abstractmethod
    def average(self, gradients: Any, caller: str) -> Any:
        """Return the mean of all ranks' gradients.

        Raises:
            TypeError: A leaf is no array of floats.
            ValueError: The strategy averages elsewhere.
        """

    @abc.abstractmethod
    def adapt_optimizer(self, optimizer: Any) -> Any:
        """Return the optimizer that the rank steps with; of the same type, with another ``init`` and ``update``."""

    def adapt_server_optimizer(self, optimizer: ps.Optimizer) -> Any:
        """Return an optimizer, as optax has them, whose steps the servers take.

        Raises:
            TypeError: There are no servers.
        """
        raise TypeError(
            f"prepare_optimizer() received {optimizer!r}, which servers apply, but the strategy has no servers. Use strategy=ParameterServer(), or an optimizer of optax."
        )

    @abc.abstractmethod
    def synchronize(self, params: Any, state: Any) -> tuple[Any, Any]:
        """Return parameters that are equal in all ranks, and the optimizer's state to go on with."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what is held. Called when the training function has returned or raised."""


@functools.singledispatch
def open_exchange(strategy: strategies.Strategy, ranks: Ranks) -> Exchange:
    """Begin in one rank. Called before its training function uses JAX; no collectives yet.

    Raises:
        TypeError: JAX's adapter does not know the strategy.
    """
    raise TypeError(
        f"JaxTrainer does not know the strategy {strategy!r}. Use AllReduce, LocalSGD or ParameterServer, or register how it works with "
        "hocket.train.frameworks.jax.strategies.open_exchange.register."
    )
