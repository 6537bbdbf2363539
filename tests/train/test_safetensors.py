"""Weights in files of safetensors: however a model was prepared, the file has its own names and whole tensors."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from hocket import exceptions, train
from hocket.train import torch as hocket_torch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

safetensors = pytest.importorskip("safetensors.torch", reason="needs safetensors: pip install safetensors")


class Tied(torch.nn.Module):
    """A model with a tensor under two names, and one that is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.into = torch.nn.Linear(4, 4)
        self.out = torch.nn.Linear(4, 4)
        self.out.weight = self.into.weight
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.into(x)) * self.scale  # type: ignore[no-any-return]


def build() -> Tied:
    torch.manual_seed(1)
    return Tied()


def save_in_ranks(config: dict[str, Any]) -> None:
    model: Any = hocket_torch.prepare_model(build(), **config["options"])
    if config["compiles"]:
        model = torch.compile(model, backend="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    hocket_torch.save_model(model, config["folder"])
    other: Any = hocket_torch.prepare_model(Tied(), **config["options"])
    assert hocket_torch.load_model(other, config["folder"]) is other
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        local = [getattr(one, "to_local", lambda one=one: one)() for one in (mine, theirs)]
        assert torch.equal(*local)


@pytest.mark.parametrize(
    ("options", "strategy", "compiles"),
    [
        ({}, None, False),
        ({}, None, True),
        ({"parallel_strategy": "fsdp"}, None, False),
        ({}, hocket_torch.Sharded(mesh={"data": 2}, shard_along="data"), False),
        ({}, hocket_torch.LocalSGD(2), False),
    ],
    ids=["DDP", "compiled", "FSDP", "Sharded", "LocalSGD"],
)
@pytest.mark.usefixtures("session")
def test_what_ranks_save_a_plain_model_loads(
    tmp_path: Path, options: dict[str, Any], strategy: Any, compiles: bool
) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    hocket_torch.TorchTrainer(
        save_in_ranks,
        train_loop_config={"folder": str(folder), "options": options, "compiles": compiles},
        strategy=strategy,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=tmp_path),
    ).fit()
    found = safetensors.load_file(folder / "model.safetensors")
    assert set(found) == {"into.weight", "into.bias", "out.bias", "scale"}
    model = hocket_torch.load_model(Tied(), folder)
    for mine, start in zip(model.parameters(), build().parameters(), strict=True):
        assert torch.equal(mine, start + 1)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    assert parameters["out.weight"] is parameters["into.weight"]


def save_what_servers_have(config: dict[str, Any]) -> None:
    model: Any = hocket_torch.prepare_model(build())
    optimizer = hocket_torch.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    hocket_torch.save_model(model, config["folder"])
    start = model.state_dict()
    torch.distributed.barrier()
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    torch.distributed.barrier()
    assert not torch.equal(model.state_dict()["into.weight"], start["into.weight"])
    torch.distributed.barrier()  # the first one that loads gives them to the servers
    assert hocket_torch.load_model(model, config["folder"]) is model
    torch.distributed.barrier()
    assert all(torch.equal(value, start[name]) for name, value in model.state_dict().items())
    model.eval()(torch.ones(1, 4))
    assert all(torch.equal(value, start[name]) for name, value in model.named_parameters())  # the rank's copies


@pytest.mark.usefixtures("session")
def test_what_servers_have_is_saved_and_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    hocket_torch.TorchTrainer(
        save_what_servers_have,
        train_loop_config={"folder": str(folder)},
        strategy=hocket_torch.ParameterServer(),
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=tmp_path),
    ).fit()
    model = hocket_torch.load_model(Tied(), folder)
    for mine, start in zip(model.parameters(), build().parameters(), strict=True):
        assert torch.equal(mine, start)


def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(2, 1)
    with pytest.raises(TypeError, match=r"save_model\(\) takes a torch.nn.Module, but received 3"):
        hocket_torch.save_model(3, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="writes into an existing folder, but received"):
        hocket_torch.save_model(model, tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"has no model\.safetensors"):
        hocket_torch.load_model(model, tmp_path)
    hocket_torch.save_model(model, tmp_path)
    with pytest.raises(ValueError, match=r"lacks 0.weight, 0.bias; it has .*weight.*, which the model lacks"):
        hocket_torch.load_model(torch.nn.Sequential(torch.nn.Linear(2, 1)), tmp_path)
    with pytest.raises(ValueError, match=r"has weight of shape \(1, 2\) where the model has \(1, 3\)"):
        hocket_torch.load_model(torch.nn.Linear(3, 1), tmp_path)

    def is_missing(module: str) -> None:
        raise ModuleNotFoundError(name=module)

    monkeypatch.setattr(importlib, "import_module", is_missing)
    with pytest.raises(exceptions.MissingExtraError, match="Run pip install safetensors"):
        hocket_torch.save_model(model, tmp_path)
