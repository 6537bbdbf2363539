"""What an open session costs that does nothing: memory and processor time of all its processes together.

Beside Ray and Dask.

python benchmarks/idle.py
"""

import json
import subprocess
import sys

from _harness import Row, parse_settings, show, take_turns

PROCESSES = Row(name="idle session: processes", unit="", more_is_better=False)
MEMORY = Row(name="idle session: memory of all processes (USS)", unit="MB", more_is_better=False)
ADDED = Row(name="idle session: memory beyond a bare driver (USS)", unit="MB", more_is_better=False)
CPU = Row(name="idle session: processor", unit="% of a core", more_is_better=False)
ROWS = (PROCESSES, MEMORY, ADDED, CPU)

PROGRAM = """
import json, sys, time
import psutil
quiet_seconds, seconds = {times}

def list_processes():
    me = psutil.Process()
    return [me, *me.children(recursive=True)]

def count_uss():
    return sum(process.memory_full_info().uss for process in list_processes())

def count_cpu():
    return sum(sum(process.cpu_times()[:2]) for process in list_processes())

bare = count_uss()
def work(x):
    return x
{start}
time.sleep(quiet_seconds)
before = count_cpu()
time.sleep(seconds)
spent = count_cpu() - before
memory = count_uss()
print(json.dumps([len(list_processes()), memory / 1e6, (memory - bare) / 1e6, 100 * spent / seconds]), flush=True)
"""

SESSION = """
import {name}
{name}.init({options})
assert {name}.get([{name}.remote(work).remote(x) for x in range(20)]) == list(range(20))
"""

STARTS = {
    "hocket": SESSION.format(name="hocket", options="num_cpus=2"),
    "ray": SESSION.format(
        name="ray", options="num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level='ERROR'"
    ),
    "dask": """
import distributed
if __name__ == "__main__":
    client = distributed.Client(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=40)
    assert client.gather(client.map(work, range(20))) == list(range(20))
""",
}
"""What each side does before it does nothing: opens a session of two workers and runs 20 tasks."""


def measure(side: str, *, quick: bool) -> list[float]:
    program = PROGRAM.format(times="(0.5, 1.0)" if quick else "(3.0, 10.0)", start=STARTS[side])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise RuntimeError(f"ended with status {done.returncode}: {done.stderr[-500:]}")
    figures: list[float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> int:
    settings = parse_settings(__doc__.splitlines()[0], rounds=3, peers=("ray", "dask"))
    results = take_turns(ROWS, settings, lambda side: measure(side, quick=settings.quick))
    if results.rows:
        show(results, settings, title="Idle session")
    return results.exit_status


if __name__ == "__main__":
    sys.exit(main())
