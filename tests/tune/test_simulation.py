"""Simulated time: what is computed when, and what a scheduler may ask for."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from hocket.tune import trial as trials
from hocket.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    TrialControls,
    TrialScheduler,
)
from hocket.tune.simulation import Event, simulate


class Scripted(FIFOScheduler):
    """Does what a test says, after the first report of trial 0."""

    def __init__(self, act: Any) -> None:
        self.act = act
        self.calls: list[str] = []

    def on_trial_result(self, controls: TrialControls, trial: trials.Trial, result: Mapping[str, Any]) -> Any:
        assert trial.status is trials.Status.RUNNING
        self.calls.append(f"{trial.number} result {result['training_iteration']}")
        act, self.act = self.act, None
        return act(controls, trial) if act is not None else "CONTINUE"

    def on_trial_complete(self, controls: TrialControls, trial: trials.Trial, result: Mapping[str, Any]) -> None:
        self.calls.append(f"{trial.number} complete {result.get('training_iteration')}")

    def on_trial_error(self, controls: TrialControls, trial: trials.Trial) -> None:
        self.calls.append(f"{trial.number} error")

    def on_trial_remove(self, controls: TrialControls, trial: trials.Trial) -> None:
        self.calls.append(f"{trial.number} remove")


def test_events_of_two_workers() -> None:
    run = simulate(
        FIFOScheduler(), [[1, 2], [3], [4]], metric="a", mode="max", num_workers=2, costs=[2, [5], [0.5, 1.0]]
    )
    assert [event for event in run.events if event.kind in ("report", "complete")] == [
        Event(2.0, 0, "report", 1),
        Event(4.0, 0, "report", 2),
        Event(4.0, 0, "complete", 2),
        Event(4.5, 2, "report", 1),
        Event(4.5, 2, "complete", 1),
        Event(5.0, 1, "report", 1),
        Event(5.0, 1, "complete", 1),
    ]
    assert {event.kind for event in run.events} == {"add", "start", "report", "complete"}
    assert run.seconds == 5
    assert run.num_steps == 4
    assert run.trials[0].results[1] == {"training_iteration": 2, "time_total_s": 4, "a": 2}


def test_next_trial_is_proposed_before_it_can_begin() -> None:
    seen = []

    class Looking(FIFOScheduler):
        def on_trial_result(self, controls: TrialControls, trial: trials.Trial, result: Mapping[str, Any]) -> Any:
            seen.append([str(other.status) for other in controls.get_trials()])
            return self.CONTINUE

    simulate(Looking(), [[1], [2], [3], [4]], metric="a", mode="max", max_pending=2)
    assert seen == [["RUNNING", "PENDING", "PENDING"]] * 2 + [["RUNNING", "PENDING"], ["RUNNING"]]


def test_endings() -> None:
    scheduler = Scripted(None)
    run = simulate(scheduler, [[1, OSError("gone"), 3], [], [{"b": 1}]], metric="a", mode="max")
    assert [trial.ending for trial in run.trials] == ["error", "complete", "complete"]
    assert [trial.trial.status for trial in run.trials] == ["ERROR", "TERMINATED", "TERMINATED"]
    assert scheduler.calls == ["0 result 1", "0 error", "1 complete None", "2 result 1", "2 complete 1"]
    assert run.trials[2].results == [{"training_iteration": 1, "time_total_s": 1, "b": 1}]


def test_paused_trials_are_ended_when_nothing_is_left() -> None:
    class Forgetful(Scripted):
        def choose_trial_to_run(self, controls: TrialControls) -> trials.Trial | None:
            return TrialScheduler.choose_trial_to_run(self, controls)

    scheduler = Forgetful(lambda controls, trial: "PAUSE")
    run = simulate(scheduler, [[1, 2], [3]], metric="a", mode="max")
    assert [trial.ending for trial in run.trials] == ["remove", "complete"]
    assert scheduler.calls == ["0 result 1", "1 result 1", "1 complete 1", "0 remove"]


def test_stopping_others() -> None:
    def act(controls: TrialControls, trial: trials.Trial) -> str:
        for other in controls.get_trials():
            controls.stop_trial(other)
            controls.stop_trial(other)
        return "CONTINUE"

    scheduler = Scripted(act)
    run = simulate(scheduler, [[1, 2], [3, 4], [5, 6], [7]], metric="a", mode="max", num_workers=2)
    # Trial 1 ran, and ends with its next report, which is not shown; trial 2 was pending.
    assert [(trial.ending, trial.steps) for trial in run.trials] == [
        ("stop", 1),
        ("stop", 1),
        ("stop", 0),
        ("complete", 1),
    ]
    assert scheduler.calls == ["0 result 1", "3 result 1", "3 complete 1"]


def test_exploiting() -> None:
    def act(controls: TrialControls, trial: trials.Trial) -> str:
        controls.save_trial(trial)
        controls.exploit(trial, controls.get_trials()[1], {"x": 5}, "@new")
        return "STOP"

    def count(config: dict[str, Any], step: int, state: tuple[int, ...]) -> Any:
        return (config["x"], (*state, config["x"])) if step <= 3 else None

    configs = [{"x": 1}, {"x": 2}]

    class Later(Scripted):
        def on_trial_result(self, controls: TrialControls, trial: trials.Trial, result: Mapping[str, Any]) -> Any:
            if trial.number == 0 and trial.config["x"] == 1:
                return act(controls, trial)
            return "CONTINUE"

    run = simulate(
        Later(None), [count] * 2, metric="a", mode="max", num_workers=2, configs=configs, costs=[2.5, 1], state=()
    )
    first = run.trials[0]
    assert first.state == (2, 2, 5)
    assert (first.steps, first.num_computed, first.seconds) == (3, 2, 2 + 2.5)
    assert first.trial.experiment_tag == "0@new"
    assert [result["training_iteration"] for result in first.results] == [1, 3]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda controls, trial: controls.save_trial(controls.get_trials()[1]),
            "save_trial.. is for the trial that has",
        ),
        (
            lambda controls, trial: controls.exploit(trial, controls.get_trials()[1], {}),
            "Trial 00000 cannot go on from 00001, which has no checkpoint",
        ),
        (
            lambda controls, trial: controls.exploit(controls.get_trials()[1], trial, {}),
            "is for a trial that waits, but 00001 is RUNNING",
        ),
    ],
)
def test_what_a_scheduler_cannot_do(act: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        simulate(Scripted(act), [[1, 2], [3, 4]], metric="a", mode="max", num_workers=2)


def test_scheduler_cannot_run_what_runs() -> None:
    class Stubborn(FIFOScheduler):
        def choose_trial_to_run(self, controls: TrialControls) -> trials.Trial | None:
            return controls.get_trials()[0]

    with pytest.raises(RuntimeError, match="chose trial 00000 to run, but it is RUNNING"):
        simulate(Stubborn(), [[1], [2]], metric="a", mode="max", num_workers=2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "best"}, "mode must be 'min' or 'max', but received 'best'"),
        ({"num_workers": 0}, "num_workers must be 1 or more, but received 0"),
        ({"max_pending": 0}, "max_pending must be 1 or more, but received 0"),
        ({"costs": [1, 2]}, "costs must have one entry for each of the 1 curves, but received 2"),
        ({"configs": []}, "configs must have one entry for each of the 1 curves, but received 0"),
        (
            {"scheduler": ASHAScheduler(metric="b", mode="max")},
            "was made with metric='b' and mode='max', but received 'a'",
        ),
    ],
)
def test_bad_arguments(settings: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"scheduler": FIFOScheduler(), "curves": [[1]], "metric": "a", "mode": "max"} | settings
    with pytest.raises(ValueError, match=message):
        simulate(**given)


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheduler",
    [
        ASHAScheduler(max_t=27, reduction_factor=3),
        HyperBandScheduler(max_t=27),
        HyperBandForBOHB(max_t=27),
        MedianStoppingRule("training_iteration", grace_period=3),
    ],
    ids=lambda scheduler: type(scheduler).__name__,
)
def test_ten_thousand_trials(scheduler: TrialScheduler) -> None:
    rng = random.Random(0)
    curves = [
        [quality * (1 - 0.9**step) + rng.gauss(0, 0.02) for step in range(27)]
        for quality in (rng.random() for _ in range(10_000))
    ]
    run = simulate(scheduler, curves, metric="acc", mode="max", num_workers=64)
    assert {trial.ending for trial in run.trials} <= {"stop", "complete"}
    assert run.num_steps < 0.5 * 10_000 * 27
    best = max(curve[-1] for curve in curves)
    assert max(curve[-1] for curve, trial in zip(curves, run.trials, strict=True) if trial.steps == 27) > 0.9 * best
