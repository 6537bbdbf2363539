"""TensorFlow's, Keras's and PyTorch's variables: on the servers, or refused, and never a copy that nobody sees."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from hocket import ps

with pytest.MonkeyPatch.context() as _patch:
    if "KERAS_BACKEND" not in os.environ:
        _patch.setenv("KERAS_BACKEND", "torch")  # TensorFlow loads Keras, which chooses for the whole process
    pytest.importorskip("keras", reason="needs Keras: pip install 'hocket[keras]'")
    tf = pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'hocket[tensorflow]'")
torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'hocket[torch]'")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(params=[1, 2, 3])
def strategy(request: pytest.FixtureRequest, session: None) -> Any:
    made = ps.ParameterServerStrategy({"worker": request.param, "server": 1})
    yield made
    made.close()


def count(strategy: Any, variable: Any) -> int:
    """The program of the tutorial: five closures, each of which adds what the dataset gives it."""
    coordinator = ps.Coordinator(strategy)
    items = iter(coordinator.create_per_worker_dataset(range(1, 6)))

    def add(iterator: Any) -> None:
        variable.assign_add(next(iterator))

    for _ in range(5):
        coordinator.schedule(add, args=(items,))
    coordinator.join()
    found = int(variable.numpy())
    coordinator.close()
    return found


@pytest.mark.parametrize(
    "make",
    [
        lambda: ps.Variable(0, dtype="int64"),
        lambda: tf.Variable(0),
        lambda: tf.Variable(lambda: tf.zeros([], tf.int64), name="total"),
        lambda: tf.Variable(initial_value=0.0, trainable=False),
    ],
)
def test_the_counter_ends_at_15_however_the_variable_is_written(strategy: Any, make: Callable[[], Any]) -> None:
    with strategy.scope():
        variable = make()
    assert isinstance(variable, ps.Variable)
    assert count(strategy, variable) == 15


def make_keras_layer() -> Any:
    import keras

    layer = keras.layers.Dense(1)
    layer.build((None, 1))
    return layer


def make_tf_keras_layer() -> Any:
    tf_keras = pytest.importorskip("tf_keras", reason="needs tf-keras: pip install tf-keras")
    layer = tf_keras.layers.Dense(1)
    layer.build((None, 1))
    return layer


def make_torch_layer() -> Any:
    return torch.nn.Linear(1, 1)


@pytest.mark.parametrize("make", [make_keras_layer, make_tf_keras_layer, make_torch_layer])
def test_models_that_are_made_in_the_scope_are_refused(session: None, make: Callable[[], Any]) -> None:
    strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1})
    with (
        strategy.scope(),
        pytest.raises(
            TypeError,
            match=r"in strategy.scope\(\), where .* would stay in this process\. .*KerasTrainer, TorchTrainer",
        ),
    ):
        make()
    make()  # outside they are what they always are
    strategy.close()


def test_variables_of_others_are_not_taken_along(session: None) -> None:
    strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1})
    coordinator = ps.Coordinator(strategy)
    variable, layer = tf.Variable(0), make_keras_layer()
    weight = layer.weights[0]
    for fn, args, named in (
        (lambda: variable.assign_add(1), (), "variable"),
        (tf.function(lambda: variable.assign_add(1)), (), "variable"),
        (lambda one: one.assign_add(1), (variable,), "argument 0"),
        (lambda one: one, ({"deep": [variable]},), "argument 0"),
        (lambda: weight.assign(1), (), "weight"),
        (lambda: layer(1), (), "layer"),
    ):
        with pytest.raises(TypeError, match=rf"captures `{named}`, .*would change its own copy.*ps\.Variable"):
            coordinator.schedule(fn, args=args)
    assert coordinator.schedule(lambda: int(tf.Variable(3).numpy())).fetch() == 3  # its own it may make
    coordinator.close()
    strategy.close()


def test_a_graph_does_not_swallow_what_happens_to_a_variable(session: None) -> None:
    strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1}, optimizer=ps.SGD(lr=1.0))
    with strategy.scope():
        variable, table = ps.Variable([1.0, 2.0]), ps.Embedding(4, 1)
    coordinator = ps.Coordinator(strategy)
    items = iter(coordinator.create_per_worker_dataset(range(1, 6)))
    own = coordinator.per_worker(lambda: 3)

    @tf.function
    def compute(value: Any) -> Any:
        return value * 2

    uses = (  # each done in a graph of its own: once, if it were not refused
        ("variable", lambda: variable.assign_add([1.0, 1.0])),
        ("variable", lambda: variable.read_value() + 1),
        ("strategy", lambda: strategy.pull([variable])),
        ("strategy", lambda: strategy.push([([1.0, 1.0], variable)]).staleness),
        ("table", lambda: table.pull([1]).expand()),
        ("table", lambda: table.add_rows([1], [[1.0]])),
        ("table", lambda: table.assign_rows([1], [[1.0]])),
        ("items", lambda: next(items)),
        ("own", lambda: own.value),
    )
    for name, use in uses:
        graph = tf.function(use)
        with pytest.raises(
            TypeError, match=rf"is a @tf\.function that would use `{name}` once.*Take @tf\.function off"
        ):
            coordinator.schedule(graph)
        value = coordinator.schedule(lambda graph=graph: graph())
        with pytest.raises(ps.ClosureFailures):
            coordinator.join()
        with pytest.raises(Exception, match=r"Take @tf\.function off the closure"):
            value.fetch()
    with pytest.raises(TypeError, match="that would use `argument 0` once"):
        coordinator.schedule(compute, args=(items,))
    assert variable.numpy().tolist() == [1.0, 2.0]
    coordinator.schedule(lambda: variable.assign(compute(variable.read_value()).numpy()))
    coordinator.join()
    assert variable.numpy().tolist() == [2.0, 4.0]
    assert coordinator.schedule(compute, args=(3,)).fetch().numpy() == 6  # a graph that only computes
    coordinator.close()
    strategy.close()


def test_clusters_of_tensorflow_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = {"worker": ["a:1", "b:1"], "ps": ["c:1"], "chief": ["d:1"]}
    resolver = tf.distribute.cluster_resolver
    wanted = ps.Cluster(jobs)
    spec = tf.train.ClusterSpec(jobs)
    assert ps.Cluster(spec) == ps.ClusterSpec(jobs) == ps.Cluster(wanted) == wanted
    found = ps.Cluster(resolver.SimpleClusterResolver(spec, task_type="worker", task_id=1))
    assert found == wanted
    assert found.task == ps.ClusterTask("worker", 1)
    assert ps.SimpleClusterResolver(spec, "ps", 0, rpc_layer="grpc").task == ps.ClusterTask("server", 0)
    counted = ps.Cluster(workers=2, servers=1)
    assert ps.Cluster(counted) == counted
    monkeypatch.setenv(
        "TF_CONFIG",
        '{"cluster": {"worker": ["a:1", "b:1"], "ps": ["c:1"], "chief": ["d:1"]}, "task": {"type": "chief", '
        '"index": 0}}',
    )
    for one in (ps.TFConfigClusterResolver(), ps.Cluster(resolver.TFConfigClusterResolver())):
        assert one == wanted
        assert one.task == ps.ClusterTask("chief", 0)


def test_a_program_in_tensorflows_words(session: None) -> None:
    strategy = ps.ParameterServerStrategy(
        ps.SimpleClusterResolver(tf.train.ClusterSpec({"worker": ["a:1", "b:1"], "ps": ["c:1"]})),
        partitioner=ps.FixedShardsPartitioner(1),
    )
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        assert ps.get_strategy() is strategy
        total = tf.Variable(0)
    for _ in range(3):
        coordinator.schedule(lambda: total.assign_add(2))
    coordinator.join()
    assert total.numpy() == 6
    coordinator.close()
    strategy.close()
