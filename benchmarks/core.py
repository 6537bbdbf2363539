"""The core operations beside Ray and, for plain tasks, the pools of the standard library, loky and Dask.

python benchmarks/core.py --peer ray --only tasks
python benchmarks/core.py --earlier ../hocket-of-last-week
"""

import sys

import _core_operations  # noqa: F401 (it fills the list)
from _harness import measure_sides, parse_settings, show
from _operations import OPERATIONS


def main() -> int:
    settings = parse_settings(
        __doc__.splitlines()[0], rounds=3, peers=("ray", "futures", "pool", "loky", "dask", "memcpy")
    )
    results = measure_sides("core", [one.row for one in OPERATIONS], settings)
    if results.rows:
        show(results, settings, title="Core operations")
    return results.exit_status


if __name__ == "__main__":
    sys.exit(main())
