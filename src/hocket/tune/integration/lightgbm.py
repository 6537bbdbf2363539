"""LightGBM in a trial's function: reports of each iteration. Names are Ray's.

Importing this module imports LightGBM.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, final

from hocket.train.checkpoints import checkpoint as checkpoints
from hocket.tune.integration import booster_reports

try:
    import lightgbm
except ImportError as _error:
    raise ImportError(
        "hocket.tune.integration.lightgbm needs LightGBM, which cannot be imported. Run pip install lightgbm."
    ) from _error


@final
class TuneReportCheckpointCallback(booster_reports.BoosterReports):
    """Reports what LightGBM finds in each iteration, and saves the model.

    Pass one to ``lightgbm.train(..., callbacks=[...])``, or to ``fit`` of its scikit-learn classes.

    Args:
        metrics: What is reported: a name such as ``"eval-binary_logloss"``, several, or a dict from what the report
            calls it to LightGBM's name. Default: all.
        filename: The model's, in the folder of a checkpoint.
        frequency: After how many iterations each the model is saved; 0 for never before the end.
        checkpoint_at_end: Whether it is after the last iteration that was asked for. One that stops early has saved
            what `frequency` says.
        results_postprocessing_fn: Called with what is to be reported; returns what is. ``lightgbm.cv`` gives
            ``...-mean`` and ``...-stdv``.

    Raises:
        TypeError: The metrics are no names, or the function cannot be called.
        ValueError: The file's name is none, or the frequency is less than 0; later, there is no such metric.

    Example:
        >>> from hocket.tune.integration.lightgbm import TuneReportCheckpointCallback
        >>> callback = TuneReportCheckpointCallback({"loss": "eval-binary_logloss"}, frequency=10)
    """

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
        for data, name, value, _, *deviation in env.evaluation_result_list:
            named = found.setdefault(data, {})
            if deviation:
                named[f"{name}-mean"], named[f"{name}-stdv"] = value, deviation[0]
            else:
                named[name] = value
        ends = self._saves_at_end and env.iteration == env.end_iteration - 1
        saves = ends or self.is_due(env.iteration)
        self.report(booster_reports.join(found), env.model.save_model if saves else None)
