"""The outcomes of all trials of a search, under the names that older programs use instead of `ResultGrid`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, final

from hocket import keywords
from hocket.tune import result, result_grid


@final
@keywords.guard_methods
class ExperimentAnalysis:
    """The results of a search. `hocket.tune.run` returns one.

    Args:
        experiment_checkpoint_path: The search's folder, or its `ResultGrid`.
        default_metric: The metric to compare by, unless a call names another.
        default_mode: ``"max"`` or ``"min"``.
        trust: See `ResultGrid`.
    """

    def __init__(
        self,
        experiment_checkpoint_path: str | os.PathLike[str] | result_grid.ResultGrid,
        *,
        default_metric: str | None = None,
        default_mode: str | None = None,
        trust: bool = False,
    ) -> None:
        given = experiment_checkpoint_path
        if not isinstance(given, result_grid.ResultGrid):
            given = result_grid.ResultGrid(given, default_metric, default_mode, trust=trust)
        self.results_grid: result_grid.ResultGrid = given
        self.default_metric, self.default_mode = default_metric, default_mode

    @property
    def experiment_path(self) -> str:
        """The search's folder."""
        return self.results_grid.experiment_path

    @property
    def trials(self) -> Sequence[result.Result]:
        """All trials' results."""
        return self.results_grid

    @property
    def best_trial(self) -> result.Result:
        """The trial whose last report is the best."""
        return self.get_best_trial()

    @property
    def best_config(self) -> dict[str, Any]:
        """The best trial's configuration."""
        return self.best_trial.config

    @property
    def best_result(self) -> dict[str, Any]:
        """The best trial's last report."""
        return self.best_trial.metrics

    @property
    def best_checkpoint(self) -> Any:
        """The best trial's latest checkpoint."""
        return self.best_trial.checkpoint

    @property
    def best_logdir(self) -> str:
        """The best trial's folder."""
        return self.best_trial.path

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The last report of each trial, by the trial's id."""
        return {one.trial_id: one.metrics for one in self.results_grid}

    @property
    def results_df(self) -> Any:
        """`results` as a pandas DataFrame."""
        return self.results_grid.get_dataframe().set_index("trial_id")

    @property
    def trial_dataframes(self) -> dict[str, Any]:
        """Each trial's reports as a pandas DataFrame, by the trial's id."""
        return {one.trial_id: one.metrics_dataframe for one in self.results_grid}

    @property
    def best_dataframe(self) -> Any:
        """The best trial's reports as a pandas DataFrame."""
        return self.best_trial.metrics_dataframe

    def dataframe(self, metric: str | None = None, mode: str | None = None) -> Any:
        """Return a pandas DataFrame with a row for each trial; see `ResultGrid.get_dataframe`."""
        return self.results_grid.get_dataframe(metric, mode)

    def get_best_trial(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> result.Result:
        """Return the best trial; see `ResultGrid.get_best_result`."""
        name, order = metric or self.default_metric, mode or self.default_mode
        return self.results_grid.get_best_result(name, order, scope, filter_nan_and_inf)

    def get_best_config(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> dict[str, Any]:
        """Return the best trial's configuration."""
        return self.get_best_trial(metric, mode, scope).config

    def get_best_logdir(self, metric: str | None = None, mode: str | None = None, scope: str = "last") -> str:
        """Return the best trial's folder."""
        return self.get_best_trial(metric, mode, scope).path

    def get_best_checkpoint(self, trial: result.Result, metric: str | None = None, mode: str | None = None) -> Any:
        """Return a trial's best checkpoint."""
        name, order = metric or self.default_metric, mode or self.default_mode
        return trial.checkpoint if name is None or order is None else trial.get_best_checkpoint(name, order)

    def get_last_checkpoint(
        self, trial: result.Result | None = None, metric: str | None = None, mode: str | None = None
    ) -> Any:
        """Return a trial's latest checkpoint; default: the best trial's."""
        return (trial or self.get_best_trial(metric, mode)).checkpoint

    def get_all_configs(self) -> dict[str, dict[str, Any]]:
        """Return each trial's configuration, by the trial's id."""
        return {one.trial_id: one.config for one in self.results_grid}
