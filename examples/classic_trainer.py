"""The trainer of 2022: a function, run in two ranks, again and again.

A program written for Ray Train of that time runs when its one import says hocket. The ranks start once, and each `run`
calls the function in all of them; what comes back is a list, by rank.

    python examples/classic_trainer.py
"""

import argparse
from typing import Any

from hocket.train import Trainer


def train_func(config: dict[str, Any]) -> list[int]:
    """Stand in for a training loop: take note of each epoch."""
    results = []
    for epoch in range(config.get("num_epochs", 3)):
        results.append(epoch)  # noqa: PERF402 (a loop trains here)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="Two runs of one trainer.")
    parser.add_argument("--backend", default="tensorflow", help="torch, tensorflow (the default) or none")
    trainer = Trainer(backend=parser.parse_args().backend, num_workers=2)
    trainer.start()  # set up resources
    print("three epochs:", trainer.run(train_func))
    print("five epochs: ", trainer.run(train_func, config={"num_epochs": 5}))
    trainer.shutdown()  # clean up resources


if __name__ == "__main__":
    main()
