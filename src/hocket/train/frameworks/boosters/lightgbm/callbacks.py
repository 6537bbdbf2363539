"""When LightGBM's iterations are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, final

import lightgbm

from hocket.train.checkpoints import checkpoint as checkpoints
from hocket.train.frameworks.boosters import reports


class IterationReports(reports.BoosterReports):
    """Reports after each iteration, and saves the model. Meant for subclassing; see `reports.BoosterReports`."""

    CHECKPOINT_NAME: ClassVar[str] = "model.txt"
    """The default of `filename`."""

    @classmethod
    def get_model(cls, checkpoint: checkpoints.Checkpoint, filename: str = CHECKPOINT_NAME) -> Any:
        """Return the model, a ``lightgbm.Booster``, that a checkpoint holds."""
        with checkpoint.as_directory() as folder:
            return lightgbm.Booster(model_file=str(Path(folder, filename)))

    def __call__(self, env: Any) -> None:
        """Called by LightGBM after each iteration."""
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
    """Reports what LightGBM finds in each iteration, and saves the model.

    Pass one to ``lightgbm.train(..., callbacks=[...])``, or to ``fit`` of its scikit-learn classes, in the training
    function of a `LightGBMTrainer`. All ranks report, and rank 0 saves. LightGBM measures each rank's model with that
    rank's rows: give all ranks all rows of a validation set
    (``dataset_config=DataConfig(datasets_to_split=["train"])``).

    Args:
        metrics: What is reported: a name such as ``"eval-binary_logloss"``, several, or a dict from what the report
            calls it to LightGBM's name. Default: all.
        filename: The model's, in the folder of a checkpoint.
        frequency: After how many iterations each the model is saved; 0 for never before the end.
        checkpoint_at_end: Whether it is after the last iteration that was asked for. One that stops early has saved
            what `frequency` says.
        results_postprocessing_fn: Called with what is to be reported; returns what is.

    Raises:
        TypeError: The metrics are no names, the frequency is no whole number, or the function cannot be called.
        ValueError: The file's name is none, or the frequency is less than 0; later, there is no such metric.

    Example:
        >>> from hocket.train.lightgbm import RayTrainReportCallback
        >>> callback = RayTrainReportCallback({"loss": "eval-binary_logloss"}, frequency=10)
    """
