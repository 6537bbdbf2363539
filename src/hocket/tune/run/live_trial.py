"""The search's notes on a trial that is not finished, beside the trial itself."""

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
"""The reason of a trial that its scheduler has ended, which knows of it."""


class Fate(enum.Enum):
    """The fate of a trial that was ordered to leave its function."""

    STOP = "stop"
    PAUSE = "pause"
    EXPLOIT = "exploit"


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint of a trial."""

    name: str
    """Its folder's name in the trial's folder."""
    iteration: int
    seconds: float
    """How long the trial had computed."""
    metrics: Mapping[str, Any]
    """The report that it belongs to."""


@dataclass(slots=True, eq=False)
class LiveTrial:
    """A trial that is not finished."""

    trial: trials.Trial
    name: str
    folder: str
    resources: Mapping[str, float]
    iteration: int = 0
    """How often it has reported, not counting reports after the checkpoint that it last went on from."""
    seconds: float = 0.0
    """How long it has computed."""
    start_iteration: int = 0
    start_seconds: float = 0.0
    """Where it last began or went on."""
    saved: int = 0
    """How many checkpoints it has saved."""
    checkpoints: list[SavedCheckpoint] = field(default_factory=list)
    """Those that are kept, oldest first."""
    attempt: int = 0
    """How often it has begun or gone on."""
    failures: int = 0
    fate: Fate | None = None
    reason: str = ""
    """Why it was ordered to leave."""
    introduction: orders.Introduction = field(default_factory=orders.Introduction)
    """Which process it runs in."""
    expects_save: bool = False
    """Whether it was told to save, and has not done so."""
    awaited_by: list[str] = field(default_factory=list)
    """The ids of trials that are to go on from what it saves."""
    has_metric: bool = False
    """Whether a report had the metric of the search."""

    @property
    def waits(self) -> bool:
        """Whether it can begin or go on."""
        return self.trial.status in (trials.Status.PENDING, trials.Status.PAUSED)

    @property
    def latest(self) -> SavedCheckpoint | None:
        """The checkpoint that it would go on from."""
        return self.checkpoints[-1] if self.checkpoints else None

    def rewind(self) -> None:
        """Have it be as it was at its latest checkpoint, or at its beginning."""
        latest = self.latest
        self.iteration = self.start_iteration = 0 if latest is None else latest.iteration
        self.seconds = self.start_seconds = 0.0 if latest is None else latest.seconds
        self.trial.checkpoint = None if latest is None else latest.name
        self.fate, self.reason = None, ""

    def build_assignment(self, given: settings.Settings) -> orders.Assignment:
        """Return what the trial's process gets."""
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
        """Count a report, and return it completed.

        Args:
            report: What the trial has reported.
            metric: The metric of the search.
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
