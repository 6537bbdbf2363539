"""What the tests of the Ray engine share."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest

from hocket.engine.ray import adapter

RunDriver = Callable[..., "subprocess.CompletedProcess[str]"]

UNTIDY = pytest.mark.filterwarnings("ignore::ResourceWarning")
"""Ray leaves sockets, log files and processes that it has killed to the garbage collector."""

LOOPBACK = ("127.0.0.1", "::ffff:127.0.0.1", "::1")


def list_listening(processes: Iterable[psutil.Process]) -> dict[str, list[str]]:
    """Return the addresses at which processes listen, by the processes' names."""
    found: dict[str, list[str]] = {}
    for process in processes:
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                found.setdefault(process.name(), []).append(connection.laddr.ip)
    return found


@contextlib.contextmanager
def sent_by_value(name: str) -> Iterator[None]:
    """Have what a module of tests defines travel whole: the nodes of a cluster cannot import it."""
    picklers: tuple[Any, ...] = (cloudpickle, adapter.ray.cloudpickle)
    for pickler in picklers:
        pickler.register_pickle_by_value(sys.modules[name])
    yield
    for pickler in picklers:
        pickler.unregister_pickle_by_value(sys.modules[name])


@pytest.fixture(scope="module", autouse=True)
def _collect_garbage() -> Iterator[None]:
    """What Ray has left open is closed before somebody else's test comes across it."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def run_driver(tmp_path: Path) -> RunDriver:
    """Run a script in a folder that is not the working directory, as a driver of its own."""

    def run(
        source: str, modules: Mapping[str, str] | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / "program"
        folder.mkdir()
        for name, text in {"main.py": source, **(modules or {})}.items():
            (folder / name).write_text(text)
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        return subprocess.run(
            [sys.executable, str(folder / "main.py")],
            cwd=elsewhere,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run
