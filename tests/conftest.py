"""Fixtures for all tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

import hocket
from hocket.testing import Leftovers

RunScript = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def session() -> Iterator[hocket.SessionContext]:
    """A session on two CPUs that leaves nothing behind."""
    before = Leftovers.look()
    with hocket.init(num_cpus=2) as context:
        yield context
    assert before.list_new() == []


@pytest.fixture
def start_script() -> Iterator[RunScript]:
    """Start a Python script as a driver of its own; stdout is a pipe."""
    started: list[subprocess.Popen[str]] = []

    def start(source: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", source],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
