"""When more ranks help: steps of the same global batch in one process with all cores, and in 2, 4 and 8 ranks that
share them, on one machine.

DistributedDataParallel with Adam. Beside the steps a second: the processor time of rank 0 a step, and what of it is the
optimizer's, which every rank does again however few rows it has. Rounds are interleaved; the median counts.

python benchmarks/ranks.py
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

import hocket
from hocket import train
from hocket.train.torch import TorchTrainer

NETWORKS = {"perceptron": 128, "LeNet": 64, "convolutions": 128}
"""The global batch of each."""

Measured = tuple[float, float, float]
"""Steps a second; milliseconds of processor time a step; and of the optimizer."""


def loop(config: dict[str, Any]) -> Measured:
    import time

    import torch
    from torch import nn

    from hocket.train import torch as hocket_torch

    def build(name: str) -> nn.Module:
        if name == "perceptron":  # that of TensorFlow's guide to DTensor
            return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
        if name == "LeNet":
            return nn.Sequential(
                *(nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
                *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
            )
        return nn.Sequential(
            *(nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)),
            *(nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(32 * 49, 10)),
        )

    size = train.get_context().get_world_size()
    torch.manual_seed(0)
    model = hocket_torch.prepare_model(build(config["network"]))
    optimizer = torch.optim.Adam(model.parameters())
    rows = config["batch"] // size
    x, y = torch.rand(rows, 784), torch.randint(0, 10, (rows,))

    def measure(step: Callable[[], Any], seconds: float) -> tuple[float, float]:
        """Return steps a second, and milliseconds of processor time a step."""
        for _ in range(5):
            step()
        count = 0
        began, used = time.perf_counter(), time.process_time()
        while count < 10 or not is_over(seconds, began):
            step()
            count += 1
        return count / (time.perf_counter() - began), (time.process_time() - used) / count * 1000

    def is_over(seconds: float, began: float) -> bool:
        over = torch.tensor(float(time.perf_counter() - began > seconds))
        if size > 1:
            torch.distributed.broadcast(over, 0)
        return bool(over)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    rate, processor_ms = measure(step, config["seconds"])
    _, optimizer_ms = measure(optimizer.step, 0.3)
    return rate, processor_ms, optimizer_ms


def run(network: str, size: int, seconds: float) -> Measured:
    cores = os.cpu_count() or 1
    per_rank = cores if size == 1 else cores / size
    with hocket.init(num_cpus=cores):
        found: Measured = (
            TorchTrainer(
                loop,
                train_loop_config={"network": network, "batch": NETWORKS[network], "seconds": seconds},
                scaling_config=train.ScalingConfig(num_workers=size, resources_per_worker={"CPU": per_rank}),
                run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
            )
            .fit()
            .return_value
        )
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    given = parser.parse_args()
    sizes = [1, 2, 4, 8]
    found: dict[tuple[str, int], list[Measured]] = {(network, size): [] for network in NETWORKS for size in sizes}
    for _ in range(given.rounds):
        for case, results in found.items():
            results.append(run(*case, given.seconds))
    print(
        f"| network, global batch | ranks on {os.cpu_count()} cores | steps/s | of one rank's | ms of processor a "
        "rank and step | of it the optimizer |"
    )
    print("|---|---|---|---|---|---|")
    for (network, size), results in found.items():
        rate, processor_ms, optimizer_ms = map(statistics.median, zip(*results, strict=True))
        one = statistics.median(rate for rate, *_ in found[network, 1])
        print(
            f"| {network}, {NETWORKS[network]} | {size} | {rate:.0f} | {rate / one:.2f} | {processor_ms:.1f} | "
            f"{optimizer_ms:.1f} |"
        )
