"""Unusual ways to write a training loop of PyTorch, each written once: for ranks, and for one process with the whole
batch."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import swa_utils

from hocket import train
from hocket.train import torch as hocket_torch

ROWS, STEPS, LR = 8, 6, 0.05


class Tools(Protocol):
    """What a loop calls of Hocket; in one process nothing happens."""

    rank: int

    def rows(self, step: int) -> torch.Tensor:
        """Return the step's rows, of this rank."""

    def model(self, net: nn.Module, **options: Any) -> Any:
        """Prepare a model."""

    def optimizer(self, made: torch.optim.Optimizer) -> Any:
        """Prepare an optimizer."""

    def no_sync(self, model: Any) -> contextlib.AbstractContextManager[None]:
        """Have backward passes in a block keep their gradients."""


def _draw(step: int) -> torch.Tensor:
    return torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(step + 1))


class Alone:
    """One process with the whole batch."""

    rank = 0

    def rows(self, step: int) -> torch.Tensor:
        return _draw(step)

    def model(self, net: nn.Module, **_: Any) -> Any:
        return net

    def optimizer(self, made: torch.optim.Optimizer) -> Any:
        return made

    def no_sync(self, model: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class Ranks:
    """A rank, which has its part of the batch."""

    def __init__(self, parallel_strategy: str = "ddp") -> None:
        context = train.get_context()
        self.rank, self._size = context.get_world_rank(), context.get_world_size()
        self._options = {"parallel_strategy": parallel_strategy}

    def rows(self, step: int) -> torch.Tensor:
        part = ROWS // self._size
        return _draw(step)[self.rank * part : (self.rank + 1) * part]

    def model(self, net: nn.Module, **options: Any) -> Any:
        given = {"parallel_strategy_kwargs": options} if options else {}
        return hocket_torch.prepare_model(net, **self._options, **given)  # type: ignore[arg-type]

    def optimizer(self, made: torch.optim.Optimizer) -> Any:
        return hocket_torch.prepare_optimizer(made)

    def no_sync(self, model: Any) -> contextlib.AbstractContextManager[None]:
        return hocket_torch.no_sync(model)


def open_model(model: Any) -> Any:
    """Return the model in a wrapper, which programs reach into."""
    return getattr(model, "module", model)


class Net(nn.Module):
    """Three layers, and a second way through them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.extra: nn.Module | None = None
        self.scale = torch.ones(())

    def forward(self, x: torch.Tensor, skips: bool = False) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        if not skips:
            x = torch.tanh(self.second(x))
        if self.extra is not None:
            x = self.extra(x)
        result: torch.Tensor = self.head(x)
        return result * self.scale

    def aside(self, x: torch.Tensor) -> torch.Tensor:
        """Another way through the layers."""
        result: torch.Tensor = self.second(self.first(x)).square().mean(1, keepdim=True)
        return result


def build(kind: Callable[[], nn.Module] = Net) -> Any:
    torch.manual_seed(3)
    return kind()


def _loss(output: torch.Tensor) -> torch.Tensor:
    return (output - 1).square().mean()


def _train(
    tools: Tools,
    model: Any,
    optimizer: Any,
    between: Callable[[int], object] = lambda step: None,
    call: Callable[[Any, torch.Tensor], torch.Tensor] = lambda model, x: model(x),
    before_step: Callable[[], object] = lambda: None,
) -> Any:
    """Take steps, as most loops do."""
    for step in range(STEPS):
        between(step)
        optimizer.zero_grad()
        _loss(call(model, tools.rows(step))).backward()
        before_step()
        optimizer.step()
    return model


def _begin(tools: Tools, net: nn.Module | None = None, **options: Any) -> tuple[Any, Any]:
    model = tools.model(build() if net is None else net, **options)
    return model, tools.optimizer(torch.optim.SGD(model.parameters(), lr=LR, momentum=0.0))


# --- optimizers -------------------------------------------------------------------------------------------------------


def plain(tools: Tools) -> Any:
    return _train(tools, *_begin(tools))


def optimizer_before(tools: Tools) -> Any:
    net = build()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    return _train(tools, tools.model(net), tools.optimizer(optimizer))


def optimizer_after_a_forward_pass(tools: Tools) -> Any:
    model = tools.model(build())
    model(tools.rows(0))
    return _train(tools, model, tools.optimizer(torch.optim.SGD(model.parameters(), lr=LR)))


def two_optimizers(tools: Tools) -> Any:
    model = tools.model(build())
    inner = open_model(model)
    first = tools.optimizer(torch.optim.SGD([*inner.first.parameters(), *inner.second.parameters()], lr=LR))
    other = tools.optimizer(torch.optim.SGD(inner.head.parameters(), lr=LR / 2))
    for step in range(STEPS):
        first.zero_grad()
        other.zero_grad()
        _loss(model(tools.rows(step))).backward()
        first.step()
        other.step()
    return model


def two_optimizers_by_turns(tools: Tools) -> Any:
    model = tools.model(build())
    inner = open_model(model)
    first = tools.optimizer(torch.optim.SGD([*inner.first.parameters(), *inner.second.parameters()], lr=LR))
    other = tools.optimizer(torch.optim.SGD(inner.head.parameters(), lr=LR))
    for step in range(STEPS):
        model.zero_grad()
        _loss(model(tools.rows(step))).backward()
        (first if step % 2 else other).step()
    return model


def two_models_one_optimizer(tools: Tools) -> Any:
    first, second = tools.model(build(lambda: nn.Linear(4, 4))), tools.model(build())
    optimizer = tools.optimizer(torch.optim.SGD([*first.parameters(), *second.parameters()], lr=LR))
    _train(tools, nn.ModuleList([first, second]), optimizer, call=lambda both, x: both[1](both[0](x)))
    return second


def parameter_outside(tools: Tools) -> Any:
    model, scale = tools.model(build()), nn.Parameter(torch.ones(()) * 2)
    optimizer = tools.optimizer(torch.optim.SGD([*model.parameters(), scale], lr=LR))
    return _train(tools, model, optimizer, call=lambda model, x: model(x) * scale)


def parameter_outside_with_a_closure(tools: Tools) -> Any:
    model, scale = tools.model(build()), nn.Parameter(torch.ones(()) * 2)
    optimizer = tools.optimizer(torch.optim.SGD([*model.parameters(), scale], lr=LR))
    for step in range(STEPS):

        def compute(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = _loss(model(tools.rows(step)) * scale)
            loss.backward()
            return loss

        optimizer.step(compute)
    return model


def closure(tools: Tools) -> Any:
    model, optimizer = _begin(tools)
    for step in range(STEPS):

        def compute(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = _loss(model(tools.rows(step)))
            loss.backward()
            return loss

        optimizer.step(compute)
    return model


def momentum_and_decay(tools: Tools) -> Any:
    model = tools.model(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    optimizer = tools.optimizer(optimizer)
    return _train(tools, model, optimizer, between=lambda step: step and schedule.step())


def groups(tools: Tools) -> Any:
    model = tools.model(build())
    inner = open_model(model)
    layers = [{"params": inner.first.parameters(), "lr": LR / 5}, {"params": inner.head.parameters()}]
    return _train(tools, model, tools.optimizer(torch.optim.SGD(layers, lr=LR)))


def scaled_by_hand(tools: Tools) -> Any:
    model, optimizer = _begin(tools)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(_loss(model(tools.rows(step)))).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    return model


# --- layers that change -----------------------------------------------------------------------------------------------


def unfrozen_later(tools: Tools) -> Any:
    net = build()
    net.first.requires_grad_(False)
    model = tools.model(net)
    optimizer = tools.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
    return _train(tools, model, optimizer, between=lambda step: net.first.requires_grad_(step >= 2))


def frozen_later(tools: Tools) -> Any:
    model, optimizer = _begin(tools)
    return _train(tools, model, optimizer, between=lambda step: open_model(model).second.requires_grad_(step < 2))


def frozen_and_unfrozen(tools: Tools) -> Any:
    model, optimizer = _begin(tools)
    return _train(tools, model, optimizer, between=lambda step: open_model(model).first.requires_grad_(step % 2 == 0))


def all_frozen_for_a_while(tools: Tools) -> Any:
    """As a discriminator is, while a generator learns through it."""
    model, other = tools.model(build()), tools.model(build(lambda: nn.Linear(4, 4)))
    mine = tools.optimizer(torch.optim.SGD(model.parameters(), lr=LR))
    theirs = tools.optimizer(torch.optim.SGD(other.parameters(), lr=LR))
    for step in range(STEPS):
        model.requires_grad_(False)
        theirs.zero_grad()
        _loss(model(other(tools.rows(step)))).backward()
        theirs.step()
        model.requires_grad_(True)
        mine.zero_grad()
        _loss(-model(other(tools.rows(step)).detach())).backward()
        mine.step()
    return model


def appended(tools: Tools) -> Any:
    model, optimizer = _begin(tools)

    def grow(step: int) -> None:
        if step == 2:
            torch.manual_seed(4 + tools.rank)  # rank 0's values count
            open_model(model).extra = layer = nn.Linear(4, 4)
            optimizer.add_param_group({"params": layer.parameters()})

    return _train(tools, model, optimizer, between=grow)


def replaced(tools: Tools) -> Any:
    model, optimizer = _begin(tools)

    def replace(step: int) -> None:
        if step == 2:
            torch.manual_seed(4 + tools.rank)
            open_model(model).head = layer = nn.Linear(4, 1)
            optimizer.add_param_group({"params": layer.parameters()})

    return _train(tools, model, optimizer, between=replace)


def replaced_and_forgotten(tools: Tools) -> Any:
    model, optimizer = _begin(tools)

    def replace(step: int) -> None:
        if step == 2:
            torch.manual_seed(4)
            open_model(model).head = nn.Linear(4, 1)

    return _train(tools, model, optimizer, between=replace)


def tied_later(tools: Tools) -> Any:
    model, optimizer = _begin(tools)

    def tie(step: int) -> None:
        if step == 2:
            open_model(model).second.weight = open_model(model).first.weight

    return _train(tools, model, optimizer, between=tie)


def parameter_registered_later(tools: Tools) -> Any:
    model, optimizer = _begin(tools)

    def register(step: int) -> None:
        if step == 2:
            made = nn.Parameter(torch.ones(()) * 2)
            open_model(model).scale = None
            del open_model(model).scale
            open_model(model).register_parameter("scale", made)
            optimizer.add_param_group({"params": [made]})

    return _train(tools, model, optimizer, between=register)


def normed_later(tools: Tools) -> Any:
    model = tools.model(build())
    nn.utils.parametrizations.weight_norm(open_model(model).first)
    optimizer = tools.optimizer(torch.optim.SGD(model.parameters(), lr=LR))
    return _train(tools, model, optimizer)


def unused_layer(tools: Tools) -> Any:
    return _train(tools, *_begin(tools), call=lambda model, x: model(x, skips=True))


def unused_layer_that_is_found(tools: Tools) -> Any:
    model, optimizer = _begin(tools, find_unused_parameters=True)
    return _train(tools, model, optimizer, call=lambda model, x: model(x, skips=True))


# --- around the wrapper -----------------------------------------------------------------------------------------------


def around(tools: Tools) -> Any:
    return _train(tools, *_begin(tools), call=lambda model, x: open_model(model)(x))


def around_by_a_method(tools: Tools) -> Any:
    return _train(tools, *_begin(tools), call=lambda model, x: open_model(model).aside(x))


def around_and_through(tools: Tools) -> Any:
    return _train(tools, *_begin(tools), call=lambda model, x: model(x) + open_model(model).aside(x))


def around_every_other_step(tools: Tools) -> Any:
    numbers = itertools.count()
    return _train(tools, *_begin(tools), call=lambda model, x: model(x) if next(numbers) % 2 else open_model(model)(x))


def around_then_clipped(tools: Tools) -> Any:
    model, optimizer = _begin(tools)
    clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # noqa: E731 (shorter here)
    return _train(tools, model, optimizer, call=lambda model, x: open_model(model).aside(x), before_step=clip)


def around_with_a_layer_unfrozen(tools: Tools) -> Any:
    net = build()
    net.first.requires_grad_(False)
    model = tools.model(net)
    optimizer = tools.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
    return _train(
        tools,
        model,
        optimizer,
        between=lambda step: net.first.requires_grad_(step >= 2),
        call=lambda model, x: open_model(model)(x),
    )


def second_loss_around(tools: Tools) -> Any:
    model, optimizer = _begin(tools)
    for step in range(STEPS):
        optimizer.zero_grad()
        _loss(model(tools.rows(step))).backward()
        _loss(open_model(model).aside(tools.rows(step))).backward()
        optimizer.step()
    return model


def layer_alone(tools: Tools) -> Any:
    return _train(tools, *_begin(tools), call=lambda model, x: open_model(model).head(open_model(model).first(x)))


def functional_call(tools: Tools) -> Any:
    def call(model: Any, x: torch.Tensor) -> torch.Tensor:
        inner = open_model(model)
        found: torch.Tensor = torch.func.functional_call(inner, dict(inner.named_parameters()), (x,))
        return found

    return _train(tools, *_begin(tools), call=call)


# --- gradients --------------------------------------------------------------------------------------------------------


def two_backward_passes(tools: Tools) -> Any:
    model, optimizer = _begin(tools)
    for step in range(STEPS):
        optimizer.zero_grad()
        _loss(model(tools.rows(step))).backward()
        _loss(-model(tools.rows(step))).backward()
        optimizer.step()
    return model


def two_forward_passes_first(tools: Tools) -> Any:
    model, optimizer = _begin(tools)
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = [_loss(model(tools.rows(step))), _loss(-model(tools.rows(step)))]
        for loss in losses:
            loss.backward()
        optimizer.step()
    return model


def two_forward_passes_one_backward(tools: Tools) -> Any:
    return _train(tools, *_begin(tools), call=lambda model, x: model(x) + model(-x))


def accumulated(tools: Tools) -> Any:
    model, optimizer = _begin(tools)
    for step in range(0, STEPS, 2):
        optimizer.zero_grad()
        with tools.no_sync(model):
            _loss(model(tools.rows(step))).backward()
        _loss(model(tools.rows(step + 1))).backward()
        optimizer.step()
    return model


def all_accumulated(tools: Tools) -> Any:
    model, optimizer = _begin(tools)
    for step in range(STEPS):
        optimizer.zero_grad()
        with tools.no_sync(model):
            _loss(model(tools.rows(step))).backward()
        optimizer.step()
    return model


def kept_gradients(tools: Tools) -> Any:
    model, optimizer = _begin(tools)
    for step in range(STEPS):
        if step % 2 == 0:
            optimizer.zero_grad(set_to_none=False)
        _loss(model(tools.rows(step))).backward()
        optimizer.step()
    return model


def written_gradients(tools: Tools) -> Any:
    model, optimizer = _begin(tools)
    for step in range(STEPS):
        parameters = list(model.parameters())
        for one, slope in zip(parameters, torch.autograd.grad(_loss(model(tools.rows(step))), parameters), strict=True):
            one.grad = slope
        optimizer.step()
    return model


def clipped(tools: Tools) -> Any:
    model, optimizer = _begin(tools)
    return _train(
        tools, model, optimizer, before_step=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=False)
    )


def clipped_by_value(tools: Tools) -> Any:
    model, optimizer = _begin(tools)
    return _train(tools, model, optimizer, before_step=lambda: nn.utils.clip_grad_value_(model.parameters(), 0.01))


def changed_gradients(tools: Tools) -> Any:
    model, optimizer = _begin(tools)

    def change() -> None:
        for one in model.parameters():
            one.grad *= 0.5

    return _train(tools, model, optimizer, before_step=change)


def gradient_penalty(tools: Tools) -> Any:
    model, optimizer = _begin(tools)
    for step in range(STEPS):
        optimizer.zero_grad()
        rows = tools.rows(step).requires_grad_()
        output = open_model(model)(rows)
        (slope,) = torch.autograd.grad(output.sum(), rows, create_graph=True)
        (_loss(output) + slope.square().sum(1).mean()).backward()
        optimizer.step()
    return model


def recomputed(tools: Tools) -> Any:
    from torch.utils import checkpoint

    class Recomputed(Net):
        def forward(self, x: torch.Tensor, skips: bool = False) -> torch.Tensor:
            found: torch.Tensor = checkpoint.checkpoint(super().forward, x, use_reentrant=False)
            return found

    return _train(tools, *_begin(tools, build(Recomputed)))


# --- copies and evaluation --------------------------------------------------------------------------------------------


def averaged_copy(tools: Tools) -> Any:
    model, optimizer = _begin(tools)
    average = swa_utils.AveragedModel(model)
    return _train(tools, model, optimizer, between=lambda step: average.update_parameters(model))


def copied_before(tools: Tools) -> Any:
    model = tools.model(copy.deepcopy(build()))
    return _train(tools, model, tools.optimizer(torch.optim.SGD(model.parameters(), lr=LR)))


def evaluated_between(tools: Tools) -> Any:
    model, optimizer = _begin(tools)

    def evaluate(step: int) -> None:
        model.eval()
        with torch.no_grad():
            model(tools.rows(step))
        model.train()

    return _train(tools, model, optimizer, between=evaluate)


def unequal_starts(tools: Tools) -> Any:
    torch.manual_seed(3 + 5 * tools.rank)
    return _train(tools, *_begin(tools, Net()))


def sparse_table(tools: Tools) -> Any:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(5, 4, sparse=True), nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.head(self.table((x[:, 0].abs() * 10).long() % 5))
            return found

    return _train(tools, *_begin(tools, build(Table)))


def sparse_table_around(tools: Tools) -> Any:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(5, 4, sparse=True), nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.head(self.table((x[:, 0].abs() * 10).long() % 5))
            return found

    return _train(tools, *_begin(tools, build(Table)), call=lambda model, x: open_model(model)(x))


def compiled(tools: Tools) -> Any:
    model, optimizer = _begin(tools)
    return open_model(_train(tools, torch.compile(model, backend="eager"), optimizer)._orig_mod)


def masked_mean_by_all_ranks(tools: Tools) -> Any:
    """A mean over what a mask leaves, of which ranks have different numbers."""
    model, optimizer = _begin(tools)
    for step in range(STEPS):
        optimizer.zero_grad()
        rows = tools.rows(step)
        valid = (rows[:, 0] > 0).float()
        whole = (_draw(step)[:, 0] > 0).float()
        size = ROWS // len(rows)
        losses = (model(rows).squeeze(1) - 1).square() * valid
        (losses.sum() * size / whole.sum()).backward()
        optimizer.step()
    return model


WAYS: dict[str, Callable[[Tools], Any]] = {
    way.__name__: way
    for way in (
        plain,
        optimizer_before,
        optimizer_after_a_forward_pass,
        two_optimizers,
        two_optimizers_by_turns,
        two_models_one_optimizer,
        parameter_outside,
        parameter_outside_with_a_closure,
        closure,
        momentum_and_decay,
        groups,
        scaled_by_hand,
        unfrozen_later,
        frozen_later,
        frozen_and_unfrozen,
        all_frozen_for_a_while,
        appended,
        replaced,
        replaced_and_forgotten,
        tied_later,
        parameter_registered_later,
        normed_later,
        unused_layer,
        unused_layer_that_is_found,
        around,
        around_by_a_method,
        around_and_through,
        around_every_other_step,
        around_then_clipped,
        around_with_a_layer_unfrozen,
        second_loss_around,
        layer_alone,
        functional_call,
        two_backward_passes,
        two_forward_passes_first,
        two_forward_passes_one_backward,
        accumulated,
        all_accumulated,
        kept_gradients,
        written_gradients,
        clipped,
        clipped_by_value,
        changed_gradients,
        gradient_penalty,
        recomputed,
        averaged_copy,
        copied_before,
        evaluated_between,
        unequal_starts,
        sparse_table,
        sparse_table_around,
        compiled,
        masked_mean_by_all_ranks,
    )
}


def read_weights(model: Any) -> list[torch.Tensor]:
    parameters = list(open_model(model).parameters())
    return [(one.full_tensor() if hasattr(one, "full_tensor") else one).detach().clone() for one in parameters]


def run_all(config: dict[str, Any]) -> dict[str, Any]:
    """Train in each way; return the weights, or the error. Rank 0's count; the others are compared with them here."""
    found: dict[str, Any] = {}
    for name in config["ways"]:
        try:
            model = WAYS[name](Ranks(config["parallel_strategy"]))
            hocket_torch.synchronize()
            mine = read_weights(model)
            everyone: list[Any] = [None] * train.get_context().get_world_size()
            torch.distributed.all_gather_object(everyone, [one.tolist() for one in mine])
            found[name] = mine if all(one == everyone[0] for one in everyone) else "the ranks differ"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def watch_one(config: dict[str, Any]) -> None:
    WAYS[config["way"]](Ranks(config["parallel_strategy"]))


def count_ways() -> Iterator[str]:
    yield from WAYS
