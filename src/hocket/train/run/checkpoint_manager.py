"""The manager of a run's checkpoints: it commits new ones, finds an earlier run's, and removes surplus ones."""

from __future__ import annotations

import dataclasses
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hocket.train import configs, errors, validation
from hocket.train.checkpoints import checkpoint as checkpoint_module
from hocket.train.checkpoints import kept, replica, reported, storage
from hocket.train.rank import reports
from hocket.train.tracking import plain, scores

_MOST_NUMBER: Final = 1 << 53
"""The limit of a credible commit number in a manifest."""


@dataclass(frozen=True, kw_only=True)
class Committed:
    """A checkpoint of the run."""

    number: int
    """The checkpoint's place in the order of commits, from 0."""
    name: str
    """The name of the checkpoint's folder in the run's folder."""
    checkpoint: checkpoint_module.Checkpoint
    """A handle on the folder on this machine; for a run in a store, on the store once the files here are removed."""
    metrics: reports.Metrics
    """Rank 0's metrics of the same report. The validation adds its metrics."""
    status: reported.ReportedCheckpointStatus = reported.ReportedCheckpointStatus.COMMITTED
    """The state of the validation."""
    task: validation.ValidationTaskConfig | None = None
    """The settings of the validation, if the report requested one."""
    positions: reports.Positions = field(default_factory=dict)
    """The positions of the ranks' loaders. They are the same in all ranks, so one rank's are kept."""
    is_own: bool = True
    """Whether the folder still has the name of its commit. A folder with another name is the user's, and stays."""


class CheckpointManager:
    """The owner of a run's committed checkpoints. Used by one thread.

    Args:
        run_storage: The run's folder on this machine.
        config: The rule for which checkpoints are kept.
        validation_config: How to validate a checkpoint when its report requests that.
        run_replica: The run's folder in a store, if the run is kept in one.
    """

    def __init__(
        self,
        run_storage: storage.Storage,
        config: configs.CheckpointConfig,
        validation_config: validation.ValidationConfig | None = None,
        run_replica: replica.Replica | None = None,
    ) -> None:
        self._storage = run_storage
        self._replica = run_replica
        self._config = config
        self._validation = validation_config
        self._damaged: set[str] = set()
        """The names of folders with damaged checkpoints."""
        self.committed = self._find_committed()
        """The committed checkpoints, oldest first."""
        self.next_number = self.committed[-1].number + 1 if self.committed else 0
        """The number of the next commit."""

    @property
    def latest(self) -> checkpoint_module.Checkpoint | None:
        """The newest checkpoint, from which a new attempt starts; None if there is none."""
        return self.committed[-1].checkpoint if self.committed else None

    @property
    def latest_name(self) -> str:
        """The name of the newest checkpoint's folder; empty if there is none."""
        return self.committed[-1].name if self.committed else ""

    def publish(self, record: Committed) -> checkpoint_module.Checkpoint:
        """Return the handle on a checkpoint that stays valid after the run."""
        return record.checkpoint if self._replica is None else self._replica.get_handle(record.name)

    def _find_committed(self) -> list[Committed]:
        """Return the whole checkpoints in a run's folder; warn of damaged ones."""
        found: list[Committed] = []
        listed = kept.list_local(self._storage.path) if self._replica is None else self._replica.list_kept()
        for one in listed:
            committed = _read_committed(one) if one.damage is None else None
            if committed is None:
                if not storage.is_own(one.name, one.manifest):  # a copy by the user, perhaps with changes
                    continue
                self._note_damage(one.name, one.shown, one.damage or "its manifest is not that of a run's checkpoint")
            else:
                found.append(committed)
        newest = max((record.number for record in found if record.is_own), default=-1)
        # A user's copy counts only if it is newer than all own checkpoints: then the user has renamed the original.
        return sorted(
            (record for record in found if record.is_own or record.number > newest), key=lambda record: record.number
        )

    def is_up_to(self, number: int) -> bool:
        """Return whether the newest checkpoint has at least this number."""
        return bool(self.committed) and self.committed[-1].number >= number

    @property
    def latest_positions(self) -> reports.Positions:
        """The loaders' positions at the report of the newest checkpoint."""
        return self.committed[-1].positions if self.committed else {}

    def commit(self, row: Sequence[reports.Report], metrics: reports.Metrics) -> checkpoint_module.Checkpoint:
        """Commit the ranks' parts of one report. At least one rank has given a part."""
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
                number=number,
                name=Path(checkpoint.origin).name,
                checkpoint=checkpoint,
                metrics=metrics,
                status=status,
                task=task,
                positions=positions,
            )
        )
        self.next_number += 1
        if self._replica is not None:
            self._replica.commit(self.committed[-1].name)
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
                    "Ranks that upload a report's checkpoint themselves must all give the same folder, but gave "
                    f"{adopted}{', and other ranks left the upload to report()' if parts else ''}. Pass the same "
                    "checkpoint_upload_mode and checkpoint_dir_name in all ranks."
                )
            self._check_free(Path(adopted[0]).name)
            storage.adopt(Path(adopted[0]), manifest)
            return checkpoint_module.Checkpoint(adopted[0])
        name = next((report.dir_name for report in row if report.dir_name), f"checkpoint_{number:06d}")
        self._check_free(name)
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

    def _check_free(self, name: str) -> None:
        """Raise if a checkpoint in the store has the name. (`storage.commit` sees only names on this machine.)"""
        if self._replica is not None and any(record.name == name for record in self.committed):
            raise FileExistsError(
                f"The checkpoint {self._replica.place.join(name).shown!r} exists already. Give each report() another "
                "checkpoint_dir_name, or leave it out."
            )

    def pass_over_damaged(self) -> None:
        """Drop the newest checkpoints that are damaged, with a warning for each, until one is whole.

        In a store, this downloads the files of the whole one."""
        while self.committed:
            record = self.committed[-1]
            damage = self._find_damage(record)
            if damage is None:
                return
            self._note_damage(record.name, self.publish(record).origin, damage)
            self.committed.pop()

    def bring_newest(self) -> None:
        """Download the newest whole checkpoint of a run in a store to the run's folder on this machine.

        Only this finds damage in the files; for a run on this machine, listing the checkpoints finds it."""
        self.pass_over_damaged()
        self.next_number = self.committed[-1].number + 1 if self.committed else 0

    def _find_damage(self, record: Committed) -> str | None:
        folder = self._storage.path / record.name
        manifest = storage.get_optional_manifest(folder)
        damage = "its manifest cannot be read" if manifest is None else storage.find_damage(folder, manifest)
        if damage is None or self._replica is None:
            return damage
        damage = self._replica.bring(record.name)
        if damage is None:
            self._replace(record, checkpoint=checkpoint_module.Checkpoint(folder))
        return damage

    def _replace(self, record: Committed, **changes: Any) -> None:
        self.committed[self.committed.index(record)] = dataclasses.replace(record, **changes)

    def _note_damage(self, name: str, shown: str, damage: str) -> None:
        self._damaged.add(name)
        warnings.warn(
            f"The checkpoint {shown!r} is damaged and not used: {damage}. The one before it is used, if there is one.",
            stacklevel=3,
        )

    def _clear_name(self, name: str) -> None:
        """Move a damaged checkpoint aside if its name is needed."""
        if name not in self._damaged:
            return
        folder = self._storage.path / name
        aside = f"{name}{kept.DAMAGED_SUFFIX}"
        if folder.exists():
            shutil.rmtree(self._storage.path / aside, ignore_errors=True)
            folder.rename(self._storage.path / aside)
        if self._replica is not None:
            self._replica.move_aside(name, aside)

    def settle_validation(
        self, number: int, status: reported.ReportedCheckpointStatus, metrics: reports.Metrics | None = None
    ) -> None:
        """Note how the validation of a checkpoint ended, in memory and in its manifest."""
        place = next((place for place, record in enumerate(self.committed) if record.number == number), None)
        if place is None:  # the checkpoint was damaged, and dropped meanwhile
            return
        record = self.committed[place]
        record.metrics.update(metrics or {})  # in place: the history and the result hold the same dict
        self.committed[place] = dataclasses.replace(record, status=status)
        folder = self._storage.path / record.name
        manifest = storage.get_optional_manifest(folder)
        is_here = manifest is not None
        if manifest is None and self._replica is not None:
            manifest = self._replica.read_manifest(record.name)
        if manifest is not None:
            score = self._get_score(record.metrics, is_final=False)
            changes = {"score": score, "metrics": record.metrics, "validation": _describe(status, record.task)}
            if is_here:
                storage.replace_manifest(folder, {**manifest, **changes})
            if self._replica is not None:
                self._replica.replace_manifest(record.name, {**manifest, **changes})
        self._remove_surplus()

    def list_reported(self) -> list[reported.ReportedCheckpoint]:
        """Return the committed checkpoints that are kept, oldest first."""
        return [
            reported.ReportedCheckpoint(record.checkpoint, dict(record.metrics), record.status)
            for record in self.committed
        ]

    def list_unvalidated(self) -> list[Committed]:
        """Return the checkpoints with an unfinished validation, oldest first.

        There are none if this run does not validate, even if an earlier run of the name did."""
        return [record for record in self.committed if self._is_unvalidated(record)]

    def _is_unvalidated(self, record: Committed) -> bool:
        is_pending = record.status is reported.ReportedCheckpointStatus.PENDING_VALIDATION
        return is_pending and self._validation is not None

    def _get_score(self, metrics: reports.Metrics, *, is_final: bool) -> float | None:
        key = self._config.checkpoint_score_attribute
        if key is None:
            return None
        score = plain.get_metric(metrics, key)
        if score is None and not is_final:  # the validation may bring the score
            return None
        if isinstance(score, bool) or not isinstance(score, int | float):
            raise ValueError(
                f"checkpoint_score_attribute is {key!r}, which must be a number in the metrics of each report with a "
                f"checkpoint, but rank 0 reported {sorted(metrics)} with {key!r}={score!r}. Report it, or name "
                "another key."
            )
        return float(score)

    def sort_by_score(self) -> list[Committed]:
        """Return the committed checkpoints, best first; without a score, the newest first."""
        return sort_by_metric(
            self.committed, self._config.checkpoint_score_attribute, self._config.checkpoint_score_order
        )

    def _remove_surplus(self) -> None:
        self._drop_copies()
        config = self._config
        kept = scores.choose_kept(
            [record.metrics for record in self.committed],
            config.num_to_keep,
            config.checkpoint_score_attribute,
            config.checkpoint_score_order,
        )
        for place, record in enumerate(list(self.committed)):
            if place not in kept and not self._is_unvalidated(record):
                self.committed.remove(record)
                if not record.is_own:
                    continue
                storage.remove(self._storage, self._storage.path / record.name)
                if self._replica is not None:
                    self._replica.remove(record.name)

    def _drop_copies(self) -> None:
        """Remove local files that the store has, so that the disk for temporary files need not hold a whole run.

        The newest two checkpoints stay, because ranks may read them."""
        for record in self.committed[:-2] if self._replica is not None else ():
            if record.checkpoint.place is None and not self._is_unvalidated(record):
                self._replace(record, checkpoint=self.publish(record))
                storage.remove(self._storage, self._storage.path / record.name)


def _choose_positions(row: Sequence[reports.Report]) -> reports.Positions:
    """Return the positions of the first rank that has some; warn if another rank's differ."""
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


def sort_by_metric(committed: Sequence[Committed], key: str | None, order: str) -> list[Committed]:
    """Return checkpoints best first, given oldest first; see `scores.sort_best_first`."""
    return [committed[place] for place in scores.sort_best_first([one.metrics for one in committed], key, order)]


def _describe(
    status: reported.ReportedCheckpointStatus, task: validation.ValidationTaskConfig | None
) -> dict[str, object] | None:
    """Return the manifest's entry for a checkpoint's validation."""
    if task is None:
        return None
    return {"status": status.value, "fn_kwargs": task.fn_kwargs, "timeout_s": task.timeout_s}


def _read_committed(one: kept.Kept) -> Committed | None:
    """Return the record of a whole checkpoint; None if its manifest is not that of a run's checkpoint."""
    number, metrics = one.manifest.get("number"), one.manifest.get("metrics")
    positions = one.manifest.get("positions", {})  # earlier versions wrote none
    dicts = [metrics, positions, *positions.values()] if isinstance(positions, dict) else [positions]
    if type(number) is not int or not 0 <= number < _MOST_NUMBER or not all(isinstance(part, dict) for part in dicts):
        return None
    try:
        status, task = _parse(one.manifest.get("validation"))
    except (ValueError, TypeError, LookupError):
        return None
    return Committed(
        number=number,
        name=one.name,
        checkpoint=one.checkpoint,
        metrics=one.manifest["metrics"],
        status=status,
        task=task,
        positions=positions,
        is_own=storage.is_own(one.name, one.manifest),
    )


def _parse(
    described: dict[str, Any] | None,
) -> tuple[reported.ReportedCheckpointStatus, validation.ValidationTaskConfig | None]:
    if described is None:
        return reported.ReportedCheckpointStatus.COMMITTED, None
    task = validation.ValidationTaskConfig(described["fn_kwargs"], described["timeout_s"])
    return reported.ReportedCheckpointStatus(described["status"]), task
