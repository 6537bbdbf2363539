"""Large values: how fast they go into the object store and come out, beside a plain copy of the same bytes.

python benchmarks/store.py
"""

import json
import os
import subprocess
import sys

from _harness import Results, Row, Settings, parse_settings, show

ROWS = [
    Row(name="copy 800 MB between warm arrays", unit="GB/s"),
    Row(name="first put of 800 MB", unit="GB/s"),
    Row(name="put of 800 MB into warm memory", unit="GB/s"),
    Row(name="get of 800 MB", unit="ms", more_is_better=False),
    Row(name="put of 1 MB", unit="us", more_is_better=False),
    Row(name="puts of 200 MB, five times the limit", unit="GB/s"),
]

PROGRAM = """
import json, sys, time
import numpy as np
import {name} as ray_like

length = {length}

def time_best(function, times):
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        value = function()
        best = min(best, time.perf_counter() - start)
        del value
    return best

source, target = np.ones(length), np.zeros(length)
found = [source.nbytes / 1e9 / time_best(lambda: np.copyto(target, source), 5)]
del target
ray_like.init(num_cpus=2, object_store_memory=4 * source.nbytes {options})
found.append(source.nbytes / 1e9 / time_best(lambda: ray_like.put(source), 1))
found.append(source.nbytes / 1e9 / time_best(lambda: ray_like.put(source), 8))
reference = ray_like.put(source)
found.append(1e3 * time_best(lambda: ray_like.get(reference), 8))
small = np.ones(2**17)
found.append(1e6 * time_best(lambda: [ray_like.put(small) for _ in range(100)], 5) / 100)
del reference
ray_like.shutdown()
part = source[: length // 4]
ray_like.init(num_cpus=2, object_store_memory=max(4 * part.nbytes, 75 << 20) {options})
found.append(20 * part.nbytes / 1e9 / time_best(lambda: [ray_like.put(part) for _ in range(20)], 1))
print(json.dumps(found))
"""

OPTIONS = {"hocket": "", "ray": ", include_dashboard=False, log_to_driver=False, logging_level='ERROR'"}


def measure(side: str, length: int) -> list[float]:
    """The figures of all rows, from a fresh process."""
    source = PROGRAM.format(name=side, length=length, options=OPTIONS[side])
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2] or f"status {done.returncode}")
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(settings: Settings) -> Results:
    sides = tuple(side for side in settings.sides if side in OPTIONS)
    results = Results(rows=[row for row in ROWS if settings.wants(row)], sides=sides)
    for _ in range(settings.rounds):
        for side in sides:
            try:
                found = measure(side, 10_000_000 if settings.quick else 100_000_000)
            except RuntimeError as error:
                results.fail(ROWS[0].name, side, str(error))
                continue
            for row, value in zip(ROWS, found, strict=True):
                results.add(row.name, side, value)
    return results


def main() -> int:
    settings = parse_settings(__doc__.splitlines()[0], rounds=3, peers=("ray",))
    results = run(settings)
    if results.rows:
        show(results, settings, title="Object store")
    return results.exit_status


if __name__ == "__main__":
    sys.exit(main())
