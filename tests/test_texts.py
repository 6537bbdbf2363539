"""Text of foreign things, and what a terminal may be sent."""

from __future__ import annotations

import io
import linecache
import os
import subprocess
import sys
import time
from typing import Any

import pytest
from rich import console

from hocket import exceptions
from hocket._base import texts
from hocket.cli import status
from hocket.train.progress import model
from hocket.train.progress import text as progress_text

EVIL = "\x1b]0;owned\x07\x1b[2J\r\u202e\x9bname"


@pytest.mark.parametrize("code", [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x202E, 0x2066])
def test_no_control_character_reaches_a_terminal(code: int) -> None:
    escaped = texts.escape(f"a{chr(code)}b", one_line=True)
    assert escaped.isprintable()
    assert escaped.startswith("a\\")
    assert texts.escape("ü 中 \U0001f3b5\n\tx") == "ü 中 \U0001f3b5\n\tx"


def test_progress_shows_names_escaped() -> None:
    progress = model.Progress(model.Keys(step=EVIL, total=None, loss=EVIL, samples="samples"), {}, 0.0)
    progress.note_arrivals([1, 1], 1.0)
    progress.note_row([{EVIL: 3.0}, {}], 1.0)
    now = progress.look(2.0)
    for line in (
        progress_text.build_line(EVIL, now),
        progress_text.build_last_line(EVIL, now, ValueError()),
        *progress_text.Painter(EVIL, has_colours=False).paint(now, 400),
    ):
        assert line.isprintable(), line
        assert "name" in line or "lag" in line


def test_status_shows_names_escaped() -> None:
    out = io.StringIO()
    error = {"name": EVIL, "type": "ValueError", "message": EVIL}
    task = {"func_or_class_name": EVIL, "state": "RUNNING", "count": 1}
    actor = {"class_name": EVIL, "name": EVIL, "state": "ALIVE", "pid": 1, "pending_calls": 0}
    worker = {"pid": 1, "state": "LEASED", "task_seconds": 1.0, "task_name": EVIL, "queued_tasks": 0}
    found: dict[str, Any] = {
        "driver_pid": os.getpid(),
        "processes": [
            {
                "pid": os.getpid(),
                "role": "driver",
                "command": EVIL,
                "rss_bytes": 1,
                "cpu_seconds": 0.0,
                "status": "running",
            }
        ],
        "problem": "",
        "snapshot": {
            "opened_at": time.time(),
            "resources": {"total": {EVIL: 1.0}, "free": {}},
            "tasks": [task],
            "actors": [actor],
            "workers": [worker],
            "statistics": {"objects": 1, "holders": [(EVIL, 1, 1)]},
            "errors": {"count": 1, "last": [error]},
        },
    }
    status.show(found, console.Console(file=out, width=300, color_system=None))
    text = out.getvalue()
    assert text.count("\\x1b]0;owned") >= 8
    assert text.replace("\n", "").isprintable()


class RaisingError(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


def test_safe_text_is_always_a_text() -> None:
    assert texts.safe_text(RaisingError()) == "<RaisingError without a text: its __str__ raised KeyboardInterrupt>"
    assert texts.safe_repr(object) == "<class 'object'>"
    assert texts.shorten("a" * 30, 20).startswith("aaaaa\n... (10 characters left out) ...\naaa")
    assert len(texts.safe_text("x" * 10_000_000)) < 30_000


def test_traceback_of_one_exception_is_as_python_prints_it() -> None:
    def fail() -> None:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error

    with pytest.raises(ValueError, match="second") as caught:
        fail()
    caught.value.add_note("a note")
    text = texts.format_error(caught.value)
    assert text.startswith("Traceback (most recent call last):\n  File ")
    assert text.index("KeyError: 'first'") < text.index("direct cause") < text.index("ValueError: second\na note\n")


@pytest.mark.timeout(20)
def test_long_chain_costs_linear_time_and_circles_end() -> None:
    first = error = ValueError("0")
    for number in range(1, 100_000):
        following = ValueError(str(number))
        following.__context__, error = error, following
    assert "99,990 exceptions of this chain left out" in texts.format_error(error)
    first.__context__ = error  # a circle
    assert "99,990 exceptions of this chain left out" in texts.format_error(error)


def test_uncaught_error_of_a_rank_is_short() -> None:
    source = """
import tempfile
from hocket import train

def step():
    raise ValueError("labels " + "must be below 10")

def loop():
    if train.get_context().get_world_rank() == 1:
        step()

train.DataParallelTrainer(
    loop,
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
).fit()
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    lines = done.stderr.splitlines()
    assert len(lines) <= 15, done.stderr
    assert sum("labels must be below 10" in line for line in lines) == 1
    assert "hocket/" not in done.stderr
    assert done.stderr.index("in loop") < done.stderr.index("in step")


def test_group_of_a_task_keeps_the_users_frames_only() -> None:
    source = """
import hocket

def step():
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise ValueError("outer") from error

@hocket.remote
def work():
    try:
        step()
    except ValueError as error:
        raise ExceptionGroup("several", [error, ExceptionGroup("more", [TypeError("last")])])

try:
    hocket.get(work.remote())
except hocket.exceptions.TaskError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert "hocket/" not in done.stdout, done.stdout
    for words in ("in work", "several (2 sub-exceptions)", "KeyError: 'inner'", "in step", "TypeError: last"):
        assert words in done.stdout


def test_dual_error_comes_before_its_causes_attributes() -> None:
    class Odd(Exception):  # noqa: N818 (not about its name)
        cause = property(lambda self: "mine")
        function_name = property(lambda self: "mine")

        def __setattr__(self, name: str, value: object) -> None:
            raise RuntimeError("no")

    cause: Any = Odd("x")
    error: Any = exceptions.TaskError("f", "trace", cause).as_instanceof_cause()
    assert Odd in type(error).__mro__
    assert (error.function_name, error.traceback_str, type(error.cause), error.args) == ("f", "trace", Odd, ("x",))


def test_lines_of_cells_are_added_to_a_workers_traceback():
    name = "/tmp/ipykernel_1/22.py"
    linecache.cache[name] = (20, None, ["def f():\n", "    return 1 / 0\n"], name)
    there = 'Traceback:\n  File "/a.py", line 3, in g\n    g()\n'
    text = f'{there}  File "{name}", line 2, in f\nZeroDivisionError: no\n  File "{name}", line 99, in f\n'
    try:
        assert texts.add_sources(text) == (
            f'{there}  File "{name}", line 2, in f\n    return 1 / 0\nZeroDivisionError: no\n'
            f'  File "{name}", line 99, in f\n'
        )
        assert texts.add_sources(texts.add_sources(text)) == texts.add_sources(text)
    finally:
        del linecache.cache[name]
