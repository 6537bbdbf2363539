"""The trainer of 2022: one object that runs functions in two ranks, as often as you like.

A program written for Ray Train of that time runs when its one import says hocket. The ranks start once. Each `run`
calls the function in all ranks, and returns their results as a list, by rank.

    python examples/classic_trainer.py
"""

import argparse
from typing import Any

from hocket.train import Trainer


def train_func(config: dict[str, Any]) -> list[int]:
    """Stand in for a training loop: record each epoch."""
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
