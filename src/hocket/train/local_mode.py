"""Training without workers: the training function runs in the caller's own process and thread, as the only rank.

For debugging (breakpoints work) and for tests. There is nothing to restart, so the failure policy does not apply, and what the
training function raises comes out of `fit` as it is.
"""

from __future__ import annotations

from typing import Any

from hocket.train import checkpoint_manager, controller, report_book, reports, worker_session


def train(run: controller.Run, manager: checkpoint_manager.CheckpointManager, book: report_book.ReportBook) -> Any:
    """Run the training function, and return what it returns."""
    book.begin_attempt(1)
    session: worker_session.WorkerSession

    def deliver(report: reports.Report) -> None:
        for done in book.add(0, [report]):
            session.acknowledge(done.index, done.checkpoint)

    info = worker_session.RankInfo(
        rank=0,
        world_size=1,
        attempt=0,
        run_storage=run.run_storage,
        use_gpu=run.scaling.use_gpu,
        num_cpus=run.scaling.bundle.get("CPU", 1.0),
        start_checkpoint=manager.latest,
        start_positions=manager.latest_positions,
    )
    session = worker_session.WorkerSession(info, deliver)
    with worker_session.open_session(session):
        return run.function(*run.args)
