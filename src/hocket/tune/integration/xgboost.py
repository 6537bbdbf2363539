"""XGBoost in a trial's function: a report for each iteration. Names are Ray's.

Importing this module imports XGBoost.
"""

from __future__ import annotations

from typing import final

from hocket import extras
from hocket.tune.integration import trial_reports

with extras.explain("hocket.tune.integration.xgboost", "XGBoost", "Run pip install 'hocket[xgboost]'."):
    from hocket.train.frameworks.boosters.xgboost import callbacks


@final
class TuneReportCheckpointCallback(trial_reports.TrialReports, callbacks.IterationReports):
    """A callback that reports XGBoost's metrics of each iteration, and saves the model.

    Pass one to ``xgboost.train(..., callbacks=[...])``. With `checkpoint_at_end` it reports the last metrics again,
    with the model, because XGBoost does not say beforehand which iteration is the last.

    Args:
        metrics: The metrics to report: a name such as ``"eval-logloss"``, several, or a dict from names in the report
            to XGBoost's names. Default: all.
        filename: The model's file name in a checkpoint's folder.
        frequency: Iterations between two saves of the model; 0 for no save before the end.
        checkpoint_at_end: Whether to save the model at the end.
        results_postprocessing_fn: A function from the metrics to the metrics to report. ``xgboost.cv`` gives pairs of a
            mean and a deviation; it has no single model to save.

    Raises:
        TypeError: The metrics are not names, or the function cannot be called.
        ValueError: The file name is invalid, or the frequency is less than 0; later, a metric does not exist.

    Example:
        >>> from hocket.tune.integration.xgboost import TuneReportCheckpointCallback
        >>> callback = TuneReportCheckpointCallback({"loss": "eval-logloss"}, frequency=10)
    """
