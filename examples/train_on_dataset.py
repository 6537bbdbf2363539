"""The pieces of Ray Train's tutorials: training function, configuration, model, checkpoints, two ways to load data.

Names of `ray` in the tutorials are names of `hocket` here. The tutorials' model is torchvision's resnet18; here it is a
small convolutional network, so that the example needs only torch.

    python examples/train_on_dataset.py
"""

import argparse
import os
import tempfile
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import hocket.data
import hocket.train.torch
from hocket import train
from hocket.train import RunConfig, ScalingConfig
from hocket.train.torch import TorchTrainer

NUM_CLASSES, SIZE = 2, 12


# --- the training function: what every worker runs --------------------------------------------------------------------


def train_func() -> None:
    """Load data and model in a worker. Values that are passed to a training function travel to every worker."""
    dataset = load_dataset()
    model = load_model()
    print(f"{len(dataset)} pictures, {sum(parameter.numel() for parameter in model.parameters())} parameters")


def train_func_with_config(config: dict[str, Any]) -> None:
    """Read a configuration."""
    lr = config["lr"]
    num_epochs = config["num_epochs"]
    train.report({"lr": lr, "num_epochs": num_epochs})


def load_dataset() -> TensorDataset:
    """Return pictures of a bright bar in noise, upright or lying."""
    generator = torch.Generator().manual_seed(0)
    pictures = 0.3 * torch.randn(128, 1, SIZE, SIZE, generator=generator)
    labels = torch.randint(NUM_CLASSES, (128,), generator=generator)
    for picture, label, at in zip(pictures, labels, torch.randint(SIZE, (128,), generator=generator), strict=True):
        (picture[0, :, at] if label else picture[0, at]).add_(1.0)
    return TensorDataset(pictures, labels)


def load_model() -> torch.nn.Module:
    """Return a model that replaces ``resnet18(num_classes=2)``."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 5),
        torch.nn.ReLU(),
        torch.nn.AdaptiveMaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(32, NUM_CLASSES),
    )


# --- data: (1) a torch DataLoader -------------------------------------------------------------------------------------


def train_on_loader(config: dict[str, Any]) -> None:
    """Train on a DataLoader, save the model, and report."""
    torch.manual_seed(0)
    data_loader = DataLoader(load_dataset(), batch_size=config["batch_size"], shuffle=True)
    data_loader = hocket.train.torch.prepare_data_loader(data_loader)  # this worker's part, on its device
    model = hocket.train.torch.prepare_model(load_model())  # on the worker's device, its gradients averaged
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    for epoch in range(config["num_epochs"]):
        if hocket.train.get_context().get_world_size() > 1:
            data_loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]  # a DistributedSampler has it
        losses = []
        for X, y in data_loader:  # noqa: N806 (the tutorials' name)
            loss = criterion(model(X), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            module = getattr(model, "module", model)
            torch.save(module.state_dict(), os.path.join(temp_checkpoint_dir, "model.pt"))  # noqa: PTH118
            metrics = {"loss": sum(losses) / len(losses)}
            checkpoint = hocket.train.Checkpoint.from_directory(temp_checkpoint_dir)
            hocket.train.report(metrics=metrics, checkpoint=checkpoint)


# --- data: (2) a dataset ----------------------------------------------------------------------------------------------

train_dataset = hocket.data.from_items([{"x": [x], "y": [2 * x]} for x in range(200)])
"""[Step 1] The driver makes rows."""


def train_on_dataset(config: dict[str, Any]) -> None:
    """Train on the worker's part of a dataset: find the slope of a line."""
    torch.manual_seed(0)
    model = hocket.train.torch.prepare_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    # [Step 3] The worker gets its own part.
    train_data_shard = train.get_dataset_shard("train")
    train_dataloader = train_data_shard.iter_torch_batches(batch_size=config["batch_size"], dtypes=torch.float32)
    for epoch_idx in range(config["num_epochs"]):
        seen = 0
        for batch in train_dataloader:
            inputs, labels = batch["x"], batch["y"]
            loss = torch.nn.functional.mse_loss(model(inputs / 100), labels / 100) * train_data_shard.loss_scale
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            seen += len(inputs)
        module: Any = getattr(model, "module", model)
        train.report({"epoch": epoch_idx, "rows": seen, "slope": module.weight.item()})


# --- the trainer: function, workers and configuration together --------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--num-epochs", type=int, default=20)
    parser.add_argument("--storage-path", help="where checkpoints go (default: a temporary folder)")
    given = parser.parse_args()
    use_gpu = torch.cuda.device_count() >= given.num_workers > 0
    scaling_config = ScalingConfig(num_workers=given.num_workers, use_gpu=use_gpu)
    with tempfile.TemporaryDirectory() as temporary:
        path = given.storage_path or temporary

        def run(name: str) -> RunConfig:
            return RunConfig(storage_path=path, name=name)

        trainer = TorchTrainer(train_func, scaling_config=scaling_config, run_config=run("bare"))
        trainer.fit()

        config = {"lr": 1e-2, "num_epochs": given.num_epochs, "batch_size": 16}
        trainer = TorchTrainer(
            train_func_with_config, train_loop_config=config, scaling_config=scaling_config, run_config=run("config")
        )
        print(f"configured with {trainer.fit().metrics}")

        run_config = RunConfig(storage_path=path, name="unique_run_name")
        trainer = TorchTrainer(
            train_on_loader, train_loop_config=config, scaling_config=scaling_config, run_config=run_config
        )
        result = trainer.fit()
        assert result.metrics is not None
        assert result.checkpoint is not None
        with result.checkpoint.as_directory() as folder:
            load_model().load_state_dict(torch.load(os.path.join(folder, "model.pt"), weights_only=True))  # noqa: PTH118
        print(f"trained on a loader: loss {result.metrics['loss']:.3f}")

        trainer = TorchTrainer(
            train_on_dataset,
            train_loop_config=config,
            datasets={"train": train_dataset},  # [Step 2] The dataset goes to the trainer.
            scaling_config=scaling_config,
            run_config=run("dataset"),
        )
        result = trainer.fit()
        assert result.metrics is not None
        print(
            f"trained on a dataset: slope {result.metrics['slope']:.2f}, {result.metrics['rows']} rows in each worker"
        )


if __name__ == "__main__":
    main()
