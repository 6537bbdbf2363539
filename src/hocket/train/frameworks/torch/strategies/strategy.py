"""What a strategy must do: to a model, to an optimizer, and at a step.

A strategy is a description (`hocket.train.strategies`). It is made in the driver, says nothing of a run, and travels to the ranks. There `open_exchange` makes an
`Exchange`, which does the work for one rank from the start of its training function to the end. The training function calls neither:
`prepare_model`, `prepare_optimizer` and the optimizer's own ``step`` do.

The surface is no larger because everything else is the framework's: the forward pass, the gradients, what an optimizer computes. Each strategy that
DESIGN names fits into it. All-reduce wraps the model. Local SGD leaves the model alone and works after the step. A parameter server fetches before the
forward pass (a hook that `adapt_model` sets) and pushes in place of the step (the optimizer that `adapt_optimizer` returns). A sharded mesh replaces
the model's parameters.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from hocket.train import strategies


@dataclass(frozen=True, slots=True)
class Ranks:
    """Who takes part. If there is more than one, they are joined: ``torch.distributed``'s default group is theirs."""

    rank: int
    """The calling rank."""
    world_size: int
    """How many there are."""


class Exchange(abc.ABC):
    """A strategy at work in one rank. Made by `open_exchange`.

    All calls come from the rank's own thread that trains, and in all ranks in the same order, so each may use collectives. `before_step` and
    `after_step` are called around each ``step()`` of an optimizer that `adapt_optimizer` was given, and of no other. A strategy may keep references to
    what it is given until `close`.
    """

    needs_optimizer: bool = False
    """Whether nothing travels unless the model's optimizer was prepared. Then the step of one that was not is an error that says so."""
    shares_gradients: bool = True
    """Whether all ranks step with the same gradients, so that what is decided from them (to leave out a step) is the same everywhere."""

    @abc.abstractmethod
    def adapt_model(
        self, model: torch.nn.Module, parallel_strategy: str, options: Mapping[str, Any], device: torch.device
    ) -> torch.nn.Module:
        """Return the model that the rank trains: equal in all ranks if it is not split.

        Args:
            model: On its device. Not called for one that the user wants to be left alone.
            parallel_strategy: ``"ddp"``, which stands for the strategy's own way too, or ``"fsdp"``.
            options: The user's keyword arguments for it.
            device: Where the rank computes.

        Raises:
            ValueError: The strategy cannot do that.
        """

    @abc.abstractmethod
    def adapt_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Return the optimizer that the rank steps with.

        Raises:
            ValueError: It steps a model that the strategy must know and does not.
        """

    @abc.abstractmethod
    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Called when the gradients are there and the step is not taken yet."""

    @abc.abstractmethod
    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Called when the step is taken."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Make the ranks' models equal, where they may differ now."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what is held. Called when the training function has returned or raised; the other ranks may be gone, so no collectives."""


class Strategy(strategies.Strategy, abc.ABC):
    """A strategy of one's own, for PyTorch. A description: immutable, picklable, without a run's state."""

    @abc.abstractmethod
    def open(self, ranks: Ranks) -> Exchange:
        """Begin in one rank. Called before its training function uses torch; no collectives yet."""


@functools.singledispatch
def open_exchange(settings: strategies.Strategy, ranks: Ranks) -> Exchange:
    """Begin what a strategy describes in one rank. Registered for each that PyTorch has.

    Raises:
        TypeError: PyTorch does not have it.
    """
    raise TypeError(
        f"hocket.train.torch does not have the strategy {settings!r}. Use AllReduce(), LocalSGD(8) or ParameterServer(), or derive one from hocket.train.torch.Strategy."
    )


@open_exchange.register
def _(settings: Strategy, ranks: Ranks) -> Exchange:
    return settings.open(ranks)
