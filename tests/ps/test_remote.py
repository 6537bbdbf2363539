"""Workers that do not share the servers' memory: the servers do the work, and the results are the same."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import hocket
from hocket import ps
from hocket.ps.access import links

pytestmark = pytest.mark.usefixtures("session")


def _train(*, share_memory: bool, kills: bool = False) -> list[bytes]:
    strategy = ps.ParameterServerStrategy(
        {"worker": 2, "server": 2}, optimizer=ps.Adam(lr=0.1), max_staleness=0, share_memory=share_memory
    )
    with strategy.scope():
        dense = ps.Variable(np.zeros((4, 3), "float32"), name="dense", partitioner=ps.FixedShards(2))
        rows = ps.Embedding(20, 3, name="rows")
        hashed = ps.Embedding(None, 3, capacity=50, name="hashed")
        count = ps.Variable(np.zeros(20, "int64"), name="count")
    coordinator = ps.Coordinator(strategy)

    def step(number: int) -> None:
        value, found, other = dense.read_value(), rows.pull([number % 20, 3]), hashed.pull([number * 7919])
        strategy.push(
            [
                (value + 1, dense),
                (ps.IndexedSlices(found.rows + 1, found.ids), rows),
                (ps.IndexedSlices(other.rows + 1, other.ids), hashed),
            ]
        )
        count.scatter_add([number % 20], 1)

    done = 0
    for number in range(20):
        coordinator.schedule(step, args=(number,))
        if kills and number % 5 == 2:
            os.kill(strategy.get_server_pids()[number % 2], signal.SIGKILL)
            os.kill(coordinator.get_worker_pids()[number % 2], signal.SIGKILL)
            done += 1
        coordinator.join()
    assert done == (4 if kills else 0)
    assert strategy.get_staleness() == {0: 20}
    found = strategy.snapshot()
    assert found["count"].tolist() == [1] * 20
    result = [found["dense"].tobytes(), found["rows"].rows.tobytes(), found["hashed"].rows.tobytes()]
    strategy.close()
    return result


def test_servers_asked_give_the_bits_of_memory_shared() -> None:
    assert _train(share_memory=False) == _train(share_memory=True)


@pytest.mark.needs("processes")
def test_asked_servers_and_workers_that_are_killed_cost_nothing() -> None:
    assert _train(share_memory=False, kills=True) == _train(share_memory=True)


def test_only_what_is_on_a_list_can_be_asked_for() -> None:
    strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1}, share_memory=False)
    handle = strategy.address.servers[0].handle
    for method, name in ((handle.call_store, "add"), (handle.call_gate, "held"), (handle.call_store, "__reduce__")):
        with pytest.raises(AttributeError, match=rf"\.{name} is not available to other processes"):
            hocket.get(method.remote(name))
    link = links.open_link(strategy.address)
    with pytest.raises(AttributeError, match=r"Store\.add is not available to other processes"):
        _ = link.stores[0].add
    assert link.stores[0].get_statistics() == {"version": 0, "recoveries": 0}
    assert (link.gate.version, link.gate.get_histogram()) == (0, {})
    strategy.close()


def test_a_closure_takes_a_snapshot_of_servers_that_are_asked() -> None:
    strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1}, share_memory=False)
    with strategy.scope():
        ps.Variable([1.0, 2.0], name="weights")
    coordinator = ps.Coordinator(strategy)

    def read() -> list[float]:
        found: list[float] = strategy.snapshot()["weights"].tolist()
        return found

    assert coordinator.schedule(read).fetch() == [1.0, 2.0]
    strategy.close()
