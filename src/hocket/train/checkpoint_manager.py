"""Which checkpoints a run has: commits new ones, finds those of an earlier run, removes what need not be kept."""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hocket.train import checkpoint as checkpoint_module
from hocket.train import configs, reports, storage


@dataclass(frozen=True, kw_only=True)
class Committed:
    """A checkpoint of the run."""

    number: int
    """Its place in the order of commits, from 0."""
    checkpoint: checkpoint_module.Checkpoint
    metrics: dict[str, Any]
    """Rank 0's metrics of the same report."""
    positions: reports.Positions = field(default_factory=dict)
    """Where the ranks' loaders were. They are at the same place in all ranks, so one rank's are kept."""


class CheckpointManager:
    """Keeps a run's committed checkpoints. Used by one thread.

    Args:
        run_storage: Where the run is kept.
        config: What is kept.
    """

    def __init__(self, run_storage: storage.Storage, config: configs.CheckpointConfig) -> None:
        self._storage = run_storage
        self._config = config
        self.committed = _find_committed(run_storage.path)
        """Oldest first."""
        self._next_number = self.committed[-1].number + 1 if self.committed else 0

    @property
    def latest(self) -> checkpoint_module.Checkpoint | None:
        """The newest one: where a new attempt starts from."""
        return self.committed[-1].checkpoint if self.committed else None

    @property
    def latest_positions(self) -> reports.Positions:
        """Where the loaders were when the newest one was reported."""
        return self.committed[-1].positions if self.committed else {}

    def commit(self, row: Sequence[reports.Report], metrics: dict[str, Any]) -> checkpoint_module.Checkpoint:
        """Commit the parts that the ranks gave with one report, of which there is at least one."""
        score = self._get_score(metrics)
        number = self._next_number
        name = next((report.dir_name for report in row if report.dir_name), f"checkpoint_{number:06d}")
        parts = [report.staged for report in row if isinstance(report.staged, storage.Staged)]
        positions = _choose_positions(row)
        manifest = {"number": number, "score": score, "metrics": metrics, "positions": positions}
        disputed = storage.commit(self._storage, name, parts, manifest)
        if disputed:
            warnings.warn(
                f"Several ranks gave different files of the same name for checkpoint {name!r}; the lowest rank's were kept: "
                f"{sorted(set(disputed))}. Save them in rank 0 only, or put the rank into the name.",
                stacklevel=2,
            )
        checkpoint = checkpoint_module.Checkpoint(self._storage.path / name)
        self.committed.append(Committed(number=number, checkpoint=checkpoint, metrics=metrics, positions=positions))
        self._next_number += 1
        self._remove_surplus()
        return checkpoint

    def _get_score(self, metrics: dict[str, Any]) -> float | None:
        key = self._config.checkpoint_score_attribute
        if key is None:
            return None
        score = get_metric(metrics, key)
        if isinstance(score, bool) or not isinstance(score, int | float):
            raise ValueError(  # noqa: TRY004 (the value is the user's metrics, not the argument of a call)
                f"checkpoint_score_attribute is {key!r}, which must be a number in the metrics of each report with a checkpoint, but "
                f"rank 0 reported {sorted(metrics)} with {key!r}={score!r}. Report it, or name another key."
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
            if record not in kept and record is not latest:
                self.committed.remove(record)
                shutil.rmtree(record.checkpoint.path, ignore_errors=True)


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
                    f"The ranks' loaders should be at the same place when they report, but loader {name!r} is at {chosen[name]!r} in rank {first} and "
                    f"at {positions[name]!r} in rank {rank}, so rows are read twice or never. Give all ranks the same data and the same seed, take "
                    "the same steps in all, and prepare loaders in the same order, or name them.",
                    stacklevel=2,
                )
                return chosen
    return chosen


def get_metric(metrics: dict[str, Any], key: str) -> Any:
    """Return the value of a key, which may be a path such as ``"a/b"``; None if it is not there."""
    if key in metrics:
        return metrics[key]
    value: Any = metrics
    for part in key.split("/"):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return value


def sort_by_metric(committed: Sequence[Committed], key: str, order: str) -> list[Committed]:
    """Return checkpoints best first; those without a number for the key, and NaN, come last, and of equals the newer first."""

    def rank(record: Committed) -> tuple[float, int]:
        value = get_metric(record.metrics, key)
        if not isinstance(value, int | float) or math.isnan(value):
            return math.inf, -record.number
        return (-value if order == "max" else value), -record.number

    return sorted(committed, key=rank)


def _find_committed(run_path: Path) -> list[Committed]:
    """Return the whole checkpoints in a run's folder; warn of damaged ones."""
    found: list[Committed] = []
    for folder in run_path.iterdir() if run_path.is_dir() else ():
        manifest = storage.get_optional_manifest(folder)
        if manifest is None:
            continue
        damage = storage.find_damage(folder, manifest)
        if damage is not None:
            warnings.warn(f"The checkpoint {str(folder)!r} is damaged and not used: {damage}.", stacklevel=2)
            continue
        checkpoint = checkpoint_module.Checkpoint(folder)
        found.append(
            Committed(
                number=manifest["number"],
                checkpoint=checkpoint,
                metrics=manifest["metrics"],
                positions=manifest.get("positions", {}),  # earlier versions wrote none
            )
        )
    return sorted(found, key=lambda record: record.number)
