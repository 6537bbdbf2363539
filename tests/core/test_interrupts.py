"""An interrupt ends the wait at once, and the session goes on. At a prompt it also ends the tasks waited for."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("parallelism")

PROGRAM = """
import pathlib, sys, time, traceback
import hocket

if {interactive}:
    sys.ps1 = ">>> "

@hocket.remote
def add(x):
    return x + 1

@hocket.remote
def sleep(x):
    time.sleep(3600)

hocket.init(num_cpus=2)
print(hocket.get(add.remote(0)), flush=True)
first = sleep.remote(0)
second = add.remote(first)
print("submitted", flush=True)
try:
    hocket.get(second)
except KeyboardInterrupt as interrupt:
    frames = [frame.name for frame in traceback.extract_tb(interrupt.__traceback__)]
    print("interrupted", frames, flush=True)
outcomes = []
for ref in (first, second) if {interactive} else ():
    try:
        hocket.get(ref, timeout=30)
    except hocket.exceptions.TaskCancelledError as error:
        outcomes.append("cancelled")
print(outcomes, len(hocket.wait([first, second], num_returns=2, timeout=0)[0]), hocket.get(add.remote(1)), flush=True)
"""


@pytest.mark.parametrize(
    ("interactive", "outcome"),
    [
        pytest.param(True, "['cancelled', 'cancelled'] 2 2", marks=pytest.mark.needs("interrupted_sleep")),
        (False, "[] 0 2"),
    ],
)
def test_interrupt(start_script: Callable[[str], subprocess.Popen[str]], interactive: bool, outcome: str) -> None:
    process = start_script(PROGRAM.format(interactive=interactive))
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    assert process.stdout.readline() == "submitted\n"
    wait_until_asleep(process.pid)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert out == f"interrupted ['<module>']\n{outcome}\n", err
    assert err == ""


def wait_until_asleep(pid: int) -> None:
    """Wait until the main thread of a process waits for something, and goes on waiting."""
    asleep = 0
    while asleep < 200:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        asleep = asleep + 1 if state == "S" else 0
