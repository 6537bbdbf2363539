"""From nothing to the first result: start a Python process, import, open a session of two workers, run one task.

python benchmarks/startup.py
"""

import subprocess
import sys
import time

from _harness import Results, Row, Settings, build_environment, name_package, parse_settings, show

FIRST_RESULT = Row(name="cold start to first result", unit="s", more_is_better=False)
EXIT = Row(name="cold start to exit", unit="s", more_is_better=False)

SESSION = """
import {name}
{name}.init({options})

@{name}.remote
def double(x):
    return 2 * x

print({name}.get(double.remote(21)), flush=True)
"""

PROGRAMS = {
    "hocket": SESSION.format(name="hocket", options="num_cpus=2"),
    "ray": SESSION.format(
        name="ray", options="num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level='ERROR'"
    ),
    "futures": """
from concurrent.futures import ProcessPoolExecutor

def double(x):
    return 2 * x

with ProcessPoolExecutor(2) as executor:
    print(executor.submit(double, 21).result(), flush=True)
""",
    "pool": """
from multiprocessing import Pool

def double(x):
    return 2 * x

with Pool(2) as pool:
    print(pool.apply(double, (21,)), flush=True)
""",
    "loky": """
from loky import get_reusable_executor

def double(x):
    return 2 * x

with get_reusable_executor(2) as executor:
    print(executor.submit(double, 21).result(), flush=True)
""",
    "dask": """
from distributed import Client

def double(x):
    return 2 * x

if __name__ == "__main__":
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=40) as client:
        print(client.submit(double, 21).result(), flush=True)
""",
}
"""What each side runs; each prints 42 as soon as it has it."""


def measure(side: str, settings: Settings) -> tuple[float, float]:
    """Seconds from the start of the process to its printing 42, and to its end."""
    environment = build_environment(side, settings)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed code has its bytecode; a checkout's is made in round 1
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAMS[name_package(side)]],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        first = time.perf_counter() - start
        status = process.wait()
    if line != "42\n" or status:
        raise RuntimeError(f"printed {line!r} and ended with status {status} where 42 and 0 were expected")
    return first, time.perf_counter() - start


def run(settings: Settings) -> Results:
    results = Results(rows=[row for row in (FIRST_RESULT, EXIT) if settings.wants(row)], sides=settings.sides)
    for number in range(settings.rounds + 1):
        for side in settings.sides:
            try:
                first, end = measure(side, settings)
            except RuntimeError as error:
                results.fail(FIRST_RESULT.name, side, str(error))
                continue
            if number:  # the first round only brings the files into the page cache
                results.add(FIRST_RESULT.name, side, first)
                results.add(EXIT.name, side, end)
    return results


def main() -> int:
    settings = parse_settings(__doc__.splitlines()[0], rounds=7, peers=tuple(PROGRAMS)[1:])
    results = run(settings)
    if results.rows:
        show(results, settings, title="Cold start")
    return results.exit_status


if __name__ == "__main__":
    sys.exit(main())
