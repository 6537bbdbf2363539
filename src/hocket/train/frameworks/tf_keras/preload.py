"""Imports TensorFlow where ranks are forked from, so that it is done once on a machine and not in each rank.

May it be forked? After the import a process has, besides its own, threads of OpenBLAS (numpy's and scipy's) and of
jemalloc (pyarrow's), both of which see to forks themselves; TensorFlow starts its own with the first operation, and
gRPC's with the first server. Measured with TensorFlow 2.21.

The import of TensorFlow brings a Keras along, by the environment. Keras 3 must not be it: it would choose its own
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
