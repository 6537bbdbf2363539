"""XGBoost in a trial's function: reports of each iteration. Names are Ray's.

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
    """Reports what XGBoost finds in each iteration, and saves the model.

    Pass one to ``xgboost.train(..., callbacks=[...])``. With `checkpoint_at_end` the last metrics are reported once
    more, with the model: XGBoost does not say beforehand which iteration is the last.

    Args:
        metrics: What is reported: a name such as ``"eval-logloss"``, several, or a dict from what the report calls it
            to XGBoost's name. Default: all.
        filename: The model's, in the folder of a checkpoint.
        frequency: After how many iterations each the model is saved; 0 for never before the end.
        checkpoint_at_end: Whether it is at the end.
        results_postprocessing_fn: Called with what is to be reported; returns what is. ``xgboost.cv`` gives pairs of a
            mean and a deviation; it has no one model to save.

    Raises:
        TypeError: The metrics are no names, or the function cannot be called.
        ValueError: The file's name is none, or the frequency is less than 0; later, there is no such metric.

    Example:
        >>> from hocket.tune.integration.xgboost import TuneReportCheckpointCallback
        >>> callback = TuneReportCheckpointCallback({"loss": "eval-logloss"}, frequency=10)
    """
