"""Programs that run outside of the cluster, through Ray Client."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import hocket
import hocket.util
from hocket import exceptions
from hocket.core import placement, session
from hocket.engine.ray import addresses, engine, outside
from hocket.testing.cluster import Cluster
from hocket.testing.suites.programs import wait_until
from hocket.util import metrics
from tests.engine.ray import conftest
from tests.engine.ray.test_joining import find_free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), conftest.UNTIDY]

ADDRESS = addresses.Address("127.0.0.1", find_free_port(), by_client=True)
CPUS = 2
REMEDY = r"is not possible through ray://: .*hocket\.init\(address='auto'\) .*`ray job submit"


def is_open() -> bool:
    """Whether Ray Client listens: the head starts it last, and waits for nobody."""
    try:
        addresses.knock(ADDRESS)
    except exceptions.ConnectionFailedError:
        return False
    return True


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One node, and a port for drivers from outside."""
    node = {"num_cpus": CPUS, "resources": {"camera": 1}, "ray_client_server_port": ADDRESS.port}
    with Cluster(nodes=[node]) as opened:
        wait_until(is_open)
        yield opened


@pytest.fixture(scope="module")
def outer(cluster: Cluster) -> Iterator[hocket.SessionContext]:
    """A session of this process, which is outside."""
    tests = str(Path(__file__).parents[2])
    with hocket.init(str(ADDRESS), namespace="here", runtime_env={"py_modules": [tests]}) as context:
        assert outside.is_outside()
        yield context
    assert not hocket.is_initialized()
    assert not ray.is_initialized()
    assert not outside.is_outside()


pytestmark.append(pytest.mark.usefixtures("outer"))


@hocket.remote
def square(x: int) -> int:
    return x * x


class _Counter:
    def __init__(self, start: int = 0) -> None:
        self.value = start

    def add(self, amount: int = 1) -> int:
        self.value += amount
        return self.value

    def __call__(self, amount: int) -> int:
        return self.value * amount

    def fail(self) -> None:
        raise KeyError("missing")

    def count(self) -> Iterator[int]:
        yield self.value

    def make(self) -> list[hocket.ObjectRef[int]]:
        return [hocket.put(self.value)]


Counter: Any = hocket.remote(_Counter)


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_tasks_and_their_references() -> None:
    @hocket.remote
    def add_up(first: int, *, others: list[hocket.ObjectRef[int]]) -> int:
        return int(first + sum(hocket.get(others)))

    assert hocket.get([square.remote(x) for x in range(20)]) == [x * x for x in range(20)]
    assert hocket.get(add_up.remote(square.remote(2), others=[square.remote(3), hocket.put(1)])) == 14


def test_several_returns_and_none() -> None:
    @hocket.remote(num_returns=3)
    def three() -> tuple[int, int, int]:
        return 1, 2, 3

    @hocket.remote(num_returns=0)
    def nothing() -> None: ...

    assert hocket.get(three.remote()) == [1, 2, 3]
    assert nothing.remote() is None


def test_what_a_function_captures() -> None:
    array, ref = np.arange(200_000.0), hocket.put(5)

    @hocket.remote
    def add_up(given: Any) -> float:
        given[0] = 1.0  # the reader's own
        return float(array.sum() + given.sum() + hocket.get(ref))

    assert hocket.get(add_up.remote(np.zeros(200_000))) == array.sum() + 6
    found = hocket.get(hocket.put(array))
    found[0] = 7.0
    assert (found[1], array[0]) == (1.0, 0.0)


def test_errors_are_ours() -> None:
    @hocket.remote
    def fail() -> None:
        raise KeyError("missing")

    @hocket.remote(max_retries=0)
    def die() -> None:
        os._exit(1)

    with pytest.raises(KeyError, match=r"fail raised an exception:(.|\n)*missing") as caught:
        hocket.get(square.remote(fail.remote()))
    assert isinstance(caught.value, exceptions.TaskError)
    assert "'missing'" in [found.message for found in hocket.error_info()]
    with pytest.raises(exceptions.WorkerCrashedError, match="The worker that ran task `die` died"):
        hocket.get(die.remote())


PROGRAM = """
import os
import hocket

class MyError(Exception):
    pass

@hocket.remote(retry_exceptions=[MyError], max_retries=2)
def work(tries):
    if hocket.get(tries.add.remote()) < 3:
        raise MyError("again")
    return "done"

@hocket.remote
class Tries:
    def __init__(self):
        self.count = 0
    def add(self):
        self.count += 1
        return self.count

with hocket.init():
    print(hocket.get(work.remote(Tries.remote())))
    try:
        hocket.get(work.options(max_retries=0).remote(Tries.remote()))
    except MyError as error:
        print("caught", isinstance(error.cause, MyError))
"""


@pytest.mark.parametrize("is_outer", [True, False])
def test_classes_of_the_script(cluster: Cluster, run_driver: conftest.RunDriver, is_outer: bool) -> None:
    """No module of the cluster has them; what comes back is an instance of the script's own class."""
    done = run_driver(PROGRAM, HOCKET_ADDRESS=str(ADDRESS) if is_outer else cluster.address)
    assert done.returncode == 0, done.stderr
    assert {"done", "caught True"} <= set(done.stdout.splitlines())


def test_impossible_requests() -> None:
    with pytest.raises(exceptions.TaskUnschedulableError, match=r"asks for \{CPU: 100\}.*Ask for less"):
        square.options(num_cpus=100).remote(1)
    with pytest.raises(exceptions.SerializationError, match=r"argument 0 is a _thread\.lock, which cannot be pickled"):
        square.remote(threading.Lock())  # type: ignore[call-overload]
    with pytest.raises(exceptions.SerializationError, match=r"value is a _thread\.lock, which cannot be pickled"):
        hocket.put(threading.Lock())


def test_environment_of_a_task() -> None:
    @hocket.remote
    def look() -> str:
        return os.environ["COLOUR"]

    assert hocket.get(look.options(runtime_env={"env_vars": {"COLOUR": "red"}}).remote()) == "red"


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_waiting_and_cancelling() -> None:
    @hocket.remote(max_retries=0)
    def hang() -> None:
        threading.Event().wait()

    late, soon = hang.remote(), square.remote(2)
    assert hocket.wait([late, soon], num_returns=1) == ([soon], [late])
    with pytest.raises(exceptions.GetTimeoutError, match=r"1 of 2 objects were not ready after 0\.1 s"):
        hocket.get([soon, late], timeout=0.1)
    hocket.cancel(late, force=True)
    with pytest.raises(exceptions.TaskCancelledError, match="was cancelled"):
        hocket.get(late)
    hocket.cancel(hocket.put(1))  # nothing to stop
    with pytest.raises(ValueError, match="force=True"):
        hocket.cancel(Counter.remote().add.remote(), force=True)


def test_futures() -> None:
    async def wait() -> int:
        return int(await square.remote(4))

    done: list[int] = []
    event = threading.Event()

    def ask_again(_: Any) -> None:
        done.append(
            hocket.get(square.remote(6))
        )  # the thread that hears answers must not be the one that waits for this
        event.set()

    future = square.remote(5).future()
    future.add_done_callback(ask_again)
    assert future.result(60) == 25
    assert asyncio.run(wait()) == 16
    assert event.wait(60)
    assert done == [36]


# --- actors -----------------------------------------------------------------------------------------------------------


def test_actors() -> None:
    counter = Counter.remote(start=1)
    assert hocket.get([counter.add.remote(), counter.add.remote(2), counter.__call__.remote(10)]) == [2, 4, 40]
    assert hocket.get(counter.__ray_call__.remote(lambda self, more: self.value + more, 1)) == 5
    (ref,) = hocket.get(counter.make.remote())
    assert hocket.get(ref) == 4

    @hocket.remote
    def use(handles: list[Any]) -> int:
        return int(hocket.get(handles[0].add.remote(6)))

    assert hocket.get(use.remote([counter])) == 10
    with pytest.raises(KeyError, match="missing"):
        hocket.get(counter.fail.remote())
    hocket.kill(counter)
    with pytest.raises(exceptions.ActorDiedError, match=r"Actor `_Counter` is dead: it was killed by `kill`\."):
        hocket.get(counter.add.remote())


def test_concurrency_groups() -> None:
    class Gate:
        def __init__(self) -> None:
            self.event = threading.Event()

        def wait(self) -> str:
            self.event.wait()
            return "through"

        def open(self) -> None:
            self.event.set()

    gate = hocket.remote(concurrency_groups={"side": 1})(Gate).remote()
    waiting = gate.wait.remote()
    hocket.get(gate.open.options(concurrency_group="side").remote())
    assert hocket.get(waiting) == "through"


def test_named_actors() -> None:
    first = Counter.options(name="first").remote(1)
    hocket.get(first.__ray_ready__.remote())
    with pytest.raises(exceptions.ActorAlreadyExistsError, match="The name 'first' is taken by another actor"):
        Counter.options(name="first").remote()
    assert {"name": "first", "namespace": "here"} in hocket.util.list_named_actors(all_namespaces=True)
    assert hocket.get(hocket.get_actor("first").add.remote()) == 2

    @hocket.remote
    def find() -> int:
        return int(hocket.get(hocket.get_actor("first").add.remote()))

    assert hocket.get(find.remote()) == 3
    hocket.kill(first)
    with pytest.raises(ValueError, match="Failed to look up actor with name 'nobody'"):
        hocket.get_actor("nobody")


def test_actor_that_is_none_of_ours() -> None:
    class Foreign:
        def answer(self, x: int) -> int:
            return x + 1

    theirs = ray.remote(name="foreign", num_cpus=0)(Foreign).remote()  # type: ignore[call-overload,unused-ignore]
    found = hocket.get_actor("foreign")
    assert hocket.get(found.answer.remote(1)) == 2
    with pytest.raises(AttributeError, match=r"`Foreign` has no method 'question'"):
        found.question  # noqa: B018 (the look-up raises)
    ray.kill(theirs)


# --- the cluster ------------------------------------------------------------------------------------------------------


def test_placement_groups() -> None:
    group = placement.placement_group([{"CPU": 1}, {"camera": 1}], name="group")
    assert group.wait(60)
    assert hocket.get(group.ready()) is None
    strategy = placement.PlacementGroupSchedulingStrategy(group)
    assert hocket.get(square.options(scheduling_strategy=strategy).remote(3)) == 9
    assert placement.get_placement_group("group") == group
    placement.remove_placement_group(group)
    with pytest.raises(exceptions.TaskPlacementGroupRemoved, match="removed"):
        hocket.get(square.options(scheduling_strategy=strategy).remote(3))
    with pytest.raises(exceptions.InfeasibleResourcesError, match=r"asks for .*CPU: 2.* but this session has"):
        placement.placement_group([{"CPU": 2}, {"CPU": 2}])


def test_the_cluster_and_where_this_is(cluster: Cluster, outer: hocket.SessionContext) -> None:
    assert (outer["address"], outer["namespace"], outer["engine"]) == (str(ADDRESS), "here", "ray")
    (node,) = hocket.nodes()
    context = hocket.get_runtime_context()
    assert node["NodeID"] == context.get_node_id() == cluster.nodes[0].node_id
    assert (context.get_task_id(), context.get_actor_id(), context.get_placement_group_id()) == (None, None, None)
    assert hocket.cluster_resources()["camera"] == 1
    wait_until(lambda: hocket.available_resources().get("CPU") == CPUS)
    assert [row["state"] for row in session.get_engine().view.list_records("nodes")] == ["ALIVE"]
    hocket.get(square.remote(1))
    wait_until(lambda: any(row["name"] == "square" for row in session.get_engine().view.list_records("tasks")))
    with pytest.raises(ValueError, match=r"kind must be one of .*'shoes'"):
        session.get_engine().view.list_records("shoes")


def test_metrics() -> None:
    @hocket.remote
    def count() -> None:
        metrics.Counter("calls").inc(2)

    hocket.get([count.remote(), count.remote()])
    metrics.Counter("calls").inc(1)
    found = {family.name: family.series for family in session.get_engine().metrics.collect().families.values()}
    assert found["calls"] == {(): (5.0,)}


def count() -> tuple[int, int]:
    """Objects and actors that this process has handles on, apart from those in garbage."""
    gc.collect()
    found = session.get_engine().view.statistics()
    assert found["driver_pid"] == os.getpid()
    return found["objects"], found["actors"]


def test_counts() -> None:
    objects, actors = count()
    refs, counter = [hocket.put(1), square.remote(2)], Counter.remote()
    hocket.get(counter.add.remote())
    wait_until(lambda: count() == (objects + 2, actors + 1))
    del refs, counter
    wait_until(lambda: count() == (objects, actors))


# --- what is refused --------------------------------------------------------------------------------------------------


def test_generators() -> None:
    @hocket.remote
    def count(n: int) -> Iterator[int]:
        yield from range(n)

    @hocket.remote
    def read() -> list[int]:
        return [hocket.get(ref) for ref in count.remote(3)]

    with pytest.raises(exceptions.HocketError, match=f"Reading the items of the generator `count` one by one {REMEDY}"):
        count.remote(3)
    counter = Counter.remote()
    with pytest.raises(exceptions.HocketError, match=f"Reading the items of the generator `_Counter.count` .*{REMEDY}"):
        counter.count.remote()
    assert [hocket.get(ref) for ref in hocket.get(count.options(num_returns="dynamic").remote(3))] == [0, 1, 2]
    assert hocket.get(counter.count.options(num_returns=1).remote()) == 0
    assert hocket.get(read.remote()) == [0, 1, 2]


@pytest.mark.parametrize("name", ["working_dir", "py_modules"])
def test_folders_of_a_task(tmp_path: Path, name: str) -> None:
    environment = {name: str(tmp_path) if name == "working_dir" else [str(tmp_path)]}
    message = (
        rf"of a task or actor has {name}, which is not possible .*hocket\.init\(runtime_env=\{{'{name}': \.\.\.\}}\)"
    )
    with pytest.raises(exceptions.HocketError, match=message):
        square.options(runtime_env=environment).remote(1)
    with pytest.raises(exceptions.HocketError, match=message):
        Counter.options(runtime_env=environment).remote()


def test_serializers() -> None:
    class Odd:
        def __init__(self) -> None:
            self.lock = threading.Lock()

    hocket.util.register_serializer(Odd, serializer=lambda odd: 1, deserializer=lambda _: Odd())
    try:
        with pytest.raises(
            exceptions.HocketError, match=f"Sending .*Odd', which has a serializer of register_serializer, {REMEDY}"
        ):
            hocket.put([Odd()])
        with pytest.raises(exceptions.HocketError, match=f"which has a serializer of register_serializer, {REMEDY}"):
            square.remote(Odd())  # type: ignore[call-overload]
    finally:
        hocket.util.deregister_serializer(Odd)


def test_what_is_less_is_listed() -> None:
    assert outside.LIMITS.items() <= engine.RayEngine.limits.items()
    assert {"client_generators", "client_serializers"} <= outside.LIMITS.keys()
