"""Callbacks that report XGBoost's iterations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, final

import xgboost

from hocket.train.checkpoints import checkpoint as checkpoints
from hocket.train.frameworks.boosters import reports


class IterationReports(reports.BoosterReports, xgboost.callback.TrainingCallback):  # type: ignore[misc,unused-ignore]  # XGBoost is not type-checked
    """A callback that reports each iteration and saves the model. For subclassing; see `reports.BoosterReports`."""

    CHECKPOINT_NAME: ClassVar[str] = "model.ubj"
    """The default of `filename`."""

    _latest: Mapping[str, Any] = {}
    _has_news = False
    """Whether the model has grown since it was saved, or since the training began."""

    @classmethod
    def get_model(cls, checkpoint: checkpoints.Checkpoint, filename: str = CHECKPOINT_NAME) -> Any:
        """Return the model, an ``xgboost.Booster``, that a checkpoint holds."""
        booster = xgboost.Booster()
        with checkpoint.as_directory() as folder:
            booster.load_model(str(Path(folder, filename)))
        return booster

    def before_training(self, model: object) -> Any:
        """Note that the model has not grown yet. XGBoost calls this."""
        self._has_news = False
        return model

    def after_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Mapping[str, object]]) -> bool:
        """Report an iteration. XGBoost calls this."""
        found = reports.join(evals_log)
        self._latest = {name: values[-1] for name, values in found.items()}
        saves = self.is_due(epoch) and hasattr(model, "save_model")
        self._has_news = not saves
        self.report(self._latest, model.save_model if saves else None)
        return False

    def after_training(self, model: object) -> Any:
        """Report the last metrics once more with the model, unless it is saved. XGBoost calls this."""
        if self._saves_at_end and self._has_news and hasattr(model, "save_model"):
            self.report(self._latest, model.save_model)
        return model


@final
class RayTrainReportCallback(reports.RankReports, IterationReports):
    """A callback that reports XGBoost's metrics after each iteration, and saves the model.

    Pass one to ``xgboost.train(..., callbacks=[...])`` in the training function of an `XGBoostTrainer`. All ranks
    report, and rank 0 saves. XGBoost does not say beforehand which iteration is the last, so with `checkpoint_at_end`
    the last metrics are reported once more, with the model. A training without an iteration reports nothing.

    Args:
        metrics: The metrics to report: a name such as ``"eval-logloss"``, several, or a dict from a name in the report
            to XGBoost's name. Default: all.
        filename: The model's file name in a checkpoint's folder.
        frequency: The model is saved each time after so many iterations; 0 for never before the end.
        checkpoint_at_end: Whether the model is saved at the end.
        results_postprocessing_fn: Receives the chosen metrics; returns the metrics to report.

    Raises:
        TypeError: The metrics are no names, the frequency is no whole number, or the function cannot be called.
        ValueError: The file's name is none, or the frequency is less than 0; later, there is no such metric.

    Example:
        >>> from hocket.train.xgboost import RayTrainReportCallback
        >>> callback = RayTrainReportCallback({"loss": "eval-logloss"}, frequency=10)
    """
