"""Curves in a notebook: what the widget is sent, and a real JupyterLab in a real browser."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket import train
from hocket.observe import training
from hocket.observe.runs import log

notebook = pytest.importorskip("hocket.observe.notebook", reason="needs hocket[notebook]")

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""

CELLS = [
    """
import time
from hocket import train
from hocket.observe.notebook import LiveCurves
curves = LiveCurves()
curves
""",
    """
def train_function():
    for step in range(60):
        time.sleep(0.1)
        train.report({"<img src=x onerror=document.title='hit'>": step, "loss": 1 / (step + 1)})


result = train.DataParallelTrainer(
    train_function,
    scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
    run_config=train.RunConfig(name="run", storage_path="results"),
).fit()
print("is", "over")
""",
]


def report_steps() -> None:
    for step in range(4):
        train.report({"loss": 1 / (step + 1)})


def fit(folder: Path, name: str) -> None:
    train.DataParallelTrainer(
        report_steps,
        scaling_config=train.ScalingConfig(num_workers=1),
        run_config=train.RunConfig(name=name, storage_path=str(folder)),
    ).fit()


@pytest.fixture
def curves() -> Iterator[Any]:
    opened = notebook.LiveCurves()
    yield opened
    opened.close()


@pytest.mark.about_local("the runs of this process's session")
@pytest.mark.usefixtures("session")
def test_the_widget_has_the_run_that_began_last(curves: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "LOOK_SECONDS", 0.0)
    assert curves.look() == {}
    fit(tmp_path, "first")
    fit(tmp_path, "second")
    shown = curves.look()
    assert (shown["name"], shown["state"]) == ("second", "finished")
    assert curves.widget.run["curves"] == {"loss": [[1.0, 0.5, 0.333333, 0.25]]}
    json.dumps(curves.widget.run, allow_nan=False)


def test_a_folder_of_runs(tmp_path: Path) -> None:
    opened = notebook.LiveCurves(tmp_path)
    assert opened.look() == {}
    opened.close()


def test_it_ends_and_begins_again(curves: Any) -> None:
    def count() -> int:
        return sum(thread.name == "hocket-curves" for thread in threading.enumerate())

    assert count() == 1
    curves.start()
    assert count() == 1
    curves.close()
    curves.close()
    assert count() == 0
    curves.start()
    assert count() == 1


def test_it_looks_no_more_when_nothing_changes(curves: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["hocket.observe.notebook.curves"], "QUIET_SECONDS", 0.0)
    curves._thread.join(20)
    assert not curves._thread.is_alive()


def test_nothing_changes_when_the_run_is_over(tmp_path: Path) -> None:
    written = log.RunLog(tmp_path)
    written.begin("run", {}, None)
    written.begin_attempt(1, 0)
    written.place([os.getpid()], ["here"], "here")
    written.arrive(0, 1)
    written.add_row([{"loss": 1.0}], [None], 0.0, None)
    written.end(None)
    opened = notebook.LiveCurves(tmp_path)
    opened._runs._stacks[os.getpid()] = "what the rank did", 0.0
    opened.look()
    before = opened.widget.run
    assert before["curves"] == {"loss": [[1.0]]}
    opened.look()
    assert opened.widget.run is before
    opened.close()


# --- in a real JupyterLab ---------------------------------------------------------------------------------------------


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """The address of a server with a notebook."""
    pytest.importorskip("jupyterlab", reason="needs jupyterlab: make test-long installs it")
    cells: list[dict[str, Any]] = [
        {
            "cell_type": "code",
            "source": text.strip(),
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "id": str(at),
        }
        for at, text in enumerate(CELLS)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    written = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "curves.ipynb").write_text(json.dumps(written))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"token": "secret", "port": port, "root_dir": str(tmp_path), "open_browser": False, "allow_root": True}
    command = [sys.executable, "-m", "jupyterlab", *(f"--ServerApp.{name}={value}" for name, value in settings.items())]
    environment = {**os.environ, "JUPYTER_CONFIG_DIR": str(tmp_path / "config"), "HOME": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        address = f"http://127.0.0.1:{port}/lab/tree/curves.ipynb?token=secret"
        try:
            wait_for(address, process)
            yield address
        finally:
            process.terminate()
            process.wait(30)


def wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    while True:
        assert process.poll() is None, "the server has ended"
        try:
            urllib.request.urlopen(address, timeout=5).close()
        except urllib.error.URLError:
            time.sleep(0.1)
        else:
            return


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(not CHROMIUM, reason="needs a Chromium: apt install chromium, or CHROMIUM=/path/to/it")
def test_curves_move_in_jupyterlab(lab: str) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: make test-long installs it")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.goto(lab)
        page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=60_000)
        page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]", timeout=60_000)
        page.click(".jp-CodeCell >> nth=0 >> .cm-content")
        page.wait_for_selector(".jp-CodeCell.jp-mod-selected .cm-focused")
        page.keyboard.press("Shift+Enter")
        page.wait_for_selector(".hocket-curves p", timeout=60_000)
        assert "No trainer has run yet" in page.inner_text(".hocket-curves")
        page.keyboard.press("Shift+Enter")
        seen = set()
        page.wait_for_selector(".hocket-curves polyline", timeout=60_000)
        while "finished" not in (told := page.inner_text(".hocket-curves")):
            seen.add(len((page.get_attribute(".hocket-curves polyline >> nth=0", "points") or "").split()))
            assert "failed" not in told
            page.wait_for_timeout(200)
        assert len(seen) >= 4, "the curve has moved while fit() ran"
        page.wait_for_selector("text=is over")
        assert page.locator(".hocket-curves polyline").count() == 4, "two metrics of two ranks"
        assert "<img src=x" in page.inner_text(".hocket-curves"), "a name stays text"
        assert "hit" not in page.title()
        browser.close()
