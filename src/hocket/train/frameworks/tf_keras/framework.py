"""The implementation of the framework contract for TensorFlow with tf-keras. Importing it imports TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, final

import numpy as np
import tensorflow as tf
import tf_keras

from hocket import ps
from hocket.collective.world import World
from hocket.train import strategies
from hocket.train.frameworks import contract
from hocket.train.frameworks.tf_keras import config
from hocket.train.rank import worker_session

_OWN: Final = "tf.distribute in the training function decides how gradients travel"


@final
class TensorflowStrategy(strategies.NativeStrategy):
    """TensorFlow's own averaging, in the training function's ``tf.distribute.MultiWorkerMirroredStrategy``."""


@final
class TfKerasFramework(contract.Framework[TensorflowStrategy]):
    """TensorFlow with Keras 2: ranks that find each other by TF_CONFIG, and average by themselves."""

    name = "tensorflow"
    limits: ClassVar[Mapping[str, str]] = {
        "strategies": f"TensorFlow's own strategies train: {_OWN}",
        "collectives": "TensorFlow's ranks use TensorFlow's collectives, not Hocket's",
        "conversion": "TensorFlow's own servers keep variables, and its optimizers step them",
    }

    @property
    def overrides(self) -> Mapping[type[strategies.Strategy], object]:
        return {strategies.AllReduce: TensorflowStrategy}

    def build_config(self) -> config.TensorflowConfig:
        return config.TensorflowConfig()

    def open(
        self, session: worker_session.WorkerSession, strategy: strategies.Strategy, caller: str
    ) -> TensorflowStrategy:
        if strategy != strategies.AllReduce():
            raise ValueError(
                f"TensorFlow's trainer cannot use strategy={strategy!r}: {_OWN}. Leave it out, or use "
                "hocket.train.keras.KerasTrainer, which has LocalSGD."
            )
        return TensorflowStrategy()

    def get_collectives(self, caller: str) -> strategies.Collectives:
        session = worker_session.get_optional_session()
        if session is not None and session.info.world_size > 1:
            raise RuntimeError(
                f"hocket.train.{caller}() needs ranks that Hocket has joined, but TensorFlow joins its ranks itself. "
                "Use tf.distribute, or hocket.train.keras.KerasTrainer."
            )
        return World(0, [[0]])

    def to_host(self, values: object, caller: str) -> strategies.Array:
        if not isinstance(values, tf.Tensor | tf.Variable | np.ndarray):
            raise TypeError(f"{caller} takes a tensor, but received {values!r}. Write tf.constant(values).")
        if isinstance(values, np.ndarray):
            return values
        if not hasattr(values, "numpy"):
            raise TypeError(
                f"{caller} was called inside a tf.function, where there are no numbers yet. Return the values from "
                "it, and use them outside."
            )
        array: strategies.Array = values.numpy()
        return array.astype(np.float32) if array.dtype.kind == "V" else array

    def from_host(self, array: strategies.Array) -> object:
        return tf.constant(array)

    def cross(self, arrays: Sequence[Any], change: contract.Change) -> list[object]:
        def visit(*given: object) -> list[strategies.Array]:
            on_host = [np.array(array) for array in given]
            change([array.reshape(-1) for array in on_host])
            return on_host

        returned = tf.numpy_function(visit, list(arrays), [array.dtype for array in arrays])
        found = returned if isinstance(returned, list) else [returned]  # eagerly, one result is no list
        return [tf.ensure_shape(new, array.shape) for new, array in zip(found, arrays, strict=True)]

    def list_weights(self, model: Any) -> list[tuple[str, strategies.Array]]:
        return [(variable.name.partition(":")[0], np.array(variable.numpy())) for variable in model.weights]

    def set_weights(self, model: Any, arrays: Sequence[strategies.Array]) -> object:
        for variable, array in zip(model.weights, arrays, strict=True):
            variable.assign(array)
        return model

    def convert_optimizer(self, optimizer: object, parameter: object) -> ps.Optimizer:
        raise ValueError(
            f"Hocket's servers have no {type(optimizer).__name__} of tf-keras: {self.limits['conversion']}. Use "
            "TensorflowTrainer(strategy='parameter_server'), or "
            "hocket.train.keras.KerasTrainer(strategy=ParameterServer())."
        )

    def seed(self, seed: int) -> None:
        tf_keras.utils.set_random_seed(seed)
        tf.config.experimental.enable_op_determinism()


FRAMEWORK: Final = TfKerasFramework()
