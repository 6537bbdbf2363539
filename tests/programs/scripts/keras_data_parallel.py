"""A model of Keras 3 that is compiled and fitted over two devices, or over two ranks.

Written after https://keras.io/guides/distribution (Apache-2.0). `python keras_data_parallel.py keras` has Keras's own
`DataParallel` over two devices of one process; `python keras_data_parallel.py hocket` has two ranks of a trainer, with
the two lines of docs/keras.md.
"""

import json
import os
import sys
import tempfile

os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2" if sys.argv[1] == "keras" else ""

import keras
import numpy as np


def build_model() -> keras.Model:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((12,))
    x = keras.layers.Dense(16, activation="relu")(inputs)
    x = keras.layers.LayerNormalization()(x)
    model = keras.Model(inputs, keras.layers.Dense(3)(x))
    model.compile(
        optimizer=keras.optimizers.AdamW(1e-2),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def make_data() -> tuple:
    x = np.random.default_rng(0).normal(size=(240, 12)).astype("float32")
    return x, (x[:, :3] + x[:, 3:6]).argmax(axis=1)


def describe(model: keras.Model, history: dict) -> dict:
    return {"history": history, "total": float(sum(np.abs(weight).sum() for weight in model.get_weights()))}


def train_with_keras() -> dict:
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    model = build_model()
    x, y = make_data()
    return describe(model, model.fit(x, y, batch_size=24, epochs=3, shuffle=False, verbose=0).history)


def train_in_rank() -> dict:
    from hocket.train.keras import prepare_arrays, prepare_model

    model = prepare_model(build_model())
    data = prepare_arrays(*make_data(), batch_size=12, shuffle=False)  # of each of two ranks
    return describe(model, model.fit(data, epochs=3, verbose=0).history)


def train_with_hocket() -> dict:
    from hocket import train
    from hocket.train.keras import KerasTrainer

    return (
        KerasTrainer(
            train_in_rank,
            scaling_config=train.ScalingConfig(num_workers=2),
            run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        )
        .fit()
        .return_value
    )


if __name__ == "__main__":
    found = train_with_keras() if sys.argv[1] == "keras" else train_with_hocket()
    sys.stdout.write(json.dumps(found) + "\n")
