"""What viewers see of parameter servers, data sets and meshes: a real session, looked at from this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket.engine import descendants, stack_questions, stacks
from hocket.observe import parts

pytestmark = pytest.mark.about_local("sessions that are looked at from outside")

PROGRAM = """
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import numpy as np

import hocket
from hocket import data, ps

hocket.init(num_cpus=2)
strategy = ps.ParameterServerStrategy({"worker": 2, "server": 2}, optimizer=ps.SGD(lr=0.5), max_staleness=4)
coordinator = ps.Coordinator(strategy)
with strategy.scope():
    weights = ps.Variable(np.zeros((8, 2)), name="<b>weights</b>", partitioner=ps.FixedShards(2))
    words = ps.Embedding(None, 4, capacity=100, name="words")


def step():
    strategy.pull([weights])
    strategy.push([(np.ones((8, 2), np.float32), weights)])


def sleep():
    import time

    time.sleep(600)


for _ in range(20):
    coordinator.schedule(step)
coordinator.join()
rows = data.range(1000).map_batches(lambda batch: batch).materialize()
reading = iter(data.range(500).repartition(5).iter_batches(batch_size=50, prefetch_batches=0))
next(reading)
print("open", *[str(pid) for pid in coordinator.get_worker_pids().values()], *strategy.get_server_pids(), flush=True)
for line in sys.stdin:
    if line == "mesh\\n":
        from hocket import mesh

        devices = mesh.create_mesh({"model": 2}, framework="jax")
        rules = mesh.LayoutMap(devices, {"kernel": ["model", mesh.UNSHARDED]})
        spread = mesh.distribute({"kernel": np.ones((4, 4), np.float32), "bias": np.ones(4, np.float32)}, rules)
        mesh.relayout(spread["kernel"], [mesh.UNSHARDED, "model"])
        named = mesh.DVariable(np.ones(4, np.float32), layout=mesh.Layout.replicated(devices, 1), name="named")
    if line == "break\\n":
        strategy._link = coordinator._link = None
        coordinator._workers._link = None
    print("done", flush=True)
"""


class Program:
    """A session in a process of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        word, *pids = self.read().split()
        assert word == "open"
        self.worker_pids, self.server_pids = list(map(int, pids[:2])), list(map(int, pids[2:]))

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        assert self.read() == "done"


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    running = Program()
    yield running
    running.process.kill()
    running.process.communicate()


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> parts.Parts:
    monkeypatch.setattr(parts, "ASK_SECONDS", 0.0)
    return parts.Parts()


def test_servers(program: Program, looking: parts.Parts) -> None:
    servers = sorted(looking.describe(program.process.pid)["servers"], key=lambda one: int(one["server"]))
    assert [one["pid"] for one in servers] == program.server_pids
    first = servers[0]
    assert first["version"] == 20
    assert sum(count for _, count in first["staleness"]) == 20
    assert (first["max_staleness"], first["needed"], first["late"], first["skipped"]) == (4, 0, 0, 0)
    assert [one["updates"] for one in servers] == [20, 20]
    shards = [shard for one in servers for shard in one["shards"]]
    assert sorted(shard["name"] for shard in shards) == ["<b>weights</b>"] * 2 + ["words"] * 2
    assert {shard["optimizer"] for shard in shards} == {"SGD"}
    assert all(shard["bytes"] > 0 for shard in shards)


def test_coordinator(program: Program, looking: parts.Parts) -> None:
    found = looking.describe(program.process.pid)
    (coordinator,) = found["coordinators"]
    assert coordinator["strategy"] == found["servers"][0]["strategy"]
    assert coordinator["finished_closures"] == 20
    assert sum(one["taken"] for one in coordinator["workers"]) == 20


def test_executions(program: Program, looking: parts.Parts) -> None:
    over, running = looking.describe(program.process.pid)["executions"]
    assert over["has_ended"]
    assert over["stages"][-1]["rows"] == 1000
    assert "The reader" in over["judgement"]
    assert not running["has_ended"]
    assert running["stages"][-1]["name"] == "repartition"
    assert 0 < running["stages"][-1]["rows"] <= 100


def test_meshes(program: Program, looking: parts.Parts) -> None:
    assert "meshes" not in looking.describe(program.process.pid)
    program.tell("mesh")
    (shown,) = looking.describe(program.process.pid)["meshes"]
    values = {one["name"]: one for one in shown["values"]}
    assert set(values) == {"kernel", "bias", "named"}
    kernel = values["kernel"]
    assert (kernel["bytes"], kernel["local_bytes"], kernel["parts"]) == (64, 32, [[0, 0], [1, 0]])
    assert kernel["layout"] == ["model", "unsharded"]
    assert shown["moved"] == [{"kind": "all-to-all", "axis": "model", "count": 1, "bytes": 16}]


def test_stopped_process_is_shown_as_it_was(program: Program, looking: parts.Parts) -> None:
    looking.describe(program.process.pid)
    pid = program.server_pids[1]
    os.kill(pid, signal.SIGSTOP)
    try:
        while not descendants.is_stopped(pid):
            pass
        found = looking.describe(program.process.pid)["servers"]
        again = looking.describe(program.process.pid)["servers"]
    finally:
        os.kill(pid, signal.SIGCONT)
    by_pid = {one["pid"]: one for one in again}
    assert by_pid[pid]["updates"] == 20
    assert by_pid[pid]["ago"] > by_pid[program.server_pids[0]]["ago"]
    assert len(found) == 2


def test_answers_are_not_mixed_up(program: Program) -> None:
    """Stacks, samples and facts go through one file."""
    pid = program.process.pid
    probe = stack_questions.find_probe(pid)
    assert probe is not None
    for _ in range(20):
        stack_questions._ask(Path(f"/proc/{pid}/fd"), probe, stacks.WHERE)
        shown = stack_questions.fetch_shown(pid, probe)
        assert shown is not None
        assert "coordinators" in shown
        assert "Thread 0x" in stack_questions.fetch(pid, probe)


def test_part_that_cannot_say_is_told(program: Program, looking: parts.Parts) -> None:
    program.tell("break")
    found: Any = looking.describe(program.process.pid)
    assert found["coordinators"][0]["problem"].startswith("AttributeError: ")
    assert found["servers"][0]["version"] == 20
