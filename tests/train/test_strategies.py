"""Strategies: what two ranks compute is what one process computes for both, by the formulas, in float64."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.optim import optimizer as torch_optimizer

import hocket
from hocket import train
from hocket.train import strategies
from hocket.train import torch as hocket_torch
from hocket.train.frameworks.torch import framework

Weights = list[torch.Tensor]

SGD = functools.partial(torch.optim.SGD, lr=0.1)
ADAM = functools.partial(torch.optim.Adam, lr=0.01)
MOMENTUM = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
LATE_POWER = hocket_torch.PowerSGD(rank=1, begin_after=2)
EXACT_POWER = hocket_torch.PowerSGD(rank=2, begin_after=2)


def build_model() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 6, bias=False), torch.nn.BatchNorm1d(6), torch.nn.Tanh(), torch.nn.Linear(6, 2)
    ).double()


def build_matrix() -> Any:
    torch.manual_seed(7)
    return torch.nn.Linear(32, 32, bias=False).double()


def compute_loss(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    """The loss of a batch that no other rank and step has.

    A matrix's has one sample, so its gradient is a product of two vectors.
    """
    generator = torch.Generator().manual_seed(100 * step + rank)
    is_matrix = isinstance(getattr(model, "module", model), torch.nn.Linear)
    shape = (1, 32) if is_matrix else (5, 4)
    loss: torch.Tensor = model(torch.randn(shape, generator=generator, dtype=torch.float64)).square().mean()
    return loss


def list_weights(model: torch.nn.Module) -> Weights:
    return [value.detach().clone() for value in [*model.parameters(), *model.buffers()]]


# --- what the ranks do ------------------------------------------------------------------------------------------------


def count_collectives(counts: dict[str, int]) -> Callable[[], None]:
    """Count calls of this process; return what stops it."""
    originals = {name: getattr(dist, name) for name in ("all_reduce", "broadcast")}

    def count(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] = counts.get(name, 0) + 1
            return originals[name](*args, **kwargs)

        return call

    for name in originals:
        setattr(dist, name, count(name))

    def stop() -> None:
        for name, original in originals.items():
            setattr(dist, name, original)

    return stop


def take_steps(
    strategy: strategies.Strategy,
    build: Callable[[], torch.nn.Module],
    optimize: Callable[..., torch.optim.Optimizer],
    steps: int,
    **given: Any,
) -> dict[str, Any]:
    """Train as a training function does; return the weights after each step, and what was counted."""
    rank = dist.get_rank()
    counts: dict[str, int] = {}
    with framework.FRAMEWORK.use_strategy(strategy):
        model = build()
        if rank == 1:  # all must start from rank 0's
            with torch.no_grad():
                [value.add_(1) for value in model.parameters()]
        stop = count_collectives(counts)
        prepared = hocket_torch.prepare_model(model)
        started = dict(counts)
        optimizer = hocket_torch.prepare_optimizer(optimize(prepared.parameters()))
        history = []
        for step in range(steps):
            if step == given.get("save_at"):
                state, weights = copy.deepcopy((optimizer.state_dict(), model.state_dict()))
                optimizer, prepared, model = restart(strategy, build, optimize, state, weights)
            optimizer.zero_grad()
            compute_loss(prepared, rank, step).backward()
            optimizer.step()
            history.append(list_weights(model))
        stop()
        hocket_torch.synchronize()
        history.append(list_weights(model))
    return {"history": history, "started": started, "counts": counts}


def restart(strategy: Any, build: Any, optimize: Any, state: Any, weights: Any) -> Any:
    """What a training function does that finds a checkpoint."""
    model = build()
    prepared = hocket_torch.prepare_model(model)
    optimizer = hocket_torch.prepare_optimizer(optimize(prepared.parameters()))
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # as of a checkpoint that is saved before a step
    return optimizer, prepared, model


def use_some(strategy: strategies.Strategy) -> list[bool]:
    """Take an averaged step with a model of which rank 0 uses two parts, rank 1 one, and nobody the third."""
    with framework.FRAMEWORK.use_strategy(strategy):
        model: Any = hocket_torch.prepare_model(
            torch.nn.ModuleList(torch.nn.Linear(1, 1, bias=False) for _ in range(3))
        )
        optimizer = hocket_torch.prepare_optimizer(SGD(model.parameters()))
        parts = [model[0], model[1]] if dist.get_rank() == 0 else [model[0]]
        sum(part(torch.ones(1, 1)).sum() for part in parts).backward()
        before = [part.weight.item() for part in model]
        optimizer.step()
        return [round(old - part.weight.item(), 6) for old, part in zip(before, model, strict=True)]


def freeze_between() -> list[float]:
    """Freeze a layer between two meetings; return a weight of it then, and after the next meeting."""
    with framework.FRAMEWORK.use_strategy(hocket_torch.LocalSGD(2)):
        layers = [torch.nn.Linear(1, 1, bias=False).double() for _ in range(2)]
        model = hocket_torch.prepare_model(torch.nn.Sequential(*layers))
        optimizer = hocket_torch.prepare_optimizer(SGD(model.parameters()))
        seen = []
        for step in range(4):
            if step == 3:
                layers[0].requires_grad_(False)
                seen.append(layers[0].weight.item())
            optimizer.zero_grad()
            model(torch.full((1, 1), 1.0 + dist.get_rank(), dtype=torch.float64)).square().sum().backward()
            optimizer.step()
        return [*seen, layers[0].weight.item()]


def average_halves() -> list[float]:
    """Meet with weights whose sum bfloat16 cannot hold."""
    with framework.FRAMEWORK.use_strategy(hocket_torch.LocalSGD(1)):
        model: Any = hocket_torch.prepare_model(torch.nn.Linear(1, 1, bias=False).bfloat16())
        optimizer = hocket_torch.prepare_optimizer(SGD(model.parameters()))
        with torch.no_grad():
            model.weight.fill_(255.0 if dist.get_rank() == 0 else 1.0)
        optimizer.step()
        return [model.weight.item(), float(model.weight.dtype == torch.bfloat16)]


def freeze_between_meetings(outer: Any) -> list[float]:
    """Freeze the weight after its first step, and meet after the second and the fourth of the bias."""
    with framework.FRAMEWORK.use_strategy(hocket_torch.LocalSGD(2, outer=outer)):
        model: Any = hocket_torch.prepare_model(torch.nn.Linear(1, 1))
        optimizer = hocket_torch.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        torch.nn.init.zeros_(model.weight)
        torch.nn.init.zeros_(model.bias)
        for step in range(4):
            optimizer.zero_grad()
            model.weight.requires_grad_(step < 1)
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.grad = torch.full_like(parameter, dist.get_rank() + 1.0)
            optimizer.step()
        return [model.weight.item(), model.bias.item()]


RUNS: dict[str, tuple[Any, ...]] = {
    "all_reduce": (hocket_torch.AllReduce(bucket_mb=1e-4), build_model, SGD, 3),
    "fp16": (hocket_torch.AllReduce(compression="fp16"), build_model, SGD, 1),
    "bf16": (hocket_torch.AllReduce(compression="bf16"), build_model, SGD, 1),
    "power": (hocket_torch.AllReduce(compression=LATE_POWER), build_matrix, SGD, 3),
    "power_exact": (hocket_torch.AllReduce(compression=EXACT_POWER), build_matrix, SGD, 4),
    "each_step": (hocket_torch.LocalSGD(1), build_model, SGD, 3),
    "rounds": (hocket_torch.LocalSGD(3), build_model, ADAM, 7),
    "outer": (hocket_torch.LocalSGD(2, outer=hocket_torch.Nesterov(lr=0.7, momentum=0.9)), build_model, MOMENTUM, 7),
    "late": (hocket_torch.LocalSGD(2, begin_after=2), build_model, MOMENTUM, 5),
}


def run_all() -> list[Any]:
    """Called in each rank."""
    mine: dict[str, Any] = {name: take_steps(*args) for name, args in RUNS.items()}
    mine["resumed"] = take_steps(RUNS["outer"][0], build_model, SGD, 7, save_at=4)
    mine["unbroken"] = take_steps(RUNS["outer"][0], build_model, SGD, 7)
    mine["resumed_between"] = take_steps(RUNS["outer"][0], build_model, SGD, 7, save_at=3)
    mine["some"] = use_some(hocket_torch.LocalSGD(8, begin_after=8))
    mine["halves"] = average_halves()
    outers = None, hocket_torch.Nesterov(lr=1.0, momentum=0.5)
    mine["frozen"] = [freeze_between_meetings(outer) for outer in outers]
    mine["frozen_layer"] = freeze_between()
    ranks: list[Any] = [None, None]
    dist.all_gather_object(ranks, mine)
    return ranks


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """What both ranks computed, by rank."""
    with hocket.init(num_cpus=2):
        result = hocket_torch.TorchTrainer(
            run_all,
            scaling_config=train.ScalingConfig(num_workers=2),
            run_config=train.RunConfig(storage_path=tmp_path_factory.mktemp("runs")),
        ).fit()
        yield result.return_value


# --- the same in one process ------------------------------------------------------------------------------------------


class Twins:
    """Two ranks in one process."""

    def __init__(self, name: str) -> None:
        _, build, optimize, self.steps = RUNS[name]
        model = build()
        self.models = [copy.deepcopy(model) for _ in range(2)]
        self.optimizers = [optimize(model.parameters()) for model in self.models]

    def compute_gradients(self, step: int) -> None:
        for rank, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            optimizer.zero_grad()
            compute_loss(model, rank, step).backward()

    def combine_gradients(self, combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        for ours, theirs in zip(*(list(model.parameters()) for model in self.models), strict=True):
            assert ours.grad is not None
            assert theirs.grad is not None
            ours.grad = combine(ours.grad, theirs.grad)
            theirs.grad = ours.grad.clone()

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def average(self) -> Weights:
        """Give both the mean of all weights and buffers; return it."""
        both = [[*model.parameters(), *model.buffers()] for model in self.models]
        means = [
            (a.detach() + b.detach()) / 2 if a.is_floating_point() else a.clone() for a, b in zip(*both, strict=True)
        ]
        self.give(means)
        return means

    @torch.no_grad()
    def give(self, values: Weights) -> None:
        for model in self.models:
            for target, value in zip([*model.parameters(), *model.buffers()], values, strict=True):
                target.copy_(value)


def assert_equal(found: Weights, expected: Weights, tolerance: float = 1e-12) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def mean(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    return (ours + theirs) / 2


def round_sum(dtype: torch.dtype, ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    return (ours.to(dtype) / 2 + theirs.to(dtype) / 2).to(ours.dtype)


pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.mark.parametrize(
    ("name", "combine"),
    [
        ("all_reduce", mean),
        ("fp16", functools.partial(round_sum, torch.float16)),
        ("bf16", functools.partial(round_sum, torch.bfloat16)),
    ],
)
def test_all_reduce_steps_with_the_mean_gradient(found: Any, name: str, combine: Any) -> None:
    twins = Twins(name)
    count = len(list(twins.models[0].parameters()))
    for step in range(twins.steps):
        twins.compute_gradients(step)
        twins.combine_gradients(combine)
        twins.step()
        for rank, model in enumerate(twins.models):
            assert_equal(found[rank][name]["history"][step][:count], list_weights(model)[:count])


def test_what_compression_loses_is_seen(found: Any) -> None:
    exact, lossy = found[0]["all_reduce"]["history"][0][0], found[0]["fp16"]["history"][0][0]
    assert not torch.equal(exact, lossy)
    assert not torch.equal(lossy, found[0]["bf16"]["history"][0][0])


def list_updates(found: Any, name: str) -> Weights:
    weights = [build_matrix().weight.detach(), *(history[0] for history in found[0][name]["history"])]
    return [(old - new) / 0.1 for old, new in itertools.pairwise(weights)]


def compute_mean_gradient(weight: torch.Tensor, step: int) -> torch.Tensor:
    model = build_matrix()
    with torch.no_grad():
        model.weight.copy_(weight)
    (compute_loss(model, 0, step) + compute_loss(model, 1, step)).div(2).backward()
    gradient: torch.Tensor = model.weight.grad
    return gradient


def test_power_sgd_projects_the_mean_gradient(found: Any) -> None:
    updates = list_updates(found, "power")
    history = found[0]["power"]["history"]
    for step in range(2):  # as they are
        before = build_matrix().weight.detach() if step == 0 else history[step - 1][0]
        torch.testing.assert_close(updates[step], compute_mean_gradient(before, step), rtol=1e-8, atol=1e-9)
    gradient = compute_mean_gradient(history[1][0], 2)
    left, values, _ = torch.linalg.svd(updates[2])
    assert values[1] < 1e-8 * values[0], "its rank is 1"
    direction = left[:, :1]
    torch.testing.assert_close(updates[2], direction @ (direction.T @ gradient), rtol=1e-6, atol=1e-8)
    assert not torch.allclose(updates[2], gradient, rtol=1e-3)


def test_power_sgd_loses_nothing_of_a_gradient_of_its_rank(found: Any) -> None:
    history = found[0]["power_exact"]["history"]
    for step, update in enumerate(list_updates(found, "power_exact")[:4]):
        before = build_matrix().weight.detach() if step == 0 else history[step - 1][0]
        torch.testing.assert_close(update, compute_mean_gradient(before, step), rtol=1e-6, atol=1e-8)


def test_a_meeting_after_each_step_is_an_all_reduce_of_the_parameters(found: Any) -> None:
    twins = Twins("each_step")
    count = len(list(twins.models[0].parameters()))
    for step in range(twins.steps):
        twins.compute_gradients(step)
        twins.step()
        expected = twins.average()
        for rank in range(2):
            assert_equal(found[rank]["each_step"]["history"][step], expected)
            # For plain SGD the mean of the steps is the step of the mean.
            assert_equal(
                found[rank]["each_step"]["history"][step][:count], found[rank]["all_reduce"]["history"][step][:count]
            )


def test_local_sgd_averages_every_few_steps(found: Any) -> None:
    twins = Twins("rounds")
    for step in range(twins.steps):
        twins.compute_gradients(step)
        twins.step()
        if step in (2, 5):
            twins.average()
        for rank, model in enumerate(twins.models):
            assert_equal(found[rank]["rounds"]["history"][step], list_weights(model))
    expected = twins.average()  # by synchronize()
    for rank in range(2):
        assert_equal(found[rank]["rounds"]["history"][-1], expected)


def test_the_outer_step_is_nesterovs_on_the_mean_change(found: Any) -> None:
    twins = Twins("outer")
    count = len(list(twins.models[0].parameters()))
    anchors = list_weights(twins.models[0])[:count]
    speeds = [torch.zeros_like(anchor) for anchor in anchors]
    for step in range(twins.steps):
        twins.compute_gradients(step)
        twins.step()
        if step % 2 == 1:
            means = twins.average()
            changes = [anchor - value for anchor, value in zip(anchors, means, strict=False)]
            speeds = [0.9 * speed + change for speed, change in zip(speeds, changes, strict=True)]
            anchors = [
                anchor - 0.7 * (change + 0.9 * speed)
                for anchor, change, speed in zip(anchors, changes, speeds, strict=True)
            ]
            twins.give([*anchors, *means[count:]])
        for rank, model in enumerate(twins.models):
            assert_equal(found[rank]["outer"]["history"][step], list_weights(model))


def test_post_local_sgd_begins_with_mean_gradients(found: Any) -> None:
    twins = Twins("late")
    for step in range(twins.steps):
        twins.compute_gradients(step)
        if step < 2:
            twins.combine_gradients(mean)
        twins.step()
        if step == 3:
            twins.average()
        for rank, model in enumerate(twins.models):
            assert_equal(found[rank]["late"]["history"][step], list_weights(model))


def test_a_run_goes_on_from_a_checkpoint(found: Any) -> None:
    for rank in range(2):
        for resumed, unbroken in zip(
            found[rank]["resumed"]["history"], found[rank]["unbroken"]["history"], strict=True
        ):
            assert_equal(resumed, unbroken)  # saved at a meeting; the outer momentum was saved too
    first, second = (found[rank]["resumed_between"]["history"] for rank in range(2))
    assert_equal(first[3], second[3])  # all went on from rank 0's, and met where they would have met
    assert not torch.equal(first[4][0], second[4][0])


@pytest.mark.needs("processes")  # what counts replaces functions of torch, for all ranks of the process
def test_collectives_are_counted(found: Any) -> None:
    for mine in found:
        assert mine["each_step"]["started"] == {"broadcast": 2}  # float64, and the int64 of BatchNorm
        assert mine["each_step"]["counts"] == {"broadcast": 2 + 3, "all_reduce": 3}
        assert mine["rounds"]["counts"] == {"broadcast": 2 + 2, "all_reduce": 2}
        assert mine["outer"]["counts"] == {"broadcast": 2 + 3, "all_reduce": 3}
        assert mine["late"]["counts"] == {"broadcast": 2 + 1, "all_reduce": 2 * 2 + 1}  # gradients, and who has some


def test_parameters_that_some_ranks_use(found: Any) -> None:
    assert found[0]["some"] == found[1]["some"] == [0.1, 0.05, 0.0]


def test_what_is_frozen_between_meetings_is_averaged_once(found: Any) -> None:
    assert found[0]["frozen"] == found[1]["frozen"] == [[-1.5, -6.0], [-2.25, -9.75]]


def test_halves_are_averaged_in_float32(found: Any) -> None:
    assert found[0]["halves"] == found[1]["halves"] == [128.0, 1.0]


def test_a_layer_that_is_frozen_between_two_meetings_is_averaged_at_the_next(found: Any) -> None:
    (first, end), (second, other_end) = (mine["frozen_layer"] for mine in found)
    assert first != second
    assert end == other_end
    assert math.isclose(end, (first + second) / 2)


# --- alone, and what goes wrong ---------------------------------------------------------------------------------------


def fit_here(function: Callable[[], Any], path: Path, strategy: Any = None) -> Any:
    return hocket_torch.TorchTrainer(
        function,
        strategy=strategy,
        scaling_config=train.ScalingConfig(num_workers=0),
        run_config=train.RunConfig(storage_path=path),
    ).fit()


def test_alone_the_outer_step_is_taken_too(tmp_path: Path) -> None:
    def step_twice() -> list[float]:
        model: Any = hocket_torch.prepare_model(torch.nn.Linear(1, 1, bias=False).double())
        optimizer = hocket_torch.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        seen = [model.weight.item()]
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 1, dtype=torch.float64)).sum().backward()  # its gradient is 1
            optimizer.step()
            seen.append(model.weight.item())
        return seen

    start, between, end = fit_here(
        step_twice, tmp_path, hocket_torch.LocalSGD(2, outer=functools.partial(torch.optim.SGD, lr=0.25))
    ).return_value
    assert math.isclose(start - between, 1.0)
    assert math.isclose(start - end, 2 * 0.25)
    start, _, end = fit_here(step_twice, tmp_path, hocket_torch.LocalSGD(2)).return_value
    assert math.isclose(start - end, 2.0)


def unfreeze_and_restart(restarts: list[int]) -> list[float]:
    """Unfreeze a layer at step 3, and go on from a checkpoint of a checkpoint, without a step between, at others."""

    def build() -> tuple[Any, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model: Any = torch.nn.Sequential(*(torch.nn.Linear(1, 1, bias=False).double() for _ in range(2)))
        return hocket_torch.prepare_model(model), hocket_torch.prepare_optimizer(SGD(model.parameters()))

    model, optimizer = build()
    model[0].requires_grad_(False)
    for step in range(8):
        if step == 3:
            model[0].requires_grad_(True)
        for _ in range(2 if step in restarts else 0):
            states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            model, optimizer = build()
            model.load_state_dict(states[0])
            optimizer.load_state_dict(states[1])
        optimizer.zero_grad()
        model(torch.ones(1, 1, dtype=torch.float64)).square().sum().backward()
        optimizer.step()
    return [one.item() for one in model.parameters()]


@pytest.mark.parametrize("restart", [5, 6])  # between two meetings, and after one
def test_the_outer_optimizer_goes_on_with_layers_that_came_later(tmp_path: Path, restart: int) -> None:
    strategy = hocket_torch.LocalSGD(2, outer=hocket_torch.Nesterov())
    found = [
        fit_here(functools.partial(unfreeze_and_restart, restarts), tmp_path, strategy).return_value
        for restarts in ([], [restart])
    ]
    assert found[0] == found[1]


def test_the_outer_step_begins_where_the_program_has_set_the_weights(tmp_path: Path) -> None:
    def set_between() -> float:
        model: Any = hocket_torch.prepare_model(torch.nn.Linear(1, 1, bias=False).double())
        optimizer = hocket_torch.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        for value in (0.0, 10.0):  # as with the weights of the best epoch
            with torch.no_grad():
                model.weight.fill_(value)
            optimizer.zero_grad()
            model(torch.ones(1, 1, dtype=torch.float64)).sum().backward()  # its gradient is 1
            optimizer.step()
        return float(model.weight.item())

    strategy = hocket_torch.LocalSGD(1, outer=functools.partial(torch.optim.SGD, lr=0.5))
    assert fit_here(set_between, tmp_path, strategy).return_value == 9.5


def build_prepared() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = hocket_torch.prepare_model(torch.nn.Linear(1, 1))
    return model, SGD(model.parameters())


def forget_the_optimizer() -> None:
    model, optimizer = build_prepared()
    other = torch.nn.Linear(1, 1)
    SGD(other.parameters()).step()  # none of ours
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()


def forget_the_model() -> None:
    hocket_torch.prepare_optimizer(SGD(torch.nn.Linear(1, 1).parameters()))


def prepare_twice() -> None:
    _, optimizer = build_prepared()
    hocket_torch.prepare_optimizer(hocket_torch.prepare_optimizer(optimizer))


def prepare_nothing() -> None:
    hocket_torch.prepare_optimizer("sgd")  # type: ignore[arg-type]


def shard_locally() -> None:
    hocket_torch.prepare_model(torch.nn.Linear(1, 1), parallel_strategy="fsdp")


def wrap_locally() -> None:
    hocket_torch.prepare_model(torch.nn.Linear(1, 1), parallel_strategy_kwargs={"static_graph": True})


def overflow_locally() -> None:
    hocket_torch.accelerate(amp=True, dtype=torch.float16)
    hocket_torch.prepare_optimizer(build_prepared()[1])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            forget_the_optimizer,
            r"^LocalSGD works in the optimizer's step, but this SGD was not prepared\. Write optimizer = hocket\.train",
        ),
        (
            forget_the_model,
            r"^LocalSGD averages parameters of prepared models, but .* Call model = prepare_model\(model\) first",
        ),
        (prepare_twice, r"received the same SGD twice\. Prepare it once"),
        (prepare_nothing, r"takes an optimizer of torch\.optim, but received 'sgd'\. Write prepare_optimizer\("),
        (
            shard_locally,
            r"parallel_strategy='fsdp' with parallel_strategy_kwargs=\{\}\. Leave both out, or use the strategy AllReduce",
        ),
        (wrap_locally, r"parallel_strategy_kwargs=\{'static_graph': True\}\. Leave both out"),
        (
            overflow_locally,
            r"with LocalSGD each rank would skip different steps\. Use accelerate\(amp=True, dtype=torch\.bfloat16\)",
        ),
    ],
)
def test_what_a_strategy_cannot_do_is_refused(tmp_path: Path, function: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError), match=message):
        fit_here(function, tmp_path, hocket_torch.LocalSGD(2))
    assert torch_optimizer._global_optimizer_pre_hooks == {}, "nothing is left in the process"


def test_sharded_models_take_no_compression(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'fsdp' cannot use AllReduce\(compression='fp16'.*'mp_policy'"):
        fit_here(shard_locally, tmp_path, hocket_torch.AllReduce(compression="fp16"))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: hocket_torch.AllReduce(compression="zip"),
            r"must be None, 'fp16', 'bf16' or a PowerSGD, but received 'zip'",
        ),
        (lambda: hocket_torch.AllReduce(bucket_mb=0), r"bucket_mb must be more than 0, but received 0\. Leave it out"),
        (lambda: hocket_torch.PowerSGD(rank=0), r"rank must be 1 or more, but received 0\."),
        (lambda: hocket_torch.PowerSGD(begin_after=1), r"begin_after must be 2 or more, but received 1: torch"),
        (lambda: hocket_torch.LocalSGD(0), r"sync_every must be 1 or more steps, but received 0\. Write 1 to average"),
        (lambda: hocket_torch.LocalSGD(1, begin_after=-1), r"begin_after must be 0 or more steps, but received -1\."),
        (lambda: hocket_torch.LocalSGD(1, outer="nesterov"), r"but received 'nesterov'\. Write outer=Nesterov\(\)"),  # type: ignore[arg-type]
        (lambda: hocket_torch.Nesterov(lr=0), r"lr must be more than 0, but received 0\. DiLoCo"),
        (lambda: hocket_torch.Nesterov(momentum=1), r"momentum must lie between 0 and 1, but received 1\. DiLoCo"),
        (
            lambda: hocket_torch.TorchTrainer(run_all, strategy="local"),  # type: ignore[arg-type]
            r"must be a Strategy, but received 'local'\. Write",
        ),
    ],
)
def test_bad_values_are_refused(build: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        build()


@pytest.mark.parametrize("call", [hocket_torch.synchronize, hocket_torch.accelerate])
def test_outside_a_training_function(call: Callable[[], None]) -> None:
    with pytest.raises(RuntimeError, match=r"hocket\.train\.torch\.\w+\(\) was called outside a training function"):
        call()
