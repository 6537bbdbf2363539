"""The outcomes of all trials of a search."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, final, overload

from hocket import keywords
from hocket._base import texts
from hocket.stores import places
from hocket.stores import trust as trust_module
from hocket.train.tracking import plain, scores
from hocket.train.tracking import values as flat_values
from hocket.tune import checks, errors, history, log, stored
from hocket.tune import result as results
from hocket.tune import trial as trials
from hocket.tune.run import results as reports
from hocket.tune.shown import plots, tables

_SCOPES: Final = ("last", "all", "avg", "last-5-avg", "last-10-avg")


@final
@keywords.guard_methods
class ResultGrid(Sequence[results.Result]):
    """The results of a search, in the order in which its trials were proposed. `Tuner.fit` returns one.

    The first access reads the search's log.

    Args:
        folder: The search's folder, on this machine or in a store.
        metric: The metric to compare by, unless a call names another.
        mode: ``"max"`` or ``"min"``.
        prefix: The prefix of the trials' ids. Default: that of the folder's latest search.
        trust: Whether to unpickle the log's values, which runs code, even if other users may write to the folder.

    Example:
        >>> from hocket import tune
        >>> tuner = tune.Tuner(
        ...     lambda config: {"loss": (config["x"] - 2) ** 2},
        ...     param_space={"x": tune.grid_search([0, 1, 2])},
        ...     tune_config=tune.TuneConfig(metric="loss", mode="min"),
        ...     run_config=tune.RunConfig(verbose=0),
        ... )
        >>> results = tuner.fit()
        >>> len(results), results.get_best_result().config, results.errors
        (3, {'x': 2}, [])
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | places.Place,
        metric: str | None = None,
        mode: str | None = None,
        prefix: str = "",
        *,
        trust: bool = False,
    ) -> None:
        checks.check_flag("trust", trust)
        found = folder if isinstance(folder, places.Place) else places.locate(folder, None, "ResultGrid()")
        self._folder = found if isinstance(found, places.Place) else Path(found)
        self._metric, self._mode, self._prefix, self._trust = metric, mode, prefix, trust

    @functools.cached_property
    def _results(self) -> list[results.Result]:
        if isinstance(self._folder, places.Place):
            committed = stored.list_committed(self._folder)
            with stored.brought(self._folder, log.NAME, log.name_earlier(self._prefix)) as folder:
                found = self._read(folder, self._folder)
                return [one.build_stored_result(self._folder, committed) for one in found]
        home = self._folder
        return [one.build_result(home) for one in self._read(home, home / log.choose(home, self._prefix))]

    def _read(self, folder: Path, source: Path | places.Place) -> list[history.TrialHistory]:
        opener = trust_module.Opener(source, "ResultGrid()", trust=self._trust)
        return history.read(folder, self._prefix, opener)

    def __len__(self) -> int:
        return len(self._results)

    @overload
    def __getitem__(self, index: int) -> results.Result: ...
    @overload
    def __getitem__(self, index: slice) -> list[results.Result]: ...
    def __getitem__(self, index: int | slice) -> results.Result | list[results.Result]:
        return self._results[index]

    def __iter__(self) -> Iterator[results.Result]:
        return iter(self._results)

    @property
    def experiment_path(self) -> str:
        """The search's folder, a path in `filesystem`."""
        return self._folder.path if isinstance(self._folder, places.Place) else str(self._folder)

    @property
    def filesystem(self) -> Any:
        """The file system of `experiment_path`, as a pyarrow file system.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        folder = self._folder
        found = folder if isinstance(folder, places.Place) else places.find_place(folder, None, "ResultGrid.filesystem")
        return found.filesystem

    @property
    def errors(self) -> list[BaseException]:
        """The errors of failed trials, in the order of the trials."""
        return [one.error for one in self._results if one.error is not None]

    @property
    def num_errors(self) -> int:
        """The number of failed trials."""
        return sum(one.status is trials.Status.ERROR for one in self._results)

    @property
    def num_terminated(self) -> int:
        """The number of trials that ended without an error."""
        return sum(one.status is trials.Status.TERMINATED for one in self._results)

    def get_best_result(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> results.Result:
        """Return the trial with the best value of a metric.

        Args:
            metric: The metric, nested ones with ``/``. Default: the search's. A single trial needs none.
            mode: ``"max"`` or ``"min"``. Default: the search's.
            scope: The value of a trial that counts: the ``"last"``, the best of ``"all"``, or a mean: ``"avg"``,
                ``"last-5-avg"``, ``"last-10-avg"``.
            filter_nan_and_inf: Whether to skip trials whose value is NaN or infinite.

        Raises:
            ValueError: No metric or mode is known, or the scope is none of these.
            TuneError: No trial has the metric.
        """
        metric, mode = metric or self._metric, mode or self._mode
        if len(self._results) == 1 and metric is None:
            return self._results[0]
        score = _find_scope(scope)
        name, sign = _check_metric(metric, mode)
        values = [(sign * value, one) for one in self._results if (value := _score(one, name, sign, score)) is not None]
        scored = [(value, one) for value, one in values if not filter_nan_and_inf or math.isfinite(value)]
        if not scored:
            raise errors.TuneError(self._describe_missing(name, bool(values)))
        return max(scored, key=lambda pair: -math.inf if math.isnan(pair[0]) else pair[0])[1]

    def _describe_missing(self, metric: str, is_there: bool) -> str:
        if is_there:
            return (
                f"No trial has a finite value of {metric!r}. Pass filter_nan_and_inf=False to accept values that are "
                "NaN or infinite."
            )
        names = {name for one in self._results for name, _ in flat_values.flatten(one.metrics)}
        found = reports.list_reported(names)
        if not names:
            failed = next((one.reason for one in self._results if one.error is not None), "")
            why = f" The first to fail: {failed}." if failed else ""
            return (
                f"No trial has reported anything, so there is no best trial by {metric!r}.{why}{self._suggest_grid()}"
            )
        values = [one.metrics[metric] for one in self._results if metric in one.metrics]
        if values:
            return (
                f"No trial has reported {metric!r} as a number; one of its values is {texts.safe_repr(values[0], 80)}. "
                f"Report a number.{self._suggest_grid()}"
            )
        return f"No trial has reported the metric {metric!r}; the reported metrics are {found}. Name one of these."

    def _suggest_grid(self) -> str:
        """Return advice, after a space, for a list that the space has as one value; empty if there is no list."""
        configs = (flat_values.flatten(one.config) for one in self._results)
        lists = ((name, value) for config in configs for name, value in config if isinstance(value, list | tuple))
        name, value = next(lists, ("", None))
        shown = texts.safe_repr(value, 80)
        advice = f"write {name!r}: tune.grid_search({shown}) or tune.choice({shown})"
        return (
            f" {name!r} is a list, and a list in param_space is one value: to try its items, {advice}." if name else ""
        )

    def get_dataframe(self, filter_metric: str | None = None, filter_mode: str | None = None) -> Any:
        """Return a pandas DataFrame with a row for each trial: its last report, and ``config/...`` columns.

        Args:
            filter_metric: If given, a trial's row is its report with the best value of this metric.
            filter_mode: ``"max"`` or ``"min"``.

        Raises:
            ImportError: pandas is not installed.
            ValueError: One of the two is missing.
        """
        rows = []
        for one in self._results:
            metrics = one.metrics
            if filter_metric is not None or filter_mode is not None:
                name, _ = _check_metric(filter_metric, filter_mode)
                metrics = _find_best_report(one, name, str(filter_mode)) or {}
            row = {**metrics, "config": one.config, "logdir": Path(one.path).name}
            rows.append({"trial_id": one.trial_id, **dict(flat_values.flatten(row))})
        return results.build_frame(rows)

    def plot(self, kind: str = "history", metric: str | None = None, mode: str | None = None) -> Any:
        """Return a matplotlib figure. A notebook shows it; its ``savefig`` writes it.

        Args:
            kind: ``"history"``: each trial's last value, and the best so far; ``"curves"``: all reports;
                ``"parallel"``: each trial as a line over its configuration; ``"slices"``: the value over each
                hyperparameter; ``"importance"``: the weights of `get_importances`; ``"lineage"``: the takeovers of a
                population, over ``training_iteration``.
            metric: The metric to draw. Default: the search's.
            mode: ``"max"`` or ``"min"``. Default: the search's.

        Raises:
            ValueError: The kind is none of these, no metric is known, or no trial has it.
            MissingExtraError: matplotlib is not installed; or Optuna, which finds importances.
        """
        name, _ = _check_metric(metric or self._metric, mode or self._mode)
        return plots.draw(self._results, kind, name, str(mode or self._mode))

    def report(self, metric: str | None = None, mode: str | None = None, most: int = 10) -> str:
        """Return the results as a table: the best trials first, then the number of trials by outcome.

        Args:
            metric: The metric to sort by. Default: the search's.
            mode: ``"max"`` or ``"min"``. Default: the search's.
            most: The most trials in the table.

        Raises:
            ValueError: No metric or mode is known.
        """
        name, _ = _check_metric(metric or self._metric, mode or self._mode)
        return tables.write_text(self._results, name, str(mode or self._mode), most)

    def get_importances(self, metric: str | None = None, mode: str | None = None) -> dict[str, float]:
        """Return the importance of each hyperparameter, the largest first; their sum is 1.

        Optuna computes PED-ANOVA (Watanabe and others, 2023): how far the values of the best trials are from those of
        all. Trials without a finite value, and hyperparameters that some trials lack, do not count.

        Args:
            metric: The metric that the hyperparameters affect. Default: the search's.
            mode: ``"max"`` or ``"min"``. Default: the search's.

        Raises:
            ValueError: No metric or mode is known, or fewer than two trials have it.
            MissingExtraError: Optuna is not installed.
        """
        name, _ = _check_metric(metric or self._metric, mode or self._mode)
        return plots.compute_importances(self._results, name, str(mode or self._mode))

    def _repr_html_(self) -> str:
        return tables.write_html(self._results, self._metric, self._mode, 10)

    def __repr__(self) -> str:
        return f"ResultGrid({self.experiment_path!r}, {len(self)} trials, {self.num_errors} failed)"


def _check_metric(metric: str | None, mode: str | None) -> tuple[str, float]:
    if metric is not None and not isinstance(metric, str):
        raise TypeError(f"metric must be a metric's name, but received {metric!r}. Write metric='loss'.")
    if metric is None:
        raise ValueError(
            "No metric is given, and TuneConfig has none. Write get_best_result(metric='loss', mode='min')."
        )
    if mode not in ("max", "min"):
        raise ValueError(f"mode must be 'max' or 'min', but received {mode!r}. Write mode='min' for a loss.")
    return metric, 1.0 if mode == "max" else -1.0


def _find_scope(scope: str) -> Callable[[list[float], float], float]:
    if scope not in _SCOPES:
        raise ValueError(f"scope must be one of {list(_SCOPES)}, but received {scope!r}. Leave it out for 'last'.")
    if scope == "last":
        return lambda values, sign: values[-1]
    if scope == "all":
        return lambda values, sign: max(values, key=lambda value: -math.inf if math.isnan(value) else sign * value)
    count = 0 if scope == "avg" else int(scope.split("-")[1])
    return lambda values, sign: sum(values[-count:]) / len(values[-count:])


def _score(
    one: results.Result, metric: str, sign: float, choose: Callable[[list[float], float], float]
) -> float | None:
    values = [
        float(value)
        for metrics in one.metrics_history
        if (value := plain.get_metric(metrics, metric)) is not None and hasattr(value, "__float__")
    ]
    return choose(values, sign) if values else None


def _find_best_report(one: results.Result, metric: str, mode: str) -> dict[str, object] | None:
    return max(one.metrics_history, key=lambda metrics: scores.score(metrics, metric, mode), default=None)
