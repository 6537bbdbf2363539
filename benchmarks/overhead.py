"""What Hocket adds to Ray where it runs on Ray: the same operations on the engine "ray" and in Ray's own words.

python benchmarks/overhead.py --only tasks
"""

import dataclasses
import os
import sys

import _core_operations  # noqa: F401 (it fills the list)
from _harness import measure_sides, parse_settings, show
from _operations import OPERATIONS

ROWS = (
    "single client tasks sync",
    "single client tasks async",
    "1:1 actor calls sync",
    "1:1 actor calls async",
    "1:1 actor calls concurrent",
    "1:1 async-actor calls sync",
    "1:1 async-actor calls async",
    "1:n actor calls async",
    "n:n actor calls async",
    "single client put calls (Plasma)",
    "single client get calls (Plasma)",
    "single client put gigabytes",
    "single client wait 1k refs",
)


def main() -> int:
    settings = parse_settings(__doc__.splitlines()[0], rounds=3, peers=("ray",))
    os.environ["HOCKET_ENGINE"] = "ray"
    rows = [one.row for one in OPERATIONS if one.row.name in ROWS and settings.wants(one.row)]
    settings = dataclasses.replace(settings, only="|".join(row.name for row in rows))  # the sides measure nothing else
    results = measure_sides("core", rows, settings)
    if results.rows:
        show(results, settings, title="Hocket on Ray, against Ray itself")
    return results.exit_status


if __name__ == "__main__":
    sys.exit(main())
