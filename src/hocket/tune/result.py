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
"""See there."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Exploit:
    """A trial went on as another one, as population based training has it."""

    source: str
    """The id of the trial whose checkpoint it took."""
    iteration: int
    """The other one's ``training_iteration`` there."""
    config: Mapping[str, Any]
    """With what it went on."""


@final
@dataclass(frozen=True)
class Result:
    """The outcome of one trial, as the search's log has it."""

    metrics: dict[str, Any]
    """Its last report; empty if it made none."""
    checkpoint: checkpoints.Checkpoint | None
    """Its latest checkpoint."""
    error: BaseException | None
    """What it failed with."""
    path: str
    """Its folder, as `filesystem` has it."""
    _: KW_ONLY
    trial_id: str
    config: dict[str, Any]
    """The configuration that it ended with."""
    status: trials.Status
    """How it was left."""
    reason: str
    """Why it ended, in words."""
    metrics_history: Sequence[dict[str, Any]] = field(repr=False, default=())
    """All of its reports. Those after the checkpoint that it went on from count once, as they were made again."""
    best_checkpoints: Sequence[tuple[checkpoints.Checkpoint, Mapping[str, Any]]] = field(repr=False, default=())
    """Its best checkpoints, as many as are kept, with the reports that they belong to: the best last, by
    `CheckpointConfig.checkpoint_score_attribute`, or the latest if that says nothing."""
    exploits: Sequence[Exploit] = field(repr=False, default=())
    """When it went on as another trial, in order."""
    name: str = field(repr=False, default="")
    """What the trial was called. `run_experiments` fills it in, and `trainable_name`."""
    trainable_name: str = field(repr=False, default="")
    _place: places.Place | None = field(repr=False, default=None)
    """Where its folder is, if that is a store."""

    def __str__(self) -> str:
        return self.name or repr(self)

    def has_checkpoint(self) -> bool:
        """Return whether it has saved a checkpoint that is kept."""
        return self.checkpoint is not None

    @property
    def filesystem(self) -> Any:
        """The file system of `path`, as one of pyarrow's.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        return (self._place or places.find_place(self.path, None, "Result.filesystem")).filesystem

    @property
    def metrics_dataframe(self) -> Any:
        """`metrics_history` as a pandas DataFrame, a row a report.

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
                f"No checkpoint was reported with the metric {metric!r}. The last one has "
                f"{sorted(self.best_checkpoints[-1][1])}."
            )
        return (max if mode == "max" else min)(scored, key=lambda one: one[0])[1]

    @property
    def last_result(self) -> dict[str, Any]:
        """As `metrics`; programs before `ResultGrid` call it so."""
        return self.metrics

    @property
    def evaluated_params(self) -> dict[str, Any]:
        """As `config`."""
        return self.config

    @property
    def logdir(self) -> str:
        """As `path`."""
        return self.path

    local_path = logdir

    @property
    def metric_analysis(self) -> dict[str, dict[str, float]]:
        """The largest, least, average and last value of each number that the trial reported, by its name."""
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
        """As `path`."""
        return Path(self.path)


def build_frame(rows: Sequence[Mapping[str, object]]) -> object:
    """Return rows as a pandas DataFrame."""
    remedy = "Run pip install pandas, or use Result.metrics_history and ResultGrid, which are lists."
    found: object = extras.load("pandas", "A DataFrame of results", "pandas", remedy).DataFrame(list(rows))
    return found
