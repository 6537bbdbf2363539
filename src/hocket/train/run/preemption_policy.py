"""The policy for ranks that got SIGTERM: they may save before the attempt ends."""

from __future__ import annotations

import math
import time

from hocket._base import settings
from hocket.train import errors, preemption
from hocket.train.rank import preemption_signals, rank_placement
from hocket.train.run import failures, report_book

NOTICE_SECONDS = settings.read_seconds("HOCKET_TRAIN_PREEMPTION_NOTICE_S", 30)
"""Seconds that a rank may go on after SIGTERM; the signal itself names no time. Kubernetes' default. Clouds give
between 30 seconds and two minutes."""

ECHO_SECONDS = 5.0
"""Seconds that the notice of the driver's own SIGTERM may take through the ranks, behind their earlier reports:
milliseconds, unless all ranks are stopped."""


class PreemptionPolicy:
    """The preemption signals of one attempt. Used by one thread.

    Args:
        book: The run's reports and commits.
        ranks_places: The places of the ranks.
        grace_s: Seconds that ranks may go on after the deadline of their notice.
    """

    def __init__(
        self, book: report_book.ReportBook, ranks_places: tuple[rank_placement.RankPlacement, ...], grace_s: float
    ) -> None:
        self._book = book
        self._places = ranks_places
        self.most_seconds = NOTICE_SECONDS + grace_s
        """Seconds that ranks may go on after SIGTERM."""
        self._deadline = 0.0
        self._commits_before = 0
        self._driver_told_at = math.inf
        self.is_asked = False
        """Whether a rank has ever asked for `info`. If so, ranks may save, and waiting for them makes sense."""
        self.info: preemption.PreemptionInfo | None = None
        """The ranks that got SIGTERM; None if there are none."""
        self.is_drivers = False
        """Whether the process that called `fit` got SIGTERM. Then nothing is started again."""

    def take(self, rank: int, signal: preemption_signals.PreemptionSignal) -> None:
        """Note that a rank got SIGTERM. A signal of the process that called `fit` counts for all ranks."""
        self.is_drivers |= signal.is_drivers
        known = self.info
        if known is None:
            self._deadline = time.monotonic() + self.most_seconds
            self._commits_before = self._book.commit_count
        if signal.is_drivers and not self._book.has_saved and not self.is_asked:
            self._deadline = 0.0  # the program is to end, and no rank saves: there is nothing to wait for
        nodes = {} if known is None else {node: list(ranks) for node, ranks in known.preempted_node_to_ranks.items()}
        for told in range(len(self._places)) if signal.is_drivers else (rank,):
            ranks = nodes.setdefault(self._places[told].node_id, [])
            if told not in ranks:
                ranks.append(told)
        deadline_ms = int((time.time() + NOTICE_SECONDS) * 1000) if known is None else known.deadline_ms
        self.info = preemption.PreemptionInfo(deadline_ms, nodes)

    def note_driver(self) -> None:
        """Note that the process that called `fit` got SIGTERM. Called by any thread. The ranks' notices follow, unless
        the ranks are stopped."""
        self._driver_told_at = time.monotonic()

    @property
    def due(self) -> float | None:
        """When to look again; None for never."""
        return None if self.info is None else self._deadline

    def look(self, now: float) -> None:
        """Check whether it is time to end the attempt.

        Raises:
            PreemptionError: A checkpoint was committed after the notice, or the deadline has passed.
        """
        if not self.is_drivers and now >= self._driver_told_at + ECHO_SECONDS:
            self.take(0, preemption_signals.PreemptionSignal(is_drivers=True))
        if self.info is None:
            return
        if self._book.commit_count > self._commits_before:
            raise errors.PreemptionError(self.info)
        if now >= self._deadline:
            raise errors.PreemptionError(self.info, drain_timed_out=True)

    def judge(self, error: errors.WorkerGroupError) -> errors.TrainingFailedError:
        """Return the group's error, or a `PreemptionError` if a rank that got SIGTERM has died."""
        told = set(self.info.preempted_ranks) if self.info is not None else set()
        has_ended = any(rank in told and failures.is_death(failure) for rank, failure in error.worker_failures.items())
        if self.info is None or not has_ended:
            return error
        return errors.PreemptionError(self.info)
