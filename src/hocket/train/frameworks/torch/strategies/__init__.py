"""What PyTorch makes of the strategies of `hocket.train.strategies`.

`strategy` has what an override does; `all_reduce`, `local_sgd` and `parameter_server` (with `tables` and
`served_optimizers`) are three of them, on torch's own tensors; `on_arrays` drives any other strategy. `averaging`,
`sharding` and `closures` are what they share.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch.distributed as dist

from hocket.train import strategies
from hocket.train.frameworks.torch.strategies import all_reduce, local_sgd, on_arrays, parameter_server
from hocket.train.frameworks.torch.strategies.strategy import Exchange as Exchange
from hocket.train.strategies import ps_client

SHARDED: Final = "hocket.train.frameworks.torch.strategies.sharded"
"""The module of `Sharded`, which takes a second and a half to import, because of torch's: few runs need it."""


def _open_sharded(settings: strategies.Sharded, ranks: strategies.Ranks) -> Exchange:
    found: Exchange = importlib.import_module(SHARDED).Exchange(settings, ranks)
    return found


OVERRIDES: Final[Mapping[type[strategies.Strategy], Callable[[Any, strategies.Ranks], Exchange]]] = {
    strategies.AllReduce: all_reduce.Exchange,
    strategies.LocalSGD: local_sgd.Exchange,
    strategies.Sharded: _open_sharded,
    ps_client.OpenParameterServer: parameter_server.Exchange,
}
"""Which strategies PyTorch has a way of its own for: DistributedDataParallel's hooks, meetings on the tensors' device,
and tables by rows."""


def open_exchange(settings: strategies.Strategy, ranks: strategies.Ranks) -> Exchange:
    """Begin what a strategy describes in one rank: PyTorch's own way, or on host arrays.

    Raises:
        TypeError: The strategy is for another framework.
    """
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
