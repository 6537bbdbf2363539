"""MedianStoppingRule against a transcription of Vizier's rule, and against Ray's."""

from __future__ import annotations

import math
import random
import statistics
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.tune import trial as trials
from hocket.tune.schedulers import MedianStoppingRule, TrialControls
from hocket.tune.simulation import simulate

VALUES = st.floats(-1e3, 1e3) | st.sampled_from([math.nan, math.inf, -math.inf])


class Controls:
    """A search without trials that wait, but those that are given."""

    def __init__(self, *waiting: trials.Trial) -> None:
        self.waiting = waiting

    def get_trials(self) -> tuple[trials.Trial, ...]:
        return self.waiting


def make_controls(*waiting: trials.Trial) -> TrialControls:
    return cast(TrialControls, Controls(*waiting))


def make_trial(number: int, status: trials.Status = trials.Status.RUNNING) -> trials.Trial:
    return trials.Trial(str(number), number, {}, status=status)


def is_stopped_naively(reports: list[tuple[int, float, float]], grace: float, min_samples: int) -> bool:
    """Return whether the last of all reports, each (number, time, score), ends its trial."""
    asking, now, _ = reports[-1]
    if now < grace:
        return False
    means = []
    for other in {number for number, _, _ in reports} - {asking}:
        curve = [(time, score) for number, time, score in reports if number == other]
        counted = [score for time, score in curve if grace <= time <= now]
        if max(time for time, _ in curve) >= now and counted:
            means.append(statistics.fmean(counted))
    best = max(score for number, _, score in reports if number == asking)
    return len(means) >= min_samples and best < statistics.median(means)


def draw_curves(rng: random.Random, count: int) -> list[list[float]]:
    return [
        [quality * step**0.5 + rng.gauss(0, 1) for step in range(1, 16)] for quality in rng.choices(range(5), k=count)
    ]


@pytest.mark.parametrize("time_attr", ["training_iteration", "time_total_s"])
@pytest.mark.parametrize("mode", ["max", "min"])
def test_decisions_are_the_rules(time_attr: str, mode: str) -> None:
    rng = random.Random(7)
    curves = draw_curves(rng, 40)
    costs = [rng.uniform(0.5, 2) for _ in curves]
    rule = MedianStoppingRule(time_attr, grace_period=2, min_samples_required=3)
    run = simulate(rule, curves, num_workers=8, metric="score", mode=mode, costs=costs)
    sign = 1 if mode == "max" else -1
    reports: list[tuple[int, float, float]] = []
    stopped = set()
    for event in run.events:
        if event.kind == "report":
            result = run.trials[event.number].results[event.step - 1]
            reports.append((event.number, result[time_attr], sign * result["score"]))
            if is_stopped_naively(reports, 2, 3):
                stopped.add((event.number, event.step))
    assert stopped == {(number, trial.steps) for number, trial in enumerate(run.trials) if trial.ending == "stop"}
    assert 5 < len(stopped) < 40


@pytest.mark.slow  # Ray is imported
@pytest.mark.parametrize("time_attr", ["training_iteration", "time_total_s"])
@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("hard", [True, False])
def test_decisions_are_rays(time_attr: str, mode: str, hard: bool) -> None:
    ray = pytest.importorskip("ray.tune.schedulers", reason="needs Ray: pip install 'hocket[ray]'")
    settings: dict[str, Any] = {
        "time_attr": time_attr, "metric": "score", "mode": mode, "grace_period": 3, "min_samples_required": 4, "hard_stop": hard,
    }  # fmt: skip
    theirs, ours = ray.MedianStoppingRule(**settings), MedianStoppingRule(**settings)
    rng = random.Random(5)
    curves = draw_curves(rng, 50)
    speeds = [rng.uniform(0.5, 2) for _ in curves]
    stubs = [SimpleNamespace(trial_id=str(number)) for number in range(50)]
    # Ray's keys are trials, so they must be hashable.
    keys = [type("Stub", (), vars(stub))() for stub in stubs]
    steps, live, num_stopped = [0] * 50, list(range(50)), 0
    runner = SimpleNamespace(get_live_trials=list)
    while live:
        number = rng.choice(live)
        steps[number] += 1
        result = {
            "training_iteration": steps[number],
            "time_total_s": steps[number] * speeds[number],
            "score": curves[number][steps[number] - 1],
        }
        decision = ours.on_trial_result(make_controls(), make_trial(number), result)
        assert decision == theirs.on_trial_result(runner, keys[number], result), (number, result)
        num_stopped += decision != "CONTINUE"
        if steps[number] == 15 or decision != "CONTINUE":
            live.remove(number)
    assert 5 < num_stopped < 45


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(VALUES, max_size=10), max_size=10),
    st.integers(0, 5),
    st.integers(1, 4),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from(["training_iteration", "time_total_s"]),
)
def test_no_trial_is_stopped_before_its_time_and_all_end(
    curves: list[list[float]], grace: int, samples: int, num_workers: int, hard: bool, time_attr: str
) -> None:
    runs = [
        simulate(
            MedianStoppingRule(time_attr, grace_period=grace, min_samples_required=samples, hard_stop=hard),
            curves,
            num_workers=num_workers,
            metric="loss",
            mode="min",
            costs=[1 + number % 3 for number in range(len(curves))],
        )
        for _ in range(2)
    ]
    assert runs[0].events == runs[1].events
    for curve, trial in zip(curves, runs[0].trials, strict=True):
        if trial.ending == "stop":
            assert hard
            assert trial.results[-1][time_attr] >= grace
        else:
            assert trial.ending == "complete"
            assert trial.steps == len(curve)


def test_best_trial_is_never_stopped() -> None:
    rng = np.random.default_rng(0)
    curves = [list(map(float, rng.normal(size=20))) for _ in range(20)] + [[9.0] * 20]
    rule = MedianStoppingRule("training_iteration", grace_period=0)
    run = simulate(rule, curves, num_workers=4, metric="acc", mode="max")
    assert run.trials[-1].steps == 20


def report(rule: MedianStoppingRule, number: int, time: float, score: float, *waiting: trials.Trial) -> str:
    return rule.on_trial_result(make_controls(*waiting), make_trial(number), {"t": time, "s": score})


def make_rule(**settings: Any) -> MedianStoppingRule:
    return MedianStoppingRule("t", "s", "max", **{"grace_period": 1, "min_samples_required": 2} | settings)


def test_times_that_come_again_do_not_count_again() -> None:
    rule = make_rule(min_samples_required=1)
    report(rule, 0, 1, 0.0)
    report(rule, 0, 2, 2.0)
    for _ in range(3):
        report(rule, 0, 1, 100.0)  # it went back to a checkpoint
    report(rule, 0, 3, 4.0)
    assert report(rule, 1, 3, 2.0) == "CONTINUE"  # the mean is 2
    assert report(rule, 2, 3, 1.9) == "STOP"


def test_reports_may_skip_times() -> None:
    rule = make_rule()
    for number, score in enumerate((1.0, 3.0, 5.0)):
        report(rule, number, 2, score)
        report(rule, number, 9, 100.0)
    assert report(rule, 3, 4, 2.9) == "STOP"  # the others' means until 4 are those at 2
    assert report(rule, 4, 4, 3.1) == "CONTINUE"  # trial 3 has come to 4 too; the median is 2.95
    assert report(rule, 5, 4, 2.94) == "STOP"


def test_nan_is_below_any_number() -> None:
    rule = make_rule()
    report(rule, 0, 1, 1.0)
    report(rule, 1, 1, 2.0)
    report(rule, 2, 1, 1.5)
    assert report(rule, 3, 1, math.nan) == "STOP"
    assert report(rule, 4, 1, 1.2) == "STOP"  # the median of NaN, 1, 1.5 and 2 is 1.25
    assert report(rule, 5, 1, 1.3) == "CONTINUE"


@pytest.mark.parametrize("result", [{}, {"t": 1}, {"s": 1}, {"t": math.nan, "s": 0}])
def test_report_without_metric_or_time_is_left_alone(result: dict[str, Any]) -> None:
    rule = make_rule()
    report(rule, 0, 1, 1.0)
    report(rule, 1, 1, 2.0)
    assert rule.on_trial_result(make_controls(), make_trial(2), result) == "CONTINUE"


def test_trial_gives_way_only_to_those_that_are_behind() -> None:
    rule = make_rule(min_time_slice=2)
    new, ahead = make_trial(1, trials.Status.PENDING), make_trial(2, trials.Status.PAUSED)
    report(rule, 2, 10, 1.0)
    assert report(rule, 0, 1, 1.0, ahead) == "CONTINUE"
    assert report(rule, 0, 2, 1.0, ahead, new) == "PAUSE"
    assert report(rule, 0, 3, 1.0, ahead, new) == "CONTINUE"
    assert report(rule, 0, 4, 1.0, ahead, new) == "CONTINUE"
    assert report(rule, 0, 5, 1.0, ahead, new) == "PAUSE"


def test_paused_trials_go_on_when_all_others_have_ended() -> None:
    rule = MedianStoppingRule("training_iteration", grace_period=1, min_samples_required=1, hard_stop=False)
    run = simulate(rule, [[5, 5], [1, 1], [6]], metric="acc", mode="max")
    starts = [(event.number, event.kind) for event in run.events if event.kind in ("start", "pause", "complete")]
    assert starts == [
        (0, "start"), (0, "pause"), (1, "start"), (1, "pause"), (2, "start"), (2, "complete"),
        (0, "start"), (0, "complete"), (1, "start"), (1, "complete"),
    ]  # fmt: skip
    assert rule.debug_string() == "MedianStoppingRule: 1 stopped"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"grace_period": -1}, "grace_period must be a number, 0 or more, but received -1"),
        ({"min_samples_required": 0}, "min_samples_required must be a whole number, 1 or more"),
        ({"min_time_slice": -1}, "min_time_slice must be a number, 0 or more"),
        ({"mode": "best"}, "mode must be 'min' or 'max'"),
        ({"metric": 3}, "metric must be the name of a number"),
        ({"time_attr": None}, "time_attr must be the name of a growing number"),
    ],
)
def test_bad_arguments(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MedianStoppingRule(**settings)
