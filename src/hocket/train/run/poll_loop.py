"""The driver's wait for all sources at once: one thread serves them, in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from hocket.core import api, generators
from hocket.train import errors
from hocket.train.run import worker_group

Source = worker_group.Ref | generators.ObjectRefGenerator[Any]
"""What can be waited for."""


@final
class PollLoop:
    """The sources of a wait, each with the function that serves it when it is ready. Used by one thread.

    Whoever was served goes to the end of the queue, so that no rank keeps another from being served, however much it
    reports or sends.
    """

    def __init__(self) -> None:
        self._waiting: dict[Source, Callable[[object], None]] = {}
        self._aside: dict[Source, int] = {}
        """What is in `_waiting`, but not waited for at the end, with the rank that it is of."""

    @property
    def is_over(self) -> bool:
        """Whether nothing is left that must be waited for."""
        return len(self._waiting) <= len(self._aside)

    def add(self, source: Source, serve: Callable[[Any], None], aside: int | None = None) -> None:
        """Wait for something; serve it, once, when it is there.

        Args:
            source: What is waited for.
            serve: Called with it.
            aside: The rank that it is of, if the end does not wait for that rank.
        """
        self._waiting[source] = serve
        if aside is not None:
            self._aside[source] = aside

    def forget(self, rank: int) -> None:
        """Wait no longer for what is of a rank that the end does not wait for."""
        for source in [source for source, owner in self._aside.items() if owner == rank]:
            del self._waiting[source], self._aside[source]

    def wait_once(
        self,
        others: Sequence[worker_group.Ref],
        seconds: float,
        on_failure: Callable[[int, errors.WorkerGroupError], None],
    ) -> bool:
        """Wait until one thing is there, and serve it; return whether it was none of these.

        Args:
            others: What is waited for beside them, and not served here.
            seconds: How long to wait at most.
            on_failure: Called with the rank whose service failed, if the end does not wait for that rank.
        """
        ready = api.wait([*self._waiting, *others], num_returns=1, timeout=seconds)[0]
        if not ready or ready[0] not in self._waiting:
            return True
        serve, rank = self._waiting.pop(ready[0]), self._aside.pop(ready[0], None)
        try:
            serve(ready[0])
        except errors.WorkerGroupError as error:
            if rank is None:
                raise
            on_failure(rank, error)
        return False
