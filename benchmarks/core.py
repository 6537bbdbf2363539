"""The core operations beside Ray and, for plain tasks, the standard library's two pools.

python benchmarks/core.py --peer ray --only tasks
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from _core_operations import OPERATIONS
from _harness import Results, Settings, parse_settings, show
from rich.progress import track

LIMIT_SECONDS = 900
"""Longest that one side may take for one round; Ray needs about 150 on two cores. Guessed."""


def measure_side(side: str, settings: Settings, results: Results) -> None:
    """Measure one side once, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        file, log = Path(folder, "results"), Path(folder, "log")
        file.touch()
        program = Path(__file__).with_name("_core_operations.py")
        command = [sys.executable, str(program), side, str(file), "--only", settings.only]
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command, "--quick"] if settings.quick else command, stdout=output, stderr=output, env=environment
            )
            try:
                failure = f"exit status {status}" if (status := process.wait(LIMIT_SECONDS)) else ""
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                failure = f"stopped after {LIMIT_SECONDS} s"
        for line in file.read_text().splitlines():
            record = json.loads(line)
            if "value" in record:
                results.add(record["row"], side, record["value"])
            else:
                results.fail(record["row"], side, record["failure"])
        if failure:
            results.fail("the whole side", side, f"{failure}\n{log.read_text()[-2000:]}")


def run(settings: Settings) -> Results:
    rows = [one.row for one in OPERATIONS if settings.wants(one.row)]
    results = Results(rows=rows, sides=settings.sides)
    turns = [side for _ in range(settings.rounds) for side in settings.sides]
    for side in track(turns, description="measuring", disable=not sys.stderr.isatty()):
        measure_side(side, settings, results)
    return results


def main() -> int:
    settings = parse_settings(__doc__.splitlines()[0], rounds=3)
    results = run(settings)
    if results.rows:
        show(results, settings, title="Core operations")
    return results.exit_status


if __name__ == "__main__":
    sys.exit(main())
