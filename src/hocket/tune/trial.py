"""A trial: one configuration, and what became of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, ClassVar


class Status(enum.StrEnum):
    """Where a trial is in its life."""

    PENDING = "PENDING"
    """It was proposed, and has not begun."""
    RUNNING = "RUNNING"
    """It computes."""
    PAUSED = "PAUSED"
    """A scheduler has set it aside. It goes on from its latest checkpoint, or is ended."""
    TERMINATED = "TERMINATED"
    """It returned, or was stopped; `Trial.reason` says which."""
    ERROR = "ERROR"
    """It raised, or its process died, more often than `FailureConfig.max_failures` allows."""


@dataclass(slots=True, eq=False)
class Trial:
    """One configuration of a search. Schedulers, stoppers and callbacks read it, and change nothing in it."""

    PENDING: ClassVar = Status.PENDING
    RUNNING: ClassVar = Status.RUNNING
    PAUSED: ClassVar = Status.PAUSED
    TERMINATED: ClassVar = Status.TERMINATED
    ERROR: ClassVar = Status.ERROR

    trial_id: str
    """What it is known by, such as ``"3f2a_00007"``."""
    number: int
    """Its place in the order in which trials were proposed, from 0."""
    config: dict[str, Any]
    """What the function is called with. A scheduler such as `PopulationBasedTraining` may replace it."""
    experiment_tag: str = ""
    """Its number, and the values that were drawn or taken from a grid: ``"7_lr=0.1,layers=2"``."""
    status: Status = Status.PENDING
    """Where it is in its life."""
    reason: str = ""
    """Why it ended, in words."""
    last_result: dict[str, Any] = field(default_factory=dict)
    """The latest report, with what `Trainable` fills in; empty before the first."""
    checkpoint: str | None = None
    """The name of its latest checkpoint's folder; None if it has saved none."""

    path: str = ""
    """Its folder; made when something is written there."""
    name: str = ""
    """How it is called: the trainable's name and its id, unless `TuneConfig.trial_name_creator` says otherwise."""

    trainable_name: str = ""
    """The name of what is searched over."""

    @property
    def logdir(self) -> str:
        """As `path`."""
        return self.path

    @property
    def local_path(self) -> str:
        """As `path`."""
        return self.path

    @property
    def evaluated_params(self) -> dict[str, Any]:
        """As `config`."""
        return self.config

    def __str__(self) -> str:
        return self.name or self.trial_id

    @property
    def is_finished(self) -> bool:
        """Whether it will not compute again."""
        return self.status in (Status.TERMINATED, Status.ERROR)
