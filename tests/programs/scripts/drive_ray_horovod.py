"""Runs the training function of Ray's `horovod_pytorch_example`, which lies beside this file."""

import json
import sys
import tempfile
from pathlib import Path

import horovod_pytorch_example as program
import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.horovod import HorovodTrainer

if __name__ == "__main__":
    ray.init(num_cpus=2)
    result = HorovodTrainer(
        program.train_func,
        train_loop_config={"num_epochs": 2, "batch_size": 16, "lr": 0.05},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tempfile.mkdtemp()),
    ).fit()
    with result.checkpoint.as_directory() as folder:
        weights = torch.load(Path(folder, "model.pt"))
    found = {"loss": result.metrics["loss"], "weights": {name: value.tolist() for name, value in weights.items()}}
    sys.stdout.write(json.dumps(found) + "\n")
