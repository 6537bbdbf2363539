"""Callbacks that report LightGBM's iterations."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, final

import lightgbm

from hocket.train.checkpoints import checkpoint as checkpoints
from hocket.train.frameworks.boosters import reports


class IterationReports(reports.BoosterReports):
    """A callback that reports each iteration and saves the model. For subclassing; see `reports.BoosterReports`."""

    CHECKPOINT_NAME: ClassVar[str] = "model.txt"
    """The default of `filename`."""

    @classmethod
    def get_model(cls, checkpoint: checkpoints.Checkpoint, filename: str = CHECKPOINT_NAME) -> Any:
        """Return the model, a ``lightgbm.Booster``, that a checkpoint holds."""
        with checkpoint.as_directory() as folder:
            return lightgbm.Booster(model_file=str(Path(folder, filename)))

    def __call__(self, env: Any) -> None:
        """Report an iteration. LightGBM calls this after each."""
        found: dict[str, dict[str, float]] = {}
        for data, name, value, _, *deviation in env.evaluation_result_list or ():
            named = found.setdefault(data, {})
            if deviation:
                named[f"{name}-mean"], named[f"{name}-stdv"] = value, deviation[0]
            else:
                named[name] = value
        ends = self._saves_at_end and env.iteration == env.end_iteration - 1
        saves = ends or self.is_due(env.iteration)
        self.report(reports.join(found), env.model.save_model if saves else None)


@final
class RayTrainReportCallback(reports.RankReports, IterationReports):
    """A callback that reports LightGBM's metrics after each iteration, and saves the model.

    Pass one to ``lightgbm.train(..., callbacks=[...])``, or to ``fit`` of its scikit-learn classes, in the training
    function of a `LightGBMTrainer`. All ranks report, and rank 0 saves. LightGBM evaluates each rank's model on that
    rank's rows: give all ranks all rows of a validation set
    (``dataset_config=DataConfig(datasets_to_split=["train"])``).

    Args:
        metrics: The metrics to report: a name such as ``"eval-binary_logloss"``, several, or a dict from a name in the
            report to LightGBM's name. Default: all.
        filename: The model's file name in a checkpoint's folder.
        frequency: The model is saved each time after so many iterations; 0 for never before the end.
        checkpoint_at_end: Whether the model is saved after the last requested iteration. A training that stops early
            has only the models that `frequency` saved.
        results_postprocessing_fn: Receives the chosen metrics; returns the metrics to report.

    Raises:
        TypeError: The metrics are not names, the frequency is no whole number, or the function cannot be called.
        ValueError: The file name is empty or contains a slash, or the frequency is less than 0. Later: a metric is
            missing.

    Example:
        >>> from hocket.train.lightgbm import RayTrainReportCallback
        >>> callback = RayTrainReportCallback({"loss": "eval-binary_logloss"}, frequency=10)
    """
