"""Configurations and training functions are checked when they are given."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import train, tune
from hocket.train.checkpoints import storage

makers: Any = train  # what the type checker refuses is given on purpose


class NoText:
    """Its text cannot be had."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (
            lambda: train.ScalingConfig(num_workers=-1),
            ValueError,
            r"num_workers must be 0 or more, but received -1\. Give",
        ),
        (
            lambda: makers.ScalingConfig(num_workers=1.5),
            TypeError,
            r"num_workers must be an int, or a pair of ints for .* received 1\.5",
        ),
        (lambda: train.ScalingConfig(num_workers=True), TypeError, "num_workers must be an int, .* received True"),
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
        (
            lambda: makers.ScalingConfig(trainer_resources={}),
            DeprecationWarning,
            "trainer_resources is not supported, as in",
        ),
        (
            lambda: makers.ScalingConfig(num_workers=(1, 2, 3)),
            TypeError,
            r"or a pair of ints for an elastic .* \(1, 2, 3\)\. Write",
        ),
        (
            lambda: makers.ScalingConfig(num_workers=(1, "2")),
            TypeError,
            r"or a pair of ints for an elastic .* \(1, '2'\)",
        ),
        (
            lambda: train.ScalingConfig(num_workers=(3, 2)),
            ValueError,
            r"1 <= least <= most, but received \(3, 2\)\. Write",
        ),
        (lambda: train.ScalingConfig(num_workers=(0, 2)), ValueError, r"must have 1 <= least .* received \(0, 2\)"),
        (
            lambda: train.ScalingConfig(elastic_resize_monitor_interval_s=-1),
            ValueError,
            "elastic_resize_monitor_interval_s must be 0 or more seconds, but received -1",
        ),
        (lambda: makers.ScalingConfig(label_selector={"a": "b"}), NotImplementedError, "label_selector .* resource of"),
        (lambda: makers.ScalingConfig(use_tpu=True), NotImplementedError, "TPUs are not supported: leave out use_tpu"),
        (lambda: makers.ScalingConfig(accelerator_type=""), ValueError, "accelerator_type must be the name .* ''"),
        (lambda: makers.FailureConfig(max_failures=1.5), TypeError, "max_failures must be an int, but received 1.5"),
        (
            lambda: train.FailureConfig(controller_failure_limit=-2),
            ValueError,
            "controller_failure_limit .* -2.* for 0",
        ),
        (lambda: train.FailureConfig(max_preemption_failures=-2), ValueError, "max_preemption_failures must .* for -1"),
        (lambda: train.FailureConfig(preemption_grace_s=-1), ValueError, "preemption_grace_s must be 0 or .* -1"),
        (
            lambda: train.FailureConfig(relax_collectives_on_preemption=True),
            NotImplementedError,
            "relax_collectives_on_preemption is not supported: report",
        ),
        (lambda: makers.FailureConfig(fail_fast=True), DeprecationWarning, "fail_fast is not .* Write max_failures=0"),
        (lambda: train.LoggingConfig(log_level="LOUD"), ValueError, "log_level must be one of .* received 'LOUD'"),
        (lambda: makers.CheckpointConfig(checkpoint_frequency=1), DeprecationWarning, "checkpoint_frequency is not"),
        (lambda: makers.CheckpointConfig(checkpoint_at_end=True), DeprecationWarning, "checkpoint_at_end is not"),
        (lambda: makers.RunConfig(verbose=1), DeprecationWarning, r"RunConfig\(verbose=...\) .* LoggingConfig"),
        (lambda: makers.RunConfig(stop={}), DeprecationWarning, r"RunConfig\(stop=...\) .* Return from the training"),
        (lambda: makers.RunConfig(storage_filesystem=1), ValueError, "storage_filesystem=1 needs storage_path"),
        (
            lambda: makers.RunConfig(storage_path="runs", storage_filesystem=1),
            TypeError,
            "filesystem must be one of pyarrow's or fsspec's, but received 1",
        ),
        (
            lambda: makers.RunConfig(worker_runtime_env=1),
            TypeError,
            "worker_runtime_env must be a dict, but received 1",
        ),
        (lambda: makers.RunConfig(failure_config=1), TypeError, "failure_config must be a FailureConfig, but received"),
        (lambda: train.FailureConfig(max_failures=-2), ValueError, "max_failures must be -1 .* received -2"),
        (lambda: train.CheckpointConfig(num_to_keep=0), ValueError, "num_to_keep must be 1 or more.* received 0"),
        (lambda: train.CheckpointConfig(checkpoint_score_order="up"), ValueError, "must be 'max' or 'min', .* 'up'"),
        (
            lambda: makers.CheckpointConfig(checkpoint_score_attribute=5),
            TypeError,
            "must be a metric.s name, but received 5",
        ),
        (
            lambda: train.RunConfig(name="a\0"),
            ValueError,
            r"name must be the name of one folder, but received 'a\\x00'",
        ),
        (lambda: train.RunConfig(name="a/b"), ValueError, "name must be the name of one folder, but received 'a/b'"),
        (lambda: train.RunConfig(name="\ud800"), ValueError, r"the name of one folder, .*'\\ud800': .*surrogate"),
        (lambda: train.RunConfig(name="a" * 1_000_000), ValueError, "(?s)of one folder, .*it has 1,000,000 bytes"),
        (lambda: tune.RunConfig(name="\ud800"), ValueError, r"the name of one folder, .*'\\ud800': .*surrogate"),
        (lambda: train.RunConfig(storage_path=""), ValueError, "storage_path must be a folder's path or an address"),
        (
            lambda: train.RunConfig(storage_path="floppy://a/x"),
            ValueError,
            "the address 'floppy://a/x' has the unknown scheme 'floppy'. Write a path of this machine, s3://",
        ),
        (
            lambda: train.RunConfig(storage_path=Path("floppy://x")),
            ValueError,
            "the address 'floppy:/x' has the unknown scheme",
        ),
        (lambda: train.RunConfig(storage_path="s3://b/x?speed=9"), ValueError, "has the unknown option 'speed'"),
        (lambda: train.Checkpoint("floppy://a/x"), ValueError, "Checkpoint.* has the unknown scheme 'floppy'"),
        (lambda: makers.Checkpoint("x", filesystem=1), TypeError, "Checkpoint.* filesystem must be one of pyarrow's"),
        (lambda: train.Result.from_path("floppy://a/run"), ValueError, "Result.from_path.* has the unknown scheme"),
        (lambda: makers.RunConfig(callbacks=[print]), TypeError, "must be instances of hocket.train.UserCallback"),
        (lambda: makers.RunConfig(callbacks=-1), TypeError, "callbacks must be a list of .* received -1"),
        (lambda: makers.RunConfig(callbacks="ab"), TypeError, "callbacks must be a list of .* received 'ab'"),
        (lambda: makers.RunConfig(name=3), TypeError, "name must be a string, but received 3"),
        (lambda: makers.RunConfig(name={}), TypeError, "name must be a string, but received {}"),
        (lambda: train.RunConfig(storage_path="\0"), ValueError, r"storage_path must be .* received '\\x00'"),
        (lambda: makers.ScalingConfig(use_gpu="zzz"), TypeError, "use_gpu must be True or False, but received 'zzz'"),
        (lambda: makers.ScalingConfig(resources_per_worker=-1), TypeError, "resources_per_worker must be a dict"),
        (lambda: makers.ScalingConfig(num_workers=10**30), ValueError, "num_workers must be 100,000 at most"),
        (
            lambda: makers.ScalingConfig(num_workers=NoText()),
            TypeError,
            "received <NoText without a text: its __repr__",
        ),
        (
            lambda: makers.ScalingConfig(elastic_resize_monitor_interval_s=None),
            TypeError,
            "must be a number of seconds, but received None. Leave it out for 60",
        ),
        (lambda: makers.FailureConfig(preemption_grace_s=""), TypeError, "must be a number of seconds, .* received ''"),
        (lambda: makers.FailureConfig(preemption_grace_s=math.nan), ValueError, "must be 0 or more seconds"),
        (lambda: makers.CheckpointConfig(num_to_keep=""), TypeError, "num_to_keep must be an int, .* received ''"),
        (lambda: makers.CheckpointConfig(num_to_keep=1.5), TypeError, "num_to_keep must be an int, .* received 1.5"),
        (lambda: makers.ProgressDisplay(total=""), TypeError, "total must be a number, but received ''"),
        (lambda: makers.ProgressDisplay(interval_s=None), TypeError, "interval_s must be a number, but received None"),
        (
            lambda: makers.ProgressDisplay(step_key=[]),
            TypeError,
            r"step_key must be a metric's name, but received \[\]",
        ),
        (
            lambda: makers.ValidationConfig(fn=print, ray_remote_kwargs=-1),
            TypeError,
            "ray_remote_kwargs must be a dict, but received -1",
        ),
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
    elastic = train.ScalingConfig(num_workers=(1, 4))
    assert (elastic.min_workers, elastic.max_workers, elastic.elasticity_enabled) == (1, 4, True)
    assert (scaling.elastic_resize_monitor_interval_s, scaling.num_tpus_per_worker) == (60, 0)
    assert (run.failure_config.max_preemption_failures, run.failure_config.preemption_grace_s) == (-1, 0)
    assert makers.RunConfig(failure_config=None, callbacks=None) == train.RunConfig()


def test_resources_of_all_workers() -> None:
    scaling = train.ScalingConfig(num_workers=3, use_gpu=True, resources_per_worker={"CPU": 2, "camera": 0.5})
    assert scaling.total_resources == {"CPU": 6.0, "GPU": 3.0, "camera": 1.5}


def take_two(config: dict[str, Any], more: int) -> None: ...


def take_none() -> None: ...


async def wait() -> None: ...


def give() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "given", "error", "match"),
    [
        (
            wait,
            {},
            TypeError,
            "must do its work when it is called, but `wait` only makes a coroutine. Write a function that runs",
        ),
        (give, {}, TypeError, "must do its work when it is called, but `give` only makes a generator."),
        (
            take_two,
            {},
            ValueError,
            r"must take no argument or one .* `take_two` takes 2: \(config.* Put the values into",
        ),
        ("loop", {}, TypeError, "train_loop_per_worker must be a function, but received 'loop'"),
        (take_none, {"train_loop_config": {"lr": 1}}, ValueError, "`take_none` takes no argument. Give it one"),
        (take_none, {"scaling_config": 2}, TypeError, "scaling_config must be a ScalingConfig, but received 2"),
        (take_none, {"run_config": {}}, TypeError, "run_config must be a RunConfig, but received {}"),
        (take_none, {"backend_config": {}}, TypeError, "backend_config must be a BackendConfig, but received {}"),
    ],
)
def test_training_functions_are_checked(function: Any, given: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        train.DataParallelTrainer(function, **given)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: makers.ScalingConfig(num_worker=2),
            "ScalingConfig has no argument num_worker. Did you mean num_workers=2?",
        ),
        (lambda: makers.ScalingConfig(nproc_per_node=2), "Did you mean num_workers=2?"),
        (lambda: makers.ScalingConfig(workers=2), "Did you mean num_workers=2?"),
        (lambda: makers.ScalingConfig(num_gpus=2), "Write use_gpu=True, resources_per_worker={'GPU': 2}."),
        (lambda: makers.RunConfig(storage="runs"), "Did you mean storage_path='runs'?"),
        (lambda: makers.RunConfig(max_failures=1), "Write failure_config=FailureConfig(max_failures=1)."),
        (lambda: makers.RunConfig(max_restarts=1), "Write failure_config=FailureConfig(max_failures=1)."),
        (lambda: makers.FailureConfig(max_failure=1), "Did you mean max_failures=1?"),
        (lambda: makers.CheckpointConfig(keep=1), "Did you mean num_to_keep=1?"),
        (lambda: makers.LoggingConfig(nonsense=1), "LoggingConfig has no argument nonsense. It has log_level."),
        (lambda: makers.DataConfig(dataset_to_split=[]), "Did you mean datasets_to_split=[]?"),
        (lambda: makers.DataParallelTrainer(len, config={}), "Did you mean train_loop_config={}?"),
        (lambda: makers.DataParallelTrainer(train_func=len), "Did you mean train_loop_per_worker=len?"),
        (
            lambda: makers.DataParallelTrainer(len, train.ScalingConfig()),
            "Name it, as in DataParallelTrainer(..., scaling_config=...).",
        ),
        (
            lambda: makers.DataParallelTrainer(len, {"lr": 1}),
            (
                "DataParallelTrainer takes one value without a name, but also received {'lr': 1}. Name it, as in "
                "DataParallelTrainer(..., train_loop_config=...)."
            ),
        ),
        (
            lambda: makers.DataParallelTrainer(len, num_workers=2),
            "DataParallelTrainer has no argument num_workers. Write scaling_config=ScalingConfig(num_workers=2).",
        ),
        (
            lambda: makers.DataParallelTrainer(len, scaling=1, max_failures=3, name=NoText()),
            (
                "DataParallelTrainer has no argument scaling, max_failures, name. Did you mean scaling_config=1? Write "
                "run_config=RunConfig(failure_config=FailureConfig(max_failures=3)). Write run_config=RunConfig(name="
                "<NoText without a text: its __repr__ raised RuntimeError>)."
            ),
        ),
    ],
)
def test_a_keyword_that_does_not_exist_says_which_was_meant(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"{re.escape(message)}$"):
        make()


def test_every_trainer_says_which_keyword_was_meant() -> None:
    for name, keyword, kind in (
        ("torch", "torch_config", "TorchConfig"),
        ("jax", "jax_config", "JaxConfig"),
        ("keras", "keras_config", "KerasConfig"),
        ("tensorflow", "tensorflow_config", "TensorflowConfig"),
        ("xgboost", "xgboost_config", "XGBoostConfig"),
        ("lightgbm", "lightgbm_config", "LightGBMConfig"),
    ):
        module = pytest.importorskip(f"hocket.train.{name}")
        trainer = getattr(module, kind.replace("Config", "Trainer"))
        with pytest.raises(
            TypeError, match=r"no argument workers. Write scaling_config=ScalingConfig\(num_workers=2\)"
        ):
            trainer(len, workers=2)
        with pytest.raises(TypeError, match=f"Did you mean {keyword}=None"):
            trainer(len, backend_config=None)
        with pytest.raises(TypeError, match=f"{kind} has no argument nonsense. It has "):
            getattr(module, kind)(nonsense=2)


def test_a_preemption_of_the_users_own_has_its_text() -> None:
    assert str(train.PreemptionError("the lease is over")) == "the lease is over"  # type: ignore[arg-type]


def test_optional_arguments_are_no_obstacle() -> None:
    def loop(config: dict[str, Any], more: int = 1) -> None: ...

    train.DataParallelTrainer(loop, train_loop_config={"lr": 1})


@pytest.mark.parametrize("call", [train.get_context, train.get_checkpoint, lambda: train.report({})])
def test_outside_a_training_function(call: Any) -> None:
    with pytest.raises(RuntimeError, match=r"was called outside a training function\. Call it in the function"):
        call()


def test_a_missing_framework_names_its_extra() -> None:
    program = "import sys; sys.modules['torch'] = None; import hocket.train.torch"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        "hocket.train.torch needs PyTorch, and 'torch' cannot be imported. Run pip install 'hocket[torch]'."
        in done.stderr
    )


def test_a_path_with_a_colon_is_a_path(tmp_path: Path) -> None:
    assert train.Checkpoint(tmp_path / "a:b").path == str(tmp_path / "a:b")
    assert train.RunConfig(storage_path="runs:2026/x").storage_path == "runs:2026/x"


def test_where_a_checkpoint_of_a_name_lies(tmp_path: Path) -> None:
    kept = storage.Storage(str(tmp_path), "run")
    assert kept.build_checkpoint_path_from_name("checkpoint_3") == str(tmp_path / "run" / "checkpoint_3")


@pytest.mark.usefixtures("session")
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(
        NotADirectoryError, match=r"The run's folder cannot be created .*RunConfig\(storage_path=\.\.\.\).*file/run"
    ):
        storage.open_storage(storage.Storage(str(file), "run"))
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with pytest.raises(OSError, match=r"The run's folder cannot be created .*symbolic links.*/circle/"):
        train.DataParallelTrainer(
            take_none,
            scaling_config=train.ScalingConfig(num_workers=0),
            run_config=train.RunConfig(storage_path=circle),
        ).fit()


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_keeps_others_of_its_name_out_of_its_folder(tmp_path: Path, *, fails: bool) -> None:
    run = storage.Storage(str(tmp_path), "run")
    child = 0
    with (
        pytest.raises(ValueError, match="on purpose") if fails else contextlib.nullcontext(),
        storage.hold_storage(run),
    ):
        run.staging_path.mkdir()
        with (
            pytest.raises(
                train.TrainingFailedError, match=r"The run 'run' in .* is already running: .* another name\.$"
            ),
            storage.hold_storage(run),
        ):
            pass
        assert run.staging_path.is_dir()  # what the first run has staged is left alone
        child = os.fork()
        if child == 0:  # it has the descriptor, too, and outlives the run
            time.sleep(60)
            os._exit(0)
        if fails:
            raise ValueError("on purpose")
    with storage.hold_storage(run):
        assert not run.staging_path.exists()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_torch_takes_both_of_rays_init_methods() -> None:
    torch_training = pytest.importorskip("hocket.train.torch", reason="needs PyTorch: pip install 'hocket[torch]'")
    for name in ("env", "tcp"):
        assert torch_training.TorchConfig(init_method=name).init_method == name
    with pytest.raises(ValueError, match=r"init_method must be 'env' or 'tcp', but received 'file'\. Leave it out"):
        torch_training.TorchConfig(init_method="file")


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(
    ("scaling", "match"),
    [
        (train.ScalingConfig(use_gpu=True), r"\. Train on CPUs with ScalingConfig\(use_gpu=False\)"),
        (
            train.ScalingConfig(resources_per_worker={"lidar": 1}),
            r"open the session with more of lidar: hocket\.init\(resources",
        ),
        (train.ScalingConfig(resources_per_worker={"cpu": 1}), r"Did you mean 'CPU' by 'cpu'\?$"),
        (train.ScalingConfig(num_workers=99), r"give each less .*hocket\.init\(num_cpus=\.\.\.\)"),
    ],
)
def test_what_is_short_decides_the_advice(scaling: train.ScalingConfig, match: str, tmp_path: Path) -> None:
    run = train.RunConfig(storage_path=tmp_path)
    with pytest.raises(hocket.exceptions.InfeasibleResourcesError, match=match):
        train.DataParallelTrainer(take_none, scaling_config=scaling, run_config=run).fit()


def test_a_relative_folder_needs_a_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    trainer = train.DataParallelTrainer(
        lambda: None,
        scaling_config=train.ScalingConfig(num_workers=0),
        run_config=train.RunConfig(storage_path="results"),
    )
    with pytest.raises(FileNotFoundError, match=r"RunConfig\(storage_path='results'\) is relative .* has been removed"):
        trainer.fit()
