"""A model of a population's gains: a Gaussian process that forgets, and proposes the next configuration.

Parker-Holder, Nguyen and Roberts, "Provably Efficient Online Hyperparameter Optimization with Population-Based Bandits"
(2020). The gain of an interval depends on the hyperparameters, the score before, and time. The further apart in time
two intervals lie, the less one predicts the other. The next configuration has the largest upper confidence bound.
Configurations that other trials are trying count as tried, with an unknown result.

The process is scikit-learn's.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from hocket import extras

MOST_GAINS: Final = 250
"""The number of latest gains that count. The cost is cubic: half a second with this number. A guess."""

NUM_CANDIDATES: Final = 1000
"""The number of random points, and then of points near the best of them, among which the best is chosen. A guess."""

FAR: Final = 1e5
"""A length so great that its column has no effect."""


@final
@dataclass(frozen=True, slots=True)
class Gain:
    """A trial's gain in an interval."""

    time: float
    before: float
    """The score at the interval's begin."""
    point: Sequence[float]
    """The hyperparameters, each from 0 to 1 within its bounds."""
    per_time: float
    """The increase of the score per unit of time."""


def check_installed() -> None:
    """Raise if scikit-learn is not installed."""
    other = "PopulationBasedTraining(hyperparam_mutations={'lr': tune.uniform(low, high)})"
    extras.load("sklearn.gaussian_process", "PB2", "scikit-learn", f"Run pip install scikit-learn, or write {other}.")


def propose(
    gains: Sequence[Gain],
    time: float,
    score: float,
    pending: Sequence[Sequence[float]],
    num_dims: int,
    drawn: random.Random,
) -> list[float]:
    """Return the hyperparameters to try next, each from 0 to 1.

    Args:
        gains: The gains so far, in the order of their times. If there are fewer than two, the point is random.
        time: The time from which the trial goes on.
        score: The trial's score at that time.
        pending: The points that other trials of the population are trying.
        num_dims: The number of hyperparameters.
        drawn: The random generator.
    """
    generator = np.random.default_rng(drawn.getrandbits(64))
    gains = gains[-MOST_GAINS:]
    if len(gains) < 2:
        return [float(value) for value in generator.random(num_dims)]
    columns = np.array([[gain.time, gain.before] for gain in gains])
    low, high = columns.min(axis=0), columns.max(axis=0)
    span = np.where(high > low, high - low, 1)
    seen = np.hstack([(columns - low) / span, np.array([gain.point for gain in gains])])
    brought = np.array([gain.per_time for gain in gains])
    spread = brought.std()
    brought = (brought - brought.mean()) / (spread if spread > 0 else 1)
    now = (np.array([time, score]) - low) / span
    mean = _fit(seen, brought, num_dims)
    deviation = mean
    if pending:
        tried = _place(now, np.array(pending))
        deviation = _condition(mean, np.vstack([seen, tried]))
    beta = 0.2 + math.log(0.4 * (len(gains) + 1) + 1)

    def bound(points: object) -> Any:
        rows = _place(now, points)
        return mean.predict(rows) + math.sqrt(beta) * deviation.predict(rows, return_std=True)[1]

    points = generator.random((NUM_CANDIDATES, num_dims))
    best = points[np.argmax(bound(points))]
    points = np.clip(best + 0.05 * generator.standard_normal((NUM_CANDIDATES, num_dims)), 0, 1)
    return [
        float(value) for value in max((best, points[np.argmax(bound(points))]), key=lambda one: bound(one[None])[0])
    ]


def _place(now: Any, points: Any) -> Any:
    return np.hstack([np.broadcast_to(now, (len(points), 2)), points])


def _fit(seen: object, brought: object, num_dims: int) -> Any:
    """Return a process whose lengths and noise fit the gains best."""
    from sklearn.gaussian_process import GaussianProcessRegressor, kernels

    off = (FAR, FAR * 1.001)  # for columns that a kernel ignores
    alike = kernels.RBF([FAR, *[1.0] * (num_dims + 1)], [off, *[(0.05, 20.0)] * (num_dims + 1)])
    lately = kernels.Matern([5.0, *[FAR] * (num_dims + 1)], [(0.5, 100.0), *[off] * (num_dims + 1)], nu=0.5)
    kernel = kernels.ConstantKernel(1.0, (0.05, 20.0)) * alike * lately + kernels.WhiteKernel(0.1, (1e-4, 1.0))
    process = GaussianProcessRegressor(kernel)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lengths at their bounds are fine
        return process.fit(seen, brought)


def _condition(process: Any, rows: Any) -> object:
    """Return the process fitted to these rows, for its deviation, which does not depend on the gains."""
    from sklearn.gaussian_process import GaussianProcessRegressor

    return GaussianProcessRegressor(process.kernel_, optimizer=None).fit(rows, np.zeros(len(rows)))
