"""A model's variables as arrays, and back.

On JAX they are outside the model while ``fit`` runs; `attach` brings them back.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Sequence
from typing import Any, TypeAlias, final

import keras
import numpy as np
import numpy.typing as npt

from hocket import ps
from hocket.train import strategies
from hocket.train.frameworks.keras import served_optimizers

Array: TypeAlias = npt.NDArray[Any]


def attach(model: object) -> None:
    """Bring the model's variables up to date with the steps so far."""
    sync = getattr(model, "jax_state_sync", None)
    if sync is not None:
        sync()


def read(variable: Any) -> Array:
    """Return a copy of a variable's value. If it is spread over the ranks, all of them must call this."""
    value = variable.value
    if keras.backend.backend() == "tensorflow":  # numpy warns of Keras's own way to convert, here and below
        return np.array(value.numpy())
    if keras.backend.backend() == "torch":
        value = value.detach().cpu()
        if keras.backend.standardize_dtype(value.dtype) == "bfloat16":
            value = value.float()
        return np.array(value.numpy())
    if is_spread(variable):
        return np.array(importlib.import_module("hocket.mesh.backends.jax").gather(value))
    return np.array(keras.ops.convert_to_numpy(value))


def is_spread(variable: Any) -> bool:
    """Return whether this process has only a part of a variable's value, as with `Sharded`."""
    value = variable.value
    return keras.backend.backend() == "jax" and not (value.is_fully_addressable or value.is_fully_replicated)


def read_flat(given: Sequence[object]) -> Array:
    """Return all values in one array of float32, or of float64 if any value is."""
    return strategies.flatten([read(variable) for variable in given])


def write_flat(given: Sequence[Any], flat: Array) -> None:
    """Set values from a flat array like that of `read_flat`."""
    for variable, array in zip(given, strategies.unflatten(flat, [tuple(one.shape) for one in given]), strict=True):
        variable.assign(array)


def broadcast(given: Sequence[Any], joined: strategies.Collectives, root: int = 0) -> None:
    """Give all ranks the root's values, integers exactly. All ranks call it, with the same number of variables."""
    floats = [one for one in given if keras.backend.is_float_dtype(one.dtype)]
    flat = read_flat(floats)
    joined.broadcast(flat, root)
    write_flat(floats, flat)
    others = [one for one in given if not keras.backend.is_float_dtype(one.dtype)]
    values = joined.all_gather_object([read(one) for one in others])[root]
    for variable, value in zip(others, values, strict=True):
        variable.assign(value)


@final
class ModelVariables(strategies.HostModel):
    """The trained variables of a model, as host arrays.

    Args:
        model: The model. Its variables may be made later.
    """

    def __init__(self, model: object) -> None:
        self._model = weakref.ref(model)

    @property
    def _variables(self) -> Sequence[Any]:
        given: Sequence[object] = self._get_model().trainable_variables
        return given

    def _get_model(self) -> Any:
        model = self._model()
        assert model is not None, "it trains"
        return model

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The variables' shapes."""
        return [tuple(variable.shape) for variable in self._variables]

    def read(self) -> list[Array]:
        """Return copies of the variables."""
        attach(self._get_model())
        return [read(variable) for variable in self._variables]

    def write(self, arrays: Sequence[Array]) -> None:
        """Set the variables."""
        attach(self._get_model())
        strategies.check_shapes(arrays, self.shapes)
        for variable, array in zip(self._variables, arrays, strict=True):
            variable.assign(array)

    def list_rules(self) -> list[tuple[str, ps.Optimizer]]:
        """Return each variable's name, and the servers' equivalent of the model's optimizer for it."""
        optimizer = self._get_model().optimizer
        return [(variable.path, served_optimizers.convert(optimizer, variable)) for variable in self._variables]

    @property
    def steps_taken(self) -> int:
        """The number of steps that the optimizer has taken."""
        return int(keras.ops.convert_to_numpy(self._get_model().optimizer.iterations))

    @property
    def names(self) -> list[str]:
        """The variables' paths."""
        return [variable.path for variable in self._variables]

    @property
    def own_average(self) -> str:
        """The part of the optimizer that averages the weights over time."""
        optimizer = self._get_model().optimizer
        return f"{type(optimizer).__name__}(use_ema=True)" if getattr(optimizer, "use_ema", False) else ""
