"""Parameter servers on a Ray cluster of three nodes: servers are spread, their memory is kept on their node, and a
node that is lost is told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import hocket
from hocket import ps
from hocket.testing import machines

testing_cluster: Any = pytest.importorskip("hocket.testing.cluster", reason="needs Ray: pip install 'hocket[ray]'")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(200),
    # Ray leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def _send_this_module() -> Iterator[None]:
    """The nodes cannot import the tests."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with (
        testing_cluster.Cluster(nodes=[{"num_cpus": 2}] * 3, apart=machines.can_have_machines()) as opened,
        hocket.init(address=opened.address),
    ):
        yield opened


def _train(tmp_path: Path, *, share_memory: bool) -> tuple[list[bytes], ps.ParameterServerStrategy]:
    strategy = ps.ParameterServerStrategy(
        {"worker": 3, "server": 3}, optimizer=ps.SGD(lr=0.5), max_staleness=0, share_memory=share_memory
    )
    with strategy.scope():
        weights = ps.Variable(np.zeros((30, 20), "float32"), partitioner=ps.FixedShards(3), name="weights")
        table = ps.Embedding(1000, 8, name="table")
    coordinator = ps.Coordinator(strategy)
    items = iter(coordinator.create_per_worker_dataset(list(range(60))))

    def step() -> tuple[int, str]:
        item = int(next(items))
        strategy.pull([weights])
        strategy.push([(np.ones((30, 20)), weights), (ps.IndexedSlices(np.ones((1, 8)), [item]), table)])
        return item, hocket.get_runtime_context().get_node_id()

    results = coordinator.fetch([coordinator.schedule(step) for _ in range(60)])
    assert sorted(item for item, _ in results) == list(range(60))
    assert len(strategy.statistics()["bytes"]) == 3
    assert strategy.get_staleness() == {0: 60}
    found = strategy.snapshot()
    assert (
        ps.load_checkpoint(strategy.save(tmp_path / str(share_memory)))["weights"].tobytes()
        == found["weights"].tobytes()
    )
    return [found["weights"].tobytes(), found["table"].rows.tobytes()], strategy


def test_servers_are_spread_and_a_lost_node_is_told(cluster: Any, tmp_path: Path) -> None:
    shared, strategy = _train(tmp_path, share_memory=True)
    strategy.close()
    asked, strategy = _train(tmp_path, share_memory=False)
    assert asked == shared  # the same bits, whoever does the work

    far = next(node for node in cluster.nodes[1:] if node.is_alive())
    far.kill()
    assert not far.is_alive()
    with pytest.raises(ps.ServerLostError, match="the variables that it held"):
        strategy.snapshot()
    strategy.close()
