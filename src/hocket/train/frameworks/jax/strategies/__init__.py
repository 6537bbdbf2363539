"""What JAX makes of the strategies of `hocket.train.strategies`.

`strategy` has what an override does; `all_reduce`, `local_sgd` and `parameter_server` are three of them, inside the
compiled step; `sharded` is one program over all ranks; `on_arrays` drives any other strategy. `averaging` is what they
share.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from hocket.train import strategies
from hocket.train.frameworks.jax.strategies import all_reduce, local_sgd, on_arrays, parameter_server
from hocket.train.frameworks.jax.strategies.strategy import Exchange as Exchange
from hocket.train.frameworks.jax.strategies.strategy import build_conversion_error as build_conversion_error
from hocket.train.rank import world
from hocket.train.strategies import ps_client

SHARDED: Final = "hocket.train.frameworks.jax.strategies.sharded"
"""The module of `Sharded`, which needs `hocket.mesh`: few runs do."""


def _open_sharded(settings: strategies.Sharded, ranks: strategies.Ranks) -> Exchange:
    found: Exchange = importlib.import_module(SHARDED).Exchange(settings, ranks)
    return found


OVERRIDES: Final[Mapping[type[strategies.Strategy], Callable[[Any, strategies.Ranks], Exchange]]] = {
    strategies.AllReduce: all_reduce.Exchange,
    strategies.LocalSGD: local_sgd.Exchange,
    strategies.Sharded: _open_sharded,
    ps_client.OpenParameterServer: parameter_server.Exchange,
}
"""Which strategies JAX has a way of its own for: a program carries what is remembered between steps, and meets in a
branch of it."""


def open_exchange(settings: strategies.Strategy, ranks: strategies.Ranks) -> Exchange:
    """Begin what a strategy describes in one rank: JAX's own way, or on host arrays.

    Raises:
        TypeError: The strategy is for another framework.
    """
    override = OVERRIDES.get(type(settings))
    if override is not None:
        return override(settings, ranks)
    joined = world.get_world("jax.JaxTrainer") if ranks.world_size > 1 else None
    opened = settings.open(strategies.Ranks(ranks.rank, ranks.world_size, joined))
    if isinstance(opened, Exchange):
        return opened
    if isinstance(opened, strategies.StrategyRuntime):
        return on_arrays.OnArrays(opened, type(settings).__name__, ranks)
    raise strategies.build_opened_error(settings, opened)
