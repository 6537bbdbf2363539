"""Naka Masato, "Introducing TensorFlow Parameter Server Training" (slides in Japanese, March 2022).

Its sample, five closures that add 1 to 5 to a variable, is run in two ways: on `hocket.ps`, whose names mirror
TensorFlow's, and by TensorFlow itself inside a `TensorflowTrainer`. Other ways to write the variable are tested in
`tests/ps/test_foreign.py`, a program for all roles and ``Model.fit`` in
`tests/train/test_parameter_servers_tensorflow.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.reference import programs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.about_local("programs of their own"),
]

ALONE = """
import tensorflow as tf

v = tf.Variable(initial_value=0)

@tf.function
def worker_fn(iterator):
    v.assign_add(next(iterator))

iterator = iter(tf.data.Dataset.from_tensor_slices([1, 2, 3, 4, 5]))
for _ in range(5):
    worker_fn(iterator)
print("alone", v.numpy())
"""

ON_SERVERS = """
import sys

import tensorflow as tf

import hocket
from hocket import ps


def count(workers, make_variable):
    cluster_spec = tf.train.ClusterSpec({"worker": [f"localhost:{2222 + n}" for n in range(workers)], "ps": ["localhost:2221"]})
    cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster_spec, rpc_layer="grpc")
    strategy = ps.ParameterServerStrategy(cluster_resolver)
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        v = make_variable()

    @DECORATOR
    def worker_fn(iterator):
        v.assign_add(next(iterator))

    per_worker_dataset = coordinator.create_per_worker_dataset(range(1, 6))
    per_worker_iterator = iter(per_worker_dataset)
    for _ in range(5):
        coordinator.schedule(worker_fn, args=ARGS)
    coordinator.join()
    total = float(v.numpy())
    strategy.close()
    return total


def make_weight():
    layer = tf.keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False)
    layer.build((None, 1))
    return layer.weights[0]


if __name__ == "__main__":
    hocket.init(num_cpus=2)
    print([count(workers, lambda: WRITTEN) for workers in (1, 2, 3)])
"""


def write(written: str, *, decorator: str = "", args: str = "(per_worker_iterator,)") -> str:
    """Fill the program in."""
    text = ON_SERVERS.replace("WRITTEN", written).replace("ARGS", args)
    return text.replace("    @DECORATOR\n", f"    {decorator}\n" if decorator else "")


def test_the_sample_ends_at_15_on_one_two_and_three_workers(tmp_path: Path) -> None:
    text = write("make()").replace(
        "    print([count(workers, lambda: make()) for workers in (1, 2, 3)])",
        "    for make in (lambda: ps.Variable(0), lambda: tf.Variable(initial_value=0), lambda: tf.Variable(0.0)):\n"
        "        print([count(workers, make) for workers in (1, 2, 3)])",
    )
    assert programs.read_result(programs.run(text, tmp_path)) == ["[15.0, 15.0, 15.0]"] * 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        pytest.param(
            write("tf.Variable(initial_value=0)", decorator="@tf.function"),
            r"TypeError: The closure count\.<locals>\.worker_fn is a @tf\.function that would use `v` once.*Take @tf\.function off the closure",
            id="as it is written, with tf.function",
        ),
        pytest.param(
            write("tf.Variable(initial_value=0)", args="(per_worker_iterator)"),
            r"TypeError: args must be a tuple of arguments, .* Write args=\(PerWorkerIterator\(number=0\),\)\.",
            id="as a slide has it, without the comma",
        ),
        pytest.param(
            write("make_weight()"),
            r"TypeError: A Keras layer or model makes its weights in strategy\.scope\(\).*Train it with KerasTrainer",
            id="a layer's weight",
        ),
        pytest.param(
            write("ps.Variable(0)").replace("range(1, 6)", "tf.data.Dataset.range(1, 6)"),
            r"TypeError: A per-worker dataset is made of a function .* write lambda context: \.\.\.",
            id="a dataset and not a function",
        ),
        pytest.param(
            write("ps.Variable(0)").replace(
                "ps.ParameterServerStrategy(cluster_resolver)", "tf.distribute.MirroredStrategy()"
            ),
            r"TypeError: Coordinator takes a ParameterServerStrategy, but received \w+\. Write ps\.Coordinator\(ps\.ParameterServerStrategy",
            id="another strategy",
        ),
    ],
)
def test_what_cannot_run_says_what_to_write(tmp_path: Path, text: str, refusal: str) -> None:
    assert re.match(refusal, programs.read_refusal(programs.run(text, tmp_path)))


INSIDE = """
import socket
import tempfile

import tensorflow as tf

import hocket
from hocket import train
from hocket.train.tensorflow import ParameterServers, TensorflowTrainer


def pick_ports(count):
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def create_in_process_cluster(num_workers, num_ps):
    addresses = [f"localhost:{port}" for port in pick_ports(num_workers + num_ps)]
    cluster_spec = tf.train.ClusterSpec({"worker": addresses[:num_workers], "ps": addresses[num_workers:]})
    worker_config = tf.compat.v1.ConfigProto()
    worker_config.inter_op_parallelism_threads = num_workers + 1
    for i in range(num_workers):
        tf.distribute.Server(cluster_spec, job_name="worker", task_index=i, config=worker_config, protocol="grpc")
    for i in range(num_ps):
        tf.distribute.Server(cluster_spec, job_name="ps", task_index=i, protocol="grpc")
    return tf.distribute.cluster_resolver.SimpleClusterResolver(cluster_spec, rpc_layer="grpc")


def count(cluster_resolver, dataset_fn):
    strategy = tf.distribute.experimental.ParameterServerStrategy(cluster_resolver)
    coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        assert tf.distribute.get_strategy() is strategy
        v = tf.Variable(initial_value=0)

    @tf.function
    def worker_fn(iterator):
        v.assign_add(next(iterator))

    per_worker_iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    for _ in range(5):
        coordinator.schedule(worker_fn, args=(per_worker_iterator,))
    coordinator.join()
    return int(v.numpy())


def one_to_five():
    return tf.data.Dataset.from_tensor_slices([1, 2, 3, 4, 5])


def threes():
    return tf.data.Dataset.from_tensors(3).repeat()


def in_one_process(config):
    return count(create_in_process_cluster(1, 1), one_to_five)


def in_many_processes(config):
    cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return count(cluster_resolver, one_to_five if config["workers"] == 1 else threes)


def mirrored(config):
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    distributed = [strategy.experimental_distribute_dataset(tf.data.Dataset.range(1, 9).batch(4))]

    def dataset_fn(input_context):
        rows = tf.data.Dataset.range(1, 9).shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
        return rows.batch(input_context.get_per_replica_batch_size(4))

    distributed.append(strategy.distribute_datasets_from_function(dataset_fn))
    with strategy.scope():
        v = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.SUM)
    assert len(v.values) == 2  # one on each replica

    @tf.function
    def step(batch):
        strategy.run(lambda rows: v.assign_add(tf.reduce_sum(rows)), args=(batch,))

    for dataset in distributed:
        for batch in dataset:
            step(batch)
    return int(v.numpy())


def fit_on_servers(config):
    strategy = tf.distribute.experimental.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver()
    )

    def dataset_fn(input_context):
        x = tf.reshape(tf.linspace(-1.0, 1.0, 64), (64, 1))
        return tf.data.Dataset.from_tensor_slices((x, 3 * x)).repeat().batch(input_context.get_per_replica_batch_size(16))

    dc = tf.keras.utils.experimental.DatasetCreator(dataset_fn)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.SGD(0.2), "mse")
    return model.fit(dc, epochs=2, steps_per_epoch=20, verbose=0).history["loss"]


def fit(function, workers=1, **settings):
    return TensorflowTrainer(
        function,
        train_loop_config={"workers": workers},
        scaling_config=train.ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 0.25}),
        run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        **settings,
    ).fit().return_value


if __name__ == "__main__":
    hocket.init(num_cpus=2)
"""


def test_tensorflow_s_own_strategies_run_unchanged_in_one_process(tmp_path: Path) -> None:
    text = f"{INSIDE}    print(fit(in_one_process), fit(mirrored))\n"
    assert programs.read_result(programs.run(text, tmp_path))[-1] == "15 72"


@pytest.mark.long
def test_tensorflow_s_own_strategies_run_unchanged_in_many_processes(tmp_path: Path) -> None:
    text = (
        f"{INSIDE}"
        "    print([fit(in_many_processes, workers, strategy='parameter_server') for workers in (1, 2, 3)])\n"
        "    first, second = fit(fit_on_servers, 2, strategy=ParameterServers(num_servers=2))\n"
        "    print(second < first / 5)\n"
    )
    assert programs.read_result(programs.run(text, tmp_path))[-2:] == ["[15, 15, 15]", "True"]


@pytest.mark.long
def test_the_sample_without_hocket(tmp_path: Path) -> None:
    assert programs.read_result(programs.run(ALONE, tmp_path)) == ["alone 15"]
