"""TensorFlow's ParameterServerStrategy: its programs run unchanged, and a death is what TensorFlow says it is."""

from __future__ import annotations

import json
import logging
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import train
from hocket.train.frameworks import weights

pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'hocket[tensorflow]'")
from hocket.train import tensorflow as hocket_tensorflow
from hocket.train.tensorflow import ParameterServers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def follow_tutorial(config: dict[str, Any]) -> Any:
    """A program in the form of TensorFlow's tutorial: one for all roles, which starts a server where TF_CONFIG says
    so."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    note(config, resolver.task_type, resolver.task_id)
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol=resolver.rpc_layer or "grpc",
            start=True,
        )
        server.join()
    if resolver.task_type == "evaluator":
        evaluated = Path(config["folder"], "evaluated")
        for path in tf.train.checkpoints_iterator(config["checkpoints"], timeout=60):
            counter = tf.Variable(0.0)
            tf.train.Checkpoint(counter=counter).restore(path).expect_partial()
            evaluated.write_text(str(float(counter.numpy())))
            return None
    strategy = tf.distribute.ParameterServerStrategy(
        resolver, variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    )
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        counter = tf.Variable(0.0)
        table = tf.Variable(tf.zeros((4, 2)))
    saved = tf.train.Checkpoint(counter=counter)
    before = train.get_checkpoint()
    if before is not None:
        saved.restore(str(Path(before.path, "model-1"))).assert_consumed()

    @tf.function
    def worker_fn(iterator: object) -> object:
        counter.assign_add(next(iterator))  # type: ignore[call-overload]
        return counter.read_value()

    def dataset_fn() -> object:
        return tf.data.Dataset.from_tensor_slices(tf.range(1.0, 6.0)).repeat()

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))

    def take_steps(number: int) -> None:
        for _ in range(number):
            coordinator.schedule(worker_fn, args=(iterator,))
        coordinator.join()

    take_steps(5)
    with tempfile.TemporaryDirectory() as folder:
        saved.save(str(Path(folder, "model")))
        if "checkpoints" in config:
            saved.save(str(Path(config["checkpoints"], "model")))
        train.report({"counter": float(counter.numpy())}, train.Checkpoint(folder))
    address = resolver.cluster_spec().as_dict().get(config.get("kills"), [""])[0]
    if address and before is None:
        killed = find_listener(address)
        os.kill(killed, signal.SIGKILL)
        take_steps(20)
        train.report({"counter": float(counter.numpy()), "is_another": find_listener(address) != killed})
    return {"cluster": resolver.cluster_spec().as_dict(), "table": [part.device for part in table.variables]}


def note(config: dict[str, Any], kind: str, index: int) -> None:
    """Leave what a role has found in its environment."""
    context = train.get_context()
    found = [os.environ.get("GRPC_FAIL_FAST"), context.get_world_rank(), context.get_world_size()]
    Path(config["folder"], f"{kind} {index}").write_text(json.dumps(found))


def find_listener(address: str) -> int:
    """Return the process that listens on a port of this machine."""
    port = f"{int(address.rpartition(':')[2]):04X}"
    tables = [Path("/proc/net", name).read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table]
    wanted = {f"socket:[{fields[9]}]" for fields in lines if fields[1].endswith(f":{port}") and fields[3] == "0A"}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            held = {str(path.readlink()) for path in (process / "fd").iterdir()}
        except OSError:  # it is another user's, or has just ended
            continue
        if held & wanted:
            return int(process.name)
    raise LookupError(f"Nobody listens on {address}.")


def fit_keras(config: dict[str, Any]) -> Any:
    """A program of Keras 2: ``fit`` is the coordinator."""
    import tensorflow as tf

    from hocket.train.tensorflow.keras import ReportCheckpointCallback

    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())

    def dataset_fn(context: object) -> object:
        x = tf.reshape(tf.linspace(-1.0, 1.0, 64), (64, 1))
        return tf.data.Dataset.from_tensor_slices((x, 3 * x)).repeat().batch(16)

    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
        model.compile(tf.keras.optimizers.SGD(0.2), "mse")
    rows = tf.keras.utils.experimental.DatasetCreator(dataset_fn)
    history = model.fit(rows, epochs=2, steps_per_epoch=20, verbose=0, callbacks=[ReportCheckpointCallback()])
    return history.history["loss"]


class Failures(train.UserCallback):
    """Keeps who failed."""

    def __init__(self) -> None:
        self.ranks: list[list[int]] = []

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        self.ranks.append(list(worker_exceptions))


def fit(
    strategy: Any, folder: Path, max_failures: int = 0, *, function: Any = follow_tutorial, **config: Any
) -> tuple[train.Result, Failures]:
    folder.mkdir()
    failed = Failures()
    result = hocket_tensorflow.TensorflowTrainer(
        function,
        train_loop_config={"folder": str(folder), **config},
        strategy=strategy,
        scaling_config=train.ScalingConfig(num_workers=1, resources_per_worker={"CPU": 0.25}),
        run_config=train.RunConfig(
            storage_path=folder / "results",
            failure_config=train.FailureConfig(max_failures=max_failures),
            callbacks=[failed],
        ),
    ).fit()
    return result, failed


def read_notes(folder: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text()) for path in folder.iterdir() if " " in path.name}


@pytest.mark.usefixtures("session")
def test_a_program_for_all_roles_and_what_dies_in_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # The chief alone runs the program; a worker is killed in it, and TensorFlow goes on with the one in its place.
    with caplog.at_level(logging.WARNING, "hocket.train"):
        result, failed = fit("parameter_server", tmp_path / "worker dies", kills="worker")
    assert [row["counter"] for _, row in result.metrics_dataframe.iterrows()] == [15, pytest.approx(75, abs=5)]
    assert result.metrics is not None
    assert result.metrics["is_another"]
    assert failed.ranks == []
    told = [record.getMessage() for record in caplog.records if "is started again" in record.getMessage()]
    assert [text.partition(": ")[0] for text in told] == ["Rank 1 of 3 (worker 0) died"]
    assert {kind: len(tasks) for kind, tasks in result.return_value["cluster"].items()} == {
        "chief": 1,
        "worker": 1,
        "ps": 1,
    }
    assert read_notes(tmp_path / "worker dies") == {"chief 0": ["use_caller", 0, 1]}

    # Every role runs it, with an evaluator.
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    cluster = ParameterServers(num_servers=2, num_evaluators=1, own_servers=True)
    result, failed = fit(cluster, tmp_path / "all", checkpoints=str(checkpoints))
    assert result.metrics == {"counter": 15}
    assert read_notes(tmp_path / "all") == {
        name: ["use_caller", rank, 1]
        for rank, name in enumerate(["chief 0", "worker 0", "ps 0", "ps 1", "evaluator 0"])
    }
    assert (tmp_path / "all" / "evaluated").read_text() == "15.0"
    assert "evaluator" not in result.return_value["cluster"]
    assert {device.partition("/device:")[0][-1] for device in result.return_value["table"]} == {"0", "1"}

    # A server is killed: all start again, from the checkpoint.
    result, failed = fit("parameter_server", tmp_path / "server dies", max_failures=1, kills="ps")
    assert result.metrics == {"counter": 30}
    assert [2 in ranks for ranks in failed.ranks] == [True]

    result, failed = fit("parameter_server", tmp_path / "keras", function=fit_keras)
    assert result.return_value[1] < result.return_value[0] / 10
    assert result.metrics == {"loss": result.return_value[1]}
    assert result.checkpoint is not None
    assert weights.load(result.checkpoint.path)["dense/kernel"].item() == pytest.approx(3, abs=0.3)

    with pytest.raises(train.WorkerGroupError, match=r"Rank 1 of 3 \(worker 0\) died: its process"):
        fit(ParameterServers(max_worker_restarts=0), tmp_path / "worker ends", kills="worker")


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"num_servers must be 1 or more, but received 0\. Leave it out for 1"):
        ParameterServers(num_servers=0)
    with pytest.raises(ValueError, match=r"num_evaluators must be 0 or 1, but received 2\. Leave it out for 0"):
        ParameterServers(num_evaluators=2)
    with pytest.raises(ValueError, match="max_worker_restarts must be -1 or more, but received -2"):
        ParameterServers(max_worker_restarts=-2)
    wrong: Any = "1"
    with pytest.raises(TypeError, match="num_servers must be an int, but received '1'"):
        ParameterServers(num_servers=wrong)
    with pytest.raises(TypeError, match="own_servers must be True or False, but received '1'"):
        ParameterServers(own_servers=wrong)

    def build(strategy: Any, num_workers: Any = 1, **config: Any) -> hocket_tensorflow.TensorflowTrainer:
        return hocket_tensorflow.TensorflowTrainer(
            follow_tutorial,
            train_loop_config={},
            strategy=strategy,
            tensorflow_config=hocket_tensorflow.TensorflowConfig(**config),
            scaling_config=train.ScalingConfig(num_workers=num_workers),
            run_config=train.RunConfig(storage_path=tmp_path),
        )

    with pytest.raises(
        ValueError, match=r"TensorFlow has no strategy='ps'\. Write strategy='parameter_server', .*MultiWorker"
    ):
        build("ps")
    with pytest.raises(ValueError, match=r"cannot use strategy=LocalSGD.*strategy='parameter_server' for servers"):
        build(train.strategies.LocalSGD(2))
    with pytest.raises(ValueError, match=r"needs one worker process or more, .* num_workers=0\. .*num_workers=1"):
        build("parameter_server", 0)
    with pytest.raises(
        ValueError, match=r"workers in TensorFlow's cluster cannot change, .*\(1, 2\)\. Write num_workers=2"
    ):
        build("parameter_server", (1, 2))
    with pytest.raises(ValueError, match=r"would be a second chief: .* Leave chief out"):
        build("parameter_server", chief=True)
    with pytest.raises(
        ValueError, match=r"num_evaluators=1\) takes ranks .*strategy=ParameterServers\(num_evaluators=1"
    ):
        build("parameter_server", num_evaluators=1)
    with (
        hocket.init(engine="inprocess"),
        pytest.raises(ValueError, match=r"chief, worker 0, ps 0 need a process each, .*engine='local'"),
    ):
        build("parameter_server").fit()
