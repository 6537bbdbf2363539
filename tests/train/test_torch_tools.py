"""What a PyTorch training function calls: sharding, mixed precision, accumulated gradients, compiled steps.

Two ranks compute what one process does.
"""

from __future__ import annotations

import copy
import importlib
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import hocket
from hocket import train
from hocket.train import torch as hocket_torch
from hocket.train.frameworks.torch import framework

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Weights = dict[str, torch.Tensor]

STEPS = 4


def build_model(dtype: torch.dtype = torch.float64) -> torch.nn.Sequential:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).to(dtype)


def build_batch(rank: int, step: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(4, 5, generator=generator, dtype=torch.float64).to(dtype)


def compute_loss(outputs: torch.Tensor) -> torch.Tensor:
    return (outputs - 1).square().mean()


def train_alone(dtype: torch.dtype = torch.float64, batches_a_step: int = 1, lr: float = 0.1) -> Weights:
    """Both ranks' batches in one process."""
    model = build_model(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        numbers = range(step * batches_a_step, (step + 1) * batches_a_step)
        for number in numbers:
            for rank in range(2):
                (compute_loss(model(build_batch(rank, number, dtype))) / (2 * batches_a_step)).backward()
        optimizer.step()
    return copy_weights(model)


def copy_weights(model: torch.nn.Module) -> Weights:
    """Return the whole weights, also of a sharded model."""
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()
        for name, value in model.state_dict().items()
    }


# --- what the ranks do ------------------------------------------------------------------------------------------------


def train_plainly(
    strategy: Any = None,
    dtype: torch.dtype = torch.float64,
    compiles: str = "",
    amp: torch.dtype | None = None,
    lr: float = 0.1,
    **options: Any,
) -> Weights:
    """Train; as text `compiles` says what torch.compile gets."""
    rank = dist.get_rank()
    with framework.FRAMEWORK.use_strategy(strategy or hocket_torch.AllReduce()):
        if amp is not None:
            hocket_torch.accelerate(amp=True, dtype=amp)
        model = build_model(dtype)
        if rank == 1:
            with torch.no_grad():
                [value.add_(1) for value in model.parameters()]  # all start from rank 0's
        prepared = hocket_torch.prepare_model(model, **options)
        optimizer = hocket_torch.prepare_optimizer(torch.optim.SGD(prepared.parameters(), lr=lr, momentum=0.9))
        if compiles == "model":
            prepared = torch.compile(prepared, backend="aot_eager")  # type: ignore[assignment]

        def step(batch: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = compute_loss(prepared(batch))
            hocket_torch.backward(loss)
            optimizer.step()
            return loss

        if compiles == "step":
            step = torch.compile(step, backend="aot_eager")
        for number in range(STEPS):
            step(build_batch(rank, number, dtype))
        if compiles:
            assert importlib.import_module("torch._dynamo").utils.counters["frames"]["ok"] > 0, "nothing was compiled"
        return copy_weights(model)


def accumulate(**options: Any) -> dict[str, Any]:
    """Two batches a step; count what travels in the first of them."""
    rank = dist.get_rank()
    with framework.FRAMEWORK.use_strategy(hocket_torch.AllReduce()):
        model = build_model()
        prepared = hocket_torch.prepare_model(model, **options)
        optimizer = hocket_torch.prepare_optimizer(torch.optim.SGD(prepared.parameters(), lr=0.1, momentum=0.9))
        mine: list[Any] = []
        for forget in (optimizer.zero_grad, prepared.zero_grad):  # as after an epoch whose last batches make no step
            with hocket_torch.no_sync(prepared):
                compute_loss(prepared(build_batch(rank, 99))).backward()
            forget()
        for number in range(2 * STEPS):
            is_last = number % 2 == 1
            with hocket_torch.no_sync(prepared, when=not is_last):
                (compute_loss(prepared(build_batch(rank, number))) / 2).backward()
            if number == 0:
                mine = [None if p.grad is None else p.grad.tolist() for p in prepared.parameters()]
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
        return {"weights": copy_weights(model), "first": mine}


def save_and_load() -> dict[str, Any]:
    """A checkpoint of a sharded model: whole in rank 0, and given to the others' parts."""
    from torch.distributed.checkpoint import state_dict as states

    with framework.FRAMEWORK.use_strategy(hocket_torch.AllReduce()):
        model = hocket_torch.prepare_model(build_model(), parallel_strategy="fsdp")
        whole: dict[str, Any] = states.get_model_state_dict(
            model, options=states.StateDictOptions(full_state_dict=True, cpu_offload=True)
        )
        doubled = {name: value * 2 for name, value in whole.items()}
        states.set_model_state_dict(
            model, doubled, options=states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        )
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return {"saved": whole, "loaded": copy_weights(model), "norm": float(norm)}


def overflow(**options: Any) -> list[Any]:
    """A step whose gradients overflow float16 is left out, in both ranks, and the scale halves."""
    with framework.FRAMEWORK.use_strategy(hocket_torch.AllReduce()):
        hocket_torch.accelerate(amp=True, dtype=torch.float16)
        model = build_model(torch.float32)
        prepared = hocket_torch.prepare_model(model, **options)
        optimizer = hocket_torch.prepare_optimizer(torch.optim.SGD(prepared.parameters(), lr=0.1))
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)  # it takes optimizers only
        before = copy_weights(model)
        loss = compute_loss(prepared(build_batch(0, 0, torch.float32)))
        hocket_torch.backward(loss * (float("inf") if dist.get_rank() == 1 else 1.0))
        optimizer.step()
        scheduler.step()
        after = copy_weights(model)
        return [all(torch.equal(before[name], after[name]) for name in before), type(optimizer).__name__]


def misuse() -> dict[str, str]:
    """Tensors on another device, and weights of another model: what the errors say."""
    with framework.FRAMEWORK.use_strategy(hocket_torch.AllReduce()):
        model = hocket_torch.prepare_model(build_model())
        calls: dict[str, Callable[[], Any]] = {
            "collective": lambda: dist.all_reduce(torch.ones(3, device="meta")),
            "step": lambda: model(torch.ones(1, 5, device="meta", dtype=torch.float64)),
            "weights": lambda: build_model().load_state_dict(
                {"0.weight": torch.ones(7, 5), "head.bias": torch.ones(3)}
            ),
            "wrapped": lambda: model.load_state_dict(build_model().state_dict()),
        }
        found = {}
        for name, call in calls.items():
            with pytest.raises((ValueError, RuntimeError)) as caught:
                call()
            found[name] = str(caught.value)
        values = torch.ones(2)
        dist.all_reduce(values)  # the ranks go on together
        return {**found, "sum": str(values.tolist())}


def run_all() -> list[Any]:
    """Called in each rank."""
    sharded: Any = {"parallel_strategy": "fsdp"}
    from torch.distributed import fsdp

    halves = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mine = {
        "ddp": train_plainly(),
        "fsdp": train_plainly(**sharded),
        "fsdp_float32": train_plainly(dtype=torch.float32, **sharded),
        "fsdp_bf16": train_plainly(dtype=torch.float32, parallel_strategy_kwargs={"mp_policy": halves}, **sharded),
        "amp": train_plainly(dtype=torch.float32, amp=torch.bfloat16),
        "amp_scaled": train_plainly(dtype=torch.float32, amp=torch.float16),
        "compiled_model": train_plainly(compiles="model"),
        "compiled_step": train_plainly(compiles="step"),
        "local": train_plainly(hocket_torch.LocalSGD(2), lr=0.05),
        "compiled_local": train_plainly(hocket_torch.LocalSGD(2), compiles="step", lr=0.05),
        "accumulated": accumulate(),
        "accumulated_shards": accumulate(**sharded),
        "states": save_and_load(),
        "overflow": overflow(),
        "overflow_shards": overflow(**sharded),
        "misuse": misuse(),
    }
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


def assert_equal(found: Weights, expected: Weights, tolerance: float = 1e-12) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["ddp", "fsdp", "compiled_model", "compiled_step"])
def test_ranks_train_what_one_process_does(found: Any, name: str) -> None:
    expected = train_alone()
    for mine in found:
        assert_equal(mine[name], expected)


def test_shards_in_float32_and_bfloat16(found: Any) -> None:
    expected = train_alone(torch.float32)
    for mine in found:
        assert_equal(mine["fsdp_float32"], expected, 1e-5)
        assert_equal(mine["fsdp_bf16"], expected, 2e-2)
        assert mine["fsdp_bf16"]["0.weight"].dtype == torch.float32, "weights stay in full precision"
    assert not torch.allclose(found[0]["fsdp_bf16"]["0.weight"], expected["0.weight"], rtol=1e-6)


@pytest.mark.parametrize("name", ["amp", "amp_scaled"])
def test_mixed_precision_trains_nearly_the_same(found: Any, name: str) -> None:
    expected = train_alone(torch.float32)
    for mine in found:
        assert_equal(mine[name], expected, 2e-2)
    assert_equal(found[0][name], found[1][name], 0.0)
    assert not torch.allclose(found[0][name]["0.weight"], expected["0.weight"], rtol=1e-6), "halves were used"


def test_a_compiled_step_meets_as_a_plain_one(found: Any) -> None:
    for mine in found:
        assert_equal(mine["compiled_local"], mine["local"])


@pytest.mark.parametrize("name", ["accumulated", "accumulated_shards"])
def test_gradients_of_several_batches_make_one_step(found: Any, name: str) -> None:
    expected = train_alone(batches_a_step=2)
    for mine in found:
        assert_equal(mine[name]["weights"], expected)


def test_the_first_of_several_batches_stays_at_home(found: Any) -> None:
    for rank, mine in enumerate(found):
        model = build_model()
        (compute_loss(model(build_batch(rank, 0))) / 2).backward()
        for gradient, parameter in zip(mine["accumulated"]["first"], model.parameters(), strict=True):
            assert parameter.grad is not None
            torch.testing.assert_close(torch.tensor(gradient, dtype=torch.float64), parameter.grad)


def test_checkpoints_of_sharded_models(found: Any) -> None:
    whole = copy_weights(build_model())
    assert_equal(found[0]["states"]["saved"], whole)
    assert found[1]["states"]["saved"] == {}, "rank 0 has it"
    for mine in found:
        assert_equal(mine["states"]["loaded"], {name: 2 * value for name, value in whole.items()})
        assert mine["states"]["norm"] == 0.0


@pytest.mark.parametrize("name", ["overflow", "overflow_shards"])
def test_steps_that_overflow_are_left_out_everywhere(found: Any, name: str) -> None:
    assert [mine[name] for mine in found] == [[True, "ScaledOptimizer"]] * 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("collective", r"takes dense tensors on the CPU, but received one on meta .* Move it with \.cpu\(\)"),
        ("step", r"device.*meta|meta.*device"),
        (
            "weights",
            r'Missing key\(s\) in state_dict: "0\.bias", "2\.weight", "2\.bias"\..*Unexpected key\(s\) in state_dict: "head\.bias"',
        ),
        ("wrapped", r'Missing key\(s\) in state_dict: "module\.0\.weight"'),
        ("sum", r"^\[2\.0, 2\.0\]$"),
    ],
)
def test_what_does_not_fit_is_named(found: Any, name: str, message: str) -> None:
    for mine in found:
        assert re.search(message, mine["misuse"][name], re.DOTALL), mine["misuse"][name]


# --- in this process --------------------------------------------------------------------------------------------------


def fit_here(function: Callable[[], Any], path: Path) -> Any:
    return hocket_torch.TorchTrainer(
        function,
        scaling_config=train.ScalingConfig(num_workers=0),
        run_config=train.RunConfig(storage_path=path),
    ).fit()


def test_one_rank_changes_nothing(tmp_path: Path) -> None:
    def prepare() -> None:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters())
        for parallel_strategy in ("ddp", "fsdp", None):
            assert hocket_torch.prepare_model(model, parallel_strategy=parallel_strategy) is model
        assert hocket_torch.prepare_optimizer(optimizer) is optimizer
        with hocket_torch.no_sync(model):
            hocket_torch.backward(model(torch.ones(1, 1)).sum())
        hocket_torch.synchronize()

    fit_here(prepare, tmp_path)


def test_mixed_precision_computes_in_halves_and_returns_floats(tmp_path: Path) -> None:
    class Look(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)
            self.seen: torch.dtype | None = None

        def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
            outputs = self.linear(inputs)
            self.seen = outputs.dtype
            return {"outputs": outputs, "numbers": torch.arange(2)}

    def look() -> None:
        hocket_torch.accelerate(amp=True)
        model: Any = hocket_torch.prepare_model(Look())
        for same in (model, copy.deepcopy(model)):
            outputs = same(torch.ones(1, 2))
            assert same.seen is torch.bfloat16
            assert [value.dtype for value in outputs.values()] == [torch.float32, torch.int64]
        twin = copy.deepcopy(model)
        torch.nn.init.zeros_(twin.linear.weight)
        assert not torch.equal(twin(torch.ones(1, 2))["outputs"], model(torch.ones(1, 2))["outputs"])

    fit_here(look, tmp_path)


def test_a_model_in_mixed_precision_can_be_pickled(tmp_path: Path) -> None:
    def pickle_it() -> None:
        hocket_torch.accelerate(amp=True)
        model = hocket_torch.prepare_model(build_model(torch.float32))
        again = pickle.loads(pickle.dumps(model))
        batch = build_batch(0, 0, torch.float32)
        assert torch.equal(again(batch), model(batch))
        again[0].weight.data.zero_()
        assert not torch.equal(again(batch), model(batch))

    fit_here(pickle_it, tmp_path)


def test_a_scaled_optimizer_is_the_optimizer(tmp_path: Path) -> None:
    def look() -> None:
        hocket_torch.accelerate(amp=True, dtype=torch.float16)
        model: Any = hocket_torch.prepare_model(torch.nn.Linear(1, 1))
        plain = torch.optim.Adam(model.parameters(), lr=0.5)
        optimizer = hocket_torch.prepare_optimizer(plain)
        optimizer.param_groups[0]["lr"] = 0.25
        assert plain.param_groups[0]["lr"] == 0.25
        hocket_torch.backward(model(torch.ones(1, 1)).sum() / 100)  # 65536 times 1 is too much for float16
        before = model.bias.item()
        optimizer.step()
        assert before - model.bias.item() == pytest.approx(0.25, rel=1e-4)  # Adam's first step
        assert optimizer.state_dict()["state"].keys() == {0, 1}
        optimizer.load_state_dict(plain.state_dict())
        optimizer.zero_grad()
        assert model.bias.grad is None
        with pytest.raises(ValueError, match=r"step\(\) takes no closure\. Use dtype=torch\.bfloat16"):
            optimizer.step(lambda: 0.0)

    fit_here(look, tmp_path)


def accelerate_late() -> None:
    hocket_torch.prepare_model(torch.nn.Linear(1, 1))
    hocket_torch.accelerate(amp=True)


def accelerate_twice() -> None:
    hocket_torch.accelerate(amp=True)
    hocket_torch.accelerate(amp=True)


def accelerate_wrongly() -> None:
    hocket_torch.accelerate(amp=True, dtype=torch.float64)


def prepare_wrongly() -> None:
    hocket_torch.prepare_model(torch.nn.Linear(1, 1), parallel_strategy="zero")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (accelerate_late, r"after a model or an optimizer was prepared\. Call it before"),
        (accelerate_twice, r"called already in this training function\. Call it once"),
        (accelerate_wrongly, r"must be torch\.bfloat16 or torch\.float16, but received torch\.float64\. Leave it out"),
        (prepare_wrongly, r"must be one of \['ddp', 'fsdp', None\], but received 'zero'\. Leave it out"),
    ],
)
def test_bad_calls_are_refused(tmp_path: Path, function: Any, message: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=message):
        fit_here(function, tmp_path)


def test_reproducibility(tmp_path: Path) -> None:
    def draw() -> list[float]:
        hocket_torch.enable_reproducibility(5)
        try:
            assert torch.are_deterministic_algorithms_enabled()
            return [torch.rand(1).item(), *copy_weights(torch.nn.Linear(1, 1))["weight"].flatten().tolist()]
        finally:
            torch.use_deterministic_algorithms(False)

    assert fit_here(draw, tmp_path).return_value == fit_here(draw, tmp_path).return_value
