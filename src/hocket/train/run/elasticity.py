"""The policy that starts an elastic group again with more ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, final

from hocket.train import configs
from hocket.train.run import worker_group


class Commits(Protocol):
    """A counter of commits."""

    @property
    def commit_count(self) -> int:
        """The number of commits until now."""


class ResizeWanted(Exception):  # noqa: N818 (no error, but a way out)
    """The group can grow, and now is a good moment to start it again."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


@final
class ElasticityPolicy:
    """The policy that checks at intervals whether an elastic group can grow.

    A restart goes back to the last commit, so the policy puts it off to the next commit.

    Args:
        scaling: The allowed numbers of ranks.
        size: The present number of ranks.
        book: The counter of commits.
        now: The clock's seconds.
        count_fitting: Returns the number of further ranks that free resources suffice for.
        unusable: How many of these ranks still cannot be placed; see `worker_group.WorkerGroup.unusable`.
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
        """The number of commits when the policy found that the group can grow; None if it cannot."""

    @property
    def due(self) -> float | None:
        """When to look again; None for never."""
        return self._due if self._is_on else None

    def look(self, now: float) -> None:
        """Check, if it is time.

        Raises:
            ResizeWanted: The group can grow, and a commit or an interval has passed since that was found.
        """
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
