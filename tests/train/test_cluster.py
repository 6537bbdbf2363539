"""Training on a Ray cluster of three nodes, two of which do not see the driver's folder for runs."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist

import hocket
from hocket import train
from hocket.testing import machines
from hocket.train import torch as hocket_torch
from hocket.train.checkpoints import cache, storage

testing_cluster: Any = pytest.importorskip("hocket.testing.cluster", reason="needs Ray: pip install 'hocket[ray]'")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    # Ray leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NUM_RANKS = 6
NODE_CPUS = 3
"""So that six ranks also fit on two nodes."""

FAR_SECONDS = 600
"""What a rank waits for that nobody waits for."""


@pytest.fixture(scope="module", autouse=True)
def _send_this_module() -> Iterator[None]:
    """The nodes cannot import the tests."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def cluster(runs: Path) -> Iterator[Any]:
    if not machines.can_have_machines():
        pytest.skip("nodes on machines of their own need root and iproute2")
    apart = {"num_cpus": NODE_CPUS, "private_paths": [str(runs)]}
    with (
        testing_cluster.Cluster(nodes=[{"num_cpus": NODE_CPUS}, apart, apart], apart=True) as opened,
        hocket.init(address=opened.address),
    ):
        yield opened


def fit(function: Any, runs: Path, config: dict[str, Any], **run: Any) -> train.Result:
    return train.DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=NUM_RANKS, placement_strategy="SPREAD"),
        run_config=train.RunConfig(storage_path=runs, **run),
    ).fit()


def save(content: bytes, name: str, metrics: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, name).write_bytes(content)
        train.report(metrics, train.Checkpoint.from_directory(folder))


class Collect(train.UserCallback):
    def __init__(self) -> None:
        self.rows: list[list[dict[str, Any]]] = []
        self.failures: list[dict[int, Exception]] = []

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        self.rows.append(metrics)

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        self.failures.append(worker_exceptions)


def list_copies() -> set[Path]:
    """Return the folders with copies of checkpoints, of all runs on this machine."""
    return set(Path(tempfile.gettempdir()).glob(f"{cache.FOLDER_PREFIX}*"))


def save_and_tell(config: dict[str, Any]) -> None:
    context = train.get_context()
    rank = context.get_world_rank()
    content = bytes([rank]) * config["size"]
    save(content, f"part-{rank}", {})
    committed = train.get_checkpoint()
    assert committed is not None
    other = (rank + 1) % context.get_world_size()  # for some ranks one of another node
    assert Path(committed.path, f"part-{other}").read_bytes() == bytes([other]) * config["size"]
    train.report(
        {
            "node": hocket.get_runtime_context().get_node_id(),
            "place": (context.get_node_rank(), context.get_local_rank(), context.get_local_world_size()),
            "sees": [path.name for path in Path(config["runs"]).iterdir()],
            "path": committed.path,
        }
    )


def test_ranks_are_spread_and_their_checkpoints_reach_the_driver(cluster: Any, runs: Path) -> None:
    collect = Collect()
    size = 9 << 20
    before = list_copies()
    result = fit(save_and_tell, runs, {"size": size, "runs": str(runs)}, name="spread", callbacks=[collect])
    row = collect.rows[1]
    assert len({metrics["node"] for metrics in row}) == 3
    assert [metrics["place"] for metrics in row] == [[node, local, 2] for node in range(3) for local in range(2)]
    head = cluster.nodes[0].node_id
    for metrics in row:
        assert metrics["sees"] == (["spread"] if metrics["node"] == head else [])
        assert (metrics["path"] == f"{runs}/spread/checkpoint_000000") == (metrics["node"] == head)
    assert result.checkpoint is not None
    for rank in range(NUM_RANKS):
        assert Path(result.checkpoint.path, f"part-{rank}").read_bytes() == bytes([rank]) * size
    manifest = storage.get_optional_manifest(Path(result.checkpoint.path))
    assert manifest is not None
    assert storage.find_damage(Path(result.checkpoint.path), manifest) is None
    deadline = time.monotonic() + 60  # a group's end goes on without a removal for which Ray starts no worker soon
    while list_copies() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list_copies() - before == set()


def step_and_lose_a_node(config: dict[str, Any]) -> int:
    """At step 2 of the first attempt a node dies that is not the head, which the driver needs."""
    context = train.get_context()
    rank = context.get_world_rank()
    may_die = context.get_local_rank() == 0 and hocket.get_runtime_context().get_node_id() != config["head"]
    start = train.get_checkpoint()
    first = int(Path(start.path, "step").read_text()) + 1 if start else 0
    for step in range(first, 4):
        if step == 2 and first == 0 and may_die:
            testing_cluster.reach("step 2")
            threading.Event().wait(FAR_SECONDS)
        save(str(step).encode(), "step" if rank == 0 else f"other-{rank}", {"step": step, "first": first})
    return first


def count_and_be_told(config: dict[str, Any]) -> str:
    """Steps that need all ranks; rank 1 gets SIGTERM in the middle, once."""
    rank = train.get_context().get_world_rank()
    start = train.get_checkpoint()
    first = 0
    if start is not None:
        with start.as_directory() as folder:
            first = int(Path(folder, "step").read_text())
    for step in range(first, 30):
        dist.all_reduce(torch.ones(4))
        if rank == 1 and step == 10 and start is None:
            os.kill(os.getpid(), signal.SIGTERM)
        if rank == 0 and step % 3 == 2:
            save(str(step + 1).encode(), "step", {"step": step})
        else:
            train.report({"step": step})
    return "done"


def test_sigterm_ends_a_rank_at_once_and_training_goes_on(cluster: Any, runs: Path) -> None:
    """Ray's own handler would have the process wait for the end of its training function, and everybody for the
    process."""
    result = hocket_torch.TorchTrainer(
        count_and_be_told,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=runs, failure_config=train.FailureConfig(max_failures=1)),
    ).fit()
    assert result.return_value == "done"
    assert [metrics["step"] for metrics in result.metrics_history] == list(range(30))


def test_a_node_that_dies_is_named(cluster: Any, runs: Path) -> None:
    with cluster.fail_at("step 2") as fault:
        with pytest.raises(train.WorkerGroupError, match=r"^Rank \d of 6 \(node \w+.*died") as caught:
            fit(step_and_lose_a_node, runs, {"head": cluster.nodes[0].node_id}, name="lost")
        assert fault.fired == 1
    dead = {node["NodeID"] for node in hocket.nodes() if not node["Alive"]}
    assert any(re.search(rf"\(node {node_id} at 10\.[\d.]+, which is dead\)", str(caught.value)) for node_id in dead)
    assert sorted(path.name for path in (runs / "lost").glob("checkpoint_*")) == [
        "checkpoint_000000",
        "checkpoint_000001",
    ]


def test_training_goes_on_from_the_last_commit_on_what_is_left(cluster: Any, runs: Path) -> None:
    cluster.add_node(num_cpus=NODE_CPUS, private_paths=[str(runs)])
    collect = Collect()
    with cluster.fail_at("step 2") as fault:
        result = fit(
            step_and_lose_a_node,
            runs,
            {"head": cluster.nodes[0].node_id},
            name="kept",
            failure_config=train.FailureConfig(max_failures=1),
            callbacks=[collect],
        )
        assert fault.fired == 1
    assert [(row["step"], row["first"]) for row in result.metrics_history] == [(0, 0), (1, 0), (2, 2), (3, 2)]
    assert result.return_value == 2
    assert len(collect.failures) == 1


def reduce_and_lose_a_node(config: dict[str, Any]) -> None:
    context = train.get_context()
    may_die = context.get_local_rank() == 0 and hocket.get_runtime_context().get_node_id() != config["head"]
    values = torch.ones(10)
    for step in range(1000):
        if step == 5 and may_die:
            testing_cluster.reach("step 5")
        dist.all_reduce(values)


def test_the_node_is_named_and_not_the_rank_that_noticed(cluster: Any, runs: Path) -> None:
    cluster.add_node(num_cpus=NODE_CPUS, private_paths=[str(runs)])
    trainer = hocket_torch.TorchTrainer(
        reduce_and_lose_a_node,
        train_loop_config={"head": cluster.nodes[0].node_id},
        scaling_config=train.ScalingConfig(num_workers=NUM_RANKS, placement_strategy="SPREAD"),
        run_config=train.RunConfig(storage_path=runs, name="reduce"),
    )
    living = {node["NodeID"] for node in hocket.nodes() if node["Alive"]}
    with cluster.fail_at("step 5") as fault:
        with pytest.raises(train.WorkerGroupError) as caught:
            trainer.fit()
        assert fault.fired == 1
    cluster.wait_for_nodes(len(living) - 1)
    (lost,) = living - {node["NodeID"] for node in hocket.nodes() if node["Alive"]}
    assert str(caught.value).split("(node ")[1].startswith(lost)


def test_too_little_is_left(cluster: Any, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes are left, and one of them dies: the error is that there is no room, and the death is its cause."""
    monkeypatch.setattr("hocket.train.run.worker_group.START_SECONDS", 5.0)
    with cluster.fail_at("step 2") as fault:
        with pytest.raises(
            hocket.exceptions.HocketError, match=r"num_workers=6 with .* need \{CPU: 6\} together"
        ) as caught:
            fit(
                step_and_lose_a_node,
                runs,
                {"head": cluster.nodes[0].node_id},
                name="short",
                failure_config=train.FailureConfig(max_failures=1),
            )
        assert fault.fired == 1
    assert isinstance(caught.value.__cause__, train.WorkerGroupError)


class BringBack(Collect):
    """Adds a node some time after one was lost, as a cloud does."""

    def __init__(self, add: Callable[[], object]) -> None:
        super().__init__()
        self.timer = threading.Timer(3.0, add)

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        super().after_exception(run_context, worker_exceptions)
        self.timer.start()


def test_a_group_of_fixed_size_waits_for_a_node_that_comes_back(cluster: Any, runs: Path) -> None:
    cluster.add_node(num_cpus=NODE_CPUS, private_paths=[str(runs)])
    callback = BringBack(lambda: cluster.add_node(num_cpus=NODE_CPUS, private_paths=[str(runs)]))
    with cluster.fail_at("step 2") as fault:
        result = fit(
            step_and_lose_a_node,
            runs,
            {"head": cluster.nodes[0].node_id},
            name="waited",
            failure_config=train.FailureConfig(max_failures=1),
            callbacks=[callback],
        )
        assert fault.fired == 1
    callback.timer.join()
    assert [(row["step"], row["first"]) for row in result.metrics_history] == [(0, 0), (1, 0), (2, 2), (3, 2)]
    assert len(callback.failures) == 1
