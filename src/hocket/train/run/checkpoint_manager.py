"""Which checkpoints a run has: commits new ones, finds those of an earlier run, removes what need not be kept."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hocket.train import configs, errors, validation
from hocket.train.checkpoints import checkpoint as checkpoint_module
from hocket.train.checkpoints import reported, storage
from hocket.train.rank import reports
from hocket.train.tracking import plain

DAMAGED_SUFFIX = ".damaged"
"""What the name of a damaged checkpoint gets when another one needs its name."""

_OWN_NAME = re.compile(r"checkpoint_\d{6,}")
"""What a checkpoint is called unless the user says otherwise."""


@dataclass(frozen=True, kw_only=True)
class Committed:
    """A checkpoint of the run."""

    number: int
    """Its place in the order of commits, from 0."""
    checkpoint: checkpoint_module.Checkpoint
    metrics: reports.Metrics
    """Rank 0's metrics of the same report; its validation adds to them."""
    status: reported.ReportedCheckpointStatus = reported.ReportedCheckpointStatus.COMMITTED
    """How far its validation is."""
    task: validation.ValidationTaskConfig | None = None
    """How it is validated, if its report asked for it."""
    positions: reports.Positions = field(default_factory=dict)
    """Where the ranks' loaders were. They are at the same place in all ranks, so one rank's are kept."""


class CheckpointManager:
    """Keeps a run's committed checkpoints. Used by one thread.

    Args:
        run_storage: Where the run is kept.
        config: What is kept.
        validation_config: How checkpoints are validated whose report asks for it.
    """

    def __init__(
        self,
        run_storage: storage.Storage,
        config: configs.CheckpointConfig,
        validation_config: validation.ValidationConfig | None = None,
    ) -> None:
        self._storage = run_storage
        self._config = config
        self._validation = validation_config
        self._damaged: set[str] = set()
        """The names of folders that were checkpoints."""
        self.committed = self._find_committed(run_storage.path)
        """Oldest first."""
        self.next_number = self.committed[-1].number + 1 if self.committed else 0
        """That of the next commit."""

    @property
    def latest(self) -> checkpoint_module.Checkpoint | None:
        """The newest one: where a new attempt starts from."""
        return self.committed[-1].checkpoint if self.committed else None

    def _find_committed(self, run_path: Path) -> list[Committed]:
        """Return the whole checkpoints in a run's folder; warn of damaged ones."""
        found: list[Committed] = []
        for folder in run_path.iterdir() if run_path.is_dir() else ():
            if folder.name.endswith(DAMAGED_SUFFIX):
                continue
            if not (folder / storage.MANIFEST_NAME).is_file():
                if _OWN_NAME.fullmatch(folder.name) and folder.is_dir():
                    self._note_damage(folder, "it has no manifest, so it was not committed, or has lost files")
                continue
            manifest = storage.get_optional_manifest(folder)
            if manifest is None:
                self._note_damage(folder, "its manifest cannot be read")
                continue
            damage = storage.find_damage(folder, manifest)
            if damage is not None:
                self._note_damage(folder, damage)
                continue
            status, task = _parse(manifest.get("validation"))
            found.append(
                Committed(
                    number=manifest["number"],
                    checkpoint=checkpoint_module.Checkpoint(folder),
                    metrics=manifest["metrics"],
                    status=status,
                    task=task,
                    positions=manifest.get("positions", {}),  # earlier versions wrote none
                )
            )
        return sorted(found, key=lambda record: record.number)

    def is_up_to(self, number: int) -> bool:
        """Tell whether the newest one has at least this number."""
        return bool(self.committed) and self.committed[-1].number >= number

    @property
    def latest_positions(self) -> reports.Positions:
        """Where the loaders were when the newest one was reported."""
        return self.committed[-1].positions if self.committed else {}

    def commit(self, row: Sequence[reports.Report], metrics: reports.Metrics) -> checkpoint_module.Checkpoint:
        """Commit the parts that the ranks gave with one report, of which there is at least one."""
        asked = next((report.validation for report in row if report.validation), False)
        task = self._validation.merge(asked) if asked and self._validation is not None else None
        status = (
            reported.ReportedCheckpointStatus.PENDING_VALIDATION
            if task
            else reported.ReportedCheckpointStatus.COMMITTED
        )
        score = self._get_score(metrics, is_final=task is None)
        number = self.next_number
        positions = _choose_positions(row)
        manifest = {
            "number": number,
            "score": score,
            "metrics": metrics,
            "positions": positions,
            "validation": _describe(status, task),
        }
        checkpoint = self._commit_files(row, number, manifest)
        self.committed.append(
            Committed(
                number=number, checkpoint=checkpoint, metrics=metrics, status=status, task=task, positions=positions
            )
        )
        self.next_number += 1
        self._remove_surplus()
        return checkpoint

    def _commit_files(
        self, row: Sequence[reports.Report], number: int, manifest: dict[str, Any]
    ) -> checkpoint_module.Checkpoint:
        parts = [report.staged for report in row if isinstance(report.staged, storage.Staged)]
        adopted = sorted({report.staged.path for report in row if isinstance(report.staged, storage.Adopted)})
        if adopted:
            if parts or len(adopted) > 1:
                raise errors.TrainingFailedError(
                    "All ranks that give a checkpoint with one report must give the same folder if they upload it "
                    f"themselves, but {adopted} were "
                    f"given{', and other ranks left the upload to report()' if parts else ''}. Pass the same "
                    "checkpoint_upload_mode and checkpoint_dir_name in all ranks."
                )
            storage.adopt(Path(adopted[0]), manifest)
            return checkpoint_module.Checkpoint(adopted[0])
        name = next((report.dir_name for report in row if report.dir_name), f"checkpoint_{number:06d}")
        self._clear_name(name)
        self._damaged.discard(name)
        disputed = storage.commit(self._storage, name, parts, manifest)
        if disputed:
            warnings.warn(
                f"Several ranks gave different files of the same name for checkpoint {name!r}; the lowest rank's were "
                f"kept: {sorted(set(disputed))}. Save them in rank 0 only, or put the rank into the name.",
                stacklevel=2,
            )
        return checkpoint_module.Checkpoint(self._storage.path / name)

    def pass_over_damaged(self) -> None:
        """Look whether the newest checkpoint is still what was committed; if not, warn, and go back to the one
        before, and so on."""
        while self.committed:
            folder = Path(self.committed[-1].checkpoint.path)
            manifest = storage.get_optional_manifest(folder)
            damage = "its manifest cannot be read" if manifest is None else storage.find_damage(folder, manifest)
            if damage is None:
                return
            self._note_damage(folder, damage)
            self.committed.pop()

    def _note_damage(self, folder: Path, damage: str) -> None:
        self._damaged.add(folder.name)
        warnings.warn(
            f"The checkpoint {str(folder)!r} is damaged and not used: {damage}. The one before it is used, if there "
            "is one.",
            stacklevel=3,
        )

    def _clear_name(self, name: str) -> None:
        """Move a damaged checkpoint aside, if it has a name that is needed."""
        folder = self._storage.path / name
        if name in self._damaged and folder.exists():
            aside = self._storage.path / f"{name}{DAMAGED_SUFFIX}"
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)

    def settle_validation(
        self, number: int, status: reported.ReportedCheckpointStatus, metrics: reports.Metrics | None = None
    ) -> None:
        """Note how the validation of a checkpoint ended, in memory and in its manifest."""
        place = next((place for place, record in enumerate(self.committed) if record.number == number), None)
        if place is None:  # it was damaged meanwhile
            return
        record = self.committed[place]
        record.metrics.update(metrics or {})  # in place: the history and the result hold the same dict
        self.committed[place] = dataclasses.replace(record, status=status)
        folder = Path(record.checkpoint.path)
        manifest = storage.get_optional_manifest(folder)
        if manifest is not None:
            score = self._get_score(record.metrics, is_final=False)
            changes = {"score": score, "metrics": record.metrics, "validation": _describe(status, record.task)}
            storage.replace_manifest(folder, {**manifest, **changes})
        self._remove_surplus()

    def list_reported(self) -> list[reported.ReportedCheckpoint]:
        """Return the committed checkpoints that are kept, oldest first."""
        return [
            reported.ReportedCheckpoint(record.checkpoint, dict(record.metrics), record.status)
            for record in self.committed
        ]

    def list_unvalidated(self) -> list[Committed]:
        """Return the checkpoints whose validation has not ended, oldest first."""
        return [
            record for record in self.committed if record.status is reported.ReportedCheckpointStatus.PENDING_VALIDATION
        ]

    def _get_score(self, metrics: reports.Metrics, *, is_final: bool) -> float | None:
        key = self._config.checkpoint_score_attribute
        if key is None:
            return None
        score = plain.get_metric(metrics, key)
        if score is None and not is_final:  # its validation may find it
            return None
        if isinstance(score, bool) or not isinstance(score, int | float):
            raise ValueError(  # noqa: TRY004 (the value is the user's metrics, not the argument of a call)
                f"checkpoint_score_attribute is {key!r}, which must be a number in the metrics of each report with a "
                f"checkpoint, but rank 0 reported {sorted(metrics)} with {key!r}={score!r}. Report it, or name "
                "another key."
            )
        return float(score)

    def sort_by_score(self) -> list[Committed]:
        """Return the committed checkpoints, best first; without a score, the newest first."""
        key, order = self._config.checkpoint_score_attribute, self._config.checkpoint_score_order
        if key is None:
            return self.committed[::-1]
        return sort_by_metric(self.committed, key, order)

    def _remove_surplus(self) -> None:
        keep = self._config.num_to_keep
        if keep is None:
            return
        latest = self.committed[-1]
        kept = self.sort_by_score()[:keep]
        for record in list(self.committed):
            is_pending = record.status is reported.ReportedCheckpointStatus.PENDING_VALIDATION
            if record not in kept and record is not latest and not is_pending:
                self.committed.remove(record)
                storage.remove(self._storage, Path(record.checkpoint.path))


def _choose_positions(row: Sequence[reports.Report]) -> reports.Positions:
    """Return the first rank's positions; warn if another rank is elsewhere."""
    given = [(rank, report.positions) for rank, report in enumerate(row) if report.positions]
    if not given:
        return {}
    (first, chosen), *others = given
    for rank, positions in others:
        for name in positions.keys() & chosen.keys():
            if positions[name] != chosen[name]:
                warnings.warn(
                    f"The ranks' loaders should be at the same place when they report, but loader {name!r} is at "
                    f"{chosen[name]!r} in rank {first} and at {positions[name]!r} in rank {rank}, so rows are read "
                    "twice or never. Give all ranks the same data and the same seed, take the same steps in all, and "
                    "prepare loaders in the same order, or name them.",
                    stacklevel=2,
                )
                return chosen
    return chosen


def sort_by_metric(committed: Sequence[Committed], key: str, order: str) -> list[Committed]:
    """Return checkpoints best first; those without a number for the key, and NaN, come last, and of equals the newer
    first."""

    def rank(record: Committed) -> tuple[float, int]:
        value = plain.get_metric(record.metrics, key)
        if not isinstance(value, int | float) or math.isnan(value):
            return math.inf, -record.number
        return (-value if order == "max" else value), -record.number

    return sorted(committed, key=rank)


def _describe(
    status: reported.ReportedCheckpointStatus, task: validation.ValidationTaskConfig | None
) -> dict[str, object] | None:
    """Return what the manifest says of a checkpoint's validation."""
    if task is None:
        return None
    return {"status": status.value, "fn_kwargs": task.fn_kwargs, "timeout_s": task.timeout_s}


def _parse(
    described: dict[str, Any] | None,
) -> tuple[reported.ReportedCheckpointStatus, validation.ValidationTaskConfig | None]:
    if described is None:
        return reported.ReportedCheckpointStatus.COMMITTED, None
    task = validation.ValidationTaskConfig(described["fn_kwargs"], described["timeout_s"])
    return reported.ReportedCheckpointStatus(described["status"]), task
