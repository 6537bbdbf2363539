"""Training with several ranks in this process: as in processes of their own, to the last bit, under one debugger."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils import data

import hocket
from hocket import exceptions, train
from hocket.train import collective, world
from hocket.train import torch as hocket_torch

pytestmark = pytest.mark.timeout(120)


def fit(function: Any, tmp_path: Path, num_workers: int, config: dict[str, Any] | None = None, **options: Any) -> Any:
    return hocket_torch.TorchTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=num_workers, resources_per_worker={"CPU": 0.25}),
        run_config=train.RunConfig(storage_path=str(tmp_path)),
        **options,
    ).fit()


def learn(config: dict[str, Any]) -> list[bytes]:
    """Dropout and a shuffled loader draw random numbers at each step, some in each rank."""
    torch.set_num_threads(1)  # sums of several threads have other last bits
    hocket_torch.enable_reproducibility(3)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1))
    model = hocket_torch.prepare_model(layers, parallel_strategy="fsdp" if config["shards"] else "ddp")
    optimizer = hocket_torch.prepare_optimizer(torch.optim.Adam(model.parameters(), lr=0.01))
    rows = torch.arange(800.0).reshape(100, 8) / 800
    loader = hocket_torch.prepare_data_loader(
        data.DataLoader(data.TensorDataset(rows, rows.sum(1, keepdim=True)), batch_size=5, shuffle=True)
    )
    loss = torch.zeros(())
    for _ in range(2):
        for batch, wanted in loader:
            loss = (model(batch) - wanted).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            if train.get_context().get_world_rank() == 0:
                Path(folder, "step").write_text(str(loss.item()))
            train.report({"loss": loss.item()}, train.Checkpoint(folder))
    hocket_torch.synchronize()
    state = {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value
        for name, value in model.state_dict().items()
    }
    return [value.numpy().tobytes() for value in state.values()]


@pytest.mark.parametrize("size", [2, 4])
def test_weights_are_those_of_processes(tmp_path: Path, size: int) -> None:
    for config, options in (
        ({"shards": False}, {}),
        ({"shards": True}, {}),
        ({"shards": False}, {"strategy": hocket_torch.LocalSGD(3, outer=hocket_torch.Nesterov())}),
    ):
        learned = []
        for engine in ("local", "inprocess"):
            with hocket.init(engine=engine, num_cpus=2):
                result = fit(learn, tmp_path, size, config, **options)
            assert len(result.metrics_dataframe) == 2
            assert Path(result.checkpoint.path, "step").read_text() == str(result.metrics["loss"])
            learned.append((result.return_value, result.metrics["loss"]))
        assert learned[0] == learned[1]


def use_everything() -> dict[str, Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    found: dict[str, Any] = {"environment": (os.environ["RANK"], os.environ["WORLD_SIZE"])}
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    found["objects"] = objects
    whole = torch.full((700_000,), float(rank))  # more than fits into one turn
    dist.all_reduce(whole)
    found["whole"] = whole.unique().tolist()
    ring = torch.zeros(100_000)  # more than fits into a box
    sent = dist.isend(torch.full((100_000,), float(rank)), (rank + 1) % size)
    dist.recv(ring, (rank - 1) % size)
    assert sent is not None
    sent.wait()
    found["ring"] = ring.unique().tolist()
    pairs = dist.new_group([0, 1])
    found["pair"] = dist.get_rank(pairs)
    parts = [torch.tensor([float(rank * 10 + other)]) for other in range(size)]
    taken = [torch.zeros(1) for _ in range(size)]
    dist.all_to_all(taken, parts)
    found["parts"] = torch.cat(taken).tolist()
    dist.barrier()
    collective.barrier()
    found["seed"] = collective.broadcast_from_rank_zero({"seed": rank})
    return found


def test_collectives_and_meetings(tmp_path: Path, any_session: hocket.SessionContext) -> None:
    found = fit(use_everything, tmp_path, 3).return_value
    assert found == {
        "environment": ("0", "3"),
        "objects": [{"rank": 0}, {"rank": 1}, {"rank": 2}],
        "whole": [3.0],
        "ring": [2.0],
        "pair": 0,
        "parts": [0.0, 10.0, 20.0],
        "seed": {"seed": 0},
    }
    assert "RANK" not in os.environ


def average_arrays() -> list[float]:
    values = np.full(3, world.get_world("test").rank + 1.0)
    world.get_world("test").all_reduce(values)
    return list(values.tolist())


@pytest.fixture
def inprocess() -> Any:
    with hocket.init(engine="inprocess", num_cpus=2) as context:
        yield context


def test_ranks_without_a_framework(tmp_path: Path, inprocess: Any) -> None:
    trainer = train.DataParallelTrainer(
        average_arrays,
        backend_config=world.WorldConfig(),
        scaling_config=train.ScalingConfig(num_workers=3),
        run_config=train.RunConfig(storage_path=str(tmp_path)),
    )
    assert trainer.fit().return_value == [6.0, 6.0, 6.0]


def tell_rank() -> int:
    return dist.get_rank()


def reduce_alone() -> None:
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(2))


def report_more() -> None:
    train.report({})
    if dist.get_rank() == 1:
        train.report({})


def raise_in_one() -> None:
    if dist.get_rank() == 1:
        raise KeyError("on purpose")
    dist.barrier()


def save_alone() -> None:
    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory() as folder:
            train.report({}, train.Checkpoint(folder))
    else:
        dist.barrier()


@pytest.mark.parametrize(
    ("function", "error", "match"),
    [
        (
            reduce_alone,
            exceptions.DeadlockError,
            r"rank 0 has returned, rank 1 waits in all_reduce\(8 bytes of f32, sum",
        ),
        (report_more, train.TrainingFailedError, "rank 0 ended after 1 reports and rank 1 made 2"),
        (raise_in_one, KeyError, "on purpose"),
        (save_alone, exceptions.DeadlockError, r"rank 0 waits in report\(\) for the others' reports, rank 1 waits in"),
    ],
)
def test_what_does_not_fit_together_is_told_at_once(
    tmp_path: Path, inprocess: Any, function: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        fit(function, tmp_path, 2)
    assert not dist.is_initialized()
    assert fit(tell_rank, tmp_path, 2).return_value == 0  # and the next one runs


def test_backends_that_wait_on_their_own_are_refused(tmp_path: Path, inprocess: Any) -> None:
    with pytest.raises(ValueError, match=r"TorchConfig\(backend='gloo'\) needs ranks that are processes"):
        fit(tell_rank, tmp_path, 2, torch_config=hocket_torch.TorchConfig(backend="gloo"))


def test_not_inside_a_task(tmp_path: Path, inprocess: Any) -> None:
    task = hocket.remote(fit)
    with pytest.raises(ValueError, match="a task cannot train with num_workers=2"):
        hocket.get(task.remote(raise_in_one, tmp_path, 2))
