"""What a report costs, and what a loop loses by being run as one rank: beside the same loop in a plain process.

python benchmarks/report.py
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from typing import Any

import torch
from _harness import describe_machine

import hocket
from hocket import train
from hocket.train.torch import TorchTrainer, prepare_data_loader, prepare_model

ROWS, BATCH_ROWS = 6400, 64
STEPS_PER_REPORT = 10
SAVING_SECONDS, SAVE_EVERY_SECONDS = 10.0, 2.0


class Watch(train.UserCallback):
    """Notes when the first rank began to report, and when the last report had arrived: one clock, on one machine."""

    def __init__(self) -> None:
        self.started = self.ended = 0.0

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        self.ended = time.perf_counter()
        if metrics[0]["step"] == 0:
            self.started = min(of_rank["started"] for of_rank in metrics)


def report_often(config: dict[str, Any]) -> None:
    started = time.perf_counter()
    for step in range(config["count"]):
        train.report({"step": step, "loss": 0.5, "started": started})


def measure_reports(num_workers: int, count: int) -> float:
    """Rows of reports that arrive in a second."""
    watch = Watch()
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        train.DataParallelTrainer(
            report_often,
            train_loop_config={"count": count},
            scaling_config=train.ScalingConfig(num_workers=num_workers),
            run_config=train.RunConfig(storage_path=folder, callbacks=[watch]),
        ).fit()
    return count / (watch.ended - watch.started)


def ask_often(config: dict[str, Any]) -> float:
    started = time.perf_counter()
    for _ in range(config["count"]):
        train.get_preemption_info()
    return (time.perf_counter() - started) / int(config["count"])


def measure_asking(count: int) -> float:
    """Seconds that two ranks take to ask the driver, and to be answered."""
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        result = train.DataParallelTrainer(
            ask_often,
            train_loop_config={"count": count},
            scaling_config=train.ScalingConfig(num_workers=2),
            run_config=train.RunConfig(storage_path=folder),
        ).fit()
    return float(result.return_value)


def build() -> tuple[torch.nn.Module, "torch.utils.data.DataLoader[Any]"]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)
    )
    data = torch.utils.data.TensorDataset(torch.rand(ROWS, 784), torch.randint(10, (ROWS,)))
    return model, torch.utils.data.DataLoader(data, batch_size=BATCH_ROWS, shuffle=True)


def learn(model: torch.nn.Module, loader: Any, epochs: int, report: Any) -> float:
    """Seconds an epoch takes, the fastest of all: others use the machine too."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seconds = []
    for _ in range(epochs):
        started = time.perf_counter()
        for step, (inputs, targets) in enumerate(loader):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if step % STEPS_PER_REPORT == 0:
                report({"step": step, "loss": loss.item()})
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def learn_as_rank(config: dict[str, Any]) -> float:
    model, loader = build()
    return learn(prepare_model(model), prepare_data_loader(loader), config["epochs"], train.report)


def measure_rank(epochs: int) -> float:
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        result = TorchTrainer(
            learn_as_rank,
            train_loop_config={"epochs": epochs},
            scaling_config=train.ScalingConfig(num_workers=1),
            run_config=train.RunConfig(storage_path=folder),
        ).fit()
    return float(result.return_value)


def learn_and_save(config: dict[str, Any]) -> float:
    """Steps a second while a checkpoint is saved every so many seconds; never if that is 0."""
    model, loader = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps, started = 0, time.perf_counter()
    saved = started
    while time.perf_counter() - started < config["seconds"]:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            steps += 1
            if config["every"] and time.perf_counter() - saved > config["every"]:
                saved = time.perf_counter()
                folder = tempfile.mkdtemp()  # the upload removes it
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/state.pt")
                train.report(
                    {"steps": steps},
                    train.Checkpoint(folder),
                    checkpoint_upload_mode=train.CheckpointUploadMode.ASYNC,
                )
    return steps / (time.perf_counter() - started)


def measure_saving(every_s: float) -> float:
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        result = TorchTrainer(
            learn_and_save,
            train_loop_config={"every": every_s, "seconds": SAVING_SECONDS},
            scaling_config=train.ScalingConfig(num_workers=1),
            run_config=train.RunConfig(storage_path=folder, checkpoint_config=train.CheckpointConfig(num_to_keep=1)),
        ).fit()
    return float(result.return_value)


def learn_bare(epochs: int, connection: Any) -> None:
    torch.set_num_threads(1)  # as in a rank that holds one CPU
    connection.send(learn(*build(), epochs, lambda metrics: None))


def measure_bare(epochs: int) -> float:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=learn_bare, args=(epochs, there))
    process.start()
    seconds = float(here.recv())
    process.join()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=5000, help="reports a round")
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()
    print(f"{describe_machine()}. Median of {arguments.rounds} rounds; the sides take turns.\n")
    print("| what | unit | value |\n|---|---|--:|")
    with hocket.init(num_cpus=2):
        for num_workers in (1, 2):
            rates = [measure_reports(num_workers, arguments.count) for _ in range(arguments.rounds)]
            print(f"| reports, {num_workers} workers | a second | {statistics.median(rates):,.0f} |", flush=True)
        times = [measure_asking(arguments.count // 10) for _ in range(arguments.rounds)]
        print(f"| get_preemption_info, 2 workers | us | {statistics.median(times) * 1e6:,.0f} |", flush=True)
        saving = [(measure_saving(0), measure_saving(SAVE_EVERY_SECONDS)) for _ in range(arguments.rounds)]
        pairs = [(measure_bare(arguments.epochs), measure_rank(arguments.epochs)) for _ in range(arguments.rounds)]
    bare, rank = (statistics.median(sides) for sides in zip(*pairs, strict=True))
    least = [min(sides) for sides in zip(*pairs, strict=True)]
    without, with_ = (statistics.median(sides) for sides in zip(*saving, strict=True))
    print(f"| steps, one rank, nothing saved | a second | {without:,.0f} |")
    print(f"| steps, one rank, a checkpoint every {SAVE_EVERY_SECONDS:.0f} s | a second | {with_:,.0f} |")
    print(f"| what saving costs | % | {(without / with_ - 1) * 100:+.2f} |")
    steps = ROWS // BATCH_ROWS
    print(f"| step, plain process | us | {bare / steps * 1e6:,.1f} |")
    print(f"| step, one rank, a report every {STEPS_PER_REPORT} steps | us | {rank / steps * 1e6:,.1f} |")
    print(f"| overhead of one rank, of medians | % | {(rank / bare - 1) * 100:+.2f} |")
    print(f"| overhead of one rank, of the fastest rounds | % | {(least[1] / least[0] - 1) * 100:+.2f} |")


if __name__ == "__main__":
    main()
