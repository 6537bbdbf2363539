"""A trial: one configuration, and its state in the search."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, ClassVar


class Status(enum.StrEnum):
    """The states of a trial."""

    PENDING = "PENDING"
    """The trial is proposed, and has not begun."""
    RUNNING = "RUNNING"
    """The trial runs."""
    PAUSED = "PAUSED"
    """A scheduler has paused the trial, which later goes on from its latest checkpoint, or ends."""
    TERMINATED = "TERMINATED"
    """The trial returned, or was stopped; `Trial.reason` says which."""
    ERROR = "ERROR"
    """The trial raised, or its process died, more often than `FailureConfig.max_failures` allows."""


@dataclass(slots=True, eq=False)
class Trial:
    """One configuration of a search. Schedulers, stoppers and callbacks read it, and must not change it."""

    PENDING: ClassVar = Status.PENDING
    RUNNING: ClassVar = Status.RUNNING
    PAUSED: ClassVar = Status.PAUSED
    TERMINATED: ClassVar = Status.TERMINATED
    ERROR: ClassVar = Status.ERROR

    trial_id: str
    """The trial's id, such as ``"3f2a_00007"``."""
    number: int
    """The trial's place in the order of proposals, from 0."""
    config: dict[str, Any]
    """The function's argument. A scheduler such as `PopulationBasedTraining` may replace it."""
    experiment_tag: str = ""
    """The trial's number, and the values sampled or taken from a grid: ``"7_lr=0.1,layers=2"``."""
    status: Status = Status.PENDING
    """The trial's state."""
    reason: str = ""
    """Why the trial ended, in words."""
    last_result: dict[str, Any] = field(default_factory=dict)
    """The latest report, with the values that `Trainable` adds; empty before the first report."""
    checkpoint: str | None = None
    """The name of the latest checkpoint's folder; None if the trial has saved none."""

    path: str = ""
    """The trial's folder; created with its first file."""
    name: str = ""
    """The trial's name: the trainable's name and its id, unless `TuneConfig.trial_name_creator` makes another."""

    trainable_name: str = ""
    """The trainable's name."""

    @property
    def logdir(self) -> str:
        """`path`, under Ray's name."""
        return self.path

    @property
    def local_path(self) -> str:
        """`path`, under Ray's name."""
        return self.path

    @property
    def evaluated_params(self) -> dict[str, Any]:
        """`config`, under Ray's name."""
        return self.config

    def __str__(self) -> str:
        return self.name or self.trial_id

    @property
    def is_finished(self) -> bool:
        """Whether the trial has ended for good."""
        return self.status in (Status.TERMINATED, Status.ERROR)
