"""What a viewer costs the program that it shows: tasks a second with three tabs of the dashboard open, and with none.

python benchmarks/looking.py

Needs playwright, and a Chromium (``CHROMIUM=/usr/bin/chromium``). One session is measured; the tabs show the dashboard
in one stretch and nothing in the next.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

from _harness import OURS, Results, Row, Settings, parse_settings, show

WATCHED = "watched"
TABS = 3

PROGRAM = """
import sys, time
import hocket

hocket.init(num_cpus=2)

@hocket.remote
def nothing():
    pass

def measure(step, seconds):
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        count += step()
    return count / (time.perf_counter() - start)

def one():
    hocket.get(nothing.remote())
    return 1

def many():
    hocket.get([nothing.remote() for _ in range(1000)])
    return 1000

many()
print("open", flush=True)
for line in sys.stdin:
    seconds = float(line)
    print(measure(one, seconds), measure(many, seconds), flush=True)
"""

ROWS = (Row(name="tasks, one at a time", unit="tasks/s"), Row(name="tasks, 1,000 in flight", unit="tasks/s"))


@contextlib.contextmanager
def open_tabs(driver_pid: int) -> Iterator[Callable[[bool], None]]:
    """Open a dashboard and a browser; give what shows the dashboard in its tabs, or nothing."""
    from playwright.sync_api import sync_playwright

    dashboard = subprocess.Popen(
        [sys.executable, "-m", "hocket", "dashboard", str(driver_pid)], stdout=subprocess.PIPE, text=True
    )
    assert dashboard.stdout is not None
    address = dashboard.stdout.readline().split()[-1]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=["--no-sandbox"]
        )
        tabs = [browser.new_context().new_page() for _ in range(TABS)]  # a window each, so that none is hidden

        def turn(is_watched: bool) -> None:
            for tab in tabs:
                tab.goto(address if is_watched else "about:blank")
            for tab in tabs:
                tab.wait_for_timeout(500)

        yield turn
        browser.close()
    dashboard.terminate()
    dashboard.wait()


def main() -> int:
    """Measure, and show."""
    settings: Settings = parse_settings(__doc__.splitlines()[0], rounds=7, peers=())
    seconds = 0.2 if settings.quick else 3.0
    results = Results(rows=list(ROWS), sides=(OURS, WATCHED))
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdin is not None
    assert program.stdout is not None
    assert program.stdout.readline() == "open\n"
    with open_tabs(program.pid) as turn:
        for number in range(settings.rounds):
            sides: Sequence[str] = results.sides[:: 1 if number % 2 == 0 else -1]
            for side in sides:
                turn(side == WATCHED)
                program.stdin.write(f"{seconds}\n")
                program.stdin.flush()
                for row, value in zip(ROWS, program.stdout.readline().split(), strict=True):
                    results.add(row.name, side, float(value))
    program.communicate()
    show(results, settings, title="Looking")
    return results.exit_status


if __name__ == "__main__":
    sys.exit(main())
