"""Ranks in this process, one at a time: what a training function calls, without a group."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from hocket.train.checkpoints import storage
from hocket.train.rank import equality, questions, rank_info, reports, worker_session


@contextlib.contextmanager
def be_rank(
    rank: int = 0, world_size: int = 1, positions: Mapping[str, Any] | None = None, attempt: int = 0
) -> Iterator[list[reports.Report]]:
    """Be a rank of a group for the duration of a block; give its reports, which nobody takes."""
    info = rank_info.RankInfo(
        rank=rank,
        world_size=world_size,
        attempt=attempt,
        run_storage=storage.Storage("/nowhere", "run"),
        use_gpu=False,
        start_checkpoint=None,
        start_positions=positions or {},
    )
    taken: list[reports.Report] = []

    def take(item: reports.Report | equality.Item) -> None:
        assert isinstance(item, reports.Report)
        taken.append(item)

    inquiry = questions.Inquiry(lambda _: None)
    session = worker_session.WorkerSession(info, take, inquiry, lambda _: None)
    with worker_session.open_session(session):
        yield taken
