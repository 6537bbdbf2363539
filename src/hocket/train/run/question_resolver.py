"""Answers to the ranks' questions: the controller's side of `hocket.train.rank.questions`.

A question is held until it can be answered. Nothing here blocks.
"""

from __future__ import annotations

import pickle

from hocket.train import errors
from hocket.train.checkpoints import reported
from hocket.train.rank import questions
from hocket.train.run import checkpoint_manager, preemption_policy, report_book


class QuestionResolver:
    """The open questions of one attempt. Used by one thread.

    Args:
        manager: The run's checkpoints.
        book: The run's reports.
        world_size: The number of ranks.
        obstacle: Why no validation can run beside the ranks; empty if one can.
        preemption: The policy that knows which ranks got SIGTERM; None where SIGTERM is no notice.
    """

    def __init__(
        self,
        manager: checkpoint_manager.CheckpointManager,
        book: report_book.ReportBook,
        world_size: int,
        obstacle: str = "",
        preemption: preemption_policy.PreemptionPolicy | None = None,
    ) -> None:
        self._preemption = preemption
        self._obstacle = obstacle
        self._manager = manager
        self._book = book
        self._held: list[tuple[int, questions.Question]] = []
        self._ended: set[int] = set()
        self._world_size = world_size
        self._met = 0

    def take(self, rank: int, question: questions.Question) -> None:
        """Take a question, which `settle` answers."""
        self._held.append((rank, question))

    def end(self, rank: int) -> None:
        """Note that a rank's training function has ended: the rank will come to no meeting."""
        self._ended.add(rank)

    def settle(self) -> list[tuple[int, questions.Answer]]:
        """Return the answers that are known by now, each with its rank."""
        if not self._held:
            return []
        answers = self._settle_meeting()
        for rank, question in list(self._held):
            about = question.about
            if isinstance(about, questions.ListCheckpoints) and self._is_true(about.waits_for, question.report_count):
                self._held.remove((rank, question))
                answers.append((rank, questions.Answer(question.number, self._manager.list_reported())))
        return answers

    def find_meeting(self) -> tuple[str, int, list[int]] | None:
        """Return the call in which ranks wait for each other, its number, and the waiting ranks; None if none waits."""
        here = self._list_present()
        if not here:
            return None
        return here[min(here)][1].call, self._met, sorted(here)

    def list_readers(self) -> list[int]:
        """Return the ranks that wait in `get_all_reported_checkpoints` for a report that other ranks have not made."""
        return [
            rank
            for rank, question in self._held
            if isinstance(question.about, questions.ListCheckpoints) and question.report_count > self._book.row_count
        ]

    def _is_true(self, mode: reported.CheckpointConsistencyMode | None, report_count: int) -> bool:
        if mode is None:
            return True
        if self._book.row_count < report_count:
            return False
        if mode is reported.CheckpointConsistencyMode.COMMITTED or not self._manager.list_unvalidated():
            return True
        if self._obstacle:
            raise errors.TrainingFailedError(
                f"get_all_reported_checkpoints() waits for validations, but {self._obstacle}. Ask for "
                "CheckpointConsistencyMode.COMMITTED, or give the validation fewer resources in "
                "ValidationConfig.ray_remote_kwargs."
            )
        return False

    def _settle_meeting(self) -> list[tuple[int, questions.Answer]]:
        """Answer the ranks in a meeting if all have come.

        Raises:
            TrainingFailedError: They called different functions, or a missing rank can never come.
        """
        here = self._list_present()
        if not here:
            return []
        first = min(here)
        calls = {rank: meeting.call for rank, (_, meeting) in here.items()}
        other = next((rank for rank, call in calls.items() if call != calls[first]), None)
        if other is not None:
            raise errors.TrainingFailedError(
                "Every rank must call get_preemption_info and the functions of hocket.train.collective in the same "
                f"order, but their call {self._met + 1} is {calls[first]}() in rank {first} and {calls[other]}() in "
                f"rank {other}. Call them outside of conditions on the rank."
            )
        gone = sorted(self._ended - here.keys())
        if gone:
            raise errors.TrainingFailedError(
                f"Every rank must call {calls[first]}(), but rank {gone[0]} ended after {self._met} calls of "
                f"get_preemption_info and hocket.train.collective, while rank {first} waits in call {self._met + 1}. "
                "Call it in all ranks; do not put it under `if rank == 0`."
            )
        if len(here) < self._world_size:
            self._check_reports({rank: question.report_count for rank, (question, _) in here.items()}, calls[first])
            return []
        self._met += 1
        data = here[0][1].data
        if calls[first] == questions.PREEMPTION:
            data = self._describe_preemption()
        for rank, (question, _) in here.items():
            self._held.remove((rank, question))
        return [(rank, questions.Answer(question.number, data)) for rank, (question, _) in here.items()]

    def _list_present(self) -> dict[int, tuple[questions.Question, questions.Meeting]]:
        """Return the first open meeting of each rank that waits in a meeting."""
        here: dict[int, tuple[questions.Question, questions.Meeting]] = {}
        for rank, question in self._held:
            if isinstance(question.about, questions.Meeting) and rank not in here:
                here[rank] = (question, question.about)
        return here

    def _describe_preemption(self) -> bytes:
        """Return one answer for all ranks, so that they agree."""
        if self._preemption is None:
            return pickle.dumps(None)
        self._preemption.is_asked = True
        return pickle.dumps(self._preemption.info)

    def _check_reports(self, report_counts: dict[int, int], call: str) -> None:
        """Raise if a rank waits in a meeting while another waits for the commit of a report that the first lacks."""
        for rank, count in report_counts.items():
            waiting, where = self._book.find_waiting(count), "report"
            if waiting is None:
                waiting, where = self._find_listing(count), "get_all_reported_checkpoints"
            if waiting is not None and waiting not in report_counts:
                raise errors.TrainingFailedError(
                    f"Rank {rank} waits in {call}() for rank {waiting}, which waits in {where}() for the commit of a "
                    f"report that rank {rank} has not made. Call report() and {call}() in the same order in all ranks."
                )

    def _find_listing(self, report_count: int) -> int | None:
        """Return a rank that waits in `get_all_reported_checkpoints` for more than this number of reports."""
        behind = max(report_count, self._book.row_count)
        for rank, question in self._held:
            if isinstance(question.about, questions.ListCheckpoints) and question.report_count > behind:
                return rank
        return None
