"""Figures of a search's results, with matplotlib: `ResultGrid.plot`."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hocket import extras
from hocket._base import texts
from hocket.train.tracking import plain
from hocket.train.tracking import values as flat_values
from hocket.tune import result as results
from hocket.tune.search.optuna import adapter
from hocket.tune.shown import tables

KINDS: Final = ("history", "curves", "parallel", "slices", "importance", "lineage")
"""The kinds of figures."""


def draw(found: Sequence[results.Result], kind: str, metric: str, mode: str) -> Any:
    """Return a matplotlib figure.

    Args:
        found: The trials' results.
        kind: One of `KINDS`; see `ResultGrid.plot`.
        metric: The metric to draw.
        mode: ``"max"`` or ``"min"``.

    Raises:
        MissingExtraError: matplotlib is not installed; or Optuna, which computes importances.
        ValueError: The kind is none of these, or no trial has the metric.
    """
    if kind not in KINDS:
        raise ValueError(f"plot() draws one of {list(KINDS)}, but received {kind!r}. Write plot('history').")
    shown = _list_shown(found, metric)
    if not shown:
        raise ValueError(f"No trial has a finite value of {metric!r}, so there is nothing to draw.")
    figures = extras.load("matplotlib.figure", "ResultGrid.plot()", "matplotlib", "Run pip install 'hocket[plot]'.")
    figure = figures.Figure(figsize=(8, 4.5), layout="constrained")
    _DRAWERS[kind](figure, shown, metric, mode)
    return figure


def _read(metrics: Any, metric: str) -> float | None:
    value = plain.get_metric(metrics, metric)
    # A bool measures nothing, and infinity has no place on an axis.
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


Shown = Sequence[tuple[results.Result, float]]


def _list_shown(found: Sequence[results.Result], metric: str) -> Shown:
    return [(one, value) for one in found if (value := _read(one.metrics, metric)) is not None]


def _draw_history(figure: Any, shown: Shown, metric: str, mode: str) -> None:
    axes = figure.subplots()
    better = max if mode == "max" else min
    best = [better(value for _, value in shown[: count + 1]) for count in range(len(shown))]
    axes.plot([value for _, value in shown], "o", markersize=4, label="trial")
    axes.step(range(len(best)), best, where="post", color="black", linewidth=1, label="best so far")
    axes.set(xlabel="trial", ylabel=metric)
    axes.legend()


def _draw_curves(figure: Any, shown: Shown, metric: str, mode: str) -> None:
    axes = figure.subplots()
    best = (max if mode == "max" else min)(shown, key=lambda pair: pair[1])[0]
    for one, _ in shown:
        curve = [(report["training_iteration"], _read(report, metric)) for report in one.metrics_history]
        points = [(step, value) for step, value in curve if value is not None]
        style: dict[str, object] = {"color": "C1", "zorder": 3} if one is best else {"color": "C0", "alpha": 0.4}
        axes.plot([step for step, _ in points], [value for _, value in points], marker=".", linewidth=1, **style)
    axes.set(xlabel="training_iteration", ylabel=metric, title=f"best: {best.trial_id}")


def _list_parameters(shown: Shown) -> dict[str, list[Any]]:
    """Return the hyperparameters whose values differ, each with its values by trial."""
    rows = [dict(flat_values.flatten(one.config)) for one, _ in shown]
    # A conditional hyperparameter has no value in some trials, so no place on an axis.
    names = [name for name in rows[0] if all(name in row for row in rows)] if rows else []
    columns = {name: [row[name] for row in rows] for name in names}
    return {name: values for name, values in columns.items() if len({str(value) for value in values}) > 1}


def compute_importances(found: Sequence[results.Result], metric: str, mode: str) -> dict[str, float]:
    """Return each hyperparameter's importance; see `ResultGrid.get_importances`."""
    scored = _list_shown(found, metric)
    return _compute_importances(_list_parameters(scored), [value for _, value in scored], mode)


def _place(values: Sequence[Any]) -> tuple[list[float], str]:
    """Return places of values on an axis, and its scale: numbers by value, other values by their order."""
    if _is_range(values):
        return [float(value) for value in values], "log" if _is_logarithmic(values) else "linear"
    order = sorted({str(value) for value in values})
    return [float(order.index(str(value))) for value in values], "linear"


def _draw_slices(figure: Any, shown: Shown, metric: str, mode: str) -> None:
    parameters = _list_parameters(shown) or {"trial": list(range(len(shown)))}
    all_axes = figure.subplots(1, len(parameters), sharey=True, squeeze=False)[0]
    for axes, (name, values) in zip(all_axes, parameters.items(), strict=True):
        places, scale = _place(values)
        axes.scatter(places, [value for _, value in shown], c=range(len(shown)), s=14)
        axes.set_xscale(scale)
        axes.set_xlabel(_show(name), parse_math=False)
        _name_places(axes, values)
    all_axes[0].set_ylabel(metric)


def _name_places(axes: Any, values: Sequence[object]) -> None:
    if not _is_range(values):
        order = [_show(text) for text in sorted({str(value) for value in values})]
        axes.set_xticks(range(len(order)), order, rotation=30, ha="right", parse_math=False)


def _show(text: str) -> str:
    """Return a text that matplotlib can draw; with ``parse_math=False``, or it may be read as a formula."""
    return texts.cut(text.encode("utf-8", "replace").decode(), tables.MOST_LETTERS)


def _draw_parallel(figure: Any, shown: Shown, metric: str, mode: str) -> None:
    axes = figure.subplots()
    columns = {**_list_parameters(shown), metric: [value for _, value in shown]}
    heights = []
    for values in columns.values():
        places, scale = _place(values)
        if scale == "log":
            places = [math.log10(place) for place in places]
        low, high = min(places), max(places)
        heights.append([(place - low) / (high - low) if high > low else 0.5 for place in places])
    # The last axis is the metric: a trial's height there, or its depth, chooses the colour.
    ranks = heights[-1] if mode == "max" else [1 - height for height in heights[-1]]
    for row, rank in zip(zip(*heights, strict=True), ranks, strict=True):
        axes.plot(range(len(columns)), row, color=(0.1, 0.3 + 0.5 * rank, 0.9 - 0.8 * rank), alpha=0.3 + 0.6 * rank)
    axes.set_xticks(range(len(columns)), list(map(_show, columns)), parse_math=False)
    axes.set_yticks([])


def _draw_importance(figure: Any, shown: Shown, metric: str, mode: str) -> None:
    counts = _compute_importances(_list_parameters(shown), [value for _, value in shown], mode)
    axes = figure.subplots()
    axes.barh(range(len(counts)), list(counts.values())[::-1])
    axes.set_yticks(range(len(counts)), [_show(name) for name in counts][::-1], parse_math=False)
    axes.set(xlabel=f"importance for {metric}", xlim=(0, 1))


def _draw_lineage(figure: Any, shown: Shown, metric: str, mode: str) -> None:
    """Draw a row for each trial over its iterations, and an arrow to each trial from the trial whose state it took."""
    axes = figure.subplots()
    rows = {one.trial_id: row for row, (one, _) in enumerate(shown)}
    places = [
        (report["training_iteration"], rows[one.trial_id], value)
        for one, _ in shown
        for report in one.metrics_history
        if (value := _read(report, metric)) is not None
    ]
    for one, _ in shown:
        for taken in one.exploits:
            if taken.source in rows:
                axes.annotate(
                    "",
                    xy=(taken.iteration, rows[one.trial_id]),
                    xytext=(taken.iteration, rows[taken.source]),
                    arrowprops={"arrowstyle": "->", "color": "C3", "shrinkA": 4, "shrinkB": 4},
                )
    drawn = axes.scatter(*zip(*[place[:2] for place in places], strict=True), c=[place[2] for place in places], s=16)
    figure.colorbar(drawn, label=metric)
    axes.set_yticks(range(len(rows)), [trial_id[-5:] for trial_id in rows])
    axes.set(xlabel="training_iteration", ylabel="trial")


_DRAWERS: Final = {
    "history": _draw_history,
    "curves": _draw_curves,
    "parallel": _draw_parallel,
    "slices": _draw_slices,
    "importance": _draw_importance,
    "lineage": _draw_lineage,
}


def _compute_importances(
    parameters: Mapping[str, Sequence[object]], values: Sequence[float], mode: str
) -> dict[str, float]:
    """Return each hyperparameter's importance by Optuna, the largest first; their sum is 1.

    Watanabe, Bansal and Hutter, "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in Arbitrary Subspaces",
    2023: how far the values of the best trials are from those of all trials.

    Args:
        parameters: Each hyperparameter's values by trial. Numbers form a range, from the least to the largest, on a
            logarithmic scale if the largest is over a hundred times the least; other values are choices.
        values: The metric in each trial.
        mode: ``"max"`` or ``"min"``.
    """
    optuna = adapter.load()
    if len(values) < 2:
        raise ValueError(f"Importances need at least two trials with a value, but there are {len(values)}.")
    # Optuna compares hyperparameters; a single one has all of the importance.
    if len(parameters) < 2:
        return dict.fromkeys(parameters, 1.0)
    columns = {name: _convert(optuna, column) for name, column in parameters.items()}
    distributions = {name: distribution for name, (distribution, _) in columns.items()}
    study = optuna.create_study(direction="maximize" if mode == "max" else "minimize")
    for row, value in enumerate(values):
        drawn = {name: column[row] for name, (_, column) in columns.items()}
        study.add_trial(optuna.trial.create_trial(params=drawn, distributions=distributions, value=value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls its evaluator experimental
        found = optuna.importance.get_param_importances(
            study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
        )
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _is_range(column: Sequence[object]) -> bool:
    """Return whether all values are finite numbers."""
    return all(map(_is_number, column))


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _is_logarithmic(column: Sequence[float]) -> bool:
    """Return whether numbers look as if sampled from a logarithmic range. A guess."""
    return min(column) > 0 and max(column) / min(column) > 100


def _convert(optuna: Any, column: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return an Optuna distribution that fits the values, and the values in its form."""
    kinds = optuna.distributions
    if not _is_range(column):
        words = [str(value) for value in column]
        return kinds.CategoricalDistribution(sorted(set(words))), words
    log = _is_logarithmic(column)
    # Optuna computes with floats, which do not have larger whole numbers.
    if all(isinstance(value, numbers.Integral) and abs(int(value)) < 2**53 for value in column):
        whole = [int(value) for value in column]
        return kinds.IntDistribution(min(whole), max(whole), log=log), whole
    floats = [float(value) for value in column]
    return kinds.FloatDistribution(min(floats), max(floats), log=log), floats
