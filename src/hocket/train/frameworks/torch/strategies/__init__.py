"""The strategies of `hocket.train.strategies` in PyTorch.

`strategy` has what an override does; `all_reduce`, `local_sgd` and `parameter_server` (with `tables` and
`served_optimizers`) are three of them, on torch's own tensors; `on_arrays` drives any other strategy. `averaging`,
`sharding` and `closures` are what they share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch.distributed as dist

from hocket.train import strategies
from hocket.train.frameworks import contract
from hocket.train.frameworks.torch.strategies import on_arrays
from hocket.train.frameworks.torch.strategies.strategy import Exchange as Exchange
from hocket.train.strategies import parameter_server

MODULES: Final[Mapping[type[strategies.Strategy], str]] = {
    strategies.AllReduce: f"{__name__}.all_reduce",
    strategies.LocalSGD: f"{__name__}.local_sgd",
    strategies.Sharded: f"{__name__}.sharded",
    strategies.ParameterServer: f"{__name__}.parameter_server",
}
"""Where a strategy's own way is. A run has one, so it is imported by name, on use; `Sharded` brings `hocket.mesh` and a
second and a half of torch's own."""

OVERRIDES: Final[Mapping[type[strategies.Strategy], Callable[[Any, strategies.Ranks], Exchange]]] = {
    parameter_server.OpenParameterServer if kind is strategies.ParameterServer else kind: contract.open_late(module)
    for kind, module in MODULES.items()
}
"""Which strategies PyTorch has a way of its own for: DistributedDataParallel's hooks, meetings on the tensors' device,
and tables by rows."""


def open_exchange(settings: strategies.Strategy, ranks: strategies.Ranks) -> Exchange:
    """Begin what a strategy describes in one rank: PyTorch's own way, or on host arrays."""
    override = OVERRIDES.get(type(settings))
    if override is not None:
        return override(settings, ranks)
    if ranks.world_size > 1 and dist.is_initialized():
        ranks = strategies.Ranks(ranks.rank, ranks.world_size, on_arrays.GroupCollectives())
    opened = settings.open(ranks)
    if isinstance(opened, Exchange):
        return opened
    if isinstance(opened, strategies.StrategyRuntime):
        return on_arrays.OnArrays(opened, type(settings).__name__, ranks)
    raise strategies.build_opened_error(settings, opened)
