"""TensorFlow: MultiWorkerMirroredStrategy programs run unchanged, in ranks that TF_CONFIG tells of each other."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import train
from hocket.compat.classic import trainer as classic_trainer
from hocket.train.frameworks import tf_config, weights
from hocket.train.run import patience

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'hocket[tensorflow]'")
pytest.importorskip("tf_keras", reason="needs tf-keras: pip install 'hocket[tensorflow]'")
from hocket.train import tensorflow as hocket_tensorflow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def train_loop(config: dict[str, Any]) -> dict[str, Any]:
    """Code for MultiWorkerMirroredStrategy, as written for Ray Train, but for one rank that may die or use the wrong
    Keras."""
    import keras
    import tensorflow as tf

    from hocket.train.tensorflow.keras import ReportCheckpointCallback

    library = keras if config["keras"] == 3 else tf.keras
    rank = train.get_context().get_world_rank()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = library.Sequential([library.layers.Input((4,)), library.layers.Dense(1, kernel_initializer="ones")])
        model.compile(library.optimizers.SGD(0.1), "mse", metrics=["mae"])
    x = np.arange(64, dtype="float32").reshape(16, 4) / 64
    rows = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True) + 1))
    rows = hocket_tensorflow.prepare_dataset_shard(rows.shard(2, rank).batch(4).repeat())

    class Die(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not type-checked
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if rank == 1 and batch == 1 and config.get("dies"):
                os.kill(os.getpid(), signal.SIGKILL)

    own = [] if config["keras"] == 3 else [ReportCheckpointCallback(metrics={"error": "mae"}), Die()]
    history = model.fit(rows, epochs=2, steps_per_epoch=2, verbose=0, callbacks=own)
    return {
        "cluster": json.loads(os.environ["TF_CONFIG"]),
        "replicas": strategy.num_replicas_in_sync,
        "keras": type(model).__module__,
        "mae": history.history["mae"],
    }


def descend_in_one_process() -> dict[str, Any]:
    """What one process learns with batches of both ranks' rows: the same steps, with numpy.

    A batch is cut: each rank takes 2 rows of its 4.
    """
    x = np.arange(64, dtype="float64").reshape(16, 4) / 64
    y = x.sum(1, keepdims=True) + 1
    kernel, bias = np.ones((4, 1)), np.zeros(1)
    for step in range(4):
        mine = [np.arange(16)[rank::2][2 * step :][:2] for rank in range(2)]
        rows = np.concatenate(mine)
        slope = 2 * (x[rows] @ kernel + bias - y[rows]) / len(rows)
        kernel, bias = kernel - 0.1 * x[rows].T @ slope, bias - 0.1 * slope.sum(0)
    return {"kernel": kernel, "bias": bias}


def fit(function: Any, path: Path, config: Any) -> train.Result:
    return hocket_tensorflow.TensorflowTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=path),
    ).fit()


@pytest.fixture
def with_another_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the user's environment ask for a Keras 3 that knows nothing of TensorFlow's strategies."""
    monkeypatch.setenv("KERAS_BACKEND", "jax")


@pytest.mark.usefixtures("with_another_keras", "session")
def test_two_workers_train_report_and_die_by_name(tmp_path: Path) -> None:
    result = fit(train_loop, tmp_path, {"keras": 2})
    returned = result.return_value
    assert returned["replicas"] == 2
    assert returned["keras"].startswith("tf_keras.")
    assert returned["cluster"]["task"] == {"type": "worker", "index": 0}
    workers = returned["cluster"]["cluster"]["worker"]
    assert len(set(workers)) == 2
    assert all(address.startswith("127.0.0.1:") for address in workers)
    assert result.metrics == {"error": pytest.approx(returned["mae"][-1])}
    assert result.checkpoint is not None
    saved = weights.load(result.checkpoint.path)
    assert [(name, array.shape) for name, array in saved.items()] == [("dense/kernel", (4, 1)), ("dense/bias", (1,))]
    for name, expected in descend_in_one_process().items():
        np.testing.assert_allclose(saved[f"dense/{name}"], expected, atol=1e-5)
    assert _load_in_process(Path(result.checkpoint.path, "model.keras")) == pytest.approx(
        saved["dense/kernel"].ravel().tolist()
    )

    start = time.monotonic()
    with pytest.raises(
        train.WorkerGroupError,
        match=r"Rank 1 of 2 died: its process .* (was killed by signal 9|ended; Ray reports)",
    ) as caught:
        fit(train_loop, tmp_path, {"keras": 2, "dies": True})
    assert 1 in caught.value.worker_failures
    print(f"a fit whose rank dies in its second step took {time.monotonic() - start:.1f} s")

    with pytest.raises(
        train.WorkerGroupError, match=r"Keras 3 does not train under .*tf_keras.*prepare_model\(model\)"
    ):
        fit(train_loop, tmp_path, {"keras": 3})


def _load_in_process(path: Path) -> list[float]:
    import tf_keras

    kernel = tf_keras.models.load_model(path).get_weights()[0]
    return [float(value) for value in kernel.ravel()]


@pytest.mark.usefixtures("session")
def test_a_chief_and_the_trainer_of_2022(tmp_path: Path) -> None:
    def look(config: dict[str, Any]) -> Any:  # inside: ranks would import this file, and TensorFlow with it
        return json.loads(os.environ["TF_CONFIG"])["task"], os.environ[tf_config.LEGACY_KERAS]

    group = train.DataParallelTrainer(  # which loads no TensorFlow
        look,
        backend_config=classic_trainer.TFConfigBackend(),
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=tmp_path),
    )
    assert group.fit().return_value == ({"type": "worker", "index": 0}, "1")
    config = hocket_tensorflow.TensorflowConfig(chief=True, num_evaluators=1, legacy_keras=False)
    assert config.list_task_types(3) == ["chief", "worker", "evaluator"]


def end_early() -> None:
    if train.get_context().get_world_rank() == 1:
        return
    import tensorflow as tf

    tf.distribute.MultiWorkerMirroredStrategy()  # waits for the other


@pytest.mark.usefixtures("session")
def test_a_rank_that_has_ended_is_not_waited_for_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patience, "NOTICE_SECONDS", 1.0)
    monkeypatch.setattr(patience, "LIMIT_SECONDS", 4.0)
    with (
        caplog.at_level(logging.WARNING, "hocket.train"),
        pytest.raises(train.WorkerGroupError, match=r"Rank 0 has gone on for \d s since rank 1 ended\.") as caught,
    ):
        hocket_tensorflow.TensorflowTrainer(
            end_early,
            scaling_config=train.ScalingConfig(num_workers=2),
            run_config=train.RunConfig(storage_path=tmp_path),
        ).fit()
    assert list(caught.value.worker_failures) == [0]
    assert (
        "Rank 0 has gone on for 1 s since rank 1 ended. If a rank calls one of the framework's collectives"
        in caplog.text
    )


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="chief must be True or False, but received 'yes'"):
        hocket_tensorflow.TensorflowConfig(chief="yes")  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"tensorflow_config must be a TensorflowConfig, but received \{'chief': True\}"
    ):
        hocket_tensorflow.TensorflowTrainer(end_early, tensorflow_config={"chief": True})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_evaluators must be 0 or more, but received -1"):
        hocket_tensorflow.TensorflowConfig(num_evaluators=-1)
    with pytest.raises(ValueError, match=r"num_evaluators=2 of num_workers=2 leave no rank to train\. .*num_workers=3"):
        hocket_tensorflow.TensorflowTrainer(
            train_loop,
            tensorflow_config=hocket_tensorflow.TensorflowConfig(num_evaluators=2),
            scaling_config=train.ScalingConfig(num_workers=2),
        )
    with pytest.raises(
        ValueError, match=r"cannot use strategy=LocalSGD\(sync_every=2.*KerasTrainer, which has LocalSGD"
    ):
        hocket_tensorflow.TensorflowTrainer(train_loop, strategy=train.strategies.LocalSGD(2))
    with (
        hocket.init(engine="inprocess"),
        pytest.raises(ValueError, match="ranks are processes, each with its TF_CONFIG"),
    ):
        fit(train_loop, tmp_path, {"keras": 2})
    with pytest.raises(TypeError, match=r"takes a tf\.data\.Dataset, but received list"):
        hocket_tensorflow.prepare_dataset_shard([1])


PROGRAM_OF_2022 = """
import os, sys
{first}
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers
import hocket
from hocket import train
from hocket.train.tensorflow import TensorflowTrainer

class Reports(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        train.report(logs)

class ReportsOf2022(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        train.report(**logs)

def loop(config, reports=Reports):
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = keras.Sequential([layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    rows = tf.data.Dataset.from_tensor_slices((tf.ones((8, 2)), tf.ones((8, 1)))).batch(4)
    model.fit(rows, epochs=2, verbose=0, callbacks=[reports()])
    return "trained"

def loop_of_2022(config):
    return loop(config, ReportsOf2022)

def fit():
    settings = train.ScalingConfig(num_workers=2), train.RunConfig(storage_path=sys.argv[1])
    return TensorflowTrainer(loop, scaling_config=settings[0], run_config=settings[1]).fit().return_value

def fit_as_in_2022():
    trainer = train.Trainer(backend="tensorflow", num_workers=2)
    trainer.start()
    try:
        return trainer.run(loop_of_2022, config={{}})[0]
    finally:
        trainer.shutdown()

if __name__ == "__main__":
    for way in fit, fit_as_in_2022:
        try:
            print(way.__name__, way())
        except TypeError as error:
            print(way.__name__, error)
"""


@pytest.mark.about_local("a program of its own")
@pytest.mark.parametrize("is_set", [False, True])
def test_a_program_with_its_imports_at_the_top_trains_or_is_told_what_to_write(tmp_path: Path, is_set: bool) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM_OF_2022.format(first="os.environ['TF_USE_LEGACY_KERAS'] = '1'" if is_set else ""))
    environment = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    command = [sys.executable, str(path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    for way in ("fit", "fit_as_in_2022"):
        said = next((line for line in done.stdout.splitlines() if line.startswith(f"{way} ")), done.stderr)
        if is_set:
            assert said == f"{way} trained"
        else:
            assert said.startswith(f"{way} The training function refers to an object of Keras 3")
            assert "os.environ['TF_USE_LEGACY_KERAS'] = '1' at the top of the program" in said
