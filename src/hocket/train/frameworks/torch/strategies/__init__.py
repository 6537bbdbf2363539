"""The strategies of `hocket.train.strategies` in PyTorch.

`strategy` has the base class of overrides. `all_reduce`, `local_sgd` and `parameter_server` (with `tables` and
`served_optimizers`) are overrides on torch's own tensors; `on_arrays` drives any other strategy. Several of them share
`averaging`, `sharding` and `closures`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch.distributed as dist

from hocket.train import strategies
from hocket.train.frameworks import contract
from hocket.train.frameworks.torch.strategies import on_arrays
from hocket.train.frameworks.torch.strategies.strategy import TorchStrategy as TorchStrategy
from hocket.train.strategies import parameter_server

MODULES: Final[Mapping[type[strategies.Strategy], str]] = {
    strategies.AllReduce: f"{__name__}.all_reduce",
    strategies.LocalSGD: f"{__name__}.local_sgd",
    strategies.Sharded: f"{__name__}.sharded",
    strategies.ParameterServer: f"{__name__}.parameter_server",
}
"""The module of each override. A run needs only one, so it is imported by name on use; `Sharded` imports `hocket.mesh`,
and modules of torch's for a second and a half."""

OVERRIDES: Final[Mapping[type[strategies.Strategy], Callable[[Any, strategies.Ranks], TorchStrategy]]] = {
    parameter_server.OpenParameterServer if kind is strategies.ParameterServer else kind: contract.open_late(
        module, f"Torch{kind.__name__}"
    )
    for kind, module in MODULES.items()
}
"""The strategies with an override in PyTorch: DistributedDataParallel's hooks, meetings on the tensors' device, and
tables by rows."""


def open_exchange(settings: strategies.Strategy, ranks: strategies.Ranks) -> TorchStrategy:
    """Open a strategy in one rank: with PyTorch's override if there is one, otherwise on host arrays."""
    override = OVERRIDES.get(type(settings))
    if override is not None:
        return override(settings, ranks)
    if ranks.world_size > 1 and dist.is_initialized():
        ranks = strategies.Ranks(ranks.rank, ranks.world_size, on_arrays.GroupCollectives())
    opened = settings.open(ranks)
    if isinstance(opened, TorchStrategy):
        return opened
    if isinstance(opened, strategies.StrategyRuntime):
        return on_arrays.OnArrays(opened, type(settings).__name__, ranks)
    raise strategies.build_opened_error(settings, opened)
