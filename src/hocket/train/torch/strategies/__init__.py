"""Strategies: how updates travel between ranks. One is given to `TorchTrainer(strategy=...)`; the training function does not change.

`strategy` has what a strategy must do, `all_reduce` and `local_sgd` are two of them, `averaging` is what they share.
"""

from hocket.train.torch.strategies.all_reduce import AllReduce as AllReduce
from hocket.train.torch.strategies.all_reduce import PowerSGD as PowerSGD
from hocket.train.torch.strategies.local_sgd import LocalSGD as LocalSGD
from hocket.train.torch.strategies.local_sgd import Nesterov as Nesterov
from hocket.train.torch.strategies.strategy import Exchange as Exchange
from hocket.train.torch.strategies.strategy import Ranks as Ranks
from hocket.train.torch.strategies.strategy import Strategy as Strategy
