"""Keras 3's implementation of the framework contract, on the backend of this process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final, final

import keras
import numpy as np

from hocket import ps
from hocket.train import strategies
from hocket.train.frameworks import contract
from hocket.train.frameworks.keras import (
    bridges,
    checkpoints,
    config,
    rank_state,
    served_optimizers,
    sharding,
    variables,
)
from hocket.train.rank import worker_session, world


@final
class KerasFramework(contract.Framework[rank_state.RankState]):
    """Keras 3. It has one loop, and one place through which all gradients go, so only `Sharded` needs an override
    (`sharding`)."""

    name = "keras"

    def build_config(self) -> config.KerasConfig:
        return config.KerasConfig()

    def open(
        self, session: worker_session.WorkerSession, strategy: strategies.Strategy, caller: str
    ) -> rank_state.RankState:
        adapted = sharding.adapt(strategy, keras.backend.backend())
        return rank_state.RankState(session, world.get_world(caller), adapted)

    def to_host(self, values: object, caller: str) -> strategies.Array:
        try:
            found: strategies.Array = np.asarray(keras.ops.convert_to_numpy(values))
        except NotImplementedError as error:  # TensorFlow's, for a tensor that is only being traced
            raise TypeError(
                f"{caller} was called inside a compiled step, where there are no numbers yet. Call it in a callback."
            ) from error
        if found.dtype.kind == "O":
            raise TypeError(
                f"{caller} takes an array of numbers, but received {values!r}. Write numpy.asarray(values)."
            )
        return found

    def from_host(self, array: strategies.Array) -> object:
        return keras.ops.convert_to_tensor(array, dtype=str(array.dtype))

    def cross(self, arrays: Sequence[Any], change: contract.Change) -> list[object]:
        sizes = np.cumsum([int(np.prod(array.shape, dtype=np.int64)) for array in arrays])
        crossing = bridges.Crossing(lambda flat, _: change(np.split(flat, sizes)[:-1]))
        return crossing.average(list(arrays), 0.0)

    def list_weights(self, model: Any) -> list[tuple[str, strategies.Array]]:
        variables.attach(model)
        return [(variable.path, variables.read(variable)) for variable in model.weights]

    def set_weights(self, model: Any, arrays: Sequence[strategies.Array]) -> object:
        for variable, array in zip(model.weights, arrays, strict=True):
            variable.assign(array)
        return model

    def save_weights(self, model: object, folder: str | os.PathLike[str]) -> None:
        checkpoints.save_weights(model, folder)

    def load_weights(self, model: object, folder: str | os.PathLike[str]) -> object:
        checkpoints.load_weights(model, folder)
        return model

    def convert_optimizer(self, optimizer: object, parameter: object) -> ps.Optimizer:
        return served_optimizers.convert(optimizer, parameter)

    def seed(self, seed: int) -> None:
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            keras.utils.set_random_seed(seed)
            tf.config.experimental.enable_op_determinism()
        elif keras.backend.backend() == "torch":
            import torch

            torch.manual_seed(seed)
            torch.use_deterministic_algorithms(True)


FRAMEWORK: Final = KerasFramework()
