"""Horovod's verbs: programs for it run with another import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import optax
import pytest
import torch

from hocket import train
from hocket.train.horovod import jax as hvd_jax
from hocket.train.horovod import torch as hvd
from hocket.train.jax import JaxTrainer
from hocket.train.torch import TorchTrainer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "horovod_digits.py"


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    yield
    hvd.shutdown()


def fit(trainer: Any, function: Any, path: Path, num_workers: int = 2) -> Any:
    return (
        trainer(
            function,
            scaling_config=train.ScalingConfig(num_workers=num_workers, resources_per_worker={"CPU": 0.5}),
            run_config=train.RunConfig(storage_path=str(path)),
        )
        .fit()
        .return_value
    )


def call_torch_verbs() -> dict[str, Any]:
    hvd.init()
    rank = hvd.rank()
    own = torch.tensor([1.0, 2.0]) * (1 + rank)
    found: dict[str, Any] = {
        "place": [hvd.size(), hvd.local_size(), hvd.rank() - hvd.local_rank(), hvd.is_initialized()],
        "average": hvd.allreduce(own).tolist(),
        "older": hvd.allreduce(own, average=False).tolist(),
        "product": hvd.allreduce(own, op=hvd.Product).tolist(),
        "half": (hvd.allreduce(own * 1.0003, None, "name", hvd.Compression.fp16)).tolist(),
        "whole": hvd.allreduce(torch.tensor(3), op=hvd.Sum).item(),
        "gathered": hvd.allgather(torch.full((1 + rank, 2), rank)).tolist(),
        "sent": hvd.broadcast(own, root_rank=1).tolist(),
        "object": hvd.broadcast_object({"rank": rank}, root_rank=1),
        "objects": hvd.allgather_object(rank),
        "last": hvd.join() in (0, 1),
    }
    assert own.tolist() == [1.0 + rank, 2.0 + 2 * rank]
    hvd.barrier()
    found["in place"] = hvd.allreduce_(own).tolist()
    assert own.tolist() == found["in place"]
    model = torch.nn.Linear(2, 1)
    hvd.broadcast_parameters(model.named_parameters(), root_rank=1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + rank), momentum=0.5)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    found["lr"] = optimizer.param_groups[0]["lr"]
    unused = torch.nn.Parameter(torch.zeros(1))
    optimizer.add_param_group({"params": [unused]})
    distributed = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    start = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.zero_()
    for step in range(2):
        optimizer.zero_grad()
        model(torch.tensor([[1.0, 2.0]]) * (1 + 2 * rank)).sum().backward()  # the mean gradient is [2, 4]
        if step:
            distributed.synchronize()
            torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
            with distributed.skip_synchronize():
                distributed.step()
        else:
            distributed.step()
    found["weights"] = model.weight.detach().tolist()
    found["untouched"] = unused.grad is None
    found["equal start"] = bool((hvd.allreduce(start) == start).all())
    half = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), compression=hvd.Compression.fp16, op=hvd.Sum
    )
    model.weight.grad = torch.ones(1, 2) * (1 + rank)
    half.synchronize()
    found["summed"] = model.weight.grad.tolist()
    hvd.shutdown()
    return found


@pytest.mark.usefixtures("session")
def test_verbs_for_torch(tmp_path: Path) -> None:
    found = fit(TorchTrainer, call_torch_verbs, tmp_path)
    assert found.pop("weights")[0] == pytest.approx([-0.4, -0.7])  # 0.1 * [2, 4], then 0.1 * (half of it + 1)
    assert found == {
        "place": [2, 2, 0, True],
        "average": [1.5, 3.0],
        "older": [3.0, 6.0],
        "product": [2.0, 8.0],
        "half": [1.5, 3.0],  # of float16, which has no 1.0003
        "whole": 6,
        "gathered": [[0, 0], [1, 1], [1, 1]],
        "sent": [2.0, 4.0],
        "object": {"rank": 1},
        "objects": [0, 1],
        "last": True,
        "in place": [1.5, 3.0],
        "lr": 0.1,
        "untouched": True,
        "equal start": True,
        "summed": [[3.0, 3.0]],
    }


def step_with_closures() -> list[Any]:
    hvd.init()
    found = []
    for kind in (torch.optim.SGD, torch.optim.LBFGS):
        weights = torch.nn.Parameter(torch.ones(2))
        optimizer = hvd.DistributedOptimizer(kind([weights], lr=0.5))

        def compute(optimizer: Any = optimizer, weights: torch.Tensor = weights) -> torch.Tensor:
            optimizer.zero_grad()
            loss = ((weights - 1 - 2 * hvd.rank()) ** 2).sum() / 2  # of both ranks together least at 2
            loss.backward()
            return loss

        optimizer.step(compute)
        found.append(hvd.allgather_object(weights.tolist()))
    return found


@pytest.mark.usefixtures("session")
def test_gradients_of_a_closure_are_those_of_all_ranks(tmp_path: Path) -> None:
    plain, searched = fit(TorchTrainer, step_with_closures, tmp_path)
    assert plain == [[1.5, 1.5]] * 2
    assert searched[0] == searched[1]
    assert searched[0] == pytest.approx([2.0, 2.0], abs=1e-3)


def send_gradients_back() -> dict[str, Any]:
    hvd.init()
    rank = hvd.rank()
    own = torch.ones(1 + rank, 2, requires_grad=True)
    scale = torch.tensor([1.0, 2.0], requires_grad=True)

    def back(loss: torch.Tensor, leaf: torch.Tensor) -> Any:
        (gradient,) = torch.autograd.grad(loss * (1 + rank), leaf)  # what ranks send back is [1, 1] and [2, 2]
        return gradient.tolist()

    found = {
        "average": back(hvd.allreduce(scale).sum(), scale),
        "sum": back(hvd.allreduce(scale, op=hvd.Sum).sum(), scale),
        "gathered": back((hvd.allgather(own) * torch.arange(3)[:, None]).sum(), own),
        "sent": back(hvd.broadcast(scale, root_rank=1).sum(), scale),
        "both": back((scale * hvd.allreduce(scale.detach())).sum(), scale),
    }
    with pytest.raises(RuntimeError, match="has no gradient"):
        hvd.allreduce(scale, op=hvd.Max).sum().backward()
    return {name: hvd.allgather_object(value) for name, value in found.items()}


@pytest.mark.usefixtures("session")
def test_gradients_flow_back_through_the_verbs_for_torch(tmp_path: Path) -> None:
    assert fit(TorchTrainer, send_gradients_back, tmp_path) == {
        "average": [[1.5, 1.5]] * 2,
        "sum": [[3.0, 3.0]] * 2,
        "gathered": [[[0.0, 0.0]], [[1.5, 1.5], [3.0, 3.0]]],
        "sent": [[0.0, 0.0], [1.5, 1.5]],
        "both": [[1.0, 2.0], [2.0, 4.0]],
    }


def test_gradients_flow_back_in_a_single_process() -> None:
    hvd.init()
    weights = torch.ones(2, requires_grad=True)
    for result in (hvd.allreduce(weights), hvd.allgather(weights), hvd.broadcast(weights, 0)):
        (gradient,) = torch.autograd.grad((3 * result).sum(), weights)
        assert gradient.tolist() == [3.0, 3.0]


def call_jax_verbs() -> dict[str, Any]:
    hvd_jax.init()
    rank = hvd_jax.rank()
    own = jnp.array([1.0, 2.0]) * (1 + rank)
    optimizer = hvd_jax.DistributedOptimizer(optax.sgd(1.0))
    updates, _ = optimizer.update(own, optimizer.init(own))
    found = {
        "place": [hvd_jax.size(), hvd_jax.local_size(), rank - hvd_jax.local_rank()],
        "tree": hvd_jax.allreduce({"a": own})["a"].tolist(),
        "sum": hvd_jax.allreduce(own, op=hvd_jax.Sum).tolist(),
        "max": hvd_jax.allreduce(jnp.array([rank]), op=hvd_jax.Max).tolist(),
        "gathered": hvd_jax.allgather(jnp.full((1 + rank, 2), rank)).tolist(),
        "sent": hvd_jax.broadcast(own, root_rank=1).tolist(),
        "parameters": hvd_jax.broadcast_parameters({"a": own}, root_rank=0)["a"].tolist(),
        "object": hvd_jax.broadcast_object(rank, root_rank=1),
        "updates": updates.tolist(),
        "last": hvd_jax.join() in (0, 1),
    }
    hvd_jax.barrier()
    hvd_jax.shutdown()
    return found


@pytest.mark.usefixtures("session")
def test_verbs_for_jax(tmp_path: Path) -> None:
    assert fit(JaxTrainer, call_jax_verbs, tmp_path) == {
        "place": [2, 2, 0],
        "tree": [1.5, 3.0],
        "sum": [3.0, 6.0],
        "max": [1],
        "gathered": [[0, 0], [1, 1], [1, 1]],
        "sent": [2.0, 4.0],
        "parameters": [1.0, 2.0],
        "object": 1,
        "updates": [-1.5, -3.0],
        "last": True,
    }


@pytest.mark.about_local("`hocket run` starts its ranks itself")
@pytest.mark.parametrize("way", ["run", "trainer"])
def test_a_program_for_horovod_runs_with_one_import_changed(tmp_path: Path, way: str) -> None:
    program = [str(EXAMPLE), "--num-epochs", "2"]
    command = {
        "run": [sys.executable, "-m", "hocket.cli", "run", "--nproc-per-node", "2", *program],
        "trainer": [sys.executable, *program, "--num-workers", "2", "--storage-path", str(tmp_path)],
    }[way]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("2 ranks: accuracy 0.")
    if way == "trainer":
        assert "the trainer returned 0." in done.stdout


def build_optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)


def distribute_twice() -> None:
    hvd.DistributedOptimizer(hvd.DistributedOptimizer(build_optimizer()))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum), ValueError, "op and average cannot both be given. Pass op"),
        (lambda: hvd.allreduce(torch.ones(1), op="sum"), ValueError, "op must be hvd.Average, .* but received 'sum'. Adasum"),  # type: ignore[arg-type]
        (lambda: hvd.allreduce(torch.ones(1).int()), ValueError, "hvd.Average needs floats, but received a tensor of torch.int32"),
        (lambda: hvd.broadcast(torch.ones(1), 1), ValueError, "root_rank must be one of the 1 ranks from 0, but received 1"),
        (lambda: hvd.broadcast_parameters(torch.nn.Linear(1, 1).parameters()), ValueError, "takes names and tensors, but received"),  # type: ignore[arg-type]
        (lambda: hvd.DistributedOptimizer(3), TypeError, "takes an optimizer of torch, but received 3"),  # type: ignore[arg-type]
        (distribute_twice, ValueError, "distributed already"),
        (lambda: hvd.DistributedOptimizer(build_optimizer(), process_set=2), ValueError, r"does not support process_set=2. .*docs/horovod.md"),
        (lambda: hvd.DistributedOptimizer(build_optimizer(), num_group=2), TypeError, r"has no argument 'num_group', here or in Horovod. Its arguments include .*num_groups"),
        (lambda: hvd.allreduce(torch.ones(1), op=hvd.Adasum), ValueError, "but received <Op.ADASUM.*Adasum is not supported"),
        (lambda: hvd.DistributedOptimizer(build_optimizer(), op=hvd.Adasum), ValueError, "must be hvd.Average or hvd.Sum, but received <Op.ADASUM"),
        (lambda: hvd.DistributedOptimizer(build_optimizer(), backward_passes_per_step=0), ValueError, "must be 1 or more, but received 0"),
        (lambda: hvd.DistributedOptimizer(build_optimizer(), op=hvd.Max), ValueError, "must be hvd.Average or hvd.Sum"),
        (lambda: hvd.DistributedOptimizer(build_optimizer(), [("a", torch.ones(1))] * 2), ValueError, "named_parameters has 'a' twice"),
        (lambda: hvd.init(process_sets=[1]), ValueError, r"init\(\) does not support process_sets=\[1\]"),
        (lambda: hvd_jax.allreduce({"n": jnp.ones(2, int)}), ValueError, r"hvd.Average needs floats, but 'n' is int32\[2\]"),
        (lambda: hvd_jax.allreduce("x"), TypeError, "is a str: 'x'"),
        (lambda: hvd_jax.allgather(jnp.ones(())), ValueError, "received a scalar"),
        (lambda: hvd_jax.DistributedOptimizer(optax.sgd(1.0), op=hvd_jax.Sum), ValueError, "does not support op=<Op.SUM"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call: Any, error: type[Exception], message: str) -> None:
    hvd.init()
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("verb", [hvd.rank, hvd.size, hvd.local_rank, hvd.barrier, hvd_jax.rank, hvd_jax.barrier])
def test_before_init(verb: Any) -> None:
    with pytest.raises(ValueError, match=r"Horovod's verbs need hvd.init\(\) first"):
        verb()


def test_ranks_that_nobody_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        RuntimeError, match="found 2 ranks that no trainer has joined; `hocket run` joins ranks for PyTorch only"
    ):
        hvd_jax.init()
    assert not hvd_jax.is_initialized()


@pytest.mark.usefixtures("session")
def test_a_trainer_that_joins_for_another_framework(tmp_path: Path) -> None:
    with pytest.raises(
        train.WorkerGroupError, match=r"not joined for PyTorch. Run the training function with .*TorchTrainer"
    ):
        fit(train.DataParallelTrainer, lambda: hvd.init(), tmp_path)  # noqa: PLW0108 (which takes no configuration)


def test_alone_the_verbs_change_nothing() -> None:
    hvd.init()
    assert hvd.allgather(torch.ones(2)).tolist() == [1.0, 1.0]
    assert hvd.broadcast_object("x") == "x"
    assert hvd.allgather_object(1) == [1]
    assert hvd.join() == 0
    hvd.broadcast_optimizer_state(build_optimizer())
    assert hvd_jax.broadcast_object("x") == "x"
    assert hvd_jax.broadcast_parameters({"a": 1.0}) == {"a": 1.0}


def test_arguments_that_change_nothing_are_taken() -> None:
    """As Horovod's own examples give them, with the defaults of their command lines."""
    hvd.init()
    optimizer = hvd.DistributedOptimizer(
        build_optimizer(),
        compression=hvd.Compression.none,
        op=hvd.Average,
        backward_passes_per_step=1,
        gradient_predivide_factor=1.0,
        num_groups=0,
        groups=None,
        sparse_as_dense=False,
    )
    optimizer.step()
    hvd_jax.init()
    hvd_jax.DistributedOptimizer(optax.sgd(1.0), backward_passes_per_step=1, average_aggregated_gradients=True)
    assert not hvd.nccl_built()
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)
    hvd.shutdown()
    hvd_jax.shutdown()


def learn_a_table() -> Any:
    hvd.init()
    torch.manual_seed(5)
    table = torch.nn.Embedding(12, 3, sparse=True).double()
    optimizer = hvd.DistributedOptimizer(torch.optim.SparseAdam(table.parameters(), lr=0.1))
    generator = torch.Generator().manual_seed(2)
    for _ in range(4):
        ids = torch.randint(0, 12, (8,), generator=generator).chunk(hvd.size())[hvd.rank()]
        optimizer.zero_grad()
        table(ids).square().mean().backward()
        optimizer.step()
    return table.weight.tolist()


@pytest.mark.usefixtures("session")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own optimizer causes it
def test_sparse_gradients_stay_sparse_for_the_optimizer(tmp_path: Path) -> None:
    two, one = (
        TorchTrainer(
            learn_a_table,
            scaling_config=train.ScalingConfig(num_workers=size),
            run_config=train.RunConfig(storage_path=str(tmp_path)),
        )
        .fit()
        .return_value
        for size in (2, 1)
    )
    torch.testing.assert_close(torch.tensor(two), torch.tensor(one), rtol=0, atol=1e-9)
