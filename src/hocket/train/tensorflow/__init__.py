"""TensorFlow: programs for MultiWorkerMirroredStrategy, with tf-keras, and for ParameterServerStrategy run unchanged.

`config` sets TF_CONFIG in the ranks, and `parameter_servers` does so in clusters with servers. `trainer` is the entry.
The training function uses `loaders` and `keras` (the callback that reports). TensorFlow itself moves the gradients; for
Hocket's collectives and Keras 3, see `hocket.train.keras`.

Importing this package does not import TensorFlow, which takes seconds; the ranks do. `hocket.train.tensorflow.keras`
imports it.
"""

from hocket import extras as _extras
from hocket._base import missing as _missing
from hocket.train.frameworks.tf_keras.config import TensorflowConfig as TensorflowConfig
from hocket.train.frameworks.tf_keras.loaders import prepare_dataset_shard as prepare_dataset_shard
from hocket.train.frameworks.tf_keras.parameter_servers import ParameterServers as ParameterServers
from hocket.train.frameworks.tf_keras.trainer import TensorflowTrainer as TensorflowTrainer

_extras.check("tensorflow", "hocket.train.tensorflow", "TensorFlow", "Run pip install 'hocket[tensorflow]'.")
_missing.explain(__name__)
