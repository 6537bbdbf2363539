"""Searches as programs before `Tuner` write them: experiments as dicts, trainables by name, states of trials."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import tune
from hocket.tune import experiment, tune_config, tuner
from hocket.tune.experiment import trial as trial_module
from hocket.tune.experiment.trial import Trial

UNTYPED: Any = tune


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    with hocket.init(num_cpus=2, resources={"camera": 2}):
        yield


class Once(tune.Trainable):
    def step(self) -> dict[str, Any]:
        return {"score": 1, "done": True}

    def save_checkpoint(self, folder: str) -> None:
        Path(folder, "file").write_text("saved")

    def load_checkpoint(self, folder: Any) -> None:
        raise AssertionError("nothing is restored")


def count(config: dict[str, Any]) -> None:
    for number in range(3):
        tune.report({"score": number * config.get("by", 1)})


def test_rays_modules_have_the_names() -> None:
    assert experiment.Trial is trial_module.Trial is Trial
    assert experiment.Experiment is tune.Experiment
    assert tune_config.TuneConfig is tuner.TuneConfig is tune.TuneConfig
    states = (Trial.PENDING, Trial.RUNNING, Trial.PAUSED, Trial.TERMINATED, Trial.ERROR)
    assert states == ("PENDING", "RUNNING", "PAUSED", "TERMINATED", "ERROR")


def test_dicts_of_functions_classes_and_names(tmp_path: Path) -> None:
    tune.register_trainable("counted", count)
    trials = tune.run_experiments(
        {
            "by name": {"run": "counted", "storage_path": tmp_path, "config": {"by": tune.grid_search([2, 3])}},
            "function": {"run": count, "storage_path": tmp_path, "stop": {"training_iteration": 2}},
            "class": {"run": Once, "storage_path": tmp_path, "checkpoint_config": {"checkpoint_at_end": True}},
        },
        verbose=0,
    )
    assert [trial.status for trial in trials] == [Trial.TERMINATED] * 4
    assert [trial.last_result["score"] for trial in trials] == [4, 6, 1, 1]
    assert [trial.trainable_name for trial in trials] == ["counted", "counted", "count", "Once"]
    assert [str(trial) for trial in trials] == [f"{trial.trainable_name}_{trial.trial_id}" for trial in trials]
    assert [trial.has_checkpoint() for trial in trials] == [False, False, False, True]
    assert trials[1].metric_analysis["score"] == {"max": 6, "min": 0, "avg": 3, "last": 6}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["by name", "class", "function"]


def test_names_of_trials(tmp_path: Path) -> None:
    tune.register_trainable("named", Once)
    spec = {
        "run": "named",
        "storage_path": tmp_path,
        "trial_name_creator": lambda trial: f"{trial.trainable_name}_{trial.trial_id}_last",
        "trial_dirname_creator": lambda trial: f"of_{trial.trainable_name}",
    }
    (trial,) = tune.run_experiments([{"mine": spec}], verbose=0)
    assert str(trial) == f"named_{trial.trial_id}_last"
    assert Path(trial.local_path) == tmp_path / "mine" / "of_named"


def test_resources_of_ones_own(tmp_path: Path) -> None:
    wanted = {"cpu": 1, "custom_resources": {"camera": 2}}

    def look(config: dict[str, Any]) -> None:
        tune.report({"free": hocket.available_resources().get("camera", 0.0)})

    tune.register_trainable("looks", look)
    (trial,) = tune.run_experiments(
        {"mine": {"run": "looks", "storage_path": tmp_path, "resources_per_trial": wanted}}, verbose=0
    )
    assert (trial.last_result["free"], trial.trainable_name) == (0.0, "looks")


def test_trials_that_fail(tmp_path: Path) -> None:
    def fail(config: dict[str, Any]) -> None:
        tune.report({"score": 1})
        raise ValueError("no more")

    spec = {"mine": {"run": fail, "storage_path": tmp_path}}
    with pytest.raises(tune.TuneError, match="1 of 1 trials failed"):
        tune.run_experiments(spec, verbose=0)
    (trial,) = tune.run_experiments(spec, verbose=0, raise_on_failed_trial=False)
    assert (trial.status, trial.last_result["score"]) == (Trial.ERROR, 1)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: UNTYPED.run_experiments({"a": {}}), "An experiment must be a dict with the key 'run'.*{}"),
        (
            lambda: UNTYPED.run_experiments({"a": {"run": count, "b": 1}}),
            "An experiment must be a dict with the key 'run'",
        ),
        (lambda: UNTYPED.run_experiments({"a": {"run": "nobody"}}), "No trainable is registered as 'nobody'"),
        (lambda: UNTYPED.run_experiments("abc"), "experiments must be an Experiment, .* received 'abc'"),
        (lambda: UNTYPED.run("nobody", resources_per_trial={"cpu": 1}), "No trainable is registered as 'nobody'"),
        (lambda: UNTYPED.Experiment("a", 5), "A search needs a function of the configuration, .* received 5"),
        (lambda: UNTYPED.Experiment("a", dict), "must inherit from hocket.tune.Trainable, but dict does not"),
    ],
)
def test_wrong_experiments(call: Any, match: str) -> None:
    with pytest.raises(tune.TuneError, match=match) as caught:
        call()
    assert isinstance(caught.value, TypeError)


def test_wrong_resources_and_rules() -> None:
    with pytest.raises(TypeError, match="custom_resources must be a dict, but received 2"):
        tune.with_resources(count, UNTYPED and {"custom_resources": 2})
    with pytest.raises(TypeError, match=r"must be a function of \(trial_id, result\), but received <function"):
        tune.RunConfig(stop=lambda result: True)
