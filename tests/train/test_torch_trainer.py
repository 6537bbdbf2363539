"""Training with PyTorch: the ranks compute what one process would."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.utils import data

from hocket import train
from hocket.data import Ledger
from hocket.train import torch as hocket_torch
from tests.conftest import ENGINE

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("session")]

SAMPLE_COUNT = 24


def fit(function: Any, path: Path, num_workers: int = 2, config: Any = None, **given: Any) -> train.Result:
    return hocket_torch.TorchTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(storage_path=path),
        **given,
    ).fit()


def build_data() -> data.TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLE_COUNT, 3, generator=generator, dtype=torch.float64)
    return data.TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))


def take_steps(config: dict[str, Any]) -> None:
    """Take steps on a linear model, in the order of the data; report the weights of all ranks."""
    context = train.get_context()
    torch.manual_seed(context.get_world_rank())  # DDP must make the ranks equal
    model = hocket_torch.prepare_model(torch.nn.Linear(3, 1, dtype=torch.float64))
    if context.get_world_size() == 1:
        assert isinstance(model, torch.nn.Linear)
    loader = hocket_torch.prepare_data_loader(data.DataLoader(build_data(), batch_size=config["batch_size"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    train.report({"weights": weights.tolist()})


class Collect(train.UserCallback):
    def __init__(self) -> None:
        self.metrics: list[list[dict[str, Any]]] = []

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        self.metrics.append(metrics)


def test_two_ranks_learn_what_one_does_with_batches_of_twice_the_size(tmp_path: Path) -> None:
    collect = Collect()
    hocket_torch.TorchTrainer(
        take_steps,
        train_loop_config={"batch_size": 4},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=tmp_path, callbacks=[collect]),
    ).fit()
    first, second = (metrics["weights"] for metrics in collect.metrics[0])
    assert first == second
    alone = fit(take_steps, tmp_path, 0, {"batch_size": 8}).metrics
    assert alone is not None
    assert first == pytest.approx(alone["weights"], rel=1e-12)


def learn_a_table(config: dict[str, Any]) -> Any:
    """Steps on an embedding whose gradients are sparse, each rank with its part of the rows."""
    rank, size = train.get_context().get_world_rank(), train.get_context().get_world_size()
    torch.manual_seed(3)
    table = (
        torch.nn.Embedding(20, 4, sparse=True)
        if config["kind"] == "Embedding"
        else torch.nn.EmbeddingBag(20, 4, mode="sum", sparse=True)
    )
    model: Any = hocket_torch.prepare_model(torch.nn.Sequential(table, torch.nn.Linear(4, 1)).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        ids = torch.randint(0, 20, (12, 3), generator=generator).chunk(size)[rank]
        goal = torch.rand(12, 1, generator=generator, dtype=torch.float64).chunk(size)[rank]
        found = model(ids)
        optimizer.zero_grad()
        ((found.mean(1) if found.dim() == 3 else found) - goal).square().mean().backward()
        optimizer.step()
    return (model.module if size > 1 else model).state_dict()


@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
def test_sparse_gradients_are_added_up(tmp_path: Path, kind: str) -> None:
    alone, shared = (fit(learn_a_table, tmp_path, size, {"kind": kind}).return_value for size in (1, 2))
    for name, value in alone.items():
        torch.testing.assert_close(shared[name], value, rtol=0, atol=1e-12)


def look_at_group(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (rank, 2, config["backend"])
    assert (os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"]) == (str(rank), str(rank), "2")
    assert hocket_torch.get_device() == torch.device("cpu")
    assert hocket_torch.get_devices() == [torch.device("cpu")]
    assert torch.get_num_threads() == 1
    hocket_torch.prepare_model(torch.nn.Linear(1, 1))
    mine = [found for found in psutil.Process().net_connections("inet") if found.status == psutil.CONN_LISTEN]
    train.report({"listens_on": [found.laddr.ip for found in mine]})


@pytest.mark.parametrize("backend", [None, "gloo"])
def test_ranks_are_joined_over_loopback_at_most(tmp_path: Path, backend: str | None) -> None:
    given: Any = {"torch_config": hocket_torch.TorchConfig(backend=backend)}
    metrics = fit(look_at_group, tmp_path, config={"backend": backend or "hocket"}, **given).metrics
    assert metrics is not None
    assert bool(metrics["listens_on"]) is (backend == "gloo" or ENGINE == "ray")  # Ray's workers listen
    assert set(metrics["listens_on"]) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


def list_samples(config: dict[str, Any]) -> None:
    loader = data.DataLoader(data.TensorDataset(torch.arange(20)), batch_size=4, shuffle=config["shuffle"])
    prepared = hocket_torch.prepare_data_loader(loader)
    assert isinstance(prepared, data.DataLoader)
    for epoch in (0, 1, 5):
        if epoch == 5:
            prepared.sampler.set_epoch(5)  # type: ignore[attr-defined]  # as with a DistributedSampler
        samples = [number for (batch,) in prepared for number in batch.tolist()]
        train.report({"samples": samples})


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_sample_goes_to_one_rank_in_an_order_of_the_epoch(tmp_path: Path, shuffle: bool) -> None:
    collect = Collect()
    hocket_torch.TorchTrainer(
        list_samples,
        train_loop_config={"shuffle": shuffle},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=tmp_path, callbacks=[collect]),
    ).fit()
    epochs = [[metrics["samples"] for metrics in row] for row in collect.metrics]
    for first, second in epochs:
        assert sorted(first + second) == list(range(20))
    if shuffle:
        assert epochs[0] != epochs[1]
    else:
        assert epochs[0] == epochs[1]
    ledger = Ledger(20, batch_size=8, shuffle=shuffle)
    ledger.set_epoch(5)
    expected = [[row for part in ledger.slices(rank, 2) for row in part.indices.tolist()] for rank in range(2)]
    assert epochs[2] == expected


def die_in_all_reduce(config: dict[str, Any]) -> None:
    values = torch.ones(10)
    for step in range(1000):
        if step == 5 and train.get_context().get_world_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(values)


def test_the_rank_that_died_is_named_and_not_the_one_that_noticed(tmp_path: Path) -> None:
    with pytest.raises(train.WorkerGroupError, match=r"^Rank 1 of 2 died: its process") as caught:
        fit(die_in_all_reduce, tmp_path, config={})
    assert next(iter(caught.value.worker_failures)) == 1


def report_a_tensor(config: dict[str, Any]) -> None:
    train.report({"step": 1, "deep": {"loss": torch.tensor(1.0)}})


def test_tensors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"metrics\['deep'\]\['loss'\] must be a plain value.*Pass its \.item\(\)"):
        fit(report_a_tensor, tmp_path, 0)


def prepare_badly(config: dict[str, Any]) -> None:
    hocket_torch.prepare_model(torch.nn.Linear(1, 1), parallel_strategy="zero")


def test_unknown_strategies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be one of \['ddp', 'fsdp', None\], but received 'zero'\. Leave it out"):
        fit(prepare_badly, tmp_path, 0)


def own_batch_sampler(config: dict[str, Any]) -> None:
    class Pairs(data.BatchSampler):
        pass

    dataset = build_data()
    loader = data.DataLoader(dataset, batch_sampler=Pairs(data.SequentialSampler(dataset), 2, drop_last=False))
    if config["split"]:
        hocket_torch.prepare_data_loader(loader)
    prepared = hocket_torch.prepare_data_loader(loader, add_dist_sampler=False)
    train.report({"batches": len(list(prepared))})


def test_batch_samplers_are_kept_or_refused(tmp_path: Path) -> None:
    metrics = fit(own_batch_sampler, tmp_path, config={"split": False}).metrics
    assert metrics == {"batches": SAMPLE_COUNT // 2}
    with pytest.raises(train.WorkerGroupError, match=r"has its own batch_sampler, .* pass add_dist_sampler=False"):
        fit(own_batch_sampler, tmp_path, config={"split": True})


def train_apart(config: dict[str, Any]) -> None:
    """Take steps with or without the other ranks; what this writes to stderr goes into a file."""
    with config["stderr"].open("ab") as file:
        os.dup2(file.fileno(), 2)
    model: torch.nn.Module = torch.nn.Linear(3, 2)
    if config["joins"] == "prepared":
        model = hocket_torch.prepare_model(model)
    if config["joins"] == "wrapped":
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if config["joins"] == "optimizer alone":
        optimizer = hocket_torch.prepare_optimizer(optimizer)
    loader = hocket_torch.prepare_data_loader(
        data.DataLoader(data.TensorDataset(torch.ones(SAMPLE_COUNT, 3)), batch_size=4)
    )
    mean = torch.zeros(1)
    for (batch,) in loader:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        for parameter in model.parameters() if config["joins"] == "by hand" else ():
            dist.all_reduce(parameter.grad)
        if config["joins"] != "evaluates":
            optimizer.step()
        mean += loss.item() / len(loader)
    dist.all_reduce(mean)
    train.report({"loss": mean.item()})


def test_ranks_that_train_apart_are_told(tmp_path: Path) -> None:
    told = {}
    for joins in ("forgotten", "prepared", "optimizer alone", "wrapped", "by hand", "evaluates"):
        stderr = tmp_path / f"{joins}.txt"
        fit(train_apart, tmp_path / joins, config={"joins": joins, "stderr": stderr})
        told[joins] = stderr.read_text().count("each has trained a model of its own. Write model = ")
    assert told == {"forgotten": 1, "prepared": 0, "optimizer alone": 1, "wrapped": 0, "by hand": 0, "evaluates": 0}


def test_bad_values_are_refused() -> None:
    with pytest.raises(ValueError, match=r"timeout_s must be more than 0 seconds, but received 0\."):
        hocket_torch.TorchConfig(timeout_s=0)
    with pytest.raises(ValueError, match=r"seed must lie between 0 and .*received -1\."):
        hocket_torch.enable_reproducibility(-1)


def test_an_unknown_backend_fails_the_start(tmp_path: Path) -> None:
    with pytest.raises(train.WorkerGroupError, match=r"Rank \d of 2 raised .*smoke"):
        fit(look_at_group, tmp_path, torch_config=hocket_torch.TorchConfig(backend="smoke"))


def test_the_compiler_is_loaded_for_every_function_wherever_it_names_an_optimizer() -> None:
    assert "torch._dynamo" in hocket_torch.TorchConfig().list_modules(lambda: None)
