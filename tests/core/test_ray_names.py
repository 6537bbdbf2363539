"""Names and small habits of Ray that programs written for it lean on."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from typing import Any

import pytest

import hocket
from hocket import exceptions
from hocket.util import actor_group, placement_group, scheduling_strategies, state

LABELS = scheduling_strategies


@hocket.remote
def name_yourself() -> tuple[str | None, str | None]:
    context = hocket.get_runtime_context()
    return context.get_task_name(), context.get_task_function_name()


class Namer:
    def __init__(self) -> None:
        self.first = hocket.get_runtime_context().get_task_function_name()

    def name(self) -> tuple[Any, str | None]:
        return self.first, hocket.get_runtime_context().get_task_function_name()

    @classmethod
    def name_from_class(cls) -> str | None:
        return hocket.get_runtime_context().get_task_function_name()

    def look(self) -> tuple[Any, ...]:
        found = hocket.get_runtime_context()
        return found.job_id, found.node_id, found.worker_id, found.task_id, found.actor_id


def test_function_names_are_qualified_and_task_names_are_the_user_s(any_session: hocket.SessionContext) -> None:
    full = f"{__name__}.name_yourself"
    assert hocket.get(name_yourself.remote()) == ("name_yourself", full)
    assert hocket.get(name_yourself.options(name="mine").remote()) == ("mine", full)
    namer = hocket.remote(Namer).remote()
    assert hocket.get(namer.name.remote()) == (f"{__name__}.Namer.__init__", f"{__name__}.Namer.name")
    assert hocket.get(namer.name_from_class.remote()) == f"{__name__}.Namer.name_from_class"
    assert hocket.get_runtime_context().get_task_function_name() is None


def test_the_program_s_own_module_is_named_like_its_file(tmp_path: Any, start_script: Any) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import hocket\n"
        "def tell():\n    return hocket.get_runtime_context().get_task_function_name()\n"
        "class Teller:\n    def tell(self):\n        return tell()\n"
        "if __name__ == '__main__':\n"
        "    hocket.init(num_cpus=1)\n"
        "    print(hocket.get([hocket.remote(tell).remote(), hocket.remote(Teller).remote().tell.remote()]))\n"
    )
    process = start_script(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")
    assert process.communicate(timeout=60)[0] == "['program.tell', 'program.Teller.tell']\n"


def test_ids_are_text_with_the_methods_of_ray_s(any_session: hocket.SessionContext) -> None:
    namer = hocket.remote(Namer).remote()
    ref = namer.look.remote()
    group = placement_group([{"CPU": 1}])
    ids: list[Any] = [namer._actor_id, ref.task_id(), ref.job_id(), group.id]
    assert all(isinstance(found, str) for found in ids)
    for found in ids:
        assert found.hex() == found
        assert type(found.hex()) is str
        assert found.binary().hex() == found
        assert not found.is_nil()
        assert pickle.loads(pickle.dumps(found)) == json.loads(json.dumps(found)) == found
        assert {found: 1}[str(found)] == 1
    job_id, node_id, worker_id, task_id, actor_id = hocket.get(ref)
    context = hocket.get_runtime_context()
    assert (job_id, node_id) == (context.get_job_id(), context.get_node_id())
    assert actor_id.hex() == namer._actor_id.hex()
    assert task_id.binary()
    assert worker_id.hex() != context.worker_id.hex()
    assert (context.task_id, context.actor_id, context.current_placement_group_id) == (None, None, None)
    hocket.util.remove_placement_group(group)


def test_facts_of_a_context_are_ids(any_session: hocket.SessionContext) -> None:
    facts = hocket.get(hocket.remote(lambda: hocket.get_runtime_context().get()).remote())
    context = hocket.get_runtime_context()
    assert facts["job_id"].hex() == context.get_job_id()
    assert bytes.fromhex(facts["task_id"].hex()) == facts["task_id"].binary()
    assert facts["namespace"] == context.namespace


def test_modules_of_util_are_imported_when_they_are_asked_for() -> None:
    program = "import hocket as ray; print(ray.util.scheduling_strategies.NodeLabelSchedulingStrategy.__name__)"
    program += "; ray.util.queue.Queue, ray.util.metrics.Counter, ray.util.multiprocessing.Pool, ray.util.state"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout == "NodeLabelSchedulingStrategy\n"
    with pytest.raises(AttributeError, match=r"module 'hocket.util' has no attribute 'qeue'"):
        hocket.util.qeue  # type: ignore[attr-defined]  # noqa: B018


def test_handles_list_their_methods(any_session: hocket.SessionContext) -> None:
    namer = hocket.remote(Namer).remote()
    assert {"name", "name_from_class", "look", "__ray_ready__", "__ray_terminate__"} <= set(dir(namer))
    assert "job_id" not in dir(namer)


def test_old_names_of_errors_and_handles() -> None:
    assert hocket.ObjectID is hocket.ObjectRef
    assert exceptions.AsyncioActorExit is exceptions.ActorExit
    for name in ("UserCodeException", "CrossLanguageError", "AuthenticationError", "RpcError"):
        kind = getattr(exceptions, name)
        assert issubclass(kind, exceptions.RayError)
        assert str(pickle.loads(pickle.dumps(kind("text")))) == "text"
    remote_class: Any = hocket.remote(Namer)
    with pytest.raises(hocket.actor.ActorClassInheritanceException, match="Inherit from the plain class"):

        class Sub(remote_class):  # type: ignore[misc]
            pass


@pytest.mark.about_local("its own resources")
def test_the_node_and_the_store_are_resources() -> None:
    with hocket.init(num_cpus=1, object_store_memory=100 * 2**20):
        found = hocket.cluster_resources()
        address = hocket.util.get_node_ip_address()
        assert found["object_store_memory"] == 100 * 2**20
        assert found[f"node:{address}"] == found["node:__internal_head__"] == 1
        assert hocket.nodes()[0]["Resources"] == found
        assert hocket.nodes()[0]["NodeManagerAddress"] == address
        pinned = name_yourself.options(resources={f"node:{address}": 0.01})
        assert hocket.get(pinned.remote())[0] == "name_yourself"
        with pytest.raises(
            exceptions.TaskUnschedulableError, match=r"this session has \{CPU: 1, memory: [0-9.]+ [GT]iB\} in all"
        ):
            name_yourself.options(num_cpus=2).remote()


@pytest.mark.parametrize(
    ("selector", "match"),
    [
        ({"disk": "matches(x)"}, r"'matches\(x\)' is not a condition on label 'disk'\. Write 'a', '!a', 'in\(a, b\)'"),
        ({"disk": "in(a,, b)"}, r"'in\(a,, b\)' is not a condition"),
        ({"disk": "in()"}, "is not a condition"),
        ({"disk": "!!ssd"}, "is not a condition"),
        ({"disk": "-ssd"}, "is not a condition"),
        ({"disk": "s" * 64}, "is not a condition"),
        ({"-disk": "ssd"}, r"The label '-disk' must have a name of 1 to 63 letters"),
        ({"..x/disk": "ssd"}, r"has the prefix '\.\.x', which must be a name such as 'example\.com'"),
        ({"": "ssd"}, "The label '' must have a name of"),
    ],
)
def test_selectors_are_checked_at_the_decorator(selector: dict[str, str], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        hocket.remote(label_selector=selector)(Namer)
    with pytest.raises(ValueError, match=match):
        name_yourself.options(fallback_strategy=[{"label_selector": selector}], label_selector={"disk": "ssd"})


@pytest.mark.parametrize(
    "selector",
    [{"disk": "ssd"}, {"ray.io/node-id": "!a1"}, {"disk": "!in(ssd, nvme)"}, {"disk": "in(a,b)"}, {"a": "b_c.d-e"}],
)
def test_selectors_that_are_well_formed_are_taken(selector: dict[str, str]) -> None:
    name_yourself.options(label_selector=selector)


def test_labels_are_checked_where_they_are_given() -> None:
    with pytest.raises(ValueError, match=r"The value of label 'disk' must have 1 to 63 letters.*received 'a b'"):
        LABELS.NodeLabelSchedulingStrategy({"disk": LABELS.In("ssd", "a b")})
    with pytest.raises(ValueError, match="The label 'my disk' must have a name of"):
        LABELS.NodeLabelSchedulingStrategy(None, soft={"my disk": LABELS.Exists()})
    with pytest.raises(ValueError, match="The label 'my disk' must have a name of"):
        hocket.init(num_cpus=1, labels={"my disk": "ssd"}, engine="inprocess")
    with pytest.raises(ValueError, match=r"The value of label 'size' must be text, but received 3\. Write '3'"):
        hocket.init(num_cpus=1, labels={"size": 3}, engine="inprocess")  # type: ignore[dict-item]


def test_fields_of_filters_compare_without_regard_to_case(any_session: hocket.SessionContext) -> None:
    hocket.get(name_yourself.options(name="filtered").remote())
    filters: list[Any] = [("FUNC_or_class_name", "!=", "x"), ("Name", "=", "filtered")]
    deadline = time.monotonic() + 30
    while not (found := state.list_tasks(filters=filters)):  # Ray hears of it a moment later
        assert time.monotonic() < deadline
    assert [task.name for task in found] == ["filtered"]


class Member:
    def __init__(self, start: int, *, step: int = 1) -> None:
        self.value, self.step = start, step

    def add(self) -> int:
        self.value += self.step
        return self.value

    def get_actor_metadata(self) -> str:
        return f"step {self.step}"


def test_actor_group(any_session: hocket.SessionContext) -> None:
    group = actor_group.ActorGroup(
        Member, num_actors=2, num_cpus_per_actor=0.5, init_args=(10,), init_kwargs={"step": 2}
    )
    assert hocket.util.ActorGroup is actor_group.ActorGroup
    assert hocket.get(group.add.remote()) == [12, 12]
    assert group.actor_metadata == ["step 2", "step 2"]
    assert hocket.get(group[1].actor.add.remote()) == 14
    with pytest.raises(TypeError, match=r"Instead of group.add\(...\) write group.add.remote"):
        group.add()
    with pytest.raises(RuntimeError, match="already been started"):
        group.start()
    group.add_actors(1)
    group.remove_actors([0])
    assert len(group) == 2
    assert hocket.get(group.add.remote()) == [16, 12]
    group.shutdown()
    assert len(group) == 0
    with pytest.raises(RuntimeError, match="has been shut down"):
        group.add  # noqa: B018
    group.start()
    assert hocket.get(group.add.remote()) == [12, 12]
    group.shutdown(patience_s=0)
    with pytest.raises(ValueError, match="num_actors must be greater than 0, but received 0"):
        actor_group.ActorGroup(Member, num_actors=0)
    with pytest.raises(ValueError, match="'num_cpus' must be 0 or more, but received -1"):
        actor_group.ActorGroup(Member, num_cpus_per_actor=-1)
