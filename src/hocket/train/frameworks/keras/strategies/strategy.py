"""What a strategy must do in Keras: with a step's gradients, and after a step.

Keras has one place through which all gradients go, on each backend and compiled or not: ``Optimizer.apply``. What happens there is `Exchange.average`. It is
called on the host, with one flat array, in the middle of the compiled step, so it must not touch the model.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from hocket.collective.world import World
from hocket.train import strategies
from hocket.train.frameworks.keras import bridges


class Exchange(abc.ABC):
    """A strategy at work in one rank. Made by `open_exchange`.

    `average` is called once for each step of the optimizer, in whatever thread the backend computes, and in all ranks in the same order; the other methods in
    the thread that trains, between steps. All may use collectives.
    """

    averages_gradients: bool = True
    """Whether gradients go through `average` at all."""
    takes_steps: bool = False
    """Whether `average` returns what the variables become, and the optimizer is not to step."""

    @abc.abstractmethod
    def follow_model(self) -> Exchange:
        """Return what is at work for one more model, which trains beside those before it or after them: itself, if it keeps nothing of a model.

        Raises:
            ValueError: There can be no more.
        """

    @abc.abstractmethod
    def average(self, flat: npt.NDArray[Any], rows: float) -> None:
        """Turn this rank's gradients into those of all, in place.

        Args:
            flat: All of them, and a last element that has no meaning and may be used.
            rows: Of how many rows they are the mean; 0 if they shall not count. If it takes steps: the learning rate; 0 for no step.
        """

    @abc.abstractmethod
    def gather(self, slices: Sequence[bridges.Slices], rows: float) -> Sequence[bridges.Slices]:
        """Return the gradients of all ranks where those of some rows are not made whole; not called if it takes steps.

        Called before `average`, in the same way.

        Args:
            slices: For each such variable, which of its rows, and their gradients.
            rows: As in `average`.
        """

    @abc.abstractmethod
    def choose(self, numbers: Sequence[int]) -> None:
        """Say which of the trainable variables have gradients, if it takes steps. Called when a step is traced."""

    @property
    def has_begun(self) -> bool:
        """Whether the ranks' weights may be other than rank 0's when ``fit`` begins."""
        return False

    @abc.abstractmethod
    def begin(self, model: Any) -> None:
        """Called when ``fit`` begins and the ranks' weights are equal."""

    @abc.abstractmethod
    def begin_epoch(self, model: Any) -> None:
        """Called when an epoch begins."""

    @abc.abstractmethod
    def after_steps(self, model: Any, count: int) -> None:
        """Called when steps are taken."""

    @abc.abstractmethod
    def synchronize(self, model: Any) -> None:
        """Make the ranks' weights equal, where they may differ now."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what is held. Called when the training function has returned or raised."""


@functools.singledispatch
def open_exchange(settings: strategies.Strategy, joined: World) -> Exchange:
    """Begin what a strategy describes in one rank. Registered for each that Keras has.

    Raises:
        TypeError: Keras does not have it.
    """
    raise TypeError(
        f"hocket.train.keras does not have the strategy {settings!r}. Use AllReduce(), LocalSGD(8) or ParameterServer()."
    )
