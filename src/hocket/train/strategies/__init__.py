"""Strategies: how updates travel between ranks.

A trainer takes a strategy, ``TorchTrainer(strategy=...)``; the training function does not change.

The modules here have descriptions of strategies and their work on host arrays, the same for all frameworks. If a
framework does better on its own objects (DistributedDataParallel's hooks, a meeting inside a compiled step, tables by
rows), its adapter has an override. `hosting` has the parts of strategies in the driver, `ps_client` the ranks' access
to servers.
"""

from hocket.train.strategies.all_reduce import AllReduce as AllReduce
from hocket.train.strategies.all_reduce import PowerSGD as PowerSGD
from hocket.train.strategies.local_sgd import LocalSGD as LocalSGD
from hocket.train.strategies.local_sgd import Nesterov as Nesterov
from hocket.train.strategies.parameter_server import ParameterServer as ParameterServer
from hocket.train.strategies.sharded import Sharded as Sharded
from hocket.train.strategies.strategy import Alike as Alike
from hocket.train.strategies.strategy import Array as Array
from hocket.train.strategies.strategy import Collectives as Collectives
from hocket.train.strategies.strategy import HostModel as HostModel
from hocket.train.strategies.strategy import NativeStrategy as NativeStrategy
from hocket.train.strategies.strategy import Ranks as Ranks
from hocket.train.strategies.strategy import Strategy as Strategy
from hocket.train.strategies.strategy import StrategyRuntime as StrategyRuntime
from hocket.train.strategies.strategy import average as average
from hocket.train.strategies.strategy import build_opened_error as build_opened_error
from hocket.train.strategies.strategy import check_shapes as check_shapes
from hocket.train.strategies.strategy import flatten as flatten
from hocket.train.strategies.strategy import flatten_gradients as flatten_gradients
from hocket.train.strategies.strategy import open_next as open_next
from hocket.train.strategies.strategy import take_step as take_step
from hocket.train.strategies.strategy import unflatten as unflatten
