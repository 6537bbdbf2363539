"""Training on parameter servers: one rank takes the steps of plain training, and what several ranks push counts once
each, whoever is killed."""

from __future__ import annotations

import copy
import functools
import os
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hocket
from hocket import ps, train
from hocket.ps.access import links
from hocket.train import torch as hocket_torch
from hocket.train.frameworks.torch import framework
from hocket.train.strategies import ParameterServer, hosting, parameter_server, ps_client
from hocket.util import state as session_state
from tests.train.on_servers import fit, make_digits
from tests.train.ranks import be_rank

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1),
    "momentum": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": functools.partial(torch.optim.Adam, lr=0.01, weight_decay=0.01),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.01),
    "adagrad": functools.partial(torch.optim.Adagrad, lr=0.1, initial_accumulator_value=0.1),
}


# --- the description --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_servers": 0}, "num_servers must be 1 or more, but received 0"),
        ({"num_servers": True}, "num_servers must be 1 or more, but received True"),
        ({"max_staleness": -1}, "max_staleness must be 0 or more updates, or None for no bound, but received -1"),
        ({"min_table_rows": 0}, "min_table_rows must be 1 or more, but received 0"),
        ({"bad_gradients": "ignore"}, "bad_gradients must be 'raise', 'skip' or 'clip', but received 'ignore'"),
        ({"timeout_s": 0}, "timeout_s must be more than 0 seconds, but received 0"),
    ],
)
def test_bad_settings_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ParameterServer(**given)


# --- exactly once -----------------------------------------------------------------------------------------------------


def open_rank(host: hosting.Host, rank: int = 0, attempt: int = 0, world_size: int = 1) -> Any:
    assert isinstance(host.strategy, parameter_server.OpenParameterServer)
    with be_rank(rank, world_size, attempt=attempt) as _:
        return ps_client.open_client(host.strategy, "a test")


def test_steps_that_are_repeated_count_once_until_something_is_loaded(here: None) -> None:
    host = hosting.open_host(ParameterServer(max_staleness=0), 2)

    def take(client: Any, step: int) -> tuple[bool, float]:
        weight = client.make_variable("w", np.zeros(1, np.float32), ps.SGD(lr=1.0))
        client.enter()
        done = client.push(step, [ps_client.Gradient(weight, np.ones(1, np.float32))]).is_applied
        return done, float(client.read(weight)[0])

    first = open_rank(host)
    assert [take(first, step) for step in (1, 2, 3)] == [(True, -1), (True, -2), (True, -3)]
    first.enter()  # and is killed
    second = open_rank(host, attempt=1)
    assert [take(second, step) for step in (2, 3, 4)] == [(False, -3), (False, -3), (True, -4)]
    assert second.dropped == 2

    weight = second.make_variable("w", np.zeros(1, np.float32), ps.SGD(lr=1.0))
    second.load([(weight, np.array([10.0], np.float32))])
    assert [take(second, step) for step in (2, 3)] == [(True, 9), (True, 8)]
    late = open_rank(host, rank=1, attempt=1)
    late.load([(weight, np.array([10.0], np.float32))])  # another rank has done so, and gone on
    assert take(late, 2) == (True, 7)
    third = open_rank(host, attempt=2)
    assert [take(third, step) for step in (3, 4)] == [(False, 7), (True, 6)]
    third.load([(weight, np.array([0.0], np.float32))])
    assert take(third, 1) == (True, -1)
    assert host.get_statistics()["staleness"] == {0: 9}
    host.close()


# --- PyTorch ----------------------------------------------------------------------------------------------------------


class Recommender(torch.nn.Module):
    """Two tables, one of them sparse and one large, and something dense."""

    def __init__(self, is_sparse: bool = True) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.users = torch.nn.Embedding(30, 4, sparse=is_sparse, padding_idx=3)
        self.items = torch.nn.Embedding(50, 4)
        self.out = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
        self.double()

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(torch.cat([self.users(users).mean(1), self.items(items)], 1))
        return found


def make_batch(step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    users, items = (
        torch.randint(0, 30, (16, 3), generator=generator),
        torch.randint(0, 50, (16,), generator=generator),
    )
    return users, items, torch.randn(16, 1, generator=generator, dtype=torch.float64)


def take_steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range, schedule: Any = None) -> None:
    for step in steps:
        users, items, goal = make_batch(step)
        optimizer.zero_grad()
        (model(users, items) - goal).square().mean().backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_rank_takes_the_steps_of_plain_torch(here: None, tmp_path: Path, name: str) -> None:
    def loop() -> Any:
        model: Any = hocket_torch.prepare_model(Recommender(is_sparse=False))
        optimizer = hocket_torch.prepare_optimizer(OPTIMIZERS[name](model.parameters()))
        take_steps(model, optimizer, range(20), torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5))
        return model.state_dict()

    plain, on_servers = (
        fit(hocket_torch.TorchTrainer, tmp_path, loop, given).return_value
        for given in (None, ParameterServer(num_servers=2))
    )
    for key, value in plain.items():
        torch.testing.assert_close(on_servers[key], value, rtol=0, atol=1e-12)


def test_tables_move_by_rows_and_are_in_checkpoints(here: None, tmp_path: Path) -> None:
    def compute_plainly() -> Any:
        model = Recommender(is_sparse=False)
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)  # which leaves rows alone that have no gradient
        take_steps(model, optimizer, range(5))
        saved = copy.deepcopy(model.state_dict())
        take_steps(model, optimizer, range(5, 10))
        return saved, model.state_dict()

    def loop() -> Any:
        model: Any = hocket_torch.prepare_model(Recommender())
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
        before = model.users.weight.untyped_storage().nbytes()
        assert hocket_torch.prepare_optimizer(optimizer) is optimizer
        after = [module.weight.untyped_storage().nbytes() for module in (model.users, model.items)]
        assert model.users.weight.norm().isnan(), "a norm of rows that are elsewhere is not taken for one"
        take_steps(model, optimizer, range(5))
        saved = copy.deepcopy(model.state_dict())
        take_steps(model, optimizer, range(5, 10))
        at_end = model.state_dict()
        model.eval()
        with torch.no_grad():
            seen = model(*make_batch(0)[:2])
        loaded = model.load_state_dict(saved)
        with torch.no_grad():
            seen_before = model(*make_batch(0)[:2])
        fresh = Recommender()
        fresh.load_state_dict(at_end)
        assert torch.equal(fresh.eval()(*make_batch(0)[:2]), seen)
        fresh.load_state_dict(saved)
        assert torch.equal(fresh(*make_batch(0)[:2]), seen_before)
        take_steps(model.train(), optimizer, range(5, 6))  # counts, though the servers have had a step of this number
        assert not torch.equal(model.state_dict()["items.weight"], saved["items.weight"])
        with pytest.raises(IndexError, match=r"`users.weight` has the ids 0 to 29, but received 99"):
            model.users(torch.tensor([99]))
        with pytest.raises(RuntimeError, match=r"size mismatch for users.weight: the checkpoint has \(2, 4\)"):
            model.load_state_dict({**saved, "users.weight": torch.zeros(2, 4)})
        return before, after, (saved, at_end), list(loaded)

    result = fit(hocket_torch.TorchTrainer, tmp_path, loop, ParameterServer(2, min_table_rows=40))
    before, after, found, keys = result.return_value
    assert (before, after, keys) == (960, [8, 8], [[], []])
    for ours, plain in zip(found, compute_plainly(), strict=True):
        assert ours.keys() == plain.keys()
        for key, value in plain.items():
            torch.testing.assert_close(ours[key], value, rtol=0, atol=1e-12)
    assert result.statistics["staleness"] == {0: 11}


SPARSE_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1),
    "adagrad": functools.partial(torch.optim.Adagrad, lr=0.1),
    "sparse adam": functools.partial(torch.optim.SparseAdam, lr=0.1),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own Adagrad causes it
@pytest.mark.parametrize("name", SPARSE_OPTIMIZERS)
def test_tables_take_the_steps_that_torch_takes_with_sparse_gradients(here: None, tmp_path: Path, name: str) -> None:
    def loop() -> Any:
        torch.manual_seed(1)
        model: Any = hocket_torch.prepare_model(torch.nn.Embedding(30, 4, sparse=True).double())
        optimizer = hocket_torch.prepare_optimizer(SPARSE_OPTIMIZERS[name](model.parameters()))
        for step in range(12):
            optimizer.zero_grad()
            model(make_batch(step)[0]).square().sum().backward()
            optimizer.step()
        return model.state_dict()["weight"]

    plain, on_servers = (
        fit(hocket_torch.TorchTrainer, tmp_path, loop, given).return_value
        for given in (None, ParameterServer(num_servers=2, min_table_rows=1))
    )
    torch.testing.assert_close(on_servers, plain, rtol=0, atol=1e-12)


def test_closures_accumulation_and_two_optimizers_work(here: None, tmp_path: Path) -> None:
    def loop() -> Any:
        model: Any = hocket_torch.prepare_model(Recommender(is_sparse=False))
        dense = hocket_torch.prepare_optimizer(torch.optim.SGD(model.out.parameters(), lr=0.1))
        tables = hocket_torch.prepare_optimizer(torch.optim.Adagrad([model.users.weight], lr=0.1))
        tables.add_param_group({"params": [model.items.weight], "lr": 0.05})

        losses: list[float] = []

        def compute(step: int) -> torch.Tensor:
            users, items, goal = make_batch(step)
            loss: torch.Tensor = (model(users, items) - goal).square().mean()
            loss.backward()
            return loss.detach()

        for step in range(4):
            with hocket_torch.no_sync(model):
                compute(step)
            losses.append(float(dense.step(functools.partial(compute, step + 100))))  # type: ignore[arg-type]  # torch takes tensors
            tables.step()
            assert model.users.weight.grad is not None
            dense.zero_grad()
            tables.zero_grad()
        return model.state_dict(), losses[-1], len(dense.state)

    plain = fit(hocket_torch.TorchTrainer, tmp_path, loop, None).return_value
    served_result = fit(hocket_torch.TorchTrainer, tmp_path, loop, ParameterServer(max_staleness=0))
    assert served_result.return_value[1] == pytest.approx(plain[1], abs=1e-12)
    assert (served_result.return_value[2], served_result.statistics["pushes"]) == (0, 8)
    for key, value in plain[0].items():
        torch.testing.assert_close(served_result.return_value[0][key], value, rtol=0, atol=1e-12)


def step_with_many(model: torch.nn.Module) -> None:
    hocket_torch.prepare_optimizer(torch.optim.LBFGS(model.parameters()))


def step_with_amsgrad(model: torch.nn.Module) -> None:
    hocket_torch.prepare_optimizer(torch.optim.Adam(model.parameters(), amsgrad=True))


def step_unprepared(model: torch.nn.Module) -> None:
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def step_strangers(model: torch.nn.Module) -> None:
    hocket_torch.prepare_optimizer(torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1))


def step_with_nan(model: torch.nn.Module) -> None:
    optimizer = hocket_torch.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    (model(*make_batch(0)[:2]) * float("nan")).sum().backward()
    optimizer.step()


def change_momentum(model: torch.nn.Module) -> None:
    optimizer = hocket_torch.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    optimizer.param_groups[0]["momentum"] = 0.8
    take_steps(model, optimizer, range(1))


def use_whole_table(model: Any) -> None:
    optimizer = hocket_torch.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    model.users.weight.square().sum().backward()
    optimizer.step()


def copy_tables(model: torch.nn.Module) -> None:
    hocket_torch.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    copy.deepcopy(model)


@torch.no_grad()
def clip(model: Any) -> None:
    optimizer = hocket_torch.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(16):
        with torch.enable_grad():
            take_steps(model, optimizer, range(step, step + 1))
        if step >= 8:  # where each eighth step is looked at
            model.out[0].weight.data.clamp_(-1e-3, 1e-3)


def prepare_twice(model: Any) -> None:
    for _ in range(2):
        hocket_torch.prepare_optimizer(torch.optim.Adam(model.out.parameters(), lr=0.1))


def shard(model: torch.nn.Module) -> None:
    hocket_torch.prepare_model(model, parallel_strategy="fsdp")


@pytest.mark.parametrize(
    ("loop", "error", "message"),
    [
        (step_with_many, ValueError, r"have no LBFGS. Use one of torch.optim: SGD, Adam, AdamW, Adagrad, SparseAdam\."),
        (step_with_amsgrad, ValueError, r"have no Adam\(amsgrad=True\). Leave amsgrad out"),
        (step_unprepared, RuntimeError, r"was not prepared. Write\s+optimizer = hocket.train.torch.prepare_optimizer"),
        (step_strangers, ValueError, "holds parameters of prepared models, but the optimizer has other parameters"),
        (step_with_nan, ps.errors.NonFiniteGradientError, "The gradient of `.*` is NaN or infinite in"),
        (change_momentum, ValueError, "only the learning rate can change, but the optimizer is now .*momentum=0.8"),
        (use_whole_table, ValueError, "The gradient of `users.weight` is dense"),
        (clip, ValueError, r"changed the weights `out.0.weight` .*Load new weights with model.load_state_dict\(\)"),
        (
            prepare_twice,
            ValueError,
            r"an optimizer \(Adam\) of parameters that another optimizer steps, `out.0.weight` among them",
        ),
        (copy_tables, TypeError, "The rows of `users.weight` are on servers, so a copy of the model would have none"),
        (shard, ValueError, "wraps no model, but received parallel_strategy='fsdp'"),
    ],
)
def test_what_servers_cannot_do_is_refused(
    here: None, tmp_path: Path, loop: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        fit(
            hocket_torch.TorchTrainer,
            tmp_path,
            lambda: loop(hocket_torch.prepare_model(Recommender())),
            ParameterServer(),
        )


def count_down(config: dict[str, Any]) -> float:
    """Push a gradient of 1 in each step; be killed in the middle of two of them, in the middle of the servers'
    update."""
    strategy = framework.FRAMEWORK.get_state("a test").strategy
    assert isinstance(strategy, parameter_server.OpenParameterServer)
    rank, attempt = train.get_context().get_world_rank(), len(list(Path(config["folder"]).iterdir()))
    model: Any = hocket_torch.prepare_model(torch.nn.Linear(1, 1, bias=False))
    torch.nn.init.zeros_(model.weight)
    optimizer = hocket_torch.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    store: Any = links.open_link(strategy.remote.address).stores[0]

    def die(point: str) -> None:
        if point == ("committed", "prepared")[attempt]:
            (Path(config["folder"]) / str(attempt)).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    for step in range(config["steps"]):
        if attempt < 2 and rank == 1 - attempt and step == 10 * (attempt + 1):
            store.on_point = die
        if (attempt, rank, step) == (0, 0, 15):
            # until it is ended: what it had pushed would not be pushed again, and not die there
            threading.Event().wait()
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    return 0.0


def test_a_killed_rank_costs_its_running_step_only(session: hocket.SessionContext, tmp_path: Path) -> None:
    folder = tmp_path / "deaths"
    folder.mkdir()
    config = {"folder": str(folder), "steps": 40}
    result = fit(
        hocket_torch.TorchTrainer,
        tmp_path,
        count_down,
        ParameterServer(max_staleness=1),
        2,
        config=config,
        max_failures=2,
    )
    assert len(list(folder.iterdir())) == 2
    counted = result.statistics
    assert (counted["updates"], counted["recoveries"]) == ([80], 2)
    assert counted["pushes"] == sum(counted["staleness"].values()) == 80
    assert max(counted["staleness"]) <= 1


def count_and_save(config: dict[str, Any]) -> float:
    """Each step takes 1 away. Waits after a report for the kill of whoever keeps the memory, and dies then."""
    plain = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(plain.weight)
    model = hocket_torch.prepare_model(plain)
    optimizer = hocket_torch.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    saved, begin = train.get_checkpoint(), 0
    if saved is not None:
        state = torch.load(Path(saved.path, "state.pt"))
        begin = state["step"] + 1
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for step in range(begin, config["steps"]):
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        if step % 5 == 4:
            state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            with tempfile.TemporaryDirectory() as folder:
                torch.save(state, Path(folder, "state.pt"))
                train.report({"step": step}, train.Checkpoint(folder))
        if step == 7 and saved is None:
            Path(config["asks"]).touch()
            while Path(config["asks"]).exists():
                threading.Event().wait(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
    return float(model.state_dict()["weight"])


def test_memory_that_is_lost_costs_a_restart_from_the_last_checkpoint(
    session: hocket.SessionContext, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asks = tmp_path / "asks"

    def kill_owner() -> None:
        while not asks.exists():
            threading.Event().wait(0.01)
        (owner,) = (
            one for one in session_state.list_actors() if one.class_name == "MemoryOwner" and one.state == "ALIVE"
        )
        os.kill(owner.pid, signal.SIGKILL)
        asks.unlink()

    killer = threading.Thread(target=kill_owner)
    killer.start()
    config = {"asks": str(asks), "steps": 20}
    settings = ParameterServer(num_servers=2)
    result = fit(hocket_torch.TorchTrainer, tmp_path, count_and_save, settings, 1, config=config, max_failures=1)
    killer.join()
    assert result.return_value == -20
    assert [metrics["step"] for metrics in result.metrics_history] == [4, 9, 14, 19]
    assert "New servers are started" in caplog.text


def learn_with_torch(config: dict[str, Any]) -> float:
    rank = train.get_context().get_world_rank()
    model = hocket_torch.prepare_model(
        torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    )
    optimizer = hocket_torch.prepare_optimizer(torch.optim.Adam(model.parameters(), lr=0.02))
    losses = []
    for step in range(config["steps"]):
        x, y = make_digits(rank, step)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[-1] / losses[0]


def test_two_ranks_learn_together(here: None, tmp_path: Path) -> None:
    settings = ParameterServer(num_servers=2, max_staleness=0)
    result = fit(hocket_torch.TorchTrainer, tmp_path, learn_with_torch, settings, 2, config={"steps": 40})
    assert result.return_value < 0.5
    assert result.statistics["staleness"] == {0: 80}
