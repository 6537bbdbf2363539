"""HyperBandScheduler against a transcription of the paper's loops, and against Ray's where that can be."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.tune import trial as trials
from hocket.tune.schedulers import HyperBandForBOHB, HyperBandScheduler, TrialControls
from hocket.tune.simulation import simulate

VALUES = st.floats(-1e3, 1e3) | st.sampled_from([math.nan, {}, {"acc": 1.0, "training_iteration": 7}])
ERROR = st.just(OSError("gone"))
CURVES = st.lists(
    st.builds(lambda values, end: [*values, *end], st.lists(VALUES, max_size=12), st.lists(ERROR, max_size=1)),
    max_size=25,
)


def run_naively(curves: list[list[float]], max_t: int, eta: float, kinds: list[int], sign: int) -> list[int]:
    """Return how many steps each trial runs: HyperBand's two loops, with brackets in the order that is given."""
    s_max = round(math.log(max_t, eta))
    steps, begin, place = [0] * len(curves), 0, 0
    while begin < len(curves):
        s = kinds[place % len(kinds)]
        size, r = math.ceil((s_max + 1) / (s + 1) * eta**s), max_t // eta**s
        group = list(range(begin, min(begin + size, len(curves))))
        begin, place = begin + size, place + 1
        for _ in range(s + 1):
            for number in group:
                steps[number] = int(r)
            group.sort(key=lambda number: -sign * curves[number][int(r) - 1])
            size = math.ceil(size / eta)
            group = group[:size]
            r = min(max_t, r * eta)
    return steps


@pytest.mark.parametrize("num_workers", [1, 3, 16])
@pytest.mark.parametrize("count", [1, 7, 60, 250])
@pytest.mark.parametrize(("max_t", "eta"), [(27, 3), (16, 2), (16, 4)])
@pytest.mark.parametrize("mode", ["max", "min"])
def test_decisions_are_the_papers(num_workers: int, count: int, max_t: int, eta: int, mode: str) -> None:
    rng = random.Random(count)
    curves = [[rng.random() for _ in range(30)] for _ in range(count)]
    kinds = list(range(round(math.log(max_t, eta)) + 1))
    sign = 1 if mode == "max" else -1
    costs = [rng.uniform(0.5, 2) for _ in curves]
    for make, order in ((HyperBandScheduler, kinds), (HyperBandForBOHB, kinds[::-1])):
        scheduler = make(max_t=max_t, reduction_factor=eta)
        run = simulate(scheduler, curves, num_workers=num_workers, metric="acc", mode=mode, costs=costs)
        assert [trial.steps for trial in run.trials] == run_naively(curves, max_t, eta, order, sign)
        assert {trial.ending for trial in run.trials} == {"stop"}


class Stub:
    """A trial as Ray's scheduler sees it."""

    is_saving = False

    def __init__(self, trial_id: str) -> None:
        self.trial_id = trial_id
        self.status = "PENDING"


@pytest.mark.slow  # Ray is imported
@pytest.mark.parametrize("mode", ["max", "min"])
def test_full_brackets_end_as_rays(mode: str) -> None:
    ray = pytest.importorskip("ray.tune.schedulers", reason="needs Ray: pip install 'hocket[ray]'")
    rng = random.Random(1)
    count = sum(math.ceil(4 / (s + 1) * 3**s) for s in range(4))  # brackets that are full: Ray halves others sooner
    curves = [[rng.random() for _ in range(27)] for _ in range(count)]
    theirs = ray.HyperBandScheduler(metric="acc", mode=mode, max_t=27, reduction_factor=3)
    stubs = [Stub(str(number)) for number in range(count)]
    steps = [0] * count

    def stop(stub: Stub) -> None:
        stub.status = "TERMINATED"
        theirs.on_trial_remove(runner, stub)

    runner: Any = SimpleNamespace(stop_trial=stop)
    for stub in stubs:
        theirs.on_trial_add(runner, stub)
    while (stub := theirs.choose_trial_to_run(runner)) is not None:
        number = int(stub.trial_id)
        stub.status, decision = "RUNNING", "CONTINUE"
        while decision == "CONTINUE":
            steps[number] += 1
            result = {"training_iteration": steps[number], "acc": curves[number][steps[number] - 1]}
            decision = theirs.on_trial_result(runner, stub, result)
        stub.status = "PAUSED" if decision == "PAUSE" else "TERMINATED"
    ours = HyperBandScheduler(max_t=27, reduction_factor=3)
    run = simulate(ours, curves, num_workers=1, metric="acc", mode=mode)
    assert [trial.steps for trial in run.trials] == steps


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    CURVES, st.sampled_from([(9, 3), (8, 2), (7, 2.5), (1, 2)]), st.integers(1, 5), st.booleans(), st.integers(1, 30)
)
def test_all_end_whatever_the_curves(
    curves: list[list[Any]], sizes: tuple[int, float], num_workers: int, stops: bool, max_pending: int
) -> None:
    for make in (HyperBandScheduler, HyperBandForBOHB):
        runs = [
            simulate(
                make(max_t=sizes[0], reduction_factor=sizes[1], stop_last_trials=stops),
                curves,
                num_workers=num_workers,
                metric="acc",
                mode="max",
                max_pending=max_pending,
            )
            for _ in range(2)
        ]
        assert runs[0].events == runs[1].events
        assert {trial.ending for trial in runs[0].trials} <= {"stop", "complete", "error"}  # none was left behind


def test_every_bracket_has_a_survivor() -> None:
    rng = random.Random(0)
    curves = [[rng.random() for _ in range(9)] for _ in range(60)]
    for stops in (True, False):
        scheduler = HyperBandScheduler(max_t=9, reduction_factor=3, stop_last_trials=stops)
        run = simulate(scheduler, curves, num_workers=4, metric="acc", mode="max")
        # Bands of 17 trials in brackets of 3, 5 and 9, of which 3, 2 and 1 come to the end; then 3, 5 and 1 trials.
        assert sum(trial.steps == 9 for trial in run.trials) == 3 * (3 + 2 + 1) + 3 + 2 + 1


class Controls:
    """A search that notes what is ended."""

    def __init__(self, scheduler: HyperBandScheduler, count: int) -> None:
        self.scheduler = scheduler
        self.trials = [trials.Trial(str(number), number, {}) for number in range(count)]
        self.stopped: list[int] = []
        for trial in self.trials:
            scheduler.on_trial_add(self.controls, trial)

    @property
    def controls(self) -> TrialControls:
        return cast(TrialControls, self)

    def get_trials(self) -> list[trials.Trial]:
        return [trial for trial in self.trials if not trial.is_finished]

    def stop_trial(self, trial: trials.Trial) -> None:
        trial.status = trials.Status.TERMINATED
        self.stopped.append(trial.number)

    def report(self, number: int, time: float, acc: float) -> str:
        trial = self.trials[number]
        trial.status = trials.Status.RUNNING
        decision = self.scheduler.on_trial_result(self.controls, trial, {"training_iteration": time, "acc": acc})
        if decision == "PAUSE":
            trial.status = trials.Status.PAUSED
        return decision

    def choose(self) -> int | None:
        chosen = self.scheduler.choose_trial_to_run(self.controls)
        return None if chosen is None else chosen.number


def open_largest_bracket(**settings: Any) -> Controls:
    """A bracket of 4 trials that are halved at 1 and 2, to end at 4."""
    scheduler = HyperBandForBOHB(metric="acc", mode="max", max_t=4, reduction_factor=2, **settings)
    return Controls(scheduler, 4)


def test_failed_trial_is_not_waited_for() -> None:
    search = open_largest_bracket()
    assert [search.report(number, 1, number) for number in range(3)] == ["PAUSE"] * 3
    assert search.choose() == 3
    search.trials[3].status = trials.Status.ERROR
    search.scheduler.on_trial_error(search.controls, search.trials[3])
    assert search.stopped == [0]
    assert search.choose() == 1
    assert search.choose() == 1  # nothing has changed


def test_trials_that_end_early_are_not_waited_for() -> None:
    search = open_largest_bracket()
    for number in (0, 1):
        search.report(number, 1, number)
    for number in (2, 3):
        search.trials[number].status = trials.Status.TERMINATED
        search.scheduler.on_trial_complete(search.controls, search.trials[number], {"acc": 9, "training_iteration": 1})
    assert search.stopped == []  # two go on, and two are left
    assert search.choose() == 0


def test_report_that_passes_milestones_waits_at_the_last() -> None:
    search = open_largest_bracket()
    assert search.report(0, 3, 9) == "PAUSE"
    assert [search.report(number, 1, number) for number in (1, 2)] == ["PAUSE"] * 2
    assert search.report(3, 1, 3) == "CONTINUE"
    assert search.stopped == [2, 1]
    assert search.choose() is None  # trial 0 has come to 2, and waits for trial 3
    assert search.report(3, 2, 4) == "STOP"
    assert search.choose() == 0
    assert search.report(0, 4, 9) == "STOP"


def test_trial_beyond_max_t_is_stopped_at_once() -> None:
    search = open_largest_bracket()
    assert search.report(0, 4, 0) == "STOP"
    assert [search.report(number, 1, number) for number in (1, 2)] == ["PAUSE"] * 2
    assert search.report(3, 1, 3) == "CONTINUE"
    assert search.stopped == [1]


def test_last_trials_go_on_if_they_are_not_to_be_stopped() -> None:
    search = open_largest_bracket(stop_last_trials=False)
    for number in range(4):
        search.report(number, 1, number)
    assert search.report(2, 2, 0) == "PAUSE"
    assert [search.report(3, time, 1) for time in (2, 3, 4, 5, 99)] == ["CONTINUE"] * 5


def test_nan_does_not_go_on() -> None:
    search = open_largest_bracket()
    for number, acc in enumerate((math.nan, -5, math.nan, -6)):
        search.report(number, 1, acc)
    assert search.stopped == [0, 2]


@pytest.mark.parametrize(
    "result", [{}, {"training_iteration": 1}, {"acc": 1}, {"training_iteration": math.nan, "acc": 1}]
)
def test_report_without_metric_or_time_is_left_alone(result: dict[str, Any]) -> None:
    search = open_largest_bracket()
    assert search.scheduler.on_trial_result(search.controls, search.trials[0], result) == "CONTINUE"


def test_report_of_a_trial_that_was_not_to_go_on_ends_it() -> None:
    search = open_largest_bracket()
    for number in range(4):
        search.report(number, 1, number)
    assert search.report(0, 2, 100) == "STOP"


def test_bracket_is_halved_by_a_report_of_a_trial_that_was_let_go_on() -> None:
    """A log that is read again has reports, but not what was asked for when nothing ran."""
    search = open_largest_bracket()
    search.scheduler = HyperBandForBOHB(metric="acc", mode="max", max_t=4, reduction_factor=2)
    for number in range(3):
        search.scheduler.on_trial_add(search.controls, search.trials[number])
        search.report(number, 1, number)
    assert search.report(1, 2, 1) == "PAUSE"
    assert search.stopped == [0]


def test_bracket_waits_for_trials_that_may_come() -> None:
    scheduler = HyperBandForBOHB(metric="acc", mode="max", max_t=4, reduction_factor=2)
    search = Controls(scheduler, 3)
    assert [search.report(number, 1, number) for number in (0, 1)] == ["PAUSE"] * 2
    search.trials[2].status = trials.Status.RUNNING
    assert search.choose() is None
    assert search.report(2, 1, 2) == "PAUSE"
    assert search.choose() == 1
    assert search.stopped == [0]
    assert scheduler.debug_string() == "HyperBand: 1 stopped, 1 brackets\n0: 2 trials, of which 0 wait at 2"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_t": 0}, "max_t must be a number, 1 or more, but received 0"),
        ({"reduction_factor": 1}, "reduction_factor must be a number, more than 1"),
        ({"mode": "best"}, "mode must be 'min' or 'max'"),
        ({"metric": 1}, "metric must be the name of a number"),
        ({"time_attr": ""}, "time_attr must be the name of a growing number"),
    ],
)
def test_bad_arguments(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HyperBandScheduler(**settings)
