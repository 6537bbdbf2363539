"""Configurations and training functions are checked when they are given."""

from __future__ import annotations

from typing import Any

import pytest

from hocket import train

makers: Any = train  # what the type checker refuses is given on purpose


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (
            lambda: train.ScalingConfig(num_workers=-1),
            ValueError,
            r"num_workers must be 0 or more, but received -1\. Give",
        ),
        (lambda: makers.ScalingConfig(num_workers=1.5), TypeError, r"num_workers must be an int, but received 1\.5"),
        (lambda: train.ScalingConfig(num_workers=True), TypeError, "num_workers must be an int, but received True"),
        (
            lambda: train.ScalingConfig(placement_strategy="NEAR"),
            ValueError,
            "placement_strategy must be one of .* 'NEAR'",
        ),
        (
            lambda: train.ScalingConfig(resources_per_worker={"CPU": -1}),
            ValueError,
            r"\['CPU'\] must be a number .* -1",
        ),
        (lambda: train.ScalingConfig(resources_per_worker={"GPU": 1}), ValueError, "Set use_gpu=True"),
        (lambda: train.ScalingConfig(use_gpu=True, resources_per_worker={"GPU": 0}), ValueError, "set use_gpu=False"),
        (lambda: makers.ScalingConfig(trainer_resources={}), TypeError, "trainer_resources"),
        (lambda: train.FailureConfig(max_failures=-2), ValueError, "max_failures must be -1 .* received -2"),
        (lambda: train.CheckpointConfig(num_to_keep=0), ValueError, "num_to_keep must be 1 or more.* received 0"),
        (lambda: train.CheckpointConfig(checkpoint_score_order="up"), ValueError, "must be 'max' or 'min', .* 'up'"),
        (lambda: train.RunConfig(name="a/b"), ValueError, "name must be the name of one folder, but received 'a/b'"),
        (lambda: makers.RunConfig(callbacks=[print]), TypeError, "must be instances of hocket.train.UserCallback"),
    ],
)
def test_what_breaks_a_rule_is_refused(make: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()


def test_defaults_are_those_of_ray() -> None:
    scaling, run = train.ScalingConfig(), train.RunConfig()
    assert (scaling.num_workers, scaling.use_gpu, scaling.placement_strategy) == (1, False, "PACK")
    assert scaling.bundle == {"CPU": 1.0}
    assert (run.failure_config.max_failures, run.checkpoint_config.num_to_keep) == (0, None)


def test_resources_of_all_workers() -> None:
    scaling = train.ScalingConfig(num_workers=3, use_gpu=True, resources_per_worker={"CPU": 2, "camera": 0.5})
    assert scaling.total_resources == {"CPU": 6.0, "GPU": 3.0, "camera": 1.5}


def take_two(config: dict[str, Any], more: int) -> None: ...


def take_none() -> None: ...


@pytest.mark.parametrize(
    ("function", "given", "error", "match"),
    [
        (take_two, {}, ValueError, r"must take no argument or one .* `take_two` takes 2: \(config.* Put them into"),
        ("loop", {}, TypeError, "train_loop_per_worker must be a function, but received 'loop'"),
        (take_none, {"train_loop_config": {"lr": 1}}, ValueError, "`take_none` takes no argument. Give it one"),
        (take_none, {"scaling_config": 2}, TypeError, "scaling_config must be a ScalingConfig, but received 2"),
        (take_none, {"run_config": {}}, TypeError, "run_config must be a RunConfig, but received {}"),
    ],
)
def test_training_functions_are_checked(function: Any, given: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        train.DataParallelTrainer(function, **given)


def test_optional_arguments_are_no_obstacle() -> None:
    def loop(config: dict[str, Any], more: int = 1) -> None: ...

    train.DataParallelTrainer(loop, train_loop_config={"lr": 1})


@pytest.mark.parametrize("call", [train.get_context, train.get_checkpoint, lambda: train.report({})])
def test_outside_a_training_function(call: Any) -> None:
    with pytest.raises(RuntimeError, match=r"was called outside a training function\. Call it in the function"):
        call()
