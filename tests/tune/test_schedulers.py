"""What is the same for all schedulers, and how they are made by name."""

from __future__ import annotations

import importlib
import inspect
from typing import Any, cast

import pytest

from hocket import tune
from hocket.tune import schedulers, search
from hocket.tune import trial as trials
from hocket.tune.schedulers import TrialControls, create_scheduler
from hocket.tune.schedulers.creation import NAMES
from hocket.tune.simulation import simulate

ARGUMENTS: dict[str, dict[str, Any]] = {
    "pbt": {"hyperparam_mutations": {"x": [1, 2]}},
    "pbt_replay": {"policy_file": []},
    "pb2": {"hyperparam_bounds": {"x": [1, 2]}},
}


@pytest.mark.parametrize("name", NAMES)
def test_schedulers_by_name(name: str) -> None:
    scheduler = create_scheduler(name.upper(), not_an_argument=1, **ARGUMENTS.get(name, {}))
    assert isinstance(scheduler, schedulers.FIFOScheduler)
    curves = [[1.0, 2.0]] if name == "pbt_replay" else [[1.0, 2.0], [3.0]]
    run = simulate(scheduler, curves, metric="a", mode="max", configs=[{"x": 1}] * len(curves))
    assert {trial.ending for trial in run.trials} <= {"complete", "stop"}
    assert type(scheduler).__name__[:4] in scheduler.debug_string()


def test_names_that_are_none() -> None:
    with pytest.raises(ValueError, match=r"scheduler must be one of fifo, async_hyperband, .*, but received 'best'"):
        create_scheduler("best")
    with pytest.raises(ValueError, match=r"scheduler must be one of .*, but received 'resource_changing'"):
        create_scheduler("resource_changing")
    with pytest.raises(
        ImportError, match=r"a trial keeps the resources that it started with; pass the inner scheduler"
    ):
        from hocket.tune.schedulers import ResourceChangingScheduler  # type: ignore[attr-defined]  # noqa: F401
    assert not hasattr(schedulers, "ResourceChangingScheduler")


RAYS = ("async_hyperband.ASHAScheduler", "async_hyperband.AsyncHyperBandScheduler", "hyperband.HyperBandScheduler",
        "hb_bohb.HyperBandForBOHB", "median_stopping_rule.MedianStoppingRule", "pbt.PopulationBasedTraining",
        "pbt.PopulationBasedTrainingReplay",
        "pb2.PB2", "trial_scheduler.FIFOScheduler", "trial_scheduler.TrialScheduler")  # fmt: skip


@pytest.mark.slow  # Ray is imported
@pytest.mark.parametrize("path", RAYS)
def test_modules_and_arguments_are_rays(path: str) -> None:
    pytest.importorskip("ray.tune.schedulers", reason="needs Ray: pip install 'hocket[ray]'")
    module, name = path.split(".")
    theirs = getattr(importlib.import_module(f"ray.tune.schedulers.{module}"), name)
    ours = getattr(importlib.import_module(f"hocket.tune.schedulers.{module}"), name)
    assert ours is getattr(schedulers, name, ours)
    wanted = [(one.name, one.default) for one in inspect.signature(theirs).parameters.values()]
    has = [(one.name, one.default) for one in inspect.signature(ours).parameters.values()]
    assert has[: len(wanted)] == wanted
    assert {name for name, _ in has[len(wanted) :]} <= {"seed"}


def test_first_in_first_out() -> None:
    statuses = ("RUNNING", "PAUSED", "PENDING", "PENDING", "PAUSED")
    listed = [trials.Trial(str(number), number, {}, status=trials.Status(name)) for number, name in enumerate(statuses)]

    class Controls:
        def get_trials(self) -> list[trials.Trial]:
            return listed

    fifo, controls = schedulers.FIFOScheduler(), cast(TrialControls, Controls())
    for number in (2, 3, 1, 4):
        assert fifo.choose_trial_to_run(controls) is listed[number]
        listed[number].status = trials.Status.RUNNING
    assert fifo.choose_trial_to_run(controls) is None


ANY_SCHEDULERS: Any = schedulers
ANY_SEARCH: Any = search
ANY_TUNE: Any = tune
"""Without types, which would refuse what is tried."""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ANY_SCHEDULERS.ASHAScheduler(max_ts=3), r"has no keyword 'max_ts'\. Did you mean 'max_t'\?$"),
        (lambda: ANY_SCHEDULERS.HyperBandScheduler(reduction=3), r"Did you mean 'reduction_factor'\?$"),
        (lambda: ANY_SCHEDULERS.MedianStoppingRule(grace=3), r"Did you mean 'grace_period'\?$"),
        (
            lambda: ANY_SCHEDULERS.PopulationBasedTraining(hyperparam_mutation={}),
            r"^PopulationBasedTraining\(\) has no keyword 'hyperparam_mutation'\. Did you mean 'hyperparam_mutations'\?$",
        ),
        (lambda: ANY_SCHEDULERS.PB2(hyperparam_bound={}), r"^PB2\(\) .*Did you mean 'hyperparam_bounds'\?$"),
        (
            lambda: ANY_SEARCH.ConcurrencyLimiter(search.BasicVariantGenerator(), max_concurent=1),
            "Did you mean 'max_concurr",
        ),
        (
            lambda: ANY_TUNE.run(print, local_dir="x"),
            r"^run\(\) has no keyword 'local_dir'\. Did you mean 'storage_path'\?$",
        ),
    ],
)
def test_a_keyword_that_is_none_is_told(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(
    "make", [schedulers.ASHAScheduler, schedulers.HyperBandScheduler, schedulers.MedianStoppingRule]
)
def test_a_time_that_no_report_has_is_told_once(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    simulate(make(time_attr="epoch"), [[0.5, 0.6]] * 3, num_workers=1, metric="acc", mode="max")
    (line,) = caplog.messages
    assert line.startswith(f"{make.__name__} has decided nothing: no report has 'epoch', which is its time_attr.")
    caplog.clear()
    simulate(make(time_attr="training_iteration"), [[0.5, 0.6]] * 3, num_workers=1, metric="acc", mode="max")
    assert not caplog.messages


def test_metrics_as_keywords_are_told() -> None:
    report: Any = tune.report
    with pytest.raises(TypeError, match=r"received the keywords \['loss'\]\. Write report\(\{'loss': 0\.5\}\)"):
        report(loss=1)
