"""Imports Keras with one backend in the process from which ranks are forked: once per machine. Each backend has a
module.

A fork after the import is safe. Besides its own, the process then has threads of OpenBLAS (numpy's and scipy's) and of
jemalloc (pyarrow's), which both handle forks. TensorFlow, PyTorch and JAX start theirs with the first operation.
Measured with Keras 3.15 on TensorFlow 2.21, PyTorch 2.13 and JAX 0.10, on two cores with other work: 4 to 20 seconds of
processor time per rank become less than one.

A process's Keras has one backend for good. So all ranks of a session share one; `tf_config` refuses any other.
"""

from __future__ import annotations

import importlib
import os
import sys

from hocket.train.frameworks import tf_config


def load(backend: str) -> None:
    """Import Keras with a backend, unless Keras is imported."""
    if "keras" in sys.modules:
        return
    tf_config.be_quiet()  # TensorFlow reads the setting once in a process, before the fork
    before = os.environ.get("KERAS_BACKEND")
    os.environ["KERAS_BACKEND"] = backend
    try:
        importlib.import_module("hocket.train.keras")
    finally:
        if before is None:
            del os.environ["KERAS_BACKEND"]
        else:
            os.environ["KERAS_BACKEND"] = before
