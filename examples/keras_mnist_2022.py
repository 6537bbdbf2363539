"""A Keras program of 2022: MultiWorkerMirroredStrategy in two ranks of the Trainer of that time.

This is TensorFlow's own example for training on several workers, run by Ray Train's Trainer of 2022; Hocket has it
under the same name. A function makes the model in the strategy's scope and calls ``fit``. The Trainer sets TF_CONFIG,
so that the ranks find each other. ``tf.keras`` is Keras 2 there (tf-keras), the last Keras that has the strategy.

    python examples/keras_mnist_2022.py                     # generated pictures of MNIST's shape
    python examples/keras_mnist_2022.py --mnist mnist.npz   # MNIST itself, in Keras's file
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

import numpy as np

from hocket import train
from hocket.train import Trainer


def build_reporter() -> Any:
    """Make the callback that reports each epoch's numbers to the driver. Its base class is TensorFlow's, so the class
    is made where TensorFlow is imported."""
    import tensorflow as tf

    class Report(tf.keras.callbacks.Callback):  # type: ignore[misc]  # TensorFlow is not type-checked
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            train.report(epoch=epoch, **{name: float(value) for name, value in logs.items()})

    return Report()


def load_digits(path: str | None, count: int) -> tuple[Any, Any]:
    """Return images of 28 by 28 and their labels, from the file or generated so that they are easy to classify."""
    if path:
        with np.load(path) as file:
            images, labels = file["x_train"], file["y_train"]
        return images.astype("float32") / 255, labels.astype("int64")
    generator = np.random.default_rng(0)
    shapes = generator.random((10, 28, 28)) > 0.7
    labels = generator.integers(0, 10, count)
    images = 0.7 * shapes[labels] + 0.3 * generator.random((count, 28, 28))
    return images.astype("float32"), labels


def build_dataset(batch_size: int, path: str | None, count: int) -> Any:
    import tensorflow as tf

    images, labels = load_digits(path, count)
    return tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images), seed=0).repeat().batch(batch_size)


def build_model() -> Any:
    """Make a small convolutional network."""
    import tensorflow as tf

    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input((28, 28)),
            layers.Reshape((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.05),
        metrics=["accuracy"],
    )
    return model


def train_func(config: dict[str, Any]) -> dict[str, list[float]]:
    """Train in one rank. MultiWorkerMirroredStrategy splits each global batch among the ranks."""
    import tensorflow as tf

    batch_size = config.get("batch_size", 64)
    epochs = config.get("epochs", 3)
    steps_per_epoch = config.get("steps_per_epoch", 70)
    num_workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    global_batch_size = batch_size * num_workers
    dataset = build_dataset(global_batch_size, config.get("mnist"), config.get("rows", 8960))
    with strategy.scope():  # the model's variables must be made in the scope
        model = build_model()
    history = model.fit(
        dataset, epochs=epochs, steps_per_epoch=steps_per_epoch, callbacks=[build_reporter()], verbose=0
    )
    results: dict[str, list[float]] = history.history
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="Keras in two ranks of the Trainer of 2022.")
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps-per-epoch", type=int, default=70)
    parser.add_argument("--mnist", help="mnist.npz, as Keras has it; without it digits are made up")
    arguments = parser.parse_args()
    config = {
        "batch_size": 64,  # of each rank
        "epochs": arguments.epochs,
        "steps_per_epoch": arguments.steps_per_epoch,
        "mnist": arguments.mnist and os.path.abspath(arguments.mnist),  # noqa: PTH100 (argparse gives text)
    }
    trainer = Trainer(backend="tensorflow", num_workers=arguments.num_workers)
    trainer.start()
    results = trainer.run(train_func, config)
    trainer.shutdown()
    for rank, history in enumerate(results):
        print(f"rank {rank}:", {name: [round(value, 3) for value in values] for name, values in history.items()})


if __name__ == "__main__":
    main()
