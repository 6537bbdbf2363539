"""What the net under training costs: README's program, with ranks compared at each report and without.

python benchmarks/equality.py

An epoch is eight steps and a report. Sides take turns; each run is one `fit`, and the time of an epoch is the median of
rank 0's epochs. Since the times of two runs differ by more than the net may cost, rank 0 also counts the processor time
of a look by itself.
"""

import argparse
import statistics
import tempfile
import time
from typing import Any

import torch
from _harness import describe_machine

import hocket
from hocket import train
from hocket.train.rank import worker_session
from hocket.train.torch import TorchTrainer, prepare_data_loader, prepare_model

NUM_ROWS, BATCH_ROWS = 512, 32
WARM_EPOCHS = 20
NUM_LOOKS = 1000


def train_loop(config: dict[str, Any]) -> tuple[float, float]:
    """Train as README's first program does; return the seconds of an epoch, and a look's seconds of processor time."""
    torch.manual_seed(0)
    x = torch.rand(NUM_ROWS, 3)
    dataset = torch.utils.data.TensorDataset(x, x.sum(dim=1, keepdim=True))
    loader = prepare_data_loader(torch.utils.data.DataLoader(dataset, batch_size=BATCH_ROWS, shuffle=True))
    model = prepare_model(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    seconds = []
    loss = torch.zeros(())
    for epoch in range(WARM_EPOCHS + config["epochs"]):
        started = time.perf_counter()
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        train.report({"epoch": epoch, "loss": loss.item()})
        seconds.append(time.perf_counter() - started)
    watch = worker_session.get_session("benchmark").watch
    started = time.thread_time()
    for number in range(NUM_LOOKS):
        with watch.take_look("benchmark", number):
            pass
    return statistics.median(seconds[WARM_EPOCHS:]), (time.thread_time() - started) / NUM_LOOKS


def measure(action: str, epochs: int) -> tuple[float, float]:
    """Return the seconds of an epoch of one run, and of a look."""
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        result = TorchTrainer(
            train_loop,
            train_loop_config={"epochs": epochs},
            scaling_config=train.ScalingConfig(num_workers=2),
            run_config=train.RunConfig(storage_path=folder, divergence_config=train.DivergenceConfig(action)),
        ).fit()
    epoch_s, look_s = result.return_value
    return epoch_s, look_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=300)
    args = parser.parse_args()
    found: dict[str, list[float]] = {"error": [], "ignore": []}
    looks = []
    with hocket.init(num_cpus=2, logging_level="ERROR"):
        for number in range(args.rounds):
            for action in sorted(found, reverse=bool(number % 2)):
                epoch_s, look_s = measure(action, args.epochs)
                found[action].append(epoch_s * 1e3)
                if action == "error":
                    looks.append(look_s)
    print(describe_machine())
    for action, values in found.items():
        middle, low, high = statistics.median(values), min(values), max(values)
        name = "ranks compared" if action == "error" else "not compared"
        print(f"{name}: {middle:.3f} ms ({low:.3f} to {high:.3f}) an epoch of {NUM_ROWS // BATCH_ROWS // 2} steps")
    ratios = [on / off for on, off in zip(found["error"], found["ignore"], strict=True)]
    print(f"on / off, of each round: median {statistics.median(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f})")
    look_us, part = statistics.median(looks) * 1e6, statistics.median(looks) * 1e3 / statistics.median(found["error"])
    print(f"a look: {look_us:.0f} us of processor time in each rank, {part:.2%} of an epoch")


if __name__ == "__main__":
    main()
