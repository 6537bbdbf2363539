"""How users of each framework train a small model: what the contract of frameworks asks about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hocket.testing.framework_programs import DTYPES, FEATURES, LR, OUTPUTS, ROWS, Specimen
from hocket.train.run import backend


class Torch(Specimen):
    framework = "hocket.train.frameworks.torch.framework"

    def build_model(self, key: Any) -> Any:
        import torch

        return torch.nn.Linear(FEATURES, OUTPUTS)

    def train(self, model: Any, rows: Any, labels: Any, steps: int, *, on_servers: bool) -> Any:
        import torch

        from hocket.train import torch as adapter

        prepared = adapter.prepare_model(model)
        optimizer = adapter.prepare_optimizer(torch.optim.SGD(prepared.parameters(), lr=LR))
        for _ in range(steps):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(prepared(torch.from_numpy(rows)), torch.from_numpy(labels)).backward()
            optimizer.step()
        adapter.synchronize()
        return prepared

    def list_optimizers(self, model: Any) -> Any:
        import torch

        known, unknown = torch.optim.Adam(model.parameters()), torch.optim.RMSprop(model.parameters())
        return (known, model.weight), (unknown, model.weight)

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        return torch.compile(function, backend="eager")


class Jax(Specimen):
    framework = "hocket.train.frameworks.jax.framework"

    def build_model(self, key: Any) -> Any:
        import jax
        import jax.numpy as jnp

        return {"kernel": jax.random.normal(key, (FEATURES, OUTPUTS)), "bias": jnp.zeros(OUTPUTS)}

    def train(self, model: Any, rows: Any, labels: Any, steps: int, *, on_servers: bool) -> Any:
        import jax
        import optax

        from hocket import ps
        from hocket.train import jax as adapter

        params = adapter.prepare_params(model)
        optimizer = adapter.prepare_optimizer(ps.SGD(lr=LR) if on_servers else optax.sgd(LR))
        state = optimizer.init(params)

        @jax.jit
        def step(params: Any, state: Any) -> Any:
            def compute_loss(params: Any) -> Any:
                return ((rows @ params["kernel"] + params["bias"] - labels) ** 2).mean()

            updates, state = optimizer.update(jax.grad(compute_loss)(params), state, params)
            return optax.apply_updates(params, updates), state

        for _ in range(steps):
            params, state = step(params, state)
        return adapter.synchronize(params, state)[0]

    def list_optimizers(self, model: Any) -> Any:
        import optax

        from hocket import ps

        return (ps.SGD(lr=1.0), model["kernel"]), (optax.sgd(LR), model["kernel"])

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        import jax

        compiled: Callable[..., Any] = jax.jit(function)
        return compiled


class Keras(Specimen):
    framework = "hocket.train.frameworks.keras.framework"

    def __init__(self, name: str) -> None:
        self.backend = name

    def find_limits(self) -> Mapping[str, str]:
        theirs = Jax().find_limits() if self.backend == "jax" else {}
        return {dtype: text for dtype, text in theirs.items() if dtype in DTYPES}

    def build_config(self) -> backend.BackendConfig:
        from hocket.train.keras import KerasConfig

        return KerasConfig(backend=self.backend)

    def build_model(self, key: Any) -> Any:
        import keras

        return keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(OUTPUTS)])

    def train(self, model: Any, rows: Any, labels: Any, steps: int, *, on_servers: bool) -> Any:
        import keras

        from hocket.train import keras as adapter

        model.compile(keras.optimizers.SGD(LR), "mse")
        model = adapter.prepare_model(model)
        if steps:
            model.fit(rows, labels, batch_size=ROWS, epochs=steps, shuffle=False, verbose=0)
        return model

    def list_optimizers(self, model: Any) -> Any:
        import keras

        kernel = model.trainable_variables[0]
        return (keras.optimizers.Adam(), kernel), (keras.optimizers.RMSprop(), kernel)

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self.backend == "jax":
            return Jax().compile(function)
        return TfKeras().compile(function) if self.backend == "tensorflow" else Torch().compile(function)


class TfKeras(Specimen):
    framework = "hocket.train.frameworks.tf_keras.framework"

    def build_model(self, key: Any) -> Any:
        import tf_keras

        return tf_keras.Sequential([tf_keras.layers.Input((FEATURES,)), tf_keras.layers.Dense(OUTPUTS)])

    def train(self, model: Any, rows: Any, labels: Any, steps: int, *, on_servers: bool) -> Any:
        model.compile("sgd", "mse")
        model.fit(rows, labels, batch_size=ROWS, epochs=steps, verbose=0)
        return model

    def list_optimizers(self, model: Any) -> Any:
        import tf_keras

        kernel = model.trainable_variables[0]
        return (tf_keras.optimizers.Adam(), kernel), (tf_keras.optimizers.RMSprop(), kernel)

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        import tensorflow as tf

        compiled: Callable[..., Any] = tf.function(function)
        return compiled


class Numpy(Specimen):
    framework = "tests.matrix.numpy_framework"

    def build_model(self, key: Any) -> Any:
        from tests.matrix import numpy_framework

        draw = np.random.random
        return numpy_framework.Model(draw((FEATURES, OUTPUTS)).astype("f"), draw(OUTPUTS).astype("f"), lr=LR)

    def train(self, model: Any, rows: Any, labels: Any, steps: int, *, on_servers: bool) -> Any:
        from tests.matrix import numpy_framework

        numpy_framework.prepare(model)
        for _ in range(steps):
            errors = 2 * (rows @ model.kernel + model.bias - labels) / OUTPUTS
            model.take(rows, errors, len(rows))
        model.runtime.synchronize(model)
        return model

    def list_optimizers(self, model: Any) -> Any:
        return ("sgd", model.kernel), ("adam", model.kernel)
