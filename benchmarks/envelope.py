"""How many of everything: arguments, returns, objects in one get, tasks in a row. Beside Ray.

python benchmarks/envelope.py --rounds 1
"""

import sys

import _envelope_operations  # noqa: F401 (it fills the list)
from _harness import measure_sides, parse_settings, show
from _operations import OPERATIONS


def main() -> int:
    settings = parse_settings(__doc__.splitlines()[0], rounds=2, peers=("ray",))
    results = measure_sides("envelope", [one.row for one in OPERATIONS], settings)
    if results.rows:
        show(results, settings, title="Envelope")
    return results.exit_status


if __name__ == "__main__":
    sys.exit(main())
