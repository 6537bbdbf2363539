"""The base of a strategy's override in JAX: its effect on gradients, and on an optimizer.

JAX's programs are functions, so an override keeps nothing between steps itself. It puts such values into the
optimizer's state, which the program carries along, and which is saved with it. A strategy without an override works on
host arrays (`on_arrays`).
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import jax

from hocket import ps
from hocket.train import strategies
from hocket.train.frameworks.jax import trees


class JaxStrategy(strategies.NativeStrategy):
    """A strategy at work in one rank, on pytrees.

    If there are several ranks, they are joined: `hocket.train.world.get_world` returns their collectives.

    The methods are called while JAX traces a program, or outside a program, in all ranks in the same order.
    """

    needs_equal_rows: bool = False
    """Whether a batch must have the same number of rows in all ranks."""

    is_prepared: bool = False
    """Whether an optimizer was prepared."""

    def check_prepared(self, name: str, where: str, caller: str) -> None:
        """Raise if nothing of a rank's gradients would reach the others.

        Args:
            name: The strategy's.
            where: Where it works, in words.
            caller: The function that the program called instead, for the message.

        Raises:
            ValueError: No optimizer was prepared.
        """
        if not self.is_prepared:
            raise ValueError(
                f"With {name} {where}, and {caller}() leaves each rank its own gradients. Write optimizer = "
                "prepare_optimizer(optimizer) before the first step, or use the strategy AllReduce."
            )

    @abc.abstractmethod
    def average(self, gradients: object, caller: str) -> Any:
        """Return the gradients that the rank steps with: the mean of all ranks', if ranks share gradients; else its
        own, of which the prepared optimizer makes the rest.

        Raises:
            TypeError: A leaf is no array of floats.
            ValueError: The strategy works in the optimizer, and none was prepared.
        """

    @abc.abstractmethod
    def adapt_optimizer(self, optimizer: object) -> Any:
        """Return the optimizer with which the rank steps: of the same type, with another ``init`` and ``update``."""

    def adapt_server_optimizer(self, optimizer: ps.Optimizer) -> Any:
        """Return an optimizer in optax's form. The servers take its steps.

        Raises:
            TypeError: The strategy has no servers.
        """
        raise TypeError(
            f"prepare_optimizer() received {optimizer!r}, an optimizer for servers, but the strategy has no servers. "
            "Use strategy=ParameterServer(), or an optimizer of optax."
        )

    @property
    def random_rank(self) -> int | None:
        """The rank's number in its own random keys, if it differs from the rank. Ranks that compute one program
        together must all have the same number. Default: None."""
        return None

    def place_params(self, leaves: Sequence[trees.Leaf], values: Sequence[object]) -> list[Any]:
        """Return values that are equal in all ranks as the rank trains them. All ranks call it. Default: unchanged.

        Args:
            leaves: The descriptions of the values.
            values: Arrays, or random keys.

        Raises:
            ValueError: The values cannot be placed so.
        """
        return list(values)

    def place_batch(self, arrays: Sequence[object], device: object) -> list[Any]:
        """Return the rank's rows of a batch, given as numpy arrays, ready for a step. Default: on the rank's device."""
        found: list[Any] = jax.device_put(list(arrays), device)
        return found

    def read_rows(self, array: object) -> Any:
        """Return the rank's own rows of an array that a step made of a batch. All ranks call it. Default: the array."""
        return array

    def synchronize(self, params: object, state: object) -> tuple[Any, Any]:
        """Return parameters that are equal in all ranks, and the optimizer's state that goes with them."""
        return params, state


def build_conversion_error() -> ValueError:
    """Return the error for an optimizer that servers cannot apply."""
    return ValueError(
        "An optimizer of optax is a function, which servers cannot apply. Give prepare_optimizer() an optimizer of "
        "hocket.ps, with strategy=ParameterServer()."
    )
