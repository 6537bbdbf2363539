"""The strategies of `hocket.train.strategies` in JAX.

`strategy` has the base class of overrides. `all_reduce`, `local_sgd` and `parameter_server` are overrides that work
inside the compiled step; `sharded` is one program over all ranks. `on_arrays` drives any other strategy. Several of
them share `averaging`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from hocket.train import strategies
from hocket.train.frameworks import contract
from hocket.train.frameworks.jax.strategies import on_arrays
from hocket.train.frameworks.jax.strategies.strategy import JaxStrategy as JaxStrategy
from hocket.train.frameworks.jax.strategies.strategy import build_conversion_error as build_conversion_error
from hocket.train.rank import world
from hocket.train.strategies import parameter_server

MODULES: Final[Mapping[type[strategies.Strategy], str]] = {
    strategies.AllReduce: f"{__name__}.all_reduce",
    strategies.LocalSGD: f"{__name__}.local_sgd",
    strategies.Sharded: f"{__name__}.sharded",
    strategies.ParameterServer: f"{__name__}.parameter_server",
}
"""The module of each override. A run needs one, so it is imported on use; `Sharded` imports `hocket.mesh`."""

OVERRIDES: Final[Mapping[type[strategies.Strategy], Callable[[Any, strategies.Ranks], JaxStrategy]]] = {
    parameter_server.OpenParameterServer if kind is strategies.ParameterServer else kind: contract.open_late(
        module, f"Jax{kind.__name__}"
    )
    for kind, module in MODULES.items()
}
"""The strategies with an override in JAX. There, a program carries the state between steps, and the ranks meet in a
branch of the program."""


def open_exchange(settings: strategies.Strategy, ranks: strategies.Ranks) -> JaxStrategy:
    """Open a strategy in one rank: with JAX's override if there is one, otherwise on host arrays."""
    override = OVERRIDES.get(type(settings))
    if override is not None:
        return override(settings, ranks)
    joined = world.get_world("jax.JaxTrainer") if ranks.world_size > 1 else None
    opened = settings.open(strategies.Ranks(ranks.rank, ranks.world_size, joined))
    if isinstance(opened, JaxStrategy):
        return opened
    if isinstance(opened, strategies.StrategyRuntime):
        return on_arrays.OnArrays(opened, type(settings).__name__, ranks)
    raise strategies.build_opened_error(settings, opened)
