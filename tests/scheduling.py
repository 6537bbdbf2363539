"""Which process of pytest-xdist runs which tests."""

from __future__ import annotations

import zlib
from typing import Any

import pytest


def build_scheduler(config: pytest.Config, log: Any, in_halves: str) -> Any:
    """Return a scheduler that hands out a file at a time.

    A file whose name begins with `in_halves` takes so long that two processes share it.

    pytest-xdist's own scheduler would start a test again whose process has died, in the next process, until none is
    left. This one reports such a test once, and hands on the rest of its file.
    """
    from xdist.scheduler import LoadFileScheduling

    class FileScheduling(LoadFileScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            half = f" {zlib.crc32(nodeid.encode()) % 2}" if nodeid.startswith(in_halves) else ""
            return f"{super()._split_scope(nodeid)}{half}"

        def _reschedule(self, node: Any) -> None:
            """Give the process more to do, once it has collected its tests: one that replaces another collects late."""
            if node in self.registered_collections:
                super()._reschedule(node)

        def remove_node(self, node: Any) -> str | None:
            """Forget a process that has ended; return the test that it died in, if it did."""
            files = self.assigned_work.pop(node)
            waiting = [(tests, test) for tests in files.values() for test, is_done in tests.items() if not is_done]
            if not waiting:
                return None
            tests, died_in = waiting[0]
            tests[died_in] = True
            self.workqueue.update({name: tests for name, tests in files.items() if not all(tests.values())})
            for other in self.assigned_work:
                self._reschedule(other)
            return str(died_in)

    return FileScheduling(config, log)
