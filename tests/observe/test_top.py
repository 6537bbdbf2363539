"""`hocket top`: its tables, its pages driven by keys, and its plain form. A real session in another process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket.cli import main
from hocket.observe import searches
from hocket.observe.runs import history, log
from hocket.observe.top import looking, tables

pytestmark = pytest.mark.about_local("sessions that are looked at from outside")

PROGRAM = """
import sys, time
import hocket
from hocket import train

hocket.init(num_cpus=2)


@hocket.remote
def work(seconds):
    time.sleep(seconds)


@hocket.remote
class Counter:
    def add(self):
        pass


def report_steps():
    for step in range(5):
        train.report({"loss": 1 / (step + 1)})


train.DataParallelTrainer(
    report_steps,
    scaling_config=train.ScalingConfig(num_workers=1),
    run_config=train.RunConfig(name="run", storage_path=sys.argv[1]),
)
counter = Counter.options(name="[red]odd\\x1b[31m").remote()
hocket.get([work.remote(0.001) for _ in range(50)] + [counter.add.remote()])
hocket.get([work.options(name=f"work {number}").remote(0.0) for number in range(25)])
busy = work.options(name="busy").remote(600)
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    running = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "open\n"
    yield running
    running.kill()
    running.communicate()


def test_what_is_shown(program: subprocess.Popen[str]) -> None:
    look = looking.Look(program.pid)
    view = look.look()
    assert view.pid == program.pid
    assert f"pid {program.pid}" in view.headline
    assert [row[2] for row in view.tables["Workers"].rows if row[2]] == ["busy"]
    functions = {row[0]: row for row in view.tables["Functions"].rows}
    assert functions["work"][1] > 0
    actors = view.tables["Actors"]
    assert actors.rows[0][0] == "Counter"
    assert "\x1b" not in "".join(actors.show(actors.rows[0]))
    busy = next(row[0] for row in view.tables["Workers"].rows if row[2] == "busy")
    assert "in work" in look.read_stack(program.pid, busy)
    assert look.read_stack(program.pid, os.getpid()) == f"The process {os.getpid()} has ended."
    program.kill()
    program.wait()
    look.close()


def test_runs_a_second_are_those_of_all_functions(program: subprocess.Popen[str]) -> None:
    look = looking.Look(program.pid)
    picture = look._watch.draw(program.pid, 0, 10)
    assert picture is not None
    assert (picture["runs"], len(picture["names"])) == (50 + 1 + 1 + 25, 20), "the constructor ran, and `get` did not"
    picture |= {"start": 0.0, "end": 10.0}
    assert tables.describe(look._watch.describe(program.pid), picture).endswith("| 7.7 runs a second")
    look.close()


def test_runs_and_searches_of_another_session_are_not_shown(program: subprocess.Popen[str], tmp_path: Path) -> None:
    written = log.RunLog(tmp_path)
    written.begin("other", {}, None)
    look = looking.Look(program.pid)
    look._runs._known["other"] = history.RunHistory(tmp_path)
    look._searches._known["other"] = searches.SearchHistory(tmp_path)
    shown = look.look().tables
    rows = [shown["Runs"].rows, shown["Searches"].remarks, shown["Training"].remarks]
    assert not any(rows)
    written.end(None)
    look.close()


def test_unknown_values_are_sorted_to_the_end() -> None:
    table = tables.Table((tables.Column("a", is_number=True),), [(2,), (None,), (10,), (1,)])
    table.sort(0, descending=True)
    assert table.rows == [(10,), (2,), (1,), (None,)]
    table.sort(0, descending=False)
    assert table.rows == [(1,), (2,), (10,), (None,)]


def test_pages_are_turned_sorted_and_paused(program: subprocess.Popen[str]) -> None:
    pytest.importorskip("textual", reason="needs hocket[top]")
    from textual import widgets

    from hocket.observe.top import screen

    async def drive() -> None:
        look = looking.Look(program.pid)
        app = screen.Top(look)
        async with app.run_test(size=(120, 40)) as pilot:
            table: Any = app.query_one("#Workers-table", widgets.DataTable)
            while not table.row_count:
                await pilot.pause(0.05)
            await pilot.press("2")
            assert app.query_one(widgets.TabbedContent).active == "Functions"
            await pilot.press("s", "r")
            assert "function v" in str(
                next(iter(app.query_one("#Functions-table", widgets.DataTable).columns.values())).label
            )
            await pilot.press("p")
            assert "[paused]" in str(app.query_one("#headline", widgets.Static).content)
            await pilot.press("1", "s", "s", "s")  # by what runs: the busy one is first
            await pilot.press("home", "enter")
            await pilot.pause(0.2)
            assert "Process" in str(app.screen.query_one("VerticalScroll").border_title)
            await pilot.press("escape", "p", "q")
        look.close()

    asyncio.run(drive())


def test_plain_where_there_is_no_terminal(program: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["top", str(program.pid), "--count", "1"]) == 0
    said = capsys.readouterr().out
    assert "busy" in said
    assert "Counter" in said
    assert "\x1b" not in said


def test_plain_ends_with_the_session(program: subprocess.Popen[str]) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "hocket", "top", str(program.pid), "--plain"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    assert "pid" in running.stdout.readline()
    program.send_signal(signal.SIGKILL)
    said, _ = running.communicate(timeout=30)
    assert "No session of yours" in said
    assert running.returncode == 0


def test_a_session_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["top", "1"]) == 1
    assert "`hocket status` lists your sessions" in capsys.readouterr().out


def test_pages_without_textual(
    program: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert main.main(["top", str(program.pid)]) == 1
    assert "pip install 'hocket[top]', or hocket top --plain" in capsys.readouterr().err
