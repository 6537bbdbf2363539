"""What JAX makes of the strategies of `hocket.train.strategies`.

`strategy` has what one must do, `all_reduce`, `local_sgd` and `parameter_server` are three of them, `averaging` is what they share.
"""

from hocket.train.frameworks.jax.strategies import all_reduce as all_reduce
from hocket.train.frameworks.jax.strategies import local_sgd as local_sgd
from hocket.train.frameworks.jax.strategies import parameter_server as parameter_server
from hocket.train.frameworks.jax.strategies.strategy import Exchange as Exchange
from hocket.train.frameworks.jax.strategies.strategy import Ranks as Ranks
from hocket.train.frameworks.jax.strategies.strategy import open_exchange as open_exchange
