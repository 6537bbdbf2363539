"""Stoppers: when they end a trial or a search, and what ``stop`` may be."""

from __future__ import annotations

import datetime as dt
import math
import pickle
import random
from typing import Any

import pytest

from hocket.tune import errors, stopper
from hocket.tune.stopper import stoppers

untyped: Any = stopper
"""For arguments that a type checker would not let pass."""


class Never(stopper.Stopper):
    """Notes what it is shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.shown.append(trial_id)
        return False

    def stop_all(self) -> bool:
        return False


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_iterations_are_counted_by_trial() -> None:
    ends = stopper.MaximumIterationStopper(2)
    assert [ends(name, {}) for name in ("a", "b", "a", "b")] == [False, False, True, True]
    assert not ends.stop_all()


def test_time_runs_from_the_first_question_and_not_through_a_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(stoppers, "time", clock)
    ends = stopper.TimeoutStopper(dt.timedelta(seconds=10))
    clock.now = 200
    assert not ends.stop_all()
    clock.now = 206
    assert not ends.stop_all()
    loaded = pickle.loads(pickle.dumps(ends))
    clock.now = 300
    assert not loaded.stop_all()
    clock.now = 304
    assert loaded.stop_all()
    assert not loaded("t", {})
    assert stopper.TimeoutStopper(0).stop_all()


def run_trial(ends: stopper.Stopper, losses: list[float]) -> int | None:
    """Return at which report a trial ends, None if it does not."""
    return next((place for place, loss in enumerate(losses) if ends("t", {"n": {"loss": loss}})), None)


def test_a_trial_ends_on_a_plateau() -> None:
    falling = [1.0, 0.8, 0.6, 0.5, 0.5, 0.5, 0.5, 0.5]
    assert run_trial(stopper.TrialPlateauStopper("n/loss", num_results=3, grace_period=2), falling) == 5
    assert run_trial(stopper.TrialPlateauStopper("n/loss", num_results=3, grace_period=8), falling) == 7
    high = stopper.TrialPlateauStopper("n/loss", num_results=3, metric_threshold=0.4, mode="min")
    assert run_trial(high, falling) is None
    low = stopper.TrialPlateauStopper("n/loss", num_results=3, metric_threshold=0.4, mode="max")
    assert run_trial(low, falling) == 5
    assert run_trial(stopper.TrialPlateauStopper("n/loss", num_results=2), [math.nan] * 9) is None


def test_a_search_ends_when_the_best_stay() -> None:
    ends = stopper.ExperimentPlateauStopper("loss", std=0.1, top=2, mode="max", patience=2)
    assert [ends("t", {"loss": loss}) for loss in (1.0, 5.0, 9.0, 9.0, 2.0)] == [False, False, False, False, True]
    assert ends.stop_all()
    ends("t", {"loss": math.nan})
    assert ends.stop_all()
    with pytest.raises(errors.TuneError, match=r"needs the metric 'loss', but a trial has reported \['accuracy'\]"):
        ends("t", {"accuracy": 1})


@pytest.mark.parametrize("name", ["TrialPlateauStopper", "ExperimentPlateauStopper", "MaximumIterationStopper"])
@pytest.mark.parametrize("seed", range(5))
def test_stoppers_decide_as_rays_do(name: str, seed: int) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    theirs = pytest.importorskip("ray.tune.stopper", reason="Ray's own extra tune is not installed")
    draws = random.Random(seed)
    choices: dict[str, dict[str, Any]] = {
        "TrialPlateauStopper": {"metric": "loss", "std": 0.2, "num_results": 3, "grace_period": 5},
        "ExperimentPlateauStopper": {"metric": "loss", "std": 0.01, "top": 5, "patience": 3},
        "MaximumIterationStopper": {"max_iter": 30},
    }
    options = choices[name]
    ours, reference = getattr(stopper, name)(**options), getattr(theirs, name)(**options)
    for _ in range(200):
        trial, result = draws.choice("abc"), {"loss": round(draws.random(), 2)}
        assert bool(ours(trial, result)) == bool(reference(trial, result))
        assert bool(ours.stop_all()) == bool(reference.stop_all())


def test_combined_stoppers_all_see_each_report() -> None:
    notes = Never()
    ends = stopper.CombinedStopper(stopper.MaximumIterationStopper(1), notes, stopper.NoopStopper())
    assert ends("a", {})
    assert notes.shown == ["a"]
    assert not ends.stop_all()
    assert stopper.CombinedStopper(notes, stopper.TimeoutStopper(0)).stop_all()


def test_a_dict_ends_a_trial_at_a_bound() -> None:
    ends = stopper.build_stopper({"training_iteration": 3, "eval": {"accuracy": 0.9}})
    assert not ends("t", {"training_iteration": 2, "eval": {"accuracy": 0.8}})
    assert ends("t", {"training_iteration": 3, "eval": {"accuracy": 0.8}})
    assert ends("t", {"training_iteration": 1, "eval/accuracy": 0.9})
    assert not ends.stop_all()


def test_a_metric_that_is_not_in_each_report_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    ends = stopper.build_stopper({"eval": {"accuracy": 0.9}})
    for _ in range(3):
        assert not ends("t", {"training_iteration": 1, "loss": 3})
    (line,) = caplog.messages
    assert line.startswith("stop={'eval/accuracy': 0.9} does nothing at a report without that metric, such as one with")
    assert ends("t", {"eval/accuracy": 0.9})


def test_what_stop_may_be() -> None:
    assert isinstance(stopper.build_stopper(None), stopper.NoopStopper)
    assert isinstance(stopper.build_stopper({}), stopper.NoopStopper)
    notes = Never()
    assert stopper.build_stopper(notes) is notes
    assert stopper.build_stopper(lambda trial_id, result: result["loss"] < 1)("t", {"loss": 0})
    assert stopper.build_stopper([notes, stopper.MaximumIterationStopper(1)])("t", {})


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: untyped.build_stopper(3), TypeError, "a Stopper or a list of Stoppers, but received 3"),
        (lambda: untyped.build_stopper([len]), TypeError, "A list for stop must hold Stoppers, but one is <built-in"),
        (
            lambda: untyped.build_stopper(Never),
            TypeError,
            "an object of a class that inherits from hocket.tune.Stopper",
        ),
        (
            lambda: untyped.build_stopper({"loss": "low"}),
            TypeError,
            r"stop=\{'loss': ...\} must be a number, but received",
        ),
        (lambda: untyped.build_stopper({"a": {"b": math.nan}}), ValueError, r"stop=\{'a/b': ...\} must be a number"),
        (lambda: untyped.CombinedStopper(print), TypeError, "takes Stoppers, but received"),
        (lambda: untyped.FunctionStopper(3), TypeError, "function must be a function of .*, but received 3"),
        (
            lambda: untyped.MaximumIterationStopper(0),
            ValueError,
            "max_iter must be an int of 1 or more, but received 0",
        ),
        (lambda: untyped.TimeoutStopper("1h"), TypeError, "timeout must be seconds or a datetime.timedelta"),
        (lambda: untyped.TimeoutStopper(-1), ValueError, "timeout must be 0 or more seconds, but received -1"),
        (lambda: untyped.TrialPlateauStopper(3), TypeError, "metric must be the name of a metric, but received 3"),
        (lambda: untyped.TrialPlateauStopper("l", std=0), ValueError, "std must be more than 0, but received 0"),
        (lambda: untyped.TrialPlateauStopper("l", std="a"), TypeError, "std must be a number, but received 'a'"),
        (
            lambda: untyped.TrialPlateauStopper("l", num_results=0),
            ValueError,
            "num_results must be an int of 1 or more",
        ),
        (lambda: untyped.TrialPlateauStopper("l", grace_period=-1), ValueError, "grace_period must be an int of 0 or"),
        (
            lambda: untyped.TrialPlateauStopper("l", metric_threshold=1),
            ValueError,
            "mode must be 'min' or 'max', but rec",
        ),
        (lambda: untyped.ExperimentPlateauStopper("l", top=1), ValueError, "top must be an int of 2 or more"),
        (lambda: untyped.ExperimentPlateauStopper("l", mode="up"), ValueError, "mode must be 'min' or 'max'"),
        (
            lambda: untyped.ExperimentPlateauStopper("l", patience=-1),
            ValueError,
            "patience must be an int of 0 or more",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()
