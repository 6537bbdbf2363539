"""The monitor of an attempt: it follows the ranks while the training function runs, with one wait for everything.

The monitor waits at once (`crew.wait_loop`) for each rank's function, each rank's next reports, the next chunk of a
file from a rank, and a rank's receipt for a chunk. It passes each message on: reports to `report_intake`, requests for
files to `checkpoint_sender`, questions to `question_resolver`, signals to `preemption_policy`. After each message the
policies check whether it is time to act.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import final

from hocket import exceptions
from hocket._base import texts
from hocket.core import api
from hocket.crew import wait_loop
from hocket.train import errors
from hocket.train.checkpoints import cache, storage
from hocket.train.rank import equality, preemption_signals, questions, report_queue, reports
from hocket.train.run import attempt as attempt_module
from hocket.train.run import (
    checkpoint_sender,
    elasticity,
    failures,
    patience,
    report_intake,
    roles,
    worker_group,
)

_log = logging.getLogger("hocket.train")

LOOK_SECONDS = 5.0
"""Seconds without a message until the policies check anyway, such as for a SIGTERM of the driver."""

LAST_SECONDS = 5.0
"""Seconds that reports from before a failure may take to arrive: milliseconds, unless a rank is stopped or keeps the
interpreter's lock. A guess."""


@final
class AttemptMonitor:
    """The monitor of one attempt. Used once, by one thread. Made when the training function has begun in all ranks.

    Args:
        attempt: The attempt.
        runs: The training function's call in each rank; None for a rank that does not run it.
    """

    def __init__(self, attempt: attempt_module.Attempt, runs: list[worker_group.Ref | None]) -> None:
        self._attempt = attempt
        self._group = attempt.group
        self._runs = runs
        self._restarts = [0] * len(runs)
        self._loop = wait_loop.WaitLoop()
        self._intake = report_intake.ReportIntake(attempt, self._loop)
        self._sender = checkpoint_sender.CheckpointSender(attempt, self._loop)
        self._elasticity = elasticity.ElasticityPolicy(
            attempt.group.scaling,
            len(attempt.group),
            attempt.run.book,
            time.monotonic(),
            unusable=attempt.group.unusable,
        )
        self._blind = set(attempt.run.backend_config.list_blind_ranks(len(runs)))
        self._ended: set[int] = set()
        self._asked: dict[int, worker_group.Ref] = {}
        """The call for the next reports of each rank that has not ended."""
        self._patience = patience.Patience(attempt.group, self._find_wait, self._ended.__contains__)

    def follow(self) -> object:
        """Follow the ranks until all have returned and all reports are processed; return rank 0's value."""
        for rank in range(len(self._runs)):
            self._attend(rank)
        try:
            while not self._loop.is_over:
                self._poll_once()
        except (errors.WorkerGroupError, errors.PreemptionError):
            self._take_last()
            raise
        except storage.NoSpaceError as error:  # the driver's disk; a full disk of a rank is that rank's failure
            raise errors.TrainingFailedError(error.strerror) from error
        finally:
            self._intake.close()
        return self._read_return(0)

    def _poll_once(self) -> None:
        """Wait for the next message, and process it. A validation that still runs at the end is not awaited here."""
        validations, preemption = self._attempt.validations, self._attempt.preemption
        validating = validations.start() if validations is not None else []
        moments = [preemption.due, self._patience.due, validations.due if validations is not None else None]
        if preemption.info is None:  # a group that is about to end does not grow
            moments.append(self._elasticity.due)
        before = time.monotonic()
        due = min([before + LOOK_SECONDS, *(moment for moment in moments if moment is not None)])
        is_other = self._loop.wait(max(0.0, due - before), validating)
        now = time.monotonic()
        if validations is not None and (is_other or now >= due):  # reports without pause must not hide a time-out
            validations.settle(now)
            self._attempt.answer()
        if self._loop.is_over:  # nothing is left that could be started again
            return
        preemption.look(now)
        if preemption.info is None:
            self._elasticity.look(now)
        self._patience.look(now)

    # --- ranks --------------------------------------------------------------------------------------------------------

    def _attend(self, rank: int) -> None:
        """Begin to wait for a rank's function and reports."""
        run = self._runs[rank]
        if run is not None:
            self._wait_for(rank, run, self._group.get)
        self._ask_reports(rank)

    def _wait_for(self, rank: int, ref: worker_group.Ref, serve: Callable[[int, worker_group.Ref], object]) -> None:
        """Wait for a call of a rank, and serve it. A failed rank that is not awaited may be started again."""
        is_awaited = not self._group.roles or self._group.roles[rank].is_awaited

        def try_to_serve(ref: worker_group.Ref) -> None:
            try:
                serve(rank, ref)
            except errors.WorkerGroupError as error:
                if is_awaited:
                    raise
                self._restart(rank, error)

        self._loop.add(ref, try_to_serve, owner=rank, is_awaited=is_awaited)

    def _ask_reports(self, rank: int) -> None:
        ref = self._asked[rank] = self._group.actors[rank].take_reports.remote()
        self._wait_for(rank, ref, self._take_batch)

    def _take_batch(self, rank: int, ref: worker_group.Ref) -> None:
        batch: list[report_queue.Item]
        batch, has_ended = self._group.get(rank, ref)
        if has_ended:
            del self._asked[rank]
            self._ended.add(rank)
            try:  # first: the function's own error, not the reports that are missing because of it, is to be raised
                self._read_return(rank)
            except errors.WorkerGroupError:
                with contextlib.suppress(Exception):  # errors about its reports: the function's error is the one
                    # Without its end, at which the book would complain about missing reports.
                    self._intake.take(rank, _list_reports(batch), has_ended=False)
                raise
        else:
            self._ask_reports(rank)
        for item in batch:
            if isinstance(item, reports.Report):
                self._attempt.divergence.take(rank, item.look)
            elif isinstance(item, equality.Item):
                self._attempt.divergence.take(rank, item)
            elif isinstance(item, cache.Request):
                self._sender.take(rank, item)
            elif isinstance(item, questions.Question):
                self._attempt.questions.take(rank, item)
            elif isinstance(item, preemption_signals.PreemptionSignal):
                self._attempt.preemption.take(rank, item)
        if has_ended and rank < self._attempt.num_reporting:
            self._attempt.questions.end(rank)
            self._attempt.divergence.end(rank)
        self._intake.take(rank, _list_reports(batch), has_ended=has_ended)
        self._attempt.answer()  # last: these reports may settle questions, also those among the items

    def _take_last(self) -> None:
        """Take the reports that ranks had made when one of them failed, as far as they can still arrive.

        A rank may raise after its report and rely on that report, as with Ray, where all ranks wait for each other in
        `report`. So the ranks behind it get some time to make theirs."""
        silent, count = self._patience.stopped, self._attempt.num_reporting
        asked = {rank: ref for rank, ref in self._asked.items() if rank < count and rank not in silent}
        unmarked = set(asked)
        for rank in asked:
            self._group.actors[rank].mark.remote()  # behind all reports from before the failure
        deadline = time.monotonic() + LAST_SECONDS
        while wanted := {ref: rank for rank, ref in asked.items() if rank in unmarked or self._is_behind(rank)}:
            ready = api.wait([*wanted], timeout=max(0.0, deadline - time.monotonic()))[0]
            if not ready:
                return
            rank = wanted[ready[0]]
            del asked[rank]
            with contextlib.suppress(Exception):  # a death, or an error about reports: the first error is the one
                batch, has_ended = api.get(ready[0])
                self._intake.take(rank, _list_reports(batch), has_ended=False)
                if any(isinstance(item, report_queue.Mark) for item in batch):
                    unmarked.discard(rank)
                if has_ended:
                    self._ended.add(rank)
                else:
                    asked[rank] = self._group.actors[rank].take_reports.remote()

    def _is_behind(self, rank: int) -> bool:
        """Return whether a rank has made fewer reports than a rank that has ended."""
        made = self._attempt.run.book.counts
        return any(made[rank] < made[other] for other in self._ended if other < len(made))

    def _read_return(self, rank: int) -> object:
        run = self._runs[rank]
        return None if run is None else self._group.get(rank, run)

    def _restart(self, rank: int, error: errors.WorkerGroupError) -> None:
        """Start a rank's process again, while the others go on; raise the error if its role does not allow that."""
        most, failed = self._group.roles[rank].max_restarts, error.worker_failures
        has_died = list(failed) == [rank] and isinstance(failed[rank], exceptions.ActorDiedError)  # not its node
        may_restart = most == roles.ALWAYS or self._restarts[rank] < most
        if not (has_died and failures.is_death(failed[rank]) and may_restart):
            raise error
        self._loop.forget(rank)  # the calls of the dead process
        self._ended.discard(rank)
        self._restarts[rank] += 1
        _log.warning(
            "%s\n\nThe rank's process is started again (restart %d).", texts.escape(str(error)), self._restarts[rank]
        )
        self._runs[rank] = self._attempt.replace(rank)
        self._attend(rank)

    def _find_wait(self) -> patience.Wait | None:
        """Return the wait of ranks for another rank through the driver; None if none waits."""
        asked, book = self._attempt.questions, self._attempt.run.book
        meeting = asked.find_meeting()
        if meeting is not None:
            call, number, present = meeting
            missing = tuple(rank for rank in range(self._attempt.num_reporting) if rank not in present)
            return patience.Wait(("meeting", number), f"{call}()", tuple(present), missing, "has not called it")
        call, waiting = "report()", book.list_waiting()
        if not waiting:
            call, waiting = "get_all_reported_checkpoints()", asked.list_readers()
        missing = tuple(rank for rank in book.list_missing() if not self._intake.is_held_back(rank))
        if not waiting or not missing:
            return self._find_blind_wait()
        row = book.row_count
        what = f"has made {row} report{'s' * (row != 1)}"
        return patience.Wait(("row", row), call, tuple(waiting), missing, what)

    def _find_blind_wait(self) -> patience.Wait | None:
        """Return the possible wait of ranks, inside their framework, for a rank that has ended; None if none waits."""
        ended, others = self._blind & self._ended, self._blind - self._ended
        if not ended or not others:
            return None
        progress = ("blind", len(ended) + self._attempt.run.book.row_count)  # any progress restarts the wait's clock
        what = "If a rank calls one of the framework's collectives, it waits in vain."
        return patience.Wait(progress, "", tuple(sorted(others)), tuple(sorted(ended)), what, has_ended=True)


def _list_reports(batch: Sequence[report_queue.Item]) -> list[reports.Report]:
    return [item for item in batch if isinstance(item, reports.Report)]
