"""Clusters: made from numbers, dicts and TF_CONFIG, read as TensorFlow's ClusterSpec is, and refused where they make
no sense."""

from __future__ import annotations

import json
import pickle
import re
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from hocket import ps

makers: Any = ps  # what the type checker refuses is given on purpose

DENSE = {"chief": ["c:1"], "worker": ["a:1", "b:1"], "ps": ["d:1"]}


def make_config(cluster: Any = None, task: Any = None) -> dict[str, str]:
    config = {name: value for name, value in (("cluster", cluster), ("task", task)) if value is not None}
    return {"TF_CONFIG": json.dumps(config)}


# -- made and read ----------------------------------------------------------------------------------------------------


def test_a_cluster_of_numbers():
    cluster = ps.Cluster(workers=3, servers=2, chief=1, evaluator=1)
    assert cluster.jobs == ("chief", "worker", "server", "evaluator")
    assert [cluster.num_tasks(role) for role in cluster.jobs] == [1, 3, 2, 1]
    assert (cluster.num_workers, cluster.num_servers) == (3, 2)
    assert cluster.task_indices("worker") == [0, 1, 2]
    assert cluster.task_address("worker", 2) is None
    assert cluster.job_tasks("ps") == [None, None]
    assert cluster == ps.Cluster({"evaluator": 1, "ps": 2, "worker": 3, "chief": 1})
    assert repr(ps.Cluster(workers=3, servers=2)) == "Cluster({'worker': 3, 'server': 2})"


def test_a_cluster_of_addresses():
    cluster = ps.Cluster(DENSE)
    assert cluster.jobs == ("chief", "worker", "server")
    assert cluster.num_tasks("ps") == cluster.num_tasks("server") == 1
    assert cluster.task_address("worker", 1) == "b:1"
    assert cluster.job_tasks("worker") == ["a:1", "b:1"]
    assert cluster.as_dict() == {"chief": ["c:1"], "worker": ["a:1", "b:1"], "server": ["d:1"]}


def test_a_cluster_of_some_tasks():
    cluster = ps.Cluster({"worker": {3: "b:1", 1: "a:1"}, "server": {0: "c:1"}})
    assert cluster.num_tasks("worker") == 2
    assert cluster.task_indices("worker") == [1, 3]
    assert cluster.task_address("worker", 3) == "b:1"
    assert cluster.job_tasks("worker") == [None, "a:1", None, "b:1"]
    assert cluster.as_dict() == {"worker": {1: "a:1", 3: "b:1"}, "server": ["c:1"]}


def test_what_tensorflow_makes_of_it():
    """Golden: TensorFlow 2.21, `tf.train.ClusterSpec`."""
    cluster = ps.Cluster({"worker": {1: "a:1", 3: "b:1"}, "ps": ["c:1", "d:1"]})
    assert cluster.task_indices("worker") == [1, 3]
    assert cluster.job_tasks("worker") == [None, "a:1", None, "b:1"]
    config = json.loads(cluster.as_tf_config(ps.ClusterTask("ps", 1)))
    assert config["cluster"] == {"worker": {"1": "a:1", "3": "b:1"}, "ps": ["c:1", "d:1"]}


ADDRESSES = st.text("abc:1", min_size=1, max_size=4)
TASKS = st.integers(0, 5) | st.lists(ADDRESSES, max_size=4) | st.dictionaries(st.integers(0, 9), ADDRESSES, max_size=4)
ONE = st.integers(0, 1) | st.lists(ADDRESSES, max_size=1)
JOBS = st.fixed_dictionaries({}, optional={"chief": ONE, "worker": TASKS, "ps": TASKS, "evaluator": ONE})


@hypothesis.given(jobs=JOBS, other=JOBS)
def test_a_cluster_is_a_value(jobs, other):
    cluster = ps.Cluster(jobs)
    again = ps.Cluster(cluster.as_dict())
    assert again == cluster
    assert hash(again) == hash(cluster)
    assert again.as_dict() == cluster.as_dict()
    assert pickle.loads(pickle.dumps(cluster)) == cluster
    assert bool(cluster) == any(jobs.values())
    assert (ps.Cluster(other) == cluster) == (ps.Cluster(other).as_dict() == cluster.as_dict())
    for role in cluster.jobs:
        indices = cluster.task_indices(role)
        assert len(indices) == cluster.num_tasks(role)
        assert [cluster.job_tasks(role)[index] for index in indices] == [cluster.task_address(role, i) for i in indices]


def test_what_was_given_may_be_changed_afterwards():
    workers = ["a:1"]
    cluster = ps.Cluster({"worker": workers})
    workers.append("b:1")
    cluster.job_tasks("worker").append("c:1")
    cluster.task_indices("worker").append(7)
    cluster.as_dict()["worker"] = 9
    assert cluster == ps.Cluster({"worker": ["a:1"]})
    with pytest.raises(AttributeError, match="jobs"):
        cluster.jobs = ()  # type: ignore[misc]
    assert cluster != {"worker": ["a:1"]}


# -- TF_CONFIG --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["chief", "worker", "ps"])
def test_one_program_takes_the_role_it_is_told(role):
    for index in range(len(DENSE[role])):
        cluster = ps.Cluster.from_tf_config(make_config(DENSE, {"type": role, "index": index}))
        assert cluster == ps.Cluster(DENSE)
        assert cluster.task == ps.ClusterTask(role, index)
        assert ps.Cluster.from_tf_config({"TF_CONFIG": cluster.as_tf_config(cluster.task)}).task == cluster.task


def test_a_config_may_lack_things(monkeypatch):
    assert not ps.Cluster.from_tf_config({})
    assert not ps.Cluster.from_tf_config({"TF_CONFIG": " "})
    assert ps.Cluster.from_tf_config(make_config(DENSE)).task is None
    assert ps.Cluster.from_tf_config(make_config(DENSE, {})).task is None
    assert ps.Cluster.from_tf_config(make_config(DENSE, {"type": "chief"})).task == ps.ClusterTask("chief", 0)
    monkeypatch.setenv("TF_CONFIG", make_config(DENSE)["TF_CONFIG"])
    assert ps.Cluster.from_tf_config() == ps.Cluster(DENSE)


def test_json_has_indices_as_strings():
    cluster = ps.Cluster.from_tf_config(
        make_config({"worker": {"1": "a:1"}, "ps": ["b:1"]}, {"type": "worker", "index": "1"})
    )
    assert cluster.task_indices("worker") == [1]
    assert cluster.task == ps.ClusterTask("worker", 1)


def test_an_evaluator_need_not_know_the_cluster():
    evaluator = ps.ClusterTask("evaluator", 0)
    alone = ps.Cluster.from_tf_config(make_config(None, {"type": "evaluator", "index": 0}))
    assert not alone
    assert alone.task == evaluator
    assert ps.Cluster.from_tf_config(make_config(DENSE, {"type": "evaluator", "index": 0})).task == evaluator
    assert json.loads(ps.Cluster(DENSE).as_tf_config(evaluator))["task"] == {"type": "evaluator", "index": 0}
    with pytest.raises(ValueError, match=r"received evaluator 1\. Cluster\(.*\) has indices 0 of that role"):
        ps.Cluster(DENSE, task=ps.ClusterTask("evaluator", 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{",
            r"TF_CONFIG must be JSON, but received '\{' \(Expecting .* \(char 1\)\)\. Write it like this: \{",
        ),
        ("[]", r"TF_CONFIG must be a JSON object, but received '\[\]'"),
        ('{"cluster": 3}', "'cluster' in TF_CONFIG must be a JSON object, but received 3"),
        ('{"task": ["worker", 0]}', r"'task' in TF_CONFIG must be a JSON object, but received \['worker', 0\]"),
        ('{"task": {"type": "worker", "index": 0}}', r"received worker 0\. Cluster\(.*\) has none of that role"),
        (
            '{"task": {"type": "worker", "index": "x"}}',
            "A task's index must be a whole number from 0, but received 'x'",
        ),
        ('{"task": {"type": "master", "index": 0}}', "A role must be chief, .* but received 'master'"),
        (
            '{"cluster": {"worker": "a:1"}}',
            "The number of tasks of worker must be .* received 'a:1'. Give a number, a list",
        ),
    ],
)
def test_bad_configs_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        ps.Cluster.from_tf_config({"TF_CONFIG": text})


# -- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ({"chief": 2}, r"There must be at most one chief, but received 2: \{'chief': 2\}\. Make the others workers"),
        ({"chief": ["a:1", "b:1"]}, "at most one chief, but received 2"),
        ({"evaluator": {0: "a:1", 1: "b:1"}}, "There must be at most one evaluator, but received 2"),
        ({"workers": 2}, r"A role must be chief, worker, server \(or ps\) or evaluator, but received 'workers'"),
        ({None: 2}, "A role must be .* but received None"),
        ({"ps": 1, "server": 1}, "Each role must be named once, but received 'server' twice"),
        ({"worker": -1}, "The number of tasks of worker must be a whole number from 0, but received -1. Give a number"),
        ({"worker": 1.5}, "The number of tasks of worker must be a whole number from 0, but received 1.5"),
        ({"worker": [1]}, "The address of a worker must be a string, but received 1. Write 'host:port'"),
        ({"worker": [""]}, "The address of a worker must be a string, but received ''"),
        ({"worker": {-1: "a:1"}}, "A task's index must be a whole number from 0, but received -1. Number the tasks"),
        ({"worker": {1: "a:1", "1": "b:1"}}, "Each worker must have its own index, but received"),
        (["worker"], r"A cluster's jobs must be a dict, but received \['worker'\]"),
    ],
)
def test_clusters_that_make_no_sense_are_refused(jobs, message):
    with pytest.raises(ValueError, match=message):
        ps.Cluster(jobs)


def test_numbers_are_checked_as_dicts_are():
    with pytest.raises(ValueError, match="There must be at most one chief, but received 2"):
        ps.Cluster(chief=2)
    with pytest.raises(
        ValueError,
        match=r"Cluster takes a dict or numbers of tasks, but received both: .* Put the numbers into the dict",
    ):
        ps.Cluster({"worker": 1}, servers=2)


def test_who_is_not_there_is_named():
    cluster = ps.Cluster(workers=2, servers=1)
    for ask in (cluster.num_tasks, cluster.task_indices, cluster.job_tasks):
        with pytest.raises(ValueError, match=r"There is no 'chief' in this cluster\. Its roles: worker, server"):
            ask("chief")
    with pytest.raises(ValueError, match=r"A role must be .* but received 'trainer'"):
        cluster.num_tasks("trainer")
    with pytest.raises(ValueError, match=r"There is no 'ps' in this cluster\. Its roles: none"):
        ps.Cluster().num_tasks("ps")
    with pytest.raises(ValueError, match=r"There is no worker 2 in this cluster\. Use one of its indices: 0, 1\."):
        cluster.task_address("worker", 2)
    with pytest.raises(ValueError, match=r"received worker 2\. Cluster\(.*\) has indices 0, 1 of that role"):
        ps.Cluster(workers=2, task=ps.ClusterTask("worker", 2))
    with pytest.raises(ValueError, match=r"index must be a whole number from 0, but received -1\. Give which worker"):
        ps.ClusterTask("worker", -1)


def test_a_cluster_without_addresses_has_no_config():
    with pytest.raises(
        ValueError,
        match=r"TF_CONFIG needs the address of each task, but the tasks of worker have none in .* Make the cluster",
    ):
        ps.Cluster({"worker": 2, "ps": ["a:1"]}).as_tf_config(ps.ClusterTask("worker", 0))


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (ps.Cluster(), "There must be at least one server, which holds the variables, but received"),
        (ps.Cluster(workers=2), r"There must be at least one server, .* Write Cluster\(workers=2, servers=1\)"),
        (ps.Cluster(servers=2, chief=1), "There must be at least one worker, which computes, but received"),
    ],
)
def test_training_needs_a_server_and_a_worker(cluster, message):
    with pytest.raises(ValueError, match=message):
        cluster.check_trainable()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: makers.Cluster(worker=2, server=1),
            "Cluster has no argument worker, server. Did you mean workers=2, servers=1?",
        ),
        (lambda: makers.ParameterServerStrategy(staleness=2), "Did you mean max_staleness=2?"),
        (lambda: makers.SGD(learning_rate=0.1), "SGD has no argument learning_rate. Did you mean lr=0.1?"),
        (lambda: makers.Eviction(fractoin=0.1), "Did you mean fraction=0.1?"),
    ],
)
def test_a_keyword_that_does_not_exist_says_which_was_meant(make: Any, message: str):
    with pytest.raises(TypeError, match=re.escape(message)):
        make()
