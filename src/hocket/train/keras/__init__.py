"""Keras 3 on any of its backends (TensorFlow, PyTorch, JAX): one model, trained by all ranks.

`config` chooses the ranks' backend and joins them. `trainer` is the entry. The training function calls `models`,
`loaders`, `evaluation`, `checkpoints`, `callbacks` and `seeds`; `rank_state` has the rank's strategy. `bridges` lead
from the gradients in a compiled step to Hocket's collectives. With `Sharded` on JAX, a step is one program of all
ranks, by `sharding`, `joined` and `spread_models`.
Importing this package imports Keras, and with it the backend that KERAS_BACKEND names.
"""

from hocket import extras as _extras

with _extras.explain(
    "hocket.train.keras",
    "Keras 3 and one of TensorFlow, PyTorch and JAX",
    "Run pip install 'hocket[keras]', and 'hocket[tensorflow]', 'hocket[torch]' or 'hocket[jax]'.",
):
    import keras as _keras
if not _keras.__version__.startswith("3."):
    raise ImportError(
        f"hocket.train.keras needs Keras 3, but this is Keras {_keras.__version__}. Run pip install 'hocket[keras]'; "
        "for Keras 2 there is hocket.train.tensorflow."
    )

from hocket.train.frameworks.keras.callbacks import ReportCheckpointCallback as ReportCheckpointCallback
from hocket.train.frameworks.keras.checkpoints import load_weights as load_weights
from hocket.train.frameworks.keras.checkpoints import save_weights as save_weights
from hocket.train.frameworks.keras.config import KerasConfig as KerasConfig
from hocket.train.frameworks.keras.evaluation import GlobalMean as GlobalMean
from hocket.train.frameworks.keras.loaders import PreparedArrays as PreparedArrays
from hocket.train.frameworks.keras.loaders import prepare_arrays as prepare_arrays
from hocket.train.frameworks.keras.models import prepare_model as prepare_model
from hocket.train.frameworks.keras.models import synchronize as synchronize
from hocket.train.frameworks.keras.seeds import enable_reproducibility as enable_reproducibility
from hocket.train.frameworks.keras.trainer import KerasTrainer as KerasTrainer
from hocket.train.strategies import AllReduce as AllReduce
from hocket.train.strategies import LocalSGD as LocalSGD
from hocket.train.strategies import Nesterov as Nesterov
from hocket.train.strategies import ParameterServer as ParameterServer
from hocket.train.strategies import Sharded as Sharded
