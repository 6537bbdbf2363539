"""How long a training stands still when a rank is killed: from SIGKILL to the training function in the last rank of the
next group.

Two ranks of PyTorch, a checkpoint every ten steps, three deaths.

python benchmarks/recovery.py
"""

import argparse
import os
import signal
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import hocket
from hocket import train
from hocket.train.torch import TorchTrainer

DEATHS = 3
STEPS = 400


def loop(config: dict[str, Any]) -> None:
    import torch

    rank = train.get_context().get_world_rank()
    Path(config["log"], f"{time.time()} {rank} {os.getpid()}").touch()
    start = train.get_checkpoint()
    first = int(Path(start.path, "step").read_text()) if start else 0
    for step in range(first + 1, STEPS + 1):
        torch.distributed.all_reduce(torch.ones(4))
        time.sleep(0.02)
        if step % 10 == 0:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "step").write_text(str(step))
                train.report({"step": step}, checkpoint=train.Checkpoint(folder))


def list_starts(log: Path) -> list[tuple[float, int, int]]:
    """Return when each rank began, its rank and its pid, in this order."""
    return sorted(
        (float(when), int(rank), int(pid)) for when, rank, pid in (path.name.split() for path in log.iterdir())
    )


def wait_for_starts(log: Path, count: int) -> None:
    while len(list_starts(log)) < count:
        time.sleep(0.02)


def kill_ranks(log: Path, seconds: list[float]) -> None:
    for number in range(1, DEATHS + 1):
        wait_for_starts(log, 2 * number)
        time.sleep(1.5)
        pid = next(pid for _, rank, pid in reversed(list_starts(log)) if rank == 1)
        began = time.time()
        os.kill(pid, signal.SIGKILL)
        wait_for_starts(log, 2 * number + 2)
        seconds.append(list_starts(log)[-1][0] - began)


def measure(engine: str) -> list[float]:
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder, hocket.init(engine=engine, num_cpus=2):
        log = Path(folder, "log")
        log.mkdir()
        killer = threading.Thread(target=kill_ranks, args=(log, seconds))
        killer.start()
        TorchTrainer(
            loop,
            train_loop_config={"log": str(log)},
            scaling_config=train.ScalingConfig(num_workers=2),
            run_config=train.RunConfig(storage_path=folder, failure_config=train.FailureConfig(max_failures=DEATHS)),
        ).fit()
        killer.join()
    return seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", action="append", choices=["local", "ray"])
    for engine in parser.parse_args().engine or ["local", "ray"]:
        found = measure(engine)
        print(f"{engine}: {', '.join(f'{one:.1f}' for one in found)} s, median {statistics.median(found):.1f}")
