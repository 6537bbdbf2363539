"""Runs the training function of Ray's `torch_linear_example`, which lies beside this file, from the same weights."""

import json
import sys
import tempfile
from pathlib import Path

import ray
import torch
import torch_linear_example as program
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train_func(config):
    torch.manual_seed(0)
    return program.train_func(config)


if __name__ == "__main__":
    ray.init(num_cpus=3)
    result = TorchTrainer(
        train_func,
        train_loop_config={"lr": 1e-2, "hidden_size": 1, "batch_size": 4, "epochs": 3},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tempfile.mkdtemp()),
    ).fit()
    with result.checkpoint.as_directory() as folder:
        weights = torch.load(Path(folder, "model.pt"))
    sys.stdout.write(
        json.dumps({"weights": {name.split(".")[-1]: value.tolist() for name, value in weights.items()}}) + "\n"
    )
