"""A model's variables as arrays, and back. On JAX they are elsewhere while ``fit`` runs; `attach` brings them into the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt


def attach(model: Any) -> None:
    """Have the model's variables be what the steps so far have made of them."""
    sync = getattr(model, "jax_state_sync", None)
    if sync is not None:
        sync()


def read(variable: Any) -> npt.NDArray[Any]:
    """Return a copy of a variable's value."""
    value = variable.value
    if keras.backend.backend() == "tensorflow":  # Keras asks numpy, here and below, in a way that numpy warns of
        return np.array(value.numpy())
    if keras.backend.backend() == "torch":
        value = value.detach().cpu()
        if keras.backend.standardize_dtype(value.dtype) == "bfloat16":
            value = value.float()
        return np.array(value.numpy())
    return np.array(keras.ops.convert_to_numpy(value))


def read_flat(given: Sequence[Any]) -> npt.NDArray[Any]:
    """Return all values in one array of float32, or of float64 if one of them is."""
    arrays = [read(variable) for variable in given]
    dtype = np.float64 if any(array.dtype == np.float64 for array in arrays) else np.float32
    return np.concatenate([array.reshape(-1).astype(dtype) for array in arrays]) if arrays else np.zeros(0, dtype)


def write_flat(given: Sequence[Any], flat: npt.NDArray[Any]) -> None:
    """Set values from what `read_flat` returned, or what was made of it."""
    start = 0
    for variable in given:
        size = int(np.prod(variable.shape))
        variable.assign(flat[start : start + size].reshape(variable.shape))
        start += size
