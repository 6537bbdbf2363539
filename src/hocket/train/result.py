"""What `fit` returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hocket.train import checkpoint as checkpoint_module
from hocket.train import checkpoint_manager


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished run."""

    metrics: dict[str, Any] | None
    """Rank 0's metrics of the last report; None if there was none."""
    metrics_history: list[dict[str, Any]]
    """Rank 0's metrics of every report, in order. Steps that were repeated after a failure are in it once."""
    checkpoint: checkpoint_module.Checkpoint | None
    """The latest checkpoint; None if none was saved."""
    path: str
    """The run's folder."""
    best_checkpoints: list[tuple[checkpoint_module.Checkpoint, dict[str, Any]]]
    """The checkpoints that are kept, best first (`CheckpointConfig`), each with rank 0's metrics of its report."""
    return_value: Any = None
    """What the training function returned in rank 0."""
    error: Exception | None = None
    """Always None: `fit` raises. Here for programs written for Ray."""
    _committed: tuple[checkpoint_manager.Committed, ...] = field(default=(), repr=False)

    @property
    def metrics_dataframe(self) -> Any:
        """`metrics_history` as a pandas DataFrame, a row a report.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas as pd  # type: ignore[import-untyped,unused-ignore]  # optional, and may lack its stubs
        except ImportError as error:
            raise ImportError(
                "Result.metrics_dataframe needs pandas, which is not installed. Run pip install pandas, or use "
                "Result.metrics_history, a list of dicts."
            ) from error
        return pd.DataFrame(self.metrics_history)

    def get_best_checkpoint(self, metric: str, mode: str) -> checkpoint_module.Checkpoint | None:
        """Return the kept checkpoint with the best value of a metric; None if there is no checkpoint.

        Args:
            metric: A key of the metrics, such as ``"loss"`` or ``"val/loss"``.
            mode: ``"max"`` or ``"min"``.

        Raises:
            ValueError: The mode is neither, or no checkpoint's metrics have the key.
        """
        if mode not in ("max", "min"):
            raise ValueError(f"mode must be 'max' or 'min', but received {mode!r}. Write mode='min' for a loss.")
        if not self._committed:
            return None
        with_metric = [
            record for record in self._committed if checkpoint_manager.get_metric(record.metrics, metric) is not None
        ]
        if not with_metric:
            raise ValueError(
                f"No checkpoint was reported with the metric {metric!r}. The last one has {sorted(self._committed[-1].metrics)}."
            )
        return checkpoint_manager.sort_by_metric(with_metric, metric, mode)[0].checkpoint
