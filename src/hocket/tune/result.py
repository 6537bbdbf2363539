"""The outcome of one trial."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Final, final

from hocket import extras
from hocket.stores import places
from hocket.train.checkpoints import checkpoint as checkpoints
from hocket.train.tracking import plain
from hocket.train.tracking import values as flat_values
from hocket.tune import trial as trials
from hocket.tune.run import results as reports

SHOULD_CHECKPOINT: Final = reports.SHOULD_CHECKPOINT
"""The key of a report with which a trial requests a checkpoint; see `reports.SHOULD_CHECKPOINT`."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Exploit:
    """A takeover: a trial goes on from another trial's checkpoint, as in population based training."""

    source: str
    """The id of the trial that saved the checkpoint."""
    iteration: int
    """The ``training_iteration`` of that checkpoint."""
    config: Mapping[str, Any]
    """The trial's configuration from then on."""


@final
@dataclass(frozen=True)
class Result:
    """The outcome of one trial, from the search's log."""

    metrics: dict[str, Any]
    """The trial's last report; empty if it made none."""
    checkpoint: checkpoints.Checkpoint | None
    """The trial's latest checkpoint."""
    error: BaseException | None
    """The error that made the trial fail."""
    path: str
    """The trial's folder, a path in `filesystem`."""
    _: KW_ONLY
    trial_id: str
    config: dict[str, Any]
    """The trial's configuration at its end."""
    status: trials.Status
    """The trial's last state."""
    reason: str
    """Why the trial ended, in words."""
    metrics_history: Sequence[dict[str, Any]] = field(repr=False, default=())
    """All reports of the trial. A step that the trial repeated after going back to a checkpoint counts once."""
    best_checkpoints: Sequence[tuple[checkpoints.Checkpoint, Mapping[str, Any]]] = field(repr=False, default=())
    """The trial's kept checkpoints with the reports that they belong to. The last is the best by
    `CheckpointConfig.checkpoint_score_attribute`, or the latest if that is not set."""
    exploits: Sequence[Exploit] = field(repr=False, default=())
    """The trial's takeovers of other trials' checkpoints, in order."""
    name: str = field(repr=False, default="")
    """The trial's name. Only `run_experiments` sets it, and `trainable_name`."""
    trainable_name: str = field(repr=False, default="")
    _place: places.Place | None = field(repr=False, default=None)
    """The trial's folder, if it is in a store."""

    def __str__(self) -> str:
        return self.name or repr(self)

    def has_checkpoint(self) -> bool:
        """Return whether a checkpoint of the trial is kept."""
        return self.checkpoint is not None

    @property
    def filesystem(self) -> Any:
        """The file system of `path`, as a pyarrow file system.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        return (self._place or places.find_place(self.path, None, "Result.filesystem")).filesystem

    @property
    def metrics_dataframe(self) -> Any:
        """`metrics_history` as a pandas DataFrame, with a row for each report.

        Raises:
            ImportError: pandas is not installed.
        """
        return build_frame([dict(flat_values.flatten(one)) for one in self.metrics_history])

    def get_best_checkpoint(self, metric: str, mode: str) -> checkpoints.Checkpoint | None:
        """Return the kept checkpoint with the best value of a metric; None if there is none.

        Args:
            metric: A key of the metrics; nested ones with ``/``.
            mode: ``"max"`` or ``"min"``.

        Raises:
            ValueError: The mode is neither, or no checkpoint's report has the metric.
        """
        if mode not in ("max", "min"):
            raise ValueError(f"mode must be 'max' or 'min', but received {mode!r}. Write mode='min' for a loss.")
        scored = [
            (value, handle)
            for handle, metrics in self.best_checkpoints
            if isinstance(value := plain.get_metric(metrics, metric), int | float) and not math.isnan(value)
        ]
        if not scored:
            if not self.best_checkpoints:
                return None
            raise ValueError(
                f"No checkpoint was reported with the metric {metric!r}. The last checkpoint has the metrics "
                f"{sorted(self.best_checkpoints[-1][1])}."
            )
        return (max if mode == "max" else min)(scored, key=lambda one: one[0])[1]

    @property
    def last_result(self) -> dict[str, Any]:
        """`metrics`, under the name of programs before `ResultGrid`."""
        return self.metrics

    @property
    def evaluated_params(self) -> dict[str, Any]:
        """`config`, under Ray's name."""
        return self.config

    @property
    def logdir(self) -> str:
        """`path`, under Ray's name."""
        return self.path

    local_path = logdir

    @property
    def metric_analysis(self) -> dict[str, dict[str, float]]:
        """The maximum, minimum, mean and last value of each number that the trial reported, by its name."""
        found: dict[str, list[float]] = {}
        for report in self.metrics_history:
            for name, value in flat_values.flatten(report):
                if isinstance(value, int | float) and not isinstance(value, bool):
                    found.setdefault(name, []).append(value)
        return {
            name: {"max": max(all_), "min": min(all_), "avg": sum(all_) / len(all_), "last": all_[-1]}
            for name, all_ in found.items()
        }

    @property
    def log_dir(self) -> Path:
        """`path`, as a ``Path``."""
        return Path(self.path)


def build_frame(rows: Sequence[Mapping[str, object]]) -> object:
    """Return rows as a pandas DataFrame."""
    remedy = "Run pip install pandas, or use Result.metrics_history and ResultGrid, which are lists."
    found: object = extras.load("pandas", "A DataFrame of results", "pandas", remedy).DataFrame(list(rows))
    return found
