"""The search's notes on an unfinished trial."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hocket.train.tracking import plain
from hocket.tune import trial as trials
from hocket.tune.run import results, settings
from hocket.tune.worker import orders

BY_SCHEDULER: Final = "its scheduler"
"""The reason of an end that the scheduler itself decided. The scheduler then needs no notice."""


class Fate(enum.Enum):
    """The next step of a trial that was ordered to leave its function."""

    STOP = "stop"
    PAUSE = "pause"
    EXPLOIT = "exploit"


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint that a trial has saved."""

    name: str
    """The name of its folder in the trial's folder."""
    iteration: int
    seconds: float
    """Seconds that the trial had computed."""
    metrics: Mapping[str, Any]
    """The report that the checkpoint belongs to."""


@dataclass(slots=True, eq=False)
class LiveTrial:
    """An unfinished trial."""

    trial: trials.Trial
    name: str
    folder: str
    resources: Mapping[str, float]
    iteration: int = 0
    """The number of reports, without those after the checkpoint that the trial last went on from."""
    seconds: float = 0.0
    """Seconds that the trial has computed."""
    start_iteration: int = 0
    start_seconds: float = 0.0
    """The iteration and seconds at which the trial last began or went on."""
    saved: int = 0
    """The number of checkpoints that the trial has saved."""
    checkpoints: list[SavedCheckpoint] = field(default_factory=list)
    """The kept checkpoints, oldest first."""
    attempt: int = 0
    """How often the trial has begun or gone on."""
    failures: int = 0
    fate: Fate | None = None
    reason: str = ""
    """Why the trial was ordered to leave."""
    introduction: orders.Introduction = field(default_factory=orders.Introduction)
    """The trial's process."""
    expects_save: bool = False
    """Whether the trial has an order to save that it has not carried out."""
    awaited_by: list[str] = field(default_factory=list)
    """The ids of trials that go on from the next checkpoint of this one."""
    has_metric: bool = False
    """Whether a report had the search's metric."""

    @property
    def waits(self) -> bool:
        """Whether the trial can begin or go on."""
        return self.trial.status in (trials.Status.PENDING, trials.Status.PAUSED)

    @property
    def latest(self) -> SavedCheckpoint | None:
        """The checkpoint that the trial would go on from."""
        return self.checkpoints[-1] if self.checkpoints else None

    def rewind(self) -> None:
        """Reset the trial to its latest checkpoint, or to its beginning."""
        latest = self.latest
        self.iteration = self.start_iteration = 0 if latest is None else latest.iteration
        self.seconds = self.start_seconds = 0.0 if latest is None else latest.seconds
        self.trial.checkpoint = None if latest is None else latest.name
        self.fate, self.reason = None, ""

    def build_assignment(self, given: settings.Settings) -> orders.Assignment:
        """Return the assignment for the trial's process."""
        return orders.Assignment(
            trial_id=self.trial.trial_id,
            name=self.name,
            config=self.trial.config,
            experiment=str(given.folder),
            folder=self.folder,
            checkpoint=self.trial.checkpoint,
            saved=self.saved,
            iteration=self.iteration,
            seconds=self.seconds,
            resources=self.resources,
            frequency=given.frequency,
            saves_at_end=given.saves_at_end,
            key=given.key,
            trusts=given.trusts,
            output_files=given.run.output_files,
        )

    def complete(self, report: orders.Report, metric: str | None) -> dict[str, Any]:
        """Count a report, and return its metrics, completed.

        Args:
            report: The trial's report.
            metric: The search's metric.
        """
        self.iteration += 1
        self.seconds += report.seconds
        if metric is not None and not self.has_metric:
            self.has_metric = plain.get_metric(report.metrics, metric) is not None
        return results.complete(
            report.metrics,
            self.trial,
            iteration=self.iteration,
            seconds=report.seconds,
            total=self.seconds,
            now=report.time,
            since_start=(self.iteration - self.start_iteration, self.seconds - self.start_seconds),
            where=self.introduction,
            checkpoint=report.checkpoint,
            done=report.is_last,
        )
