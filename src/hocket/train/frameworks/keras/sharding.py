"""`hocket.train.strategies.Sharded` in Keras: the part that needs no backend. `spread_models` does the work.

On JAX, Keras computes a step as one compiled function of its variables' values, so `Sharded` is JAX's there: one
program over the devices of all ranks. On TensorFlow and PyTorch each rank has its own step, and `Sharded` is refused.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Final, final

from hocket.collective.world import World
from hocket.train import strategies

JOINED: Final = "hocket.train.frameworks.keras.joined"
"""The module that joins JAX's processes; it needs JAX."""

SPREAD_MODELS: Final = "hocket.train.frameworks.keras.spread_models"
"""The module that spreads models; it needs JAX and `hocket.mesh`, which few runs do."""


@final
class Runtime(strategies.StrategyRuntime):
    """`Sharded` at work. Gradients already are those of all ranks' rows, so there is nothing left to do with them.

    Args:
        settings: The mesh and the layout.
    """

    averages_gradients = False

    def __init__(self, settings: strategies.Sharded) -> None:
        self.settings: Final = settings
        self.spread: list[Any] = []
        """The rank's spread models."""

    def close(self) -> None:
        for model in sorted(self.spread, key=lambda one: one.account.steps):
            model.account.note()  # the last note stays: that of the model with the most steps


@final
@dataclass(frozen=True)
class OnJax(strategies.Strategy):
    """`Sharded`, as Keras on JAX opens it."""

    settings: strategies.Sharded

    def open(self, ranks: strategies.Ranks) -> Runtime:
        """Open the strategy in one rank."""
        return Runtime(self.settings)


def adapt(strategy: strategies.Strategy, backend: str) -> strategies.Strategy:
    """Return the strategy that a rank opens in place of another."""
    if not isinstance(strategy, strategies.Sharded):
        return strategy
    check_backend(strategy, backend)
    return OnJax(strategy)


def check_backend(strategy: strategies.Sharded, backend: str) -> None:
    """Check that Keras's backend can spread a model."""
    if backend != "jax":
        raise ValueError(
            f"{strategy!r} spreads Keras's models on JAX only, but Keras computes with {backend!r} here. Write "
            "keras_config=KerasConfig(backend='jax') (or set KERAS_BACKEND=jax), use AllReduce(), or a TorchTrainer."
        )


def open_model(runtime: strategies.StrategyRuntime, model: object, joined: World) -> object:
    """Return a `SpreadModel` for a model; None if the strategy is not `Sharded`."""
    if not isinstance(runtime, Runtime):
        return None
    made = importlib.import_module(SPREAD_MODELS).SpreadModel(model, runtime.settings, joined)
    runtime.spread.append(made)
    return made
