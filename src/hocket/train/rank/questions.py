"""Questions of a rank to the controller; the training function waits for the answer.

Questions travel among the rank's reports, so the controller knows which reports came before. The answer comes as a
call of the rank's actor. This is the rank's side; the controller's is `hocket.train.run.question_resolver`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hocket.collective import turns
from hocket.train.checkpoints import reported

PREEMPTION = "get_preemption_info"
"""The meeting with the ranks that got SIGTERM as its answer, in place of rank 0's value."""


@dataclass(frozen=True, slots=True)
class ListCheckpoints:
    """The question which checkpoints the run has."""

    waits_for: reported.CheckpointConsistencyMode | None
    """The state that must be reached before the answer; None for an answer at once."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """The question whether all ranks have come. The answer is rank 0's value."""

    call: str
    """The function that was called; all ranks must call the same one."""
    data: bytes | None
    """This rank's value, pickled; None in ranks other than 0."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """A report or checkpoint from a rank of `Trainer`. The answer comes after its processing: whether the driver wants
    no more."""

    call: str
    """The function that was called: ``"report"`` or ``"save_checkpoint"``."""
    blob: bytes | None
    """The function's dict, pickled; for ``save_checkpoint`` only that of rank 0."""
    score: float | None
    """The checkpoint's value of `CheckpointStrategy.checkpoint_score_attribute`, if it is to be kept in a file."""


About = ListCheckpoints | Meeting | HandOver


@dataclass(frozen=True, slots=True)
class Question:
    """One question of one rank."""

    number: int
    """The number of the rank's earlier questions."""
    report_count: int
    """The number of the rank's earlier reports."""
    about: About


@dataclass(frozen=True, slots=True)
class Answer:
    """The controller's answer to a question."""

    number: int
    """The question's number."""
    value: Any


class Inquiry:
    """The open questions of a rank. Safe to use from several threads."""

    def __init__(self, put: Callable[[Question], None]) -> None:
        self._put = put
        self._count = 0
        self._open: set[int] = set()
        self._answers: dict[int, object] = {}
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def ask(self, about: About, report_count: int, timeout_s: float | None = None) -> Any:
        """Ask a question, and return the answer.

        Raises:
            TimeoutError: No answer came in time.
        """
        with self._changed:
            number = self._count
            self._count += 1
            self._open.add(number)
        self._put(Question(number, report_count, about))  # may answer at once, in this thread
        with self._changed:
            turns.wait_for(
                self._changed,
                lambda: number in self._answers or self._error is not None,
                f"waits in {'get_all_reported_checkpoints' if isinstance(about, ListCheckpoints) else about.call}()",
                timeout_s,
                needs_rank=True,
            )
            self._open.discard(number)
            if number in self._answers:
                return self._answers.pop(number)
            if self._error is not None:
                raise self._error
            raise TimeoutError

    def take(self, answer: Answer) -> None:
        """Pass an answer to the thread that waits for it, if it still waits."""
        with self._changed:
            if answer.number in self._open:
                self._answers[answer.number] = answer.value
                self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Raise an error in all waits for answers, now and later."""
        with self._changed:
            self._error = error
            self._changed.notify_all()
