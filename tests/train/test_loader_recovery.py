"""Runs that are killed in the middle of an epoch read on where the last commit was; evaluations that ranks share
give one process's number."""

from __future__ import annotations

import contextlib
import fractions
import itertools
import json
import math
import os
import random
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import data

from hocket import train
from hocket.data import Ledger
from hocket.train import torch as hocket_torch
from hocket.train.checkpoints import storage

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("session")]

ROWS, EPOCHS = 43, 3


def fit(function: Callable[..., Any], path: Path, num_workers: int, config: Any, **run: Any) -> train.Result:
    return hocket_torch.TorchTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=num_workers, resources_per_worker={"CPU": 0.4}),
        run_config=train.RunConfig(name="run", storage_path=path, **run),
    ).fit()


def read_data(config: dict[str, Any]) -> None:
    """Write down the rows of each step, and commit some; rank 1, or the only one, fails in the first attempt."""
    context = train.get_context()
    rank, alone = context.get_world_rank(), context.get_world_size() == 1
    loader = hocket_torch.prepare_data_loader(
        data.DataLoader(
            range(ROWS),  # type: ignore[arg-type]  # any sequence will do
            batch_size=2,
            shuffle=True,
            num_workers=config["num_workers"],
        )
    )
    start = train.get_checkpoint()
    total = json.loads(Path(start.path, "total").read_text()) if start else 0
    with Path(config["log"], f"{'second' if start else 'first'}-{rank}").open("w") as log:
        for epoch in range(loader.epoch, EPOCHS):
            for batch in loader:
                total += 1
                print(json.dumps([epoch, total, batch[loader.weights == 1].tolist()]), file=log, flush=True)
                if total % config["every"] == 0:
                    save(total)
                if total == config["fail_at"] and start is None and (alone or rank == 1):
                    config["fail"]()
        assert loader.epoch == EPOCHS
    train.report({"total": total})


def save(total: int) -> None:
    """Report in all ranks, so that none goes on before the commit."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "total").write_text(json.dumps(total))
        train.report({"total": total}, train.Checkpoint(folder))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def give_up() -> None:
    raise RuntimeError("enough for today")


def read_log(path: Path, attempt: str, world_size: int, most: int | None = None) -> list[tuple[int, int]]:
    """Return epoch and row, in the order of global batches and ranks, of the steps that all ranks took."""
    ranks = [
        [json.loads(line) for line in (path / f"{attempt}-{rank}").read_text().splitlines()]
        for rank in range(world_size)
    ]
    found: list[tuple[int, int]] = []
    for step in zip(*ranks, strict=False):
        if most is None or step[0][1] <= most:
            found += [(epoch, row) for epoch, _, rows in step for row in rows]
    return found


def read_undisturbed() -> list[tuple[int, int]]:
    """Row by row, from a ledger of one rank."""
    ledger = Ledger(ROWS, batch_size=1)
    found: list[tuple[int, int]] = []
    for epoch in range(EPOCHS):
        ledger.set_epoch(epoch)
        found += [(epoch, int(part.indices[0])) for part in ledger.slices(0, 1)]
    return found


@pytest.mark.parametrize(
    ("every", "fail_at", "num_workers", "position"),
    [(4, 15, 0, (1, 4, False)), (11, 24, 2, (2, 0, True))],  # an epoch has 11 steps of 4 rows
    ids=["in-the-middle", "at-the-end-of-an-epoch"],
)
def test_a_killed_rank_costs_no_row(
    tmp_path: Path, every: int, fail_at: int, num_workers: int, position: tuple[int, int, bool]
) -> None:
    config = {"log": str(tmp_path), "num_workers": num_workers, "every": every, "fail_at": fail_at, "fail": die}
    result = fit(read_data, tmp_path, 2, config, failure_config=train.FailureConfig(max_failures=1))
    assert result.metrics == {"total": 33}
    commits, _ = divmod(fail_at, every)
    assert read_log(tmp_path, "first", 2, commits * every) + read_log(tmp_path, "second", 2) == read_undisturbed()
    manifest = storage.get_optional_manifest(Path(result.path, f"checkpoint_{commits - 1:06d}"))
    assert manifest is not None
    state = manifest["positions"]["#0"]
    assert (state["epoch"], state["position"], state["ending"]) == position


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (0, 2), (2, 0)])
def test_another_number_of_ranks_reads_on(tmp_path: Path, before: int, after: int) -> None:
    config = {"log": str(tmp_path), "num_workers": 0, "every": 4, "fail_at": 10, "fail": give_up}
    with pytest.raises((train.WorkerGroupError, RuntimeError), match="enough for today"):
        fit(read_data, tmp_path, before, config)
    fit(read_data, tmp_path, after, config)
    found = read_log(tmp_path, "first", max(before, 1), 8) + read_log(tmp_path, "second", max(after, 1))
    assert found == read_undisturbed()


def read_until_killed(config: dict[str, Any]) -> None:
    """Write down the rows of each step in a file of this rank and attempt; one rank is killed at one of them."""
    context = train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    loader = hocket_torch.prepare_data_loader(data.DataLoader(range(ROWS), batch_size=1, shuffle=True))  # type: ignore[arg-type]
    start = train.get_checkpoint()
    first = total = json.loads(Path(start.path, "total").read_text()) if start else 0
    with Path(config["log"], f"{config['attempt']}-{rank}").open("w") as log:
        print(json.dumps([first, world_size]), file=log, flush=True)
        for epoch in range(loader.epoch, EPOCHS):
            for batch in loader:
                total += 1
                print(json.dumps([epoch, total, batch[loader.weights == 1].tolist()]), file=log, flush=True)
                if total == first + config["steps"] and rank == config["rank"]:
                    die()
                if total % 2 == 0:
                    save(total)


@pytest.mark.long
@pytest.mark.timeout(900)  # on Ray fifty groups of processes start in four to five seconds each
def test_fifty_kills_cost_no_row(tmp_path: Path) -> None:
    """Each time another rank, another step, and then another number of ranks."""
    dice = random.Random(5)
    sizes = [dice.randint(1, 3) for _ in range(51)]
    for attempt, size in enumerate(sizes):
        is_last = attempt == len(sizes) - 1
        config = {
            "log": str(tmp_path),
            "attempt": attempt,
            "rank": -1 if is_last else dice.randrange(size),
            "steps": dice.randint(1, 4),
        }
        with contextlib.nullcontext() if is_last else pytest.raises(train.WorkerGroupError, match="died: its process"):
            fit(read_until_killed, tmp_path, size, config)
    found: list[tuple[int, int]] = []
    most: float = math.inf
    for attempt, size in reversed(list(enumerate(sizes))):
        files = [tmp_path / f"{attempt}-{rank}" for rank in range(size)]
        logs = [
            file.read_text().splitlines() for file in files if file.exists()
        ]  # one may have been stopped before it began
        first, world_size = json.loads(logs[0][0])
        assert world_size == size
        steps = [[json.loads(line) for line in log[1:]] for log in logs] + [[]] * (size - len(logs))
        kept = [step for step in zip(*steps, strict=False) if step[0][1] <= most]
        found = [(epoch, row) for step in kept for epoch, _, rows in step for row in rows] + found
        most = first
    assert found == read_undisturbed()


def evaluate(config: dict[str, Any]) -> None:
    """Report the mean over the first rows, for each number of rows."""
    values = torch.tensor(config["values"], dtype=torch.float64)
    means = []
    for rows in range(1, len(values) + 1):
        dataset = data.TensorDataset(values[:rows])
        loader = hocket_torch.prepare_data_loader(data.DataLoader(dataset, batch_size=3), resume=False)
        mean = hocket_torch.GlobalMean()
        for (batch,) in loader:
            mean.add(batch * 3, loader.weights)
        means.append(mean.compute())
    train.report({"means": means})


@pytest.mark.parametrize("num_workers", [0, 2, 3, 5])
def test_an_evaluation_does_not_show_how_many_ranks_shared_it(tmp_path: Path, num_workers: int) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(60, generator=generator, dtype=torch.float64).mul(10).exp().tolist()
    metrics = fit(evaluate, tmp_path, num_workers, {"values": values}).metrics
    assert metrics is not None
    tripled = [value * 3 for value in values]
    sums = itertools.accumulate(map(fractions.Fraction, tripled))  # without rounding
    assert metrics["means"] == [float(total / rows) for rows, total in enumerate(sums, 1)]
