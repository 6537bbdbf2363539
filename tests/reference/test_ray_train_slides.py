"""Naka Masato, "Introducing Ray Train" (slides in Japanese, June 2022): two programs for the Trainer of that time.

Its first program is also `examples/classic_trainer.py`, its second one, with imports inside the functions,
`examples/keras_mnist_2022.py`; both are tested in `tests/train/test_classic_trainer.py` and `tests/test_repository.py`.
Here they have their imports at the top.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.reference import programs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.about_local("programs of their own"),
]

TWO_RUNS = """
from hocket.train import Trainer

def train_func(config):
    results = []
    for item in range(config["num_epochs"]):
        results.append(item)
    return results

trainer = Trainer(backend="tensorflow", num_workers=2)
trainer.start()  # set up resources
print(trainer.run(train_func, config={"num_epochs": 2}))
print(trainer.run(train_func, config={"num_epochs": 5}))
trainer.shutdown()  # clean up resources
"""


@pytest.mark.parametrize("backend", ["tensorflow", "horovod"])
def test_one_function_runs_twice_in_two_workers(tmp_path: Path, backend: str) -> None:
    assert programs.read_result(programs.run(TWO_RUNS.replace("tensorflow", backend), tmp_path)) == [
        "[[0, 1], [0, 1]]",
        "[[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]",
    ]


MNIST = (
    """
import argparse
import json
import os
@FIRST@
import numpy as np
import tensorflow as tf
from tensorflow.keras.callbacks import Callback

import hocket.train as train
from hocket.train import Trainer


class TrainReportCallback(Callback):
    def on_epoch_end(self, epoch, logs=None):
        train.report(**logs)

"""
    + programs.DIGITS
    + """

def mnist_dataset(batch_size):
    images, labels = load_mnist()
    images = images / np.float32(255)
    labels = labels.astype(np.int64)
    return tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(60000).repeat().batch(batch_size)


def build_and_compile_cnn_model(config):
    model = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(input_shape=(28, 28)),
            tf.keras.layers.Reshape(target_shape=(28, 28, 1)),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=config.get("lr", 0.001)),
        metrics=["accuracy"],
    )
    return model


def train_func(config):
    per_worker_batch_size = config.get("batch_size", 64)
    epochs = config.get("epochs", 3)
    steps_per_epoch = config.get("steps_per_epoch", 70)
    num_workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    multi_worker_dataset = mnist_dataset(per_worker_batch_size * num_workers)
    with strategy.scope():
        multi_worker_model = build_and_compile_cnn_model(config)
    history = multi_worker_model.fit(
        multi_worker_dataset, epochs=epochs, steps_per_epoch=steps_per_epoch, callbacks=[TrainReportCallback()], verbose=0
    )
    return history.history


def main(num_workers=2, use_gpu=False, epochs=3, steps_per_epoch=70):
    trainer = Trainer(backend="tensorflow", num_workers=num_workers, use_gpu=use_gpu)
    trainer.start()
    results = trainer.run(
        train_func=train_func,
        config={"lr": 1e-2, "batch_size": 64, "epochs": epochs, "steps_per_epoch": steps_per_epoch},
    )
    trainer.shutdown()
    print(results)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-workers", "-n", type=int, default=2)
    parser.add_argument("--use-gpu", action="store_true")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps-per-epoch", type=int, default=70)
    args = parser.parse_args()
    main(args.num_workers, args.use_gpu, args.epochs, args.steps_per_epoch)
"""
)

LEGACY_KERAS = 'os.environ["TF_USE_LEGACY_KERAS"] = "1"'


@pytest.mark.long
def test_the_network_for_mnist_trains_with_one_line_more(tmp_path: Path) -> None:
    done = programs.run(MNIST.replace("@FIRST@", LEGACY_KERAS), tmp_path, "--epochs", "2", "--steps-per-epoch", "20")
    first, second = ast.literal_eval(programs.read_result(done)[-1])
    assert first == second  # both ranks have the numbers of all rows
    assert len(first["loss"]) == 2
    assert first["loss"][1] < first["loss"][0] < 2.4
    assert first["accuracy"][1] > 0.3


@pytest.mark.long
def test_the_network_for_mnist_is_refused_without_that_line(tmp_path: Path) -> None:
    refusal = programs.read_refusal(programs.run(MNIST.replace("@FIRST@", ""), tmp_path))
    assert refusal.startswith("TypeError: The training function takes along something of Keras 3")
    assert "Write os.environ['TF_USE_LEGACY_KERAS'] = '1' at the top of the program" in refusal


def test_gpus_that_are_not_there_are_told(tmp_path: Path) -> None:
    text = TWO_RUNS.replace("num_workers=2", "num_workers=2, use_gpu=True")
    refusal = programs.read_refusal(programs.run(text, tmp_path))
    assert refusal.startswith("hocket.exceptions.InfeasibleResourcesError: num_workers=2 with {CPU: 1, GPU: 1}")
    assert "use_gpu=False" in refusal
