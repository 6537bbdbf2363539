"""The cluster for tests: nodes come, go, and lose their power when they are told to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray

from hocket.engine.ray import access, connection
from hocket.testing import cluster as testing_cluster
from hocket.testing.cluster import Cluster
from tests.engine.ray import conftest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), conftest.UNTIDY]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head, whose driver is this process. Tests add what they take away."""
    environment, address = dict(os.environ), access.read_running_address()
    with Cluster(nodes=[{"num_cpus": 1}]) as opened:
        folder = Path(opened.nodes[0].folder).parent
        assert access.read_running_address() == address
        assert os.environ[access.TOKEN_VARIABLE] != environment.get(access.TOKEN_VARIABLE)
        joined = connection.connect(connection.Request(address=opened.address))
        yield opened
        joined.close()
        pids = [pid for node in opened.nodes for pid in node.list_pids()]
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not folder.exists()
    assert access.read_running_address() == address
    assert {name: text for name, text in os.environ.items() if name != "PYTEST_CURRENT_TEST"} == {
        name: text for name, text in environment.items() if name != "PYTEST_CURRENT_TEST"
    }


@ray.remote(max_retries=0)
def pass_moment(name: str, wait_seconds: float = 0.0) -> str:
    """Come to a moment."""
    testing_cluster.reach(name, wait_seconds=wait_seconds)
    return str(ray.get_runtime_context().get_node_id())


def test_bad_clusters() -> None:
    with pytest.raises(
        ValueError, match=r"nodes must have at least one entry, the head, but received none\. Write nodes="
    ):
        Cluster(nodes=[])
    with pytest.raises(ValueError, match=r"The first node is the head, .* cannot have private_paths"):
        Cluster(nodes=[{"private_paths": ["/mnt"]}])


def test_nodes_come_and_go(cluster: Cluster) -> None:
    node = cluster.add_node(num_cpus=3, resources={"far": 1}, labels={"disk": "ssd"})
    assert cluster.nodes == [cluster.nodes[0], node]
    (entry,) = [entry for entry in ray.nodes() if entry["NodeID"] == node.node_id]
    assert (entry["Alive"], entry["Resources"]["CPU"], entry["Labels"]["disk"]) == (True, 3, "ssd")
    assert ray.get(pass_moment.options(resources={"far": 1}).remote("never asked for")) == node.node_id
    assert node.is_alive()
    assert repr(node) == f"Node({node.node_id[:8]})"
    pids = node.list_pids()
    cluster.remove_node(node)
    cluster.wait_for_nodes(1)
    assert cluster.nodes == [cluster.nodes[0]]
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_node_that_loses_its_power(cluster: Cluster) -> None:
    node = cluster.add_node(resources={"far": 1})
    ray.get(pass_moment.options(resources={"far": 1}).remote("never asked for"))
    processes = [psutil.Process(pid) for pid in node.list_pids()]
    assert "raylet" in {process.name() for process in processes}
    node.kill()
    assert not node.is_alive()
    assert psutil.wait_procs(processes, timeout=20)[1] == []
    cluster.wait_for_nodes(1)
    cluster.remove_node(node)  # its power is gone already


def test_waiting_for_nodes_that_do_not_come(cluster: Cluster) -> None:
    with pytest.raises(TimeoutError, match=r"The cluster has 1 living nodes after 0\.1 seconds, but 7 were expected\."):
        cluster.wait_for_nodes(7, timeout=0.1)


def test_failing_at_a_moment(cluster: Cluster) -> None:
    node = cluster.add_node(resources={"far": 1})
    work = pass_moment.options(resources={"far": 1})
    with cluster.fail_at("step 2/3", hit=2) as fault:
        assert (fault.hits, fault.fired) == (0, 0)
        assert ray.get(work.remote("another step")) == ray.get(work.remote("step 2/3")) == node.node_id
        assert (fault.hits, fault.fired) == (1, 0)
        with pytest.raises(ray.exceptions.RayError):
            ray.get(work.remote("step 2/3"))
        assert (fault.hits, fault.fired) == (2, 1)
    assert (fault.hits, fault.fired) == (2, 1)
    cluster.wait_for_nodes(1)
    cluster.remove_node(node)


def test_failing_on_one_node_only(cluster: Cluster) -> None:
    node = cluster.add_node(resources={"far": 1})
    with cluster.fail_at("here.", node=node) as fault:
        assert ray.get(pass_moment.options(num_cpus=1).remote("here.")) == cluster.nodes[0].node_id
        assert fault.hits == 0
        with pytest.raises(ray.exceptions.RayError):
            ray.get(pass_moment.options(resources={"far": 1}).remote("here."))
        assert fault.fired == 1
    cluster.wait_for_nodes(1)
    cluster.remove_node(node)


def test_waiting_until_another_node_is_lost(cluster: Cluster) -> None:
    node = cluster.add_node(resources={"far": 1})
    here = pass_moment.options(num_cpus=1)
    with cluster.fail_at("here.", node=node) as fault:
        with pytest.raises(TimeoutError, match=rf"node {node.node_id} reached 'here\.' within 0\.1 seconds"):
            ray.get(here.remote("here.", 0.1))
        assert ray.get(here.remote("there", 60)) == cluster.nodes[0].node_id  # no fault waits for this moment
        waiting = here.remote("here.", 60)
        assert ray.wait([waiting], timeout=0.2)[0] == []
        with pytest.raises(ray.exceptions.RayError):
            ray.get(pass_moment.options(resources={"far": 1}).remote("here.", 60))
        assert ray.get(waiting) == cluster.nodes[0].node_id
        assert fault.fired == 1
    cluster.wait_for_nodes(1)
    cluster.remove_node(node)


def test_moment_that_is_disarmed(cluster: Cluster) -> None:
    with cluster.fail_at("now") as fault:
        testing_cluster.reach("now")  # a driver is on no node
    assert ray.get(pass_moment.remote("now"))
    assert (fault.hits, fault.fired) == (0, 0)
    with pytest.raises(ValueError, match="hit must be 1 or more, but received 0"):
        cluster.fail_at("now", hit=0)


@pytest.mark.skipif(
    not testing_cluster.can_have_private_paths(), reason="this process may not mount: it needs CAP_SYS_ADMIN"
)
def test_node_with_a_folder_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "everybody's").touch()

    @ray.remote
    def write(name: str) -> list[str]:
        (tmp_path / name).touch()
        return sorted(path.name for path in tmp_path.iterdir())

    alone = cluster.add_node(resources={"alone": 1}, private_paths=[str(tmp_path)])
    assert ray.get(write.options(resources={"alone": 1}).remote("mine")) == ["mine"]
    assert ray.get(write.options(num_cpus=1).remote("head's")) == ["everybody's", "head's"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["everybody's", "head's"]
    cluster.remove_node(alone)
    cluster.wait_for_nodes(1)


def test_folder_that_cannot_be_hidden(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="gone"):
        cluster.add_node(private_paths=[str(tmp_path / "gone")])
    assert len(cluster.nodes) == 1
