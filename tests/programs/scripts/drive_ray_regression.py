"""Runs the training function of Ray's `torch_regression_example`, which lies beside this file, on rows of this
machine: its own are in a bucket."""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import ray
import torch
import torch_regression_example as program
from ray.train import DataConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def make_rows(count, seed):
    x = np.random.default_rng(seed).normal(size=(count, 100)).astype("float32")
    return ray.data.from_items([{"x": row, "y": row[:5].sum(keepdims=True)} for row in x])


def train_func(config):
    torch.manual_seed(0)
    return program.train_func(config)


if __name__ == "__main__":
    ray.init(num_cpus=4)
    result = TorchTrainer(
        train_func,
        # All rows of a rank are one batch, so it does not matter which rank has which.
        train_loop_config={"lr": 0.5, "hidden_size": 20, "batch_size": 200, "epochs": 6},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tempfile.mkdtemp()),
        datasets={"train": make_rows(400, seed=1), "validation": make_rows(200, seed=2)},
        dataset_config=DataConfig(datasets_to_split=["train"]),
    ).fit()
    with result.checkpoint.as_directory() as folder:
        weights = torch.load(Path(folder, "model.pt"))
    found = {"loss": result.metrics["loss"], "weights": weights["2.weight"].flatten().tolist()}
    sys.stdout.write(json.dumps(found) + "\n")
