"""When an elastic group is started again with more ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, final

from hocket.train import configs
from hocket.train.run import worker_group


class Commits(Protocol):
    """Knows of commits."""

    @property
    def commit_count(self) -> int:
        """How many there have been."""


class ResizeWanted(Exception):  # noqa: N818 (no error, but a way out)
    """The group can be larger, and now is a good moment to start it again."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


@final
class ElasticityPolicy:
    """Looks now and then whether an elastic group can be larger.

    A restart goes back to the last commit, so it is put off to the next.

    Args:
        scaling: How many ranks there may be.
        size: How many there are.
        book: Knows of commits.
        now: The clock's seconds.
        count_fitting: Returns how many more there is room for.
        unusable: How many of those there is no room for after all; see `worker_group.WorkerGroup.unusable`.
    """

    def __init__(
        self,
        scaling: configs.ScalingConfig,
        size: int,
        book: Commits,
        now: float,
        count_fitting: Callable[[configs.ScalingConfig], int] = worker_group.count_fitting,
        *,
        unusable: int = 0,
    ) -> None:
        self._scaling, self._size, self._unusable = scaling, size, unusable
        self._book, self._count_fitting = book, count_fitting
        self._interval = scaling.elastic_resize_monitor_interval_s
        self._is_on = size < scaling.max_workers
        self._due = now + self._interval
        self._wanted_since: int | None = None
        """How many commits there were when it was found that it can be larger."""

    @property
    def due(self) -> float | None:
        """When to look again; None for never."""
        return self._due if self._is_on else None

    def look(self, now: float) -> None:
        """Look if it is time."""
        if not self._is_on:
            return
        has_committed = self._wanted_since is not None and self._book.commit_count > self._wanted_since
        if not has_committed and now < self._due:
            return
        more = self._count_fitting(self._scaling) - self._unusable
        size = min(self._size + more, self._scaling.max_workers)
        if size > self._size and self._wanted_since is not None:
            raise ResizeWanted(size)
        self._wanted_since = self._book.commit_count if size > self._size else None
        self._due = now + self._interval
