"""Chooses the backend of Keras 3 in a process.

Without Keras, which settles that when it is imported: so this is not in `hocket.train.keras`.
"""

from __future__ import annotations

import os
import sys

from hocket.train.frameworks import tf_config


def choose_backend(name: str, num_threads: int) -> None:
    """Have the calling process's Keras compute with a backend.

    Args:
        name: What KERAS_BACKEND shall be.
        num_threads: How many threads an operation may use.
    """
    keras = sys.modules.get("keras")
    if keras is not None and keras.backend.backend() != name:
        found = keras.backend.backend()
        raise RuntimeError(
            f"KerasConfig asks for backend={name!r}, but the processes of this session have imported Keras with "
            f"{found!r}, and cannot change it. Use one backend in a session: call hocket.shutdown() before the next."
        )
    os.environ["KERAS_BACKEND"] = name
    tf_config.set_threads(num_threads)
    tf_config.be_quiet()
