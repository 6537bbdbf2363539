"""The intake of the ranks' reports, in each rank's order: a report that waits for files holds back later reports."""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Sequence
from typing import final

from hocket.core import generators
from hocket.crew import wait_loop
from hocket.train import errors
from hocket.train.checkpoints import file_chunks, storage
from hocket.train.rank import reports, worker_session
from hocket.train.run import attempt as attempt_module


class _Queue:
    """A rank's reports that the book has not taken yet."""

    def __init__(self) -> None:
        self.reports: deque[reports.Report] = deque()
        self.has_ended = False
        self.unpacker: file_chunks.Unpacker | None = None
        """The receiver of the first report's files, if they are under way."""


@final
class ReportIntake:
    """The intake of one attempt. It fills the book, and fetches the files of ranks without the run's folder."""

    def __init__(self, attempt: attempt_module.Attempt, loop: wait_loop.WaitLoop) -> None:
        self._attempt = attempt
        self._loop = loop
        self._queues = [_Queue() for _ in range(len(attempt.group))]

    def take(self, rank: int, batch: Sequence[reports.Report], *, has_ended: bool) -> None:
        """Take the next reports of a rank; `has_ended` says that they were its last."""
        line = self._queues[rank]
        line.has_ended = has_ended
        line.reports.extend(batch)
        if line.unpacker is None and rank < self._attempt.num_reporting:
            self._enter(rank)

    def is_held_back(self, rank: int) -> bool:
        """Return whether a report of a rank has come but is not in the book, because its files are under way."""
        return bool(self._queues[rank].reports)

    def close(self) -> None:
        """Close all open files."""
        for line in self._queues:
            if line.unpacker is not None:
                line.unpacker.close()

    def _enter(self, rank: int) -> None:
        """Pass the rank's reports to the book, up to the first report with files to fetch."""
        line = self._queues[rank]
        ready: list[reports.Report] = []
        while line.reports and not isinstance(line.reports[0].staged, storage.Offered):
            ready.append(line.reports.popleft())
        has_ended = line.has_ended and not line.reports
        for done in self._attempt.run.book.add(rank, ready, has_ended=has_ended):
            self._attempt.acknowledge_all(done.index, done.checkpoint)
        if line.reports:
            self._fetch(rank, line)

    def _fetch(self, rank: int, line: _Queue) -> None:
        index = line.reports[0].index
        name = worker_session.name_part(self._attempt.number, index, rank)
        target = self._attempt.run.run_storage.staging_path / name
        line.unpacker = file_chunks.Unpacker(target, f"rank {rank}'s part of a checkpoint", is_durable=True)
        send = self._attempt.group.actors[rank].send_files.options(
            _generator_backpressure_num_objects=file_chunks.CHUNKS_AHEAD
        )
        self._loop.add(send.remote(index), functools.partial(self._take_chunk, rank))

    def _take_chunk(self, rank: int, stream: generators.ObjectRefGenerator[object]) -> None:
        line, group = self._queues[rank], self._attempt.group
        assert line.unpacker is not None, "there is one as long as files are under way"
        ref = next(stream, None)
        try:
            if ref is not None:
                line.unpacker.take(group.get(rank, ref))
                self._loop.add(stream, functools.partial(self._take_chunk, rank))
                return
            staged = line.unpacker.finish()
        except errors.TransferError as error:
            raise group.explain(rank, error) from None  # the group's error includes this one
        line.unpacker = None
        line.reports[0] = dataclasses.replace(line.reports[0], staged=staged)
        self._enter(rank)
        self._attempt.answer()
