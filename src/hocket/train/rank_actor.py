"""The process of one rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hocket.train import checkpoint, reports, worker_session

MAX_CONCURRENCY = 4
"""Calls that run at once in a rank: the training function, the wait for its reports, an acknowledgement, a ping."""


class RankActor:
    """Runs the training function in one thread while others hand its reports on."""

    def __init__(self) -> None:
        self._reports = worker_session.ReportQueue()
        self._session: worker_session.WorkerSession | None = None

    def get_pid(self) -> int:
        """Return the process's id. Also tells that the process lives."""
        return os.getpid()

    def execute(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function here."""
        return function(*args)

    def run(self, work: tuple[Callable[..., Any], tuple[Any, ...]], info: worker_session.RankInfo) -> Any:
        """Run the training function, and return what it returns if this is rank 0."""
        function, args = work
        self._session = worker_session.WorkerSession(info, self._reports.put)
        try:
            with worker_session.open_session(self._session):
                returned = function(*args)
        finally:
            self._reports.end()
        return returned if info.rank == 0 else None

    def take_reports(self) -> tuple[list[reports.Report], bool]:
        """Wait for the next reports; return them, and whether they were the last."""
        return self._reports.take_batch()

    def acknowledge(self, index: int, committed: checkpoint.Checkpoint) -> None:
        """Pass on that a checkpoint was committed."""
        if self._session is not None:
            self._session.acknowledge(index, committed)
