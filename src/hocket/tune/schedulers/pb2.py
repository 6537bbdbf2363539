"""Population based bandits: a population whose new configurations come from a model of its gains.

Parker-Holder, Nguyen and Roberts, "Provably Efficient Online Hyperparameter Optimization with Population-Based Bandits"
(2020). Trials are chosen as in population based training; `bandit` proposes their new configurations.
"""

from __future__ import annotations

import copy
import math
import numbers
import random
from collections.abc import Callable, Mapping
from typing import Any, final

from hocket import keywords
from hocket.tune import errors
from hocket.tune import trial as trials
from hocket.tune.schedulers import bandit, checks, contract, pbt


@keywords.guard_init
@final
class PB2(pbt.PopulationBasedTraining):
    """A scheduler that lets bad trials go on from good ones' checkpoints, with hyperparameters that a model proposes.

    Meant for small populations: it learns from all intervals of all trials. It needs scikit-learn.

    Args:
        time_attr: The key of a report's time: any number that grows, and that goes on from a checkpoint's.
        metric: The metric. Default: the search's.
        mode: ``"max"`` or ``"min"``. Default: the search's.
        perturbation_interval: The time between two changes of a trial, in units of `time_attr`.
        hyperparam_bounds: The keys of the configuration to change, each with a list ``[low, high]``, or a dict of
            these. Values are uniform between the bounds, and whole numbers if both bounds are. A trial whose
            configuration lacks a key gets a random value.
        quantile_fraction: The part of the population that counts as bad, and the part that counts as good. 0 to 0.5.
        log_config: Whether `policies` are kept.
        require_attrs: Whether a report without the metric or the time is an error. If not, it has no effect.
        synch: Whether all trials wait for each other at each interval.
        custom_explore_fn: A function from a trial's new configuration to the one that it uses.
        seed: The seed of all randomness. Default: the search's.
        seed: Of all chances; the search's, if it is left out.

    Raises:
        MissingExtraError: scikit-learn is not installed.
        ValueError: An argument is out of range, or the metric is unknown at the first trial.
        TypeError: The bounds are no dict.
        TuneError: There are no bounds; or later, a report lacks a required value.

    Example:
        >>> from hocket.tune.schedulers.pb2 import PB2
        >>> from hocket.tune.simulation import simulate
        >>> pb2 = PB2(
        ...     "training_iteration",
        ...     perturbation_interval=2,
        ...     hyperparam_bounds={"rate": [0.0, 1.0]},
        ...     synch=True,
        ...     seed=0,
        ... )
        >>> def climb(config, step, height):
        ...     return (height + 1 - (config["rate"] - 0.7) ** 2,) * 2 if step <= 20 else None
        >>> configs = [{"rate": 0.1}, {"rate": 0.2}, {"rate": 0.9}, {"rate": 1.0}]
        >>> run = simulate(pb2, [climb] * 4, num_workers=4, metric="height", mode="max", configs=configs, state=0)
        >>> abs(pb2.policies[-1].new_config["rate"] - 0.7) < 0.1
        True
    """

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        hyperparam_bounds: Mapping[str, object] | None = None,
        quantile_fraction: float = 0.25,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        seed: int | None = None,
    ) -> None:
        ranges = _read_bounds(hyperparam_bounds or {}, "hyperparam_bounds")
        if not _count(ranges):
            raise errors.TuneError(
                f"PB2 needs the hyperparameters that it may change, but received {hyperparam_bounds!r}. Write "
                "hyperparam_bounds={'lr': [1e-4, 1e-1]}."
            )
        bandit.check_installed()
        super().__init__(
            time_attr,
            metric,
            mode,
            perturbation_interval,
            hyperparam_mutations=ranges,
            quantile_fraction=quantile_fraction,
            custom_explore_fn=custom_explore_fn,
            log_config=log_config,
            require_attrs=require_attrs,
            synch=synch,
            seed=seed,
        )
        self._ranges = ranges
        #: The gains of all intervals that have ended.
        self._gains: list[bandit.Gain] = []
        #: The time, the score and the point at the begin of each trial's interval.
        self._begun: dict[trials.Trial, tuple[float, float, list[float]]] = {}

    def on_trial_add(self, controls: contract.TrialControls, trial: trials.Trial) -> None:
        """Add a trial to the population, and check that it has a number for each key to change.

        Raises:
            TuneError: A number is missing.
        """
        super().on_trial_add(controls, trial)
        _read_point(trial.config, self._ranges)

    def note_look(self, trial: trials.Trial, time: float, score: float) -> None:
        """Learn from the interval that has just ended."""
        point = _read_point(trial.config, self._ranges)
        if trial in self._begun:
            begin, before, tried = self._begun[trial]
            if time > begin and math.isfinite(score) and math.isfinite(before):
                self._gains.append(bandit.Gain(begin, before, tried, (score - before) / (time - begin)))
        self._begun[trial] = time, score, point

    def change(self, trial: trials.Trial, source: trials.Trial, drawn: random.Random) -> dict[str, Any]:
        """Return the source's configuration with the model's proposal."""
        time, score, _ = self._begun[source]
        pending = [point for other, (_, _, point) in self._begun.items() if other is not trial]
        score = score if math.isfinite(score) else 0.0
        gains = sorted(self._gains, key=lambda gain: gain.time)
        point = bandit.propose(gains, time, score, pending, _count(self._ranges), drawn)
        changed = _put_point(copy.deepcopy(source.config), self._ranges, list(point))
        self._begun[trial] = time, score, point
        return changed

    def note_leave(self, trial: trials.Trial) -> None:
        """Forget a trial's interval: the trial has ended."""
        self._begun.pop(trial, None)


@final
class _Range:
    """A domain: the numbers between two bounds."""

    def __init__(self, low: Any, high: Any) -> None:
        self.is_whole = isinstance(low, numbers.Integral) and isinstance(high, numbers.Integral)
        self.low: float = int(low) if self.is_whole else float(low)
        self.high: float = int(high) if self.is_whole else float(high)

    def sample(self, *, random_state: int | None = None) -> float:
        return self.get_value(random.Random(random_state).random())  # noqa: S311 (a search is no secret)

    def get_value(self, place: float) -> float:
        """Return the value at a place from 0 to 1."""
        value = self.low + place * (self.high - self.low)
        return round(value) if self.is_whole else value

    def get_place(self, value: float) -> float:
        """Return the place of a value, clipped to 0 and 1."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


def _read_bounds(bounds: object, name: str) -> dict[str, object]:
    if not isinstance(bounds, Mapping):
        raise TypeError(f"{name} must be a dict, but received {bounds!r}. Write {{'lr': [1e-4, 1e-1]}}.")
    return {key: _read_range(value, f"{name}[{key!r}]") for key, value in bounds.items()}


def _read_range(value: object, where: str) -> object:
    if isinstance(value, Mapping):
        return _read_bounds(value, where)
    numbers = [checks.read_number(one) for one in value] if isinstance(value, list | tuple) else []
    low, high = numbers if len(numbers) == 2 else (None, None)
    if low is None or high is None or not low < high or not math.isfinite(high - low):
        raise ValueError(
            f"{where} must be a list [low, high] of two numbers, but received {value!r}. Write [1e-4, 1e-1], or use "
            "PopulationBasedTraining for values that are not a range."
        )
    assert isinstance(value, list | tuple)
    return _Range(*value)


def _count(ranges: Mapping[str, object]) -> int:
    return sum(_count(one) if isinstance(one, Mapping) else 1 for one in ranges.values())


def _read_point(config: object, ranges: Mapping[str, Any], path: str = "") -> list[float]:
    """Return a configuration's place in each range."""
    point: list[float] = []
    for key, one in ranges.items():
        value = config.get(key) if isinstance(config, Mapping) else None
        if isinstance(one, Mapping):
            point += _read_point(value, one, f"{path}{key}/")
            continue
        number = checks.read_number(value)
        if number is None or not math.isfinite(number):
            raise errors.TuneError(
                f"PB2 changes {path + key!r} from {one.low} to {one.high}, so each trial must begin with a number for "
                f"it, but one trial has {value!r}. Write tune.uniform({one.low}, {one.high}) into param_space, or "
                "leave the key out, so PB2 draws a number."
            )
        point.append(one.get_place(number))
    return point


def _put_point(config: dict[str, Any], ranges: Mapping[str, Any], point: list[float]) -> dict[str, Any]:
    """Write a point's values into a configuration; remove them from the front of `point`."""
    for key, one in ranges.items():
        config[key] = _put_point(config[key], one, point) if isinstance(one, Mapping) else one.get_value(point.pop(0))
    return config
