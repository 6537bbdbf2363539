"""AsyncHyperBandScheduler against a transcription of the algorithm, and against Ray's."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.tune import trial as trials
from hocket.tune.schedulers import ASHAScheduler, AsyncHyperBandScheduler, TrialControls
from hocket.tune.schedulers.async_hyperband import interpolate
from hocket.tune.simulation import Simulation, simulate

NO_CONTROLS = cast(TrialControls, None)
SCORES = st.floats(-1e6, 1e6, allow_nan=False)
CURVES = st.lists(st.lists(SCORES | st.just(math.nan), max_size=20), max_size=12)


def list_reports(run: Simulation) -> list[tuple[int, int]]:
    return [(event.number, event.step) for event in run.events if event.kind == "report"]


def make_trial(number: int) -> trials.Trial:
    return trials.Trial(str(number), number, {}, status=trials.Status.RUNNING)


def run_naively(
    reports: list[tuple[int, int, float]], max_t: int, grace: int, factor: float
) -> dict[tuple[int, int], bool]:
    """Return which reports end their trial: one table of scores for each rung, and a quantile of it."""
    rungs = {grace * factor**k: {} for k in range(50) if grace * factor**k <= max_t}  # type: ignore[var-annotated]
    stops = {}
    for number, step, score in reports:
        due = [rung for rung, scores in rungs.items() if rung <= step]
        stop = step >= max_t
        if not stop and due and number not in rungs[max(due)]:
            scores = rungs[max(due)]
            stop = bool(scores) and score < np.quantile(list(scores.values()), 1 - 1 / factor)
            scores[number] = score
        stops[number, step] = stop
    return stops


@pytest.mark.parametrize("factor", [2, 3, 4, 2.5])
@pytest.mark.parametrize("grace", [1, 3])
@pytest.mark.parametrize("mode", ["max", "min"])
def test_decisions_are_the_algorithms(factor: float, grace: int, mode: str) -> None:
    rng = random.Random(f"{factor}/{grace}")
    curves = [[quality * step + rng.gauss(0, 3) for step in range(1, 41)] for quality in rng.choices(range(9), k=80)]
    asha = AsyncHyperBandScheduler(max_t=30, grace_period=grace, reduction_factor=factor)
    costs = [rng.uniform(0.5, 2) for _ in curves]
    run = simulate(asha, curves, num_workers=7, metric="score", mode=mode, costs=costs)
    sign = 1 if mode == "max" else -1
    stops = run_naively(
        [(number, step, sign * curves[number][step - 1]) for number, step in list_reports(run)], 30, grace, factor
    )
    ended = {(number, trial.steps) for number, trial in enumerate(run.trials) if trial.ending == "stop"}
    assert ended == {report for report, stop in stops.items() if stop}
    assert 30 < sum(trial.steps < 30 for trial in run.trials) < 80


@pytest.mark.slow  # Ray is imported
@pytest.mark.parametrize("factor", [2, 3, 4])
@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("stop_last", [True, False])
def test_decisions_are_rays(factor: int, mode: str, stop_last: bool) -> None:
    ray = pytest.importorskip("ray.tune.schedulers", reason="needs Ray: pip install 'hocket[ray]'")
    theirs = ray.AsyncHyperBandScheduler(
        metric="score", mode=mode, max_t=30, grace_period=2, reduction_factor=factor, stop_last_trials=stop_last
    )
    ours = ASHAScheduler(
        metric="score", mode=mode, max_t=30, grace_period=2, reduction_factor=factor, stop_last_trials=stop_last
    )
    rng = random.Random(factor)
    live = {number: make_trial(number) for number in range(60)}
    stubs = {number: SimpleNamespace(trial_id=str(number)) for number in live}
    for number, trial in live.items():
        theirs.on_trial_add(None, stubs[number])
        ours.on_trial_add(NO_CONTROLS, trial)
    steps = dict.fromkeys(live, 0)
    decisions: list[str] = []
    while live:
        number = rng.choice(list(live))
        steps[number] += 1
        result = {"training_iteration": steps[number], "score": number % 7 * steps[number] + rng.gauss(0, 3)}
        decision = ours.on_trial_result(NO_CONTROLS, live[number], result)
        assert decision == theirs.on_trial_result(None, stubs[number], result), (number, result)
        decisions.append(decision)
        if decision == "STOP" or steps[number] == 35:
            del live[number]
    assert decisions.count("STOP") == 60 if stop_last else decisions.count("STOP") > 30


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(CURVES, st.integers(1, 6), st.sampled_from(["max", "min"]), st.integers(1, 4), st.integers(1, 3))
def test_no_trial_is_stopped_before_its_time_and_all_end(
    curves: list[list[float]], grace: int, mode: str, num_workers: int, brackets: int
) -> None:
    runs = [
        simulate(
            ASHAScheduler(max_t=15, grace_period=grace, reduction_factor=2, brackets=brackets),
            curves,
            num_workers=num_workers,
            metric="score",
            mode=mode,
        )
        for _ in range(2)
    ]
    assert runs[0].events == runs[1].events
    for curve, trial in zip(curves, runs[0].trials, strict=True):
        assert trial.ending in ("stop", "complete")
        assert trial.steps == len(curve) if trial.ending == "complete" else grace <= trial.steps <= 15


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(SCORES | st.just(math.nan), min_size=1, max_size=30), st.floats(1.1, 8))
def test_the_best_of_a_rung_goes_on(scores: list[float], factor: float) -> None:
    asha = ASHAScheduler(metric="score", mode="max", max_t=9, reduction_factor=factor)
    best = -math.inf
    for number, score in enumerate(scores):
        asha.on_trial_add(NO_CONTROLS, make_trial(number))
        decision = asha.on_trial_result(NO_CONTROLS, make_trial(number), {"training_iteration": 1, "score": score})
        if not math.isnan(score) and score >= best:
            best = score
            assert decision == "CONTINUE"


@given(st.lists(SCORES, min_size=1), st.floats(0, 1))
def test_quantiles_are_numpys(values: list[float], quantile: float) -> None:
    assert interpolate(sorted(values), quantile) == pytest.approx(np.quantile(values, quantile), rel=1e-9, abs=1e-9)


def test_quantile_beside_an_infinity_is_the_infinity() -> None:
    assert interpolate([-math.inf, 1.0], 0.5) == -math.inf
    assert interpolate([-math.inf, 1.0], 1) == 1.0
    assert interpolate([1.0, math.inf], 0.5) == math.inf


def report(asha: AsyncHyperBandScheduler, number: int, **result: Any) -> str:
    return asha.on_trial_result(NO_CONTROLS, make_trial(number), result)


def make_asha(**settings: Any) -> AsyncHyperBandScheduler:
    asha = ASHAScheduler("step", "score", "max", max_t=16, reduction_factor=2, **settings)
    for number in range(4):
        asha.on_trial_add(NO_CONTROLS, make_trial(number))
    return asha


def test_nan_is_below_any_number() -> None:
    asha = make_asha()
    assert report(asha, 0, step=1, score=math.nan) == "CONTINUE"  # the first of its rung
    assert report(asha, 1, step=1, score=-1e9) == "CONTINUE"
    assert report(asha, 2, step=1, score=math.nan) == "CONTINUE"  # the median of one number and one NaN is NaN
    assert report(asha, 3, step=2, score=0.0) == "CONTINUE"
    assert report(asha, 1, step=2, score=math.nan) == "STOP"


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"step": 1},
        {"score": 1},
        {"step": math.nan, "score": 1},
        {"step": "1", "score": 1},
        {"step": 1, "score": "a"},
    ],
)
def test_report_without_metric_or_time_is_left_alone(result: dict[str, Any]) -> None:
    asha = make_asha()
    report(asha, 0, step=1, score=5)
    assert report(asha, 1, **result) == "CONTINUE"
    assert report(asha, 1, step=1, score=1) == "STOP"


def test_report_that_passes_rungs_counts_at_the_highest_only() -> None:
    asha = make_asha()
    assert report(asha, 0, step=7, score=9) == "CONTINUE"
    assert report(asha, 0, step=7.5, score=-1) == "CONTINUE"  # nothing is noted twice, nor at lower rungs
    assert report(asha, 1, step=2, score=0) == "CONTINUE"
    assert report(asha, 1, step=4, score=8) == "STOP"


def test_trials_that_have_ended_count() -> None:
    asha = make_asha()
    asha.on_trial_complete(NO_CONTROLS, make_trial(0), {"step": 4, "score": 9})
    assert report(asha, 1, step=4, score=8) == "STOP"
    report(asha, 2, step=8, score=7)
    asha.on_trial_error(NO_CONTROLS, make_trial(2))
    asha.on_trial_remove(NO_CONTROLS, make_trial(2))
    assert report(asha, 3, step=8, score=6) == "STOP"
    assert asha.debug_string() == "AsyncHyperBand: 2 stopped\n1: none | 2: none | 4: 8.5 | 8: 6.5 | 16: none"


@pytest.mark.parametrize(("stops", "decision"), [(True, "STOP"), (False, "CONTINUE")])
def test_max_t_is_inclusive(stops: bool, decision: str) -> None:
    asha = make_asha(stop_last_trials=stops)
    assert report(asha, 0, step=16, score=1) == decision
    assert report(asha, 0, step=17, score=1) == decision


def test_nested_metric_and_time() -> None:
    asha = ASHAScheduler("train/step", "eval/loss", "min", max_t=4, reduction_factor=2)
    for number in range(2):
        asha.on_trial_add(NO_CONTROLS, make_trial(number))
    assert report(asha, 0, train={"step": 1}, eval={"loss": 1}) == "CONTINUE"
    assert report(asha, 1, train={"step": 1}, eval={"loss": 2}) == "STOP"


def test_brackets_get_trials_by_their_weights_whatever_the_order() -> None:
    chosen = []
    for order in (range(300), reversed(range(300))):
        asha = ASHAScheduler(metric="score", mode="max", max_t=8, reduction_factor=1e9, brackets=2, seed=3)
        asha.on_trial_add(NO_CONTROLS, make_trial(1000))
        report(asha, 1000, training_iteration=1, score=1)
        for number in order:
            asha.on_trial_add(NO_CONTROLS, make_trial(number))
        # Only the first bracket has a rung, at 1, where almost only a best trial goes on.
        chosen.append(
            {number for number in range(300) if report(asha, number, training_iteration=1, score=0) == "STOP"}
        )
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == pytest.approx(300 * math.e / (1 + math.e), abs=25)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_t": 0}, r"max_t must be a number, more than 0, but received 0. Write for example 1"),
        ({"grace_period": -1}, "grace_period must be a number, more than 0"),
        ({"grace_period": 9, "max_t": 8}, r"grace_period must not be more than max_t, but received 9 and max_t=8"),
        ({"reduction_factor": 1}, "reduction_factor must be a number, more than 1"),
        ({"reduction_factor": math.nan}, "reduction_factor must be a number"),
        ({"brackets": 0}, "brackets must be a whole number, 1 or more, but received 0"),
        ({"mode": "best"}, "mode must be 'min' or 'max', but received 'best'"),
        ({"metric": ""}, "metric must be the name of a number in the reports"),
        ({"time_attr": ""}, "time_attr must be the name of a growing number in the reports"),
        ({"seed": 0.5}, "seed must be a whole number"),
    ],
)
def test_bad_arguments(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ASHAScheduler(**settings)


def test_metric_is_asked_for_when_a_trial_comes() -> None:
    with pytest.raises(ValueError, match=r"needs a metric and a mode, but has metric='a' and mode=None"):
        ASHAScheduler(metric="a").on_trial_add(NO_CONTROLS, make_trial(0))


@pytest.mark.parametrize(
    ("mine", "given", "agree"),
    [
        ((None, None), ("a", "min"), True),
        (("a", "min"), ("a", "min"), True),
        (("a", "min"), (None, None), True),
        (("a", None), (None, "max"), True),
        (("a", "min"), ("b", "min"), False),
        ((None, "min"), ("a", "max"), False),
    ],
)
def test_search_properties(
    mine: tuple[str | None, str | None], given: tuple[str | None, str | None], agree: bool
) -> None:
    assert ASHAScheduler(metric=mine[0], mode=mine[1]).set_search_properties(*given, seed=1) is agree
