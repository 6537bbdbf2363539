"""Feeding 28x28 images to a training loop: a dataset's shard, beside a loop over an array in memory and beside Ray
Data's shard.

All three run as the one rank of a trainer, with one thread: `array` as ours, with the images in the rank's own memory
and no dataset. A row is an image and its label, 785 numbers. The first epoch is not counted; of the others the fastest
is, because others use the machine too.

python benchmarks/ingest.py
"""

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _harness import OURS, Results, Row, Settings, parse_settings, show

READ_ROWS, TRAIN_ROWS = 25_600, 6_400
BATCH_ROWS, BUFFER_ROWS = 64, 1_024
EPOCHS = 4
LIMIT_SECONDS = 600

ROWS = [
    Row(name=f"{what} 28x28 images{how}", unit="images/s")
    for what in ("read", "train LeNet on")
    for how in ("", f", shuffled among {BUFFER_ROWS:,}")
]


def build_images(count: int) -> np.ndarray[Any, Any]:
    generator = np.random.default_rng(0)
    images = generator.random((count, 785), np.float32)
    images[:, -1] = generator.integers(0, 10, count)
    return images


def build_model() -> torch.nn.Module:
    """LeNet with 44,426 parameters."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        *(torch.nn.Conv2d(1, 6, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
        *(torch.nn.Conv2d(6, 16, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
        *(torch.nn.Flatten(), torch.nn.Linear(256, 120), torch.nn.ReLU()),
        *(torch.nn.Linear(120, 84), torch.nn.ReLU(), torch.nn.Linear(84, 10)),
    )


def read_array(images: torch.Tensor, *, shuffles: bool) -> Iterator[torch.Tensor]:
    """What a loop without any loader does."""
    order = torch.cat([start + torch.randperm(BUFFER_ROWS) for start in range(0, len(images) + 1, BUFFER_ROWS)])
    order = order[order < len(images)]
    for start in range(0, len(images), BATCH_ROWS):
        yield images[order[start : start + BATCH_ROWS]] if shuffles else images[start : start + BATCH_ROWS]


def run_epochs(config: dict[str, Any], begin: Callable[[], Iterator[torch.Tensor]]) -> float:
    """Images a second, in the fastest epoch but the first."""
    torch.set_num_threads(1)
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seconds = []
    for _ in range(config["epochs"]):
        count, started = 0, time.perf_counter()
        for batch in begin():
            count += len(batch)
            if config["trains"]:
                optimizer.zero_grad()
                images, labels = batch[:, :-1].reshape(-1, 1, 28, 28), batch[:, -1].long()
                torch.nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        seconds.append(time.perf_counter() - started)
        assert count == config["count"], count
    return float(config["count"] / min(seconds[1:]))


def train_loop(config: dict[str, Any]) -> None:
    """What each side's rank runs."""
    if config["side"] == "array":
        images = torch.from_numpy(build_images(config["count"]))
        rate = run_epochs(config, lambda: read_array(images, shuffles=config["shuffles"]))
    else:
        shard = importlib.import_module(f"{config['package']}.train").get_dataset_shard("train")
        shuffle = {"local_shuffle_buffer_size": BUFFER_ROWS} if config["shuffles"] else {}
        rate = run_epochs(
            config, lambda: (batch["data"] for batch in shard.iter_torch_batches(batch_size=BATCH_ROWS, **shuffle))
        )
    Path(config["file"]).write_text(json.dumps(rate))


def measure_side(side: str, row: str, file: Path, *, quick: bool) -> None:
    """Run one row of one side, in this process and its workers."""
    trains = row.startswith("train")
    package = "ray" if side == "ray" else OURS
    count = (TRAIN_ROWS if trains else READ_ROWS) // (10 if quick else 1)
    config = {
        "side": side,
        "package": package,
        "trains": trains,
        "shuffles": "shuffled" in row,
        "count": count,
        "epochs": 2 if quick else EPOCHS,
        "file": str(file),
    }
    session, train, data, torch_package = (
        importlib.import_module(f"{package}{part}") for part in ("", ".train", ".data", ".train.torch")
    )
    session.init(num_cpus=2)
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        torch_package.TorchTrainer(
            train_loop,
            train_loop_config=config,
            datasets={} if side == "array" else {"train": data.from_numpy(build_images(count))},
            scaling_config=train.ScalingConfig(num_workers=1),
            run_config=train.RunConfig(storage_path=folder),
        ).fit()
    session.shutdown()


def measure(row: Row, side: str, settings: Settings, results: Results) -> None:
    """Start a fresh process that measures."""
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        file, log = Path(folder, "rate"), Path(folder, "log")
        command = [sys.executable, __file__, "--side", side, "--row", row.name, "--file", str(file)]
        with log.open("w") as output, contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [*command, "--quick"] if settings.quick else command,
                stdout=output,
                stderr=output,
                env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
                check=False,
                timeout=LIMIT_SECONDS,
            )
        if file.exists():
            results.add(row.name, side, json.loads(file.read_text()))
        else:
            results.fail(row.name, side, log.read_text()[-2000:])


def main() -> int:
    parser = argparse.ArgumentParser(add_help=False)
    for name in ("--side", "--row", "--file"):
        parser.add_argument(name)
    parser.add_argument("--quick", action="store_true")
    given, _ = parser.parse_known_args()
    if given.side:
        measure_side(given.side, given.row, Path(given.file), quick=given.quick)
        return 0
    settings = parse_settings(__doc__.splitlines()[0], rounds=5, peers=("array", "ray"))
    results = Results(rows=[row for row in ROWS if settings.wants(row)], sides=settings.sides)
    for _ in range(settings.rounds):
        for row in results.rows:
            for side in settings.sides:
                measure(row, side, settings, results)
    show(results, settings, title="Ingest")
    return results.exit_status


if __name__ == "__main__":
    sys.exit(main())
