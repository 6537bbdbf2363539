"""What Hocket adds to Ray where it runs on Ray: the same operations on the engine "ray" and in Ray's own words.

python benchmarks/overhead.py --only tasks

Both sides are in one process, on one Ray, and take turns at each operation: a second Ray would differ from the first by
more than what is measured here.
"""

import os
import sys
from typing import Any

import _core_operations  # noqa: F401 (it fills the list)
from _harness import OURS, Results, Row, Settings, has_package, parse_settings, show
from _operations import OPERATIONS, Operation, measure
from rich.progress import track

import hocket

NUM_CPUS = 2

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


def measure_in_turns(one: Operation, modules: dict[str, Any], settings: Settings, results: Results) -> None:
    warm_seconds, seconds, divisor = (0.05, 0.1, 20) if settings.quick else (0.3, 1.0, 1)
    for number in range(settings.rounds):
        # New ones each time: how fast an actor answers depends on which core its process came to.
        bodies = {side: one.build(module, divisor) for side, module in modules.items()}
        for side in list(bodies) if number % 2 else list(reversed(bodies)):
            value = measure(bodies[side], warm_seconds=warm_seconds, seconds=seconds)
            results.add(one.row.name, side, value)


def run(settings: Settings) -> Results:
    import ray

    asked: dict[str, Row] = {one.row.name: one.row for one in OPERATIONS if settings.wants(one.row)}
    results = Results(rows=[asked[name] for name in ROWS if name in asked], sides=(OURS, "ray"))
    ray.init(
        num_cpus=NUM_CPUS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _node_ip_address="127.0.0.1",
    )
    try:
        with hocket.init(engine="ray"):  # it takes over the Ray of this process
            operations = [one for one in OPERATIONS if one.row in results.rows]
            for one in track(operations, description="overhead", disable=not sys.stderr.isatty()):
                measure_in_turns(one, {OURS: hocket, "ray": ray}, settings, results)
    finally:
        ray.shutdown()
    return results


def main() -> int:
    settings = parse_settings(__doc__.splitlines()[0], rounds=11, peers=("ray",))
    if not has_package("ray"):
        return 1
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    results = run(settings)
    if results.rows:
        show(results, settings, title="Hocket on Ray, against Ray itself")
    return results.exit_status


if __name__ == "__main__":
    sys.exit(main())
