"""Reports of XGBoost and LightGBM in a trial's function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hocket import tune
from hocket.train.frameworks.boosters import reports
from hocket.tune.worker import trial_session


class TrialReports(reports.BoosterReports):
    """The reports of a boosting library to a trial's search."""

    def send(self, metrics: dict[str, Any], filename: str, save: reports.Save | None) -> None:
        """Report the metrics, with a checkpoint if `save` is given."""
        if save is None:
            tune.report(metrics)
            return
        with trial_session.get_session("report").rank.open_folder() as folder:
            save(str(Path(folder, filename)))
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))
