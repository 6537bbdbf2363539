"""What belongs to a folder is cleared away with it, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from hocket.engine.ray import folders, sweeper

SLEEP = [sys.executable, "-c", "import time; time.sleep(100)"]


def end(process: subprocess.Popen[bytes]) -> int:
    """Kill a process if it runs, and return how it ended."""
    process.kill()
    return process.wait()


def test_processes_of_a_folder() -> None:
    place = folders.Folder()
    marked = subprocess.Popen(SLEEP, env={**os.environ, **place.environment})
    with Path(place.path, "log").open("w") as log, Path(place.path, f"driver_{os.getpid()}.log").open("w") as own:
        writer = subprocess.Popen(SLEEP, stdout=log)
        fork = subprocess.Popen(SLEEP, stdout=own)
    with Path(place.path, "log").open() as log:
        reader = subprocess.Popen(SLEEP, stdin=log)
    assert set(sweeper.list_processes(place.path, os.getpid())) == {marked.pid, writer.pid}
    place.clear()
    assert end(marked) == end(writer) == -signal.SIGKILL
    assert reader.poll() is None
    assert fork.poll() is None
    end(reader)
    end(fork)
    assert not Path(place.path).exists()


def test_driver_that_is_killed() -> None:
    script = (
        "import subprocess, sys, time\nfrom hocket.engine.ray import folders\nplace = folders.Folder()\nchild = "
        "subprocess.Popen(sys.argv[1:], env=place.environment, stdin=subprocess.DEVNULL, "
        "stdout=subprocess.DEVNULL)\nprint(place.path, child.pid, place._sweeper.pid, flush=True)\ntime.sleep(100)\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", script, *SLEEP], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    path, child, sweeping = driver.stdout.readline().split()
    processes = [psutil.Process(int(pid)) for pid in (child, sweeping)]
    driver.kill()
    driver.communicate()
    assert psutil.wait_procs(processes, timeout=20)[1] == []
    assert not Path(path).exists()


def test_folder_with_a_long_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = folders.Folder()
    try:
        assert len(place.path) + len("/session_2026-11-21_10-00-00_000000_4194304/sockets/plasma_store") < 108
        assert list(tmp_path.iterdir()) == []
    finally:
        place.clear()
