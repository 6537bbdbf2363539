"""Lecture notes "Distributed training" (in Russian): Ray's tasks in a chain and in a tree, its basic operations, and
two networks trained with Ray Train.

`examples/chain_and_tree.py`, `examples/counter_actor.py` and `examples/keras_two_models.py` are the same programs with
more around them; `tests/test_repository.py` runs them. Here the first two are as they were written, and the networks
train under TensorFlow's own strategy, as they did there.
"""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest

from tests.reference import programs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.about_local("programs of their own"),
]

ADD = """
import hocket as ray

ray.init(num_cpus=4)
import time

@ray.remote
def add(x, y):
    time.sleep(DELAY)
    return x + y
"""

CHAIN = """
id1 = add.remote(1, 2)
id2 = add.remote(id1, 3)
id3 = add.remote(id2, 4)
id4 = add.remote(id3, 5)
id5 = add.remote(id4, 6)
id6 = add.remote(id5, 7)
id7 = add.remote(id6, 8)
result = ray.get(id7)
"""

TREE = """
id1 = add.remote(1, 2)
id2 = add.remote(3, 4)
id3 = add.remote(5, 6)
id4 = add.remote(7, 8)
id5 = add.remote(id1, id2)
id6 = add.remote(id3, id4)
id7 = add.remote(id5, id6)
result = ray.get(id7)
"""


def test_a_chain_waits_seven_times_and_a_tree_three_times(tmp_path: Path) -> None:
    text = (
        ADD.replace("DELAY", "0.3")
        + "ray.get([add.remote(0, 0) for _ in range(4)])  # the workers have started\n"
        + "".join(
            f"start = time.monotonic()\n{part}\nprint(result, time.monotonic() - start)\n" for part in (CHAIN, TREE)
        )
    )
    (chain, chain_s), (tree, tree_s) = (line.split() for line in programs.read_result(programs.run(text, tmp_path)))
    assert (chain, tree) == ("36", "36")
    assert float(chain_s) >= 7 * 0.3
    assert 3 * 0.3 <= float(tree_s) < float(chain_s)


OPERATIONS = """
import sys

import hocket as ray

ray.init()
reference = ray.put([1, 2, 3])
assert isinstance(reference, ray.ObjectID)
print(ray.get(reference))

@ray.remote
def double(values):
    return [2 * value for value in values]

@ray.remote
def fail():
    raise KeyError("missing")

@ray.remote
class Simulator:
    def __init__(self):
        self.state = []

    def step(self, value):
        self.state.append(value)
        return len(self.state)

failed = fail.remote()
ready, waiting = ray.wait([double.remote(reference), failed], num_returns=2)
print(len(ready), waiting, ray.get(ready[0] if ready[0] != failed else ready[1]))
print([(error.name, error.error_type) for error in ray.error_info()])
simulator = Simulator.remote()
print(ray.get([simulator.step.remote(value) for value in "abc"]))
ray.shutdown()
"""


def test_the_basic_operations_and_an_actor(tmp_path: Path) -> None:
    printed = programs.read_result(programs.run(OPERATIONS, tmp_path))
    assert printed[:2] == ["[1, 2, 3]", "2 [] [2, 4, 6]"]
    ((name, error_type),) = ast.literal_eval(printed[2])
    assert (name.rpartition(".")[2], error_type) == ("fail", "KeyError")
    assert printed[3:] == ["[1, 2, 3]"]


NETWORKS = (
    """
import json
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # the one line more
import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, models

from hocket.train import Trainer

"""
    + programs.DIGITS
    + """

def build_digits_model():
    return models.Sequential(
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


def build_photos_model():
    return models.Sequential(
        [
            layers.Input((224, 224, 3)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(2),
        ]
    )


def load_photos():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 16)
    return (generator.random((16, 224, 224, 3)) / 2 + labels[:, None, None, None] / 2) * 255, labels


def train_func(config):
    build, load = {"digits": (build_digits_model, load_mnist), "photos": (build_photos_model, load_photos)}[config["model"]]
    images, labels = load()
    if images.ndim == 3:
        images = images[..., None]
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rows = tf.data.Dataset.from_tensor_slices(((images / 255).astype("float32"), labels)).repeat().batch(config["batch_size"])
    with strategy.scope():
        model = build()
        model.compile(
            "adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
        )
    history = model.fit(rows, epochs=2, steps_per_epoch=config["steps"], verbose=0).history
    return model.count_params(), [layer.count_params() for layer in model.layers if layer.count_params()], history["loss"]


if __name__ == "__main__":
    trainer = Trainer(backend="tensorflow", num_workers=2)
    trainer.start()
    for config in ({"model": "digits", "batch_size": 64, "steps": 10}, {"model": "photos", "batch_size": 8, "steps": 2}):
        print(trainer.run(train_func, config))
    trainer.shutdown()
"""
)


@pytest.mark.long
def test_both_networks_have_their_layers_and_train(tmp_path: Path) -> None:
    lines = programs.read_result(programs.run(NETWORKS, tmp_path))[-2:]
    (digits, same_digits), (photos, same_photos) = map(ast.literal_eval, lines)
    assert (digits, photos) == (same_digits, same_photos)
    assert digits[:2] == (44426, [156, 2416, 30840, 10164, 850])
    assert photos[:2] == (420802, [896, 18496, 401410])
    assert digits[2][1] < digits[2][0]
    assert all(math.isfinite(loss) for loss in photos[2])
