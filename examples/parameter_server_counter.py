"""The counter of an introduction to parameter servers of 2022: five closures add 1 to 5 to a variable on a server.

The counter ends at 15.

python examples/parameter_server_counter.py local
python examples/parameter_server_counter.py distributed
"""

import sys
from collections.abc import Iterator

import hocket
from hocket import ps


def count_locally() -> int:
    """Count in a variable of this process."""
    counter = 0

    def worker_fn(iterator: Iterator[int]) -> None:
        nonlocal counter
        counter += next(iterator)

    numbers = iter(range(1, 6))
    for _ in range(5):
        worker_fn(numbers)
    return counter


def count_on_servers() -> int:
    """Count in a variable on a server. Two workers add to it."""
    strategy = ps.ParameterServerStrategy(ps.Cluster(workers=2, servers=1))
    coordinator = ps.Coordinator(strategy)
    with strategy.scope():
        counter = ps.Variable(initial_value=0)

    def worker_fn(iterator: Iterator[int]) -> None:
        counter.assign_add(next(iterator))

    numbers = iter(coordinator.create_per_worker_dataset(range(1, 6)))
    for _ in range(5):
        coordinator.schedule(worker_fn, args=(numbers,))
    coordinator.join()
    return int(counter)


if __name__ == "__main__":
    if sys.argv[1:] == ["local"]:
        print(count_locally())
    else:
        with hocket.init(num_cpus=2):
            print(count_on_servers())
