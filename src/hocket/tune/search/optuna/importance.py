"""How much each hyperparameter counts for a metric, by Optuna.

Watanabe, Bansal and Hutter, "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in Arbitrary Subspaces",
2023: how far the values that the best trials have are from those that all trials have.
"""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from hocket.tune.search.optuna import adapter


def compute(parameters: Mapping[str, Sequence[object]], values: Sequence[float], mode: str) -> dict[str, float]:
    """Return each hyperparameter's importance, the largest first; together they are 1.

    Args:
        parameters: By name, the value in each trial. Numbers are taken as a range, from the least to the largest, and
            as a logarithmic one if that is a hundredfold of the other; other values as choices.
        values: The metric in each trial.
        mode: ``"max"`` or ``"min"``.
    """
    optuna = adapter.load()
    if len(values) < 2:
        raise ValueError(f"Importances need two trials with a value or more, but there are {len(values)}.")
    if len(parameters) < 2:
        return dict.fromkeys(parameters, 1.0)
    columns = {name: _convert(optuna, column) for name, column in parameters.items()}
    distributions = {name: distribution for name, (distribution, _) in columns.items()}
    study = optuna.create_study(direction="maximize" if mode == "max" else "minimize")
    for row, value in enumerate(values):
        drawn = {name: column[row] for name, (_, column) in columns.items()}
        study.add_trial(optuna.trial.create_trial(params=drawn, distributions=distributions, value=value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna's evaluator is called experimental
        found = optuna.importance.get_param_importances(
            study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
        )
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def is_range(column: Sequence[object]) -> bool:
    """Return whether all values are finite numbers."""
    return all(map(_is_number, column))


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def is_logarithmic(column: Sequence[float]) -> bool:
    """Return whether numbers look as if they were drawn from a logarithmic range. A guess."""
    return min(column) > 0 and max(column) / min(column) > 100


def _convert(optuna: Any, column: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return from where Optuna would have drawn values, and the values as it has them."""
    kinds = optuna.distributions
    if not is_range(column):
        words = [str(value) for value in column]
        return kinds.CategoricalDistribution(sorted(set(words))), words
    log = is_logarithmic(column)
    if all(isinstance(value, numbers.Integral) and abs(int(value)) < 2**53 for value in column):
        whole = [int(value) for value in column]
        return kinds.IntDistribution(min(whole), max(whole), log=log), whole
    floats = [float(value) for value in column]
    return kinds.FloatDistribution(min(floats), max(floats), log=log), floats
