"""Each group of ranks that there is, against the contract of collectives."""

from __future__ import annotations

import datetime as dt
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.collective.conftest import MOST_RANKS
from tests.collective.test_host_group import Folder

import hocket
from hocket.collective import ReduceOp, futex, host_group, peer_monitor, rendezvous, segment, turns
from hocket.collective import world as collective_world
from hocket.collective.world import World
from hocket.testing import Leftovers, collective_programs
from hocket.testing.collective_contract import Array, CollectiveContract, combine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SECONDS = 20.0
"""How long an operation may wait for a rank."""

SHORT_SECONDS = 1.5
"""The same where nothing but the time-out tells of a rank that has left."""

DEPARTURES = (collective_programs.leave_one_alone, collective_programs.raise_in_one, collective_programs.kill_one)


def run_in_world(
    function: Callable[..., Any], args: Sequence[Any], path: Path, rank: int, hosts: list[list[int]], exchange: Any
) -> Any:
    """Join the ranks of this rank's host in memory, and the hosts through an actor; then run a function."""
    host = next(host for host in hosts if rank in host)
    timeout_s = SHORT_SECONDS if function in DEPARTURES and hosts[1:] else SECONDS
    local = rendezvous.join(Folder(path), rank, host, timeout_s=timeout_s) if host[1:] else None
    through = None
    if exchange is not None and rank == host[0]:
        through = collective_world.through_actor(exchange, hosts.index(host), timeout_s)
    Folder(path).write(f"here/{rank}", "")
    for other in (rank for host in hosts for rank in host):
        Folder(path).read(f"here/{other}")
    world = World(rank, hosts, local, through)
    try:
        return function(world, *args)
    finally:
        world.close()


def run_in_torch(
    function: Callable[..., Any], args: Sequence[Any], path: Path, rank: int, size: int, backend: str
) -> Any:
    """Join torch's process group; then run a function."""
    import torch

    dist: Any = torch.distributed
    on_arrays: Any = importlib.import_module("hocket.train.frameworks.torch.strategies.on_arrays")
    importlib.import_module("hocket.collective.torch").register()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        backend,
        store=dist.FileStore(str(path / "store"), size),
        rank=rank,
        world_size=size,
        timeout=dt.timedelta(seconds=SECONDS),
    )
    try:
        return function(on_arrays.GroupCollectives(), *args)
    finally:
        dist.destroy_process_group()


def collect(refs: Sequence[Any]) -> list[Any]:
    """Return what each task returned or raised."""
    found: list[Any] = []
    for ref in refs:
        try:
            found.append(hocket.get(ref))
        except hocket.exceptions.HocketError as error:
            found.append(error)
    return found


@pytest.fixture(scope="class")
def shared_session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One session for all tests of a class: its workers import a framework once."""
    before = Leftovers.look()
    request.cls.folder = tmp_path_factory.mktemp("groups")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in request.cls.environment.items():
            patch.setenv(name, value)
        with hocket.init(num_cpus=MOST_RANKS):
            yield
    assert before.list_new() == []


@pytest.mark.usefixtures("shared_session")
class InProcesses(CollectiveContract):
    """Ranks that are tasks of a session."""

    folder: ClassVar[Path]
    environment: ClassVar[dict[str, str]] = {}

    def make_folder(self) -> Path:
        path = self.folder / os.urandom(4).hex()
        path.mkdir()
        return path


@pytest.mark.about_local("memory that the processes of one machine share")
class TestWorldOnOneMachine(InProcesses):
    def run(self, size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        task, path = hocket.remote(max_retries=0)(run_in_world), self.make_folder()
        return collect([task.remote(function, args, path, rank, [[*range(size)]], None) for rank in range(size)])


def count_fences(world: World) -> int:
    """Return how many times a barrier of all ranks orders memory."""
    taken, fence = 0, futex.fence

    def count_one() -> None:
        nonlocal taken
        taken += 1
        fence()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(futex, "fence", count_one)
        world.barrier()
    return taken


@pytest.mark.about_local("memory that the processes of one machine share")
class TestWorldWithWeakMemory(TestWorldOnOneMachine):
    """As on a processor that shows stores in any order."""

    environment: ClassVar = {"HOCKET_WEAK_MEMORY": "1"}

    def test_barriers_are_taken(self) -> None:
        assert min(self.run(2, count_fences)) >= 3, "one behind the mark, and two that x86 does without"


@pytest.mark.about_local("memory that the processes of one machine share")
class TestWorldOnTwoMachines(InProcesses):
    """As if every second rank were on another machine."""

    limits: ClassVar = {
        "names": "Whoever waits for another machine hears of the time-out, and not of who has left.",
    }

    def list_hosts(self, size: int) -> list[list[int]]:
        return [host for host in ([*range(0, size, 2)], [*range(1, size, 2)]) if host]

    def run(self, size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        task, path = hocket.remote(max_retries=0)(run_in_world), self.make_folder()
        hosts = self.list_hosts(size)
        exchange = collective_world.start_actor(len(hosts)) if hosts[1:] else None
        return collect([task.remote(function, args, path, rank, hosts, exchange) for rank in range(size)])

    def compute_expected(self, values: Sequence[Array], op: ReduceOp) -> Array:
        inner = ReduceOp.SUM if op is ReduceOp.MEAN else op
        total = combine(
            [combine([values[rank] for rank in host], inner) for host in self.list_hosts(len(values))], inner
        )
        return total / total.dtype.type(len(values)) if op is ReduceOp.MEAN else total


@pytest.mark.long
@pytest.mark.about_local("memory that the processes of one machine share")
class TestWorldWithoutSharedMemory(TestWorldOnTwoMachines):
    def list_hosts(self, size: int) -> list[list[int]]:
        return [[rank] for rank in range(size)]


class TestWorldInTurns(CollectiveContract):
    """Ranks that take turns in this process."""

    limits: ClassVar = {"processes": "The ranks are threads of this process."}

    def run(self, size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        if size == 1:
            return [function(World(0, [[0]]), *args)]
        first = segment.create(size)
        memories = [first, *(segment.open_segment(first.path, first.identity, size) for _ in range(size - 1))]
        for rank, memory in enumerate(memories):
            peer_monitor.join(memory, rank)

        def build(rank: int) -> Callable[[], Any]:
            def body() -> Any:
                world = World(rank, [[*range(size)]], host_group.HostGroup(memories[rank], rank, timeout_s=SECONDS))
                try:
                    return function(world, *args)
                except Exception as error:  # noqa: BLE001 (the tests look at it)
                    return error
                finally:
                    world.close()

            return body

        ranks = turns.Turns(size, [])
        try:
            return ranks.run([build(rank) for rank in range(size)])
        finally:
            ranks.close()


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch: pip install 'hocket[torch]'")
@pytest.mark.about_local("memory that the processes of one machine share")
class TestTorchOnHocket(InProcesses):
    """torch's process group on our backend, as a strategy on host arrays sees it."""

    backend = "hocket"
    limits: ClassVar = {
        "complex_products": "torch multiplies no complex numbers of several ranks.",
    }

    def run(self, size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        task, path = hocket.remote(max_retries=0)(run_in_torch), self.make_folder()
        return collect([task.remote(function, args, path, rank, size, self.backend) for rank in range(size)])


def test_nans_that_are_lost_are_found() -> None:
    class Losing(CollectiveContract):
        def run(self, size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
            found = TestWorldInTurns().run(size, function, *args)
            return [[np.nan_to_num(np.frombuffer(data)).tobytes() for data in one] for one in found]

    with pytest.raises(AssertionError, match="SUM turns NaNs into numbers"):
        Losing().test_all_ranks_have_the_same_zeros_and_nans(2)


def test_a_mistake_of_a_group_is_found() -> None:
    """The suite judges: what adds up in another order, or leaves out a rank, does not pass."""

    class Wrong(CollectiveContract):
        def run(self, size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
            return TestWorldInTurns().run(size, collective_programs.tell_numbers)[::-1]

    with pytest.raises(AssertionError):
        Wrong().test_ranks_are_numbered(2)
    with pytest.raises(NotImplementedError, match=r"CollectiveContract needs run\(self, size, function, \*args\)"):
        CollectiveContract().test_ranks_are_numbered(2)
