"""Keras LeNet (44,426 parameters) in two ranks of 64 rows a step each: our collectives beside TensorFlow's own, and
beside one process.

Ours is Keras 3 with `hocket.train.keras.prepare_model`; TensorFlow's is MultiWorkerMirroredStrategy with tf-keras, in
ranks that a TensorflowTrainer starts. Both read the same rows from a ``tf.data.Dataset`` in memory; ours also from
`prepare_arrays`, which keeps the sample ledger. The sides take turns.

    python benchmarks/keras3.py
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from _harness import describe_machine

import hocket
from hocket import train
from hocket.train.keras import KerasConfig, KerasTrainer, prepare_arrays, prepare_model
from hocket.train.tensorflow import TensorflowTrainer, prepare_dataset_shard

PER_RANK, ROWS = 64, 8960
BACKENDS = ("tensorflow", "torch", "jax")


def build_lenet(library: Any) -> Any:
    layers = library.layers
    model = library.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(6, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(120, activation="relu"),
            layers.Dense(84, activation="relu"),
            layers.Dense(10),
        ]
    )
    loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(library.optimizers.SGD(0.01), loss, metrics=["accuracy"])
    assert model.count_params() == 44_426
    return model


def make_rows() -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    return generator.random((ROWS, 28, 28, 1), np.float32), generator.integers(0, 10, ROWS)


def time_fit(model: Any, rows_an_epoch: int, epochs: int, **data: Any) -> float:
    """Rows a second, after an epoch to warm up."""
    model.fit(**data, epochs=1, verbose=0)
    started = time.perf_counter()
    model.fit(**data, epochs=epochs, verbose=0)
    return rows_an_epoch * epochs / (time.perf_counter() - started)


def make_shard() -> Any:
    """This rank's half of the rows, of which there are as many steps in both ranks."""
    import tensorflow as tf

    info = train.get_context()
    x, y = make_rows()
    part = slice(info.get_world_rank(), None, info.get_world_size())
    return tf.data.Dataset.from_tensor_slices((x[part], y[part])).batch(PER_RANK)


def run_ours(config: dict[str, Any]) -> float:
    import keras

    x, y = make_rows()
    model = prepare_model(build_lenet(keras))
    data = prepare_dataset_shard(make_shard()) if config["tf_data"] else prepare_arrays(x, y, batch_size=PER_RANK)
    return time_fit(model, ROWS, config["epochs"], x=data)


def run_theirs(config: dict[str, Any]) -> float:
    import tensorflow as tf

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = build_lenet(tf.keras)
    return time_fit(model, ROWS, config["epochs"], x=prepare_dataset_shard(make_shard()))


def run_alone(config: dict[str, Any]) -> float:
    """One rank with all cores, and the rows of two in a step."""
    import keras

    x, y = make_rows()
    return time_fit(build_lenet(keras), ROWS, config["epochs"], x=x, y=y, batch_size=2 * PER_RANK)


def measure(trainer: Callable[..., Any], function: Any, num_workers: int, epochs: int, **config: Any) -> float:
    resources = {"CPU": 2 // num_workers}
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        result = trainer(
            function,
            train_loop_config={"epochs": epochs, **config},
            scaling_config=train.ScalingConfig(num_workers=num_workers, resources_per_worker=resources),
            run_config=train.RunConfig(storage_path=folder),
        ).fit()
    return float(result.return_value)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--backend", choices=BACKENDS, default="tensorflow")
    arguments = parser.parse_args()

    def build_ours(*args: Any, **kwargs: Any) -> KerasTrainer:
        return KerasTrainer(*args, keras_config=KerasConfig(backend=arguments.backend), **kwargs)

    sides: dict[str, tuple[Callable[..., Any], Any, int, dict[str, Any]]] = {
        "two ranks, prepare_model, prepare_arrays": (build_ours, run_ours, 2, {"tf_data": False}),
        "one rank with both cores, twice the batch": (build_ours, run_alone, 1, {}),
    }
    if arguments.backend == "tensorflow":
        sides["two ranks, prepare_model, tf.data"] = (build_ours, run_ours, 2, {"tf_data": True})
        sides["two ranks, MultiWorkerMirroredStrategy, tf.data"] = (TensorflowTrainer, run_theirs, 2, {})
    samples: dict[str, list[float]] = {name: [] for name in sides}
    with hocket.init(num_cpus=2):
        for _ in range(arguments.rounds):
            for name, (trainer, function, num_workers, config) in sides.items():
                samples[name].append(measure(trainer, function, num_workers, arguments.epochs, **config))
    print(
        f"{describe_machine()}. Keras on {arguments.backend}; median of {arguments.rounds} rounds (lowest to "
        "highest).\n"
    )
    print("| what | rows a second |\n|---|--:|")
    for name, values in samples.items():
        print(f"| {name} | {statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f}) |")


if __name__ == "__main__":
    main()
