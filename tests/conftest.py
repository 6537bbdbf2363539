"""Fixtures for all tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

import hocket
from hocket.testing import Leftovers

ENGINE = os.environ.get("HOCKET_ENGINE") or "local"
"""On which engine the tests run that do not name one."""

RunScript = Callable[[str], "subprocess.Popen[str]"]


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts jobs in the background so, and programs that we start to interrupt them would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot pass on the in-process engine, by a marker that says why."""
    left_out = []
    for item in items:
        for marker in item.iter_markers("needs_processes"):
            if len(marker.args) != 1 or marker.kwargs:
                raise pytest.UsageError(f"{item.nodeid}: write needs_processes('why')")
            left_out.append(item)
    if ENGINE == "inprocess" and left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def session() -> Iterator[hocket.SessionContext]:
    """A session on two CPUs that leaves nothing behind."""
    before = Leftovers.look()
    with hocket.init(num_cpus=2) as context:
        yield context
    assert before.list_new() == []


@pytest.fixture(params=["inprocess"] if ENGINE == "inprocess" else ["local", "inprocess"])
def any_session(request: pytest.FixtureRequest) -> Iterator[hocket.SessionContext]:
    """A session on two CPUs, on each engine, that leaves nothing behind."""
    before = Leftovers.look()
    with hocket.init(num_cpus=2, engine=request.param) as context:
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
