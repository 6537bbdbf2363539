"""Eight numbers added up twice: as a chain and as a tree.

Both programs make seven additions of one second each. In the chain each addition needs the sum before it, so seven
seconds pass. In the tree four additions can run at once, then two, then one: three seconds. Nothing in `add` says so;
the order follows from the references that the calls get as arguments.

    python examples/chain_and_tree.py
"""

import argparse
import time
from collections.abc import Callable

import hocket


@hocket.remote
def add(x: int, y: int, delay: float) -> int:
    time.sleep(delay)
    return x + y


def chain(delay: float) -> int:
    """Compute ((((((1 + 2) + 3) + 4) + 5) + 6) + 7) + 8."""
    total = add.remote(1, 2, delay)
    for number in range(3, 9):
        total = add.remote(total, number, delay)
    return int(hocket.get(total))


def tree(delay: float) -> int:
    """Compute ((1 + 2) + (3 + 4)) + ((5 + 6) + (7 + 8))."""
    level = [add.remote(number, number + 1, delay) for number in range(1, 9, 2)]
    while len(level) > 1:
        level = [add.remote(left, right, delay) for left, right in zip(level[::2], level[1::2], strict=True)]
    return int(hocket.get(level[0]))


def timed(program: Callable[[float], int], delay: float) -> float:
    start = time.perf_counter()
    result = program(delay)
    seconds = time.perf_counter() - start
    print(f"{program.__name__:5}  {result:3}  {seconds:6.2f} s")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="Add eight numbers as a chain and as a tree.")
    parser.add_argument("--delay", type=float, default=1.0, help="seconds one addition takes (default 1)")
    delay = parser.parse_args().delay
    with hocket.init(num_cpus=4):  # four tasks sleep at once, also on a machine with fewer cores
        ratio = timed(chain, delay) / timed(tree, delay)
    print(f"the tree is {ratio:.2f} times faster; 7 / 3 = {7 / 3:.2f} is what the dependencies allow")


if __name__ == "__main__":
    main()
