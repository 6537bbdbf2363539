"""Imports Keras with one backend where ranks are forked from, so that it is done once on a machine and not in each
rank: a module a backend.

May it be forked? After the import a process has, besides its own, threads of OpenBLAS (numpy's and scipy's) and of
jemalloc (pyarrow's), both of which see to forks themselves; TensorFlow, PyTorch and JAX start theirs with the first
operation. Measured with Keras 3.15 on TensorFlow 2.21, PyTorch 2.13 and JAX 0.10: 4 to 20 seconds of processor time a
rank, on two cores with other work, for less than one.

A Keras has one backend for good. So all ranks of a session share one, and `hocket.train.frameworks.tf_config` says
so to those that ask for another.
"""

from __future__ import annotations

import importlib
import os
import sys

from hocket.train.frameworks import tf_config


def load(backend: str) -> None:
    """Import Keras with a backend, unless it is imported."""
    if "keras" in sys.modules:
        return
    tf_config.be_quiet()  # TensorFlow asks once in a process, before the fork
    before = os.environ.get("KERAS_BACKEND")
    os.environ["KERAS_BACKEND"] = backend
    try:
        importlib.import_module("hocket.train.keras")
    finally:
        if before is None:
            del os.environ["KERAS_BACKEND"]
        else:
            os.environ["KERAS_BACKEND"] = before
