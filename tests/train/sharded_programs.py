"""Training functions whose model is cut over a mesh of the ranks."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.optim import swa_utils
from torch.utils import checkpoint

from hocket import mesh, train
from hocket.train.torch import prepare_data_loader, prepare_model

WIDTH, HEADS, WORDS, LENGTH, ROWS = 16, 4, 32, 6, 32

TENSOR_PARALLEL: dict[str, list[str]] = {
    r".*\b[qkv]\.weight": ["model", mesh.UNSHARDED],
    r".*\b[qkv]\.bias": ["model"],
    r".*\bo\.weight": [mesh.UNSHARDED, "model"],
    r".*up\.weight": ["model", mesh.UNSHARDED],
    r".*up\.bias": ["model"],
    r".*down\.weight": [mesh.UNSHARDED, "model"],
}
"""Heads and the hidden layer are cut, as in Megatron."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        normed = self.before(x)
        query, key, value = (
            layer(normed).view(rows, length, HEADS, width // HEADS).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = (query @ key.transpose(-1, -2) / (width // HEADS) ** 0.5).masked_fill(later, float("-inf"))
        x = x + self.o((scores.softmax(-1) @ value).transpose(1, 2).reshape(rows, length, width))
        found: torch.Tensor = x + self.down(functional.gelu(self.up(self.after(x))))
        return found


class Transformer(nn.Module):
    """Embedding and output are one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.out = nn.Linear(WIDTH, WORDS, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.blocks(self.words(x)))
        return found


def make_rows() -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(0, WORDS, (ROWS, LENGTH + 1), generator=generator)
    return torch.utils.data.TensorDataset(words[:, :-1], words[:, 1:])


def read_whole(model: nn.Module) -> dict[str, Any]:
    """Return a model's parameters as numpy arrays. All ranks call it."""
    return {
        name: np.array((value.full_tensor() if hasattr(value, "full_tensor") else value).detach())
        for name, value in model.state_dict().items()
    }


def train_transformer(config: dict[str, Any]) -> dict[str, Any]:
    """Train on batches of 8 rows; return the weights, how much of them a rank keeps, and which rows it saw."""
    torch.set_num_threads(1)
    torch.manual_seed(train.get_context().get_world_rank())  # all start from rank 0's weights
    model = prepare_model(Transformer())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = prepare_data_loader(torch.utils.data.DataLoader(make_rows(), batch_size=config["batch_size"]))
    for _ in range(2):
        for words, following in loader:
            loss = functional.cross_entropy(model(words).flatten(0, 1), following.flatten()) * loader.loss_scale
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    total = sum(value.numel() for value in model.parameters())
    kept = sum((value.to_local() if hasattr(value, "to_local") else value).numel() for value in model.parameters())
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    return {
        "weights": read_whole(model),
        "kept": kept / total,
        "norm": float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm),
    }


def train_recurrent(config: dict[str, Any]) -> dict[str, Any]:
    """Train what keeps its parameters in a list of its own, with batches of two parts a step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = prepare_model(nn.LSTM(4, 8, batch_first=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.linspace(-1, 1, 8 * 3 * 4).reshape(8, 3, 4)
    part, parts = config["parts"][train.get_context().get_world_rank()]
    mine = rows.chunk(parts)[part]
    for _ in range(3):
        optimizer.zero_grad()
        for half in mine.chunk(2):
            output, (hidden, _) = model(half)
            ((output**2).mean() + hidden.mean()).div(2).backward()
        optimizer.step()
    return read_whole(model)


class Borrower(nn.Module):
    """Layers that use parameters of others: attention's output, a list's, an embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.scales = nn.ParameterList([torch.linspace(0.5, 1.5, WIDTH), torch.eye(WIDTH)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(self.words(x))
        x = x + self.attention(x, x, x)[0] * self.scales[0] @ self.scales[1]
        assert self.words.weight.shape == (WORDS, WIDTH)
        x = x + functional.linear(x, self.attention.out_proj.weight.detach())
        return functional.linear(x, self.words.weight)


def train_borrower(config: dict[str, Any]) -> dict[str, Any]:
    """Train it, and evaluate it without gradients, where torch has other ways through attention."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = prepare_model(Borrower())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    part, parts = config["parts"][train.get_context().get_world_rank()]
    words, following = make_rows()[:8]
    for _ in range(3):
        loss = functional.cross_entropy(
            model(words.chunk(parts)[part]).flatten(0, 1), following.chunk(parts)[part].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        return {**read_whole(model), "scores": model(words).numpy()}


class Roundabout(nn.Module):
    """Blocks that run again in the backward pass, twice, or in parts, and one that does not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(5)])
        self.blocks[4].requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        again, twice, inside, parts, frozen = self.blocks
        assert isinstance(inside, nn.Sequential)
        assert isinstance(parts, nn.Sequential)
        x = checkpoint.checkpoint(again, x, use_reentrant=False)
        x = twice(twice(x)) + checkpoint.checkpoint(inside[0], x, use_reentrant=False)
        with torch.no_grad():
            plain: torch.Tensor = twice(x)
        found: torch.Tensor = frozen(inside[1:](x) + parts[2](parts[0](x))) + plain
        return found


def train_roundabout(config: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = prepare_model(Roundabout())
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1, momentum=0.9)
    part, parts = config["parts"][train.get_context().get_world_rank()]
    for step in range(3):
        rows = torch.linspace(-1, 1, 64).add(step).sin().reshape(8, 8).chunk(parts)[part].requires_grad_()
        loss = model(rows).square().mean()
        torch.autograd.grad(loss, rows, retain_graph=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return read_whole(model)


@dataclasses.dataclass
class Found:
    scores: Any
    others: Any = None


class Coder(nn.Module):
    """Two modules that a program may also call by themselves; attention of one sequence by another."""

    def __init__(self) -> None:
        super().__init__()
        self.encode: nn.Module = nn.Linear(8, WIDTH)
        self.decode: nn.Module = nn.Linear(WIDTH, 4)
        self.attention = nn.Transformer(WIDTH, 2, 1, 1, 8, dropout=0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> Found:
        x = self.encode(x)
        return Found(self.decode(self.attention(x, x.flip(1))), {"codes": x})


def train_coder(config: dict[str, Any]) -> dict[str, Any]:
    """Train it by its parts, and evaluate it, and the mean of what it was, where torch keeps no history."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: Any = prepare_model(Coder())
    mean = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    part, parts = config["parts"][train.get_context().get_world_rank()]
    rows = torch.linspace(-1, 1, 4 * 3 * 8).sin().reshape(4, 3, 8).chunk(parts)[part]
    for _ in range(3):
        found = model(rows)
        loss = found.scores.square().mean() + found.others["codes"].mean()
        loss = loss + model.forward(rows).scores.mean() + model.decode(model.encode(rows)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean.update_parameters(model)
    model.eval()
    with torch.inference_mode():
        scores = {name: np.array(one(rows).scores) for name, one in (("now", model), ("mean", mean))}
    return {**read_whole(model), **(scores if parts == 1 else {})}


class Follower(nn.Module):
    """Two layers, of which one is a mean of what the other was; it is updated as they compute."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.mean = nn.Linear(8, 8), nn.Linear(8, 8)
        self.mean.requires_grad_(requires_grad=False)
        self.empty = nn.Parameter(torch.zeros(4, 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        online: torch.Tensor = self.online(x)
        with torch.no_grad():
            for mine, other in zip(self.mean.parameters(), self.online.parameters(), strict=True):
                mine.mul_(0.5).add_(other, alpha=0.5)
            mean = self.mean(x)
        nothing = functional.embedding(torch.zeros(0, dtype=torch.int64), online).sum() + self.empty.sum()
        result: torch.Tensor = online - mean + nothing
        return result


def train_follower(config: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = prepare_model(nn.Sequential(nn.Linear(8, 8), Follower()))
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)
    part, parts = config["parts"][train.get_context().get_world_rank()]
    rows = torch.linspace(-1, 1, 64).sin().reshape(8, 8).chunk(parts)[part]
    for _ in range(3):
        optimizer.zero_grad()
        (model(rows) - 1).square().mean().backward()
        optimizer.step()
    return read_whole(model)


def train_copies(config: dict[str, Any]) -> dict[str, Any]:
    """Train copies of a part of a model, and of the model when it has lost a layer; return what they were before and
    are then."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: Any = prepare_model(
        nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 8), nn.Linear(8, 8))
    )
    part, parts = config["parts"][train.get_context().get_world_rank()]
    rows = torch.linspace(-1, 1, 64).sin().reshape(8, 8).chunk(parts)[part]
    inner = copy.deepcopy(model[0])
    model[2] = nn.Identity()
    copies = {"inner": inner, "rest": copy.deepcopy(model), "again": copy.deepcopy(inner)}
    for one in (inner, copies["rest"]):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            one(rows).square().mean().backward()
            optimizer.step()
    return {f"{name} {key}": value for name, one in copies.items() for key, value in read_whole(one).items()}


def write_wrongly(config: dict[str, Any]) -> list[str]:
    """Return what is said where parameters change while something computes with them, or slopes have slopes."""
    told = []
    for module in (nn.Embedding(4, 4, max_norm=0.1), nn.Embedding(4, 4, sparse=True), nn.Linear(4, 4), nn.Tanh()):
        x = torch.arange(4) if isinstance(module, nn.Embedding) else torch.ones(4, 4, requires_grad=True)
        model = prepare_model(nn.Sequential(module, nn.Linear(4, 4)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            loss = model(x).square().mean()
            if isinstance(module, nn.Linear):
                torch.autograd.grad(loss, x, create_graph=True)
            loss.backward(retain_graph=True)
            optimizer.step()
            loss.backward()
            told.append("nothing")
        except (RuntimeError, NotImplementedError) as error:
            told.append(str(error))
    return told


def train_beside_a_teacher(config: dict[str, Any]) -> None:
    """Train one model; another one, prepared after it, is only asked."""
    model = prepare_model(nn.Sequential(nn.Linear(8, 4)))
    teacher = prepare_model(nn.Linear(8, 4).requires_grad_(requires_grad=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.ones(2, 8)) - teacher(torch.ones(2, 8))).square().mean().backward()
        optimizer.step()


def take_other_layers(config: dict[str, Any]) -> str:
    """Return what is said if ranks use different layers."""
    model: Any = prepare_model(nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[train.get_context().get_world_rank()](torch.ones(2, 4)).sum().backward()
    try:
        optimizer.step()
    except RuntimeError as error:
        return str(error)
    return "nothing"


def run_compiled(config: dict[str, Any]) -> float:
    """Return how much a compiled model's results and slopes differ from those of the model."""
    torch.manual_seed(0)
    model = prepare_model(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)))
    compiled, rows, found = torch.compile(model, backend="eager"), torch.ones(2, 4), []
    for one in (model, compiled):
        model.zero_grad()
        scores = one(rows)
        scores.square().sum().backward()
        slopes: list[Any] = [parameter.grad for parameter in model.parameters()]
        found.append(torch.cat([scores.detach().flatten(), *[slope.full_tensor().flatten() for slope in slopes]]))
    return float((found[0] - found[1]).abs().max())


def normalize_batches(config: dict[str, Any]) -> list[float]:
    """Return the means that a batch normalization keeps, in all ranks, after rows that differ."""
    rank = train.get_context().get_world_rank()
    model: Any = prepare_model(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        rows = torch.arange(8.0).reshape(4, 2) + rank + step
        state = next(model.parameters()).new_zeros(2)  # a DTensor, as the parameter is
        model(rows).square().mean().backward()
        model[0](state).sum().backward()
        optimizer.step()
    if config.get("again"):  # without gradients
        swa_utils.update_bn([torch.arange(8.0).reshape(4, 2) * (rank + 1)], model)
    whole: list[Any] = [None, None]
    dist.all_gather_object(whole, [float(one) for one in model[1].running_mean])
    return [*whole[0], *whole[1]]


def penalize(config: dict[str, Any]) -> dict[str, Any]:
    """Train with a penalty on the gradients of the parameters."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = prepare_model(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    part, parts = config["parts"][train.get_context().get_world_rank()]
    rows = torch.linspace(-1, 1, 64).sin().reshape(8, 8).chunk(parts)[part]
    for _ in range(3):
        loss = model(rows).square().mean()
        slopes: list[Any] = list(torch.autograd.grad(loss, list(model.parameters()), create_graph=True))
        whole = [slope.full_tensor() if hasattr(slope, "full_tensor") else slope for slope in slopes]
        optimizer.zero_grad()
        (loss + sum(slope.square().sum() for slope in whole)).backward()
        optimizer.step()
    return read_whole(model)


class Picture(nn.Module):
    """Convolutions, and attention over their pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, WIDTH, 3, padding=1)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.first(x).relu()).relu().flatten(2).transpose(1, 2)
        q, k, v = (layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        found: torch.Tensor = self.o(mixed.transpose(1, 2).flatten(2)).mean(1)
        return found


PICTURE_LAYOUT: dict[str, list[str]] = {
    "first.weight": ["model", *[mesh.UNSHARDED] * 3],
    "first.bias": ["model"],
    "second.weight": [mesh.UNSHARDED, "model", *[mesh.UNSHARDED] * 2],
    "[qkv].weight": ["model", mesh.UNSHARDED],
    "[qkv].bias": ["model"],
    "o.weight": [mesh.UNSHARDED, "model"],
}


def train_picture(config: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = prepare_model(Picture())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.linspace(-1, 1, 4 * 3 * 16).cos().reshape(4, 3, 4, 4)
    for _ in range(3):
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()
    return read_whole(model)


class ByName(nn.Module):
    """Functions of torch that get their tensors by name."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.arange(4), requires_grad=False)  # numbers have no slopes
        self.first, self.second, self.table = nn.Linear(8, 8), nn.Conv1d(2, 4, 3), nn.Embedding(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.linear(input=x, weight=self.first.weight, bias=self.first.bias).unflatten(1, (2, 4))
        x = functional.conv1d(input=x, weight=self.second.weight, bias=self.second.bias).cumsum(dim=1)
        return x + functional.embedding(input=self.rows, weight=self.table.weight)[:, :2]


class Losses(nn.Module):
    """Losses that a model computes by itself, as those of transformers do, and a sum as a number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        y = torch.ones_like(x) / 2
        found = functional.mse_loss(x, y) + functional.smooth_l1_loss(x, y) + functional.huber_loss(x, y)
        found = found + functional.binary_cross_entropy(x.sigmoid(), y) + functional.soft_margin_loss(x, y)
        return found + functional.cosine_embedding_loss(x, y, torch.ones(4)) + x.mean() * float(x.detach().sum())


def list_layers() -> dict[str, tuple[nn.Module, Any]]:
    """Modules, and what comes of them from 4 rows of 8 numbers."""
    return {
        "cumsum": (nn.Linear(8, 4), lambda x: x.cumsum(1)),
        "cummax": (nn.Linear(8, 4), lambda x: torch.cummax(x, dim=1)[0]),
        "std": (nn.Linear(8, 4), lambda x: x.std(1)),
        "group norm": (nn.Sequential(nn.Linear(8, 8), nn.GroupNorm(2, 8)), lambda x: x),
        "batch norm": (nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), lambda x: x),
        "RMS norm": (nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8)), lambda x: x),
        "weight norm": (nn.utils.parametrizations.weight_norm(nn.Linear(8, 4)), lambda x: x),
        "spectral norm": (nn.utils.parametrizations.spectral_norm(nn.Linear(8, 4)), lambda x: x),
        "PReLU": (nn.Sequential(nn.Linear(8, 4), nn.PReLU(4)), lambda x: x),
        "pool": (nn.Linear(8, 8), lambda x: functional.avg_pool2d(x.reshape(4, 2, 2, 2), 2)),
        "convolution": (nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 4, 3, padding=1)), lambda x: x),
        "embedding": (nn.Embedding(8, 4, padding_idx=0), lambda x: x.sum(1)),
        "softmax": (nn.Linear(8, 4), lambda x: x.softmax(1)),
        "by name": (ByName(), lambda x: x),
        "logsumexp": (
            nn.Linear(8, 8),
            lambda x: x.unflatten(0, (2, 2)) + x.unflatten(0, (2, 2)).logsumexp(1, keepdim=True),
        ),
        "losses": (Losses(), lambda x: x),
        "sort": (nn.Linear(8, 4), lambda x: x.sort(1)[0]),
    }


def compare_layers(config: dict[str, Any]) -> list[str]:
    """Train each layer, whose parameters are cut along their first dims, and a copy of it in this rank alone."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    try:
        for name in list_layers():
            states = []
            for prepare in (prepare_model, lambda model: model):
                torch.manual_seed(0)
                module, finish = list_layers()[name]
                rows = torch.arange(32).reshape(4, 8) % 7 if name == "embedding" else torch.randn(4, 8)
                module = prepare(module)
                optimizer, loss = torch.optim.SGD(module.parameters(), lr=0.1), torch.zeros(())
                for _ in range(2):
                    optimizer.zero_grad()
                    loss = (finish(module(rows)) ** 3).sum()
                    loss.backward()
                    optimizer.step()
                states.append({**read_whole(module), "loss": np.array(loss.detach())})
            for key, value in states[1].items():
                np.testing.assert_allclose(states[0][key], value, rtol=1e-9, atol=1e-12, err_msg=f"{name}: {key}")
    finally:
        torch.set_default_dtype(torch.float32)
    return list(list_layers())


class Dropping(nn.Module):
    """Attention with one head, of which all ranks have all."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)[:, None, None]
        return functional.scaled_dot_product_attention(x, x, x, None, 0.5)


def drop_in_attention(config: dict[str, Any]) -> None:
    prepare_model(Dropping())(torch.randn(4, 8))


def save_and_load(config: dict[str, Any]) -> float:
    """Save a spread model, change it, and load it again, in parts and whole; return the greatest difference."""
    torch.manual_seed(0)
    model = prepare_model(Transformer())
    before = read_whole(model)
    folder = mesh.save(model, config["folder"])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    kept = dict(model.named_parameters())
    mesh.load(folder, like=model)
    assert all(value is kept[name] for name, value in model.named_parameters())  # an optimizer goes on
    first = read_whole(model)
    model.load_state_dict({name: torch.from_numpy(value + 1) for name, value in before.items()})  # whole ones
    second = read_whole(model)
    pairs = [(first[name], value) for name, value in before.items()]
    pairs += [(second[name], value + 1) for name, value in before.items()]
    return max(float(abs(found - expected).max()) for found, expected in pairs)


def train_on(config: dict[str, Any]) -> dict[str, Any]:
    """Take steps, after those of a checkpoint if there is one; save the model and its optimizer."""
    torch.set_num_threads(1)
    torch.manual_seed(train.get_context().get_world_rank())
    model = prepare_model(Transformer())
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.05, betas=(0.8, 0.9), eps=1e-3
    )  # keys have no slope but noise
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    tree = {"model": model, "optimizer": optimizer}
    if "load" in config:
        mesh.load(config["load"], like=tree)
    part, parts = config["parts"][train.get_context().get_world_rank()]
    words, following = make_rows()[:8]
    for _ in range(config["steps"]):
        scores = model(words.chunk(parts)[part])
        loss = functional.cross_entropy(scores.flatten(0, 1), following.chunk(parts)[part].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    mesh.save(tree, config["save"])
    return {**read_whole(model), "lr": np.array(optimizer.param_groups[0]["lr"])}


def step_with_old_parameters(config: dict[str, Any]) -> None:
    model = Transformer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    words, _ = make_rows()[:4]
    prepare_model(model)(words).sum().backward()
    optimizer.step()


def prepare_only(config: dict[str, Any]) -> None:
    prepare_model(Transformer(), **config)


def prepare_compiled(config: dict[str, Any]) -> None:
    prepare_model(torch.compile(nn.Linear(2, 2), backend="eager"))  # type: ignore[arg-type]


def add_a_layer_later(config: dict[str, Any]) -> None:
    model = prepare_model(nn.Sequential(nn.Linear(2, 2)))
    model.append(nn.Linear(2, 2))  # type: ignore[operator]
    model(torch.ones(2, 2))


def load_others(config: dict[str, Any]) -> None:
    model = prepare_model(nn.Sequential(nn.Linear(2, 2)))
    model.load_state_dict({name: torch.ones(value.shape) for name, value in model.state_dict().items()}, assign=True)
    model(torch.ones(2, 2))


def save_what_an_optimizer_lists(config: dict[str, Any]) -> None:
    model = prepare_model(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[next(iter(model.parameters()))]["history"] = [1.0]
    mesh.save({"model": model, "optimizer": optimizer}, config["folder"])


def prepare_twice(config: dict[str, Any]) -> None:
    prepare_model(prepare_model(Transformer()))


def raise_in_a_layer(config: dict[str, Any]) -> list[str]:
    """Return which kinds of parameters the model has after a forward pass that has failed."""
    model = prepare_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(8, 8)))
    try:
        model(torch.ones(2, 4))
    except RuntimeError:
        return sorted(
            {type(parameter).__name__ for parameter in model.parameters()} | {str(len([*model.parameters()]))}
        )
    return []
