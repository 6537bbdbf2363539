"""Strategies: how updates travel between ranks. One is given to a trainer, ``TorchTrainer(strategy=...)``; the training function does not change.

These are descriptions, the same for all frameworks. What each framework makes of them is in the ``strategies`` of its adapter.
"""

from hocket.train.strategies.all_reduce import AllReduce as AllReduce
from hocket.train.strategies.all_reduce import PowerSGD as PowerSGD
from hocket.train.strategies.local_sgd import LocalSGD as LocalSGD
from hocket.train.strategies.local_sgd import Nesterov as Nesterov
from hocket.train.strategies.parameter_server import ParameterServer as ParameterServer
from hocket.train.strategies.strategy import Strategy as Strategy
