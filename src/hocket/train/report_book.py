"""Puts the reports of the ranks together: the n-th of each rank make row n."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hocket.train import callbacks, checkpoint, checkpoint_manager, errors, reports


@dataclass(frozen=True)
class Acknowledgement:
    """What the ranks are told when a checkpoint was committed."""

    index: int
    checkpoint: checkpoint.Checkpoint


class ReportBook:
    """The reports of a run. Used by one thread.

    Args:
        run_context: For the callbacks.
        manager: Commits the checkpoints.
        user_callbacks: Called for each complete row.
    """

    def __init__(
        self,
        run_context: callbacks.TrainRunContext,
        manager: checkpoint_manager.CheckpointManager,
        user_callbacks: Sequence[callbacks.UserCallback],
    ) -> None:
        self._run_context = run_context
        self._manager = manager
        self._callbacks = user_callbacks
        self.history: list[dict[str, Any]] = []
        """Rank 0's metrics of each complete row."""
        self._committed_length = 0
        self._pending: list[deque[reports.Report]] = []
        self._counts: list[int] = []
        self._ended: set[int] = set()

    def begin_attempt(self, world_size: int) -> None:
        """Forget what ranks reported after the last commit: it will be reported again."""
        del self.history[self._committed_length :]
        self._pending = [deque() for _ in range(world_size)]
        self._counts = [0] * world_size
        self._ended = set()

    def add(self, rank: int, batch: Sequence[reports.Report], *, has_ended: bool = False) -> list[Acknowledgement]:
        """Take reports of a rank; return what was committed by them.

        Args:
            rank: Whose they are.
            batch: Its next reports, in order.
            has_ended: Whether these were its last.

        Raises:
            TrainingFailedError: A rank ended with fewer reports than another one made.
        """
        self._pending[rank].extend(batch)
        self._counts[rank] += len(batch)
        if has_ended:
            self._ended.add(rank)
        if batch:
            for callback in self._callbacks:
                callback.after_arrival(self._run_context, tuple(self._counts))
        acknowledgements = []
        while all(self._pending):
            done = self._complete([row.popleft() for row in self._pending])
            if done is not None:
                acknowledgements.append(done)
        self._check_counts()
        return acknowledgements

    def _complete(self, row: list[reports.Report]) -> Acknowledgement | None:
        metrics = [report.read_metrics() for report in row]
        self.history.append(metrics[0])
        committed = None
        if any(report.staged is not None for report in row):
            committed = self._manager.commit(row, metrics[0])
            self._committed_length = len(self.history)
        for callback in self._callbacks:
            callback.after_report(self._run_context, metrics, committed)
        return Acknowledgement(row[0].index, committed) if committed is not None else None

    def _check_counts(self) -> None:
        most = max(self._counts)
        for rank in sorted(self._ended):
            if self._counts[rank] < most:
                ahead = self._counts.index(most)
                raise errors.TrainingFailedError(
                    f"Every rank must call report() the same number of times, but rank {rank} ended after {self._counts[rank]} "
                    f"reports and rank {ahead} made {most}. Call report() in all ranks, with a checkpoint or without; do not "
                    "put it under `if rank == 0`."
                )
