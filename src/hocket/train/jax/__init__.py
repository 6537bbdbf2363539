"""JAX: gradients of jitted steps are averaged over the ranks, through shared memory.

`config` sets JAX up in the ranks and joins them. `trainer` is the entry. The training function calls `models`,
`optimizers`, `loaders`, `evaluation`, `devices`, `seeds` and `checkpoints`. `strategies` define how updates travel.
Below them, `trees` finds arrays by name, `host_calls` lets a compiled step call Python, and `frames` reads the frames
that XLA passes to such a call. Importing this package imports jax.
"""

from importlib import import_module as _import_module

from hocket import extras as _extras

with _extras.explain("hocket.train.jax", "JAX 0.5 or newer", "Run pip install 'hocket[jax]'."):
    _import_module("jax.ffi")  # new in jax 0.5

from hocket.train.frameworks.jax.checkpoints import load_pytree as load_pytree
from hocket.train.frameworks.jax.checkpoints import save_pytree as save_pytree
from hocket.train.frameworks.jax.config import JaxConfig as JaxConfig
from hocket.train.frameworks.jax.devices import get_device as get_device
from hocket.train.frameworks.jax.evaluation import GlobalMean as GlobalMean
from hocket.train.frameworks.jax.loaders import PreparedArrays as PreparedArrays
from hocket.train.frameworks.jax.loaders import prepare_arrays as prepare_arrays
from hocket.train.frameworks.jax.loaders import prepare_batch as prepare_batch
from hocket.train.frameworks.jax.models import gather as gather
from hocket.train.frameworks.jax.models import prepare_params as prepare_params
from hocket.train.frameworks.jax.models import synchronize as synchronize
from hocket.train.frameworks.jax.optimizers import average_gradients as average_gradients
from hocket.train.frameworks.jax.optimizers import prepare_optimizer as prepare_optimizer
from hocket.train.frameworks.jax.seeds import enable_reproducibility as enable_reproducibility
from hocket.train.frameworks.jax.seeds import fold_in_rank as fold_in_rank
from hocket.train.frameworks.jax.seeds import split_key as split_key
from hocket.train.frameworks.jax.trainer import JaxTrainer as JaxTrainer
from hocket.train.strategies import AllReduce as AllReduce
from hocket.train.strategies import LocalSGD as LocalSGD
from hocket.train.strategies import Nesterov as Nesterov
from hocket.train.strategies import ParameterServer as ParameterServer
from hocket.train.strategies import Sharded as Sharded
