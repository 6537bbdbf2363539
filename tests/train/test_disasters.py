"""Three machines, and ranks and machines that are told to end or killed at random moments: each row is trained on once
an epoch, and nothing hangs.

Prints how long it took each time until a rank reported again. This file imports no framework, because each rank imports
it.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import hocket
from hocket import data, train
from hocket.testing import machines
from hocket.train import collective
from hocket.train.run import worker_group

testing_cluster: Any = pytest.importorskip("hocket.testing.cluster", reason="needs Ray: pip install 'hocket[ray]'")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(2400),
    # Ray leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROWS, EPOCHS, SEED = 360, 1000, 3
"""More epochs than there is time for: training ends when the last disaster is over."""

STEPS_A_COMMIT = 4
EACH = int(os.environ.get("HOCKET_TEST_DISASTERS", "10"))
"""How many SIGTERMs, and how many kills, a run suffers."""


@pytest.fixture(scope="module", autouse=True)
def _send_this_module() -> Iterator[None]:
    """The nodes cannot import the tests."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def cluster() -> Iterator[Any]:
    if not machines.can_have_machines():
        pytest.skip("machines of their own need root and iproute2")
    with (
        testing_cluster.Cluster(nodes=[{"num_cpus": 2}, {"num_cpus": 1}, {"num_cpus": 1}], apart=True) as opened,
        hocket.init(address=opened.address),
    ):
        yield opened


def read_rows(config: dict[str, Any]) -> int:
    """Write down the rows of each step, and commit some; end when the file is there that says so."""
    rank = train.get_context().get_world_rank()
    log = Path(config["log"])
    shard = train.get_dataset_shard("train")
    start = train.get_checkpoint()
    first = step = 0
    if start is not None:
        with start.as_directory() as folder:
            first = step = int(Path(folder, "step").read_text())
    attempt = collective.broadcast_from_rank_zero(time.time_ns())
    place = log / f"{attempt}-{rank}.tmp"
    place.write_text(json.dumps([hocket.get_runtime_context().get_node_id(), os.getpid()]))
    place.rename(log / f"place-{attempt}-{rank}")
    loop = shard.iter_batches(batch_size=2)
    with (log / f"rows-{attempt}-{first}-{rank}").open("w") as file:
        for _ in range(shard.epoch, EPOCHS):
            for batch in loop:
                step += 1
                print(json.dumps([step, batch["id"][shard.weights == 1].tolist()]), file=file, flush=True)
                if step % STEPS_A_COMMIT == 0:
                    is_over = collective.broadcast_from_rank_zero((log / "over").exists())
                    with tempfile.TemporaryDirectory() as folder:
                        Path(folder, "step").write_text(str(step))
                        train.report({"step": step, "over": is_over}, train.Checkpoint(folder))
                    if is_over:
                        return step
    raise AssertionError("there were too few epochs")


class Disasters(train.UserCallback):
    """Strikes after a commit, at random moments, and notes when training goes on."""

    def __init__(self, cluster: Any, log: Path, seed: int) -> None:
        self._cluster = cluster
        self._log = log
        self._random = random.Random(seed)
        self._kinds = ["term"] * EACH + ["kill"] * (EACH // 2) + ["node"] * (EACH - EACH // 2)
        self._random.shuffle(self._kinds)
        self._commits = threading.Condition()
        self._count = 0
        self.fired: Counter[str] = Counter()
        self.seconds: dict[str, list[float]] = {}
        self._thread = threading.Thread(target=self._strike_all, daemon=True)
        self._thread.start()

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        with self._commits:
            self._count += 1
            self._commits.notify_all()

    def join(self) -> None:
        self._thread.join()

    def _wait_for_commits(self, count: int) -> None:
        with self._commits:
            target = self._count + count
            assert self._commits.wait_for(lambda: self._count >= target, 300), "training does not go on"

    def _strike_all(self) -> None:
        try:
            for kind in self._kinds:
                self._wait_for_commits(self._random.randint(1, 4))
                threading.Event().wait(self._random.random() * 0.2)  # any moment of a step
                began = time.monotonic()
                self._strike(kind)
                self._wait_for_commits(1)
                # What was under way when it struck may still be committed: training goes on with the first commit of a
                # new group.
                self._wait_for_new_group(began)
                self.seconds.setdefault(kind, []).append(time.monotonic() - began)
                self.fired[kind] += 1
        finally:
            (self._log / "over").touch()

    def _strike(self, kind: str) -> None:
        """Strike something that the current group is on; if that changes just now, wait for another chance."""
        while True:
            self._attempts = self._list_attempts()
            nodes = {node.node_id: node for node in self._cluster.nodes}
            places = [json.loads(path.read_text()) for path in self._log.glob(f"place-{max(self._attempts)}-*")]
            if kind == "node":
                places = [place for place in places if place[0] != self._cluster.nodes[0].node_id]
            places = [place for place in places if place[0] in nodes]
            if places:
                node_id, inside = self._random.choice(places)
                if kind == "node":
                    nodes[node_id].kill()
                    self._cluster.remove_node(nodes[node_id])
                    self._cluster.add_node(num_cpus=1)
                    return
                for pid in nodes[node_id].list_pids():
                    if is_called(pid, inside):
                        os.kill(pid, signal.SIGTERM if kind == "term" else signal.SIGKILL)
                        return
            time.sleep(0.1)

    def _list_attempts(self) -> set[str]:
        return {path.name.split("-")[1] for path in self._log.glob("rows-*")}

    def _wait_for_new_group(self, began: float) -> None:
        while max(self._list_attempts()) == max(self._attempts):
            assert time.monotonic() < began + 300, "the group is not started again"
            time.sleep(0.05)
        self._wait_for_commits(1)


def is_called(pid: int, inside: int) -> bool:
    """Tell whether a process has this number on its own machine."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("NSpid:") and int(line.split()[-1]) == inside for line in lines)


def list_rows(log: Path) -> list[int]:
    """Return the rows that count: of each group those up to the commit that the next one began from."""
    groups: dict[tuple[int, int], list[Path]] = {}
    for path in log.glob("rows-*"):
        _, attempt, first, _ = path.name.split("-")
        groups.setdefault((int(attempt), int(first)), []).append(path)
    order = sorted(groups)
    ends = [first for _, first in order[1:]] + [sys.maxsize]
    counted: list[int] = []
    for key, end in zip(order, ends, strict=True):
        for path in groups[key]:
            for line in path.read_text().splitlines():
                step, rows = json.loads(line)
                counted += rows if step <= end else []
    return counted


@pytest.mark.parametrize("num_workers", [3, (1, 3)], ids=["fixed", "elastic"])
def test_every_row_counts_once_an_epoch(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], num_workers: Any
) -> None:
    log = tmp_path / "log"
    log.mkdir()
    disasters = Disasters(cluster, log, SEED)
    result = train.DataParallelTrainer(
        read_rows,
        train_loop_config={"log": str(log)},
        scaling_config=train.ScalingConfig(
            num_workers=num_workers, placement_strategy="SPREAD", elastic_resize_monitor_interval_s=2.0
        ),
        run_config=train.RunConfig(
            storage_path=tmp_path / "runs",
            failure_config=train.FailureConfig(max_failures=-1, max_preemption_failures=-1),
            callbacks=[disasters],
        ),
        datasets={"train": data.range(ROWS, override_num_blocks=6).random_shuffle(seed=SEED)},
    ).fit()
    disasters.join()
    assert disasters.fired == {"term": EACH, "kill": EACH // 2, "node": EACH - EACH // 2}
    counts = Counter(list_rows(log))
    assert set(counts) <= set(range(ROWS))
    assert sum(counts.values()) > ROWS, "too short to have an epoch's end"
    assert max(counts.values()) - min(counts[row] for row in range(ROWS)) <= 1  # the last epoch is not whole
    with capsys.disabled():
        for kind, seconds in sorted(disasters.seconds.items()):
            print(
                f"\n{num_workers} {kind}: median {statistics.median(seconds):.1f} s, most {max(seconds):.1f} s, of "
                f"{len(seconds)}",
                end="",
            )
        print(f"; {(result.metrics or {})['step']} steps, {sum(counts.values()) / ROWS:.1f} epochs")


def test_a_group_waits_while_ray_waits_for_a_machine_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With Ray's own settings it reserves nothing for over two minutes after it has asked a machine that has lost
    its power."""
    if not machines.can_have_machines():
        pytest.skip("machines of their own need root and iproute2")
    monkeypatch.setattr(worker_group, "START_SECONDS", 5.0)
    slow = {"grpc_client_keepalive_time_ms": 300_000, "grpc_client_keepalive_timeout_ms": 120_000}
    nodes = [{"num_cpus": 2}, {"num_cpus": 1}]
    with (
        caplog.at_level(logging.WARNING, "hocket.train"),
        testing_cluster.Cluster(nodes=nodes, apart=True, system_config=slow) as opened,
        hocket.init(address=opened.address),
    ):
        opened.nodes[1].kill()
        result = train.DataParallelTrainer(
            lambda: "done",
            scaling_config=train.ScalingConfig(num_workers=(1, 3), placement_strategy="SPREAD"),
            run_config=train.RunConfig(storage_path=tmp_path),
        ).fit()
    assert result.return_value == "done"
    (warning,) = [record.getMessage() for record in caplog.records if "a node was lost" in record.getMessage()]
    assert warning.startswith("num_workers=1 with {CPU: 1} each need {CPU: 1} together, and were not reserved")
