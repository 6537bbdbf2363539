"""LightGBM in a trial's function: a report for each iteration. Names are Ray's.

Importing this module imports LightGBM.
"""

from __future__ import annotations

from typing import final

from hocket import extras
from hocket.tune.integration import trial_reports

with extras.explain("hocket.tune.integration.lightgbm", "LightGBM", "Run pip install 'hocket[lightgbm]'."):
    from hocket.train.frameworks.boosters.lightgbm import callbacks


@final
class TuneReportCheckpointCallback(trial_reports.TrialReports, callbacks.IterationReports):
    """A callback that reports LightGBM's metrics of each iteration, and saves the model.

    Pass one to ``lightgbm.train(..., callbacks=[...])``, or to ``fit`` of its scikit-learn classes.

    Args:
        metrics: The metrics to report: a name such as ``"eval-binary_logloss"``, several, or a dict from names in the
            report to LightGBM's names. Default: all.
        filename: The model's file name in a checkpoint's folder.
        frequency: Iterations between two saves of the model; 0 for no save before the end.
        checkpoint_at_end: Whether to save after the last requested iteration. Early stopping skips this save.
        results_postprocessing_fn: A function that changes the metrics to report. ``cv`` has ``...-mean``, ``...-stdv``.

    Raises:
        TypeError: The metrics are not names, or the function cannot be called.
        ValueError: The file name is invalid, or the frequency is less than 0; later, a metric does not exist.

    Example:
        >>> from hocket.tune.integration.lightgbm import TuneReportCheckpointCallback
        >>> callback = TuneReportCheckpointCallback({"loss": "eval-binary_logloss"}, frequency=10)
    """
