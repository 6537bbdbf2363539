"""Schedulers in searches that run: what they decide is done, and a search that was ended goes on with it."""

from __future__ import annotations

import collections
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from hocket import tune
from hocket.tune import log, schedulers
from hocket.tune.schedulers.pb2 import PB2
from hocket.tune.trial import Status

pytestmark = [pytest.mark.timeout(90), pytest.mark.usefixtures("any_session")]


def fit(trainable: Any, path: Path, space: dict[str, Any], scheduler: Any, stop: int, **settings: Any) -> Any:
    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=scheduler, seed=1, **settings),
        run_config=tune.RunConfig(name="search", storage_path=path, verbose=0, stop={"training_iteration": stop}),
    ).fit()


def climb(config: dict[str, Any]) -> None:
    """A function that saves: the score grows by ``rate`` each step."""
    total, checkpoint = 0.0, tune.get_checkpoint()
    if checkpoint is not None:
        total = json.loads(Path(checkpoint.path, "total").read_text())
    while True:
        total += config["rate"]
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "total").write_text(json.dumps(total))
            tune.report({"score": total}, checkpoint=tune.Checkpoint.from_directory(folder))


class Climb(tune.Trainable):
    """The same as a class."""

    def setup(self, config: dict[str, Any]) -> None:
        self.total, self.rate = 0.0, config["rate"]

    def step(self) -> dict[str, Any]:
        self.total += self.rate
        return {"score": self.total}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "total").write_text(json.dumps(self.total))

    def load_checkpoint(self, checkpoint: str) -> None:
        self.total = json.loads(Path(checkpoint, "total").read_text())

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.setup(new_config)
        return True


def test_asha_stops_the_worse(tmp_path: Path) -> None:
    scheduler = schedulers.ASHAScheduler(max_t=8, grace_period=1, reduction_factor=2)
    found = fit(climb, tmp_path, {"rate": tune.grid_search([8, 4, 2, 1])}, scheduler, 100, max_concurrent_trials=1)
    steps = [len(one.metrics_history) for one in found]
    assert steps[0] == 8
    assert steps[1:] == [1, 1, 1], "each is worse than what was there"
    assert {one.reason for one in found} == {"its scheduler"}


@pytest.mark.parametrize("trainable", [climb, Climb])
@pytest.mark.parametrize("reuse", [None, True])
def test_population_based_training_copies_the_best(trainable: Any, reuse: bool | None, tmp_path: Path) -> None:
    scheduler = schedulers.PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"rate": [1.0, 10.0, 100.0]},
        synch=True,
        quantile_fraction=0.5,
    )
    space = {"rate": tune.grid_search([1.0, 100.0])}
    found = fit(trainable, tmp_path, space, scheduler, 8, reuse_actors=reuse)
    assert {one.status for one in found} == {Status.TERMINATED}
    exploits = [record for record in log.read(tmp_path / "search") if record["event"] == "exploit"]
    assert exploits
    assert exploits[0]["source"] == found[1].trial_id
    own = [record["source"] for record in exploits if record["id"] == found[0].trial_id]
    assert [taken.source for taken in found[0].exploits] == own
    assert found.plot("lineage", metric="score", mode="max").axes[0].texts, "an arrow for each"
    assert found[0].metrics["score"] >= 2 * 100 + 6 * 1, "it went on from the other's state"
    assert found[0].metrics["training_iteration"] == 8
    for one in found:
        assert [report["training_iteration"] for report in one.metrics_history] == list(range(1, 9))


def test_a_trial_that_goes_on_as_another_one_goes_on_from_its_time(tmp_path: Path) -> None:
    """The results have the times that callbacks, and schedulers, have seen."""

    class Watch(tune.Callback):
        def __init__(self) -> None:
            self.seen: dict[str, list[float]] = collections.defaultdict(list)

        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            self.seen[trial.trial_id].append(result["time_total_s"])

    scheduler = schedulers.PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"rate": [1.0, 10.0, 100.0]},
        synch=True,
        quantile_fraction=0.5,
    )
    config = tune.TuneConfig(metric="score", mode="max", scheduler=scheduler)
    watch = Watch()
    run = tune.RunConfig(
        name="search", storage_path=tmp_path, verbose=0, callbacks=[watch], stop={"training_iteration": 8}
    )
    space = {"rate": tune.grid_search([1.0, 100.0])}
    found = tune.Tuner(climb, param_space=space, tune_config=config, run_config=run).fit()
    assert any(len(one.exploits) > 1 for one in found)
    assert max(one.metrics["experiment_tag"].count("@") for one in found) == 1, "the latest change alone"
    for one in found:
        assert [report["time_total_s"] for report in one.metrics_history] == pytest.approx(watch.seen[one.trial_id])


def test_population_based_bandits_go_on_after_a_restore(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn: pip install scikit-learn")

    def build() -> PB2:
        return PB2("training_iteration", perturbation_interval=2, hyperparam_bounds={"rate": [0.0, 1.0]}, synch=True)

    found = fit(Climb, tmp_path, {}, build(), 8, num_samples=3)
    assert sum(len(one.exploits) for one in found) >= 2
    assert all(0 <= one.config["rate"] <= 1 for one in found)
    config = tune.TuneConfig(metric="score", mode="max", scheduler=build(), seed=1, num_samples=4)
    more = tune.Tuner.restore(tmp_path / "search", Climb, tune_config=config).fit()
    assert len(more) == 4
    assert [one.config for one in more][:3] == [one.config for one in found]


@pytest.mark.parametrize("trainable", [climb, Climb])
def test_hyperband_pauses_and_goes_on(trainable: Any, tmp_path: Path) -> None:
    scheduler = schedulers.HyperBandScheduler(max_t=9, reduction_factor=3)
    space = {"rate": tune.uniform(1, 2)}
    found = fit(trainable, tmp_path, space, scheduler, 9, num_samples=9)
    assert {one.status for one in found} == {Status.TERMINATED}
    steps = sorted(len(one.metrics_history) for one in found)
    assert steps[-1] == 9
    assert steps[0] < 9
    for one in found:
        rate = one.config["rate"]
        scores = [report["score"] for report in one.metrics_history]
        assert scores == pytest.approx([rate * (step + 1) for step in range(len(scores))]), "nothing lost or twice"


def test_median_stopping(tmp_path: Path) -> None:
    scheduler = schedulers.MedianStoppingRule(time_attr="training_iteration", grace_period=2, min_samples_required=2)
    space = {"rate": tune.grid_search([5, 4, 1, 6])}
    found = fit(climb, tmp_path, space, scheduler, 6, max_concurrent_trials=1)
    assert [len(one.metrics_history) for one in found] == [6, 3, 2, 6], (
        "the second yields, and is then below the median"
    )


def test_a_scheduler_needs_a_metric(tmp_path: Path) -> None:
    tuner = tune.Tuner(climb, tune_config=tune.TuneConfig(scheduler=schedulers.ASHAScheduler()))
    with pytest.raises(ValueError, match=r"AsyncHyperBandScheduler compares trials, so it needs a metric and a mode"):
        tuner.fit()


def test_a_trainable_that_cannot_be_saved_fails_alone(tmp_path: Path) -> None:
    class Unsaved(tune.Trainable):
        def step(self) -> dict[str, Any]:
            return {"score": 1}

    scheduler = schedulers.PopulationBasedTraining(
        time_attr="training_iteration", perturbation_interval=1, hyperparam_mutations={"rate": [1.0, 2.0]}, synch=True
    )
    found = fit(Unsaved, tmp_path, {"rate": tune.grid_search([1.0, 2.0])}, scheduler, 3)
    failed = [one for one in found if one.status is Status.ERROR]
    assert failed, "the one that came first to the meeting, and was to be saved there"
    assert all("must have a method save_checkpoint" in str(one.error) for one in failed)


def test_a_search_of_paused_trials_goes_on(tmp_path: Path) -> None:
    """Ended in the middle by a callback that raises."""

    class Interrupt(tune.Callback):
        def __init__(self) -> None:
            self.count = 0

        def on_trial_result(self, *args: Any, **info: Any) -> None:
            self.count += 1
            if self.count == 20:
                raise ConnectionError("pulled the plug")

    def build() -> Any:
        return schedulers.HyperBandScheduler(max_t=9, reduction_factor=3)

    config = tune.TuneConfig(metric="score", mode="max", scheduler=build(), num_samples=9, seed=1)
    run = tune.RunConfig(name="search", storage_path=tmp_path, verbose=0, callbacks=[Interrupt()])
    with pytest.raises(ConnectionError, match="pulled the plug"):
        tune.Tuner(climb, param_space={"rate": tune.uniform(1, 2)}, tune_config=config, run_config=run).fit()
    stop = tune.RunConfig(verbose=0, stop={"training_iteration": 9})
    found = tune.Tuner.restore(tmp_path / "search", climb, run_config=stop).fit()
    assert len(found) == 9
    assert {one.status for one in found} == {Status.TERMINATED}, [str(one.error) for one in found if one.error]
    for one in found:
        scores = [report["score"] for report in one.metrics_history]
        assert scores == pytest.approx([one.config["rate"] * (step + 1) for step in range(len(scores))])
