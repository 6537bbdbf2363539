"""tf-keras's names."""

from __future__ import annotations

from typing import Any

from tf_keras.src.saving import saving_lib


def save(model: Any, path: str) -> None:
    """Write a ``.keras`` file. `Model.save` writes one in the main thread only.

    Raises:
        NotImplementedError: The model is of a class that cannot be saved so.
    """
    saving_lib.save_model(model, path)
