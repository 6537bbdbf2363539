"""Population based bandits: what the model proposes, and that it is a population like another."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hocket import tune
from hocket.tune import errors
from hocket.tune.schedulers import bandit, create_scheduler
from hocket.tune.schedulers.pb2 import PB2
from hocket.tune.simulation import Simulation, simulate

pytest.importorskip("sklearn", reason="needs scikit-learn: pip install scikit-learn")


def climb(config: dict[str, Any], step: int, height: float) -> tuple[float, float] | None:
    """Rise most where the rate is 0.7, whatever the width."""
    return (height + 1 - (config["rate"] - 0.7) ** 2,) * 2 if step <= 24 else None


def run_population(count: int = 4, **settings: Any) -> tuple[PB2, Simulation]:
    defaults: dict[str, Any] = {
        "time_attr": "training_iteration",
        "perturbation_interval": 2,
        "hyperparam_bounds": {"rate": [0.0, 1.0]},
        "synch": True,
    }
    pb2 = PB2(**defaults | settings)
    drawn = random.Random(0)
    configs = [{"rate": drawn.random()} for _ in range(count)]
    run = simulate(pb2, [climb] * count, num_workers=count, metric="height", mode="max", configs=configs, state=0)
    return pb2, run


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_where_the_gain_is_largest(seed: int) -> None:
    pb2, _ = run_population(seed=seed)
    late = [policy.new_config["rate"] for policy in pb2.policies[-6:]]
    assert sum(abs(rate - 0.7) < 0.1 for rate in late) >= 4, "one in three may still try something else"


def test_the_same_seed_changes_the_same() -> None:
    assert run_population(seed=1)[0].policies == run_population(seed=1)[0].policies
    assert run_population(seed=1)[0].policies != run_population(seed=2)[0].policies


def test_what_others_try_is_not_tried_again() -> None:
    gains = [bandit.Gain(time, 0.0, [place / 4], -((place / 4 - 0.5) ** 2)) for time in range(4) for place in range(5)]
    alone = bandit.propose(gains, 4, 0.0, [], 1, random.Random(0))
    beside = bandit.propose(gains, 4, 0.0, [alone] * 8, 1, random.Random(0))
    assert abs(alone[0] - 0.5) < 0.15
    assert abs(beside[0] - alone[0]) > 0.05


def test_nested_and_whole_numbers() -> None:
    pb2, run = run_population(hyperparam_bounds={"rate": [0.0, 1.0], "model": {"width": [1, 8]}}, seed=0)
    widths = [policy.new_config["model"]["width"] for policy in pb2.policies]
    assert widths
    assert {type(width) for width in widths} == {int}
    assert set(widths) <= set(range(1, 9))
    assert all("width" in policy.old_config["model"] for policy in pb2.policies), "what the space lacks is drawn"
    assert {trial.ending for trial in run.trials} == {"complete"}


def test_scores_that_are_no_numbers() -> None:
    def diverge(config: dict[str, Any], step: int, height: float) -> tuple[float, float] | None:
        found = climb(config, step, height)
        return found if found is None or config["rate"] < 0.5 else (float("nan"), found[1])

    pb2 = PB2("training_iteration", perturbation_interval=2, hyperparam_bounds={"rate": [0.0, 1.0]}, synch=True, seed=0)
    configs = [{"rate": rate} for rate in (0.1, 0.3, 0.6, 0.9)]
    run = simulate(pb2, [diverge] * 4, num_workers=4, metric="height", mode="max", configs=configs, state=0)
    assert {trial.ending for trial in run.trials} == {"complete"}
    assert pb2.policies


def test_one_trial_has_nobody_to_learn_from() -> None:
    pb2, run = run_population(count=1)
    assert not pb2.policies
    assert run.trials[0].ending == "complete"


@pytest.mark.parametrize(
    ("bounds", "error", "match"),
    [
        (None, errors.TuneError, r"PB2 needs the hyperparameters that it may change, but received None\. Write"),
        ([0, 1], TypeError, r"hyperparam_bounds must be a dict, but received \[0, 1\]"),
        ({"lr": [1, 0]}, ValueError, r"hyperparam_bounds\['lr'\] must be a list \[low, high\].*received \[1, 0\]"),
        ({"lr": [1]}, ValueError, r"two numbers, but received \[1\]"),
        ({"lr": ["a", "b"]}, ValueError, r"two numbers, but received \['a', 'b'\]"),
        ({"lr": tune.uniform(0, 1)}, ValueError, "two numbers, but received"),
        ({"model": {"lr": [0, float("inf")]}}, ValueError, r"hyperparam_bounds\['model'\]\['lr'\] must be a list"),
    ],
)
def test_bad_bounds(bounds: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        create_scheduler("pb2", hyperparam_bounds=bounds)
