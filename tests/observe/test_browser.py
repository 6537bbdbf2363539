"""The dashboard in a real browser: what is on the page, and what the browser says of it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket import train
from hocket.observe.report import Curve, Report
from tests.observe import test_parts, test_searches
from tests.observe.test_dashboard import Dashboard, end, start

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: make test-long installs it")

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="needs a Chromium: apt install chromium, or CHROMIUM=/path/to/it"),
]

PROGRAM = """
import os, sys, time
import torch
import torch.distributed as dist
import hocket
from hocket import train
from hocket.core import session
from hocket.train.torch import TorchTrainer

hocket.init(num_cpus=2)


@hocket.remote(max_retries=0)
def work(seconds):
    time.sleep(seconds)
    return os.getpid()


@hocket.remote
def pause():
    end = time.perf_counter() + 2e-4  # or several share an event
    while time.perf_counter() < end:
        pass


@hocket.remote(max_retries=0)
def fail():
    raise ValueError("<img src=x onerror=document.title='hit'>")


@hocket.remote
class Counter:
    def add(self):
        time.sleep(0.01)


def train_step(rank):
    time.sleep(0.05 if rank == 1 else 0.001)


def train_long():
    rank = train.get_context().get_world_rank()
    for step in range(100_000):
        train_step(rank)
        dist.all_reduce(torch.ones(1))
        train.report({"loss": 1 / (step + 1), "<img src=x onerror=document.title='hit'>": step})


def fit(folder):
    try:
        TorchTrainer(
            train_long,
            scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
            run_config=train.RunConfig(name="run", storage_path=folder),
        ).fit()
    except train.TrainingFailedError:
        print("failed", flush=True)


counter = Counter.options(name="<img src=x onerror=document.title='hit'>").remote()
hocket.get([work.remote(0.01) for _ in range(20)] + [counter.add.remote() for _ in range(20)])
hocket.wait([fail.options(name="<b>odd</b>").remote()])
print("open", flush=True)
for line in sys.stdin:
    word, *rest = line.split()
    if word == "fit":
        fit(rest[0])
    if word == "pause":
        hocket.get([pause.remote() for _ in range(int(rest[0]))])
    if word == "produced":
        engine = session.get_open_engine()
        with engine.lock:
            batches = engine.parent.read_events()
        print(sum(len(list(batch)) + batch.missed for batch in batches), flush=True)
    if word == "work":
        hocket.get([work.remote(0.01) for _ in range(int(rest[0]))])
    print("done", flush=True)
"""


class Program:
    """A session in a process of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.read() == "open"

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def close(self) -> None:
        if self.process.poll() is None:
            try:
                self.process.communicate(timeout=30)
            finally:
                self.process.kill()


@pytest.fixture
def program() -> Iterator[Program]:
    running = Program()
    yield running
    running.close()


@pytest.fixture
def dashboard(program: Program) -> Iterator[Dashboard]:
    running = start(str(program.process.pid))
    yield running
    if running.process.poll() is None:
        end(running)


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with playwright.sync_playwright() as opened:
        yield opened


@pytest.fixture(scope="module")
def browser(driver: Any) -> Iterator[Any]:
    opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    yield opened
    opened.close()


@pytest.fixture
def page(browser: Any, dashboard: Dashboard) -> Iterator[Any]:
    """The dashboard's page; whatever the console says of it is a failure, and so is a request to anywhere else."""
    context = browser.new_context(viewport={"width": 1000, "height": 700})
    opened = context.new_page()
    said: list[str] = []
    opened.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    opened.on("pageerror", lambda error: said.append(f"error: {error}"))
    asked: set[str] = set()
    opened.on("request", lambda request: asked.add(request.url.split("/")[2]))
    opened.goto(f"http://127.0.0.1:{dashboard.port}/#{dashboard.token}")
    opened.wait_for_selector("#counts")
    yield opened
    assert asked == {f"127.0.0.1:{dashboard.port}"}
    assert [line for line in said if "Failed to load resource" not in line] == []
    context.close()


def read_counts(page: Any) -> dict[str, int]:
    """Return the figures of the line below the stream."""
    words = page.inner_text("#counts").replace(",", "").replace(".", " ").split()
    found = {"written": int(words[words.index("written") - 1]), "kept": int(words[words.index("kept") - 1])}
    found["overwritten"] = int(words[words.index("overwritten") - 1]) if "overwritten" in words else 0
    return found


def test_page_follows_the_program(page: Any, program: Program) -> None:
    assert page.url.endswith("/"), "the token has left the address"
    before = read_counts(page)["written"]
    program.tell("work 30")
    assert program.read() == "done"
    page.wait_for_function(
        "least => Number(document.querySelector('#counts').innerText.match(/([0-9,]+) written/)[1].replace(',', '')) >= least",
        arg=before + 30,
    )
    counts = read_counts(page)
    assert counts["written"] == counts["kept"] + counts["overwritten"]
    assert page.inner_text("table >> nth=0").count("work") == 1


def test_reload_shows_no_span_twice(page: Any) -> None:
    before = read_counts(page)
    for _ in range(3):
        page.reload()
        page.wait_for_selector("#counts")
    assert read_counts(page) == before


@pytest.mark.timeout(300)
def test_page_that_sleeps_shows_each_span_or_counts_it(page: Any, program: Program, dashboard: Dashboard) -> None:
    """A laptop that is closed for a minute, while the program writes more than the rings hold."""
    page.wait_for_selector("#counts")
    slept = time.monotonic()
    os.kill(dashboard.process.pid, signal.SIGSTOP)
    try:
        while time.monotonic() - slept < 60:
            program.tell("pause 20000")
            assert program.read() == "done"
    finally:
        os.kill(dashboard.process.pid, signal.SIGCONT)
    program.tell("produced")
    produced = int(program.read())
    assert program.read() == "done"
    page.wait_for_function(
        "produced => Number(document.querySelector('#counts').innerText.match(/([0-9,]+) written/)[1].replaceAll(',', '')) >= produced",
        arg=produced,
    )
    before = read_counts(page)
    page.reload()
    page.wait_for_selector("#counts")
    for counts in (before, read_counts(page)):
        assert counts["overwritten"] > 0, "there is a gap"
        assert counts["kept"] + counts["overwritten"] == counts["written"] == produced


def test_names_stay_text(page: Any) -> None:
    for name in ("Workers", "Actors", "Memory", "Errors"):
        page.click(f"nav button:text-is('{name}')")
        page.wait_for_selector(f"h2:text-is('{name}')")
        assert page.locator("main img, main b").count() == 0
        if name == "Actors":
            assert "<img src=x onerror=document.title='hit'>" in page.inner_text("main")
        if name == "Errors":
            assert "<b>odd</b>" in page.inner_text("main")
    assert page.title() == "Hocket"


def test_keys_stop_and_move(page: Any) -> None:
    page.focus("canvas")
    page.keyboard.press("Space")
    page.wait_for_selector("button:text-is('Follow')")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Space")
    page.wait_for_selector("button:text-is('Following')")


def test_phone_and_dark(browser: Any, dashboard: Dashboard) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 640}, color_scheme="dark")
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{dashboard.port}/#{dashboard.token}")
    page.wait_for_selector("#counts")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
    context.close()


def test_page_without_the_token_shows_nothing(browser: Any, dashboard: Dashboard) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{dashboard.port}/")
    page.wait_for_selector("[role=alert]")
    assert "The token is missing or wrong" in page.inner_text("main")
    assert "Session of pid" not in page.inner_text("body")
    context.close()


def test_name_that_somebody_points_to_loopback(driver: Any, dashboard: Dashboard) -> None:
    """DNS rebinding: the browser finds the server under a foreign name, and has the token."""
    rules = "--host-resolver-rules=MAP evil.example 127.0.0.1"
    opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", rules])
    answer = opened.new_page().goto(f"http://evil.example:{dashboard.port}/#{dashboard.token}")
    assert answer.status == 403
    opened.close()


def test_end_of_the_session_is_told(page: Any, program: Program, dashboard: Dashboard) -> None:
    program.close()
    dashboard.process.communicate(timeout=20)
    page.wait_for_selector("text=The dashboard has ended.")


def read_reports(page: Any) -> int:
    return int(page.locator("#ranks tbody tr").nth(0).locator("td").nth(3).inner_text().replace(",", ""))


def test_training_is_followed_to_the_death_of_a_rank(page: Any, program: Program, tmp_path: Path) -> None:
    program.tell(f"fit {tmp_path}")
    page.click("nav button:text-is('Training')")
    page.wait_for_selector("#run >> text=running")
    page.wait_for_selector("figure canvas")
    before = read_reports(page)
    page.wait_for_function(
        "least => Number(document.querySelectorAll('#ranks td')[3].innerText.replace(',', '')) > least", arg=before
    )
    page.wait_for_selector("#advice >> text=Rank 1 works")
    pid = int(page.locator("#ranks tbody tr").nth(1).locator("td").nth(1).inner_text())
    page.locator("#ranks tbody tr").nth(1).get_by_role("button").wait_for()
    os.kill(pid, signal.SIGSTOP)
    page.wait_for_selector("#ranks >> text=stopped")
    page.locator("#ranks tbody tr").nth(1).get_by_role("button").click()
    assert "train_long" in page.inner_text(".stack")
    assert "before it was stopped" in page.inner_text("main")
    os.kill(pid, signal.SIGKILL)
    assert program.read() == "failed"
    page.wait_for_selector("#run >> text=failed")
    assert re.search(r"Rank 1 failed at .* signal 9", page.inner_text("main"))
    assert page.locator("main img").count() == 0
    assert page.title() == "Hocket"
    assert program.read() == "done"


def test_flame_of_a_worker(page: Any, program: Program, tmp_path: Path) -> None:
    program.tell(f"fit {tmp_path}")
    page.click("nav button:text-is('Training')")
    page.wait_for_selector("#run >> text=running")
    page.wait_for_selector("figure canvas")
    pid = page.locator("#ranks tbody tr").nth(1).locator("td").nth(1).inner_text()
    page.click("nav button:text-is('Workers')")
    page.locator("tr", has_text=pid).get_by_role("button", name="Look").first.click()
    for _ in range(5):  # where others have the processors, a second may pass without a look
        with contextlib.suppress(playwright.TimeoutError):
            page.locator("#flame .frame", has_text="train_long").first.wait_for(timeout=8_000)
            break
        page.click("text=Look again")
    assert "train_long" in page.inner_text(".stack")
    program.process.kill()
    program.process.communicate()


def test_runs_of_a_folder(browser: Any, tmp_path: Path) -> None:
    def loop() -> None:
        for step in range(5000):
            train.report({"loss": 1 / (step + 1)})

    for name in ("one", "two"):
        train.DataParallelTrainer(
            loop,
            scaling_config=train.ScalingConfig(num_workers=0),
            run_config=train.RunConfig(name=name, storage_path=tmp_path),
        ).fit()
    running = start(str(tmp_path))
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{running.port}/#{running.token}")
    page.wait_for_selector("#run >> text=finished")
    assert page.locator("#runs option").count() == 2
    assert "two" in page.inner_text("#runs option >> nth=0"), "the newest one is chosen"
    page.wait_for_selector("figure canvas")
    page.click("text=over time")
    context.close()
    end(running)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_report_asks_nobody_for_anything(browser: Any, tmp_path: Path, scheme: str) -> None:
    report = Report(title="</title><script>document.title='hit'</script>", facts={"<b>": "<img src=http://x/y>"})
    for number in range(6):
        values = [number * step % 7 / 3 for step in range(2000)]
        report.curves.append(Curve(name=f"<i>{number}</i>", steps=range(2000), values=values))
    path = tmp_path / "report.html"
    path.write_text(report.write(), encoding="utf-8")
    context = browser.new_context(offline=True, color_scheme=scheme)
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("figure canvas")
    assert page.locator("figure canvas").count() == 6
    assert page.locator("main b, main img, main i").count() == 0
    assert page.title() == "</title><script>document.title='hit'</script>"
    assert asked == [path.as_uri()]
    assert said == []
    context.close()


# --- searches, servers, data, meshes ----------------------------------------------------------------------------------


@contextlib.contextmanager
def visit(browser: Any, dashboard: Dashboard, width: int) -> Iterator[Any]:
    """Open a dashboard's page; whatever the console says of it is a failure."""
    context = browser.new_context(viewport={"width": width, "height": 700})
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(f"http://127.0.0.1:{dashboard.port}/#{dashboard.token}")
    yield page
    assert said == []
    context.close()


def test_pages_of_parts(browser: Any) -> None:
    program = test_parts.Program()
    program.tell("mesh")
    running = start(str(program.process.pid))
    try:
        with visit(browser, running, 380) as page:
            page.click("nav button:text-is('Servers')")
            page.wait_for_selector("#staleness")
            assert "<b>weights</b>" in page.inner_text("main"), "a name stays text"
            assert page.inner_text("#servers").split("\n")[:4] == ["servers", "2", "pushes", "20"]
            os.kill(program.server_pids[1], signal.SIGSTOP)
            page.wait_for_selector("text=silent for", timeout=15_000)
            os.kill(program.server_pids[1], signal.SIGCONT)
            page.click("nav button:text-is('Data')")
            page.wait_for_selector("text=Execution 1: over")
            assert "Execution 2: runs" in page.inner_text("main")
            page.click("nav button:text-is('Mesh')")
            page.wait_for_selector("#mesh")
            assert page.inner_text("main").count("all-to-all") == 1
            assert page.evaluate("document.documentElement.scrollWidth") <= 380, "nothing makes a phone scroll sideways"
    finally:
        end(running)
        program.process.kill()
        program.process.communicate()


def test_page_of_a_search(browser: Any, tmp_path: Path) -> None:
    folder = test_searches.begin(tmp_path / "<b>search")
    for number in range(30):
        test_searches.propose(
            folder, number, {"<img src=x onerror=document.title='hit'>": number, "kind": "ab"[number % 2]}
        )
        for step in range(3):
            test_searches.report(folder, number, loss=abs(number - 10) + 1 / (step + 1), other=number)
        test_searches.finish(folder, number)
    running = start(str(tmp_path))
    try:
        with visit(browser, running, 1000) as page:
            page.wait_for_selector("#trials")
            assert page.locator("#trials tbody tr").count() == 30
            assert page.locator("#trials tbody tr").first.inner_text().split("\t")[:2] == ["10", "terminated"], (
                "the best"
            )
            assert page.locator("#parallel polyline").count() == 30
            assert page.locator("#curves polyline").count() == 30
            assert page.inner_text("#associations tbody tr >> nth=0").startswith("<img src=x")
            page.click("#trials th button:has-text('trial')")
            assert page.locator("#trials tbody tr").first.inner_text().split("\t")[0] == "0"
            page.locator("#parallel polyline").first.dispatch_event("click")
            assert page.locator("#trials button[aria-pressed=true]").count() == 1
            page.select_option("main label select >> nth=1", "other")
            page.wait_for_selector("#trials th:has-text('other')")
            assert page.title() == "Hocket"
            test_searches.propose(folder, 30, {"kind": "a"})
            page.wait_for_selector("#trials tbody tr >> nth=30")
    finally:
        end(running)
