"""PyTorch: DistributedDataParallel across the ranks.

`config` joins the ranks into a process group. `trainer` is the entry. The training function calls `models`,
`optimizers`, `loaders` (with `samplers`), `evaluation`, `devices` and `seeds`; `rank_state` has the objects that it has
prepared. `strategies` define how updates travel. Importing this package imports torch.
"""

import typing as _typing
from importlib import import_module as _import_module

from hocket import extras as _extras
from hocket._base import missing as _missing

with _extras.explain("hocket.train.torch", "PyTorch", "Run pip install 'hocket[torch]'."):
    _import_module("torch")

if _typing.TYPE_CHECKING:
    from hocket.train.frameworks.torch.checkpoints import load_model as load_model
    from hocket.train.frameworks.torch.checkpoints import save_model as save_model
    from hocket.train.frameworks.torch.config import TorchConfig as TorchConfig
    from hocket.train.frameworks.torch.devices import get_device as get_device
    from hocket.train.frameworks.torch.devices import get_devices as get_devices
    from hocket.train.frameworks.torch.evaluation import GlobalMean as GlobalMean
    from hocket.train.frameworks.torch.loaders import PreparedDataLoader as PreparedDataLoader
    from hocket.train.frameworks.torch.loaders import prepare_data_loader as prepare_data_loader
    from hocket.train.frameworks.torch.models import no_sync as no_sync
    from hocket.train.frameworks.torch.models import prepare_model as prepare_model
    from hocket.train.frameworks.torch.models import synchronize as synchronize
    from hocket.train.frameworks.torch.optimizers import accelerate as accelerate
    from hocket.train.frameworks.torch.optimizers import backward as backward
    from hocket.train.frameworks.torch.optimizers import prepare_optimizer as prepare_optimizer
    from hocket.train.frameworks.torch.seeds import enable_reproducibility as enable_reproducibility
    from hocket.train.frameworks.torch.strategies import TorchStrategy as TorchStrategy
    from hocket.train.frameworks.torch.trainer import TorchTrainer as TorchTrainer
    from hocket.train.strategies import AllReduce as AllReduce
    from hocket.train.strategies import LocalSGD as LocalSGD
    from hocket.train.strategies import Nesterov as Nesterov
    from hocket.train.strategies import ParameterServer as ParameterServer
    from hocket.train.strategies import PowerSGD as PowerSGD
    from hocket.train.strategies import Ranks as Ranks
    from hocket.train.strategies import Sharded as Sharded
    from hocket.train.strategies import Strategy as Strategy

_missing.explain(__name__)
