"""Training without workers: the training function runs in the caller's own process and thread, as the only rank.

For debugging (breakpoints work) and for tests. There is nothing to restart, so the failure policy does not apply, and what the
training function raises comes out of `fit` as it is. Validations run here too, each as soon as its checkpoint is committed.
"""

from __future__ import annotations

import secrets
import threading
from typing import Any

from hocket.train import (
    checkpoint_manager,
    controller,
    desk,
    questions,
    report_book,
    reports,
    validation,
    validation_queue,
    worker_session,
)


def train(
    run: controller.Run,
    manager: checkpoint_manager.CheckpointManager,
    book: report_book.ReportBook,
    validation_config: validation.ValidationConfig | None,
) -> Any:
    """Run the training function, and return what it returns."""
    book.begin_attempt(1)
    front = desk.Desk(manager, book, 1)
    lock = threading.RLock()  # an asynchronous upload delivers its report from its own thread
    session: worker_session.WorkerSession
    inquiry: questions.Inquiry

    def deliver(report: reports.Report) -> None:
        with lock:
            for done in book.add(0, [report]):
                if validation_config is not None:
                    validation_queue.run_here(validation_config, manager)
                session.acknowledge(done.index, done.checkpoint)
            reply()

    def ask(question: questions.Question) -> None:
        with lock:
            front.take(0, question)
            reply()

    def reply() -> None:
        for _, answer in front.settle():
            inquiry.take(answer)

    info = worker_session.RankInfo(
        rank=0,
        world_size=1,
        attempt=0,
        run_storage=run.run_storage,
        use_gpu=run.scaling.use_gpu,
        num_cpus=run.scaling.bundle.get("CPU", 1.0),
        start_checkpoint=manager.latest,
        start_positions=manager.latest_positions,
        name_prefix=f"checkpoint_{manager.next_number:06d}_{secrets.token_hex(3)}",
        validates=validation_config is not None,
    )
    inquiry = questions.Inquiry(ask)
    session = worker_session.WorkerSession(info, deliver, inquiry, lambda _: None)
    if validation_config is not None:
        validation_queue.run_here(validation_config, manager)
    with worker_session.open_session(session):
        try:
            returned = run.function(*run.args)
            session.finish()
        finally:
            session.abandon()
    return returned
