"""LightGBM in a trial's function: reports of each iteration. Names are Ray's.

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
