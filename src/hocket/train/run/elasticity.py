"""When an elastic group is started again with more ranks."""

from __future__ import annotations

import time
from typing import final

from hocket.train.run import report_book, worker_group


class ResizeWanted(Exception):  # noqa: N818 (no error, but a way out)
    """The group can be larger, and now is a good moment to start it again."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


@final
class ElasticityPolicy:
    """Looks now and then whether an elastic group can be larger.

    A restart goes back to the last commit, so it is put off to the next.
    """

    def __init__(self, group: worker_group.WorkerGroup, book: report_book.ReportBook) -> None:
        self._group = group
        self._book = book
        self._interval = group.scaling.elastic_resize_monitor_interval_s
        self._is_on = len(group) < group.scaling.max_workers
        self._due = time.monotonic() + self._interval
        self._wanted_since: int | None = None
        """How many commits there were when it was found that it can be larger."""

    @property
    def seconds_left(self) -> float | None:
        """When to look again; None for never."""
        return max(0.0, self._due - time.monotonic()) if self._is_on else None

    def look(self) -> None:
        """Look if it is time."""
        if not self._is_on:
            return
        has_committed = self._wanted_since is not None and self._book.commit_count > self._wanted_since
        if not has_committed and time.monotonic() < self._due:
            return
        scaling = self._group.scaling
        size = min(len(self._group) + worker_group.count_fitting(scaling), scaling.max_workers)
        if size > len(self._group) and self._wanted_since is not None:
            raise ResizeWanted(size)
        self._wanted_since = self._book.commit_count if size > len(self._group) else None
        self._due = time.monotonic() + self._interval
