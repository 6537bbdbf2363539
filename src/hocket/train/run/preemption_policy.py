"""The policy for ranks that got SIGTERM: it lets them save first, and knows when they have."""

from __future__ import annotations

import math
import time

from hocket._base import settings
from hocket.train import errors, preemption
from hocket.train.rank import preemption_signals, rank_placement
from hocket.train.run import failures, report_book

NOTICE_SECONDS = settings.read_seconds("HOCKET_TRAIN_PREEMPTION_NOTICE_S", 30)
"""How long a rank may go on after SIGTERM, which does not say it. Kubernetes' default; clouds give between 30 seconds
and two minutes."""

ECHO_SECONDS = 5.0
"""How long the notice of the driver's own end may take through the ranks, behind what they had reported: milliseconds,
unless all are stopped."""


class PreemptionPolicy:
    """The preemption signals of one attempt: ranks that got SIGTERM may save first. Used by one thread.

    Args:
        book: Knows of commits.
        ranks_places: Where the ranks are.
        grace_s: How much longer than the notice they may go on.
    """

    def __init__(
        self, book: report_book.ReportBook, ranks_places: tuple[rank_placement.RankPlacement, ...], grace_s: float
    ) -> None:
        self._book = book
        self._places = ranks_places
        self.most_seconds = NOTICE_SECONDS + grace_s
        """How long ranks may go on after they were told to end."""
        self._deadline = 0.0
        self._commits_before = 0
        self._driver_told_at = math.inf
        self.is_asked = False
        """Whether a rank has ever asked for `info`, so that it is worth while to wait for it."""
        self.info: preemption.PreemptionInfo | None = None
        """Who was told to end; None for nobody."""
        self.is_drivers = False
        """Whether the process that called `fit` was told to end, so that nothing is started again."""

    def take(self, rank: int, signal: preemption_signals.PreemptionSignal) -> None:
        """Note that a rank got SIGTERM; that all have, if the process got it that called `fit`."""
        self.is_drivers |= signal.is_drivers
        known = self.info
        if known is None:
            self._deadline = time.monotonic() + self.most_seconds
            self._commits_before = self._book.commit_count
        if signal.is_drivers and not self._book.has_saved and not self.is_asked:
            self._deadline = 0.0  # nobody saves, and somebody wants the program's end
        nodes = {} if known is None else {node: list(ranks) for node, ranks in known.preempted_node_to_ranks.items()}
        for told in range(len(self._places)) if signal.is_drivers else (rank,):
            ranks = nodes.setdefault(self._places[told].node_id, [])
            if told not in ranks:
                ranks.append(told)
        deadline_ms = int((time.time() + NOTICE_SECONDS) * 1000) if known is None else known.deadline_ms
        self.info = preemption.PreemptionInfo(deadline_ms, nodes)

    def note_driver(self) -> None:
        """Note that the process got SIGTERM that called `fit`. Called by any thread; the ranks' notices follow,
        unless they are stopped."""
        self._driver_told_at = time.monotonic()

    @property
    def due(self) -> float | None:
        """When to look again; None for never."""
        return None if self.info is None else self._deadline

    def look(self, now: float) -> None:
        """Look whether it is time to end the attempt."""
        if not self.is_drivers and now >= self._driver_told_at + ECHO_SECONDS:
            self.take(0, preemption_signals.PreemptionSignal(is_drivers=True))
        if self.info is None:
            return
        if self._book.commit_count > self._commits_before:
            raise errors.PreemptionError(self.info)
        if now >= self._deadline:
            raise errors.PreemptionError(self.info, drain_timed_out=True)

    def judge(self, error: errors.WorkerGroupError) -> errors.TrainingFailedError:
        """Return the failure of the group, or a preemption if a rank that got SIGTERM has ended."""
        told = set(self.info.preempted_ranks) if self.info is not None else set()
        has_ended = any(rank in told and failures.is_death(failure) for rank, failure in error.worker_failures.items())
        if self.info is None or not has_ended:
            return error
        return errors.PreemptionError(self.info)
