"""The command `hocket demo`, from its data to its last line of output."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import console

import hocket
from hocket import train
from hocket.cli.demo import training
from hocket.train import torch as hocket_torch

OUT = console.Console(highlight=False, soft_wrap=True)
"""The console of the demo."""

_TRAIN_COUNT = 1440
"""80 % of the digits, rounded for equal shares of 2, 3, 4, 5, 6, 8, 9 or 10 ranks. The other 357 are held out."""

_SPLIT_SEED = 1797
"""The seed of the split. It is the same for every seed of the training, which makes accuracies comparable."""


def run(*, num_workers: int, num_epochs: int, seed: int, engine: str, output: Path, is_quiet: bool) -> None:
    """Train, save the results, and print where they are."""
    if output.exists() and not output.is_dir():
        raise ValueError(
            f"--output must be a folder, but received {os.fspath(output)!r}, which is a file. Give another name."
        )
    output.mkdir(parents=True, exist_ok=True)
    arrays = _load_digits()
    if not is_quiet:
        who = (
            f"{num_workers} worker processes"
            if num_workers > 1
            else "1 worker process"
            if num_workers
            else "this process"
        )
        OUT.print(
            f"Training on {len(arrays['train_labels']):,} handwritten digits in {who}; {len(arrays['test_labels'])} "
            "are held out."
        )
    trainer = hocket_torch.TorchTrainer(
        training.train_digits,
        train_loop_config={"epochs": num_epochs, "seed": seed, **arrays},
        scaling_config=_build_scaling(num_workers, engine),
        run_config=train.RunConfig(
            name=_pick_name(output),
            storage_path=output,
            callbacks=[train.ProgressDisplay("off" if is_quiet else "auto", interval_s=1)],
        ),
    )
    result = trainer.fit()
    picture = Path(result.path, "curves.png")
    _save_curves(result.metrics_history, picture)
    _print_summary(result, picture, num_workers, num_epochs)


def _build_scaling(num_workers: int, engine: str) -> train.ScalingConfig:
    """Return a scaling with a CPU for each rank, or a share of one if there are more ranks than CPUs."""
    if num_workers == 0:
        return train.ScalingConfig(num_workers=0)
    hocket.init(engine=engine, ignore_reinit_error=True)
    cpus = hocket.cluster_resources().get("CPU", 1.0)
    share = cpus / num_workers
    if share < 0.001:
        raise ValueError(
            f"--workers {num_workers} is more than {cpus:g} CPUs can serve; use {int(cpus * 1000)} at most."
        )
    return train.ScalingConfig(
        num_workers=num_workers, resources_per_worker={"CPU": min(1.0, math.floor(share * 1000) / 1000)}
    )


def _pick_name(output: Path) -> str:
    """Return the first free name: a run with an earlier run's name would continue that run."""
    number = 1
    while (output / f"digits-{number:03d}").exists():
        number += 1
    return f"digits-{number:03d}"


def _print_summary(result: train.Result, picture: Path, num_workers: int, num_epochs: int) -> None:
    metrics, checkpoint = result.metrics, result.checkpoint
    assert metrics is not None, "every epoch reports"
    assert checkpoint is not None, "the last epoch reports one"
    other_workers = 1 if num_workers != 1 else 2
    OUT.print(f"test accuracy {metrics['accuracy']:.4f}")
    OUT.print(f"final loss    {metrics['loss']:.6f}")
    OUT.print(f"checkpoint    {checkpoint.path}")
    OUT.print(f"weights       sha256 {training.digest_weights(checkpoint)}")
    OUT.print(f"curves        {picture}")
    OUT.print(
        "\nTry next:\n"
        f"  hocket demo --workers {other_workers}        compare samples/s\n"
        f"  hocket demo --epochs {num_epochs * 2}        train longer\n"
        f"  {training.__file__}\n"
        "                               the training function: copy it, and put in your model and data",
        markup=False,
    )


def _load_digits() -> dict[str, npt.NDArray[Any]]:
    """Return images, scaled to 0..1 with shape (n, 1, 8, 8), and labels, of the training digits and the held-out ones.
    The data are part of scikit-learn: 1,797 handwritten digits of 8 x 8 pixels."""
    from sklearn import datasets  # takes a second, so only this process imports it

    images, labels = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(images))
    images = (images / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)[order]
    labels = labels.astype(np.int64)[order]
    return {
        "train_images": images[:_TRAIN_COUNT],
        "train_labels": labels[:_TRAIN_COUNT],
        "test_images": images[_TRAIN_COUNT:],
        "test_labels": labels[_TRAIN_COUNT:],
    }


def _save_curves(history: list[dict[str, object]], path: Path) -> None:
    """Draw loss and accuracy over the epochs, and save them as a PNG."""
    from matplotlib import figure  # not `pyplot`, which would look for a display

    epochs = [metrics["epoch"] for metrics in history]
    picture = figure.Figure(figsize=(9, 3.5), layout="constrained")
    left, right = picture.subplots(1, 2)
    left.plot(epochs, [metrics["loss"] for metrics in history], marker="o")
    left.set(title="Training loss", xlabel="epoch", ylabel="cross-entropy", yscale="log")
    right.plot(epochs, [metrics["accuracy"] for metrics in history], marker="o", color="tab:green")
    right.set(title="Accuracy on held-out digits", xlabel="epoch", ylabel="share recognised")
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(visible=True, alpha=0.3)
    picture.savefig(path, dpi=120)
