"""A run in MLflow, by MLflow's client, so that the program's own use of MLflow is not disturbed."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hocket import extras
from hocket.train.tracking import values

DEFAULT_EXPERIMENT = "0"
"""The id of MLflow's default experiment."""

_MOST_METRICS = 1000  # in a request; MLflow refuses more
_LONGEST_PARAMETER = 6000  # characters; MLflow refuses longer ones


def import_client() -> object:
    """Return MLflow's client module.

    Raises:
        MissingExtraError: MLflow is missing.
    """
    extras.load("mlflow.tracking", "Logging to MLflow", "mlflow", "Run pip install 'hocket[mlflow]'.")
    return importlib.import_module("mlflow")


class MLflowRun:
    """One run in MLflow. `close` must be called.

    Args:
        mlflow: The package.
        tracking_uri: The server or folder. Default: the value of MLFLOW_TRACKING_URI, or MLflow's own default.
        experiment_id: The id of an existing experiment.
        experiment_name: The experiment's name, if the id is not given. A missing experiment is created.
        run_name: The run's name.
        tags: The run's tags.
        parameters: The training's configuration.

    Raises:
        ValueError: There is no experiment of that id.
    """

    def __init__(
        self,
        mlflow: Any,
        *,
        tracking_uri: str | None,
        experiment_id: str | None,
        experiment_name: str | None,
        run_name: str | None,
        tags: Mapping[str, object] | None,
        parameters: Mapping[str, object],
    ) -> None:
        self._entities = mlflow.entities
        self._client = mlflow.tracking.MlflowClient(tracking_uri=tracking_uri)
        experiment = self._find_experiment(experiment_id, experiment_name)
        run = self._client.create_run(experiment, tags=dict(tags or {}), run_name=run_name)
        self.run_id: str = run.info.run_id
        for key, value in values.flatten(parameters):
            self._client.log_param(self.run_id, key, str(value)[:_LONGEST_PARAMETER])

    def _find_experiment(self, experiment_id: str | None, name: str | None) -> str:
        if experiment_id is not None:
            if self._client.get_experiment(experiment_id) is None:
                raise ValueError(
                    f"MLflow has no experiment with the id {experiment_id!r}. Give experiment_name=..., which creates "
                    "one."
                )
            return experiment_id
        if name is None:
            return DEFAULT_EXPERIMENT
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found is not None else self._client.create_experiment(name))

    def log(self, metrics: Mapping[str, object], step: int) -> None:
        """Log the numbers among metrics, in one request if they are not too many."""
        now = int(time.time() * 1000)
        numbers = values.list_numbers(metrics).items()
        logged = [self._entities.Metric(key, number, now, step) for key, number in numbers]
        for start in range(0, len(logged), _MOST_METRICS):
            self._client.log_batch(self.run_id, metrics=logged[start : start + _MOST_METRICS])

    def save_files(self, folder: str | Path) -> None:
        """Copy a folder's files to the run."""
        self._client.log_artifacts(self.run_id, str(folder))

    def close(self, *, has_failed: bool) -> None:
        """End the run."""
        self._client.set_terminated(self.run_id, status="FAILED" if has_failed else "FINISHED")
