"""The book of the ranks' reports: the n-th reports of all ranks together are row n."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from hocket.observe.runs import log
from hocket.train import errors, user_callback
from hocket.train.checkpoints import checkpoint
from hocket.train.rank import reports
from hocket.train.run import checkpoint_manager


@dataclass(frozen=True)
class Acknowledgement:
    """The message to the ranks that a checkpoint was committed."""

    index: int
    checkpoint: checkpoint.Checkpoint


class ReportBook:
    """The reports of a run. Used by one thread."""

    def __init__(
        self,
        run_context: user_callback.TrainRunContext,
        manager: checkpoint_manager.CheckpointManager,
        user_callbacks: Sequence[user_callback.UserCallback],
        run_log: log.RunLog,
    ) -> None:
        self.run_context = run_context
        """The present facts; an elastic group may have another size in the next attempt."""
        self._manager = manager
        self._callbacks = user_callbacks
        self.log = run_log
        self.history: list[reports.Metrics] = []
        """Rank 0's metrics of each complete row."""
        self.row_count = 0
        """The number of the attempt's complete rows, with their checkpoints committed."""
        self._commits: list[tuple[int, int]] = []
        """For each checkpoint that was committed here, its number and the number of reports then."""
        self.commit_count = 0
        """The number of commits."""
        self._pending: list[deque[reports.Report]] = []
        self._counts: list[int] = []
        self._waiting: list[int] = []
        self._ended: set[int] = set()

    def begin_attempt(self, world_size: int) -> None:
        """Forget the reports after the last commit, because the ranks will make them again."""
        while self._commits and not self._manager.is_up_to(self._commits[-1][0]):
            self._commits.pop()  # the checkpoint was damaged, and dropped
        del self.history[self._commits[-1][1] if self._commits else 0 :]
        self.run_context = dataclasses.replace(self.run_context, num_workers=world_size, report_count=len(self.history))
        self._pending = [deque() for _ in range(world_size)]
        self._counts = [0] * world_size
        self._waiting = [-1] * world_size
        self._ended = set()
        self.row_count = 0
        self.log.begin_attempt(world_size, len(self.history))

    def add(self, rank: int, batch: Sequence[reports.Report], *, has_ended: bool = False) -> list[Acknowledgement]:
        """Take reports of a rank, and return an acknowledgement for each checkpoint that they completed."""
        self._pending[rank].extend(batch)
        self._counts[rank] += len(batch)
        self._waiting[rank] = next((report.index for report in reversed(batch) if report.waits), self._waiting[rank])
        if has_ended:
            self._ended.add(rank)
        if batch:
            self.log.arrive(rank, len(batch))
            with user_callback.hearing():
                for callback in self._callbacks:
                    callback.after_arrival(self.run_context, self.counts)
        acknowledgements = []
        while all(self._pending):
            done = self._complete([row.popleft() for row in self._pending])
            if done is not None:
                acknowledgements.append(done)
        self.log.note_ahead(self._counts)
        self._check_counts()
        return acknowledgements

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of reports of each rank in the attempt."""
        return tuple(self._counts)

    @property
    def has_saved(self) -> bool:
        """Whether the run has a checkpoint."""
        return self._manager.latest is not None

    def find_waiting(self, report_count: int) -> int | None:
        """Return a rank that waits for the commit of a report beyond this number of reports; None if none does."""
        behind = max(report_count, self.row_count)
        return next((rank for rank, index in enumerate(self._waiting) if index >= behind), None)

    def list_waiting(self) -> list[int]:
        """Return the ranks that wait for the commit of a report."""
        return [rank for rank, index in enumerate(self._waiting) if index >= self.row_count]

    def list_missing(self) -> list[int]:
        """Return the ranks that lack a report for the next row."""
        return [rank for rank, pending in enumerate(self._pending) if not pending]

    def _complete(self, row: list[reports.Report]) -> Acknowledgement | None:
        metrics = [report.read_metrics() for report in row]
        kept = dict(metrics[0])  # a copy: validations add to it, and callbacks may change theirs
        self.history.append(kept)
        self.run_context = dataclasses.replace(self.run_context, report_count=len(self.history))
        committed = None
        if any(report.staged is not None for report in row):
            committed = self._manager.commit(row, kept)
            self._commits.append((self._manager.next_number - 1, len(self.history)))
            self.commit_count += 1
        self.row_count += 1
        published = committed and self._manager.publish(self._manager.committed[-1])
        name = self._manager.latest_name if committed is not None else None
        self.log.add_row(metrics, [report.spent for report in row], max(report.made_at for report in row), name)
        with user_callback.hearing():
            for callback in self._callbacks:
                callback.after_report(self.run_context, metrics, published)
        return Acknowledgement(row[0].index, committed) if committed is not None else None

    def _check_counts(self) -> None:
        most = max(self._counts)
        for rank in sorted(self._ended):
            if self._counts[rank] < most:
                ahead = self._counts.index(most)
                raise errors.TrainingFailedError(
                    f"Every rank must call report() the same number of times, but rank {rank} ended after "
                    f"{self._counts[rank]} reports and rank {ahead} made {most}. Call report() in all ranks, with a "
                    "checkpoint or without; do not put it under `if rank == 0`."
                )
