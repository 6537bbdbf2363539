"""The process of one rank."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hocket.collective import host_group
from hocket.core import api, session
from hocket.engine import node
from hocket.train.checkpoints import cache, checkpoint, file_chunks, storage
from hocket.train.rank import (
    preemption_signals,
    questions,
    rank_info,
    rank_placement,
    report_queue,
    usage,
    worker_session,
)

MAX_CONCURRENCY = 10
"""The most concurrent calls in a rank: the training function, the wait for its reports, files sent, a chunk received,
an acknowledgement, an answer, a notice, a ping, a request for its stack, a mark."""


class RankActor:
    """The actor of a rank: one thread runs the training function, others pass its reports on.

    Args:
        is_process: Whether the process is the rank's own. If so, SIGTERM of the process means the rank.
    """

    def __init__(self, *, is_process: bool = True) -> None:
        self._reports = report_queue.ReportQueue()
        self._inquiry = questions.Inquiry(self._reports.put)
        self._session: worker_session.WorkerSession | None = None
        self._cache: cache.CheckpointCache | None = None
        self._thread: int | None = None
        if not is_process:
            return

        def tell() -> None:
            self.notify(is_drivers=False)

        has_own_loop = "signal_handlers" in session.get_engine().limits  # the main thread is in the engine's loop
        if has_own_loop and not preemption_signals.listen_aside(tell):
            preemption_signals.end_at_once()
        elif not has_own_loop:
            preemption_signals.listen(tell)

    def notify(self, *, is_drivers: bool) -> None:
        """Report that this process, or the driver's, got SIGTERM. A signal's handler may call this, as the queue allows
        that."""
        self._reports.put(preemption_signals.PreemptionSignal(is_drivers))

    def get_pid(self) -> int:
        """Return the process's id. The answer also shows that the process lives."""
        return os.getpid()

    def introduce(self) -> rank_placement.Introduction:
        """Return the facts about this process."""
        context = api.get_runtime_context()
        gpu_ids = tuple(context.get_accelerator_ids().get("GPU", ()))
        return rank_placement.Introduction(
            context.get_node_id(), os.getpid(), gpu_ids, cache.find_temporary(), node.count_cpus()
        )

    def describe(self) -> str:
        """Return the stack of the training function: its own frame and the frames of its calls."""
        frame = sys._current_frames().get(self._thread or 0)
        if frame is None:
            return "  (the training function is not running)\n"
        stack = traceback.extract_stack(frame)
        ours = max((at for at, found in enumerate(stack) if found.filename == __file__), default=-1)
        return "".join(traceback.format_list(stack[ours + 2 :]))  # the next frame is `WorkerSession.run`

    def execute(self, function: Callable[..., object], *args: object) -> object:
        """Call a function in this process, and return its value."""
        return function(*args)

    def run(self, work: tuple[Callable[..., object], tuple[object, ...]], info: rank_info.RankInfo) -> Any:
        """Run the training function; return its value in rank 0, or in every rank that stays."""
        self._thread = threading.get_ident()
        if not storage.sees_token(info.run_storage, info.token):
            self._cache = cache.CheckpointCache(self._reports.put)
        reports = self._reports
        self._session = worker_session.WorkerSession(info, reports.put, self._inquiry, reports.fail, self._cache)
        try:
            returned = self._session.run(*work)
            if not info.stays:
                host_group.end_all()  # not after an error, which must reach the driver first
        finally:
            self._reports.end()
        return usage.wrap(returned, self._session) if info.rank == 0 or info.stays else None

    def take_reports(self, answers: Sequence[questions.Answer] = ()) -> tuple[list[report_queue.Item], bool]:
        """Pass answers on, wait for the next items, and return them and whether they were the last."""
        for answer in answers:
            self._inquiry.take(answer)
        return self._reports.take_batch()

    def mark(self) -> None:
        """Put a mark behind all reports until now, for `take_reports`."""
        self._reports.put(report_queue.Mark())

    def abandon(self, error: BaseException) -> None:
        """Raise an error in the training function, at its present or next question."""
        self._inquiry.fail(error)

    def send_files(self, index: int) -> Iterator[file_chunks.FileChunk]:
        """Yield the files of a reported checkpoint in chunks."""
        assert self._session is not None, "files are asked for after a report"
        yield from self._session.pack_offer(index)

    def receive(self, request: cache.Request, folder: str, chunk: file_chunks.FileChunk) -> cache.Receipt:
        """Take files of a checkpoint that this rank has requested."""
        assert self._cache is not None, "files are sent after a request"
        return self._cache.take(request, folder, chunk)

    def settle(self, request: cache.Request, outcome: str | Exception) -> None:
        """Take the path on this node of a checkpoint that this rank has requested, or the error."""
        assert self._cache is not None, "an outcome is sent after a request"
        self._cache.settle(request, outcome)

    def acknowledge(self, index: int, committed: checkpoint.Checkpoint) -> None:
        """Pass the news of a committed checkpoint on to the session."""
        if self._session is not None:
            self._session.acknowledge(index, committed)

    def answer(self, answer: questions.Answer) -> None:
        """Pass the controller's answer on to the waiting thread."""
        self._inquiry.take(answer)
