"""The history of a search's trials, read from its log, also while the search runs."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from hocket.stores import places, trust
from hocket.train.checkpoints import checkpoint as checkpoints
from hocket.train.tracking import scores
from hocket.tune import errors, log, result
from hocket.tune import trial as trials
from hocket.tune.run import results
from hocket.tune.worker import orders

ITERATION: Final = "training_iteration"


Keeps: TypeAlias = tuple[str | None, str, int | None]
"""The metric that ranks checkpoints, its order, and how many checkpoints are kept."""


@dataclass(slots=True)
class TrialHistory:
    """A trial and its reports and checkpoints so far."""

    trial: trials.Trial
    folder: str
    reports: list[dict[str, Any]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    """The number of each report. It may differ from a ``training_iteration`` that the trial itself reports."""
    saved: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """The names of the trial's checkpoints, with the reports that they belong to."""
    computed: dict[str, float] = field(default_factory=dict)
    """Seconds of work in each checkpoint."""
    error: BaseException | None = None
    text: str | None = None
    """The traceback of the error that ended the trial."""
    iteration: int = 0
    """The number of the latest report. It counts on from the source after an exploit."""
    exploited: int = 0
    """The number of reports that the trial had made when it last took over another trial's state."""
    exploits: list[result.Exploit] = field(default_factory=list)
    seconds: float = 0.0
    start: tuple[int, float] = (0, 0.0)
    keeps: Keeps = (None, "max", None)
    where: orders.Introduction = field(default_factory=orders.Introduction)

    def take(self, record: Mapping[str, Any]) -> None:
        """Update the history from a record of the log."""
        event = record["event"]
        if event == "report":
            self._report(record)
        elif event == "save":
            self._save(record["checkpoint"])
        elif event == "start":
            self._start(record)
        elif event == "process":
            self.where = orders.Introduction(record["pid"], record["host"])
        elif event == "exploit":
            self._exploit(record)
        elif event == "end":
            self.trial.status, self.trial.reason = trials.Status(record["status"]), record["reason"]
            self.error, self.text = record["cause"], record["error"]
        elif event == "pause":
            self.trial.status = trials.Status.PAUSED
        elif event in ("retry", "revive"):
            self.trial.status, self.error, self.text = trials.Status.PENDING, None, None

    def _report(self, record: Mapping[str, Any]) -> None:
        self.seconds += record["seconds"]
        self.iteration = number = self.iteration + 1
        found = results.complete(
            record["metrics"],
            self.trial,
            iteration=number,
            seconds=record["seconds"],
            total=self.seconds,
            now=record["time"],
            since_start=(number - self.start[0], self.seconds - self.start[1]),
            where=self.where,
            checkpoint=record["checkpoint"],
            done=False,
        )
        self.reports.append(found)
        self.counts.append(number)
        if record["checkpoint"] is not None:
            self._save(record["checkpoint"])

    def _save(self, name: str) -> None:
        self.saved.append((name, self.reports[-1] if self.reports else {}))
        self.computed[name] = self.seconds

    def _start(self, record: Mapping[str, Any]) -> None:
        """Forget the reports after the checkpoint that the trial goes on from: the trial makes them again."""
        self.trial.status = trials.Status.RUNNING
        self.iteration = record["iteration"]
        begin = self.exploited if record["checkpoint"] is not None else 0
        kept = [place for place, number in enumerate(self.counts) if place < begin or number <= self.iteration]
        self.reports = [self.reports[place] for place in kept]
        self.counts = [self.counts[place] for place in kept]
        self.seconds = self.computed.get(record["checkpoint"], 0.0)
        self.start = self.iteration, self.seconds
        if record["checkpoint"] is None:
            self.saved.clear()

    def _exploit(self, record: Mapping[str, Any]) -> None:
        """Continue with another trial's state and time; keep the trial's own reports."""
        self.trial.config, self.trial.experiment_tag = record["config"], record["tag"]
        self.iteration, self.exploited = record["iteration"], len(self.reports)
        taken = result.Exploit(source=record["source"], iteration=record["iteration"], config=record["config"])
        self.exploits.append(taken)
        self.seconds = record["seconds"] or 0.0
        self._save(record["checkpoint"])

    def build_result(self, experiment: Path) -> result.Result:
        """Return the trial's result for a `ResultGrid`.

        Args:
            experiment: The search's folder.
        """
        folder = experiment / self.folder
        found = {name: checkpoints.Checkpoint(folder / name) for name, _ in self.saved if (folder / name).is_dir()}
        return self._build(str(folder), found)

    def build_stored_result(self, experiment: places.Place, committed: Collection[str]) -> result.Result:
        """Return the trial's result for a `ResultGrid` of a search in a store.

        Args:
            experiment: The search's folder.
            committed: The checkpoints in the store, by path relative to `experiment`.
        """
        folder = experiment.join(self.folder)
        there = [name for name, _ in self.saved if f"{self.folder}/{name}" in committed]
        found = {name: checkpoints.build(folder.join(name).path, None, folder.join(name)) for name in there}
        return self._build(folder.path, found, folder)

    def _build(
        self, path: str, found: Mapping[str, checkpoints.Checkpoint], place: places.Place | None = None
    ) -> result.Result:
        last = dict(self.reports[-1], done=self.trial.is_finished) if self.reports else {}
        kept = [(found[name], metrics) for name, metrics in self.saved if name in found]
        attribute, order, most = self.keeps
        ranked = sorted(kept, key=lambda pair: scores.score(pair[1], attribute, order)) if attribute else kept
        return result.Result(
            trial_id=self.trial.trial_id,
            config=self.trial.config,
            metrics=last,
            checkpoint=kept[-1][0] if kept else None,
            error=self.error if self.trial.status is trials.Status.ERROR else None,
            path=path,
            _place=place,
            status=self.trial.status,
            reason=self.trial.reason,
            metrics_history=self.reports,
            best_checkpoints=ranked[-most:] if most else ranked,
            exploits=self.exploits,
        )


def read(folder: str | os.PathLike[str], prefix: str = "", opener: trust.Opener | None = None) -> list[TrialHistory]:
    """Return all trials of a search, in the order of their proposal.

    Args:
        folder: The search's folder.
        prefix: The prefix of the trials' ids. Default: that of the folder's latest search.
        opener: See `log.read`.

    Raises:
        TuneError: The folder has no search, or the log is damaged.
    """
    log.check_folder(folder)
    return build(log.read(folder, opener, log.choose(folder, prefix)))


def build(records: Iterable[Mapping[str, Any]]) -> list[TrialHistory]:
    """Return all trials in the records of a log."""
    found: dict[str, TrialHistory] = {}
    keeps: Keeps = (None, "max", None)
    for record in records:
        if record["event"] == "session" and record["keeps"] is not None:
            keeps = record["keeps"]
        if record["event"] == "trial":
            trial = trials.Trial(record["id"], record["number"], record["config"], record["tag"])
            found[record["id"]] = TrialHistory(trial, record["folder"])
        elif "id" in record:
            if record["id"] not in found:
                raise errors.TuneError(
                    f"The log of the search has a record of trial {record['id']!r}, but no record that proposes this "
                    "trial. Has a part of the log been removed?"
                )
            found[record["id"]].take(record)
    for one in found.values():
        one.keeps = keeps
    return list(found.values())
