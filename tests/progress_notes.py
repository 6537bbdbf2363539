"""A plugin of pytest: each process of a run writes down what it is about to do, for `tools/watch_tests.py`, which
watches from outside. Without that program there is nobody to read, and nothing is written.
"""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

EXIT_SECONDS = 200
"""How long pytest-xdist waits for its processes' end before it kills them. By default it is 10 s, and nobody hears
which process it was; the watch ends it sooner, with its stacks."""


class Notes:
    """Writes the notes of this process, in a file of its own."""

    def __init__(self, folder: Path, config: pytest.Config) -> None:
        self._path = folder / f"{os.getpid()}.json"
        self._draft = self._path.with_suffix(".draft")
        self._pid = os.getpid()
        self._test = ""
        self._limit = 0.0
        self._usual_limit = float(config.getini("timeout") or 0)
        self._starts_workers = not hasattr(config, "workerinput") and bool(config.getoption("numprocesses", None))
        if not self._starts_workers:  # else its workers are to find the folder; what tests start is not
            del os.environ["HOCKET_TEST_NOTES"]
        self._write("waits" if self._starts_workers else "collects")

    def _write(self, doing: str) -> None:
        if os.getpid() != self._pid:  # a test forked
            return
        note = {
            "pid": self._pid,
            "born": psutil.Process().create_time(),
            "doing": doing,
            "test": self._test,
            "limit": self._limit,
            "since": time.monotonic(),
        }
        self._draft.write_text(json.dumps(note))
        self._draft.replace(self._path)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._write("waits")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        marker = item.get_closest_marker("timeout")
        self._test = item.nodeid
        self._limit = float(marker.args[0] if marker is not None and marker.args else self._usual_limit)
        self._write("runs")
        result = yield
        self._write("waits")
        return result

    def pytest_enter_pdb(self) -> None:
        """Somebody debugs: the test takes as long as they like."""
        self._write("debugs")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """All tests are done: the workers of pytest-xdist have to end from now on."""
        if self._starts_workers:
            self._write("closes")

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        self._write("ends")
        gc.freeze()  # pytest and the interpreter look for garbage now: in gigabytes, of which the system has swapped some


def pytest_configure(config: pytest.Config) -> None:
    folder = os.environ.get("HOCKET_TEST_NOTES")
    if not folder:
        return
    config.pluginmanager.register(Notes(Path(folder), config), "hocket-progress-notes")
    if config.getoption("numprocesses", None):
        from xdist.workermanage import NodeManager

        NodeManager.EXIT_TIMEOUT = EXIT_SECONDS
