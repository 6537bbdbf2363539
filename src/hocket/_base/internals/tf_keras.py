"""Undocumented names of tf-keras."""

from __future__ import annotations

from typing import Any

from tf_keras.src.saving import saving_lib


def save(model: Any, path: str) -> None:
    """Write a ``.keras`` file, in any thread. `Model.save` does so only in the main thread.

    Raises:
        NotImplementedError: The format cannot store a model of this class.
    """
    saving_lib.save_model(model, path)
