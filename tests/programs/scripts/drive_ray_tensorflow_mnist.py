"""Runs the training function of Ray's `tensorflow_mnist_example`, which lies beside this file, on scikit-learn's
digits in MNIST's form: its own pictures would be downloaded."""

import json
import sys
import tempfile

import numpy as np
import ray
import tensorflow_mnist_example as program
from ray.train import RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer
from sklearn.datasets import load_digits


def load_data():
    digits = load_digits()
    images = np.pad(np.kron(digits.images * 15.9, np.ones((1, 3, 3))), ((0, 0), (2, 2), (2, 2)))
    return (images[:512].astype(np.uint8), digits.target[:512]), None


def train_func(config):
    program.tf.keras.utils.set_random_seed(0)  # also for the order of the rows
    program.tf.keras.datasets.mnist.load_data = load_data
    return program.train_func(config)


if __name__ == "__main__":
    ray.init(num_cpus=4)
    result = TensorflowTrainer(
        train_func,
        train_loop_config={"lr": 0.1, "batch_size": 32, "epochs": 3, "steps_per_epoch": 4},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tempfile.mkdtemp()),
    ).fit()
    found = {name: result.metrics[name] for name in ("loss", "accuracy")}
    sys.stdout.write(json.dumps(found) + "\n")
