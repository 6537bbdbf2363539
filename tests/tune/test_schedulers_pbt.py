"""PopulationBasedTraining against a transcription of the paper, and replays of what it has found."""

from __future__ import annotations

import json
import math
import pathlib
import random
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hocket.tune import errors
from hocket.tune import trial as trials
from hocket.tune.schedulers import (
    Policy,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    TrialControls,
    mutations,
    trace,
)
from hocket.tune.simulation import Simulation, simulate

CHANGES = {"x": [1, 2, 3]}


class Uniform:
    """A domain, as far as schedulers need one."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def sample(self, *, random_state: int | None = None) -> float:
        return random.Random(random_state).uniform(self.low, self.high)


class Choice:
    """A domain of values without an order."""

    def __init__(self, *categories: Any) -> None:
        self.categories = categories

    def sample(self, *, random_state: int | None = None) -> Any:
        return random.Random(random_state).choice(self.categories)


class Search:
    """A search that notes what it is asked for."""

    def __init__(self, scheduler: PopulationBasedTraining, count: int, status: str = "RUNNING") -> None:
        self.scheduler = scheduler
        self.trials = [
            trials.Trial(str(number), number, {"x": 2, "number": number}, f"{number}_x=2", trials.Status(status))
            for number in range(count)
        ]
        self.exploits: list[tuple[int, int, dict[str, Any], str]] = []
        self.saved: list[int] = []
        for trial in self.trials:
            trial.checkpoint = "checkpoint"
            scheduler.on_trial_add(self.controls, trial)

    @property
    def controls(self) -> TrialControls:
        return cast(TrialControls, self)

    def get_trials(self) -> list[trials.Trial]:
        return [trial for trial in self.trials if not trial.is_finished]

    def save_trial(self, trial: trials.Trial) -> None:
        self.saved.append(trial.number)

    def exploit(self, trial: trials.Trial, source: trials.Trial, config: dict[str, Any], tag: str = "") -> None:
        self.exploits.append((trial.number, source.number, config, tag))
        trial.config = config

    def report(self, number: int, time: float, score: float, **more: Any) -> str:
        trial = self.trials[number]
        trial.status = trials.Status.RUNNING
        decision = self.scheduler.on_trial_result(
            self.controls, trial, {"training_iteration": time, "score": score} | more
        )
        if decision == "PAUSE":
            trial.status = trials.Status.PAUSED
        return decision

    def finish(self, number: int, *, fails: bool = False) -> None:
        trial = self.trials[number]
        trial.status = trials.Status.ERROR if fails else trials.Status.TERMINATED
        if fails:
            self.scheduler.on_trial_error(self.controls, trial)
        else:
            self.scheduler.on_trial_complete(self.controls, trial, {})

    def choose(self) -> int | None:
        chosen = self.scheduler.choose_trial_to_run(self.controls)
        return None if chosen is None else chosen.number


def make_pbt(**settings: Any) -> PopulationBasedTraining:
    defaults: dict[str, Any] = {
        "time_attr": "training_iteration",
        "perturbation_interval": 4,
        "hyperparam_mutations": CHANGES,
    }
    return PopulationBasedTraining(**defaults | settings)


def make_search(count: int = 4, **settings: Any) -> Search:
    return Search(make_pbt(metric="score", mode="max", **settings), count)


def climb(config: dict[str, Any], step: int, height: float) -> tuple[float, float] | None:
    """Rise by x with each of 20 steps."""
    return (height + config["x"],) * 2 if step <= 20 else None


def run_population(num_workers: int = 4, count: int = 8, **settings: Any) -> tuple[PopulationBasedTraining, Simulation]:
    pbt = make_pbt(**settings)
    run = simulate(
        pbt,
        [climb] * count,
        num_workers=num_workers,
        metric="height",
        mode="max",
        configs=[{"x": 1 + number % 3, "fixed": number} for number in range(count)],
        state=0,
    )
    return pbt, run


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("fraction", [0, 0.1, 0.25, 0.4, 0.5])
@pytest.mark.parametrize("count", [1, 2, 5, 10])
def test_truncation_is_the_papers(mode: str, fraction: float, count: int) -> None:
    """The worst of those that have a score go on as one of the best, each when its interval has passed."""
    rng = random.Random(count)
    search = Search(make_pbt(metric="score", mode=mode, quantile_fraction=fraction), count)
    scores: dict[int, float] = {}
    for time in (4, 8, 12):
        for number in rng.sample(range(count), count):
            search.exploits.clear()
            scores[number] = rng.random()
            assert search.report(number, time, scores[number]) == "CONTINUE"
            ranked = sorted(scores, key=lambda other: scores[other] if mode == "max" else -scores[other])
            size = min(math.ceil(len(ranked) * fraction), len(ranked) // 2)
            if number in ranked[:size]:
                ((target, source, config, _),) = search.exploits
                assert target == number
                assert source in ranked[-size:]
                assert config["number"] == search.trials[source].config["number"]
            else:
                assert search.exploits == []
                assert (number in search.saved) is (size > 0 and number in ranked[-size:])
            search.saved.clear()


@pytest.mark.parametrize("num_workers", [1, 3, 8])
def test_population_is_kept_and_gets_better(num_workers: int) -> None:
    pbt, run = run_population(num_workers, synch=True)
    assert [trial.ending for trial in run.trials] == ["complete"] * 8
    heights = [trial.state for trial in run.trials]
    assert min(heights) > 20  # what those with x=1 would come to
    assert sum(heights) > 20 * sum(1 + number % 3 for number in range(8))
    assert len(pbt.policies) == sum(event.kind == "exploit" for event in run.events) > 4


def test_decisions_of_a_meeting_do_not_depend_on_the_workers() -> None:
    found = [run_population(num_workers, synch=True, seed=5)[0].policies for num_workers in (1, 2, 5, 8)]
    assert found[0] == found[1] == found[2] == found[3] != []


def test_chances_come_from_the_seed_of_the_scheduler_or_the_search() -> None:
    assert run_population(seed=1)[0].policies == run_population(seed=1)[0].policies
    assert run_population(seed=1)[0].policies != run_population(seed=2)[0].policies
    assert run_population()[0].policies == run_population(seed=0)[0].policies  # simulate()'s seed


VALUES = st.floats(-9, 9) | st.sampled_from([math.nan, {}, OSError("gone")])


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(VALUES, max_size=15), max_size=9),
    st.booleans(),
    st.integers(1, 4),
    st.floats(0.5, 6),
    st.floats(0, 8),
    st.integers(1, 9),
)
@example(
    [[{}, 1.0, 0.0], [0.0], [-1.0]], True, 2, 1.0, 0.0, 1
)  # one that exploits another is at the next meeting already
def test_all_end_whatever_the_curves(
    curves: list[list[Any]], synch: bool, num_workers: int, interval: float, burn_in: float, max_pending: int
) -> None:
    logs = []
    for _ in range(2):
        pbt = make_pbt(synch=synch, perturbation_interval=interval, burn_in_period=burn_in, require_attrs=False)
        num_left = [4 * len(curve) for curve in curves]

        def follow(config: dict[str, Any], step: int, state: int, num_left: list[int] = num_left) -> Any:
            number = config["number"]
            num_left[number] -= 1  # those that always go back to others end too
            curve = curves[number]
            return (curve[step - 1], state) if step <= len(curve) and num_left[number] >= 0 else None

        run = simulate(
            pbt,
            [follow] * len(curves),
            num_workers=num_workers,
            metric="score",
            mode="max",
            configs=[{"number": number} for number in range(len(curves))],
            max_pending=max_pending,
        )
        logs.append(run.events)
        assert {trial.ending for trial in run.trials} <= {"complete", "error"}
        for event in run.events:
            assert event.kind != "exploit" or event.seconds >= min(burn_in, interval)
    assert logs[0] == logs[1]


def test_nothing_is_changed_before_the_interval_and_the_burn_in() -> None:
    search = make_search(2, burn_in_period=6, quantile_fraction=0.5)
    for time in range(1, 6):
        for number in (1, 0):
            search.report(number, time, number)
    assert search.exploits == []
    search.report(1, 6, 1)
    search.report(0, 6, 0)
    search.report(0, 9, 0)
    assert len(search.exploits) == 1
    search.report(0, 10, 0)
    assert len(search.exploits) == 2


def test_nan_goes_on_as_another() -> None:
    search = make_search(2)
    search.report(0, 4, -1e9)
    search.report(1, 4, math.nan)
    assert [(target, source) for target, source, _, _ in search.exploits] == [(1, 0)]


def test_nobody_goes_on_from_a_trial_without_checkpoint() -> None:
    search = make_search(2)
    search.trials[0].checkpoint = None
    search.report(0, 4, 1)
    assert search.report(1, 4, 0) == "CONTINUE"
    assert search.exploits == []


def test_trials_that_save_nothing_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    search = make_search(2)
    for trial in search.trials:
        trial.checkpoint = None
    search.report(0, 4, 1)
    search.report(1, 4, 0)
    assert not caplog.messages  # one may save yet
    search.finish(0)
    search.finish(1)
    (line,) = caplog.messages
    assert line.startswith(
        "PopulationBasedTraining left a trial unchanged 1 times, because none of the better trials had"
    )
    assert "tune.report(metrics, checkpoint=...)" in line


def test_trial_gives_way_to_those_that_wait() -> None:
    search = make_search(3)
    search.trials[2].status = trials.Status.PENDING
    assert search.report(0, 3, 1) == "CONTINUE"
    assert search.report(0, 4, 1) == "PAUSE"
    assert search.choose() == 2
    search.trials[2].status = trials.Status.RUNNING
    assert search.choose() == 0


def test_trials_meet() -> None:
    search = make_search(4, synch=True)
    assert [search.report(number, 4, number) for number in (3, 1)] == ["PAUSE"] * 2
    assert search.choose() is None
    assert search.report(2, 7, 2) == "PAUSE"
    assert search.report(0, 3, 9) == "CONTINUE"
    assert search.report(0, 4, 0) == "CONTINUE"  # or what exploit() says
    assert [exploit[:2] for exploit in search.exploits] == [(0, 3)]
    assert search.choose() == 1  # all go on, those first that have come least far


@pytest.mark.parametrize("fails", [True, False])
def test_meeting_does_not_wait_for_trials_that_have_ended(fails: bool) -> None:
    search = make_search(3, synch=True)
    assert [search.report(number, 4, number) for number in (0, 1)] == ["PAUSE"] * 2
    search.finish(2, fails=fails)
    assert [exploit[:2] for exploit in search.exploits] == [(0, 1)]
    assert search.choose() == 0


def test_reports_further_apart_than_the_interval_do_not_end_the_meetings() -> None:
    search = make_search(2, synch=True)
    for time in (100, 200, 300):
        assert search.report(0, time, 0) == "PAUSE"
        assert search.report(1, time, 1) == "CONTINUE"
        assert search.choose() == 0


def test_tag_and_policy_say_what_has_changed() -> None:
    search = make_search(2)
    search.report(0, 4, 1)
    search.report(0, 5, 1)
    search.report(1, 6, 0)
    ((_, _, config, tag),) = search.exploits
    assert tag == f"@perturbed[x={config['x']}]"
    (policy,) = search.scheduler.policies
    assert policy.to_row() == ["1_x=2", "0_x=2", 6, 5, {"x": 2, "number": 0}, config]
    assert search.scheduler.debug_string() == "PopulationBasedTraining: 2 trials, 1 changes"


def test_policies_are_left_out_if_they_are_not_wanted() -> None:
    assert run_population(log_config=False)[0].policies == []


def test_trials_get_what_their_configurations_lack() -> None:
    pbt = make_pbt(
        metric="score",
        mode="max",
        hyperparam_mutations={"x": Uniform(5, 6), "y": [7], "z": {"a": lambda: 8, "b": Uniform(0, 1)}},
    )
    search = Search(pbt, 2)
    config = search.trials[0].config
    assert config == {"x": 2, "number": 0, "y": 7, "z": {"a": 8, "b": config["z"]["b"]}}
    assert pbt.complete_config({"x": 2, "number": 0}, 0) == config
    assert pbt.complete_config({"x": 2}, 1)["z"]["b"] != config["z"]["b"]


def explore(old: Any, source: Any, resample_probability: float = 0, seed: int = 0) -> Any:
    drawn = random.Random(seed)
    return mutations.explore({"x": old}, {"x": source}, drawn, resample_probability, (1.2, 0.8))["x"]


def test_mutations_of_the_paper() -> None:
    assert {explore(10.0, Uniform(0, 1), seed=seed) for seed in range(20)} == {12.0, 8.0}
    assert {explore(10, Uniform(0, 1), seed=seed) for seed in range(20)} == {12, 8}
    assert {explore(3, lambda: 0, seed=seed) for seed in range(20)} == {4, 2}
    assert {explore(2, [1, 2, 3], seed=seed) for seed in range(20)} == {1, 3}
    assert {explore(1, [1, 2, 3], seed=seed) for seed in range(20)} == {1, 2}
    assert {explore(9, [1, 2, 3], seed=seed) for seed in range(50)} == {1, 2, 3}
    assert {explore("b", Choice("a", "b", "c"), seed=seed) for seed in range(20)} == {"a", "c"}
    assert {explore(True, lambda: 0, seed=seed) for seed in range(20)} == {True}
    assert {explore({"y": 1.0}, {"y": Uniform(0, 1)}, seed=seed)["y"] for seed in range(20)} == {1.2, 0.8}
    assert explore("sgd", lambda: "adam") == "adam"


def test_mutations_draw_anew() -> None:
    assert explore(10, lambda: 3, 1) == 3
    assert explore(True, lambda: 0, 1) is False
    assert 0 < explore(10.0, Uniform(0, 1), 1) < 1
    assert {explore(2, [1, 2, 3], 1, seed) for seed in range(50)} == {1, 2, 3}
    drawn = [explore(10.0, Uniform(0, 1), 0.25, seed) < 1 for seed in range(1000)]
    assert sum(drawn) == pytest.approx(250, abs=50)


def test_exploration_changes_a_copy() -> None:
    config = {"x": 2.0, "z": {"y": [1]}}
    changed = mutations.explore(config, {"x": Uniform(0, 1)}, random.Random(0), 0, (2,))
    changed["z"]["y"].append(2)
    assert config == {"x": 2.0, "z": {"y": [1]}}


def test_custom_exploration_comes_last() -> None:
    search = make_search(2, custom_explore_fn=lambda config: config | {"x": 40 + config["x"]})
    search.report(0, 4, 1)
    search.report(1, 4, 0)
    assert search.exploits[0][2]["x"] > 40
    search = make_search(2, custom_explore_fn=lambda config: None, hyperparam_mutations=None)
    search.report(0, 4, 1)
    with pytest.raises(errors.TuneError, match="must return the configuration that a trial goes on with"):
        search.report(1, 4, 0)


@pytest.mark.parametrize(
    ("result", "missing"), [({"score": 1}, "training_iteration"), ({"training_iteration": 1}, "score")]
)
def test_what_is_required_is_missing(result: dict[str, Any], missing: str) -> None:
    search = make_search()
    with pytest.raises(errors.TuneError, match=f"needs '{missing}' in each report, but trial 0 has reported"):
        search.scheduler.on_trial_result(search.controls, search.trials[0], result)
    search = make_search(require_attrs=False)
    assert search.scheduler.on_trial_result(search.controls, search.trials[0], result) == "CONTINUE"


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"perturbation_interval": 0}, ValueError, "perturbation_interval must be a number, more than 0"),
        ({"burn_in_period": -1}, ValueError, "burn_in_period must be a number, 0 or more"),
        ({"quantile_fraction": 0.6}, ValueError, "quantile_fraction must be a number, 0 or more, and 0.5 or less"),
        ({"resample_probability": 2}, ValueError, "resample_probability must be a number, 0 or more, and 1 or less"),
        ({"perturbation_factors": ()}, ValueError, r"perturbation_factors must be numbers, but received \(\)"),
        ({"perturbation_factors": ("a",)}, ValueError, "perturbation_factors must be numbers"),
        (
            {"hyperparam_mutations": None},
            errors.TuneError,
            "needs the hyperparameters that it may change, but received None",
        ),
        ({"hyperparam_mutations": [1]}, TypeError, "hyperparam_mutations must be a dict"),
        ({"hyperparam_mutations": {"x": 1}}, TypeError, r"hyperparam_mutations\['x'\] must be a list, a domain"),
        (
            {"hyperparam_mutations": {"x": {"y": []}}},
            ValueError,
            r"hyperparam_mutations\['x'\]\['y'\] must not be empty",
        ),
        ({"custom_explore_fn": 1}, TypeError, "custom_explore_fn must be a function"),
        ({"seed": "a"}, ValueError, "seed must be a whole number"),
        ({"mode": "best"}, ValueError, "mode must be 'min' or 'max'"),
    ],
)
def test_bad_arguments(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_pbt(**settings)


# --- replays ----------------------------------------------------------------------------------------------------------


def replay(policies: Any) -> Simulation:
    scheduler = PopulationBasedTrainingReplay(policies)
    return simulate(scheduler, [climb], metric="height", mode="max", state=0, configs=[{"x": 1}])


def test_replay_comes_to_the_height_of_the_trial_that_it_follows(tmp_path: pathlib.Path) -> None:
    pbt, run = run_population(synch=True)
    for number, trial in enumerate(run.trials):
        policies = trace(pbt.policies, str(number))
        if policies:
            heights = [replay(policies).trials[0].state]
            path = tmp_path / f"pbt_policy_{number}.txt"
            path.write_text("".join(json.dumps(policy.to_row()) + "\n" for policy in policies))
            heights += [replay(source).trials[0].state for source in (path, str(path))]
            assert heights == [trial.state] * 3


def test_lineage_leaves_out_what_was_overwritten() -> None:
    def make(tag: str, source: str, time: int) -> Policy:
        return Policy(tag=tag, source_tag=source, time=time, source_time=time, old_config={}, new_config={})

    policies = [make("a", "b", 1), make("c", "d", 1), make("b", "a", 2), make("a", "c", 3), make("b", "d", 4)]
    assert trace(policies, "a") == [policies[1], policies[3]]
    assert trace(policies, "d") == []


def test_replay_takes_the_last_of_the_changes_that_are_due() -> None:
    rows = [["b", "a", 2, 2, {"x": 1}, {"x": 2}], ["c", "b", 3, 3, {"x": 2}, {"x": 3}]]
    scheduler = PopulationBasedTrainingReplay(rows)
    curve = [{"training_iteration": step} for step in (1, 5, 6)]
    run = simulate(scheduler, [curve], metric="height", mode="max")
    assert [event.step for event in run.events if event.kind == "exploit"] == [2]
    assert run.trials[0].trial.config == {"x": 3}
    assert scheduler.debug_string() == "PopulationBasedTrainingReplay: 2 of 2 changes"


def test_replay_runs_one_trial() -> None:
    with pytest.raises(ValueError, match="runs one trial, because more trials would only repeat it"):
        simulate(
            PopulationBasedTrainingReplay([["b", "a", 2, 2, {"x": 1}, {"x": 2}]]), [[1], [2]], metric="a", mode="max"
        )


def test_replay_of_nothing() -> None:
    assert replay([]).trials[0].state == 20
    with pytest.raises(ValueError, match="has no policies, and the trial has no configuration"):
        simulate(PopulationBasedTrainingReplay([]), [[1]], metric="a", mode="max")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2", r"line 1 of .* is '\[1, 2'"),
        ("[1, 2]\n", r"line 1 of .* is \[1, 2\]"),
        ('["b", "a", 1, 1, {}, {}]\n{}\n', "line 2 of .* is {}"),
        ('["b", "a", 1, 1, {}, 3]\n', "A policy must be a list"),
    ],
)
def test_bad_policies(tmp_path: pathlib.Path, text: str, message: str) -> None:
    path = tmp_path / "policy.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        PopulationBasedTrainingReplay(path)


def test_missing_policy_file(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file .*none\.txt"):
        PopulationBasedTrainingReplay(tmp_path / "none.txt")
    with pytest.raises(ValueError, match="row 0 is 3"):
        PopulationBasedTrainingReplay(
            [3]  # type: ignore[list-item]
        )
