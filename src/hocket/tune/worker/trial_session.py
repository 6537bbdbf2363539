"""A trial's session while it runs, and the path of its reports.

A trial owns the session of a training run with one rank, so a training function's calls (`hocket.train.report`,
`get_checkpoint`, a loader that keeps its position) work in a trial. Each report waits for the search's decision.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

from hocket.train.checkpoints import checkpoint as checkpoints
from hocket.train.checkpoints import reported, storage, uploads
from hocket.train.rank import equality, questions, rank_info, reports, worker_session
from hocket.tune.worker import orders


class TrialStopped(BaseException):
    """An exception that `report` raises to end a trial's function, by the search's decision."""

    def __init__(self, *, saves: bool = False) -> None:
        super().__init__("The search has ended this trial.")
        self.saves = saves


@final
class TrialSession:
    """The state behind `report` in one trial.

    Args:
        assignment: The trial's assignment.
        exchange: Sends a report to the search, and waits for the answer.
        post: Sends an event, without an answer.
    """

    def __init__(self, assignment: orders.Assignment, exchange: orders.Exchange, post: orders.Post) -> None:
        self.assignment = assignment
        self.trial_storage = storage.Storage(assignment.experiment, assignment.folder)
        start, positions = None, {}
        if assignment.checkpoint is not None:
            start = checkpoints.Checkpoint(self.trial_storage.path / assignment.checkpoint)
            positions = (storage.get_optional_manifest(Path(start.path)) or {}).get("positions", {})
        info = rank_info.RankInfo(
            rank=0, world_size=1, run_storage=self.trial_storage, start_checkpoint=start, start_positions=positions
        )
        inquiry = questions.Inquiry(lambda _: _refuse())
        self.rank = worker_session.WorkerSession(info, self._hand_over, inquiry, lambda _: None)
        """The session of the trial's only rank."""
        self.exchange, self.post = exchange, post
        self._before = time.monotonic()
        self.saved = assignment.saved
        self._is_over = False
        self.has_reported = False

    def report_now(self, metrics: object, checkpoint: checkpoints.Checkpoint | None = None) -> None:
        """Report, and wait for the answer."""
        self.rank.report(metrics, checkpoint, None, uploads.Upload(reported.CheckpointUploadMode.SYNC, None, None))

    @property
    def checkpoint(self) -> checkpoints.Checkpoint | None:
        """The latest committed checkpoint, or the checkpoint that the trial goes on from."""
        return self.rank.checkpoint

    def _hand_over(self, report: reports.Report | equality.Item) -> None:
        assert isinstance(report, reports.Report), "a trial alone is compared with none"
        if self._is_over:  # the function has caught the exception that was to end it
            raise TrialStopped
        name = None
        if isinstance(report.staged, storage.Staged):
            name = self.commit(report.staged, report.dir_name, report.positions)
            self.rank.acknowledge(report.index, checkpoints.Checkpoint(self.trial_storage.path / name))
        elif report.staged is not None:
            _refuse()
        self.obey(self.exchange(self.make_report(report.read_metrics(), name)))

    def make_report(
        self, metrics: dict[str, object], checkpoint: str | None, *, is_last: bool = False
    ) -> orders.Report:
        """Return a report with the seconds since the one before."""
        self.has_reported = True
        now = time.monotonic()
        seconds, self._before = now - self._before, now
        return orders.Report(metrics, seconds, time.time(), checkpoint, is_last)

    def commit(self, staged: storage.Staged, name: str | None, positions: reports.Positions) -> str:
        """Commit a staged folder as the trial's next checkpoint; return its name."""
        name = name or f"checkpoint_{self.saved:06d}"
        storage.commit(self.trial_storage, name, [staged], {"positions": positions})
        self.saved += 1
        return name

    def obey(self, order: orders.Order) -> None:
        """Return if the order is to go on; else raise `TrialStopped`."""
        if order.action is not orders.Action.GO_ON:
            self._is_over = True
            raise TrialStopped(saves=order.saves)


def _refuse() -> None:
    raise RuntimeError(
        "A trial of a search is not a rank of a trainer, so it has no asynchronous uploads, NO_UPLOAD, validations or "
        "get_preemption_info(). Call tune.report(metrics, checkpoint=...)."
    )


_open: Final[dict[worker_session.WorkerSession, TrialSession]] = {}
"""The trials that run in this process, each by the session of its rank."""


@contextmanager
def opened(session: TrialSession) -> Iterator[None]:
    """Make a trial's session the process's session in the block."""
    _open[session.rank] = session
    try:
        with worker_session.open_session(session.rank):
            yield
    finally:
        del _open[session.rank]


def get_session(caller: str) -> TrialSession:
    """Return the session of the trial that runs in this process."""
    rank = worker_session.get_optional_session()
    if rank in _open:
        return _open[rank]
    raise RuntimeError(
        f"hocket.tune.{caller}() was called outside a trial. Call it in the function that is given to a Tuner; in "
        f"a trainer's function write hocket.train.{caller}(), and in a Trainable return a dict from step()."
    )
