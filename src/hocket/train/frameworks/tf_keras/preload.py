"""Imports TensorFlow in the process from which ranks are forked: once per machine, not in each rank.

A fork after the import is safe. Besides its own, the process then has threads of OpenBLAS (numpy's and scipy's) and of
jemalloc (pyarrow's), which both handle forks. TensorFlow starts its own with the first operation, and gRPC's with the
first server. Measured with TensorFlow 2.21.

TensorFlow's import brings a Keras along, which the environment chooses. It must not be Keras 3, which would choose its
backend then, for all ranks of the session. So the environment names the other one.
"""

from __future__ import annotations

import importlib
import os

from hocket.train.frameworks import tf_config

tf_config.be_quiet()  # TensorFlow reads it once in a process, before the fork
_before = os.environ.get(tf_config.LEGACY_KERAS)
os.environ[tf_config.LEGACY_KERAS] = "1"
try:
    importlib.import_module("tensorflow")
finally:
    if _before is None:
        del os.environ[tf_config.LEGACY_KERAS]
    else:
        os.environ[tf_config.LEGACY_KERAS] = _before
