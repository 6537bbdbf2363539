"""The training function of the demo. It runs in every rank.

It uses Hocket's `prepare_model`, `prepare_data_loader` and `report`. The rest is PyTorch as for a single process.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import data

from hocket import train
from hocket.train import torch as hocket_torch

BATCH_SIZE = 32
"""Samples per rank and step."""
LEARNING_RATE = 2e-3


def build_model() -> nn.Module:
    """Return a network of two convolutions and two linear layers: 38,282 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def train_digits(config: dict[str, Any]) -> None:
    """Train, and report after each epoch. The last report has the checkpoint."""
    hocket_torch.enable_reproducibility(config["seed"])
    model = hocket_torch.prepare_model(build_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    train_set = data.TensorDataset(torch.tensor(config["train_images"]), torch.tensor(config["train_labels"]))
    generator = torch.Generator().manual_seed(config["seed"])
    loader = hocket_torch.prepare_data_loader(
        data.DataLoader(train_set, batch_size=BATCH_SIZE, shuffle=True, generator=generator)
    )
    for epoch in range(config["epochs"]):
        started = time.perf_counter()
        loss = train_epoch(model, loader, optimizer)
        seconds = time.perf_counter() - started
        metrics = {
            "epoch": epoch + 1,
            "loss": loss,
            "accuracy": measure_accuracy(model, config["test_images"], config["test_labels"]),
            "samples_per_second": len(train_set) / seconds,
        }
        if epoch + 1 < config["epochs"]:
            train.report(metrics)
        else:
            report_with_checkpoint(metrics, model)


def train_epoch(model: nn.Module, loader: hocket_torch.PreparedDataLoader, optimizer: torch.optim.Optimizer) -> float:
    """Take one step per batch, and return the mean loss over all ranks' samples."""
    model.train()
    loss_sum, count = torch.zeros((), dtype=torch.float64), 0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        scaled = loss * loader.loss_scale  # each row counts the same, even in a short last batch
        scaled.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        rows = int(loader.weights.sum())
        loss_sum += loss.detach().double() * rows
        count += rows
    total, all_count = sum_over_ranks(loss_sum.item(), count)
    return total / all_count


def measure_accuracy(model: nn.Module, images: Any, labels: Any) -> float:
    """Return the share of held-out digits that the model recognises. Exactly one rank sees each digit."""
    context = train.get_context()
    mine = slice(context.get_world_rank(), None, context.get_world_size())
    model.eval()
    with torch.no_grad():
        guesses = model(torch.tensor(images[mine])).argmax(dim=1)
    correct = int((guesses == torch.tensor(labels[mine])).sum())
    all_correct, all_count = sum_over_ranks(correct, len(guesses))
    return all_correct / all_count


def sum_over_ranks(*values: float) -> list[float]:
    """Return the sum of each value over all ranks."""
    sums = torch.tensor(values, dtype=torch.float64)
    if train.get_context().get_world_size() > 1:
        dist.all_reduce(sums)
    found: list[float] = sums.tolist()
    return found


def report_with_checkpoint(metrics: dict[str, Any], model: nn.Module) -> None:
    """Report with a checkpoint of the weights. All ranks hold the same weights, so rank 0 saves them."""
    if train.get_context().get_world_rank() > 0:
        train.report(metrics)
        return
    module = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    with tempfile.TemporaryDirectory() as folder:
        torch.save(module.state_dict(), Path(folder, "model.pt"))
        train.report(metrics, checkpoint=train.Checkpoint.from_directory(folder))


def digest_weights(checkpoint: train.Checkpoint) -> str:
    """Return the SHA-256 of the saved weights: of each tensor's name, shape, type and bytes, in their order. Two runs
    with the same digest have learned the same weights, bit for bit. The file itself also holds irrelevant bytes."""
    digest = hashlib.sha256()
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder, "model.pt"), weights_only=True)
    for name, tensor in state.items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} ".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
