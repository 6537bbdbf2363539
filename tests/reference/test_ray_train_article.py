"""iThome Ironman contest 2024, day 20, "Ray, part 2: training models" (article in Chinese): Ray Train with PyTorch, and
Ray Tune.

The same pieces are `examples/train_on_dataset.py`, which `tests/test_repository.py` runs. Here they keep the name
``ray``, which is all that an import changes. torchvision's resnet18 is a small network with batch normalisation, and
the pictures are scikit-learn's digits 0 and 1.
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

ARTICLE = """
import os
import tempfile

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import hocket as ray
import hocket.data
import hocket.train.torch
from hocket import train
from hocket.train import RunConfig, ScalingConfig
from hocket.train.torch import TorchTrainer

scaling_config = ScalingConfig(num_workers=2, use_gpu=False)


def load_dataset():
    images, labels = load_digits(n_class=2, return_X_y=True)
    return TensorDataset(torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(labels))


def load_model():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 2)
    )


def bare():
    print("a worker trains")


def configured(config):
    lr = config["lr"]
    num_epochs = config["num_epochs"]
    data = load_dataset()
    model = load_model()
    train.report({"lr": lr, "num_epochs": num_epochs, "rows": len(data), "layers": len(model)})


def on_a_loader(config):
    torch.manual_seed(0)
    data_loader = DataLoader(load_dataset(), batch_size=16, shuffle=True)
    data_loader = ray.train.torch.prepare_data_loader(data_loader)
    model = ray.train.torch.prepare_model(load_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    for epoch in range(config["num_epochs"]):
        if ray.train.get_context().get_world_size() > 1:
            data_loader.sampler.set_epoch(epoch)
        right = seen = 0
        for X, y in data_loader:
            output = model(X)
            loss = torch.nn.functional.cross_entropy(output, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right, seen = right + (output.argmax(1) == y).sum().item(), seen + len(y)
        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            torch.save(model.state_dict(), os.path.join(temp_checkpoint_dir, "model.pt"))
            metrics = {"loss": loss.item(), "acc": right / seen}
            checkpoint = ray.train.Checkpoint.from_directory(temp_checkpoint_dir)
            ray.train.report(metrics=metrics, checkpoint=checkpoint)


train_dataset = ray.data.from_items([{"x": [x], "y": [2 * x]} for x in range(200)])


def on_a_dataset():
    train_data_shard = train.get_dataset_shard("train")
    train_dataloader = train_data_shard.iter_torch_batches(batch_size=32, dtypes=torch.float32)
    for epoch_idx in range(2):
        rows = 0
        for batch in train_dataloader:
            inputs, labels = batch["x"], batch["y"]
            assert inputs.dtype == torch.float32 and torch.equal(labels, 2 * inputs)
            rows += len(inputs)
        train.report({"epoch": epoch_idx, "rows": rows})


def fit(function, config=None, name=None, **settings):
    run_config = RunConfig(storage_path=os.path.abspath("results"), name=name)
    trainer = ray.train.torch.TorchTrainer(
        function, train_loop_config=config, scaling_config=scaling_config, run_config=run_config, **settings
    )
    return trainer.fit()


if __name__ == "__main__":
    ray.init(num_cpus=2)
"""


def test_each_piece_runs_with_its_imports_changed(tmp_path: Path) -> None:
    text = (
        f"{ARTICLE}"
        "    TorchTrainer(bare, scaling_config=scaling_config).fit()\n"
        "    print(fit(configured, {'lr': 1e-4, 'num_epochs': 10}).metrics)\n"
        "    result = fit(on_a_loader, {'lr': 0.01, 'num_epochs': 3}, 'unique_run_name')\n"
        "    assert result.path.endswith('results/unique_run_name'), result.path\n"
        "    with result.checkpoint.as_directory() as folder:\n"
        "        saved = torch.load(os.path.join(folder, 'model.pt'), weights_only=True)\n"
        "    print(result.metrics['acc'] > 0.9, sorted(saved)[0])\n"
        "    print(fit(on_a_dataset, datasets={'train': train_dataset}).metrics)\n"
    )
    lines = [line for line in programs.read_result(programs.run(text, tmp_path)) if "a worker trains" not in line]
    assert lines == [
        "{'lr': 0.0001, 'num_epochs': 10, 'rows': 360, 'layers': 5}",
        "True module.0.bias",
        "{'epoch': 1, 'rows': 100}",
    ]


@pytest.mark.long
def test_gpus_that_are_not_there_are_told(tmp_path: Path) -> None:
    text = ARTICLE.replace("use_gpu=False", "use_gpu=True")
    refusal = programs.read_refusal(programs.run(f"{text}    fit(bare)\n", tmp_path))
    assert "InfeasibleResourcesError: num_workers=2 with {CPU: 1, GPU: 1} each" in refusal
    assert "use_gpu=False" in refusal


def test_the_search_as_it_is_written(tmp_path: Path) -> None:
    """Its last line asks for a metric that no trial reports."""
    search = f"""
from hocket import train, tune


def objective(config):
    return {{"acc": config["lr"] * config["n_layers"]}}


search_space = {{
    "lr": tune.grid_search([0.001, 0.01, 0.1]),
    "n_layers": tune.choice([1, 2, 3]),
}}

run_config = tune.RunConfig(storage_path={str(tmp_path)!r})
tuner = tune.Tuner(objective, param_space=search_space, run_config=run_config)
results = tuner.fit()
"""
    found = programs.read_result(
        programs.run(f'{search}print(results.get_best_result("acc", "max").config["lr"])', tmp_path)
    )
    assert found[-1] == "0.1"
    refusal = programs.read_refusal(
        programs.run(f'{search}print(results.get_best_result(metric="score", mode="min").config)', tmp_path)
    )
    assert "No trial has reported the metric 'score'; the reported metrics are ['acc']" in refusal


@pytest.mark.long
def test_a_loop_takes_the_place_of_a_search(tmp_path: Path) -> None:
    text = (
        f"{ARTICLE}"
        "    found = {lr: fit(on_a_loader, {'lr': lr, 'num_epochs': 2}).metrics['acc'] for lr in (1e-5, 0.001, 0.01)}\n"
        "    print([max(found, key=found.get), *found])\n"
    )
    best, *tried = ast.literal_eval(programs.read_result(programs.run(text, tmp_path))[-1])
    assert tried == [1e-5, 0.001, 0.01]
    assert best in {0.001, 0.01}
