"""The state API on Ray: what Ray's own tells, under our names, as soon as it knows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.testing.suites.programs import wait_until
from hocket.util import state
from tests.engine.ray.conftest import UNTIDY

pytestmark = [pytest.mark.timeout(120), UNTIDY]


@pytest.fixture(scope="module", autouse=True)
def _session() -> Iterator[None]:
    with hocket.init(engine="ray", num_cpus=2, include_dashboard=True):
        yield


@hocket.remote
def double(x: int) -> int:
    return 2 * x


@hocket.remote(max_retries=0)
def fail() -> None:
    raise KeyError("no")


class Counter:
    def add(self, x: int) -> int:
        return x


def test_tasks_are_found_by_the_id_of_their_result() -> None:
    done, failed = double.remote(4), fail.remote()
    hocket.wait([done, failed], num_returns=2)
    found: dict[str, Any] = {}

    def are_told() -> bool:
        found.update({ref.hex(): state.get_task(ref.hex()) for ref in (done, failed)})
        return all(task is not None and task.end_time_ms for task in found.values())

    wait_until(are_told)
    task = found[done.hex()]
    assert (task.name, task.state, task.type) == ("double", "FINISHED", "NORMAL_TASK")
    assert done.hex().startswith(task.task_id)
    assert found[failed.hex()].state == "FAILED"
    assert found[failed.hex()].error_type == "KeyError"
    assert state.get_task("ff" * 28) is None


def test_actors_objects_nodes_and_groups() -> None:
    counter: Any = hocket.remote(Counter).options(name="abacus").remote()
    large = hocket.put(np.zeros(1_000_000))
    hocket.get(counter.add.remote(1))
    (actor,) = state.list_actors(filters=[("state", "=", "ALIVE")])
    assert (actor.class_name, actor.name) == ("Counter", "abacus")
    assert next(one.object_size for one in state.get_objects(large.hex())) >= 8_000_000
    (node,) = state.list_nodes()
    assert (node.state, node.resources_total["CPU"]) == ("ALIVE", 2.0)
    group = hocket.util.placement_group([{"CPU": 1}], name="pair")
    hocket.get(group.ready())
    assert [(one.name, one.state) for one in state.list_placement_groups()] == [("pair", "CREATED")]
    assert os.getpid() in [one.pid for one in state.list_workers()]


def test_actors_of_one_name_in_several_namespaces() -> None:
    counters = hocket.remote(Counter).options(num_cpus=0, name="twin")
    twins = [counters.options(namespace=where).remote() for where in ("left", "right")]
    hocket.get([twin.add.remote(1) for twin in twins])
    assert sorted(actor.namespace for actor in state.list_actors(filters=[("name", "=", "twin")])) == ["left", "right"]
    hocket.kill(twins[0])
    wait_until(
        lambda: (
            {actor.namespace: actor.state for actor in state.list_actors(filters=[("name", "=", "twin")])}
            == {"left": "DEAD", "right": "ALIVE"}
        )
    )
    hocket.kill(twins[1])


def test_summary_and_timeline_count() -> None:
    hocket.get([double.remote(x) for x in range(5)])
    wait_until(
        lambda: (
            state.summarize_tasks()["cluster"]["summary"].get("double", {}).get("state_counts", {}).get("FINISHED", 0)
            >= 5
        )
    )
    wait_until(lambda: [event["ph"] for event in hocket.timeline() or () if event["name"] == "double"].count("X") >= 5)
