"""How soon a viewer shows much, and how much memory it takes: a million spans, 100 runs of 10,000 points; beside
TensorBoard and Ray's dashboard.

python benchmarks/viewing.py

Needs playwright, and a Chromium (``CHROMIUM=/usr/bin/chromium``). For TensorBoard, which is measured if it is found:
``pip install tensorboard tensorboardX`` in an environment of its own, and ``TENSORBOARD=/path/to/bin/tensorboard``.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from _harness import OURS, Results, Row, parse_settings, show

from hocket.observe.runs import log

TENSORBOARD = "tensorboard"
RAY = "ray"
SPANS = Row(name="a million spans on the screen", unit="s", more_is_better=False)
CURVE = Row(name="first curve of 100 runs with 10,000 points", unit="s", more_is_better=False)
MEMORY = Row(name="the viewer's memory beside an idle session", unit="MB", more_is_better=False)

WRITERS, EACH = 31, 32_700  # a ring holds 32,768, and the writer's own call is in it
SPANS_AT_LEAST = 1_000_000
RUNS, POINTS = 100, 10_000
LIMIT_SECONDS = 300

PROGRAM = """
import sys, time
import hocket
from hocket.engine import events

hocket.init(num_cpus=int(sys.argv[1]))

@hocket.remote
class Writer:
    def write(self, count):
        begun = time.perf_counter()
        for number in range(count):
            events.note(events.Kind.STEP, "step", begun + 1e-3 * number, 9e-4)

writers = [Writer.remote() for _ in range(int(sys.argv[1]))]
hocket.get([writer.write.remote(int(sys.argv[2])) for writer in writers])
print("open", flush=True)
sys.stdin.read()
"""

RAY_PROGRAM = """
import sys
import ray

ray.init(num_cpus=2, include_dashboard=True, logging_level="error")
ray.get([ray.remote(lambda: 1).remote() for _ in range(2)])
print("open", flush=True)
sys.stdin.read()
"""

EVENT_FILES = """
import sys
from tensorboardX import SummaryWriter

for run in range(int(sys.argv[2])):
    with SummaryWriter(f"{sys.argv[1]}/run-{run:03}") as writer:
        for step in range(int(sys.argv[3])):
            writer.add_scalar("loss", 1 / (step + 1), step)
"""


@contextlib.contextmanager
def run(*command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program; end it with a closed standard input, or a signal."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def read_line(process: subprocess.Popen[str]) -> str:
    """Return the next line that a program prints."""
    assert process.stdout is not None
    return process.stdout.readline()


def ask(port: int, path: str, token: str = "") -> bytes | None:
    """Return the answer to a GET; None if there is none yet."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_SECONDS)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        data = answer.read()
    except OSError:
        return None
    else:
        return data if answer.status == 200 else None
    finally:
        connection.close()


def wait_for(look: Callable[[], bool]) -> None:
    """Wait until something is there."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not look():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.02)


def measure_spans() -> float:
    """Seconds from the click on "all" until all spans are on the page."""
    from playwright.sync_api import sync_playwright

    with (
        run(sys.executable, "-c", PROGRAM, str(WRITERS), str(EACH)) as program,
        sync_playwright() as playwright,
    ):
        assert read_line(program) == "open\n"
        with run(sys.executable, "-m", "hocket", "dashboard", str(program.pid)) as dashboard:
            address = read_line(dashboard).split()[-1]
            browser = playwright.chromium.launch(
                executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=["--no-sandbox"]
            )
            page = browser.new_page(viewport={"width": 1600, "height": 1000})
            begun = time.perf_counter()
            page.goto(address)
            page.click("button:text-is('all')")
            page.wait_for_function(
                "least => Number((document.querySelector('#counts')?.innerText.match(/^([0-9,]+) here/) ?? [0, '0'])[1]"
                ".replaceAll(',', '')) >= least",
                arg=SPANS_AT_LEAST,
            )
            seconds = time.perf_counter() - begun
            browser.close()
    return seconds


def write_runs(folder: Path) -> None:
    """Write the logs of finished runs."""
    for number in range(RUNS):
        place = folder / f"run-{number:03}"
        place.mkdir()
        written = log.RunLog(place)
        written.begin(place.name, {"number": number}, None)
        written.begin_attempt(1, 0)
        for step in range(POINTS):
            written.arrive(0, 1)
            written.add_row([{"loss": 1 / (step + 1)}], [None], time.time(), None)
        written.end(None)


def measure_ours(folder: Path) -> float:
    """Seconds from the start of the dashboard until it has given a curve."""
    begun = time.perf_counter()
    with run(sys.executable, "-m", "hocket", "dashboard", str(folder)) as dashboard:
        port, token = re.findall(r":(\d+)/#(\w+)", read_line(dashboard))[0]
        runs = json.loads(ask(int(port), "/api/runs", token) or b"[]")
        found = json.loads(ask(int(port), f"/api/run?path={runs[0]['path']}&width=800", token) or b"{}")
        assert found["rows"] == POINTS
        return time.perf_counter() - begun


def measure_tensorboard(program: str, folder: Path) -> float:
    """The same of TensorBoard."""
    begun = time.perf_counter()
    port = 16006
    path = f"/data/plugin/scalars/scalars?run=run-{RUNS - 1:03}&tag=loss&format=json"
    with run(program, "--logdir", str(folder), "--port", str(port), "--samples_per_plugin", "scalars=1000"):
        wait_for(lambda: ask(port, path) is not None)
        return time.perf_counter() - begun


def measure_memory() -> float:
    """Megabytes of our dashboard, while a page is asked for."""
    with run(sys.executable, "-c", PROGRAM, "2", "1") as program:
        assert read_line(program) == "open\n"
        with run(sys.executable, "-m", "hocket", "dashboard", str(program.pid)) as dashboard:
            port, token = re.findall(r":(\d+)/#(\w+)", read_line(dashboard))[0]
            for path in (f"now?pid={program.pid}", f"events?pid={program.pid}&seconds=10&width=900"):
                assert ask(int(port), f"/api/{path}", token)
            return psutil.Process(dashboard.pid).memory_info().rss / 1e6


def measure_memory_of_ray() -> float:
    """Megabytes of the processes of Ray's dashboard."""
    with run(sys.executable, "-c", RAY_PROGRAM) as program:
        assert read_line(program) == "open\n"
        time.sleep(5)  # it starts its parts one after the other
        members = psutil.Process(program.pid).children(recursive=True)
        return sum(one.memory_info().rss for one in members if "ray/dashboard" in " ".join(one.cmdline())) / 1e6


def main() -> int:
    """Measure, and show."""
    settings = parse_settings(__doc__.splitlines()[0], rounds=3, peers=(RAY,))
    results = Results(rows=[SPANS, CURVE, MEMORY], sides=(OURS, TENSORBOARD, RAY))
    tensorboard = os.environ.get("TENSORBOARD") or shutil.which("tensorboard")
    for peer in (TENSORBOARD, RAY):
        results.absences[SPANS.name, peer] = "it draws no spans"
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder, "ours"), Path(folder, "theirs")
        ours.mkdir()
        write_runs(ours)
        if tensorboard:
            writer = str(Path(tensorboard).with_name("python"))
            subprocess.run([writer, "-c", EVENT_FILES, str(theirs), str(RUNS), str(POINTS)], check=True)
        for _ in range(settings.rounds):
            results.add(SPANS.name, OURS, measure_spans())
            results.add(CURVE.name, OURS, measure_ours(ours))
            if tensorboard:
                results.add(CURVE.name, TENSORBOARD, measure_tensorboard(tensorboard, theirs))
            results.add(MEMORY.name, OURS, measure_memory())
            if RAY in settings.sides:
                results.add(MEMORY.name, RAY, measure_memory_of_ray())
    show(results, settings, title="Viewing")
    return results.exit_status


if __name__ == "__main__":
    sys.exit(main())
