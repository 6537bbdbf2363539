"""What a lost node takes along is named, and what waits for a node that cannot come fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import hocket
from hocket import data, exceptions
from hocket.engine.ray import listing
from hocket.testing import cluster
from hocket.testing.suites.programs import wait_until
from tests.engine.ray.conftest import UNTIDY, sent_by_value

pytestmark = [pytest.mark.long, pytest.mark.timeout(240), UNTIDY]


@pytest.fixture(scope="module")
def opened() -> Iterator[cluster.Cluster]:
    with (
        sent_by_value(__name__),
        cluster.Cluster(nodes=[{"num_cpus": 2}]) as found,
        hocket.init(address=found.address),
    ):
        yield found


@pytest.fixture
def camera(opened: cluster.Cluster) -> Iterator[cluster.Node]:
    """A node that the test kills, with something that no other has."""
    node = opened.add_node(num_cpus=2, resources={"camera": 1, "lens": 1})
    yield node
    opened.remove_node(node)
    opened.wait_for_nodes(1)


class Gate:
    """Says that its callers have come, from where no node is lost."""

    def __init__(self) -> None:
        self.count = 0

    def come(self) -> None:
        self.count += 1

    def look(self) -> int:
        return self.count


class Camera:
    def wait(self, gate: Any) -> None:
        hocket.get(gate.come.remote())
        threading.Event().wait(600)


def wait(gate: Any) -> None:
    Camera().wait(gate)


def test_what_was_on_a_lost_node_is_named(
    opened: cluster.Cluster, camera: cluster.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "HOMELESS_SECONDS", 1.0)
    gate = hocket.remote(num_cpus=0, resources={"node:__internal_head__": 0.001})(Gate).remote()
    held: dict[str, Any] = {"resources": {"camera": 0.1}, "num_cpus": 0}
    lost = [
        hocket.remote(name="photo", max_retries=0, **held)(wait).remote(gate),
        hocket.remote(**held)(Camera).remote().wait.remote(gate),
        hocket.remote(name="again", max_retries=1, **held)(wait).remote(gate),
        hocket.remote(max_restarts=1, max_task_retries=-1, **held)(Camera).remote().wait.remote(gate),
    ]
    wait_until(lambda: bool(hocket.get(gate.look.remote()) == len(lost)), 120)
    camera.kill()
    with pytest.raises((exceptions.NodeDiedError, exceptions.WorkerCrashedError), match="ran task `photo` died"):
        hocket.get(lost[0])
    # Ray says the latter as long as it knows of the connection alone.
    with pytest.raises(
        (exceptions.ActorDiedError, exceptions.ActorUnavailableError),
        match=r"Actor `Camera` is dead: its (node died|process)|Call `Camera.wait` was lost: the process .* is gone",
    ):
        hocket.get(lost[1])
    with pytest.raises(
        exceptions.TaskUnschedulableError, match=r"No node can run task `again` any more: it asks for .*camera"
    ):
        hocket.get(lost[2])
    with pytest.raises(
        exceptions.ActorUnschedulableError, match=r"actor of call `Camera\.wait` any more: it asks.*camera"
    ):
        hocket.get(lost[3])
    with pytest.raises(exceptions.TaskUnschedulableError, match=r"`photo` asks for .*camera"):
        hocket.remote(name="photo", max_retries=1, **held)(wait).remote(gate)


def test_a_pool_whose_only_node_is_lost_says_so(
    opened: cluster.Cluster, camera: cluster.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "HOMELESS_SECONDS", 1.0)

    class Photo:
        def __call__(self, batch: Any) -> Any:
            cluster.reach("photo")
            return batch

    rows = data.range(100, override_num_blocks=10).map_batches(Photo, concurrency=1, resources={"lens": 1})
    with (
        opened.fail_at("photo", node=camera, hit=3) as fault,
        pytest.raises(exceptions.ActorUnschedulableError, match=r"map_batches\(.*Photo\).*lens"),
    ):
        rows.take_all()
    assert fault.fired == 1
