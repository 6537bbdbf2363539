"""What 300 idle actors cost the tasks beside them: each figure in a session with them, and in one without.

python benchmarks/idle_actors.py
"""

import dataclasses
import json
import subprocess
import sys

from _harness import OURS, Row, Settings, build_environment, parse_settings, show, take_turns

ONE_BY_ONE = Row(name="a task, waited for", unit="us", more_is_better=False)
BATCH = Row(name="a task of 20,000 sent at once", unit="us", more_is_better=False)
ROWS = (ONE_BY_ONE, BATCH)

ALONE = "no actors"
ACTORS = {OURS: 300, ALONE: 0}

PROGRAM = """
import json, statistics, sys, time
import hocket

class Idle:
    def answer(self):
        return 1

@hocket.remote
def echo(x):
    return x

def measure(calls, rounds, call):
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        call(calls)
        seconds.append(time.perf_counter() - start)
    return 1e6 * statistics.median(seconds) / calls

def call_one_by_one(calls):
    for number in range(calls):
        hocket.get(echo.remote(number))

def call_at_once(calls):
    hocket.get([echo.remote(number) for number in range(calls)])

actors, rounds = map(int, sys.argv[1:])
hocket.init(num_cpus=2)
idle = [hocket.remote(num_cpus=0)(Idle).remote() for _ in range(actors)]
assert hocket.get([actor.answer.remote() for actor in idle]) == [1] * actors
call_at_once(20_000)
time.sleep(1)  # until the processes just started have come to rest
print(json.dumps([measure(2_000, rounds, call_one_by_one), measure(20_000, rounds, call_at_once)]), flush=True)
"""


def measure(side: str, settings: Settings) -> list[float]:
    command = [sys.executable, "-c", PROGRAM, str(ACTORS[side]), "1" if settings.quick else "10"]
    environment = build_environment(side, settings)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    if done.returncode:
        raise RuntimeError(f"ended with status {done.returncode}: {done.stderr[-500:]}")
    figures: list[float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> int:
    settings = parse_settings(__doc__.splitlines()[0], rounds=7, peers=())
    settings = dataclasses.replace(settings, sides=(OURS, ALONE))
    results = take_turns(ROWS, settings, lambda side: measure(side, settings))
    if results.rows:
        show(results, settings, title="Beside 300 idle actors")
    return results.exit_status


if __name__ == "__main__":
    sys.exit(main())
