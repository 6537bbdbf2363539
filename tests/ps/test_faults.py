"""What survives when workers and servers are killed.

The names after A5 are those of TensorFlow's own tests; the numbers are of docs/ps.md.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import ps
from hocket.ps import errors
from hocket.ps.access import memory_owners
from hocket.ps.executor import dispatcher
from hocket.ps.stores import records
from hocket.ps.variables import registry
from hocket.util import state
from tests.ps.conftest import Files

pytestmark = [pytest.mark.needs("processes"), pytest.mark.needs("parallelism")]


@pytest.fixture
def counter(shared_strategy: ps.ParameterServerStrategy) -> Any:
    with shared_strategy.scope():
        return ps.Variable(0)


def add(counter: Any) -> int:
    counter.assign_add(1)
    return ps.get_current_worker_index()


def count_restarts(coordinator: ps.Coordinator) -> int:
    return int(coordinator.statistics()["recoverable_worker_failure_count"])


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def kill_workers(coordinator: ps.Coordinator, *indices: int) -> None:
    pids = coordinator.get_worker_pids()
    for index in indices:
        with contextlib.suppress(
            ProcessLookupError
        ):  # dead already, and not replaced yet; the tests count the replaced ones
            kill(pids[index])


def run_everywhere(coordinator: ps.Coordinator, files: Files, name: str) -> list[int]:
    """Have each worker run a closure at once."""
    return sorted(coordinator.fetch([coordinator.schedule(files.wait_for_others, (name, 2)) for _ in range(2)]))


def test_worker_preemption_between_functions(coordinator, counter, files: Files):
    """A5 #55, #65, #66, WorkerPreemptionBetweenFunctions; #23: values outlive who computed them."""
    values = [coordinator.schedule(add, (counter,)) for _ in range(2)]
    coordinator.join()
    before = count_restarts(coordinator)
    old = coordinator.get_worker_pids()
    kill_workers(coordinator, 0, 1)
    for _ in range(2):
        coordinator.schedule(add, (counter,))
    assert coordinator.join() == 2
    assert counter.numpy() == 4
    assert run_everywhere(coordinator, files, "all") == [0, 1]
    assert count_restarts(coordinator) == before + 2
    assert not set(coordinator.get_worker_pids().values()) & set(old.values())
    assert all(value.fetch() in (0, 1) for value in values)


def test_worker_preemption_midst_function(coordinator, counter, files: Files):
    """A5 #56, WorkerPreemptionMidstFunction; A2 #15: what a closure did before it was cut short is done once."""

    def push_and_wait() -> int:
        counter.assign_add(1)
        index = ps.get_current_worker_index()
        if not files.has("killed"):
            files.write("pushed", str(index))
            files.wait_for("never")
        counter.assign_add(10)
        return os.getpid()

    before = count_restarts(coordinator)
    value = coordinator.schedule(push_and_wait)
    files.wait_for("pushed")
    index = int(files.read("pushed")[0])
    files.write("killed")
    old = coordinator.get_worker_pids()[index]
    kill(old)
    assert value.fetch() != old
    assert counter.numpy() == 11
    assert count_restarts(coordinator) == before + 1


def test_two_workers_preempted(coordinator, counter, files: Files):
    """A5 #57, TwoWorkersPreempted: both in the middle, with more that waits behind."""

    def wait() -> None:
        counter.assign_add(1)
        if not files.has("killed"):
            files.append("in", ps.get_current_worker_index())
            files.wait_for("never")

    before = count_restarts(coordinator)
    for _ in range(2):
        coordinator.schedule(wait)
    files.wait_until(lambda: len(files.read("in")) == 2)
    for _ in range(50):
        coordinator.schedule(add, (counter,))
    files.write("killed")
    kill_workers(coordinator, 0, 1)
    coordinator.join()
    assert counter.numpy() == 52
    assert count_restarts(coordinator) == before + 2


def test_worker_continuous_failure(coordinator, counter):
    """A5 #57, WorkerContinuousFailure: TensorFlow's counter is 10 or more; here it is what it should be."""
    rng = random.Random(5)
    before = count_restarts(coordinator)
    killed = 0
    for _ in range(6):
        for _ in range(100):
            coordinator.schedule(add, (counter,))
        kill_workers(coordinator, rng.randrange(2))
        killed += 1
        coordinator.join()
    assert counter.numpy() == 600
    assert 1 <= count_restarts(coordinator) - before <= killed


def test_handle_dataset_creation_failure(coordinator, files: Files):
    """A5 #58, HandleDatasetCreationFailureWith...; A3 #40: the user's own error, and what waits is cancelled."""

    def fail(context: ps.InputContext) -> Any:
        raise ZeroDivisionError(f"no data for {context.input_pipeline_id}")

    kill_workers(coordinator, 0, 1)
    stream = iter(coordinator.create_per_worker_dataset(fail))
    for draw in (next, lambda given: next(stream)):  # given as an argument, and referred to
        value = coordinator.schedule(draw, (stream,))
        with pytest.raises(errors.ClosureFailures) as caught:
            coordinator.join()
        (error,) = caught.value.exceptions
        assert isinstance(error, ZeroDivisionError)
        assert "it was raised by the dataset or value of worker" in "".join(error.__notes__)
        with pytest.raises(ZeroDivisionError, match="no data for"):
            value.fetch()
    assert run_everywhere(coordinator, files, "after") == [0, 1]


def test_one_worker_preemption_with_cancellation(coordinator, counter, files: Files):
    """A5 #59, OneWorkerPreemptionWithCancellation."""

    def fail() -> None:
        files.wait_for("fail")
        raise ZeroDivisionError("mine")

    def wait() -> None:
        files.append("in", os.getpid())
        files.wait_for("go")
        counter.assign_add(1)

    before = count_restarts(coordinator)
    bad, held = coordinator.schedule(fail), coordinator.schedule(wait)
    files.wait_until(lambda: len(files.read("in")) == 1)
    late = coordinator.schedule(add, (counter,))
    files.write("fail")
    with pytest.raises(ZeroDivisionError, match="mine"):
        bad.fetch()
    kill(int(files.read("in")[0]))
    files.wait_until(lambda: len(files.read("in")) == 2)
    files.write("go")
    with pytest.raises(errors.ClosureFailures) as caught:
        coordinator.join()
    assert [isinstance(error, ZeroDivisionError) for error in caught.value.exceptions] == [True]
    assert held.fetch() is None
    with pytest.raises(errors.CancelledClosureError):
        late.fetch()
    assert count_restarts(coordinator) == before + 1
    coordinator.schedule(add, (counter,))
    assert coordinator.join() == 1 + 1  # and the one that was held
    assert counter.numpy() == 2


def test_fetch_from_ps_after_worker_failure(coordinator, counter):
    """A5 #62, FetchFromPSAfterWorkerFailure."""
    coordinator.schedule(add, (counter,)).fetch()
    kill_workers(coordinator, 0, 1)
    assert counter.numpy() == 1
    coordinator.schedule(add, (counter,))
    for _ in range(200):
        assert counter.numpy() in (1, 2)
    coordinator.join()


def test_a_server_dies(coordinator, shared_strategy, counter):
    """A5 #60, #63: TensorFlow's job is over; here nothing is lost, nothing is raised, and it is back at once."""
    for _ in range(3):
        old = shared_strategy.get_server_pids()
        for pid in old:
            kill(pid)
        for _ in range(50):
            coordinator.schedule(add, (counter,))
        coordinator.join()
        assert not set(shared_strategy.get_server_pids()) & set(old)
    assert counter.numpy() == 150


def test_ps_failure_while_recovery_from_worker_failure(coordinator, shared_strategy, counter):
    """A5 #61, PSFailureWhileRecoveryFromWorkerFailure."""
    before = count_restarts(coordinator)
    for _ in range(100):
        coordinator.schedule(add, (counter,))
    kill_workers(coordinator, 0, 1)
    old = shared_strategy.get_server_pids()
    for pid in old:
        kill(pid)
    coordinator.join()
    for _ in range(100):
        coordinator.schedule(add, (counter,))
    coordinator.join()
    assert counter.numpy() == 200
    assert count_restarts(coordinator) > before
    assert not set(shared_strategy.get_server_pids()) & set(old)


def test_a_server_that_is_paused_is_no_failure(coordinator, shared_strategy, counter):
    """A5 #64: workers of the same machine do not need the server's process."""
    pids = shared_strategy.get_server_pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        for _ in range(50):
            coordinator.schedule(add, (counter,))
        coordinator.join()
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    assert counter.numpy() == 50
    assert shared_strategy.get_server_pids() == pids


def test_a_closure_that_kills_its_workers_is_given_up(coordinator, counter, monkeypatch):
    """A5 #57. What was sent with it is not concerned."""
    monkeypatch.setattr(dispatcher, "MAX_DEATHS", 3)
    good = [coordinator.schedule(add, (counter,)) for _ in range(20)]
    bad = coordinator.schedule(os._exit, (3,))
    with pytest.raises(errors.ClosureFailures) as caught:
        coordinator.join()
    (error,) = caught.value.exceptions
    assert isinstance(error, errors.ClosureError)
    with pytest.raises(
        errors.ClosureError,
        match=r"_exit was given up, because 3 workers in a row died while they ran it\. The last error: ",
    ):
        bad.fetch()
    done = sum(value._error is None for value in good)
    assert counter.numpy() == done
    coordinator.schedule(add, (counter,))
    coordinator.join()


def test_each_increment_once_each_item_once(coordinator, shared_strategy, counter):
    """A2 #15, A3 #33, #34, A4 #54: kills of both kinds in the middle of everything."""
    with shared_strategy.scope():
        table = ps.Embedding(None, 2, capacity=1000, initializer=ps.Zeros())
        seen = ps.Variable(np.zeros(600, "int64"))

    def step(stream: Any) -> int:
        item = int(next(stream))
        counter.assign_add(1)
        seen.scatter_add([item], [1])
        table.add_rows([item % 10], [[1.0, 0.0]])
        return item

    rng = random.Random(11)
    before = count_restarts(coordinator)
    stream = iter(coordinator.create_per_worker_dataset(np.arange(600)))
    values = []
    for part in range(6):
        values += [coordinator.schedule(step, (stream,)) for _ in range(100)]
        kill_workers(coordinator, rng.randrange(2))
        kill(shared_strategy.get_server_pids()[part % 2])
    coordinator.join()
    assert sorted(coordinator.fetch(values)) == list(range(600))
    assert counter.numpy() == 600
    assert seen.numpy().tolist() == [1] * 600
    assert table.lookup(np.arange(10))[:, 0].tolist() == [60.0] * 10
    assert count_restarts(coordinator) > before


# --- the registry dies ------------------------------------------------------------------------------------------------


@pytest.fixture
def hosted_strategy(shared_session: hocket.SessionContext) -> Iterator[ps.ParameterServerStrategy]:
    """One whose registry is an actor, as in a training run."""
    made = ps.ParameterServerStrategy({"worker": 1, "server": 2}, optimizer=ps.Adam(), hosted=True)
    yield made
    made.close()


def find_registry() -> int:
    (found,) = (one for one in state.list_actors() if one.class_name == "HostedRegistry" and one.state == "ALIVE")
    return int(found.pid)


def test_memory_is_lost_with_its_owner(hosted_strategy: ps.ParameterServerStrategy) -> None:
    for pid in hosted_strategy.get_server_pids():
        kill(pid)
    assert not hosted_strategy.is_lost
    (owner,) = (one for one in state.list_actors() if one.class_name == "MemoryOwner" and one.state == "ALIVE")
    kill(int(owner.pid))
    assert hosted_strategy.is_lost


def test_a_registry_that_is_killed_is_built_again(hosted_strategy: ps.ParameterServerStrategy) -> None:
    first = hosted_strategy.make_variable(np.arange(6.0), name="first", partitioner=ps.FixedShards(2))
    hosted_strategy.make_embedding(10, 3, name="table")
    before, pid = hosted_strategy.statistics()["bytes"], find_registry()
    kill(pid)
    again = hosted_strategy.make_variable(np.zeros(6), name="first", partitioner=ps.FixedShards(2), exist_ok=True)
    assert again.numpy().tolist() == first.numpy().tolist() == [0, 1, 2, 3, 4, 5]
    assert find_registry() != pid
    assert (hosted_strategy.statistics()["bytes"], set(hosted_strategy.variables)) == (before, {"first", "table"})
    second = hosted_strategy.make_variable(np.ones(3), name="second")
    assert second.numpy().tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="A variable named 'table' already exists"):
        hosted_strategy.make_embedding(10, 3, name="table")
    assert sum(hosted_strategy.statistics()["bytes"]) - sum(before) == 3 * 4 * 2 * 3  # a copy of each, with two slots


def test_counts_do_not_need_the_registry(hosted_strategy: ps.ParameterServerStrategy) -> None:
    hosted_strategy.make_variable(np.zeros(6), name="only")
    pid = find_registry()
    os.kill(pid, signal.SIGSTOP)
    try:
        assert sum(hosted_strategy.statistics()["bytes"]) == 6 * 4 * 2 * 3
    finally:
        os.kill(pid, signal.SIGCONT)


class Interrupted:
    """An owner of memory that fails once, when a certain number of shards was added."""

    def __init__(self, after: int) -> None:
        self.owner = memory_owners.MemoryOwner()
        self.left = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self.owner, name)

    def add(self, *args: Any) -> None:
        self.left -= 1
        if self.left == -1:
            raise InterruptedError
        self.owner.add(*args)


@pytest.mark.parametrize("kind", ["variable", "table"])
def test_a_variable_whose_making_was_broken_off_is_made_whole(kind: str) -> None:
    def make(using: registry.Registry) -> records.VariableRecord:
        if kind == "table":
            return using.make_embedding(7, 2, registry.TableSettings(name="it", exist_ok=True))
        settings = registry.VariableSettings(name="it", partitioner=ps.FixedShards(3), exist_ok=True)
        return using.make_variable(np.arange(14.0).reshape(7, 2), settings)

    owner: Any = Interrupted(after=2)
    books = [owner.make_book(server) for server in range(3)]
    given = books, [owner] * 3, registry.Defaults(None, None, is_synchronous=False)
    with pytest.raises(InterruptedError):
        make(registry.Registry(*given))
    after = registry.Registry(*given)
    after.read_books()
    assert after.list_made() == []
    made = make(after)
    assert (len(made.parts), [part.number for part in made.parts]) == (3, [0, 0, 0])
    assert len({part.server for part in made.parts}) == 3
    assert make(after) == made
    assert (made.rows or made.shape[0]) == 7
    owner.close()
