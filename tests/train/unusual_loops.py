"""Unusual ways to write a training loop of PyTorch, each written once: for ranks, and for one process with the whole
batch."""

from __future__ import annotations

import contextlib
import copy
import itertools
import warnings
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import parallel
from torch.optim import swa_utils
from torch.utils import checkpoint, data

from hocket import train
from hocket.train import torch as hocket_torch
from hocket.train.frameworks.torch import framework
from hocket.train.frameworks.torch.strategies import all_reduce, wrapping

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


def parameter_outside_that_is_replaced(tools: Tools) -> Any:
    model, scale = tools.model(build()), nn.Parameter(torch.ones(()) * 2)
    optimizer = tools.optimizer(torch.optim.SGD([*model.parameters(), scale], lr=LR))

    def replace(step: int) -> None:
        nonlocal scale
        if step == 3:
            optimizer.param_groups[0]["params"][-1] = scale = nn.Parameter(scale.detach() / 2)

    return _train(tools, model, optimizer, between=replace, call=lambda model, x: model(x) * scale)


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


def _train_by_closure(tools: Tools, model: Any, optimizer: Any) -> Any:
    for step in range(STEPS):

        def compute(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = _loss(model(tools.rows(step)))
            loss.backward()
            return loss

        optimizer.step(compute)
    return model


def lbfgs_that_nobody_prepared(tools: Tools) -> Any:
    """It decides by the loss how far to go."""
    model = tools.model(build())
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn="strong_wolfe")
    return _train_by_closure(tools, model, optimizer)


def rprop(tools: Tools) -> Any:
    model = tools.model(build())
    return _train(tools, model, tools.optimizer(torch.optim.Rprop(model.parameters(), lr=LR)))


def adafactor(tools: Tools) -> Any:
    model = tools.model(build())
    return _train(tools, model, tools.optimizer(torch.optim.Adafactor(model.parameters(), lr=LR)))


def _build_head() -> nn.Linear:
    torch.manual_seed(7)
    return nn.Linear(4, 1)


def head_with_an_optimizer_of_its_own(tools: Tools) -> Any:
    model, head = tools.model(nn.Sequential(nn.Linear(4, 4), nn.Tanh())), _build_head()
    optimizer, own = tools.optimizer(torch.optim.SGD(model.parameters(), lr=LR)), torch.optim.Adam(head.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        own.zero_grad()
        _loss(head(model(tools.rows(step)))).backward()
        optimizer.step()
        own.step()
    return nn.ModuleList([open_model(model), head])


def head_alone(tools: Tools) -> Any:
    model, head = tools.model(nn.Sequential(nn.Linear(4, 4), nn.Tanh())), _build_head()
    own = torch.optim.Adam(head.parameters())
    for step in range(STEPS):
        own.zero_grad()
        with torch.no_grad():
            features = model(tools.rows(step))
        _loss(head(features)).backward()
        own.step()
    return head


def layer_that_one_rank_uses(tools: Tools) -> Any:
    model, optimizer = _begin(tools, find_unused_parameters=True)
    for step in range(STEPS):
        rows = tools.rows(step)
        optimizer.zero_grad()
        if isinstance(tools, Alone):
            first, second = rows.chunk(2)
            ((_loss(model(first)) + _loss(model(second, skips=True))) / 2).backward()
        else:
            _loss(model(rows, skips=tools.rank == 1)).backward()
        optimizer.step()
    return model


def layer_that_one_rank_uses_in_no_sync(tools: Tools) -> Any:
    model = tools.model(build(), find_unused_parameters=True)
    net = open_model(model)
    rest = [*net.first.parameters(), *net.head.parameters()]
    optimizers = [tools.optimizer(torch.optim.SGD(some, lr=LR)) for some in (rest, net.second.parameters())]
    for step in range(0, STEPS, 2):
        model.zero_grad()
        for rows, last in ((tools.rows(step), False), (tools.rows(step + 1), True)):
            with contextlib.nullcontext() if last else tools.no_sync(model):
                if isinstance(tools, Alone):
                    first, second = rows.chunk(2)
                    ((_loss(model(first, skips=last)) + _loss(model(second, skips=True))) / 2).backward()
                else:
                    _loss(model(rows, skips=last or tools.rank == 1)).backward()
        for optimizer in optimizers:
            optimizer.step()
    return model


def closure(tools: Tools) -> Any:
    model, optimizer = _begin(tools)
    return _train_by_closure(tools, model, optimizer)


def momentum_and_decay(tools: Tools) -> Any:
    model = tools.model(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    optimizer = tools.optimizer(optimizer)
    return _train(tools, model, optimizer, between=lambda step: schedule.step() if step else None)


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
        head_with_an_optimizer_of_its_own,
        head_alone,
        layer_that_one_rank_uses,
        layer_that_one_rank_uses_in_no_sync,
        optimizer_before,
        optimizer_after_a_forward_pass,
        two_optimizers,
        two_optimizers_by_turns,
        two_models_one_optimizer,
        parameter_outside,
        parameter_outside_that_is_replaced,
        parameter_outside_with_a_closure,
        lbfgs_that_nobody_prepared,
        rprop,
        adafactor,
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
    state = open_model(model).state_dict()  # parameters may be elsewhere, on servers or in other ranks
    parameters: list[Any] = [state[name] for name, _ in open_model(model).named_parameters()]
    return [(one.full_tensor() if hasattr(one, "full_tensor") else one).detach().clone() for one in parameters]


def run_all(config: dict[str, Any]) -> dict[str, Any]:
    """Train in each way; return the weights, if they are the same in all ranks, or what is wrong."""
    found: dict[str, Any] = {}
    for name in config["ways"]:
        try:
            model = WAYS[name](Ranks(config["parallel_strategy"]))
            hocket_torch.synchronize()
            mine = read_weights(model)
        except Exception as error:  # noqa: BLE001 (each is compared with what is expected)
            found[name] = f"{type(error).__name__}: {error}"
            continue
        everyone: list[Any] = [None] * train.get_context().get_world_size()
        dist.all_gather_object(everyone, [one.tolist() for one in mine])
        found[name] = mine if all(one == everyone[0] for one in everyone) else "the ranks differ"
    return found


def run_one(config: dict[str, Any]) -> None:
    WAYS[config["way"]](Ranks(config["parallel_strategy"]))


def freeze_by_a_constant() -> None:
    """A layer computes with a plain tensor in place of its parameter, which is no parameter any more."""
    model, optimizer = _begin(Ranks())
    first = open_model(model).first
    value = first.weight.detach().clone()
    del first.weight
    first.weight = value
    _train(Ranks(), model, optimizer)


DIVERGING = [
    "parameter_outside",
    "parameter_outside_with_a_closure",
    "unfrozen_later",
    "appended",
    "parameter_registered_later",
    "around",
    "around_by_a_method",
    "around_every_other_step",
    "around_then_clipped",
    "around_with_a_layer_unfrozen",
    "second_loss_around",
    "layer_alone",
    "functional_call",
    "two_forward_passes_first",
    "sparse_table_around",
    "all_accumulated",
    "written_gradients",
    "gradient_penalty",
]
"""What DistributedDataParallel trains apart without a word."""


def run_bare(config: dict[str, Any]) -> None:
    """Train with all of it switched off that makes loops right, and report."""
    wrapping.Wrapper.begin_forward = lambda self, wrapped: None  # type: ignore[method-assign]
    wrapping.Wrapper._take_gradient = lambda self, parameter: None  # type: ignore[method-assign]
    all_reduce.TorchAllReduce.begin_step = lambda self, *_: None  # type: ignore[method-assign]
    model = WAYS[config["way"]](Ranks())
    train.report({"weights": len(read_weights(model))})


# --- one rank does something else -------------------------------------------------------------------------------------


def lower_the_rate(model: Any, optimizer: Any, step: int) -> None:
    optimizer.param_groups[0]["lr"] = LR / 2


def load_weights(model: Any, optimizer: Any, step: int) -> None:
    open_model(model).load_state_dict({**build().state_dict(), "counted": torch.zeros(1)})


def write_a_buffer(model: Any, optimizer: Any, step: int) -> None:
    open_model(model).counted += 1


def change_gradients(model: Any, optimizer: Any, step: int) -> None:
    open_model(model).head.bias.grad += 0.1


def leave_out_a_step(model: Any, optimizer: Any, step: int) -> None:
    for one in model.parameters():
        one.grad = None


UNEQUAL_WAYS = {
    "lower_the_rate": "in report 1 .after 6 steps. rank 1 has values of the parameter `first.weight` that differ from "
    "rank 0's",
    "load_weights": "has values of the parameter `first.weight`.* one rank alone loaded or changed weights",
    "write_a_buffer": "rank 1 has values of the buffer `counted` that differ from rank 0's by up to 1 in",
    "change_gradients": "rank 1 has values of the parameter `head.bias`",
    "leave_out_a_step": "rank 1 has values of the parameter `first.weight`",
    "unused_in_one": "has not used the layers of `second.weight`, `second.bias` in this rank",
    "around_in_one": "another operation|other operations|CollectiveMismatchError",
    "unfrozen_in_one": "another operation|other operations|CollectiveMismatchError",
}
"""What rank 1 alone does, and what is said."""


def run_unequal(config: dict[str, Any]) -> None:
    way, tools = config["way"], Ranks()
    net = build()
    net.register_buffer("counted", torch.zeros(1))
    if way == "unfrozen_in_one":
        net.first.requires_grad_(False)
    model, optimizer = _begin(tools, net)
    for step in range(STEPS):
        is_now = tools.rank == 1 and step >= STEPS - 2
        if way == "unfrozen_in_one":
            net.first.requires_grad_(is_now)
        optimizer.zero_grad()
        called = net if way == "around_in_one" and is_now else model
        _loss(called(tools.rows(step), skips=way == "unused_in_one" and is_now)).backward()
        if is_now and way in globals():
            globals()[way](model, optimizer, step)
        optimizer.step()
    train.report({})


def accumulate_statically() -> None:
    tools = Ranks()
    model, _ = _begin(tools, static_graph=True)
    with model.no_sync():
        _loss(model(tools.rows(0))).backward()


def overflow_in_one_rank() -> list[dict[str, Any]]:
    """Gradients that are averaged in the step overflow in rank 0 alone, in the first of three steps."""
    hocket_torch.accelerate(amp=True, dtype=torch.float16)
    scale: Any = framework.FRAMEWORK.get_state("test").precision.scaler  # type: ignore[union-attr]
    is_first = train.get_context().get_world_rank() == 0
    model = hocket_torch.prepare_model(nn.Linear(4, 1, bias=False))
    beside = nn.Parameter(torch.zeros(()))
    made = [hocket_torch.prepare_optimizer(torch.optim.SGD([one], lr=1.0)) for one in (*model.parameters(), beside)]
    found = []
    for step in range(3):
        factor = float("inf") if is_first and step == 0 else 0.25
        before = next(model.parameters()).detach().clone()
        with hocket_torch.no_sync(model):
            hocket_torch.backward((model(torch.ones(2, 4)).mean() + beside) * factor)
        for optimizer in made:
            optimizer.step()
            optimizer.zero_grad()
        moved = (before - next(model.parameters())).detach().mean().item()
        found.append({"moved": moved, "beside": beside.item(), "scale": scale.scale})
    return found


def clip_in_float16() -> dict[str, Any]:
    hocket_torch.accelerate(amp=True, dtype=torch.float16)

    class Each(nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(4, 1, bias=False) for _ in range(count))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([part(x).mean() for part in self.parts])

    def prepare(count: int) -> tuple[Any, Any, list[Any], list[torch.Tensor]]:
        model = hocket_torch.prepare_model(Each(count))
        parts = list(open_model(model).parts)
        made = [hocket_torch.prepare_optimizer(torch.optim.SGD(part.parameters(), lr=1.0)) for part in parts]
        return model, parts, made, [part.weight.detach().clone() for part in parts]

    found: dict[str, Any] = {"moved": []}
    ones = torch.ones(2, 4)
    for clip in (lambda p: nn.utils.clip_grad_norm_(p, 2.0), lambda p: nn.utils.clip_grad_value_(p, 0.1)):
        model, parts, (optimizer,), (before,) = prepare(1)
        hocket_torch.backward(model(ones).sum() * 0.5)  # each of four gradients is 0.5: their norm is 1
        norm = clip(model.parameters())
        found.setdefault("norm", float(norm) if norm is not None else 0.0)
        optimizer.step()
        found["moved"].append((parts[0].weight - before).detach().norm().item())
    scale: Any = framework.FRAMEWORK.get_state("test").precision.scaler  # type: ignore[union-attr]
    model, parts, (first, second), (before, _) = prepare(2)
    hocket_torch.backward((model(ones) * torch.tensor([1e38 * 1e38, 1.0])).sum())
    nn.utils.clip_grad_value_(model.parameters(), 0.1)
    first.step()
    found["overflow"] = {"moved": (parts[0].weight - before).detach().norm().item()}
    second.step()
    model, parts, made, starts = prepare(2)
    hocket_torch.backward(model(ones).sum() * 0.5)
    found["overflow"]["scale"] = scale.scale
    for one in made:
        one.step()
    found["two optimizers"] = [
        (part.weight - start).detach().abs().max().item() for part, start in zip(parts, starts, strict=True)
    ]
    model, parts, (optimizer,), (before,) = prepare(1)
    for _ in range(2):
        hocket_torch.backward(model(ones).sum() * 0.25)
    optimizer.step()
    found["accumulated"] = (parts[0].weight - before).detach().norm().item()
    return found


def read_buffers(config: dict[str, Any]) -> list[Any]:
    tools = Ranks(config.get("parallel_strategy", "ddp"))
    torch.manual_seed(0)
    model, optimizer = _begin(tools, nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
    _train(tools, model, optimizer)
    with tools.no_sync(model):  # an epoch may end with batches that fill no step
        _loss(model(tools.rows(STEPS))).backward()
    train.report({})
    everyone: list[Any] = [None, None]
    dist.all_gather_object(everyone, [buffer.tolist() for buffer in open_model(model).buffers()])
    return everyone


def load_unprepared(config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    loader: Any = data.DataLoader(data.TensorDataset(torch.randn(32, 4)), batch_size=4, shuffle=True)
    if config["prepares"]:
        loader = hocket_torch.prepare_data_loader(loader)
    model, optimizer = _begin(Ranks())
    for (rows,) in loader:
        optimizer.zero_grad()
        _loss(model(rows)).backward()
        optimizer.step()


# --- what is said -----------------------------------------------------------------------------------------------------


def hook_gradients() -> list[str]:
    """Return the warnings of a first and a second step with a hook of the user's."""
    model = hocket_torch.prepare_model(build())
    open_model(model).head.weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(2):
            _loss(model(_draw(step))).backward()
            optimizer.step()
    return [str(one.message) for one in caught if "hooks on the gradients" in str(one.message)]


def step_what_is_left_alone() -> list[Any]:
    """Return each rank's value of a parameter that the model's wrapper is told to leave alone."""
    net = build()
    parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["head.bias"])
    model = hocket_torch.prepare_model(net)
    own = torch.optim.SGD([net.head.bias], lr=1.0)
    net.head.bias.data.zero_()
    net.head.bias.grad = torch.full((1,), float(train.get_context().get_world_rank() + 1))
    own.step()
    found: list[Any] = [None] * train.get_context().get_world_size()
    dist.all_gather_object(found, net.head.bias.item())
    assert model is not net
    return found


def prepare_twice() -> None:
    hocket_torch.prepare_model(hocket_torch.prepare_model(build()))


def train_complex_numbers() -> list[str]:
    net: nn.Module = nn.Linear(3, 1, dtype=torch.complex64)
    signs = torch.ones(2, dtype=torch.complex64).conj()  # which torch only notes
    net.register_buffer("both", signs)
    net.register_buffer("imaginary", signs.imag)
    model = hocket_torch.prepare_model(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    model(torch.ones(2, 3, dtype=torch.complex64).conj()).abs().mean().backward()
    optimizer.step()
    train.report({"is": "compared"})
    return [str(one.dtype) for one in model.parameters()]
