"""A small convolutional network, trained on two workers: the parts of a training program, one after the other.

The pictures are generated: each shows a bright bar in noise, upright or lying, and the network learns which. To make a
program for one process into this one, add `prepare_model`, `prepare_data_loader` and `report` to the training function,
and a trainer around it.

    python examples/train_convnet.py
"""

import argparse
import os
import tempfile
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import hocket.train.torch
from hocket.train import RunConfig, ScalingConfig
from hocket.train.torch import TorchTrainer

SIZE = 12
"""Pixels along a side."""


def load_dataset() -> TensorDataset:
    """Return the pictures and their labels.

    Call it in the training function, not in the driver: the values of a configuration travel to every worker.
    """
    generator = torch.Generator().manual_seed(0)
    pictures = 0.3 * torch.randn(512, 1, SIZE, SIZE, generator=generator)
    labels = torch.randint(2, (512,), generator=generator)
    for picture, label, at in zip(pictures, labels, torch.randint(SIZE, (512,), generator=generator), strict=True):
        (picture[0, :, at] if label else picture[0, at]).add_(1.0)
    return TensorDataset(pictures, labels)


def load_model() -> torch.nn.Module:
    """Build the model; called in the training function too, for the same reason."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 5),
        torch.nn.ReLU(),
        torch.nn.AdaptiveMaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 2),
    )


def train_func(config: dict[str, Any]) -> None:
    """Train in a worker."""
    hocket.train.torch.enable_reproducibility()
    data_loader = DataLoader(load_dataset(), batch_size=config["batch_size"], shuffle=True)
    data_loader = hocket.train.torch.prepare_data_loader(data_loader)  # this worker's part, on its device
    model = hocket.train.torch.prepare_model(load_model())  # on the worker's device, its gradients averaged
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])

    for epoch in range(config["num_epochs"]):
        if hocket.train.get_context().get_world_size() > 1:
            data_loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]  # a DistributedSampler has it
        correct, total, losses = 0, 0, []
        for inputs, labels in data_loader:
            outputs = model(inputs)
            loss = criterion(outputs, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            correct += int((outputs.argmax(dim=1) == labels).sum())
            total += len(labels)

        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            module = getattr(
                model, "module", model
            )  # without the wrapper, names do not depend on the number of workers
            torch.save(module.state_dict(), os.path.join(temp_checkpoint_dir, "model.pt"))  # noqa: PTH118
            checkpoint = hocket.train.Checkpoint.from_directory(temp_checkpoint_dir)
            metrics = {"epoch": epoch, "loss": sum(losses) / len(losses), "accuracy": correct / total}
            hocket.train.report(metrics=metrics, checkpoint=checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small convolutional network on two workers.")
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--num-epochs", type=int, default=10)
    parser.add_argument("--storage-path", help="where checkpoints go (default: a temporary folder)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        scaling_config = ScalingConfig(
            num_workers=given.num_workers, use_gpu=torch.cuda.device_count() >= given.num_workers > 0
        )
        run_config = RunConfig(storage_path=given.storage_path or temporary, name="convnet")
        config = {"lr": 1e-2, "num_epochs": given.num_epochs, "batch_size": 32}
        trainer = TorchTrainer(
            train_func, train_loop_config=config, scaling_config=scaling_config, run_config=run_config
        )
        result = trainer.fit()
        assert result.metrics is not None
        assert result.checkpoint is not None
        print(f"trained {result.metrics['epoch'] + 1} epochs: accuracy {result.metrics['accuracy']:.2f}")

        model = load_model()
        with result.checkpoint.as_directory() as folder:
            model.load_state_dict(torch.load(os.path.join(folder, "model.pt"), weights_only=True))  # noqa: PTH118
        pictures, labels = load_dataset().tensors
        accuracy = float((model(pictures).argmax(dim=1) == labels).float().mean())
        print(f"the checkpoint's model, on all pictures: accuracy {accuracy:.2f}")


if __name__ == "__main__":
    main()
