"""What the tests of PyTorch's modules on meshes run in each rank."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import torch as safetensors
from torch import nn
from torch.distributed import tensor as torch_tensor
from torch.nn import functional

from hocket import mesh
from hocket.mesh import UNSHARDED, Layout, LayoutMap
from tests.mesh.torch_programs import make_mesh

GRID = {"data": 2, "model": 2}


class Tied(nn.Module):
    """A small model of language; what it embeds with it also predicts with."""

    scale: torch.Tensor
    unsaved: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.LayerNorm(8))
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor([2.0]))
        self.register_buffer("unsaved", torch.ones(16), persistent=False)

    def forward(self, numbers: Any) -> Any:
        return self.head(self.body(self.embed(numbers))) * self.scale + self.unsaved


class Convolutional(nn.Module):
    """A small model of images, with running means."""

    def __init__(self) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(4, 8, 3, padding=1, bias=False)
        self.normalize = nn.BatchNorm2d(8)
        self.out = nn.Linear(8 * 4 * 4, 16)

    def forward(self, images: Any) -> Any:
        hidden = self.normalize(self.convolve(images)).relu()
        return self.out(functional.max_pool2d(hidden, 2).flatten(1))


MODELS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], tuple[int, ...]]] = {
    "tied": (
        Tied,
        {
            "embed.weight": ["model", UNSHARDED],
            r"body\.0\.weight": ["model", UNSHARDED],
            r"body\.0\.bias": ["model"],
            r"body\.2\.weight": ["data", "model"],
        },
        (8,),
    ),
    "convolutional": (
        Convolutional,
        {r"convolve\.weight": ["model", UNSHARDED, UNSHARDED, UNSHARDED], r"out\.weight": [UNSHARDED, "model"]},
        (8, 4, 8, 8),
    ),
}


def _spread(name: str) -> tuple[nn.Module, nn.Module, LayoutMap]:
    """Make a model, the same in each rank, and the same spread."""
    make, rules, _ = MODELS[name]
    torch.manual_seed(0)
    plain = make()
    layout_map = LayoutMap(make_mesh(GRID), rules)
    spread = copy.deepcopy(plain)
    assert mesh.distribute(spread, layout_map) is spread
    return plain, spread, layout_map


def train_as_one_process(name: str) -> None:
    """Steps of Adam on a batch that is cut, and on one that all ranks have, train the weights of one process."""
    plain, spread, _ = _spread(name)
    shape = MODELS[name][2]
    inputs = torch.randint(0, 16, shape) if len(shape) == 1 else torch.randn(shape)
    goals = torch.randint(0, 16, (8,))
    cut = [
        mesh.copy_to_mesh(one, Layout(["data", *[UNSHARDED] * (one.ndim - 1)], make_mesh(GRID)))
        for one in (inputs, goals)
    ]
    both = [(model, torch.optim.Adam(model.parameters(), 0.01)) for model in (plain, spread)]
    for batch in (cut, cut, (inputs, goals)):
        losses: list[Any] = []
        for (model, optimizer), (some, wanted) in zip(both, ((inputs, goals), batch), strict=True):
            optimizer.zero_grad()
            target: Any = wanted
            loss = functional.cross_entropy(model(some), target)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss)
        for parameter in spread.parameters():
            assert isinstance(parameter, torch_tensor.DTensor)
            assert isinstance(parameter.grad, torch_tensor.DTensor)
            assert parameter.grad.placements == parameter.placements
        assert losses[1].gather() == pytest.approx(losses[0].item(), rel=1e-5)
    for (key, one), other in zip(plain.state_dict().items(), spread.state_dict().values(), strict=True):
        np.testing.assert_allclose(other.full_tensor().numpy(), one.numpy(), rtol=1e-4, atol=1e-5, err_msg=key)
    for model in (plain, spread):
        model.eval()
    with torch.no_grad():
        np.testing.assert_allclose(spread(cut[0]).gather(), plain(inputs).numpy(), rtol=1e-4, atol=1e-4)


def distribute_in_place() -> None:
    plain, spread, layout_map = _spread("tied")
    assert isinstance(spread, Tied)
    assert spread.head.weight is spread.embed.weight
    assert isinstance(spread.embed.weight, nn.Parameter)
    for name, parameter in spread.named_parameters():
        assert isinstance(parameter, torch_tensor.DTensor)
        wanted = layout_map.find(name, parameter.shape).local_shape_from_global_shape(parameter.shape)
        assert tuple(parameter.to_local().shape) == wanted
    for buffer in (spread.scale, spread.unsaved):
        assert isinstance(buffer, torch_tensor.DTensor)
        assert buffer.to_local().shape == buffer.shape
    told = mesh.explain(plain, layout_map, batch_dims=["data"])
    assert str(told) == str(mesh.explain(spread, layout_map, batch_dims=["data"]))
    rows = {row.name: row for row in told.rows}
    assert list(rows) == [*(name for name, _ in plain.named_parameters()), "scale"]
    assert rows["body.2.weight"].local_shape == (4, 8)
    assert rows["body.2.weight"].backward.describe() == "reduce-scatter of dim 0 along data (128 B)"
    assert rows["scale"].backward.steps == ()
    everywhere = mesh.distribute(spread, LayoutMap(make_mesh(GRID)))  # again, in another way
    np.testing.assert_array_equal(everywhere.embed.weight.to_local().detach(), plain.embed.weight.detach())  # type: ignore[operator, union-attr]
    for parameter in plain.parameters():
        parameter.requires_grad = False
    assert mesh.explain(plain, LayoutMap(make_mesh(GRID)), batch_dims=["data"]).moved_bytes == 0


def refuse_modules() -> None:
    plain, _, _ = _spread("tied")
    before = torch.optim.SGD(plain.parameters(), 0.1)
    old = plain.state_dict()
    grid = make_mesh(GRID)
    for rules, match in [
        ({"head.weight": ["model", UNSHARDED]}, "'head.weight' matches no parameter. Their names are 'embed.weight'"),
        ({"scale": ["model"]}, "The rule 'scale' matches no parameter"),
        ({r"body\.0\.bias": ["model", "data"]}, "layout of the parameter 'body.0.bias' does not fit it"),
        ({".*weight": ["model"], "embed.*": ["data"]}, "both match the parameter 'embed.weight'"),
    ]:
        wrong: Any = rules
        with pytest.raises(ValueError, match=match):
            mesh.distribute(plain, LayoutMap(grid, wrong))
        assert [one.data_ptr() for one in plain.state_dict().values()] == [one.data_ptr() for one in old.values()]
    mesh.distribute(plain, LayoutMap(grid))
    with pytest.raises(RuntimeError, match=r"This SGD holds parameters that mesh.distribute\(\) has replaced"):
        before.step()
    torch.optim.SGD(plain.parameters(), 0.1).step()
    with pytest.raises(IndexError, match="takes row numbers from 0 to 15, but received 16 to 16"):
        plain(torch.tensor([16]))
    assert mesh.is_dtensor(plain(torch.tensor([15])))  # after an error as before it


def save_modules(folder: str) -> None:
    """A module is saved, and loaded into another one on another mesh; its export is read by the plain loader."""
    plain, spread, _ = _spread("tied")
    path = mesh.save(spread, Path(folder, "saved"))
    row = LayoutMap(make_mesh({"all": 4}), {r"embed\.weight": ["all", UNSHARDED]})
    fresh = Tied()
    nn.init.zeros_(fresh.embed.weight)
    assert mesh.load(path, row, like=fresh) is fresh
    assert fresh.embed.weight is fresh.head.weight
    again = mesh.load(path, like=spread)  # as it is spread
    for model in (fresh, again):
        for (key, one), (name, other) in zip(plain.named_parameters(), model.named_parameters(), strict=True):
            assert key == name
            assert torch.equal(other.full_tensor(), one)
    exported = mesh.export(fresh, Path(folder, "whole.safetensors"))
    torch.manual_seed(1)
    loaded = Tied()
    safetensors.load_model(loaded, exported)
    for one, other in zip(loaded.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def run_all(folder: str) -> None:
    for name in MODELS:
        train_as_one_process(name)
    distribute_in_place()
    refuse_modules()
    save_modules(folder)
