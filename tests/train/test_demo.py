"""The command, run as a user runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import hocket
from hocket import cli
from hocket.testing import Leftovers
from tests.conftest import list_new_shared_memory

SOURCE = str(Path(cli.__file__).parents[2])


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hocket.cli", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE, "PYTHONUNBUFFERED": "1"},
    )


def run(*arguments: str, cwd: Path) -> tuple[int, str, str]:
    process = start(*arguments, cwd=cwd)
    out, errors = process.communicate()
    return process.returncode, out, errors


def read_value(out: str, label: str) -> str:
    return next(line.removeprefix(label).strip() for line in out.splitlines() if line.startswith(label))


@pytest.mark.long
@pytest.mark.slow
def test_demo_twice_with_one_seed(tmp_path: Path) -> None:
    outputs = []
    for _ in range(2):
        code, out, errors = run("demo", "--quiet", "--epochs", "2", "--seed", "3", cwd=tmp_path)
        assert (code, errors) == (0, "")
        outputs.append(out)
    first, second = outputs
    assert Path(read_value(first, "curves")).read_bytes().startswith(b"\x89PNG")
    assert Path(read_value(first, "checkpoint"), "model.pt").stat().st_size > 100_000
    assert read_value(first, "checkpoint") != read_value(second, "checkpoint")
    for label in ("test accuracy", "final loss", "weights"):
        assert read_value(first, label) == read_value(second, label)
    assert re.fullmatch(r"sha256 [0-9a-f]{64}", read_value(first, "weights"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hocket-demo"]


@pytest.mark.slow
def test_demo_as_it_is(tmp_path: Path) -> None:
    code, out, errors = run("demo", "--output", "here", cwd=tmp_path)
    assert code == 0
    assert float(read_value(out, "test accuracy")) >= 0.95
    assert "samples/s" in errors
    assert "Try next" in out
    assert Path(read_value(out, "curves")).is_relative_to(tmp_path / "here")


def is_running(process: psutil.Process) -> bool:
    """Tell whether a process runs; one that only waits to be reaped does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_demo_that_is_ended_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    before = Leftovers.look()
    process = start("demo", "--epochs", "10000", cwd=tmp_path)
    driver = psutil.Process(process.pid)
    deadline = time.monotonic() + 30
    while len(family := driver.children(recursive=True)) < 3:  # the guardian and two ranks
        assert time.monotonic() < deadline, "the ranks did not start"
        time.sleep(0.02)
    process.send_signal(number)
    deadline = time.monotonic() + 2
    while (alive := [found.pid for found in family if is_running(found)]) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert alive == []
    _, errors = process.communicate()
    if number is signal.SIGINT:
        assert process.returncode == 130
        assert "stopped by Ctrl-C" in errors
        assert "Traceback" not in errors
    assert list_new_shared_memory(before) == []


def test_version(tmp_path: Path) -> None:
    assert run("--version", cwd=tmp_path) == (0, f"hocket {hocket.__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--workers", "-1"], "must be a whole number that is 0 or more, but received '-1'"),
        (["demo", "--engine", "steam"], "argument --engine: invalid choice: 'steam'"),
        (["demo", "--epochs", "0"], "must be a whole number that is 1 or more, but received '0'"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: list[str], message: str) -> None:
    code, _, errors = run(*arguments, cwd=tmp_path)
    assert code == 2
    assert message in errors


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_demo_learns_the_same_on_each_engine(tmp_path: Path) -> None:
    """Bit for bit. Other numbers of ranks: `tests/train/test_turns.py` and `tests/engine/ray/test_training.py`."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'hocket[ray]'")
    learned = set()
    for engine in ("local", "inprocess", "ray"):
        options = ("--epochs", "2", "--seed", "5", "--workers", "2", "--engine", engine)
        code, out, errors = run("demo", "--quiet", *options, cwd=tmp_path)
        assert code == 0, errors
        learned.add((read_value(out, "weights"), read_value(out, "final loss"), read_value(out, "test accuracy")))
    assert len(learned) == 1
