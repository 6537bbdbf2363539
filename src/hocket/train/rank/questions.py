"""Questions of a rank to the controller while the training function runs and waits for the answer.

Questions travel among the rank's reports, so that the controller knows what the rank had reported before. The answer
comes as a call of the rank's actor. This is the rank's side; the controller's is `hocket.train.run.question_resolver`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hocket.collective import turns
from hocket.train.checkpoints import reported

PREEMPTION = "get_preemption_info"
"""The meeting that is answered with who was told to end, in place of what rank 0 brought."""


@dataclass(frozen=True, slots=True)
class ListCheckpoints:
    """Which checkpoints are there?"""

    waits_for: reported.CheckpointConsistencyMode | None
    """What has to be true before the answer; None for an answer at once."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Is every rank here? Answered with what rank 0 brought."""

    call: str
    """Which function was called: all ranks must call the same."""
    data: bytes | None
    """What this rank brought, pickled."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """Take this, from a rank of `Trainer`. Answered when it is dealt with, with whether the driver wants no more."""

    call: str
    """Which function was called: ``"report"`` or ``"save_checkpoint"``."""
    blob: bytes | None
    """The dict that it was given, pickled; of ``save_checkpoint`` rank 0's only."""
    score: float | None
    """The value of `CheckpointStrategy.checkpoint_score_attribute` in what is saved, if it is to be kept in a file."""


About = ListCheckpoints | Meeting | HandOver


@dataclass(frozen=True, slots=True)
class Question:
    """One question of one rank."""

    number: int
    """How many the rank had asked before it."""
    report_count: int
    """How many reports it had made before it."""
    about: About


@dataclass(frozen=True, slots=True)
class Answer:
    """The controller's answer to a question."""

    number: int
    """The question's."""
    value: Any


class Inquiry:
    """The questions of a rank. Safe to use from several threads."""

    def __init__(self, put: Callable[[Question], None]) -> None:
        self._put = put
        self._count = 0
        self._open: set[int] = set()
        self._answers: dict[int, object] = {}
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def ask(self, about: About, report_count: int, timeout_s: float | None = None) -> Any:
        """Ask, and wait for the answer."""
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
        """Pass an answer to who waits for it, if somebody still does."""
        with self._changed:
            if answer.number in self._open:
                self._answers[answer.number] = answer.value
                self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Say that no more answers will come, because of an error."""
        with self._changed:
            self._error = error
            self._changed.notify_all()
