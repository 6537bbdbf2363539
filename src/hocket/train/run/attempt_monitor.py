"""Follows the ranks of a group while the training function runs in them: one thread, which serves whoever has something, in turn.

It waits for everything at once: each rank's function, each rank's next reports, the next chunk of files that a rank sends, the answer of a
rank to a chunk that it was sent. Whoever was served goes to the end of the row, so that no rank keeps another from being served, however
much it reports or sends. The reports of one rank keep their order: one whose files are still under way holds back those after it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hocket import exceptions, texts
from hocket.core import api, generators
from hocket.engine import contract
from hocket.train import errors
from hocket.train.checkpoints import cache, file_chunks, storage
from hocket.train.rank import preemption_signals, questions, reports, worker_session
from hocket.train.run import (
    failures,
    patience,
    preemption_policy,
    question_resolver,
    report_book,
    roles,
    validation_queue,
    worker_group,
)

_log = logging.getLogger("hocket.train")

Source = contract.ObjectRef[Any] | generators.ObjectRefGenerator
"""What can be waited for."""


LOOK_SECONDS = 5.0
"""How long nothing may happen before it is looked whether the driver was told to end."""


class _Line:
    """What a rank has reported and the book has not taken yet."""

    def __init__(self) -> None:
        self.reports: deque[reports.Report] = deque()
        self.has_ended = False
        self.unpacker: file_chunks.Unpacker | None = None
        """Takes the files of the first report, if they are under way."""


class _Delivery:
    """A committed checkpoint on its way to a node, or there.

    Args:
        origin: The checkpoint's folder.
        folder: The node's, which the copy is put into.
        chunks_left: What is still to be sent.
    """

    def __init__(self, origin: str, folder: str, chunks_left: Iterator[file_chunks.FileChunk]) -> None:
        self.origin = origin
        self.folder = folder
        self.is_there = False
        self.waiting: list[tuple[int, cache.Request]] = []
        """Ranks of the node that have asked for it, and were not answered; the first one receives it."""
        self._chunks_left = chunks_left

    @property
    def target(self) -> str:
        """Where the copy is, or will be."""
        return str(Path(self.folder, Path(self.origin).name))

    def read(self) -> file_chunks.FileChunk | Exception | None:
        """Return the next chunk, or None after the last; or why it cannot be read."""
        try:
            return next(self._chunks_left, None)
        except OSError as error:
            return error


class ResizeWanted(Exception):  # noqa: N818 (no error, but a way out)
    """The group can be larger, and now is a good moment to start it again.

    Args:
        size: How many ranks there can be.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class _Watch:
    """Looks now and then whether an elastic group can be larger. A restart goes back to the last commit, so it is put off to the next.

    Args:
        group: The group.
        book: Knows of commits.
    """

    def __init__(self, group: worker_group.WorkerGroup, book: report_book.ReportBook) -> None:
        self._group = group
        self._book = book
        self._interval = group.scaling.elastic_resize_monitor_interval_s
        self._is_on = len(group) < group.scaling.max_workers
        self._due = time.monotonic() + self._interval
        self._wanted_since: int | None = None
        """How many commits there were when it was found that it can be larger."""

    @property
    def seconds_left(self) -> float | None:
        """When to look again; None for never."""
        return max(0.0, self._due - time.monotonic()) if self._is_on else None

    def look(self) -> None:
        """Look if it is time.

        Raises:
            ResizeWanted: The group can be larger, and has just committed something, or has not for a whole interval.
        """
        if not self._is_on:
            return
        has_committed = self._wanted_since is not None and self._book.commit_count > self._wanted_since
        if not has_committed and time.monotonic() < self._due:
            return
        scaling = self._group.scaling
        size = min(len(self._group) + worker_group.count_fitting(scaling), scaling.max_workers)
        if size > len(self._group) and self._wanted_since is not None:
            raise ResizeWanted(size)
        self._wanted_since = self._book.commit_count if size > len(self._group) else None
        self._due = time.monotonic() + self._interval


class AttemptMonitor:
    """Follows one attempt. Used once, by one thread.

    Args:
        group: The ranks.
        runs: The training function's call in each; None in one where it does not run.
        book: Takes the reports.
        front: Answers the ranks' questions.
        told: Who was told to end.
        validations: Validates what is committed, if the trainer was told how.
        run_storage: Where the run is kept.
        attempt: How often the group had been started before.
        token: What the attempt's nodes name their folders by.
        replace: Gives a rank that died a new process, and returns the function's call there.
    """

    def __init__(
        self,
        group: worker_group.WorkerGroup,
        runs: list[contract.ObjectRef[Any] | None],
        book: report_book.ReportBook,
        front: question_resolver.QuestionResolver,
        told: preemption_policy.PreemptionPolicy,
        validations: validation_queue.ValidationQueue | None,
        run_storage: storage.Storage,
        attempt: int,
        token: str,
        replace: Callable[[int], contract.ObjectRef[Any] | None],
    ) -> None:
        self._group = group
        self._runs = runs
        self._replace = replace
        self._num_reporting = roles.count_reporting(group.roles, len(group))
        self._restarts = [0] * len(runs)
        self._aside: dict[Source, int] = {}
        """What is in `_waiting`, but not waited for at the end, with the rank that it is of."""
        self._book = book
        self._desk = front
        self._drain = told
        self._validations = validations
        self._storage = run_storage
        self._attempt = attempt
        self._token = token
        self._waiting: dict[Source, Callable[[Any], None]] = {}
        self._lines = [_Line() for _ in runs]
        self._watch = _Watch(group, book)
        self._patience = patience.Patience(group, self._find_wait)
        self._deliveries: dict[tuple[str, str, str], _Delivery] = {}

    def follow(self) -> Any:
        """Return what rank 0's function returned, when all have returned and all that they reported is done.

        A rank's last reports come just before its function's end. If that end is an error, it is the error to raise, and
        not what is missing among the reports because of it; so the function's value is taken first.

        Raises:
            WorkerGroupError: A rank failed, or its files did not arrive.
            TrainingFailedError: The ranks' reports do not fit together.
            ResizeWanted: The group can be larger.
            PreemptionError: A rank was told to end, and has had its time.
        """
        for rank in range(len(self._runs)):
            self._attend(rank)
        with contextlib.ExitStack() as stack:
            for line in self._lines:
                stack.callback(self._close, line)
            while len(self._waiting) > len(self._aside):
                self._wait_once()
        return self._read_return(0)

    def _attend(self, rank: int) -> None:
        """Wait for what comes from a rank from now on."""
        run = self._runs[rank]
        if run is not None:
            self._wait_for(rank, run, functools.partial(self._group.get, rank))
        self._poll(rank)

    def _wait_for(self, rank: int, ref: contract.ObjectRef[Any], serve: Callable[[Any], None]) -> None:
        self._waiting[ref] = serve
        if self._group.roles and not self._group.roles[rank].is_awaited:
            self._aside[ref] = rank

    def _read_return(self, rank: int) -> Any:
        run = self._runs[rank]
        return None if run is None else self._group.get(rank, run)

    def _wait_once(self) -> None:
        """Wait for the next thing to happen, and see to it. A validation that still runs when all else is done is not waited for here."""
        sources: list[Source] = list(self._waiting)
        limits = [LOOK_SECONDS, self._watch.seconds_left, self._drain.seconds_left, self._patience.seconds_left]
        if self._validations is not None:
            sources += self._validations.start()
            limits.append(self._validations.seconds_left)
        seconds = min(limit for limit in limits if limit is not None)
        ready = api.wait(sources, num_returns=1, timeout=seconds)[0]
        if ready and ready[0] in self._waiting:
            self._serve(ready[0])
        elif self._validations is not None:
            self._validations.settle()
            self._reply()
        self._drain.look()
        if self._drain.info is None:
            self._watch.look()
        self._patience.look()

    def _find_wait(self) -> patience.Wait | None:
        """Return which ranks wait for another one to come to them; None if none does."""
        meeting = self._desk.find_meeting()
        if meeting is not None:
            call, number, present = meeting
            missing = tuple(rank for rank in range(self._num_reporting) if rank not in present)
            return patience.Wait(("meeting", number), f"{call}()", tuple(present), missing, "has not called it")
        call, waiting = "report()", self._book.list_waiting()
        if not waiting:
            call, waiting = "get_all_reported_checkpoints()", self._desk.list_readers()
        missing = tuple(rank for rank in self._book.list_missing() if not self._lines[rank].reports)  # else: under way
        if not waiting or not missing:
            return None
        row = self._book.row_count
        what = f"has made {row} report{'s' * (row != 1)}"
        return patience.Wait(("row", row), call, tuple(waiting), missing, what)

    def _serve(self, source: Source) -> None:
        serve, rank = self._waiting.pop(source), self._aside.pop(source, None)
        try:
            serve(source)
        except errors.WorkerGroupError as error:
            if rank is None or not self._can_replace(rank, error):
                raise
            self._restart(rank, error)

    def _can_replace(self, rank: int, error: errors.WorkerGroupError) -> bool:
        """Tell whether a rank's process has died, and no other's, nor its node, and may be started again."""
        most = self._group.roles[rank].max_restarts
        failed = error.worker_failures
        is_alone = list(failed) == [rank] and isinstance(failed[rank], exceptions.ActorDiedError)
        has_died = is_alone and failures.is_death(failed[rank])
        return has_died and (most == roles.ALWAYS or self._restarts[rank] < most)

    def _restart(self, rank: int, error: errors.WorkerGroupError) -> None:
        """Start a rank's process again, while the others go on."""
        for ref in [ref for ref, owner in self._aside.items() if owner == rank]:
            del self._waiting[ref], self._aside[ref]
        self._restarts[rank] += 1
        _log.warning(
            "%s\n\nIts process is started again, for the %d. time.", texts.escape(str(error)), self._restarts[rank]
        )
        self._runs[rank] = self._replace(rank)
        self._attend(rank)

    def _reply(self) -> None:
        """Answer the questions that can be answered by now."""
        for rank, answer in self._desk.settle():
            self._group.actors[rank].answer.remote(answer)

    @staticmethod
    def _close(line: _Line) -> None:
        if line.unpacker is not None:
            line.unpacker.close()

    # --- reports ------------------------------------------------------------------------------------------------------

    def _poll(self, rank: int) -> None:
        ref = self._group.actors[rank].take_reports.remote()
        self._wait_for(rank, ref, functools.partial(self._take_batch, rank))

    def _take_batch(self, rank: int, ref: contract.ObjectRef[Any]) -> None:
        batch, has_ended = self._group.get(rank, ref)
        if has_ended:
            self._read_return(rank)
        else:
            self._poll(rank)
        line = self._lines[rank]
        line.has_ended = has_ended
        for item in batch:
            if isinstance(item, cache.Request):
                self._answer(rank, item)
            elif isinstance(item, questions.Question):
                self._desk.take(rank, item)
            elif isinstance(item, preemption_signals.PreemptionSignal):
                self._drain.take(rank, item)
            else:
                line.reports.append(item)
        if has_ended and rank < self._num_reporting:
            self._desk.end(rank)
        if line.unpacker is None and rank < self._num_reporting:
            self._enter(rank)
        self._reply()

    def _enter(self, rank: int) -> None:
        """Give the book what the rank has reported, up to the first report whose files must be fetched."""
        line = self._lines[rank]
        ready: list[reports.Report] = []
        while line.reports and not isinstance(line.reports[0].staged, storage.Offered):
            ready.append(line.reports.popleft())
        acknowledgements = self._book.add(rank, ready, has_ended=line.has_ended and not line.reports)
        for done in acknowledgements:
            for handle in self._group.actors:
                handle.acknowledge.remote(done.index, done.checkpoint)
        if line.reports:
            self._fetch(rank, line)

    # --- files from a rank --------------------------------------------------------------------------------------------

    def _fetch(self, rank: int, line: _Line) -> None:
        index = line.reports[0].index
        target = self._storage.staging_path / worker_session.name_part(self._attempt, index, rank)
        line.unpacker = file_chunks.Unpacker(target, f"rank {rank}'s part of a checkpoint", is_durable=True)
        send = self._group.actors[rank].send_files.options(_generator_backpressure_num_objects=file_chunks.CHUNKS_AHEAD)
        stream: generators.ObjectRefGenerator = send.remote(index)
        self._waiting[stream] = functools.partial(self._take_chunk, rank)

    def _take_chunk(self, rank: int, stream: generators.ObjectRefGenerator) -> None:
        line = self._lines[rank]
        assert line.unpacker is not None, "there is one as long as files are under way"
        ref = next(stream, None)
        try:
            if ref is not None:
                line.unpacker.take(self._group.get(rank, ref))
                self._waiting[stream] = functools.partial(self._take_chunk, rank)
                return
            staged = line.unpacker.finish()
        except errors.TransferError as error:
            raise self._group.explain(rank, error) from None  # which has it, and says it
        line.unpacker = None
        line.reports[0] = dataclasses.replace(line.reports[0], staged=staged)
        self._enter(rank)
        self._reply()

    # --- files to a node ----------------------------------------------------------------------------------------------

    def _answer(self, rank: int, request: cache.Request) -> None:
        """See to it that the rank gets the path of a copy on its node."""
        folder = self._group.claim_folder(rank, self._token)
        key = (request.origin, folder, self._group.places[rank].node_id)
        delivery = self._deliveries.get(key)
        if delivery is None:
            delivery = self._deliveries[key] = _Delivery(request.origin, folder, self._pack(request.origin))
            delivery.waiting.append((rank, request))
            self._send(delivery, delivery.read())
        elif delivery.is_there:
            self._group.actors[rank].settle.remote(request, delivery.target)
        else:
            delivery.waiting.append((rank, request))

    def _pack(self, origin: str) -> Iterator[file_chunks.FileChunk]:
        """Give the files of a committed checkpoint, with what its manifest says of them."""
        path = Path(origin)
        manifest = storage.get_optional_manifest(path) if path.parent == self._storage.path else None
        if manifest is None:
            raise FileNotFoundError(
                f"The checkpoint {origin!r} is not there any more, so it cannot be sent to a rank that asks for it. Read it before "
                "report() commits newer ones, or keep more of them: CheckpointConfig(num_to_keep=...)."
            )
        records = storage.read_records(manifest)
        folders, names = storage.list_contents(origin)
        missing = sorted(records.keys() - set(names))
        if missing:
            raise FileNotFoundError(f"The checkpoint {origin!r} has lost files since its commit: {missing}.")
        yield from file_chunks.pack(origin, folders, [*names, storage.MANIFEST_NAME], records)

    def _send(self, delivery: _Delivery, chunk: file_chunks.FileChunk | Exception | None) -> None:
        """Send a chunk, and read the one after it while it is under way. At an error, or when there is none, end the delivery."""
        if isinstance(chunk, file_chunks.FileChunk):
            rank, request = delivery.waiting[0]
            ref = self._group.actors[rank].receive.remote(request, delivery.folder, chunk)
            following = delivery.read()
            self._waiting[ref] = lambda ref: self._send(delivery, self._group.get(rank, ref).error or following)
        elif chunk is None:
            delivery.is_there = True
            for rank, request in delivery.waiting:
                self._group.actors[rank].settle.remote(request, delivery.target)
        else:
            self._fail(delivery, chunk)

    def _fail(self, delivery: _Delivery, error: Exception) -> None:
        """End a delivery that has failed. The rank that received it has the error; each other one gets a try of its own.

        The first of them may be the same rank, which had the error before we did, and has asked again.
        """
        self._deliveries = {key: other for key, other in self._deliveries.items() if other is not delivery}
        (rank, request), *others = delivery.waiting
        self._group.actors[rank].settle.remote(request, error)
        for other, asked in others:
            self._answer(other, asked)
