"""What the tests of parameter servers share: a strategy, a coordinator, and files by which closures are told to go
on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import hocket
from hocket import ps

_PATIENCE_SECONDS: Final = 60.0


class Files:
    """Signs between closures and the test: files in a folder. It can travel."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, text: str = "") -> None:
        """Make a file, at once with all that is in it."""
        path = self.folder / f"{name}.{os.getpid()}"
        path.write_text(text)
        path.rename(self.folder / name)

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def wait_for(self, name: str) -> None:
        """Wait until a file is there."""
        self._wait_for_a_file(name)

    def wait_for_others(self, name: str, count: int) -> int:
        """Wait until so many workers are here at once; return this one's index."""
        index = ps.get_current_worker_index()
        self.write(f"{name}-{index}")
        self.wait_until(lambda: len(list(self.folder.glob(f"{name}-[0-9]"))) == count)
        return index

    def append(self, name: str, item: Any) -> None:
        """Add a line to a file."""
        descriptor = os.open(self.folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{item}\n".encode())
        os.close(descriptor)

    def read(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def wait_until(self, predicate: Callable[[], bool]) -> None:
        """Ask again and again; gives up after a minute."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not predicate():
            if time.monotonic() > deadline:
                raise AssertionError("waited for a minute")
            time.sleep(0.002)

    def _wait_for_a_file(self, name: str) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self.has(name):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited for {name} for a minute")
            time.sleep(0.002)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture(scope="module")
def shared_strategy(shared_session: hocket.SessionContext) -> Iterator[ps.ParameterServerStrategy]:
    """Two workers and two servers, for all tests of a module."""
    made = ps.ParameterServerStrategy({"worker": 2, "server": 2})
    yield made
    made.close()


@pytest.fixture
def coordinator(shared_strategy: ps.ParameterServerStrategy) -> Iterator[ps.Coordinator]:
    """Of the module's two workers, with nothing to do before and after."""
    made = ps.Coordinator(shared_strategy)
    _coordinators.append(made)  # one that nobody holds is closed
    made.join()
    yield made
    made.join()


_coordinators: list[ps.Coordinator] = []


@pytest.fixture(scope="module", autouse=True)
def _let_go() -> Iterator[None]:
    yield
    _coordinators.clear()


@pytest.fixture
def strategy(session: hocket.SessionContext) -> Iterator[ps.ParameterServerStrategy]:
    """Two workers and two servers, in a session of the test's own."""
    made = ps.ParameterServerStrategy({"worker": 2, "server": 2})
    yield made
    made.close()


@pytest.fixture(scope="module")
def has_common_session() -> bool:
    return True
