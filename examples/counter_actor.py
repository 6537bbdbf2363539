"""An actor that keeps state for several tasks.

Tasks run in processes of their own and share no variables. Six tasks search parts of a range for primes, and report
each prime to one actor. The actor runs one call at a time, so its two lines need no lock.

    python examples/counter_actor.py
"""

import argparse
import time
from typing import Any

import hocket


@hocket.remote
class Counter:
    """Counts by label."""

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}

    def add(self, label: str, amount: int = 1) -> int:
        self.totals[label] = self.totals.get(label, 0) + amount
        return self.totals[label]

    def read(self) -> dict[str, int]:
        return self.totals


def is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


@hocket.remote
def search(start: int, stop: int, counter: Any, delay: float) -> int:
    """Count the primes of [start, stop) in the actor, by their last digit; return their number."""
    time.sleep(delay)
    primes = [number for number in range(start, stop) if is_prime(number)]
    # Wait for the calls, so that the actor has counted all primes when this task ends.
    hocket.get([counter.add.remote(f"ends in {prime % 10}") for prime in primes])
    return len(primes)


def main() -> None:
    parser = argparse.ArgumentParser(description="Tasks that share an actor's state.")
    parser.add_argument("--delay", type=float, default=0.2, help="seconds each task sleeps first (default 0.2)")
    delay = parser.parse_args().delay
    with hocket.init(num_cpus=4):
        counter = Counter.remote()  # type: ignore[attr-defined]  # mypy ignores what a class decorator returns
        found = sum(hocket.get([search.remote(at, at + 500, counter, delay) for at in range(0, 3000, 500)]))
        totals = hocket.get(counter.read.remote())
        for label, total in sorted(totals.items()):
            print(f"{label}: {total}")
        print(f"primes below 3000: {found}, counted in the actor: {sum(totals.values())}")


if __name__ == "__main__":
    main()
