"""Classes and functions that Ray has too take what they are given by position as Ray does, where Ray is installed."""

from __future__ import annotations

import importlib
import inspect
import warnings
from typing import Any

import pytest

pytest.importorskip("ray")

PLACES = (
    *("data", "data.aggregate", "data.preprocessors", "train", "train.tensorflow", "train.torch", "train.xgboost"),
    *("tune", "tune.schedulers", "tune.search", "tune.search.optuna", "tune.stopper"),
    *("util", "util.collective", "util.metrics", "util.multiprocessing", "util.queue", "util.scheduling_strategies"),
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore")]

KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def list_positions(made: Any) -> tuple[list[str], set[str]]:
    """Return what can be given by position, in order, and all that can be given."""
    try:
        parameters = inspect.signature(made).parameters
    except (TypeError, ValueError):  # some classes of C have none
        return [], set()
    return [one.name for one in parameters.values() if one.kind in KINDS], set(parameters)


@pytest.mark.parametrize("place", PLACES)
def test_positions_are_those_of_ray(place: str) -> None:
    """As far as Hocket has what Ray takes first, it is taken first here, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, ours = importlib.import_module(f"ray.{place}"), importlib.import_module(f"hocket.{place}")
    shared = [name for name in dir(theirs) if not name.startswith("_") and name in dir(ours)]
    wrong = {}
    compared = 0
    for name in shared:
        made, other = getattr(theirs, name), getattr(ours, name)
        if not callable(made) or not str(getattr(made, "__module__", "")).startswith("ray."):
            continue
        wanted, (found, known) = list_positions(made)[0], list_positions(other)
        both = next((at for at, one in enumerate(wanted) if one not in known), len(wanted))
        compared += 1
        if found[:both] != wanted[:both]:
            wrong[name] = wanted[:both], found
    assert compared
    assert wrong == {}


def test_positions_of_configurations() -> None:
    from hocket import train, tune

    assert train.FailureConfig(2).max_failures == tune.FailureConfig(2).max_failures == 2
    assert train.CheckpointConfig(2, "loss", "min").checkpoint_score_order == "min"
    assert tune.RunConfig("name", "/path").name == train.RunConfig("name", "/path").name == "name"
    assert train.ScalingConfig(None, 2, True).num_workers == 2
    assert (tune.TuneConfig("min", "loss").metric, train.LoggingConfig("ERROR").log_level) == ("loss", "ERROR")
    with pytest.raises(ValueError, match=r"received 'loss'. Write TuneConfig\(metric='loss', mode='min'\)"):
        tune.TuneConfig("loss", "min")
    with pytest.raises(DeprecationWarning, match=r"name the others, as in ScalingConfig\(num_workers=2\)"):
        train.ScalingConfig(2, True)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="TuneConfig takes 10 values without a name, but also received 11"):
        tune.TuneConfig("min", "loss", None, None, 1, 2, 3, None, None, None, 11)  # type: ignore[call-arg]
